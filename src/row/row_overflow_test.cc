// Promises of row_store.h about values that are kept in chains of pages, each by itself, on the
// real kernel below and a disk in memory.
#include "base/fault.h"
#include "row/testing/row_fixture.h"

namespace strata {
namespace {

using testing::MiniKernel;
using RowOverflowTest = testing::RowFixture;

TEST_F(RowOverflowTest, OverflowChainLivesAsLongAsSomebodyNeedsIt) {
  const uint64_t pages_before = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  std::string big(100000, 'x');
  for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<char>(i * 7 + i / 251);
  Trx writer, reader, updater;
  begin(&writer);
  auto ref = write_overflow(rows(), &writer, MiniKernel::kSpace, big);
  ASSERT_TRUE(ref.ok()) << ref.status();
  ASSERT_TRUE(insert_record(rows(), &writer, tree(), "a", encode_payload({*ref}, "in"), 0).ok());
  commit(&writer);
  begin_read(&reader);
  begin(&updater);
  ASSERT_TRUE(update_record(rows(), &updater, tree(), "a", encode_payload({}, "small")).ok());
  commit(&updater);
  ASSERT_TRUE(kernel_->purge_all().ok());
  std::string payload, value;
  std::vector<OverflowRef> refs;
  Bytes inline_bytes;
  ASSERT_TRUE(read_record(rows(), &reader, tree(), "a", &payload).ok());
  ASSERT_TRUE(decode_payload(payload, &refs, &inline_bytes).ok());
  ASSERT_EQ(refs.size(), 1u);
  ASSERT_TRUE(read_overflow(rows(), MiniKernel::kSpace, refs[0], &value).ok());
  EXPECT_EQ(value, big);
  commit(&reader);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before);
  EXPECT_TRUE(is_corruption(read_overflow(rows(), MiniKernel::kSpace, *ref, &value)));
}

TEST_F(RowOverflowTest, OverflowChainOfAnUndoneChangeIsFreed) {
  const uint64_t pages_before = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  const std::string big(200000, 'y');
  put("a", "1");
  Trx trx;
  begin(&trx);
  const UndoPtr savepoint = trx.undo.last;
  auto ref = write_overflow(rows(), &trx, MiniKernel::kSpace, big);
  ASSERT_TRUE(ref.ok());
  ASSERT_TRUE(update_record(rows(), &trx, tree(), "a", encode_payload({*ref}, "")).ok());
  ASSERT_TRUE(rollback_to(rows(), &trx, savepoint).ok());
  EXPECT_EQ(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before);
  // Undone free_on_purge lists must not free what lives on.
  ref = write_overflow(rows(), &trx, MiniKernel::kSpace, big);
  ASSERT_TRUE(ref.ok());
  ASSERT_TRUE(update_record(rows(), &trx, tree(), "a", encode_payload({*ref}, "")).ok());
  const UndoPtr with_chain = trx.undo.last;
  ASSERT_TRUE(update_record(rows(), &trx, tree(), "a", encode_payload({}, "")).ok());
  ASSERT_TRUE(rollback_to(rows(), &trx, with_chain).ok());
  commit(&trx);
  ASSERT_TRUE(kernel_->purge_all().ok());
  std::string value;
  EXPECT_TRUE(read_overflow(rows(), MiniKernel::kSpace, *ref, &value).ok());
  EXPECT_EQ(value, big);
}

// An update of the key moves a chain to another record; the old record's purge must leave it alone,
// and free what it alone had.
TEST_F(RowOverflowTest, AMovedChainOutlivesTheRecordItCameFrom) {
  const uint64_t pages_before = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  const std::string big(100000, 'm');
  Trx trx;
  begin(&trx);
  const auto moved = write_overflow(rows(), &trx, MiniKernel::kSpace, big);
  const auto dropped = write_overflow(rows(), &trx, MiniKernel::kSpace, big);
  ASSERT_TRUE(moved.ok() && dropped.ok());
  const std::string both = encode_payload({*moved, *dropped}, "");
  ASSERT_TRUE(insert_record(rows(), &trx, tree(), "a", both, 0).ok());
  commit(&trx);
  const uint64_t pages_with_both = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  begin(&trx);
  ASSERT_TRUE(insert_record(rows(), &trx, tree(), "b", encode_payload({*moved}, ""), 0).ok());
  ASSERT_TRUE(delete_record(rows(), &trx, tree(), "a", {*moved}).ok());
  commit(&trx);
  ASSERT_TRUE(kernel_->purge_all().ok());
  std::string value;
  ASSERT_TRUE(read_overflow(rows(), MiniKernel::kSpace, *moved, &value).ok());
  EXPECT_EQ(value, big);
  EXPECT_TRUE(is_corruption(read_overflow(rows(), MiniKernel::kSpace, *dropped, &value)));
  EXPECT_LT(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_with_both);
  begin(&trx);
  ASSERT_TRUE(delete_record(rows(), &trx, tree(), "b").ok());
  commit(&trx);
  ASSERT_TRUE(kernel_->purge_all().ok());
  EXPECT_EQ(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before);
}

TEST_F(RowOverflowTest, HalfWrittenOverflowChainIsFreedAfterACrash) {
  const uint64_t pages_before = *kernel_->spaces()->used_pages(MiniKernel::kSpace);
  Trx trx;
  begin(&trx);
  ASSERT_TRUE(arm_fault("overflow_half:1:error"));
  EXPECT_FALSE(write_overflow(rows(), &trx, MiniKernel::kSpace, std::string(300000, 'z')).ok());
  disarm_faults();
  EXPECT_GT(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before + 5);
  ASSERT_TRUE(kernel_->log()->persist(kernel_->log()->next_lsn()).ok());
  kernel_->close();
  disk_->crash(1);
  ASSERT_TRUE(kernel_->open().ok());
  EXPECT_EQ(kernel_->rolled_back(), 1u);
  EXPECT_EQ(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages_before);
}

}  // namespace
}  // namespace strata
