// Scans, without a server, over a kernel on a simulated disk: whatever is searched for and
// whichever way the scan goes on, it gives the entries of a sorted list, with keys that are whole
// and with keys that are cut.
#include "mariadb/scan.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>

#include "engine/testing/test_database.h"

namespace strata::glue {
namespace {

using engine::testing::be64;

constexpr uint32_t kMostKey = 6;  // of the second index: longer keys are cut

// What is kept of a key: see TL3.
std::string stored_key(const std::string& whole) {
  if (whole.size() <= kMostKey) return whole;
  return whole.substr(0, kMostKey) + be64(std::hash<std::string>()(whole));
}

class TestKeys final : public WholeKeys {
 public:
  // A row is its whole key.
  Status whole_key(engine::TableCursor* cursor, uint32_t, std::string* whole, bool*) override {
    whole->assign(cursor->row());
    whole->append(cursor->clustered_key());
    return ok_status();
  }
  void cut(uint32_t, size_t own_bytes, Buffer* key) override {
    const std::string all(key->bytes());
    key->assign(stored_key(all.substr(0, own_bytes)) + all.substr(own_bytes));
  }
  [[nodiscard]] bool killed() const override { return is_killed; }

  bool is_killed = false;
};

constexpr Search kSearches[] = {Search::kExact,  Search::kAtLeast,   Search::kAfter,
                                Search::kBefore, Search::kLastExact, Search::kLastAtMost};

class ScanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = engine::Kernel::open(engine::testing::options_on(disk_.get()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
    engine::TableSpec spec = engine::testing::table_spec("t");
    spec.indexes.pop_back();
    spec.indexes[1].unique = false;
    session_->begin(engine::Isolation::kReadCommitted);
    ASSERT_TRUE(session_->create_table(spec, &table_).ok());
    ASSERT_TRUE(session_->commit().ok());
    session_->begin(isolation_);
    scan_.open({{}, {.most_key = kMostKey, .may_be_cut = true}}, &keys_);
  }

  // Keys of one text part: no key is the beginning of another.
  static std::string key_of(const std::string& text) { return text + '\0'; }
  void insert(uint64_t id, const std::string& text) {
    const std::string key = be64(id);
    const std::string whole = key_of(text);
    const std::string stored = stored_key(whole);
    const engine::EntryImage entry{1, stored, false, Bytes()};
    engine::RowImage row;
    row.key = key;
    row.inline_bytes = whole;
    row.entries = &entry;
    row.entry_count = 1;
    uint32_t duplicate = 0;
    ASSERT_TRUE(session_->insert_row(table_.get(), row, &duplicate).ok());
    ids_.push_back(key);
    entries_.push_back(whole + key);
  }
  void commit() {
    ASSERT_TRUE(session_->commit().ok());
    session_->begin(isolation_);
    ++generation_;
    std::sort(ids_.begin(), ids_.end());
    std::sort(entries_.begin(), entries_.end());
  }
  [[nodiscard]] ScanTerms terms() const {
    return {.session = session_.get(),
            .table = &table_,
            .generation = generation_,
            .lock = lock_,
            .needs_limits = needs_limits_};
  }

  // As the handler does it; nothing: there is no such entry.
  std::optional<std::string> walk(Direction direction) {
    for (;;) {
      engine::TableCursor::Entry entry;
      bool at_end = false;
      const Status arrived = scan_.arrive(direction, &entry, &at_end);
      EXPECT_TRUE(arrived.ok()) << arrived;
      if (!arrived.ok() || at_end) return std::nullopt;
      bool gone = false;
      EXPECT_TRUE(scan_.fetch(&gone).ok());
      if (!gone) {
        scan_.stand_on(scan_.cursor());
        const std::string id(scan_.cursor()->clustered_key());
        return scan_.index() == 0 ? id : std::string(scan_.cursor()->row()) + id;
      }
      EXPECT_TRUE(scan_.move(direction).ok());
    }
  }
  std::optional<std::string> search(uint32_t index, Search search, const std::string& key,
                                    size_t own_bytes) {
    scan_.start_search(terms(), index)->assign(key);
    EXPECT_TRUE(scan_.search(terms(), search, own_bytes, false).ok());
    std::optional<std::string> found = walk(direction_of(search));
    scan_.end_search(search, !found.has_value());
    return found;
  }
  std::optional<std::string> step(Direction direction) {
    if (!scan_.must_resume(generation_)) {
      if (!scan_.on_entry()) return std::nullopt;
      EXPECT_TRUE(scan_.step(direction).ok());
      return walk(direction);
    }
    bool at_end = false;
    EXPECT_TRUE(scan_.resume(terms(), direction, &at_end).ok());
    return at_end ? std::nullopt : walk(direction);
  }
  std::optional<std::string> go_on(Direction direction) {
    scan_.go_on(direction, needs_limits_);
    return step(direction);
  }
  std::vector<std::string> all(uint32_t index, Direction direction) {
    std::vector<std::string> found;
    scan_.begin(index);
    EXPECT_TRUE((direction == Direction::kForward ? scan_.seek_first(terms(), index)
                                                  : scan_.seek_last(terms(), index))
                    .ok());
    for (auto entry = walk(direction); entry.has_value(); entry = go_on(direction))
      found.push_back(*entry);
    return found;
  }

  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<engine::Kernel> kernel_;
  std::unique_ptr<engine::Session> session_;
  engine::TableRef table_;
  TestKeys keys_;
  Scan scan_;
  uint64_t generation_ = 1;
  engine::LockMode lock_ = engine::LockMode::kNone;
  bool needs_limits_ = false;
  engine::Isolation isolation_ = engine::Isolation::kReadCommitted;
  std::vector<std::string> ids_;      // the clustered index, in order
  std::vector<std::string> entries_;  // the second one, by whole keys
};

// A place in a sorted list: on an entry, or between two.
class Model {
 public:
  explicit Model(const std::vector<std::string>* list) : list_(list) {}

  std::optional<std::string> search(Search search, const std::string& key) {
    const auto less = [](const std::string& entry, const std::string& wanted) {
      return entry < wanted;
    };
    const auto starts = std::lower_bound(list_->begin(), list_->end(), key, less);
    auto behind = starts;
    while (behind != list_->end() && behind->starts_with(key)) ++behind;
    const auto at = [&](auto place) { return static_cast<long>(place - list_->begin()); };
    switch (search) {
      case Search::kExact:
      case Search::kLastExact:
        if (starts == behind) return miss(at(starts));
        return stand(search == Search::kExact ? at(starts) : at(behind) - 1);
      case Search::kAtLeast:
        return stand(at(starts));
      case Search::kAfter:
        return stand(at(behind));
      case Search::kBefore:
        return stand(at(starts) - 1);
      case Search::kLastAtMost:
        return stand(at(behind) - 1);
    }
    return std::nullopt;
  }
  std::optional<std::string> step(Direction direction) {
    const bool forward = direction == Direction::kForward;
    if (between_) return stand(forward ? place_ : place_ - 1);
    return stand(place_ + (forward ? 1 : -1));
  }

 private:
  std::optional<std::string> stand(long place) {
    between_ = false;
    const auto size = static_cast<long>(list_->size());
    place_ = std::clamp(place, -1L, size);
    if (place_ < 0 || place_ >= size) return std::nullopt;
    return (*list_)[static_cast<size_t>(place_)];
  }
  std::optional<std::string> miss(long place) {
    place_ = place;
    between_ = true;
    return std::nullopt;
  }
  const std::vector<std::string>* list_;
  long place_ = 0;
  bool between_ = false;
};

std::string random_text(std::mt19937* random) {
  std::string text;
  const size_t letters = (*random)() % 10;
  for (size_t i = 0; i < letters; ++i) text.push_back(i < 5 || (*random)() % 2 == 0 ? 'a' : 'b');
  if ((*random)() % 4 == 0 && !text.empty()) text[(*random)() % text.size()] = '\xff';
  return text;
}

class ScanModel : public ScanTest, public ::testing::WithParamInterface<bool> {};

// Every kind of search, then steps to and fro, with transactions that end in between. At
// SERIALIZABLE (SCN5) the kernel may leave out what lies outside of the limits; the scan gives the
// same.
TEST_P(ScanModel, GivesTheEntriesOfASortedList) {
  needs_limits_ = GetParam();
  if (needs_limits_) {
    lock_ = engine::LockMode::kShared;
    isolation_ = engine::Isolation::kSerializable;
  }
  std::mt19937 random(7);
  for (uint64_t id = 1; id <= 150; ++id) insert(id * 10, random_text(&random));
  commit();
  for (int round = 0; round < 1500 && !HasFailure(); ++round) {
    const uint32_t index = random() % 4 == 0 ? 0 : 1;
    Model model(index == 0 ? &ids_ : &entries_);
    std::string key;
    size_t own_bytes = SIZE_MAX;
    if (index == 0) {
      key = be64(random() % 1600);
    } else {
      key = key_of(random_text(&random));
      own_bytes = key.size();
      if (random() % 4 == 0) key += be64(random() % 150 * 10);
      if (random() % 4 == 0) {  // the beginning of a key
        key.resize(1 + random() % (own_bytes));
        if (key.size() < own_bytes) own_bytes = SIZE_MAX;
      }
    }
    scan_.begin(index);
    const Search kind = kSearches[random() % std::size(kSearches)];
    const std::string what = "round " + std::to_string(round) + ", search " +
                             std::to_string(static_cast<int>(kind)) + " of " +
                             ::testing::PrintToString(key);
    ASSERT_EQ(search(index, kind, key, own_bytes), model.search(kind, key)) << what;
    for (uint32_t steps = random() % 8; steps > 0; --steps) {
      if (random() % 4 == 0) {  // HANDLER reads go on in the next transaction
        ASSERT_TRUE(scan_.save_place(true).ok());
        commit();
      }
      const Direction direction = random() % 3 == 0 ? Direction::kBackward : Direction::kForward;
      ASSERT_EQ(go_on(direction), model.step(direction)) << what << ", then steps";
    }
  }
}
INSTANTIATE_TEST_SUITE_P(WithoutAndWithLimits, ScanModel, ::testing::Bool());

TEST_F(ScanTest, WholeIndexesComeInOrderBothWays) {
  std::mt19937 random(3);
  for (uint64_t id = 1; id <= 80; ++id) insert(id, random_text(&random));
  commit();
  EXPECT_EQ(all(0, Direction::kForward), ids_);
  EXPECT_EQ(all(1, Direction::kForward), entries_);
  EXPECT_EQ(all(1, Direction::kBackward),
            std::vector<std::string>(entries_.rbegin(), entries_.rend()));
}

// SCN3, LK2: a range ends before or behind the entries of its last key, also where those are cut.
TEST_F(ScanTest, RangesEndWhereTheyAreToldTo) {
  for (uint64_t id = 1; id <= 40; ++id) insert(id, "aaaaaaa" + std::string(id % 8, 'b'));
  commit();
  for (const bool inclusive : {false, true}) {
    const std::string end = key_of("aaaaaaabbb");
    std::vector<std::string> expected;
    for (const std::string& entry : entries_)
      if (entry < end || (inclusive && entry.starts_with(end))) expected.push_back(entry);
    scan_.begin(1);
    scan_.start_range()->assign(end);
    scan_.end_range(inclusive);
    scan_.hold_range(true);
    std::vector<std::string> found;
    ASSERT_TRUE(scan_.seek_first(terms(), 1).ok());
    scan_.hold_range(false);
    for (auto at = walk(Direction::kForward); at.has_value(); at = go_on(Direction::kForward))
      found.push_back(*at);
    EXPECT_EQ(found, expected);
    // Whoever turns round has left the range.
    EXPECT_EQ(go_on(Direction::kBackward), expected.back());
    EXPECT_EQ(go_on(Direction::kForward), entries_[expected.size()]);
  }
}

// SCN3: entries of one key, of those that begin like it only.
TEST_F(ScanTest, KeepsToAKey) {
  for (uint64_t id = 1; id <= 30; ++id) insert(id, id % 3 == 0 ? "cccccccccc" : "ccccccccc");
  commit();
  const std::string key = key_of("cccccccccc");
  scan_.begin(1);
  std::vector<std::string> found;
  for (auto at = search(1, Search::kExact, key, key.size()); at.has_value();) {
    found.push_back(*at);
    scan_.start_key()->assign(key);
    scan_.keep_to_key(key.size(), needs_limits_);
    at = step(Direction::kForward);
    scan_.leave_key();
  }
  EXPECT_EQ(found.size(), 10u);
  for (const std::string& entry : found) EXPECT_TRUE(entry.starts_with(key));
}

// SCN1, SCN2: a point read leaves the scan where it is, and another index has another current row.
TEST_F(ScanTest, PointReadsLeaveTheScanWhereItIs) {
  for (uint64_t id = 1; id <= 5; ++id) insert(id, "k" + std::to_string(id));
  commit();
  scan_.begin(0);
  ASSERT_EQ(search(0, Search::kExact, be64(2), 8), be64(2));
  engine::TableCursor* point = nullptr;
  bool gone = true;
  ASSERT_TRUE(scan_.read_row(terms(), be64(5), &point, &gone).ok());
  EXPECT_FALSE(gone);
  EXPECT_EQ(point->clustered_key(), be64(5));
  scan_.stand_on(point);
  EXPECT_FALSE(scan_.changes_current_row_later());
  EXPECT_EQ(go_on(Direction::kForward), be64(3));
  EXPECT_EQ(scan_.current(), scan_.cursor());
  scan_.begin(1);
  scan_.start_search(terms(), 1);
  EXPECT_EQ(scan_.current(), nullptr);
}

// SCN4: a scan that has not begun has no entries, and neither has one that was reset.
TEST_F(ScanTest, WhatHasNotBegunIsAtItsEnd) {
  insert(1, "a");
  commit();
  scan_.begin(0);
  EXPECT_EQ(step(Direction::kForward), std::nullopt);
  scan_.begin_table(true);
  EXPECT_TRUE(scan_.starts_table());
  ASSERT_TRUE(scan_.start_table(terms()).ok());
  EXPECT_FALSE(scan_.starts_table());
  EXPECT_EQ(walk(Direction::kForward), be64(1));
  scan_.reset();
  EXPECT_EQ(scan_.current(), nullptr);
  EXPECT_EQ(step(Direction::kForward), std::nullopt);
}

// SCN6: a row that is only looked at has no lock until the scan comes back to it.
TEST_F(ScanTest, RowsThatAreOnlyLookedAtAreLockedAtTheNextStep) {
  insert(1, "a");
  insert(2, "b");
  commit();
  const std::unique_ptr<engine::Session> other = kernel_->new_session();
  const auto other_may_lock = [&](uint64_t id) {
    other->set_lock_wait_timeout_us(0);
    other->begin(engine::Isolation::kReadCommitted);
    engine::TableCursor cursor(other.get(), table_, 0);
    cursor.set_lock_mode(engine::LockMode::kExclusive);
    bool gone = false;
    const bool may = cursor.get(be64(id), &gone).ok();
    other->rollback().IgnoreError();  // it changed nothing
    return may;
  };
  lock_ = engine::LockMode::kExclusive;
  scan_.begin_table(true);
  scan_.try_semi_read(true);
  ASSERT_TRUE(scan_.start_table(terms()).ok());
  ASSERT_EQ(walk(Direction::kForward), be64(1));
  EXPECT_TRUE(scan_.did_semi_read());
  EXPECT_TRUE(other_may_lock(1));
  bool gone = true;
  ASSERT_TRUE(scan_.fetch_again_locked(&gone).ok());
  EXPECT_FALSE(gone);
  EXPECT_FALSE(scan_.did_semi_read());
  EXPECT_FALSE(other_may_lock(1));
  // The next one does not qualify: nothing was locked, so nothing is given back.
  ASSERT_EQ(step(Direction::kForward), be64(2));
  ASSERT_TRUE(scan_.give_back_row(true).ok());
  EXPECT_FALSE(scan_.did_semi_read());
  EXPECT_TRUE(other_may_lock(2));
  EXPECT_FALSE(other_may_lock(1));
}

// LK1: putting a group in order reads all of it, so it ends when the client has gone.
TEST_F(ScanTest, KillEndsTheReadingOfAGroup) {
  for (uint64_t id = 1; id <= 5; ++id) insert(id, "dddddddd" + std::to_string(id));
  commit();
  scan_.begin(1);
  ASSERT_TRUE(scan_.seek_first(terms(), 1).ok());
  keys_.is_killed = true;
  engine::TableCursor::Entry entry;
  bool at_end = false;
  EXPECT_TRUE(is_interrupted(scan_.arrive(Direction::kForward, &entry, &at_end)));
}

TEST(KeySuccessor, IsTheFirstKeyBehindAllThatStartSo) {
  const auto successor = [](Bytes key) -> std::optional<std::string> {
    Buffer buffer;
    buffer.assign(key);
    bool infinite = false;
    make_successor(&buffer, &infinite);
    if (infinite) return std::nullopt;
    return std::string(buffer.bytes());
  };
  EXPECT_EQ(successor("ab"), "ac");
  EXPECT_EQ(successor("a\xff\xff"), "b");
  EXPECT_EQ(successor("\xff"), std::nullopt);
  EXPECT_EQ(successor(""), std::nullopt);
}

}  // namespace
}  // namespace strata::glue
