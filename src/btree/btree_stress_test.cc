// Many threads in one tree. Goal: nobody loses a change, sees a wrong or a half-made page,
// deadlocks, or leaks a page, whatever splits, merges, evictions and reclaims go on; no data race
// under TSan. Method: every thread owns every eighth key, so its own model says exactly what it
// must find although all threads share all pages; besides, all threads fight over some keys. One
// thread runs check_tree all the time. At the end the store crashes, and redo must give what the
// log kept.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

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
constexpr uint64_t kThreads = 8;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 1500;
#else
constexpr int kOperations = 8000;
#endif

struct Change {
  Lsn end;
  std::string key;
  std::optional<std::string> value;
};

// Keys: number, whose remainder says who owns it (kThreads = shared), and a tail.
class Worker {
 public:
  Worker(TestStore* store, TreeId tree, uint64_t self, uint64_t seed, uint32_t prefix_bytes)
      : store_(store), tree_(store, tree), self_(self), rng_(seed), prefix_bytes_(prefix_bytes) {}

  void run() {
    uint64_t erase_percent = 30;
    for (int i = 0; i < kOperations && !::testing::Test::HasFailure(); ++i) {
      if (i % 500 == 0) erase_percent = 10 + rng_.below(60);
      change(rng_.below(100) < erase_percent);
      if (rng_.one_in(5)) scan();
      if (rng_.one_in(20)) save_and_restore();
      if (rng_.one_in(50)) {
        EXPECT_TRUE(store_->spaces()->reclaim().ok());
      }
    }
  }
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const std::vector<Change>& history() const { return history_; }

  // A long prefix, one of four, makes long separators: inner pages hold few children and split
  // often.
  [[nodiscard]] std::string key_of(uint64_t owner, uint64_t n) const {
    std::string key(prefix_bytes_, static_cast<char>('a' + n % 4));
    append_be64(&key, n * (kThreads + 1) + owner);
    if (prefix_bytes_ == 0) key.append(n % 50 == 0 ? 1500 : (n % 7 == 0 ? 400 : n % 5), 't');
    return key;
  }
  static uint64_t owner_of(Bytes key, uint32_t prefix_bytes) {
    return load_be64(key.data() + prefix_bytes) % (kThreads + 1);
  }

 private:
  static constexpr uint64_t kKeys = 2000;

  void change(bool erase) {
    const bool shared = rng_.one_in(8);
    const std::string key =
        key_of(shared ? kThreads : self_, rng_.one_in(4) ? rng_.below(20) : rng_.below(kKeys));
    Change change{.end = {}, .key = key, .value = {}};
    Status status;
    bool found = true;
    if (erase) {
      status = tree_.erase(key, &found, &change.end);
    } else {
      change.value = record_value(
          std::string(rng_.one_in(5) ? 1500 : rng_.below(150), static_cast<char>('a' + self_)));
      status = tree_.put(key, *change.value, &change.end);
    }
    ASSERT_TRUE(status.ok()) << status;
    if (shared) return;
    if (erase) {
      ASSERT_EQ(found, model_.erase(key) == 1);
    } else {
      model_[key] = *change.value;
    }
    if (found) history_.push_back(std::move(change));
  }

  // A scan sees this thread's own records exactly, and everything in order.
  void scan() {
    const std::string from = key_of(self_, rng_.below(kKeys));
    const bool up = rng_.one_in(2);
    const auto records = tree_.scan(from, up, false, 1 + rng_.below(300));
    ASSERT_TRUE(records.ok()) << records.status();
    Model mine;
    for (size_t i = 0; i < records->size(); ++i) {
      const auto& [key, value] = (*records)[i];
      if (i > 0) {
        ASSERT_TRUE(up ? (*records)[i - 1].first < key : (*records)[i - 1].first > key);
      }
      if (owner_of(key, prefix_bytes_) == self_) mine.emplace(key, value);
    }
    if (records->empty()) return;
    const std::string& last = records->back().first;
    const auto begin = up ? model_.lower_bound(from) : model_.lower_bound(last);
    const auto end = up ? model_.upper_bound(last) : model_.lower_bound(from);
    ASSERT_TRUE(mine == Model(begin, end));
  }

  void save_and_restore() {
    Mtr mtr(store_->pool(), store_->log());
    TreeCursor cursor(tree_.context(), tree_.tree(), &mtr);
    if (model_.empty()) return;
    auto at = model_.lower_bound(key_of(self_, rng_.below(kKeys)));
    if (at == model_.end()) at = model_.begin();
    ASSERT_TRUE(cursor.seek(at->first, LatchMode::kShared).ok());
    ASSERT_TRUE(cursor.equals(at->first));
    cursor.save();
    if (rng_.one_in(2)) std::this_thread::yield();
    bool same = false;
    const Status status =
        cursor.restore(rng_.one_in(2) ? LatchMode::kExclusive : LatchMode::kShared, &same);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(same);
    ASSERT_EQ(cursor.value(), at->second);
  }

  TestStore* const store_;
  TreeDriver tree_;
  const uint64_t self_;
  Rng rng_;
  const uint32_t prefix_bytes_;
  Model model_;
  std::vector<Change> history_;
};

void stress(uint64_t seed, uint32_t frames, uint32_t prefix_bytes) {
  TestStore store({.frames = frames, .writers = 1});
  ASSERT_TRUE(store.spaces()->create(kSpace).ok());
  const TreeId id = TreeDriver::create(&store, kSpace, 3);
  ASSERT_TRUE(store.persist_all().ok());
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint64_t t = 0; t < kThreads; ++t)
    workers.push_back(std::make_unique<Worker>(&store, id, t, seed * 100 + t, prefix_bytes));
  std::atomic<bool> stop{false};
  uint64_t checks = 0;
  std::thread checker([&] {
    TreeDriver tree(&store, id);
    for (; !stop && !::testing::Test::HasFailure(); ++checks) {
      std::string last;
      TreeCheck result;
      const Status status = check_tree(
          tree.context(), id,
          [&](Bytes key, Bytes) {
            EXPECT_LT(last, key);
            last = key;
          },
          &result);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(result.problems.empty()) << result.problems.front();
      EXPECT_TRUE(estimate_range(tree.context(), id, last, {}, true).ok());
    }
  });
  std::vector<std::thread> threads;
  for (auto& worker : workers) threads.emplace_back([&worker] { worker->run(); });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  checker.join();
  EXPECT_GT(checks, 0u);
  if (::testing::Test::HasFailure()) return;

  Model expected;
  for (const auto& worker : workers)
    expected.insert(worker->model().begin(), worker->model().end());
  {
    TreeDriver tree(&store, id);
    const auto records = tree.scan({}, true, false, SIZE_MAX);
    ASSERT_TRUE(records.ok()) << records.status();
    Model own;
    for (const auto& [key, value] : *records)
      if (Worker::owner_of(key, prefix_bytes) != kThreads) own.emplace(key, value);
    EXPECT_TRUE(own == expected);
    const TreeCheck check = tree.check();
    EXPECT_EQ(check.incomplete_splits, 0u);
    EXPECT_TRUE(store.spaces()->reclaim().ok());
    EXPECT_EQ(store.spaces()->allocated_pages(kSpace)->size(),
              check.leaf_pages + check.inner_pages);
    std::printf("%llu records, height %u, %llu pages, %llu checks\n",
                static_cast<unsigned long long>(check.records), check.height,
                static_cast<unsigned long long>(check.leaf_pages + check.inner_pages),
                static_cast<unsigned long long>(checks));
  }
  store.crash(seed);
  const Status recovered = store.recover();
  ASSERT_TRUE(recovered.ok()) << recovered;
  ASSERT_TRUE(store.spaces()->open(kSpace, true).ok());
  expected.clear();
  for (const auto& worker : workers)
    for (const Change& change : worker->history()) {
      if (change.end > store.recovered_end()) break;
      if (change.value.has_value())
        expected[change.key] = *change.value;
      else
        expected.erase(change.key);
    }
  TreeDriver tree(&store, id);
  const auto records = tree.scan({}, true, false, SIZE_MAX);
  ASSERT_TRUE(records.ok()) << records.status();
  Model own;
  for (const auto& [key, value] : *records)
    if (Worker::owner_of(key, prefix_bytes) != kThreads) own.emplace(key, value);
  EXPECT_TRUE(own == expected);
  tree.check();
}

uint64_t seed_of_run() {
  const char* text = std::getenv("STRATA_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : monotonic_us();
  std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

TEST(BTreeStress, ThreadsShareATreeThatFitsInMemory) { stress(seed_of_run(), 2048, 0); }
TEST(BTreeStress, ThreadsShareATreeMuchLargerThanThePool) { stress(seed_of_run(), 96, 0); }
TEST(BTreeStress, ThreadsShareATreeOfLongKeys) { stress(seed_of_run(), 1024, 700); }

}  // namespace
}  // namespace strata
