// Redo: what is written to the log and how it changes a page. Pure over page bytes; linked by
// compute and by storage nodes alike.
//
// Group (one mini-transaction, K7):
//   magic u16 | flags u16 | length u32 | crc32c u32 | durable_delta u32 | lsn u64 | llsn u64 |
//   node u8, pad u8, section_count u16, header_crc32c u32 | sections ... (padded with zero to
//   8 bytes)
//   section: space u32 | number u32 | prev_llsn u64 | ops_bytes u32 | ops
// length counts the whole group, a multiple of 8. crc32c covers the whole group except itself,
// header_crc32c the header except both: a torn group whose header is whole is known by it. lsn
// is the group's own start offset, so stale bytes of a recycled segment never parse. durable_delta
// = lsn - durable lsn when the group was reserved (saturating): says up to where the log must be
// intact, which tells a torn tail from corruption in the middle.
//
//   RD1  Changes go through encode + apply_op: compute applies the very bytes it logs.
//   RD2  apply_section is all or nothing for a page: it validates before it changes.
//   RD3  Chain rule (K8): page.llsn == prev_llsn applies; page.llsn >= llsn skips; else gap.
//   RD4  A section that starts with kInit, kImage or kInitPlain restarts the chain and ignores old
//        bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "page/page.h"
#include "page/slotted.h"

namespace strata::redo {

// Op kinds are listed in redo/kinds.def: STRATA_REDO_KIND(name, number, "doc"). Append only.
enum class Kind : uint8_t {
#define STRATA_REDO_KIND(name, number, doc) name = number,
#include "redo/kinds.def"
#undef STRATA_REDO_KIND
};

struct GroupHeader {
  uint16_t magic;
  uint16_t flags;
  uint32_t length;
  uint32_t crc32c;
  uint32_t durable_delta;
  uint64_t lsn;
  uint64_t llsn;
  uint8_t node;
  uint8_t pad;
  uint16_t section_count;
  uint32_t header_crc32c;
};
static_assert(sizeof(GroupHeader) == 40);
constexpr uint16_t kGroupMagic = 0x5347;  // "GS"
constexpr uint32_t kGroupBytesMax = 4u << 20;
constexpr uint32_t kSectionHeaderBytes = 20;
constexpr uint32_t kFirstWritableByte = 56;  // PageHeader::extra; kWrite changes nothing before it
// The pending-delete list of a kSystem page: u32 count at offset 64, then the space ids.
constexpr uint32_t kPendingDeletesOffset = kPageHeaderBytes;
constexpr uint32_t kPendingDeletesMax = (kPageBytes - kPendingDeletesOffset - 4) / 4;

// --- encoders: append one op to *ops (no allocation once the string has grown) ---
void encode_init_tree(std::string* ops, const TreePageInit& init);
// Any non-tree page: zeroes the body, sets type, identity, index id and extra.
void encode_init_plain(std::string* ops, PageId id, PageType type, IndexId index_id,
                       uint64_t extra);
// Full page as it stands (the caller has normalised it). Holes of zero bytes are left out.
void encode_image(std::string* ops, const char* page);
void encode_insert(std::string* ops, uint16_t slot, Bytes suffix, Bytes value);
void encode_erase(std::string* ops, uint16_t slot);
void encode_replace(std::string* ops, uint16_t slot, Bytes value);
void encode_patch(std::string* ops, uint16_t slot, uint16_t offset, Bytes bytes);
// Value changes from `before` to `after`: logs only what differs when that is smaller than a
// replace.
void encode_value_change(std::string* ops, uint16_t slot, Bytes before, Bytes after);
void encode_truncate_right(std::string* ops, uint16_t keep, Bytes high_key, uint32_t right_sibling,
                           uint16_t flags);
void encode_set_flags(std::string* ops,
                      uint16_t flags);  // tree: kHighIsInfinity must stay as it is
void encode_write(std::string* ops, uint16_t offset, Bytes bytes);  // raw body bytes, offset >= 56
void encode_set_right(std::string* ops, uint32_t right_sibling);
// System page: the list of spaces whose files are to be deleted. A set: adding twice changes
// nothing.
void encode_pending_delete_add(std::string* ops, SpaceId space);
void encode_pending_delete_remove(std::string* ops, SpaceId space);

// --- apply ---
// The ops are untrusted; the page is not: a tree page has passed validate_tree_page(), and is valid
// again afterwards. Applies one op (starting at ops[0]) to the page; *consumed = its length.
// kDataLoss if it does not parse or does not fit the page; the page is unchanged then.
Status apply_op(char* page, Bytes ops, size_t* consumed);
// All ops in sequence (no llsn handling). Used by compute on its own bytes. Stops at the first bad
// op; earlier ones stay applied.
Status apply_ops(char* page, Bytes ops);

struct SectionView {
  PageId page_id;
  Llsn prev_llsn;
  Bytes ops;
  [[nodiscard]] bool restarts_chain() const noexcept;  // first op is an init or an image (RD4)
};

enum class Applied { kApplied, kAlreadyThere, kGap };
// Applies a section by the chain rule and sets page.llsn. On kDataLoss the page is left unchanged.
// A page that was never written or did not verify is handed in as zeroes.
StatusOr<Applied> apply_section(char* page, Llsn llsn, const SectionView& section);

// --- groups ---
struct GroupView {
  GroupHeader header;
  Bytes body;  // sections
};
// Parses the group at the start of `bytes`, whose stream offset is `expected_lsn`.
// kOutOfRange: not enough bytes (need *need). kDataLoss: not a valid group here.
StatusOr<GroupView> parse_group(Bytes bytes, Lsn expected_lsn, size_t* need);
// Calls visit for each section; stops at the first error.
Status for_each_section(const GroupView& group,
                        const std::function<Status(const SectionView&)>& visit);
// A section by itself, header and operations and nothing behind them, as it stood in a group.
// kDataLoss: it is not one.
StatusOr<SectionView> parse_section(Bytes bytes);
// Whether the header came from seal_group() as it is, whatever became of the rest of the group.
[[nodiscard]] bool header_is_whole(const GroupHeader& header) noexcept;
// Fills in both checksums of a group that lies complete in memory.
void seal_group(char* group) noexcept;
// Calls visit(space) for each pending_delete_add op in the section, and for each space listed by an
// image of the system page, which may stand for such ops (recovery collects drops first).
void for_each_dropped_space(const SectionView& section, const std::function<void(SpaceId)>& visit);

std::vector<SpaceId> read_pending_deletes(const char* page);

}  // namespace strata::redo
