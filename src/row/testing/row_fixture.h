// A kernel of rows on a disk in memory, and the calls of tests that look at one promise each.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "row/row_store.h"
#include "row/testing/mini_kernel.h"

namespace strata::testing {

class RowFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    disk_ = make_sim_file_system();
    open();
  }
  void open() {
    kernel_ = std::make_unique<MiniKernel>(disk_.get(), MiniOptions{});
    const Status status = kernel_->open();
    ASSERT_TRUE(status.ok()) << status;
  }
  RowContext* rows() { return kernel_->rows(); }
  TrxSystem* trxs() { return kernel_->trxs(); }
  TreeId tree(uint32_t i = 0) { return kernel_->tree(i); }

  void begin(Trx* trx) {
    trxs()->begin(trx);
    trx->lock_wait_timeout_us = 0;
  }
  // With a view.
  void begin_read(Trx* trx) {
    begin(trx);
    ASSERT_TRUE(trxs()->open_view(trx).ok());
  }
  void commit(Trx* trx) {
    const Status status = trxs()->commit(trx);
    ASSERT_TRUE(status.ok()) << status;
  }
  void rollback(Trx* trx) {
    const Status status = rollback_all(rows(), trx);
    ASSERT_TRUE(status.ok()) << status;
  }
  Status insert(Trx* trx, Bytes key, Bytes text, uint32_t t = 0, size_t unique_bytes = 0) {
    return insert_record(rows(), trx, tree(t), key, encode_payload({}, text), unique_bytes);
  }
  Status update(Trx* trx, Bytes key, Bytes text) {
    return update_record(rows(), trx, tree(), key, encode_payload({}, text));
  }
  Status erase(Trx* trx, Bytes key, uint32_t t = 0) {
    return delete_record(rows(), trx, tree(t), key);
  }
  void expect_kept_out(Trx* trx, Bytes key) {
    std::string payload;
    EXPECT_TRUE(is_lock_wait_timeout(update(trx, key, "2"))) << key;
    EXPECT_TRUE(is_lock_wait_timeout(erase(trx, key))) << key;
    EXPECT_TRUE(is_lock_wait_timeout(insert(trx, key, "2"))) << key;
    for (const RowLock mode : {RowLock::kShared, RowLock::kExclusive})
      EXPECT_TRUE(is_lock_wait_timeout(lock_record(rows(), trx, tree(), key, mode, &payload)));
  }
  // Text of the visible version, "-" when there is none.
  std::string read(Trx* trx, Bytes key) {
    std::string payload;
    const Status status = read_record(rows(), trx, tree(), key, &payload);
    if (is_not_found(status)) return "-";
    EXPECT_TRUE(status.ok()) << status;
    return text_of(payload);
  }
  std::string dirty(Bytes key) {
    std::string payload;
    const Status status = read_dirty(rows(), tree(), key, &payload);
    return is_not_found(status) ? "-" : text_of(payload);
  }
  static std::string text_of(Bytes payload) {
    std::vector<OverflowRef> refs;
    Bytes text;
    EXPECT_TRUE(decode_payload(payload, &refs, &text).ok());
    return std::string(text);
  }
  // A committed row.
  void put(Bytes key, Bytes text) {
    Trx trx;
    begin(&trx);
    const Status status = insert(&trx, key, text);
    ASSERT_TRUE(status.ok()) << status;
    commit(&trx);
  }
  std::string scan(Trx* trx, RowCursor::Read read_mode, bool backward = false) {
    RowCursor cursor(rows(), tree());
    std::string out;
    Status status = backward ? cursor.seek_before(trx, read_mode, Bytes(), true)
                             : cursor.seek(trx, read_mode, Bytes());
    while (status.ok() && cursor.valid()) {
      out += std::string(cursor.key()) + "=" + text_of(cursor.payload()) + " ";
      status = backward ? cursor.prev() : cursor.next();
    }
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<MiniKernel> kernel_;
};

}  // namespace strata::testing
