// RW9: what comes between a look and the registration of its range is found by the second look,
// wherever the scan stood. The authority that keeps the ranges says when that moment is.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lock/testing/shared_locks.h"
#include "row/row_store.h"
#include "row/testing/mini_kernel.h"

namespace strata {
namespace {

using testing::MiniKernel;
using testing::MiniOptions;

class WatchedLocks : public testing::SharedLocks {
 public:
  bool add_range(TrxId holder, IndexId index, const KeyRange& range) override {
    if (before_add) std::exchange(before_add, nullptr)();
    return SharedLocks::add_range(holder, index, range);
  }
  std::function<void()> before_add;  // once
};

class RangeCursorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MiniOptions options;
    options.locks = &locks_;
    kernel_ = std::make_unique<MiniKernel>(disk_.get(), options);
    const Status status = kernel_->open();
    ASSERT_TRUE(status.ok()) << status;
  }
  RowContext* rows() { return kernel_->rows(); }
  TreeId tree() { return kernel_->tree(0); }
  void insert(const std::string& key) {
    Trx trx;
    kernel_->trxs()->begin(&trx);
    const Status status =
        insert_record(rows(), &trx, tree(), key, encode_payload({}, std::string(700, 'x')), 0);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(kernel_->trxs()->commit(&trx).ok());
  }
  void remove(const std::string& key) {
    Trx trx;
    kernel_->trxs()->begin(&trx);
    ASSERT_TRUE(delete_record(rows(), &trx, tree(), key).ok());
    ASSERT_TRUE(kernel_->trxs()->commit(&trx).ok());
  }
  static std::string key_of(int i) { return "k" + std::to_string(1000 + i); }
  // The keys from `low` to `high`; `arrival` is inserted at the first moment it can be.
  std::vector<std::string> scan(const std::string& low, const std::string& high, bool forward,
                                const std::string& arrival) {
    Trx trx;
    kernel_->trxs()->begin(&trx);
    RangeCursor range(rows(), tree());
    range.set_bounds(low, high);
    locks_.before_add = [&] { insert(arrival); };
    std::vector<std::string> keys;
    Status status = forward ? range.seek(&trx, low) : range.seek_before(&trx, high, false);
    while (status.ok() && range.valid()) {
      keys.emplace_back(range.key());
      status = forward ? range.next() : range.prev();
    }
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(kernel_->trxs()->commit(&trx).ok());
    return keys;
  }

  const std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  WatchedLocks locks_;
  std::unique_ptr<MiniKernel> kernel_;
};

constexpr int kRows = 100;  // five leaves

TEST_F(RangeCursorTest, WhatComesBeforeTheRecordOfTheFirstLookIsFound) {
  for (int i = 0; i < kRows; ++i) insert(key_of(i));
  EXPECT_EQ(scan(key_of(50) + "a", key_of(51) + "a", true, key_of(50) + "b"),
            (std::vector<std::string>{key_of(50) + "b", key_of(51)}));
  EXPECT_EQ(scan(key_of(60), key_of(60) + "z", false, key_of(60) + "b"),
            (std::vector<std::string>{key_of(60) + "b", key_of(60)}));
}

// The first record that counts is leaves away: whatever lies between is deleted.
TEST_F(RangeCursorTest, ItIsFoundInALeafThatTheLookLeftBehind) {
  for (int i = 0; i < kRows; ++i) insert(key_of(i));
  for (int i = 11; i < kRows - 10; ++i) remove(key_of(i));
  EXPECT_EQ(scan(key_of(11), key_of(90) + "a", true, key_of(11) + "b"),
            (std::vector<std::string>{key_of(11) + "b", key_of(90)}));
  EXPECT_EQ(scan(key_of(10), key_of(89), false, key_of(88) + "b"),
            (std::vector<std::string>{key_of(88) + "b", key_of(11) + "b", key_of(10)}));
}

}  // namespace
}  // namespace strata
