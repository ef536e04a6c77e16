// Crashes at random points. Goal: after redo the tree is whole (check_tree), it holds exactly the
// changes whose groups the log kept, among them every one that was durable; no page is lost to the
// allocator; later writers complete the splits a crash interrupted. Method: random operations on a
// simulated disk that loses and tears what was not synced; several lives per seed. STRATA_SEED /
// STRATA_ROUNDS as in btree_model_test.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/clock.h"
#include "base/fault.h"
#include "btree/testing/tree_driver.h"

namespace strata {
namespace {

using testing::be_key;
using testing::Model;
using testing::record_value;
using testing::TestStore;
using testing::TreeDriver;

constexpr SpaceId kSpace{256};
constexpr int kLives = 6;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kOperationsMax = 800;
#else
constexpr uint64_t kOperationsMax = 3000;
#endif

struct Totals {
  uint64_t lives = 0;
  uint64_t changes = 0;
  uint64_t lost = 0;  // not durable, rightly gone
  uint64_t incomplete = 0;
  uint64_t checkpoints = 0;
};

class CrashRun {
 public:
  CrashRun(uint64_t seed, Totals* totals)
      : rng_(seed),
        store_(
            {.frames = 20 + static_cast<uint32_t>(rng_.below(60)), .log_segment_bytes = 1 << 20}),
        totals_(totals) {
    EXPECT_TRUE(store_.spaces()->create(kSpace).ok());
    id_ = TreeDriver::create(&store_, kSpace, 9);
    EXPECT_TRUE(store_.persist_all().ok());
    tree_ = std::make_unique<TreeDriver>(&store_, id_);
    key_tail_ = rng_.one_in(2) ? 0 : rng_.below(1500);
    key_space_ = 50 + rng_.below(3000);
    value_max_ = rng_.one_in(3) ? 2000 : 120;
  }
  ~CrashRun() { disarm_faults(); }

  void run() {
    for (int life = 0; life < kLives && !::testing::Test::HasFailure(); ++life) {
      live();
      if (!::testing::Test::HasFailure()) die_and_rise();
    }
    // Writers on every leaf leave no incomplete split behind.
    for (const auto& [key, value] : Model(base_)) {
      ASSERT_TRUE(tree_->put(key, value + "!").ok());
      base_[key] = value + "!";
    }
    tree_->expect_equals(base_);
    if (!base_.empty()) {
      EXPECT_EQ(tree_->check().incomplete_splits, 0u);
    }
  }

 private:
  struct Change {
    Lsn end;
    std::string key;
    std::optional<std::string> value;
  };

  std::string random_key() {
    const uint64_t n = rng_.below(key_space_);
    std::string key = be_key(n);
    if (key_tail_ != 0)
      key.insert(0, std::string(n * 7 % key_tail_, static_cast<char>('a' + n % 5)));
    return key;
  }

  void live() {
    const uint64_t operations = rng_.below(kOperationsMax);
    const uint64_t erase_percent = rng_.below(80);
    if (rng_.one_in(2)) {  // this life ends there, if it gets there
      const std::string name = rng_.one_in(2) ? "split_between_mtrs" : "merge_after_unlink";
      ASSERT_TRUE(arm_fault(name + ":" + std::to_string(1 + rng_.below(20)) + ":error"));
    }
    for (uint64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i)
      if (!step(erase_percent)) {  // half a split or half a merge
        if (rng_.one_in(2)) {
          EXPECT_TRUE(store_.persist_all().ok());
          durable_ = store_.log()->next_lsn();
        }
        if (rng_.one_in(2)) break;
      }
    disarm_faults();
    if (rng_.one_in(3)) die_in_a_split();
  }

  void die_in_a_split() {
    ASSERT_TRUE(arm_fault("split_between_mtrs:1:error"));
    for (int i = 0; i < 500; ++i)
      if (!step(0)) break;
    disarm_faults();
    EXPECT_TRUE(store_.persist_all().ok());
    durable_ = store_.log()->next_lsn();
  }

  // False: an armed fault was hit.
  bool step(uint64_t erase_percent) {
    const std::string key = random_key();
    Change change{.end = {}, .key = key, .value = {}};
    Status status;
    bool done = true;
    if (rng_.below(100) < erase_percent) {
      // A fault may hit the merge after the erasure was published.
      status = tree_->erase(key, &done, &change.end);
      done = done && !change.end.is_zero();
    } else {
      change.value =
          record_value(std::string(rng_.below(value_max_), static_cast<char>(rng_.next())));
      status = tree_->put(key, *change.value, &change.end);
      done = status.ok();
    }
    if (done) history_.push_back(std::move(change));
    if (!status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::kInternal) << status;
      return false;
    }
    ++totals_->changes;
    if (rng_.one_in(100)) {
      EXPECT_TRUE(store_.persist_all().ok());
      durable_ = store_.log()->next_lsn();
    }
    if (rng_.one_in(400)) {
      EXPECT_TRUE(store_.checkpoint().ok());
      ++totals_->checkpoints;
    }
    if (rng_.one_in(50)) {
      EXPECT_TRUE(store_.spaces()->reclaim().ok());
    }
    return true;
  }

  void die_and_rise() {
    ++totals_->lives;
    tree_.reset();
    store_.crash(rng_.next());
    const Status recovered = store_.recover();
    ASSERT_TRUE(recovered.ok()) << recovered;
    const Lsn end = store_.recovered_end();
    ASSERT_GE(end, durable_);
    durable_ = end;
    for (Change& change : history_) {
      if (change.end > end) {
        ++totals_->lost;
        continue;
      }
      if (change.value.has_value())
        base_[change.key] = std::move(*change.value);
      else
        base_.erase(change.key);
    }
    history_.clear();
    ASSERT_TRUE(store_.spaces()->open(kSpace, true).ok());
    tree_ = std::make_unique<TreeDriver>(&store_, id_);
    tree_->expect_equals(base_);
    const TreeCheck check = tree_->check();
    totals_->incomplete += check.incomplete_splits;
    const auto pages = store_.spaces()->allocated_pages(kSpace);
    ASSERT_TRUE(pages.ok());
    ASSERT_EQ(pages->size(), check.leaf_pages + check.inner_pages);
  }

  Rng rng_;
  TestStore store_;
  Totals* const totals_;
  TreeId id_;
  std::unique_ptr<TreeDriver> tree_;
  Model base_;                   // as recovered
  std::vector<Change> history_;  // since then
  Lsn durable_;
  uint64_t key_tail_, key_space_, value_max_;
};

TEST(BTreeCrash, DurableChangesAndTheTreeSurviveCrashesAnywhere) {
  const char* seed_text = std::getenv("STRATA_SEED");
  const char* rounds_text = std::getenv("STRATA_ROUNDS");
  const uint64_t first =
      seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : monotonic_us();
  const uint64_t rounds =
      rounds_text != nullptr ? std::strtoull(rounds_text, nullptr, 10) : (seed_text ? 1 : 15);
  Totals totals;
  for (uint64_t i = 0; i < rounds && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(first + i));
    std::printf("seed %llu\n", static_cast<unsigned long long>(first + i));
    CrashRun(first + i, &totals).run();
  }
  std::printf(
      "%llu lives, %llu changes, %llu not durable, %llu incomplete splits, %llu checkpoints\n",
      static_cast<unsigned long long>(totals.lives),
      static_cast<unsigned long long>(totals.changes), static_cast<unsigned long long>(totals.lost),
      static_cast<unsigned long long>(totals.incomplete),
      static_cast<unsigned long long>(totals.checkpoints));
}

}  // namespace
}  // namespace strata
