#include "page/page.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "page/record.h"
#include "page/slotted.h"

namespace strata {
namespace {

struct alignas(64) PageBuffer {
  char bytes[kPageBytes] = {};
};

constexpr PageId kId{300, 7};

std::string leaf_value(char fill, size_t payload_bytes) {
  return std::string(kRecordHeaderBytes + payload_bytes, fill);
}

void init_leaf(char* page, Bytes low, Bytes high) {
  init_tree_page(page, TreePageInit{.page_id = kId,
                                    .index_id = IndexId{9},
                                    .right_sibling = 8,
                                    .low_fence = low,
                                    .high_key = high});
}
void init_unbounded(char* page, uint8_t level = 0) {
  init_tree_page(
      page, TreePageInit{
                .page_id = kId, .index_id = IndexId{9}, .level = level, .flags = kHighIsInfinity});
}

// Inserts by full key at its place; the key is new.
void insert(char* page, Bytes key, Bytes value) {
  const TreePageView view(page);
  bool equal = true;
  const uint16_t slot = view.lower_bound(key, &equal);
  ASSERT_FALSE(equal);
  ASSERT_TRUE(view.fits_insert(key, value.size()));
  insert_record(page, slot, key.substr(view.prefix().size()), value);
}

std::string key_at(const char* page, uint16_t slot) {
  std::string key;
  TreePageView(page).copy_key(slot, &key);
  return key;
}

TEST(Page, SealedPageVerifies) {
  PageBuffer page;
  init_unbounded(page.bytes);
  seal_page(page.bytes);
  EXPECT_TRUE(verify_page(page.bytes, kId).ok());
}

TEST(Page, AbsentPageIsNotFound) {
  PageBuffer page;
  EXPECT_TRUE(is_not_found(verify_page(page.bytes, kId)));
  page.bytes[kPageBytes - 1] = 1;
  EXPECT_TRUE(is_corruption(verify_page(page.bytes, kId)));
}

TEST(Page, EveryFlippedByteIsFound) {  // PG2
  PageBuffer page;
  init_leaf(page.bytes, "a", "b");
  seal_page(page.bytes);
  for (uint32_t at = 0; at < kPageBytes; at += at < kPageHeaderBytes ? 1 : 97) {
    page.bytes[at] = static_cast<char>(page.bytes[at] ^ 0x10);
    EXPECT_TRUE(is_corruption(verify_page(page.bytes, kId))) << "byte " << at;
    page.bytes[at] = static_cast<char>(page.bytes[at] ^ 0x10);
  }
}

TEST(Page, MisplacedPageNamesBoth) {
  PageBuffer page;
  init_unbounded(page.bytes);
  seal_page(page.bytes);
  const Status status = verify_page(page.bytes, PageId{300, 8});
  ASSERT_TRUE(is_corruption(status));
  EXPECT_NE(status.message().find("300:8"), absl::string_view::npos);
  EXPECT_NE(status.message().find("300:7"), absl::string_view::npos);
}

TEST(Slotted, EmptyPage) {
  PageBuffer page;
  init_leaf(page.bytes, "customer-10", "customer-19");
  const TreePageView view(page.bytes);
  EXPECT_EQ(view.slot_count(), 0);
  EXPECT_TRUE(view.is_leaf());
  EXPECT_EQ(view.low_fence(), "customer-10");
  EXPECT_EQ(view.high_key(), "customer-19");
  EXPECT_EQ(view.prefix(), "customer-1");  // SL2
  EXPECT_FALSE(view.covers_left("customer-0"));
  EXPECT_TRUE(view.covers_left("customer-10"));
  EXPECT_TRUE(view.covers_right("customer-18zzz"));
  EXPECT_FALSE(view.covers_right("customer-19"));
  EXPECT_EQ(view.used_bytes(), 0u);
  EXPECT_EQ(view.free_bytes(), kPageBytes - kPageHeaderBytes - 22);
  bool equal = true;
  EXPECT_EQ(view.lower_bound("customer-15", &equal), 0);
  EXPECT_FALSE(equal);
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
}

TEST(Slotted, InfinitePageHasNoPrefixAndCoversAll) {
  PageBuffer page;
  init_tree_page(
      page.bytes,
      TreePageInit{
          .page_id = kId, .flags = kHighIsInfinity, .low_fence = "m", .high_key = "ignored"});
  const TreePageView view(page.bytes);
  EXPECT_EQ(view.prefix(), "");
  EXPECT_TRUE(view.covers_right(std::string(kMaxKeyBytes, '\xff')));
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
}

TEST(Slotted, KeepsKeysInOrder) {
  PageBuffer page;
  init_leaf(page.bytes, "k", "l");
  for (const char* key : {"kz", "k", "kab", "ka", "kabcdef", "kabcde", "kb"})
    insert(page.bytes, key, leaf_value(key[1], 5));
  ASSERT_TRUE(validate_tree_page(page.bytes).ok());
  const std::vector<std::string> want = {"k", "ka", "kab", "kabcde", "kabcdef", "kb", "kz"};
  const TreePageView view(page.bytes);
  ASSERT_EQ(view.slot_count(), want.size());
  for (uint16_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(key_at(page.bytes, i), want[i]);
    EXPECT_EQ(view.compare_key(i, want[i]), 0);
    bool equal = false;
    EXPECT_EQ(view.lower_bound(want[i], &equal), i);
    EXPECT_TRUE(equal);
    EXPECT_EQ(view.value(i), leaf_value(want[i].c_str()[1], 5));
  }
  EXPECT_LT(view.compare_key(0, "ka"), 0);
  EXPECT_GT(view.compare_key(6, "ka"), 0);
  EXPECT_GT(view.compare_key(0, "a"), 0);
  EXPECT_GT(view.compare_key(0, ""), 0);
  EXPECT_LT(view.compare_key(0, "z"), 0);
}

// SL3: heads are zero padded, so keys that differ in trailing zero bytes have equal heads.
TEST(Slotted, TrailingZeroBytesDecideBehindEqualHeads) {
  PageBuffer page;
  init_unbounded(page.bytes);
  std::vector<std::string> keys;
  for (size_t zeros = 0; zeros < 7; ++zeros) keys.push_back(std::string(zeros, '\0'));
  for (size_t zeros = 0; zeros < 7; ++zeros) keys.push_back("a" + std::string(zeros, '\0'));
  for (size_t i = keys.size(); i-- > 0;) insert(page.bytes, keys[i], leaf_value('v', i));
  ASSERT_TRUE(validate_tree_page(page.bytes).ok());
  const TreePageView view(page.bytes);
  for (uint16_t i = 0; i < keys.size(); ++i) {
    bool equal = false;
    EXPECT_EQ(view.lower_bound(keys[i], &equal), i);
    EXPECT_TRUE(equal);
  }
}

TEST(Slotted, ChildSlotCoversTheKey) {
  PageBuffer page;
  init_unbounded(page.bytes, 1);
  const uint32_t children[] = {11, 12, 13};
  const char* keys[] = {"", "g", "p"};
  for (int i = 0; i < 3; ++i)
    insert(page.bytes, keys[i], Bytes(reinterpret_cast<const char*>(&children[i]), 4));
  const TreePageView view(page.bytes);
  EXPECT_EQ(view.child(view.child_slot("")), 11u);
  EXPECT_EQ(view.child(view.child_slot("fzz")), 11u);
  EXPECT_EQ(view.child(view.child_slot("g")), 12u);
  EXPECT_EQ(view.child(view.child_slot("p")), 13u);
  EXPECT_EQ(view.child(view.child_slot("zz")), 13u);
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
}

TEST(Slotted, HoldsTheLargestFencesAndTwoLargestRecords) {
  PageBuffer page;
  const std::string low(kMaxKeyBytes, 'a');
  const std::string high(kMaxKeyBytes, 'b');
  init_leaf(page.bytes, low, high);
  const std::string second = std::string(kMaxKeyBytes - 1, 'a') + "b";
  insert(page.bytes, low, leaf_value('1', kMaxRecordBytes - kMaxKeyBytes - kRecordHeaderBytes));
  insert(page.bytes, second, leaf_value('2', kMaxRecordBytes - kMaxKeyBytes - kRecordHeaderBytes));
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
  EXPECT_EQ(key_at(page.bytes, 1), second);
}

TEST(Slotted, FitsSaysExactlyWhatFits) {
  PageBuffer page;
  init_leaf(page.bytes, "a", "b");
  insert(page.bytes, "aa", leaf_value('x', 100));
  const TreePageView view(page.bytes);
  const uint32_t room = view.free_bytes() - view.bytes_needed("ab", 0);
  EXPECT_TRUE(view.fits_insert("ab", room));
  EXPECT_FALSE(view.fits_insert("ab", room + 1));
  const size_t largest = view.value(0).size() + view.free_bytes();
  EXPECT_TRUE(view.fits_replace(0, largest));
  EXPECT_FALSE(view.fits_replace(0, largest + 1));
  replace_value(page.bytes, 0, std::string(largest, 'y'));
  EXPECT_EQ(view.free_bytes(), 0u);
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
  EXPECT_EQ(view.value(0), std::string(largest, 'y'));
  replace_value(page.bytes, 0, leaf_value('z', 0));
  insert(page.bytes, "ab", leaf_value('w', room - kRecordHeaderBytes));
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
}

TEST(Slotted, CompactionReclaimsGarbage) {
  PageBuffer page;
  init_leaf(page.bytes, "a", "b");
  for (char c = 'a'; c <= 'o'; ++c) insert(page.bytes, std::string("a") + c, leaf_value(c, 900));
  for (uint16_t slot = 0; slot < 7; ++slot) erase_record(page.bytes, slot);  // every other one
  const TreePageView view(page.bytes);
  EXPECT_GT(view.header()->garbage_bytes, 0);
  const uint32_t free = view.free_bytes();
  compact(page.bytes);
  EXPECT_EQ(view.header()->garbage_bytes, 0);
  EXPECT_EQ(view.free_bytes(), free);
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
  EXPECT_EQ(key_at(page.bytes, 0), "ab");
}

TEST(Slotted, NormalisedPagesWithTheSameContentAreEqual) {
  PageBuffer a;
  PageBuffer b;
  init_leaf(a.bytes, "a", "b");
  init_leaf(b.bytes, "a", "b");
  for (char c = 'a'; c <= 'f'; ++c) insert(a.bytes, std::string("a") + c, leaf_value(c, 50));
  for (char c = 'f'; c >= 'a'; --c) insert(b.bytes, std::string("a") + c, leaf_value('?', 90));
  for (uint16_t i = 0; i < 6; ++i)
    replace_value(b.bytes, i, leaf_value(static_cast<char>('a' + i), 50));
  normalise_tree_page(a.bytes);
  normalise_tree_page(b.bytes);
  EXPECT_EQ(Bytes(a.bytes, kPageBytes), Bytes(b.bytes, kPageBytes));
}

TEST(Slotted, PatchChangesOnlyItsBytes) {
  PageBuffer page;
  init_leaf(page.bytes, "a", "b");
  insert(page.bytes, "ab", leaf_value('x', 10));
  patch_value(page.bytes, 0, kRecordCtsOffset, Bytes("12345678", 8));
  std::string want = leaf_value('x', 10);
  want.replace(kRecordCtsOffset, 8, "12345678");
  EXPECT_EQ(TreePageView(page.bytes).value(0), want);
}

TEST(Slotted, TruncateRightLengthensThePrefix) {
  PageBuffer page;
  init_leaf(page.bytes, "cust-", "cust-9");
  header_of(page.bytes)->llsn = 77;
  header_of(page.bytes)->extra = 5;
  for (const char* key : {"cust-", "cust-1", "cust-11", "cust-12", "cust-5"})
    insert(page.bytes, key, leaf_value(key[0], 3));
  erase_record(page.bytes, 0);
  truncate_right(page.bytes, 3, "cust-13", 44, kIncompleteSplit);
  const TreePageView view(page.bytes);
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
  EXPECT_EQ(view.slot_count(), 3);
  EXPECT_EQ(view.prefix(), "cust-");
  EXPECT_EQ(view.high_key(), "cust-13");
  EXPECT_EQ(view.header()->right_sibling, 44u);
  EXPECT_EQ(view.header()->flags, kIncompleteSplit);
  EXPECT_EQ(view.header()->llsn, 77u);
  EXPECT_EQ(view.header()->extra, 5u);
  EXPECT_EQ(key_at(page.bytes, 2), "cust-12");
}

TEST(Slotted, TruncateRightMayWidenThePage) {
  PageBuffer page;
  init_leaf(page.bytes, "abc1", "abc5");
  insert(page.bytes, "abc1", leaf_value('1', 3));
  insert(page.bytes, "abc44444", leaf_value('4', 3));
  ASSERT_EQ(TreePageView(page.bytes).prefix(), "abc");
  truncate_right(page.bytes, 2, "b", 9, 0);
  EXPECT_EQ(TreePageView(page.bytes).prefix(), "");
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
  EXPECT_EQ(key_at(page.bytes, 1), "abc44444");
  truncate_right(page.bytes, 2, "", kNoPage, kHighIsInfinity);
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
  EXPECT_TRUE(TreePageView(page.bytes).covers_right("zzz"));
}

TEST(Page, OneOfAnotherFormatIsRefused) {
  PageBuffer page;
  init_leaf(page.bytes, "a", "b");
  header_of(page.bytes)->format = kPageFormat - 1;
  seal_page(page.bytes);
  const Status refused = verify_page(page.bytes, page_id_of(page.bytes));
  EXPECT_TRUE(is_corruption(refused));
  EXPECT_NE(std::string(refused.message()).find("another version of the engine"),
            std::string::npos);
}

TEST(Record, HeaderRoundTrip) {
  const RecordHeader in{make_trx_id(NodeId{3}, 99), Cts{12}, make_undo_ptr(NodeId{3}, 5, 64),
                        kDeleted};
  std::string value;
  append_record_header(&value, in);
  EXPECT_EQ(value.size(), kRecordHeaderBytes);
  value += "pppp";
  const RecordHeader out = read_record_header(value);
  EXPECT_EQ(out.trx_id, in.trx_id);
  EXPECT_EQ(out.cts, in.cts);
  EXPECT_EQ(out.undo_ptr, in.undo_ptr);
  EXPECT_TRUE(out.deleted());
  EXPECT_EQ(record_payload(value), "pppp");
}

TEST(Record, ASettledHeaderTakesOneByte) {
  std::string value;
  append_record_header(&value, RecordHeader{});
  EXPECT_EQ(value.size(), kSettledHeaderBytes);
  EXPECT_TRUE(is_settled(value));
  EXPECT_TRUE(has_record_header(value));
  EXPECT_EQ(record_payload(value), "");
  value += "pppp";
  EXPECT_TRUE(read_record_header(value).trx_id.is_zero());
  EXPECT_FALSE(read_record_header(value).deleted());
  EXPECT_EQ(record_payload(value), "pppp");
  std::string deleted;  // all else being zero
  append_record_header(&deleted, RecordHeader{{}, {}, {}, kDeleted});
  EXPECT_EQ(deleted.size(), kRecordHeaderBytes);
  EXPECT_TRUE(read_record_header(deleted).deleted());
}

TEST(Record, WhatIsTooShortForAHeaderIsRefused) {
  EXPECT_FALSE(has_record_header(""));
  EXPECT_FALSE(has_record_header(std::string(kRecordHeaderBytes - 1, '\0')));
  PageBuffer page;
  init_leaf(page.bytes, "a", "b");
  insert(page.bytes, "ab", std::string(1, static_cast<char>(kSettled)));
  EXPECT_TRUE(validate_tree_page(page.bytes).ok());
  patch_value(page.bytes, 0, 0, Bytes("\0", 1));
  EXPECT_FALSE(validate_tree_page(page.bytes).ok());
}

}  // namespace
}  // namespace strata
