// Grammar of the ops (little endian, no padding), encoders and parser side by side:
//   kInit                space u32 | number u32 | index u32 | level u8 | right u32 | flags u16 |
//                        low bytes u16 | high bytes u16 | low | high
//   kInitPlain           space u32 | number u32 | type u8 | index u32 | extra u64
//   kImage               run count u16 | runs: offset u16, bytes u16, bytes
//   kInsert              slot u16 | suffix bytes u16 | value bytes u16 | suffix | value
//   kErase               slot u16
//   kReplace             slot u16 | value bytes u16 | value
//   kPatch               slot u16 | offset u16 | bytes u16 | bytes
//   kTruncateRight       keep u16 | right u32 | flags u16 | high bytes u16 | high
//   kSetFlags            flags u16
//   kWrite               offset u16 | bytes u16 | bytes
//   kSetRight            right u32
//   kPendingDelete*      space u32
#include "base/assert.h"
#include "redo/internal/op.h"
#include "redo/redo.h"

namespace strata::redo {
namespace {

constexpr size_t kReplaceOverhead = 5;
constexpr size_t kPatchOverhead = 7;
constexpr size_t kPatchesMax = 4;

void append_kind(std::string* ops, Kind kind) { append_u8(ops, static_cast<uint8_t>(kind)); }
void append_length(std::string* ops, Bytes b) {
  STRATA_ASSERT(b.size() < kPageBytes);
  append_u16(ops, static_cast<uint16_t>(b.size()));
}

}  // namespace

void encode_init_tree(std::string* ops, const TreePageInit& init) {
  const Bytes high = (init.flags & kHighIsInfinity) != 0 ? Bytes() : init.high_key;
  append_kind(ops, Kind::kInit);
  append_u32(ops, init.page_id.space);
  append_u32(ops, init.page_id.number);
  append_u32(ops, init.index_id.value);
  append_u8(ops, init.level);
  append_u32(ops, init.right_sibling);
  append_u16(ops, init.flags);
  append_length(ops, init.low_fence);
  append_length(ops, high);
  ops->append(init.low_fence).append(high);
}

void encode_init_plain(std::string* ops, PageId id, PageType type, IndexId index_id,
                       uint64_t extra) {
  append_kind(ops, Kind::kInitPlain);
  append_u32(ops, id.space);
  append_u32(ops, id.number);
  append_u8(ops, static_cast<uint8_t>(type));
  append_u32(ops, index_id.value);
  append_u64(ops, extra);
}

// Runs are found in words of 8 bytes; a hole is worth a new run from two words on.
void encode_image(std::string* ops, const char* page) {
  constexpr uint32_t kWords = kPageBytes / 8;
  const auto word =
      [page](uint32_t i) {  // without the checksum, which means nothing in memory (PG2)
        const uint64_t w = load_u64(page + 8 * i);
        return i == 0 ? w >> 32 : w;
      };
  append_kind(ops, Kind::kImage);
  const size_t count_at = ops->size();
  append_u16(ops, 0);
  uint16_t runs = 0;
  for (uint32_t i = 0; i < kWords;) {
    if (word(i) == 0) {
      ++i;
      continue;
    }
    uint32_t end = i + 1;  // grows over single zero words
    while (end < kWords && (word(end) != 0 || (end + 1 < kWords && word(end + 1) != 0))) ++end;
    append_u16(ops, static_cast<uint16_t>(8 * i));
    append_u16(ops, static_cast<uint16_t>(8 * (end - i)));
    const size_t data_at = ops->size();
    ops->append(page + 8 * i, 8 * (end - i));
    if (i == 0) store_u32(ops->data() + data_at, 0);
    ++runs;
    i = end;
  }
  store_u16(ops->data() + count_at, runs);
}

void encode_insert(std::string* ops, uint16_t slot, Bytes suffix, Bytes value) {
  append_kind(ops, Kind::kInsert);
  append_u16(ops, slot);
  append_length(ops, suffix);
  append_length(ops, value);
  ops->append(suffix).append(value);
}

void encode_erase(std::string* ops, uint16_t slot) {
  append_kind(ops, Kind::kErase);
  append_u16(ops, slot);
}

void encode_replace(std::string* ops, uint16_t slot, Bytes value) {
  append_kind(ops, Kind::kReplace);
  append_u16(ops, slot);
  append_length(ops, value);
  ops->append(value);
}

void encode_patch(std::string* ops, uint16_t slot, uint16_t offset, Bytes bytes) {
  append_kind(ops, Kind::kPatch);
  append_u16(ops, slot);
  append_u16(ops, offset);
  append_length(ops, bytes);
  ops->append(bytes);
}

// An update usually changes the record header and one or two columns: a few patches, joined where
// the equal bytes between them are fewer than another patch costs.
void encode_value_change(std::string* ops, uint16_t slot, Bytes before, Bytes after) {
  if (before.size() != after.size()) return encode_replace(ops, slot, after);
  struct Range {
    size_t begin, end;
  } ranges[kPatchesMax];
  size_t count = 0;
  size_t cost = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    while (i + 8 <= after.size() && load_u64(before.data() + i) == load_u64(after.data() + i))
      i += 8;
    if (i == after.size() || before[i] == after[i]) continue;
    if (count > 0 && i - ranges[count - 1].end <= kPatchOverhead) {
      ranges[count - 1].end = i + 1;
    } else if (count < kPatchesMax) {
      ranges[count++] = Range{i, i + 1};
    } else {
      ranges[count - 1].end = i + 1;
    }
  }
  for (size_t i = 0; i < count; ++i) cost += kPatchOverhead + ranges[i].end - ranges[i].begin;
  if (cost >= kReplaceOverhead + after.size()) return encode_replace(ops, slot, after);
  for (size_t i = 0; i < count; ++i)
    encode_patch(ops, slot, static_cast<uint16_t>(ranges[i].begin),
                 after.substr(ranges[i].begin, ranges[i].end - ranges[i].begin));
}

void encode_truncate_right(std::string* ops, uint16_t keep, Bytes high_key, uint32_t right_sibling,
                           uint16_t flags) {
  const Bytes high = (flags & kHighIsInfinity) != 0 ? Bytes() : high_key;
  append_kind(ops, Kind::kTruncateRight);
  append_u16(ops, keep);
  append_u32(ops, right_sibling);
  append_u16(ops, flags);
  append_length(ops, high);
  ops->append(high);
}

void encode_set_flags(std::string* ops, uint16_t flags) {
  append_kind(ops, Kind::kSetFlags);
  append_u16(ops, flags);
}

void encode_write(std::string* ops, uint16_t offset, Bytes bytes) {
  append_kind(ops, Kind::kWrite);
  append_u16(ops, offset);
  append_length(ops, bytes);
  ops->append(bytes);
}

void encode_set_right(std::string* ops, uint32_t right_sibling) {
  append_kind(ops, Kind::kSetRight);
  append_u32(ops, right_sibling);
}

void encode_pending_delete_add(std::string* ops, SpaceId space) {
  append_kind(ops, Kind::kPendingDeleteAdd);
  append_u32(ops, space.value);
}

void encode_pending_delete_remove(std::string* ops, SpaceId space) {
  append_kind(ops, Kind::kPendingDeleteRemove);
  append_u32(ops, space.value);
}

namespace {

bool parse_runs(ByteReader* in, Bytes ops, Op* op) noexcept {
  op->run_count = in->u16();
  const size_t begin = ops.size() - in->remaining();
  uint32_t free_from = 0;  // runs ascend and do not touch the byte before
  for (uint32_t i = 0; i < op->run_count && in->ok(); ++i) {
    const uint32_t offset = in->u16();
    const uint32_t bytes = in->u16();
    in->bytes(bytes);
    if (offset < free_from || offset + bytes > kPageBytes) return false;
    free_from = offset + bytes;
  }
  if (!in->ok()) return false;
  op->bytes = ops.substr(begin, ops.size() - in->remaining() - begin);
  return true;
}

void parse_init(ByteReader* in, Op* op) noexcept {
  op->page_id.space = in->u32();
  op->page_id.number = in->u32();
  op->index_id = IndexId{in->u32()};
  op->level = in->u8();
  op->number = in->u32();
  op->flags = in->u16();
  const uint16_t low_bytes = in->u16();
  const uint16_t high_bytes = in->u16();
  op->key = in->bytes(low_bytes);
  op->key2 = in->bytes(high_bytes);
}

void parse_init_plain(ByteReader* in, Op* op) noexcept {
  op->page_id.space = in->u32();
  op->page_id.number = in->u32();
  op->type = static_cast<PageType>(in->u8());
  op->index_id = IndexId{in->u32()};
  op->extra = in->u64();
}

bool parse_fields(ByteReader* in, Bytes ops, Op* op) noexcept {
  uint16_t length = 0;
  switch (op->kind) {
    case Kind::kInit:
      parse_init(in, op);
      return true;
    case Kind::kInitPlain:
      parse_init_plain(in, op);
      return true;
    case Kind::kImage:
      return parse_runs(in, ops, op);
    case Kind::kInsert: {
      op->slot = in->u16();
      const uint16_t suffix_bytes = in->u16();
      length = in->u16();
      op->key = in->bytes(suffix_bytes);
      op->bytes = in->bytes(length);
      return true;
    }
    case Kind::kErase:
      op->slot = in->u16();
      return true;
    case Kind::kReplace:
      op->slot = in->u16();
      length = in->u16();
      op->bytes = in->bytes(length);
      return true;
    case Kind::kPatch:
      op->slot = in->u16();
      op->offset = in->u16();
      length = in->u16();
      op->bytes = in->bytes(length);
      return true;
    case Kind::kTruncateRight:
      op->slot = in->u16();
      op->number = in->u32();
      op->flags = in->u16();
      length = in->u16();
      op->key2 = in->bytes(length);
      return true;
    case Kind::kSetFlags:
      op->flags = in->u16();
      return true;
    case Kind::kWrite:
      op->offset = in->u16();
      length = in->u16();
      op->bytes = in->bytes(length);
      return true;
    case Kind::kSetRight:
    case Kind::kPendingDeleteAdd:
    case Kind::kPendingDeleteRemove:
      op->number = in->u32();
      return true;
  }
  return false;  // a kind this version does not know
}

}  // namespace

bool parse_op(Bytes ops, Op* op, size_t* consumed) noexcept {
  ByteReader in(ops);
  op->kind = static_cast<Kind>(in.u8());
  if (!in.ok() || !parse_fields(&in, ops, op) || !in.ok()) return false;
  *consumed = ops.size() - in.remaining();
  return true;
}

void expand_image(const Op& op, char* page) noexcept {
  std::memset(page, 0, kPageBytes);
  ByteReader in(op.bytes);
  for (uint32_t i = 0; i < op.run_count; ++i) {
    const uint32_t offset = in.u16();
    const Bytes run = in.bytes(in.u16());
    STRATA_ASSERT(in.ok() && offset + run.size() <= kPageBytes);
    if (!run.empty()) std::memcpy(page + offset, run.data(), run.size());
  }
  header_of(page)->crc32c = 0;
}

}  // namespace strata::redo
