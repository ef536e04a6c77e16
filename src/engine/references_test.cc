// Foreign keys in the kernel (FK1 to FK8 and FK10): checks, cascades, locks, DDL, restarts, and
// random families of tables against an oracle that knows no keys and no locks (STRATA_SEED,
// STRATA_ROUNDS).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/fault.h"
#include "base/rng.h"
#include "engine/testing/cluster.h"
#include "engine/testing/family_test.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers
using Action = ReferentialAction;

class ReferencesTest : public FamilyTest {};

TEST_F(ReferencesTest, AChildNeedsItsParentAndKeepsIt) {
  ASSERT_TRUE(make("p").ok());
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"})}).ok());
  EXPECT_TRUE(is_no_referenced_row(put("c", {1, 7})));
  EXPECT_EQ(session_->foreign_key_error().table, "c");
  EXPECT_EQ(session_->foreign_key_error().key.name, "fk");
  EXPECT_TRUE(put("c", {1, std::nullopt}).ok());
  EXPECT_TRUE(put("p", {7}).ok());
  EXPECT_TRUE(put("c", {2, 7}).ok());
  EXPECT_TRUE(is_no_referenced_row(change("c", {2, 7}, {2, 8})));
  EXPECT_TRUE(is_row_is_referenced(take("p", {7})));
  EXPECT_TRUE(is_row_is_referenced(change("p", {7}, {8})));
  EXPECT_TRUE(change("p", {7}, {7, 3}).ok());  // nothing refers to that column
  EXPECT_EQ(all("p"), (Members{{7, {7, 3}}}));
  EXPECT_TRUE(change("c", {2, 7}, {2, std::nullopt}).ok());
  EXPECT_TRUE(take("p", {7, 3}).ok());
  EXPECT_EQ(all("c").size(), 2u);
}

// Keys of two indexes that are written differently (NULL flags, order) say the same.
TEST_F(ReferencesTest, ComparesKeysOfOtherForms) {
  ASSERT_TRUE(make("p", {}, true, true).ok());  // b is descending
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"b"}, Action::kCascade, Action::kCascade),
                         refers("aa", {"a", "b"}, "p", {"a", "b"})})
                  .ok());
  EXPECT_TRUE(put("p", {1, 5, 5}).ok());
  EXPECT_TRUE(put("c", {10, 5, 5}).ok());
  EXPECT_TRUE(put("c", {11, 5, std::nullopt}).ok());  // one NULL is enough
  EXPECT_TRUE(is_no_referenced_row(put("c", {12, 6, std::nullopt})));
  EXPECT_TRUE(is_no_referenced_row(put("c", {13, 5, 6})));
  EXPECT_TRUE(put("p", {2, 5, 6}).ok());
  EXPECT_TRUE(put("c", {14, 5, 6}).ok());
  EXPECT_TRUE(is_row_is_referenced(take("p", {2, 5, 6})));
  EXPECT_TRUE(take("c", {14, 5, 6}).ok());
  EXPECT_TRUE(take("p", {2, 5, 6}).ok());
  EXPECT_TRUE(take("c", {10, 5, 5}).ok());
  EXPECT_TRUE(change("p", {1, 5, 5}, {1, 5, 9}).ok());
  EXPECT_EQ(all("c"), (Members{{11, {11, 9, std::nullopt}}}));
  EXPECT_TRUE(take("p", {1, 5, 9}).ok());
  EXPECT_TRUE(all("c").empty());
}

TEST_F(ReferencesTest, ChangesFollowIntoChildren) {
  ASSERT_TRUE(make("p").ok());
  ASSERT_TRUE(
      make("c", {refers("fk", {"a"}, "p", {"id"}, Action::kCascade, Action::kCascade)}).ok());
  ASSERT_TRUE(
      make("g", {refers("fg", {"a"}, "c", {"a"}, Action::kSetNull, Action::kCascade)}).ok());
  ASSERT_TRUE(put("p", {1}).ok());
  ASSERT_TRUE(put("c", {10, 1}).ok());
  ASSERT_TRUE(put("g", {100, 1}).ok());
  ASSERT_TRUE(change("p", {1}, {2}).ok());
  EXPECT_EQ(all("c"), (Members{{10, {10, 2}}}));
  EXPECT_EQ(all("g"), (Members{{100, {100, 2}}}));
  // Undone with the rest of the transaction.
  session_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(remove(session_.get(), open("p"), {2}).ok());
  ASSERT_TRUE(session_->rollback().ok());
  EXPECT_EQ(all("c").size(), 1u);
  ASSERT_TRUE(take("p", {2}).ok());
  EXPECT_TRUE(all("c").empty());
  EXPECT_EQ(all("g"), (Members{{100, {100, std::nullopt}}}));
  EXPECT_EQ(open("c")->estimated_rows(), 0u);
}

TEST_F(ReferencesTest, ATableMayReferToItself) {
  ASSERT_TRUE(
      make("s", {refers("fk", {"a"}, "s", {"id"}, Action::kCascade, Action::kCascade)}).ok());
  EXPECT_TRUE(put("s", {1, 1}).ok());  // to itself
  for (uint64_t i = 2; i <= 14; ++i) EXPECT_TRUE(put("s", {i, i - 1}).ok()) << i;
  EXPECT_TRUE(is_no_referenced_row(put("s", {40, 41})));
  EXPECT_TRUE(is_row_is_referenced(change("s", {2, 1}, {50, 1})));  // would update itself
  EXPECT_EQ(all("s").size(), 14u);
  EXPECT_TRUE(take("s", {1, 1}).ok());
  EXPECT_TRUE(all("s").empty());
  EXPECT_TRUE(put("s", {1}).ok());
  for (uint64_t i = 2; i <= 30; ++i) EXPECT_TRUE(put("s", {i, i - 1}).ok()) << i;
  EXPECT_TRUE(is_cascade_too_deep(take("s", {1})));
  EXPECT_EQ(all("s").size(), 30u);
}

// FK10: an index counts as it is when its turn comes, the row's own entries as any other's.
TEST_F(ReferencesTest, ARowMayStandInItsOwnWay) {
  ASSERT_TRUE(make("s", {refers("fk", {"a"}, "s", {"id"}, Action::kSetNull)}).ok());
  ASSERT_TRUE(put("s", {1, 1}).ok());
  EXPECT_TRUE(is_row_is_referenced(change("s", {1, 1}, {2, 1})));
  EXPECT_TRUE(is_row_is_referenced(change("s", {1, 1}, {2, 2})));
  EXPECT_TRUE(is_row_is_referenced(change("s", {1, 1}, {2, std::nullopt})));
  EXPECT_TRUE(change("s", {1, 1}, {1, std::nullopt}).ok());
  EXPECT_TRUE(change("s", {1, std::nullopt}, {2, 2}).ok());  // to where it is by then
  EXPECT_TRUE(take("s", {2, 2}).ok());

  for (const Action action : {Action::kRestrict, Action::kNoAction}) {
    const std::string name = action == Action::kRestrict ? "r" : "n";
    ASSERT_TRUE(make(name, {refers("fk_" + name, {"a"}, name, {"id"}, action, action)}).ok());
    ASSERT_TRUE(put(name, {1, 1}).ok());
    EXPECT_TRUE(is_row_is_referenced(take(name, {1, 1})));
    EXPECT_TRUE(change(name, {1, 1}, {1, std::nullopt}).ok());
    EXPECT_TRUE(take(name, {1}).ok());
  }
}

TEST_F(ReferencesTest, ARowIsWrittenIndexByIndex) {
  ASSERT_TRUE(make("up", {refers("fk", {"b"}, "up", {"a"})}).ok());
  EXPECT_TRUE(put("up", {1, 5, 5}).ok());  // the index of a comes first
  EXPECT_TRUE(is_row_is_referenced(take("up", {1, 5, 5})));
  EXPECT_TRUE(is_row_is_referenced(change("up", {1, 5, 5}, {1, 6, 6})));
  EXPECT_TRUE(change("up", {1, 5, 5}, {1, 5, std::nullopt}).ok());
  ASSERT_TRUE(make("down", {refers("fd", {"a"}, "down", {"b"})}).ok());
  EXPECT_TRUE(is_no_referenced_row(put("down", {1, 5, 5})));
  EXPECT_TRUE(put("down", {1, std::nullopt, 5}).ok());
  EXPECT_TRUE(change("down", {1, std::nullopt, 5}, {1, 5, 5}).ok());
  EXPECT_TRUE(take("down", {1, 5, 5}).ok());  // its entry of a is gone before that of b
}

// FK1: two children of one parent wait for nobody; whoever takes the parent away waits for both.
TEST_F(ReferencesTest, ChildrenOfOneParentDoNotWait) {
  ASSERT_TRUE(make("p").ok());
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"})}).ok());
  ASSERT_TRUE(put("p", {1}).ok());
  ASSERT_TRUE(put("p", {2}).ok());
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint64_t i = 0; i < 16; ++i) {
    sessions.push_back(kernel_->new_session());
    sessions.back()->set_lock_wait_timeout_us(0);
    sessions.back()->begin(Isolation::kRepeatableRead);
    EXPECT_TRUE(insert(sessions.back().get(), open("c"), {i, 1}).ok()) << i;
  }
  session_->set_lock_wait_timeout_us(0);
  EXPECT_TRUE(is_lock_wait_timeout(take("p", {1})));
  EXPECT_TRUE(take("p", {2}).ok());
  for (auto& session : sessions) EXPECT_TRUE(session->rollback().ok());
  EXPECT_TRUE(take("p", {1}).ok());
}

// FK2: a child that comes while its parent is going waits, and finds it gone, or there again.
TEST_F(ReferencesTest, AChildWaitsForAParentThatGoes) {
  ASSERT_TRUE(make("p").ok());
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"})}).ok());
  for (const bool stays : {true, false}) {
    const uint64_t id = stays ? 1 : 2;
    ASSERT_TRUE(put("p", {id}).ok());
    const auto other = kernel_->new_session();
    other->begin(Isolation::kReadCommitted);
    ASSERT_TRUE(remove(other.get(), open("p"), {id}).ok());
    session_->set_lock_wait_timeout_us(0);
    EXPECT_TRUE(is_lock_wait_timeout(put("c", {id, id})));
    session_->set_lock_wait_timeout_us(50'000'000);
    ASSERT_TRUE((stays ? other->rollback() : other->commit()).ok());
    const Status added = put("c", {id, id});
    EXPECT_TRUE(stays ? added.ok() : is_no_referenced_row(added)) << added;
  }
}

// FK3: whatever the view of the transaction that takes the parent away.
TEST_F(ReferencesTest, ChildrenCountWhateverTheView) {
  ASSERT_TRUE(make("p").ok());
  ASSERT_TRUE(put("p", {1}).ok());
  const auto other = kernel_->new_session();
  other->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(other->open_view().ok());
  const TableRef parent = open("p");
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"})}).ok());
  ASSERT_TRUE(put("c", {5, 1}).ok());
  EXPECT_TRUE(is_row_is_referenced(remove(other.get(), parent, {1})));
  EXPECT_TRUE(other->rollback().ok());
}

// FK7
TEST_F(ReferencesTest, WithoutChecksTablesComeInAnyOrder) {
  EXPECT_TRUE(is_foreign_key_refused(make("c", {refers("fk", {"a"}, "p", {"id"})})));
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"}, Action::kCascade)}, false).ok());
  EXPECT_TRUE(is_no_referenced_row(put("c", {1, 1})));
  session_->set_foreign_key_checks(false);
  EXPECT_TRUE(put("c", {1, 1}).ok());
  session_->set_foreign_key_checks(true);
  ASSERT_TRUE(make("p").ok());
  EXPECT_TRUE(put("p", {1}).ok());
  EXPECT_TRUE(put("p", {2}).ok());
  EXPECT_TRUE(put("c", {2, 2}).ok());
  EXPECT_TRUE(take("p", {1}).ok());
  EXPECT_EQ(all("c").size(), 1u);
  session_->set_foreign_key_checks(false);
  EXPECT_TRUE(take("p", {2}).ok());  // followed by nothing
  session_->set_foreign_key_checks(true);
  EXPECT_EQ(all("c").size(), 1u);
}

TEST_F(ReferencesTest, DdlKeepsParentsAndFollowsNames) {
  ASSERT_TRUE(make("p").ok());
  ASSERT_TRUE(make("c", {refers("c_ibfk_1", {"a"}, "p", {"id"}, Action::kCascade)}).ok());
  const auto drop = [](const std::string& name) {
    return [name](Session* s) { return s->drop_table("test", name); };
  };
  EXPECT_TRUE(is_row_is_referenced(ddl(drop("p"))));
  EXPECT_TRUE(is_row_is_referenced(
      ddl([](Session* s) { return s->truncate_table("test", "p", nullptr); })));
  EXPECT_TRUE(is_foreign_key_refused(make("d", {refers("c_ibfk_1", {"a"}, "p", {"id"})})));
  EXPECT_TRUE(
      is_foreign_key_refused(make("d", {refers("d1", {"id"}, "p", {"a"}, Action::kSetNull)})));
  EXPECT_TRUE(is_foreign_key_refused(make("d", {refers("d1", {"a"}, "p", {"c"})})));
  ASSERT_TRUE(ddl([](Session* s) { return s->rename_table("test", "p", "test", "q"); }).ok());
  EXPECT_EQ(open("c")->references()->foreign_keys[0].parent, table_key("test", "q"));
  ASSERT_TRUE(ddl([](Session* s) { return s->rename_table("test", "c", "test", "k"); }).ok());
  EXPECT_EQ(open("k")->references()->foreign_keys[0].name, "k_ibfk_1");
  EXPECT_EQ(open("q")->references()->children, (std::vector<std::string>{table_key("test", "k")}));
  crash(3);
  ASSERT_TRUE(put("q", {1}).ok());
  ASSERT_TRUE(put("k", {5, 1}).ok());
  EXPECT_TRUE(is_no_referenced_row(put("k", {6, 2})));
  ASSERT_TRUE(take("q", {1}).ok());
  EXPECT_TRUE(all("k").empty());
  ASSERT_TRUE(ddl(drop("k")).ok());
  EXPECT_TRUE(open("q")->references()->children.empty());
  EXPECT_TRUE(ddl(drop("q")).ok());
}

// The swap at the end of a copying ALTER, of the parent and of the child, one transaction each.
TEST_F(ReferencesTest, ACopyTakesThePlaceOfAParentAndOfAChild) {
  ASSERT_TRUE(make("p").ok());
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"}, Action::kCascade)}).ok());
  ASSERT_TRUE(put("p", {1}).ok());
  for (const std::string name : {"p", "c"}) {
    TableSpec copy = family_spec("#sql-alter-1", true);
    if (name == "c") {
      copy.foreign_keys = {refers("fk", {"a"}, "p", {"id"}, Action::kCascade)};
      copy.foreign_keys[0].kept = true;
    }
    ASSERT_TRUE(ddl([&](Session* s) {
                  return s->create_table(copy, nullptr, table_key("test", name));
                }).ok());
    EXPECT_EQ(open("p")->references()->children.size(), 1u);
    ASSERT_TRUE(in_one([&](Session* s) {
                  return name == "p" ? insert(s, open("#sql-alter-1"), {1}) : ok_status();
                }).ok());
    ASSERT_TRUE(ddl([&](Session* s) -> Status {
                  STRATA_RETURN_IF_ERROR(s->rename_table("test", name, "test", "#sql-backup-1"));
                  STRATA_RETURN_IF_ERROR(s->rename_table("test", "#sql-alter-1", "test", name));
                  return s->drop_table("test", "#sql-backup-1");
                }).ok());
    EXPECT_EQ(open("p")->references()->children,
              (std::vector<std::string>{table_key("test", "c")}));
    EXPECT_TRUE(is_no_referenced_row(put("c", {5, 9})));
    EXPECT_TRUE(put("c", {5, 1}).ok());
    EXPECT_TRUE(take("c", {5, 1}).ok());
  }
  EXPECT_TRUE(put("c", {5, 1}).ok());
  EXPECT_TRUE(take("p", {1}).ok());
  EXPECT_TRUE(all("c").empty());
  // One that the child's key would not fit takes nobody's place.
  TableSpec copy = family_spec("#sql-alter-2");
  copy.indexes[0].parts[0].type = "text";
  EXPECT_TRUE(is_foreign_key_refused(
      ddl([&](Session* s) { return s->create_table(copy, nullptr, table_key("test", "p")); })));
}

// A parent of the format before is described when it gets its first child.
TEST_F(ReferencesTest, AParentOfTheFormatBefore) {
  TableSpec old = family_spec("p");
  old.format = kSpecFormatWithoutReferences;
  for (IndexSpec& index : old.indexes) {
    index.parts.clear();
    index.whole = false;
  }
  ASSERT_TRUE(ddl([&](Session* s) { return s->create_table(old, nullptr); }).ok());
  crash(1);
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"}, Action::kCascade)}).ok());
  crash(2);
  ASSERT_TRUE(put("p", {1}).ok());
  ASSERT_TRUE(put("c", {2, 1}).ok());
  ASSERT_TRUE(take("p", {1}).ok());
  EXPECT_TRUE(all("c").empty());
}

// Where an index of such a table is made anew, what is known of that one alone is not taken for
// what there is to know of all.
TEST_F(ReferencesTest, AnIndexIsMadeAnewInATableOfTheFormatBefore) {
  TableSpec old = family_spec("p");
  old.format = kSpecFormatWithoutReferences;
  for (IndexSpec& index : old.indexes) index.parts.clear();
  ASSERT_TRUE(ddl([&](Session* s) { return s->create_table(old, nullptr); }).ok());
  TableSpec altered = open("p")->spec();
  altered.indexes[1].parts = family_spec("p").indexes[1].parts;
  ASSERT_TRUE(ddl([&](Session* s) { return s->alter_table(altered); }).ok());
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"}, Action::kCascade)}).ok());
  EXPECT_TRUE(is_no_referenced_row(put("c", {2, 1})));
  crash(1);
  altered = open("p")->spec();
  altered.indexes[1].parts = family_spec("p").indexes[1].parts;
  ASSERT_TRUE(ddl([&](Session* s) { return s->alter_table(altered); }).ok());
  ASSERT_TRUE(put("p", {1}).ok());
  ASSERT_TRUE(put("c", {2, 1}).ok());
  ASSERT_TRUE(take("p", {1}).ok());
  EXPECT_TRUE(all("c").empty());
}

// Whose keys have the first form can be nobody's parent, by no way, and stays what it is.
TEST_F(ReferencesTest, ATableWithTheFirstFormOfKeysIsNoParent) {
  TableSpec old = family_spec("p");
  old.format = kSpecFormatOfUnboundedKeys;
  for (IndexSpec& index : old.indexes) index.parts.clear();
  ASSERT_TRUE(ddl([&](Session* s) { return s->create_table(old, nullptr); }).ok());
  EXPECT_TRUE(is_foreign_key_refused(make("c", {refers("fk", {"a"}, "p", {"id"})})));
  EXPECT_TRUE(is_foreign_key_refused(make("c", {refers("fk", {"a"}, "p", {"id"})}, false)));
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "q", {"id"})}, false).ok());
  const auto rename = [](Session* s) { return s->rename_table("test", "p", "test", "q"); };
  EXPECT_TRUE(is_foreign_key_refused(ddl(rename)));
  EXPECT_TRUE(is_foreign_key_refused(ddl(rename, false)));
  crash(1);
  EXPECT_EQ(open("p")->spec().format, kSpecFormatOfUnboundedKeys);
  ASSERT_TRUE(put("p", {1}).ok());
}

// FK6. No metadata lock keeps DDL off a parent whose child is being written: it is copied (ALTER),
// emptied or made anew in the middle. A row is refused only where its parent may be missing.
TEST_F(ReferencesTest, ParentsAreReplacedUnderTheirChildren) {
  ASSERT_TRUE(make("p").ok());
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"})}).ok());
  ASSERT_TRUE(put("p", {1}).ok());
  std::atomic<bool> keeps_rows{true};
  std::atomic<bool> done{false};
  std::atomic<uint64_t> tries{0};
  const auto let_one_try = [&tries] { tries.wait(tries.load()); };
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 3; ++t) {
    threads.emplace_back([&, t] {
      const auto session = kernel_->new_session();
      const TableRef c = *session->open_table("test", "c");
      for (uint64_t own = t * 1'000'000; !done; ++own) {
        const bool must = keeps_rows;
        session->begin(Isolation::kReadCommitted);
        const Status good = insert(session.get(), c, {own, 1});
        const bool must_still = keeps_rows;
        EXPECT_TRUE(good.ok() || (is_no_referenced_row(good) && !(must && must_still))) << good;
        const Status bad = insert(session.get(), c, {own + 500'000, 9});
        EXPECT_TRUE(is_no_referenced_row(bad)) << bad;
        EXPECT_TRUE(session->commit().ok());
        ++tries;
        tries.notify_all();
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    let_one_try();
    const TableSpec copy = family_spec("#sql-alter-1", i % 2 == 0);
    EXPECT_TRUE(ddl([&](Session* s) {
                  return s->create_table(copy, nullptr, table_key("test", "p"));
                }).ok());
    EXPECT_TRUE(put("#sql-alter-1", {1}).ok());
    EXPECT_TRUE(ddl([&](Session* s) -> Status {
                  STRATA_RETURN_IF_ERROR(s->rename_table("test", "p", "test", "#sql-backup-1"));
                  STRATA_RETURN_IF_ERROR(s->rename_table("test", "#sql-alter-1", "test", "p"));
                  return s->drop_table("test", "#sql-backup-1");
                }).ok());
  }
  let_one_try();
  keeps_rows = false;
  for (int i = 0; i < 20; ++i) {
    let_one_try();
    EXPECT_TRUE(
        ddl([&](Session* s) { return s->truncate_table("test", "p", nullptr); }, false).ok());
    EXPECT_TRUE(put("p", {1}).ok());
    EXPECT_TRUE(ddl([&](Session* s) { return s->drop_table("test", "p"); }, false).ok());
    EXPECT_TRUE(make("p", {}, false).ok());
    EXPECT_TRUE(put("p", {1}).ok());
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_row_is_referenced(take("p", {1})));
  EXPECT_FALSE(all("c").empty());
}

// --- random families against an oracle ---

struct Kin {
  std::string child;
  ForeignKeySpec key;
};
using World = std::map<std::string, Members>;

Number value(const Member& m, const std::string& column) {
  Member copy = m;
  Number id;
  return column_of(&copy, column, &id);
}

enum class Outcome : uint8_t { kDone, kNoParent, kReferenced, kTooDeep, kDuplicate };

// Rows, and in which indexes they are by now while a statement changes them, one after the other
// (FK10). What an entry says of columns that its index does not have counts for nothing.
class Oracle {
 public:
  explicit Oracle(std::vector<Kin> kin) : kin_(std::move(kin)) {}
  World world;

  Outcome insert(const std::string& table, const Member& m) {
    begin();
    // The clustered key is looked at first; none of these keys is in its index.
    if (world[table].count(m.id) != 0) return Outcome::kDuplicate;
    world[table][m.id] = m;
    indexes_[table][0][m.id] = m;
    for (size_t i = 1; i < kIndexes; ++i) {
      if (!parents_there(table, i, m, nullptr, nullptr)) return Outcome::kNoParent;
      indexes_[table][i][m.id] = m;
    }
    return Outcome::kDone;
  }
  Outcome update(const std::string& table, const Member& from, const Member& to) {
    begin();
    return change(table, from, to, nullptr, {});
  }
  Outcome remove(const std::string& table, const Member& m) {
    begin();
    return erase(table, m, nullptr, {});
  }

 private:
  static constexpr size_t kIndexes = 4;
  struct Step {
    std::string table;
    bool deletes;
  };
  using Chain = std::vector<Step>;

  void begin() {
    indexes_.clear();
    for (const auto& [table, rows] : world)
      for (size_t i = 0; i < kIndexes; ++i) indexes_[table][i] = rows;
  }
  static size_t index_of(const std::vector<std::string>& columns) {
    if (columns.size() == 2) return 3;
    return columns[0] == "id" ? 0 : columns[0] == "a" ? 1 : 2;
  }
  static bool matches(const Member& m, const std::vector<std::string>& columns, const Member& other,
                      const std::vector<std::string>& others) {
    bool equal = true;
    for (size_t i = 0; i < columns.size(); ++i)
      equal = equal && value(m, columns[i]) == value(other, others[i]);
    return equal;
  }
  static bool same_entry(size_t index, const Member& a, const Member& b) {
    return (index == 2 || a.a == b.a) && (index == 1 || a.b == b.b);
  }
  static bool has_null(const Member& m, const std::vector<std::string>& columns) {
    bool null = false;
    for (const std::string& c : columns) null |= !value(m, c).has_value();
    return null;
  }

  bool parents_there(const std::string& table, size_t index, const Member& m, const Member* old,
                     const Kin* from) {
    for (const Kin& k : kin_) {
      const auto& columns = k.key.columns;
      if (k.child != table || index_of(columns) != index || &k == from) continue;
      if (has_null(m, columns)) continue;
      if (old != nullptr && old->id == m.id && same_entry(index, m, *old)) continue;
      bool found = false;
      const auto& others = k.key.parent_columns;
      for (const auto& [id, parent] : indexes_[k.key.parent.substr(5)][index_of(others)])
        found |= matches(parent, others, m, columns);
      if (!found) return false;
    }
    return true;
  }

  Outcome change(const std::string& table, const Member& from, const Member& to, const Kin* by,
                 Chain above) {
    above.push_back({table, false});
    Members& rows = world[table];
    rows.erase(from.id);
    for (size_t i = 0; i < kIndexes; ++i) {
      Members& index = indexes_[table][i];
      index.erase(from.id);
      const Outcome followed = follow(table, i, from, &to, by, above);
      if (followed != Outcome::kDone) return followed;
      if (i == 0) {
        if (rows.count(to.id) != 0) return Outcome::kDuplicate;
        rows[to.id] = to;
      }
      if (!parents_there(table, i, to, &from, by)) return Outcome::kNoParent;
      index[to.id] = to;
    }
    return Outcome::kDone;
  }
  Outcome erase(const std::string& table, const Member& m, const Kin* by, Chain above) {
    above.push_back({table, true});
    world[table].erase(m.id);
    for (size_t i = 0; i < kIndexes; ++i) {
      indexes_[table][i].erase(m.id);
      const Outcome followed = follow(table, i, m, nullptr, by, above);
      if (followed != Outcome::kDone) return followed;
    }
    return Outcome::kDone;
  }

  Outcome follow(const std::string& table, size_t index, const Member& old, const Member* now,
                 const Kin* by, const Chain& above) {
    for (const Kin& k : kin_) {
      const auto& others = k.key.parent_columns;
      if (k.key.parent != table_key("test", table) || index_of(others) != index) continue;
      if ((now != nullptr && &k == by) || has_null(old, others)) continue;
      if (now != nullptr && matches(old, others, *now, others)) continue;
      const Members before = indexes_[k.child][index_of(k.key.columns)];
      for (const auto& [id, seen] : before) {
        if (!matches(seen, k.key.columns, old, others)) continue;
        const Outcome done = follow_to(k, id, now, above);
        if (done != Outcome::kDone) return done;
      }
    }
    return Outcome::kDone;
  }
  // To one child, unless it is gone or going.
  Outcome follow_to(const Kin& k, uint64_t id, const Member* now, const Chain& above) {
    if (indexes_[k.child][index_of(k.key.columns)].count(id) == 0) return Outcome::kDone;
    const Action action = now == nullptr ? k.key.on_delete : k.key.on_update;
    if (action != Action::kCascade && action != Action::kSetNull) return Outcome::kReferenced;
    const bool deletes = now == nullptr && action == Action::kCascade;
    if (!deletes)
      for (const Step& step : above)
        if (step.table == k.child && !step.deletes) return Outcome::kReferenced;
    if (above.size() >= 15) return Outcome::kTooDeep;
    const auto at = world[k.child].find(id);
    if (at == world[k.child].end()) return Outcome::kDone;
    const Member child = at->second;
    if (deletes) return erase(k.child, child, &k, above);
    Member to = child;
    Number unused;
    for (size_t i = 0; i < k.key.columns.size(); ++i) {
      const Number fresh = now == nullptr || action == Action::kSetNull
                               ? std::nullopt
                               : value(*now, k.key.parent_columns[i]);
      column_of(&to, k.key.columns[i], &unused) = fresh;
    }
    return change(k.child, child, to, &k, above);
  }

  std::vector<Kin> kin_;
  std::map<std::string, std::array<Members, kIndexes>> indexes_;
};

Outcome outcome_of(const Status& status) {
  if (is_no_referenced_row(status)) return Outcome::kNoParent;
  if (is_row_is_referenced(status)) return Outcome::kReferenced;
  if (is_cascade_too_deep(status)) return Outcome::kTooDeep;
  if (is_duplicate_key(status) || is_cascaded_duplicate(status)) return Outcome::kDuplicate;
  EXPECT_TRUE(status.ok()) << status;
  return Outcome::kDone;
}

class ReferencesModelTest : public ReferencesTest {
 protected:
  // Sometimes the next change of a child fails half-way, and sometimes what undoes it, too.
  void disturb(Rng* rng) {
    if (!rng->one_in(4)) return;
    codecs_.failure.in = static_cast<int>(1 + rng->below(3));
    if (rng->one_in(4)) {
      ASSERT_TRUE(arm_fault("rollback_half:" + std::to_string(1 + rng->below(4)) + ":error"));
    }
  }
  // `failing`: a statement that failed that way has done nothing; where it could not be undone, its
  // transaction is.
  void round(uint64_t seed, bool failing) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const std::vector<std::string> names = {"t0", "t1", "t2", "t3"};
    std::vector<Kin> kin;
    const Action actions[] = {Action::kRestrict, Action::kCascade, Action::kSetNull,
                              Action::kCascade, Action::kNoAction};
    for (size_t t = 0; t < names.size(); ++t) {
      std::vector<ForeignKeySpec> keys;
      const uint64_t count = rng.below(3);
      for (uint64_t i = 0; i < count; ++i) {
        const std::string& parent = names[rng.below(t + 1)];
        const bool both = rng.below(4) == 0;
        const std::string column = rng.below(2) == 0 ? "a" : "b";
        const char* const refs[] = {"id", "a", "b"};
        const std::string other = refs[rng.below(3)];
        // Several keys between two tables that change each other's columns depend on their order.
        ForeignKeySpec key = both && parent != names[t] ? refers("", {"a", "b"}, parent, {"a", "b"})
                                                        : refers("", {column}, parent, {other});
        key.name = names[t] + "_" + std::to_string(i);
        key.on_delete = actions[rng.below(5)];
        key.on_update = actions[rng.below(5)];
        keys.push_back(key);
        kin.push_back({names[t], key});
      }
      ASSERT_TRUE(make(names[t], keys, true, rng.below(2) == 0).ok());
    }
    std::sort(kin.begin(), kin.end(),
              [](const Kin& a, const Kin& b) { return a.key.name < b.key.name; });
    Oracle oracle(kin);
    std::map<std::string, TableRef> tables;
    for (const std::string& name : names) tables[name] = open(name);
    const auto number = [&]() -> Number {
      if (rng.below(5) == 0) return std::nullopt;
      return 1 + rng.below(6);
    };
    const Isolation isolations[] = {Isolation::kReadCommitted, Isolation::kRepeatableRead,
                                    Isolation::kSerializable};
    std::map<Outcome, int> seen;
    for (int transaction = 0; transaction < 40; ++transaction) {
      const World at_begin = oracle.world;
      session_->begin(isolations[rng.below(3)]);
      std::optional<Savepoint> savepoint;
      World at_savepoint;
      const uint64_t statements = 1 + rng.below(8);
      bool given_up = false;
      for (uint64_t i = 0; i < statements; ++i) {
        const std::string& name = names[rng.below(names.size())];
        const World before = oracle.world;
        const Members& rows = before.count(name) != 0 ? before.at(name) : oracle.world[name];
        Outcome expected = Outcome::kDone;
        Status status;
        const uint64_t kind = rng.below(10);
        if (failing && kind > 1) disturb(&rng);
        if (kind == 0 && !savepoint.has_value()) {
          savepoint = session_->savepoint();
          at_savepoint = oracle.world;
          continue;
        }
        if (kind == 1 && savepoint.has_value()) {
          ASSERT_TRUE(session_->rollback_to(*savepoint).ok());
          oracle.world = at_savepoint;
          continue;
        }
        if (kind < 6 || rows.empty()) {
          const Member m{1 + rng.below(8), number(), number()};
          expected = oracle.insert(name, m);
          status = insert(session_.get(), tables[name], m);
        } else {
          auto at = rows.begin();
          std::advance(at, static_cast<ptrdiff_t>(rng.below(rows.size())));
          const Member from = at->second;
          if (kind < 8) {
            const Member to{rng.below(2) == 0 ? from.id : 1 + rng.below(8), number(), number()};
            expected = oracle.update(name, from, to);
            status = update(session_.get(), tables[name], from, to);
          } else {
            expected = oracle.remove(name, from);
            status = remove(session_.get(), tables[name], from);
          }
        }
        disarm_faults();
        codecs_.failure.in = 0;
        if (session_->must_rollback()) {
          ASSERT_TRUE(failing) << status;
          if (!session_->rollback().ok()) {
            ASSERT_TRUE(kernel_->run_unfinished().ok());
          }
          given_up = true;
          ++failures_;
          break;
        }
        if (failing && error_of(status) == Error::internal) {
          oracle.world = before;
          ++failures_;
          continue;
        }
        if (expected != Outcome::kDone) oracle.world = before;
        ASSERT_EQ(outcome_of(status), expected)
            << "transaction " << transaction << ", statement " << i << ", table " << name;
        ++seen[expected];
      }
      if (given_up) {
        oracle.world = at_begin;
      } else if (rng.below(4) == 0) {
        ASSERT_TRUE(session_->rollback().ok());
        oracle.world = at_begin;
      } else {
        ASSERT_TRUE(session_->commit().ok());
      }
      if (transaction % 8 != 7) continue;
      for (const std::string& name : names) ASSERT_EQ(all(name), oracle.world[name]) << name;
    }
    crash(seed);
    for (const std::string& name : names) ASSERT_EQ(all(name), oracle.world[name]) << name;
    for (auto name = names.rbegin(); name != names.rend(); ++name)
      ASSERT_TRUE(ddl([&](Session* s) { return s->drop_table("test", *name); }).ok()) << *name;
  }

  uint64_t failures_ = 0;
};

TEST_F(ReferencesModelTest, RandomFamilies) {
  const uint64_t first = environment("STRATA_SEED", 1);
  const uint64_t rounds = environment("STRATA_ROUNDS", 25);
  for (uint64_t seed = first; seed < first + rounds && !HasFatalFailure(); ++seed)
    round(seed, false);
}

// Whatever a cascade has done when it fails in the middle is undone, row by row, and nothing else.
TEST_F(ReferencesModelTest, RandomFamiliesWithFailures) {
  const uint64_t first = environment("STRATA_SEED", 1);
  const uint64_t rounds = environment("STRATA_ROUNDS", 25);
  for (uint64_t seed = first; seed < first + rounds && !HasFatalFailure(); ++seed)
    round(seed, true);
  EXPECT_GT(failures_, rounds);
}

// Threads that add and remove parents and children: nobody is left without a parent.
TEST_F(ReferencesTest, ThreadsLeaveNoOrphans) {
  ASSERT_TRUE(make("p").ok());
  ASSERT_TRUE(make("c", {refers("fk", {"a"}, "p", {"id"}, Action::kCascade)}).ok());
  ASSERT_TRUE(make("r", {refers("fr", {"b"}, "p", {"id"})}).ok());
  std::vector<std::thread> threads;
  const uint64_t seed = environment("STRATA_SEED", 1);
  for (uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([this, t, seed] {
      Rng rng(seed * 100 + t);
      const auto session = kernel_->new_session();
      const TableRef p = *session->open_table("test", "p");
      const TableRef c = *session->open_table("test", "c");
      const TableRef r = *session->open_table("test", "r");
      for (uint64_t i = 0; i < 150; ++i) {
        session->begin(Isolation::kReadCommitted);
        for (int n = 0; n < 3 && !session->must_rollback(); ++n) {
          const uint64_t parent = 1 + rng.below(4);
          const uint64_t own = 1000 * (t + 1) + 10 * i + static_cast<uint64_t>(n);
          Status done;
          switch (rng.below(4)) {
            case 0:
              done = insert(session.get(), p, {parent});
              break;
            case 1:
              done = insert(session.get(), c, {own, parent});
              break;
            case 2:
              done = insert(session.get(), r, {own, std::nullopt, parent});
              break;
            default:
              done = remove(session.get(), p, {parent});
              break;
          }
          const bool expected = done.ok() || is_duplicate_key(done) || is_not_found(done) ||
                                is_no_referenced_row(done) || is_row_is_referenced(done) ||
                                is_deadlock(done);
          EXPECT_TRUE(expected) << done;
        }
        const Status ended =
            session->must_rollback() || rng.below(5) == 0 ? session->rollback() : session->commit();
        EXPECT_TRUE(ended.ok()) << ended;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Members parents = all("p");
  for (const auto& [id, child] : all("c")) EXPECT_EQ(parents.count(*child.a), 1u) << id;
  for (const auto& [id, child] : all("r")) EXPECT_EQ(parents.count(*child.b), 1u) << id;
}

// FK5 and FK1 between nodes: each knows of the other's children, and their locks count.
TEST(ReferencesOfSeveralKernels, ChildrenOfAnotherNodeCount) {
  Cluster cluster(2, {"t"}, false);
  const auto one = cluster.kernel(1)->new_session();
  const auto two = cluster.kernel(2)->new_session();
  const auto create = [&](Session* s, const TableSpec& spec) {
    s->begin(Isolation::kReadCommitted);
    EXPECT_TRUE(s->create_table(spec, nullptr).ok());
    EXPECT_TRUE(s->commit().ok());
  };
  // In a transaction of its own.
  const auto run = [](Session* s, const std::function<Status()>& body) {
    s->begin(Isolation::kReadCommitted);
    const Status done = body();
    EXPECT_TRUE((done.ok() ? s->commit() : s->rollback()).ok());
    return done;
  };
  const auto table = [](Session* s, const char* name) { return *s->open_table("test", name); };
  create(one.get(), family_spec("p"));
  TableSpec child = family_spec("c");
  child.foreign_keys = {refers("fc", {"a"}, "p", {"id"})};
  create(one.get(), child);
  ASSERT_TRUE(run(two.get(), [&] { return insert(two.get(), table(two.get(), "p"), {1}); }).ok());
  two->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(insert(two.get(), table(two.get(), "c"), {10, 1}).ok());
  const auto remove_parent = [&](Session* s) {
    return run(s, [&] { return remove(s, table(s, "p"), {1}); });
  };
  one->set_lock_wait_timeout_us(0);
  EXPECT_TRUE(is_lock_wait_timeout(remove_parent(one.get())));
  one->set_lock_wait_timeout_us(50'000'000);
  ASSERT_TRUE(two->commit().ok());
  EXPECT_TRUE(is_row_is_referenced(remove_parent(one.get())));
  EXPECT_TRUE(is_no_referenced_row(run(one.get(), [&] {
    return insert(one.get(), table(one.get(), "c"), {11, 5});
  })));
  // A child made by one node, of a parent that the other has used.
  child.name = "d";
  child.foreign_keys[0].name = "fd";
  create(one.get(), child);
  ASSERT_TRUE(run(one.get(), [&] {
                return insert(one.get(), table(one.get(), "d"), {1, 1});
              }).ok());
  ASSERT_TRUE(run(two.get(), [&] {
                return remove(two.get(), table(two.get(), "c"), {10, 1});
              }).ok());
  EXPECT_TRUE(is_row_is_referenced(remove_parent(two.get())));
  EXPECT_EQ(two->foreign_key_error().table, "d");
  ASSERT_TRUE(run(two.get(), [&] { return two->drop_table("test", "d"); }).ok());
  EXPECT_TRUE(remove_parent(one.get()).ok());
}

}  // namespace
}  // namespace strata::engine
