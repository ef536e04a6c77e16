// Random operations on a tree against std::map. Goal: whatever the order of inserts, replacements,
// erasures, scans, saved cursors, evictions and reclaimed pages, the tree holds exactly what the
// model holds and check_tree() agrees. Method: seeded rounds with different shapes of keys and
// values on a tiny pool; the seed is printed. STRATA_SEED=n runs one seed, STRATA_ROUNDS=n more
// rounds.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/clock.h"
#include "btree/testing/tree_driver.h"

namespace strata {
namespace {

using testing::be_key;
using testing::Model;
using testing::record_value;
using testing::TestStore;
using testing::TreeDriver;

constexpr SpaceId kSpace{256};
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 1500;
#else
constexpr int kOperations = 6000;
#endif

class ModelRun {
 public:
  explicit ModelRun(uint64_t seed) : seed_(seed), rng_(seed), store_({.frames = 24}) {
    EXPECT_TRUE(store_.spaces()->create(kSpace).ok());
    tree_ = std::make_unique<TreeDriver>(&store_, TreeDriver::create(&store_, kSpace, 9));
    key_space_ = 1 + rng_.below(rng_.one_in(2) ? 300 : 20000);
    key_tail_ = rng_.one_in(3) ? 0 : rng_.below(rng_.one_in(4) ? kMaxKeyBytes - 40 : 60);
    value_max_ = rng_.below(rng_.one_in(3) ? 3900 : 150);
    erase_percent_ = 5 + rng_.below(60);
    merge_ = !rng_.one_in(5);
    ascending_ = rng_.one_in(4);
  }

  void run() {
    for (int i = 0; i < kOperations && !::testing::Test::HasFailure(); ++i) {
      if (i % 1000 == 999) {  // phases: grow, shrink
        erase_percent_ = 5 + rng_.below(90);
      }
      step();
      if (i % 500 == 499) tree_->expect_equals(model_);
    }
    tree_->expect_equals(model_);
    store_.expect_replay_is_identical();
  }

 private:
  std::string random_key() {
    const uint64_t n = ascending_ && !rng_.one_in(5) ? ++last_ : rng_.below(key_space_);
    std::string key;
    if (n % 3 == 0) key.assign(n % 40, 'p');  // common prefixes of several lengths
    key += be_key(n);
    if (key_tail_ != 0) key.append(n * 7 % key_tail_, static_cast<char>('a' + n % 3));
    if (rng_.one_in(200)) key.clear();  // the empty key is a key like any other
    return key;
  }
  std::string random_value(const std::string& key) {
    const size_t room = kMaxRecordBytes - kRecordHeaderBytes - key.size();
    const uint64_t wanted = rng_.one_in(50) ? room : rng_.below(value_max_ + 1);
    return record_value(
        std::string(std::min<size_t>(room, wanted), static_cast<char>(rng_.next())));
  }
  // A key that is there, if any.
  std::string existing_key() {
    if (model_.empty()) return random_key();
    auto at = model_.lower_bound(random_key());
    return at == model_.end() ? model_.begin()->first : at->first;
  }

  void step() {
    const uint64_t dice = rng_.below(100);
    if (dice < erase_percent_) {
      const std::string key = rng_.one_in(5) ? random_key() : existing_key();
      bool found = false;
      const Status status = tree_->erase(key, &found, nullptr, merge_);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(found, model_.erase(key) == 1);
    } else {
      const std::string key = rng_.one_in(4) ? existing_key() : random_key();
      const std::string value = random_value(key);
      const Status status = tree_->put(key, value);
      ASSERT_TRUE(status.ok()) << status;
      model_[key] = value;
    }
    if (rng_.one_in(20)) scan();
    if (rng_.one_in(20)) save_and_restore();
    if (rng_.one_in(10)) look_up();
    if (rng_.one_in(30)) {
      ASSERT_TRUE(store_.spaces()->reclaim().ok());
    }
    if (rng_.one_in(300)) store_.log()->raise_image_floor();
  }

  void look_up() {
    const std::string key = rng_.one_in(2) ? random_key() : existing_key();
    const auto value = tree_->get(key);
    ASSERT_TRUE(value.ok()) << value.status();
    const auto at = model_.find(key);
    ASSERT_EQ(value->has_value(), at != model_.end());
    if (at != model_.end()) {
      ASSERT_EQ(**value, at->second);
    }
  }

  void scan() {
    const std::string key = random_key();
    const size_t limit = 1 + rng_.below(200);
    const bool up = rng_.one_in(2);
    const bool infinite = !up && rng_.one_in(4);
    const auto records = tree_->scan(key, up, infinite, limit);
    ASSERT_TRUE(records.ok()) << records.status();
    std::vector<std::pair<std::string, std::string>> expected;
    if (up) {
      for (auto at = model_.lower_bound(key); at != model_.end() && expected.size() < limit; ++at)
        expected.emplace_back(*at);
    } else {
      auto at = infinite ? model_.end() : model_.lower_bound(key);
      while (at != model_.begin() && expected.size() < limit) expected.emplace_back(*--at);
    }
    ASSERT_TRUE(*records == expected);
  }

  // Saves a cursor, changes the tree, restores it: the record itself or the next one.
  void save_and_restore() {
    Mtr mtr(store_.pool(), store_.log());
    TreeCursor cursor(tree_->context(), tree_->tree(), &mtr);
    const std::string from = random_key();
    ASSERT_TRUE(cursor.seek(from, LatchMode::kShared).ok());
    if (rng_.one_in(2)) {
      ASSERT_TRUE(cursor.settle().ok());
    }
    const auto expected = model_.lower_bound(from);
    const bool on_record = cursor.on_record();
    cursor.save();
    const std::string saved(cursor.saved_key());
    if (on_record) {
      ASSERT_EQ(saved, expected->first);
    }
    for (uint64_t i = rng_.below(4); i > 0; --i) {
      const std::string key = rng_.one_in(3) ? saved : existing_key();
      bool found = false;
      ASSERT_TRUE(tree_->erase(key, &found, nullptr, merge_).ok());
      model_.erase(key);
      const std::string other = random_key();
      const std::string value = random_value(other);
      ASSERT_TRUE(tree_->put(other, value).ok());
      model_[other] = value;
    }
    bool same = false;
    const Status status =
        cursor.restore(rng_.one_in(3) ? LatchMode::kExclusive : LatchMode::kShared, &same);
    ASSERT_TRUE(status.ok()) << status;
    if (!on_record) return;  // between records: only the general promises hold
    const auto now = model_.lower_bound(saved);
    ASSERT_EQ(same, now != model_.end() && now->first == saved);
    ASSERT_EQ(cursor.at_end(), now == model_.end());
    if (now != model_.end()) {
      std::string key;
      cursor.copy_key(&key);
      ASSERT_EQ(key, now->first);
    }
  }

  const uint64_t seed_;
  Rng rng_;
  TestStore store_;
  std::unique_ptr<TreeDriver> tree_;
  Model model_;
  uint64_t key_space_, key_tail_, value_max_, erase_percent_;
  uint64_t last_ = 1u << 20;
  bool merge_, ascending_;
};

TEST(BTreeModel, RandomOperationsAgreeWithAMap) {
  const char* seed_text = std::getenv("STRATA_SEED");
  const char* rounds_text = std::getenv("STRATA_ROUNDS");
  const uint64_t first =
      seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : monotonic_us();
  const uint64_t rounds =
      rounds_text != nullptr ? std::strtoull(rounds_text, nullptr, 10) : (seed_text ? 1 : 12);
  for (uint64_t i = 0; i < rounds && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(first + i));
    std::printf("seed %llu\n", static_cast<unsigned long long>(first + i));
    ModelRun(first + i).run();
  }
}

}  // namespace
}  // namespace strata
