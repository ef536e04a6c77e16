// Goal: what a listener is told of waits (L14, L15), and that nobody whose owner it was told of
// ends meanwhile. Method: owners are the transactions' own numbers; waiting threads as in
// row_waits_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "lock/row_waits.h"

namespace strata {
namespace {

constexpr uint64_t kLong = 20000000;
const RowId kRow{IndexId{7}, "row-1"};
const RowId kOther{IndexId{7}, "row-2"};
TrxId trx(uint64_t n) { return make_trx_id(NodeId{1}, n); }
void* owner(TrxId id) { return reinterpret_cast<void*>(sequence_of(id)); }
uint64_t number(void* owner) { return reinterpret_cast<uint64_t>(owner); }

using Pairs = std::set<std::pair<uint64_t, uint64_t>>;

class Listener final : public WaitListener {
 public:
  void wait_begins(void*) noexcept override { ++begun; }
  void wait_ends(void*) noexcept override { ++ended; }
  bool wants_reports(void* waiter) noexcept override { return number(waiter) != uninterested; }
  void waits_for(void* waiter, void* holder) noexcept override {
    {
      const std::lock_guard guard(mutex_);
      told_.emplace(number(waiter), number(holder));
    }
    while (hold) std::this_thread::yield();
  }
  int preferred_victim(void* first, void* second) noexcept override {
    return number(first) < number(second) ? 1 : -1;  // the later one
  }
  Pairs told() {
    const std::lock_guard guard(mutex_);
    return told_;
  }

  std::atomic<int> begun{0}, ended{0};
  std::atomic<bool> hold{false};
  uint64_t uninterested = 0;

 private:
  std::mutex mutex_;
  Pairs told_;
};

class WaitReports : public ::testing::Test {
 protected:
  void SetUp() override { waits_.set_listener(&listener_, owner); }
  void TearDown() override {
    for (std::thread& thread : threads_) thread.join();
    EXPECT_EQ(listener_.begun, listener_.ended);
  }
  // Waits until it has joined its queue.
  void start(uint64_t self, uint64_t holder, RowId row, Status* result = nullptr) {
    const size_t before = waiters();
    threads_.emplace_back([this, self, holder, row, result] {
      const Status status =
          waits_.wait(trx(self), trx(holder), row, kLong, nullptr, [] { return true; });
      if (status.ok()) waits_.settled(trx(self), row, TrxId{});
      if (!status.ok()) waits_.holder_ended(trx(self));  // a victim gives its locks up
      if (result != nullptr) *result = status;
    });
    const uint64_t deadline = monotonic_us() + kLong;
    while (waiters() == before && monotonic_us() < deadline) std::this_thread::yield();
  }
  size_t waiters() {
    const std::string text = waits_.describe(1000);
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  Listener listener_;
  RowWaits waits_;
  std::vector<std::thread> threads_;
};

TEST_F(WaitReports, AWaiterIsReportedWithItsHolderAndEverybodyBeforeIt) {  // L15
  start(2, 1, kRow);
  start(3, 1, kRow);
  start(4, 1, kRow);
  EXPECT_EQ(listener_.told(), (Pairs{{2, 1}, {3, 1}, {3, 2}, {4, 1}, {4, 2}, {4, 3}}));
  waits_.holder_ended(trx(1));
}

TEST_F(WaitReports, OnlyForThoseForWhomTheyAreWanted) {
  listener_.uninterested = 3;
  start(2, 1, kRow);
  start(3, 1, kRow);
  EXPECT_EQ(listener_.told(), (Pairs{{2, 1}}));
  EXPECT_EQ(listener_.begun, 2);
  waits_.holder_ended(trx(1));
}

TEST_F(WaitReports,
       WhoGoesBeforeOthersIsReportedToThem) {  // L15: an owner of a shared lock upgrades
  waits_.add_shared(trx(9), kRow);
  start(2, 1, kRow);
  start(9, 1, kRow);
  EXPECT_EQ(listener_.told(), (Pairs{{2, 1}, {9, 1}, {2, 9}}));
  waits_.release_shared(trx(9));
  waits_.holder_ended(trx(1));
}

TEST_F(WaitReports, EveryHolderOfASharedLockIsReported) {
  waits_.add_shared(trx(5), kRow);
  waits_.add_shared(trx(6), kRow);
  std::thread writer(
      [this] { EXPECT_TRUE(waits_.wait_for_shared(trx(2), kRow, kLong, nullptr).ok()); });
  const uint64_t deadline = monotonic_us() + kLong;
  while (waiters() == 0 && monotonic_us() < deadline) std::this_thread::yield();
  EXPECT_EQ(listener_.told(), (Pairs{{2, 5}, {2, 6}}));
  for (const uint64_t holder : {5, 6}) {
    waits_.release_shared(trx(holder));
    waits_.holder_ended(trx(holder));
  }
  writer.join();
}

// A holder that is being reported cannot end: its owner would be gone under the listener. Nor can
// one that parts with its owner.
TEST_F(WaitReports, NobodyEndsDuringAReport) {  // L14
  listener_.hold = true;
  threads_.emplace_back([this] {
    const Status status = waits_.wait(trx(2), trx(1), kRow, kLong, nullptr, [] { return true; });
    EXPECT_TRUE(status.ok());
    waits_.settled(trx(2), kRow, TrxId{});
  });
  const uint64_t deadline = monotonic_us() + kLong;
  while (listener_.told().empty() && monotonic_us() < deadline) std::this_thread::yield();
  std::atomic<int> passed{0};
  for (const uint64_t other : {1, 77})  // the holder, and one that has nothing to do with it
    threads_.emplace_back([this, other, &passed] {
      waits_.holder_ended(trx(other));
      ++passed;
    });
  std::thread parting([this, &passed] {
    waits_.let_reports_end();
    ++passed;
  });
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // the longer, the surer
  EXPECT_EQ(passed, 0);
  listener_.hold = false;
  parting.join();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// 2 waits for 3, 3 for 2: the listener would rather lose 3, which is not the newcomer.
TEST_F(WaitReports, TheListenerChoosesTheVictim) {
  Status first;
  start(3, 2, kRow, &first);
  const Status newcomer = waits_.wait(trx(2), trx(3), kOther, kLong, nullptr, [] { return true; });
  EXPECT_TRUE(newcomer.ok()) << newcomer.ToString();
  waits_.settled(trx(2), kOther, TrxId{});
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  EXPECT_TRUE(is_deadlock(first));
}

}  // namespace
}  // namespace strata
