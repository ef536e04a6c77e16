#include "redo/redo.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "page/record.h"
#include "redo/gone_spaces.h"

namespace strata::redo {
namespace {

constexpr PageId kId{300, 7};

struct alignas(64) TestPage {
  char bytes[kPageBytes] = {};
  [[nodiscard]] TreePageView view() const { return TreePageView(bytes); }
  [[nodiscard]] std::string copy() const { return std::string(bytes, kPageBytes); }
};

std::string leaf_value(char fill, size_t payload_bytes = 4) {
  return std::string(kRecordHeaderBytes + payload_bytes, fill);
}

TreePageInit leaf_init() {
  return TreePageInit{.page_id = kId,
                      .index_id = IndexId{9},
                      .right_sibling = 8,
                      .flags = kIncompleteSplit,
                      .low_fence = "ka",
                      .high_key = "kz"};
}

void apply_good(TestPage* page, Bytes ops) {
  size_t consumed = 0;
  const Status status = apply_op(page->bytes, ops, &consumed);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(consumed, ops.size());
}

void expect_refused(TestPage* page, Bytes ops) {
  const std::string before = page->copy();
  size_t consumed = 0;
  EXPECT_TRUE(is_corruption(apply_op(page->bytes, ops, &consumed)));
  EXPECT_EQ(page->copy(), before);
}

// A leaf with ka, kc, ke.
TestPage three_records() {
  TestPage page;
  std::string ops;
  encode_init_tree(&ops, leaf_init());
  encode_insert(&ops, 0, "a", leaf_value('a'));
  encode_insert(&ops, 1, "c", leaf_value('c'));
  encode_insert(&ops, 2, "e", leaf_value('e'));
  EXPECT_TRUE(apply_ops(page.bytes, ops).ok());
  return page;
}

TestPage system_page() {
  TestPage page;
  std::string ops;
  encode_init_plain(&ops, kId, PageType::kSystem, IndexId{0}, 5);
  EXPECT_TRUE(apply_ops(page.bytes, ops).ok());
  return page;
}

std::string op_bytes(const std::function<void(std::string*)>& encode) {
  std::string ops;
  encode(&ops);
  return ops;
}

TEST(Op, InitTreeIgnoresOldBytes) {  // RD4
  TestPage clean;
  TestPage dirty;
  std::memset(dirty.bytes, 0x5a, kPageBytes);
  std::string ops;
  encode_init_tree(&ops, leaf_init());
  apply_good(&clean, ops);
  apply_good(&dirty, ops);
  EXPECT_EQ(clean.copy(), dirty.copy());
  TestPage direct;
  init_tree_page(direct.bytes, leaf_init());
  EXPECT_EQ(clean.copy(), direct.copy());
}

TEST(Op, InitPlain) {
  TestPage page = system_page();
  const PageHeader* h = header_of(page.bytes);
  EXPECT_EQ(h->type, static_cast<uint8_t>(PageType::kSystem));
  EXPECT_EQ(page_id_of(page.bytes), kId);
  EXPECT_EQ(h->extra, 5u);
  EXPECT_EQ(h->right_sibling, kNoPage);
}

TEST(Op, InsertEraseReplacePatch) {
  TestPage page = three_records();
  std::string ops;
  encode_insert(&ops, 1, "b", leaf_value('b', 9));
  encode_erase(&ops, 0);
  encode_replace(&ops, 1, leaf_value('C', 100));
  encode_patch(&ops, 2, kRecordHeaderBytes, "xy");
  ASSERT_TRUE(apply_ops(page.bytes, ops).ok());
  ASSERT_TRUE(validate_tree_page(page.bytes).ok());
  ASSERT_EQ(page.view().slot_count(), 3);
  std::string key;
  page.view().copy_key(0, &key);
  EXPECT_EQ(key, "kb");
  EXPECT_EQ(page.view().value(0), leaf_value('b', 9));
  EXPECT_EQ(page.view().value(1), leaf_value('C', 100));
  EXPECT_EQ(record_payload(page.view().value(2)), "xyee");
}

TEST(Op, TruncateRightSetFlagsSetRight) {
  TestPage page = three_records();
  apply_good(&page, op_bytes([](std::string* o) { encode_truncate_right(o, 2, "kd", 55, 0); }));
  EXPECT_EQ(page.view().slot_count(), 2);
  EXPECT_EQ(page.view().high_key(), "kd");
  EXPECT_EQ(page.view().header()->right_sibling, 55u);
  apply_good(&page, op_bytes([](std::string* o) { encode_set_flags(o, kUnlinked); }));
  EXPECT_TRUE(page.view().has_flag(kUnlinked));
  apply_good(&page, op_bytes([](std::string* o) { encode_set_right(o, kNoPage); }));
  EXPECT_EQ(page.view().header()->right_sibling, kNoPage);
}

TEST(Op, WriteOnPlainPages) {
  TestPage page = system_page();
  apply_good(&page, op_bytes([](std::string* o) { encode_write(o, 56, "12345678abc"); }));
  EXPECT_EQ(header_of(page.bytes)->extra, load_u64("12345678"));
  EXPECT_EQ(Bytes(page.bytes + 64, 3), "abc");
  apply_good(&page, op_bytes([](std::string* o) { encode_write(o, kPageBytes - 1, "z"); }));
  expect_refused(&page, op_bytes([](std::string* o) { encode_write(o, kPageBytes - 1, "zz"); }));
  expect_refused(&page, op_bytes([](std::string* o) { encode_write(o, 55, "z"); }));
  TestPage tree = three_records();
  expect_refused(&tree, op_bytes([](std::string* o) { encode_write(o, 200, "z"); }));
}

TEST(Op, PendingDeletesAreASet) {
  TestPage page = system_page();
  const auto add = [&](uint32_t s) {
    apply_good(&page, op_bytes([s](std::string* o) { encode_pending_delete_add(o, SpaceId{s}); }));
  };
  const auto remove = [&](uint32_t s) {
    apply_good(&page,
               op_bytes([s](std::string* o) { encode_pending_delete_remove(o, SpaceId{s}); }));
  };
  const std::string empty = page.copy();
  add(300);
  add(301);
  add(300);
  add(302);
  remove(300);
  remove(999);
  EXPECT_EQ(read_pending_deletes(page.bytes), (std::vector<SpaceId>{SpaceId{302}, SpaceId{301}}));
  remove(301);
  remove(302);
  EXPECT_EQ(page.copy(), empty);
  for (uint32_t i = 0; i < kPendingDeletesMax; ++i) add(1000 + i);
  add(1000);
  expect_refused(&page, op_bytes([](std::string* o) { encode_pending_delete_add(o, SpaceId{5}); }));
}

TEST(Op, ImageIsExactButForTheChecksum) {
  TestPage page = three_records();
  header_of(page.bytes)->llsn = 0x1234;
  seal_page(page.bytes);
  std::string ops;
  encode_image(&ops, page.bytes);
  EXPECT_LT(ops.size(), 400u);  // holes are left out
  TestPage copy;
  std::memset(copy.bytes, 0x77, kPageBytes);
  apply_good(&copy, ops);
  EXPECT_EQ(copy.copy().substr(4), page.copy().substr(4));
  EXPECT_EQ(header_of(copy.bytes)->crc32c, 0u);
}

TEST(Op, ImageOfAFullPage) {
  TestPage page = system_page();
  Rng rng(1);
  for (uint32_t at = kPageHeaderBytes; at < kPageBytes; ++at)
    page.bytes[at] = static_cast<char>(rng.next() | 1);
  std::string ops;
  encode_image(&ops, page.bytes);
  EXPECT_LE(ops.size(), kPageBytes + 16);
  TestPage copy;
  apply_good(&copy, ops);
  EXPECT_EQ(copy.copy().substr(4), page.copy().substr(4));
}

TEST(Op, ImageOfAnInvalidTreePageIsRefused) {
  TestPage bad = three_records();
  header_of(bad.bytes)->slot_count = 200;
  TestPage page = three_records();
  expect_refused(&page, op_bytes([&](std::string* o) { encode_image(o, bad.bytes); }));
  const TestPage zero;
  expect_refused(&page, op_bytes([&](std::string* o) { encode_image(o, zero.bytes); }));
}

TEST(Op, APatchLeavesAHeader) {
  const std::string settled(1, static_cast<char>(kSettled));
  TestPage page = three_records();
  apply_good(&page, op_bytes([&](std::string* o) { encode_replace(o, 0, settled + "xxxxx"); }));
  expect_refused(&page, op_bytes([](std::string* o) { encode_patch(o, 0, 0, Bytes("\0", 1)); }));
  apply_good(&page, op_bytes([](std::string* o) { encode_patch(o, 0, 1, "yy"); }));
  EXPECT_EQ(record_payload(page.view().value(0)), "yyxxx");
  // A value long enough for either may change from one to the other.
  apply_good(&page, op_bytes([&](std::string* o) { encode_patch(o, 1, 0, settled); }));
  EXPECT_TRUE(is_settled(page.view().value(1)));
}

TEST(Op, WhatDoesNotFitIsRefused) {  // RD2
  TestPage page = three_records();
  const auto refused = [&](const std::function<void(std::string*)>& encode) {
    expect_refused(&page, op_bytes(encode));
  };
  refused([](std::string* o) { encode_insert(o, 4, "x", leaf_value('x')); });  // slot
  refused([](std::string* o) { encode_insert(o, 1, "a", leaf_value('x')); });  // duplicate
  refused([](std::string* o) { encode_insert(o, 2, "b", leaf_value('x')); });  // order
  refused([](std::string* o) { encode_insert(o, 0, "", leaf_value('x')); });   // low fence
  refused([](std::string* o) { encode_insert(o, 3, "z", leaf_value('x')); });  // high key
  refused([](std::string* o) { encode_insert(o, 1, "b", "short"); });          // no header
  refused([](std::string* o) { encode_insert(o, 1, "b", leaf_value('x', 16300)); });
  refused([](std::string* o) { encode_erase(o, 3); });
  refused([](std::string* o) { encode_replace(o, 3, leaf_value('x')); });
  refused([](std::string* o) { encode_replace(o, 0, ""); });
  refused([](std::string* o) { encode_replace(o, 0, leaf_value('x', 16300)); });
  refused([](std::string* o) { encode_patch(o, 3, 0, "x"); });
  refused([](std::string* o) { encode_patch(o, 0, kRecordHeaderBytes + 4, "x"); });
  refused([](std::string* o) { encode_truncate_right(o, 4, "kf", 1, 0); });
  refused([](std::string* o) { encode_truncate_right(o, 2, "kc", 1, 0); });  // last key == high
  refused([](std::string* o) { encode_truncate_right(o, 0, "ka", 1, 0); });  // low == high
  refused([](std::string* o) { encode_set_flags(o, kHighIsInfinity); });
  refused([](std::string* o) { encode_pending_delete_add(o, SpaceId{1}); });
  TreePageInit init = leaf_init();
  init.high_key = "k";
  refused([&](std::string* o) { encode_init_tree(o, init); });
  const std::string long_key(kMaxKeyBytes + 1, 'z');
  init.high_key = long_key;
  refused([&](std::string* o) { encode_init_tree(o, init); });
  refused([](std::string* o) { encode_init_plain(o, kId, PageType::kTree, IndexId{1}, 0); });
  refused([](std::string* o) { encode_init_plain(o, kId, PageType{200}, IndexId{1}, 0); });
  expect_refused(&page, "");
  expect_refused(&page, "\xee");
  TestPage absent;
  expect_refused(&absent,
                 op_bytes([](std::string* o) { encode_insert(o, 0, "a", leaf_value('a')); }));
  expect_refused(&absent, op_bytes([](std::string* o) { encode_set_right(o, 1); }));
}

TEST(Op, CutOpsAreRefused) {
  TestPage page = three_records();
  const std::vector<std::string> ops = {
      op_bytes([](std::string* o) { encode_init_tree(o, leaf_init()); }),
      op_bytes([&](std::string* o) { encode_image(o, page.bytes); }),
      op_bytes([](std::string* o) { encode_insert(o, 1, "b", leaf_value('b')); }),
      op_bytes([](std::string* o) { encode_erase(o, 1); }),
      op_bytes([](std::string* o) { encode_replace(o, 1, leaf_value('b')); }),
      op_bytes([](std::string* o) { encode_truncate_right(o, 1, "kc", 1, 0); }),
      op_bytes([](std::string* o) { encode_set_right(o, 1); })};
  for (const std::string& op : ops)
    for (size_t n = 0; n < op.size(); ++n) expect_refused(&page, Bytes(op).substr(0, n));
}

TEST(ValueChange, TakesTheSmallestEncoding) {
  TestPage page = three_records();
  const auto change = [&](const std::string& after) {
    std::string ops;
    encode_value_change(&ops, 1, page.view().value(1), after);
    EXPECT_TRUE(apply_ops(page.bytes, ops).ok());
    EXPECT_EQ(page.view().value(1), after);
    return ops.size();
  };
  EXPECT_EQ(change(leaf_value('c')), 0u);  // nothing changed
  EXPECT_EQ(change(leaf_value('d', 200)), 5u + kRecordHeaderBytes + 200);
  std::string after = leaf_value('d', 200);
  after[0] = 'x';
  after[180] = 'y';
  after[183] = 'z';
  EXPECT_EQ(change(after), 7u + 1 + 7 + 4);
  for (size_t i = 0; i < after.size(); i += 9) after[i] = 'q';  // more places than patches
  EXPECT_LE(change(after), 5u + after.size());
}

std::string make_section(PageId id, uint64_t prev_llsn, Bytes ops) {
  std::string s;
  append_u32(&s, id.space);
  append_u32(&s, id.number);
  append_u64(&s, prev_llsn);
  append_bytes32(&s, ops);
  return s;
}

std::string make_group(uint64_t lsn, uint64_t llsn, const std::vector<std::string>& sections) {
  GroupHeader h = {};
  h.magic = kGroupMagic;
  h.lsn = lsn;
  h.llsn = llsn;
  h.node = 1;
  h.section_count = static_cast<uint16_t>(sections.size());
  std::string group(reinterpret_cast<const char*>(&h), sizeof(h));
  for (const std::string& s : sections) group += s;
  group.resize((group.size() + 7) / 8 * 8);
  store_u32(group.data() + 4, static_cast<uint32_t>(group.size()));
  seal_group(group.data());
  return group;
}

TEST(Section, ChainRule) {  // RD3
  TestPage page = three_records();
  header_of(page.bytes)->llsn = 100;
  const std::string ops = op_bytes([](std::string* o) { encode_erase(o, 0); });
  const SectionView section{kId, Llsn{100}, ops};
  const SectionView later{kId, Llsn{150}, ops};
  EXPECT_EQ(*apply_section(page.bytes, Llsn{200}, later), Applied::kGap);
  EXPECT_EQ(*apply_section(page.bytes, Llsn{150}, section), Applied::kApplied);
  EXPECT_EQ(header_of(page.bytes)->llsn, 150u);
  EXPECT_EQ(page.view().slot_count(), 2);
  EXPECT_EQ(*apply_section(page.bytes, Llsn{150}, section), Applied::kAlreadyThere);
  EXPECT_EQ(page.view().slot_count(), 2);
  EXPECT_EQ(*apply_section(page.bytes, Llsn{200}, later), Applied::kApplied);
  EXPECT_EQ(page.view().slot_count(), 1);
}

TEST(Section, RestartIgnoresTheChain) {  // RD4
  TestPage page = three_records();
  header_of(page.bytes)->llsn = 100;
  const std::string ops = op_bytes([](std::string* o) { encode_init_tree(o, leaf_init()); });
  const SectionView section{kId, Llsn{4711}, ops};
  EXPECT_TRUE(section.restarts_chain());
  EXPECT_EQ(*apply_section(page.bytes, Llsn{90}, section), Applied::kAlreadyThere);
  EXPECT_EQ(*apply_section(page.bytes, Llsn{5000}, section), Applied::kApplied);
  EXPECT_EQ(page.view().slot_count(), 0);
  EXPECT_EQ(header_of(page.bytes)->llsn, 5000u);
}

TEST(Section, IsAllOrNothing) {  // RD2
  TestPage page = three_records();
  header_of(page.bytes)->llsn = 100;
  const std::string before = page.copy();
  std::string ops;
  encode_erase(&ops, 0);
  encode_erase(&ops, 0);
  encode_erase(&ops, 7);
  EXPECT_TRUE(is_corruption(
      apply_section(page.bytes, Llsn{150}, SectionView{kId, Llsn{100}, ops}).status()));
  EXPECT_EQ(page.copy(), before);
  ops.clear();
  encode_erase(&ops, 0);
  ops.push_back('\x63');
  EXPECT_TRUE(is_corruption(
      apply_section(page.bytes, Llsn{150}, SectionView{kId, Llsn{100}, ops}).status()));
  EXPECT_EQ(page.copy(), before);
}

TEST(Section, ForAnotherPageIsRefused) {
  TestPage page;
  std::string ops;
  encode_init_tree(&ops, leaf_init());
  const SectionView section{PageId{300, 8}, Llsn{0}, ops};
  EXPECT_TRUE(is_corruption(apply_section(page.bytes, Llsn{9}, section).status()));
  EXPECT_TRUE(page_is_all_zero(page.bytes));
}

TEST(Section, DroppedSpacesAreFound) {
  TestPage system = system_page();
  std::string ops;
  encode_pending_delete_add(&ops, SpaceId{400});
  encode_pending_delete_remove(&ops, SpaceId{401});
  encode_pending_delete_add(&ops, SpaceId{402});
  ASSERT_TRUE(apply_ops(system.bytes, ops).ok());
  std::vector<SpaceId> found;
  const auto collect = [&](SpaceId s) { found.push_back(s); };
  for_each_dropped_space(SectionView{kId, Llsn{0}, ops}, collect);
  EXPECT_EQ(found, (std::vector<SpaceId>{SpaceId{400}, SpaceId{402}}));
  found.clear();
  for_each_gone_space(SectionView{kId, Llsn{0}, ops}, collect);
  EXPECT_EQ(found, (std::vector<SpaceId>{SpaceId{400}, SpaceId{402}, SpaceId{401}}));
  found.clear();
  ops.clear();
  encode_image(&ops, system.bytes);  // a full-page image takes the place of the ops
  for_each_dropped_space(SectionView{kId, Llsn{0}, ops}, collect);
  EXPECT_EQ(found, (std::vector<SpaceId>{SpaceId{400}, SpaceId{402}}));
}

std::string two_section_group(uint64_t lsn) {
  std::string ops;
  encode_init_tree(&ops, leaf_init());
  std::string more;
  encode_set_right(&more, 3);
  return make_group(lsn, lsn + 500,
                    {make_section(kId, 0, ops), make_section(PageId{300, 9}, 77, more)});
}

TEST(Group, RoundTrip) {
  const std::string bytes = two_section_group(4096) + "what follows";
  size_t need = 0;
  const StatusOr<GroupView> group = parse_group(bytes, Lsn{4096}, &need);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(need, bytes.size() - 12);
  EXPECT_EQ(group->header.llsn, 4596u);
  std::vector<PageId> pages;
  std::vector<uint64_t> prev;
  ASSERT_TRUE(for_each_section(*group, [&](const SectionView& s) {
                pages.push_back(s.page_id);
                prev.push_back(s.prev_llsn.value);
                return ok_status();
              }).ok());
  EXPECT_EQ(pages, (std::vector<PageId>{kId, PageId{300, 9}}));
  EXPECT_EQ(prev, (std::vector<uint64_t>{0, 77}));
  EXPECT_TRUE(
      is_fenced(for_each_section(*group, [](const SectionView&) { return error_fenced(); })));
}

TEST(Group, ASectionCanBeReadByItself) {
  const std::string bytes = two_section_group(4096);
  const StatusOr<GroupView> group = parse_group(bytes, Lsn{4096}, nullptr);
  ASSERT_TRUE(group.ok());
  ASSERT_TRUE(for_each_section(*group, [](const SectionView& section) {
                const char* const begin = section.ops.data() - kSectionHeaderBytes;
                const size_t length = kSectionHeaderBytes + section.ops.size();
                const StatusOr<SectionView> alone = parse_section({begin, length});
                EXPECT_TRUE(alone.ok());
                EXPECT_EQ(alone->page_id, section.page_id);
                EXPECT_EQ(alone->prev_llsn, section.prev_llsn);
                EXPECT_EQ(alone->ops, section.ops);
                EXPECT_TRUE(is_corruption(parse_section({begin, length - 1}).status()));
                EXPECT_TRUE(is_corruption(parse_section({begin, length + 1}).status()));
                EXPECT_TRUE(is_corruption(parse_section({begin, 3}).status()));
                return ok_status();
              }).ok());
}

TEST(Group, ShortInputAsksForMore) {
  const std::string bytes = two_section_group(4096);
  for (size_t n = 0; n < bytes.size(); ++n) {
    size_t need = 0;
    const auto group = parse_group(Bytes(bytes).substr(0, n), Lsn{4096}, &need);
    ASSERT_TRUE(is_out_of_range(group.status()));
    ASSERT_EQ(need, n < sizeof(GroupHeader) ? sizeof(GroupHeader) : bytes.size());
  }
}

TEST(Group, StaleGroupOfARecycledSegmentIsRefused) {
  const std::string bytes = two_section_group(4096);
  size_t need = 0;
  EXPECT_TRUE(is_corruption(parse_group(bytes, Lsn{8192}, &need).status()));
}

TEST(Group, EveryFlippedBitIsFound) {
  const std::string good = two_section_group(4096);
  std::string bytes = good;
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    size_t need = 0;
    const Status status = parse_group(bytes, Lsn{4096}, &need).status();
    // A larger length may ask for more bytes; that is the caller's torn tail.
    ASSERT_TRUE(is_corruption(status) || (is_out_of_range(status) && bit / 32 == 1)) << bit;
    bytes[bit / 8] = good[bit / 8];
  }
}

TEST(Group, TheHeaderIsProvenByItself) {
  const std::string good = two_section_group(4096);
  const auto whole = [](const std::string& bytes) {
    GroupHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    return header_is_whole(header);
  };
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    const bool expected = bit / 8 >= sizeof(GroupHeader) || bit / 32 == 2;  // 2: crc32c
    ASSERT_EQ(whole(bytes), expected) << bit;
  }
  EXPECT_FALSE(whole(std::string(sizeof(GroupHeader), '\0')));
}

TEST(Group, TornGroupIsRefused) {
  const std::string good = two_section_group(4096);
  for (size_t keep = 0; keep < good.size(); ++keep) {
    std::string torn = good;
    std::fill(torn.begin() + static_cast<long>(keep), torn.end(), '\0');
    if (torn == good) continue;  // only padding was lost
    size_t need = 0;
    ASSERT_TRUE(is_corruption(parse_group(torn, Lsn{4096}, &need).status())) << keep;
  }
}

TEST(Group, LimitsAreEnforced) {
  std::string bytes = two_section_group(4096);
  size_t need = 0;
  for (const uint32_t length : {0u, 8u, 36u, 44u, kGroupBytesMax + 8, 0xfffffff8u}) {
    store_u32(bytes.data() + 4, length);
    EXPECT_TRUE(is_corruption(parse_group(bytes, Lsn{4096}, &need).status())) << length;
  }
}

TEST(Group, WrongFramingUnderAGoodChecksumIsRefused) {
  std::string bytes = two_section_group(4096);
  size_t need = 0;
  for (const uint16_t count : {0, 1, 3, 65535}) {
    store_u16(bytes.data() + 34, count);
    seal_group(bytes.data());
    EXPECT_TRUE(is_corruption(parse_group(bytes, Lsn{4096}, &need).status())) << count;
  }
  bytes = two_section_group(4096);
  store_u32(bytes.data() + 40 + 16, 0xfffffff0u);  // ops_bytes of the first section
  seal_group(bytes.data());
  EXPECT_TRUE(is_corruption(parse_group(bytes, Lsn{4096}, &need).status()));
  EXPECT_TRUE(parse_group(make_group(8, 9, {}), Lsn{8}, &need).ok());  // empty is whole
}

}  // namespace
}  // namespace strata::redo
