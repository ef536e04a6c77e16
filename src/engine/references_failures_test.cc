// What a foreign key does when it cannot go on, and when DDL comes between (FK4, FK9): a change of
// a row happens with everything that follows from it, or not at all, and never into a table that
// somebody is copying or has replaced.
#include <gtest/gtest.h>

#include <thread>

#include "engine/testing/family_test.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers
using Action = ReferentialAction;

// p has the row 1, c ten children of it, g a child of each of these; other rows are parents of
// nobody.
class CascadeFailuresTest : public FamilyTest {
 protected:
  void SetUp() override {
    FamilyTest::SetUp();
    ASSERT_TRUE(make("p").ok());
    ASSERT_TRUE(
        make("c", {refers("fc", {"a"}, "p", {"id"}, Action::kCascade, Action::kCascade)}).ok());
    ASSERT_TRUE(
        make("g", {refers("fg", {"a"}, "c", {"id"}, Action::kSetNull, Action::kCascade)}).ok());
    for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(put("p", {id}).ok());
    for (uint64_t i = 0; i < 10; ++i) {
      ASSERT_TRUE(put("c", {10 + i, 1}).ok());
      ASSERT_TRUE(put("g", {100 + i, 10 + i}).ok());
    }
    wait_for_nobody();
  }
  void wait_for_nobody() {
    session_->set_lock_wait_timeout_us(0);
    other_ = kernel_->new_session();
    other_->set_lock_wait_timeout_us(0);
  }
  void crash_and_start(uint64_t seed) {
    other_.reset();
    crash(seed);
    wait_for_nobody();
  }
  void TearDown() override {
    other_.reset();
    FamilyTest::TearDown();
  }

  // With changes of its own before and after what fails; they are committed.
  void expect_only_the_statement_is_undone(const std::function<bool(const Status&)>& is_it) {
    const Members c = all("c");
    const Members g = all("g");
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(session_.get(), open("p"), {50}).ok());
    ASSERT_TRUE(insert(session_.get(), open("c"), {90, 50}).ok());
    const Status failed = remove(session_.get(), open("p"), {1});
    EXPECT_TRUE(is_it(failed)) << failed;
    ASSERT_FALSE(session_->must_rollback());
    session_->clear_interrupt();
    ASSERT_TRUE(insert(session_.get(), open("c"), {91, 50}).ok());
    ASSERT_TRUE(session_->commit().ok());
    Members expected = c;
    expected[90] = {90, 50};
    expected[91] = {91, 50};
    EXPECT_EQ(all("c"), expected);
    EXPECT_EQ(open("c")->estimated_rows(), expected.size());
    EXPECT_EQ(all("g"), g);
    EXPECT_EQ(all("p").size(), 4u);
  }
  void expect_the_cascade_works() {
    if (other_->in_transaction()) {
      ASSERT_TRUE(other_->rollback().ok());
    }
    ASSERT_TRUE(take("p", {1}).ok());
    for (const auto& [id, child] : all("c")) EXPECT_NE(child.a, Number(1)) << id;
    for (const auto& [id, grandchild] : all("g")) EXPECT_EQ(grandchild.a, std::nullopt) << id;
  }

  std::unique_ptr<Session> other_;
};

TEST_F(CascadeFailuresTest, ALockWaitInTheMiddleTimesOut) {
  other_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(update(other_.get(), open("c"), {15, 1}, {15, 1, 4}).ok());
  session_->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(is_lock_wait_timeout(remove(session_.get(), open("p"), {1})));
  ASSERT_TRUE(session_->commit().ok());
  ASSERT_TRUE(other_->rollback().ok());
  // And a level deeper.
  other_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(update(other_.get(), open("g"), {107, 17}, {107, 17, 4}).ok());
  session_->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(is_lock_wait_timeout(remove(session_.get(), open("p"), {1})));
  ASSERT_TRUE(session_->commit().ok());
  ASSERT_TRUE(other_->rollback().ok());
  EXPECT_EQ(all("c").size(), 10u);
  EXPECT_EQ(all("p").size(), 3u);
  expect_the_cascade_works();
}

// Whoever is the victim loses everything, the other one goes on.
TEST_F(CascadeFailuresTest, ADeadlockInTheMiddle) {
  session_->set_lock_wait_timeout_us(50'000'000);
  other_->set_lock_wait_timeout_us(50'000'000);
  session_->begin(Isolation::kReadCommitted);
  other_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(insert(session_.get(), open("c"), {90, 2}).ok());  // p's row 2 is locked, shared
  ASSERT_TRUE(update(other_.get(), open("g"), {105, 15}, {105, 15, 4}).ok());
  const TableRef p = open("p");
  Status theirs;
  std::thread thread([&] {
    theirs = remove(other_.get(), p, {2});
    if (other_->must_rollback()) {
      EXPECT_TRUE(other_->rollback().ok());
    }
  });
  const Status ours = remove(session_.get(), p, {1});
  const bool victim = session_->must_rollback();
  EXPECT_EQ(victim, is_deadlock(ours)) << ours;
  if (victim) {
    EXPECT_TRUE(session_->rollback().ok());
  } else {
    EXPECT_TRUE(ours.ok()) << ours;
    EXPECT_TRUE(session_->commit().ok());
  }
  thread.join();
  if (victim) {
    EXPECT_TRUE(theirs.ok()) << theirs;
    EXPECT_TRUE(other_->commit().ok());
    EXPECT_EQ(all("p"), (Members{{1, {1}}, {3, {3}}}));
    EXPECT_EQ(all("c").size(), 10u);
    EXPECT_EQ(all("g")[105], (Member{105, 15, 4}));
  } else {
    EXPECT_TRUE(is_deadlock(theirs)) << theirs;
    EXPECT_EQ(all("p"), (Members{{2, {2}}, {3, {3}}}));
    EXPECT_EQ(all("c"), (Members{{90, {90, 2}}}));
    EXPECT_EQ(all("g")[105], (Member{105}));
  }
}

// A KILL ends a cascade that waits for nobody, too: it may be long.
TEST_F(CascadeFailuresTest, AKillInTheMiddle) {
  session_->interrupt();
  expect_only_the_statement_is_undone([](const Status& s) { return is_interrupted(s); });
  expect_the_cascade_works();
}

// Whatever it was; also how many rows there are is as if nothing had happened.
TEST_F(CascadeFailuresTest, AFailureInTheMiddle) {
  codecs_.failure.in = 9;
  expect_only_the_statement_is_undone(
      [](const Status& s) { return error_of(s) == Error::internal; });
  expect_the_cascade_works();
}

TEST_F(CascadeFailuresTest, AKillOfACascadeThatWaits) {
  other_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(update(other_.get(), open("c"), {15, 1}, {15, 1, 4}).ok());
  session_->set_lock_wait_timeout_us(50'000'000);
  const TableRef p = open("p");
  session_->begin(Isolation::kReadCommitted);
  Status killed;
  std::thread thread([&] { killed = remove(session_.get(), p, {1}); });
  EXPECT_TRUE(wait_until([&] { return !kernel_->lock_waits(1).empty(); }));
  session_->interrupt();
  thread.join();
  EXPECT_TRUE(is_interrupted(killed)) << killed;
  session_->clear_interrupt();
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_EQ(all("c").size(), 10u);
  expect_the_cascade_works();
}

TEST_F(CascadeFailuresTest, AFullDiskInTheMiddle) {
  session_->begin(Isolation::kRepeatableRead);
  for (uint64_t i = 0; i < 20'000; ++i)
    ASSERT_TRUE(insert(session_.get(), open("c"), {1000 + i, 1, i}).ok());
  ASSERT_TRUE(session_->commit().ok());
  const Members c = all("c");
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session_.get(), open("p"), {50}).ok());
  disk_.fill_up();
  const Status full = update(session_.get(), open("p"), {1}, {77});
  EXPECT_TRUE(is_no_space(full)) << full;
  ASSERT_FALSE(session_->must_rollback());
  EXPECT_TRUE(session_->commit().ok());
  disk_.empty();
  EXPECT_TRUE(kernel_->run_unfinished().ok());
  EXPECT_EQ(all("c"), c);
  EXPECT_EQ(all("p").size(), 4u);
  crash_and_start(7);
  EXPECT_EQ(all("c"), c);
  ASSERT_TRUE(change("p", {1}, {77}).ok());
  EXPECT_EQ(all("c")[1000], (Member{1000, 77, 0}));
}

// --- DDL between ---

class CascadesAndDdlTest : public CascadeFailuresTest {
 protected:
  void SetUp() override {
    CascadeFailuresTest::SetUp();
    ddl_timeout_us_ = 0;
    ASSERT_TRUE(put("c", {20, 2}).ok());
    ASSERT_TRUE(put("c", {30, 3}).ok());
  }
  static TableSpec copy_with(std::vector<ForeignKeySpec> keys) {
    TableSpec copy = family_spec("#sql-alter-1");
    copy.foreign_keys = std::move(keys);
    for (ForeignKeySpec& key : copy.foreign_keys) key.kept = key.name != "new";
    return copy;
  }
  Status copy_c() {
    const TableSpec copy =
        copy_with({refers("fc", {"a"}, "p", {"id"}, Action::kCascade, Action::kCascade)});
    return ddl([&](Session* s) { return s->create_table(copy, nullptr, table_key("test", "c")); });
  }
  Status swap(const std::string& name) {
    return ddl([&](Session* s) -> Status {
      STRATA_RETURN_IF_ERROR(s->rename_table("test", name, "test", "#sql-backup-1"));
      STRATA_RETURN_IF_ERROR(s->rename_table("test", "#sql-alter-1", "test", name));
      return s->drop_table("test", "#sql-backup-1");
    });
  }
  // Of a parent, in a transaction that stays open.
  Status begin_to_take(uint64_t parent) {
    other_->begin(Isolation::kReadCommitted);
    return remove(other_.get(), open("p"), {parent});
  }
};

// Rows that a cascade has changed in a table of which nobody has told the server would be missing
// in, or come back with, the copy.
TEST_F(CascadesAndDdlTest, NoCopyIsMadeOfATableThatACascadeIsChanging) {
  ASSERT_TRUE(begin_to_take(2).ok());
  EXPECT_TRUE(is_lock_wait_timeout(copy_c()));
  ASSERT_TRUE(other_->commit().ok());
  ASSERT_TRUE(copy_c().ok());
  // While it is filled, which takes as long as it takes, and until it is in place.
  EXPECT_TRUE(is_lock_wait_timeout(take("p", {3})));
  for (const auto& [id, child] : all("c")) ASSERT_TRUE(put("#sql-alter-1", child).ok());
  EXPECT_TRUE(is_lock_wait_timeout(take("p", {3})));
  EXPECT_TRUE(take("g", {100, 10}).ok());  // others are not kept from anything
  ASSERT_TRUE(swap("c").ok());
  EXPECT_EQ(all("c").size(), 11u);
  ASSERT_TRUE(take("p", {3}).ok());
  EXPECT_EQ(all("c").count(30), 0u);
  expect_the_cascade_works();
}

TEST_F(CascadesAndDdlTest, ACopyThatIsGivenUpKeepsNobodyAway) {
  ASSERT_TRUE(copy_c().ok());
  EXPECT_TRUE(is_lock_wait_timeout(take("p", {3})));
  // Even if it cannot be dropped.
  other_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(other_->rename_table("test", "#sql-alter-1", "test", "#sql-alter-2").ok());
  const Status dropped = ddl([](Session* s) { return s->drop_table("test", "#sql-alter-1"); });
  EXPECT_TRUE(is_lock_wait_timeout(dropped)) << dropped;
  ASSERT_TRUE(other_->rollback().ok());
  EXPECT_TRUE(take("p", {3}).ok());
  EXPECT_EQ(all("c").count(30), 0u);
}

// The rows of a table that gets a new key are checked while it is copied: until it is in place,
// nothing knows that they need their parents.
TEST_F(CascadesAndDdlTest, ParentsOfANewKeyStayUntilItIsInPlace) {
  ASSERT_TRUE(make("d").ok());
  ASSERT_TRUE(put("d", {1, 30}).ok());
  const auto copy_d = [&] {
    const TableSpec copy = copy_with({refers("new", {"a"}, "c", {"id"})});
    return ddl([&](Session* s) { return s->create_table(copy, nullptr, table_key("test", "d")); });
  };
  ASSERT_TRUE(begin_to_take(2).ok());  // a row of c goes
  EXPECT_TRUE(is_lock_wait_timeout(copy_d()));
  ASSERT_TRUE(other_->commit().ok());
  ASSERT_TRUE(copy_d().ok());
  EXPECT_TRUE(is_no_referenced_row(put("#sql-alter-1", {2, 20})));
  ASSERT_TRUE(put("#sql-alter-1", {1, 30}).ok());
  EXPECT_TRUE(is_lock_wait_timeout(take("p", {3})));
  ASSERT_TRUE(swap("d").ok());
  EXPECT_TRUE(is_row_is_referenced(take("p", {3})));
  EXPECT_EQ(all("c").count(30), 1u);
}

TEST_F(CascadesAndDdlTest, AnIndexIsBuiltOfRowsThatNoCascadeIsChanging) {
  const auto rebuild = [this](Session* s) -> Status {
    TableSpec spec = open("c")->spec();
    spec.indexes[2].index_id = 0;  // made anew
    IndexBuild build;
    build.memory_bytes = 64u << 10;
    build.entries_of = [&spec](Bytes, Bytes row, const IndexBuild::External&,
                               const IndexBuild::Emit& emit) -> Status {
      const MemberImage image(member_of(row), spec);
      for (const EntryImage& entry : image.entries) STRATA_RETURN_IF_ERROR(emit(entry));
      return ok_status();
    };
    return s->build_indexes(open("c"), &spec, &build);
  };
  ASSERT_TRUE(begin_to_take(2).ok());
  EXPECT_TRUE(is_lock_wait_timeout(ddl(rebuild)));
  ASSERT_TRUE(other_->commit().ok());
  const auto builder = kernel_->new_session();
  builder->set_lock_wait_timeout_us(0);
  builder->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(rebuild(builder.get()).ok());
  EXPECT_TRUE(is_lock_wait_timeout(take("p", {3})));
  ASSERT_TRUE(builder->rollback().ok());
  EXPECT_TRUE(take("p", {3}).ok());
}

TEST_F(CascadesAndDdlTest, NoTableGoesUnderACascade) {
  ASSERT_TRUE(begin_to_take(2).ok());
  const std::function<Status(Session*)> kinds[] = {
      [](Session* s) { return s->truncate_table("test", "c", nullptr); },
      [](Session* s) { return s->drop_table("test", "c"); },
      [](Session* s) { return s->rename_table("test", "c", "test", "d"); },
      [this](Session* s) { return s->alter_table(open("c")->spec()); },
  };
  for (const auto& kind : kinds) EXPECT_TRUE(is_lock_wait_timeout(ddl(kind, false)));
  // Neither a commit that is not decided yet nor its session's end makes room for them.
  ASSERT_TRUE(other_->prepare("xid").ok());
  for (const auto& kind : kinds) EXPECT_TRUE(is_lock_wait_timeout(ddl(kind, false)));
  other_->detach_prepared();
  for (const auto& kind : {kinds[0], kinds[1], kinds[3]})
    EXPECT_TRUE(is_lock_wait_timeout(ddl(kind, false)));
  EXPECT_TRUE(is_lock_wait_timeout(copy_c()));
  ASSERT_TRUE(kernel_->commit_by_xid("xid").ok());
  EXPECT_TRUE(ddl(kinds[1], false).ok());
}

// A statement that comes to a table after that was replaced does not change the one that has gone.
TEST_F(CascadesAndDdlTest, ACascadeThatHasWaitedForACopyFindsTheNewTable) {
  ASSERT_TRUE(copy_c().ok());
  for (const auto& [id, child] : all("c")) ASSERT_TRUE(put("#sql-alter-1", child).ok());
  other_->set_lock_wait_timeout_us(50'000'000);
  const TableRef p = open("p");
  other_->begin(Isolation::kReadCommitted);
  Status done;
  std::thread thread([&] { done = remove(other_.get(), p, {3}); });
  const Status swapped = swap("c");
  thread.join();
  ASSERT_TRUE(swapped.ok()) << swapped << "; the cascade: " << done;
  // In time for the old table, or late enough for the new one.
  EXPECT_TRUE(done.ok() || is_definition_changed(done)) << done;
  ASSERT_TRUE(other_->commit().ok());
  EXPECT_EQ(all("c").count(30), done.ok() ? 0u : 1u);
  EXPECT_EQ(all("p").count(3), done.ok() ? 0u : 1u);
  if (!done.ok()) {
    EXPECT_TRUE(take("p", {3}).ok());
  }
}

// --- names of columns ---

TEST_F(CascadesAndDdlTest, ColumnsOfForeignKeysGetOtherNames) {
  const auto rename = [this](const std::string& table, std::vector<ColumnRename> renamed) {
    TableSpec spec = open(table)->spec();
    for (IndexSpec& index : spec.indexes) {
      for (KeyPartSpec& part : index.parts) {
        for (const ColumnRename& one : renamed) {
          if (part.column != one.from) continue;
          part.column = one.to;
          break;
        }
      }
    }
    return ddl([&](Session* s) { return s->alter_table(spec, renamed); });
  };
  ASSERT_TRUE(rename("c", {{"id", "number"}, {"b", "other"}}).ok());
  EXPECT_EQ(open("g")->references()->foreign_keys[0].parent_columns,
            std::vector<std::string>{"number"});
  EXPECT_EQ(open("c")->references()->foreign_keys[0].columns, std::vector<std::string>{"a"});
  EXPECT_TRUE(is_no_referenced_row(put("g", {200, 99})));
  ASSERT_TRUE(rename("p", {{"id", "a"}, {"a", "id"}}).ok());  // at once
  EXPECT_EQ(open("c")->references()->foreign_keys[0].parent_columns, std::vector<std::string>{"a"});
  EXPECT_TRUE(is_no_referenced_row(put("c", {40, 9})));
  ASSERT_TRUE(make("s", {refers("fs", {"a"}, "s", {"id"}, Action::kCascade)}).ok());
  ASSERT_TRUE(rename("s", {{"a", "up"}, {"id", "down"}}).ok());
  const ForeignKeySpec& own = open("s")->references()->foreign_keys[0];
  EXPECT_EQ(own.columns, std::vector<std::string>{"up"});
  EXPECT_EQ(own.parent_columns, std::vector<std::string>{"down"});
  ASSERT_TRUE(put("s", {1, 1}).ok());
  EXPECT_TRUE(is_no_referenced_row(put("s", {2, 7})));
  crash_and_start(3);
  EXPECT_EQ(open("g")->references()->foreign_keys[0].parent_columns,
            std::vector<std::string>{"number"});
  EXPECT_TRUE(is_no_referenced_row(put("c", {40, 9})));
  expect_the_cascade_works();
}

}  // namespace
}  // namespace strata::engine
