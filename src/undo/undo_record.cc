// Undo records as bytes, and reading them.
#include <algorithm>
#include <bit>
#include <memory>
#include <unordered_map>

#include "base/assert.h"
#include "undo/internal/undo_page.h"
#include "undo/undo_log.h"

namespace strata {
namespace undo_internal {
namespace {

uint8_t check_of(uint32_t offset, uint16_t length, UndoType type, TrxId trx_id, UndoPtr prev) {
  const uint64_t place = (uint64_t{offset} << 32) | (uint64_t{length} << 8) | uint64_t(type);
  return static_cast<uint8_t>(mix64(place ^ mix64(trx_id.value ^ mix64(prev.value))));
}

void append_ref(std::string* out, const OverflowRef& ref) {
  append_u32(out, ref.first_page);
  append_u32(out, ref.ordinal);
  append_u64(out, ref.bytes);
  append_u64(out, ref.creator.value);
}
OverflowRef read_ref(ByteReader* in) {
  OverflowRef ref;
  ref.first_page = in->u32();
  ref.ordinal = in->u32();
  ref.bytes = in->u64();
  ref.creator = TrxId{in->u64()};
  return ref;
}

}  // namespace

void encode_raw(std::string* out, uint32_t offset, UndoType type, TrxId trx_id, UndoPtr prev,
                Bytes body) {
  const size_t length = kRecordPrefixBytes + body.size();
  STRATA_ASSERT(offset + length <= kPageBytes);
  out->clear();
  append_u16(out, static_cast<uint16_t>(length));
  append_u8(out, static_cast<uint8_t>(type));
  append_u8(out, check_of(offset, static_cast<uint16_t>(length), type, trx_id, prev));
  append_u64(out, trx_id.value);
  append_u64(out, prev.value);
  out->append(body);
}

// index u32 | space u32 | page u32 | key length u16 | key, then
//   kUpdate: record header 1 or 25 | prefix u16 | suffix u16 | middle length u16 | middle | refs
//   u16 | refs kOverflow: ref
void encode_body(std::string* out, const UndoRecord& record) {
  out->clear();
  append_u32(out, record.index.value);
  append_u32(out, record.root.space);
  append_u32(out, record.root.number);
  append_u16(out, static_cast<uint16_t>(record.key.size()));
  out->append(record.key);
  if (record.type == UndoType::kUpdate) {
    append_record_header(out, record.previous);
    append_u16(out, record.prefix_bytes);
    append_u16(out, record.suffix_bytes);
    append_u16(out, static_cast<uint16_t>(record.middle.size()));
    out->append(record.middle);
    append_u16(out, static_cast<uint16_t>(record.free_on_purge.size()));
    for (const OverflowRef& ref : record.free_on_purge) append_ref(out, ref);
  } else if (record.type == UndoType::kOverflow) {
    append_ref(out, record.overflow);
  }
}

RecordHeader read_previous(ByteReader* in) {
  std::string header(in->bytes(kSettledHeaderBytes));
  if (in->ok() && !is_settled(header))
    header.append(in->bytes(kRecordHeaderBytes - kSettledHeaderBytes));
  return in->ok() ? read_record_header(header) : RecordHeader{};
}

Status decode_record(const RawRecord& raw, UndoRecord* out) {
  ByteReader in(raw.body);
  out->type = raw.type;
  out->trx_id = raw.trx_id;
  out->prev_in_trx = raw.prev_in_trx;
  out->index = IndexId{in.u32()};
  out->root.space = in.u32();
  out->root.number = in.u32();
  out->key.assign(in.bytes(in.u16()));
  out->previous = RecordHeader{};
  out->prefix_bytes = out->suffix_bytes = 0;
  out->middle.clear();
  out->free_on_purge.clear();
  out->overflow = OverflowRef{};
  switch (raw.type) {
    case UndoType::kInsert:
      break;
    case UndoType::kUpdate: {
      out->previous = read_previous(&in);
      out->prefix_bytes = in.u16();
      out->suffix_bytes = in.u16();
      out->middle.assign(in.bytes(in.u16()));
      for (uint32_t n = in.u16(); n > 0 && in.ok(); --n)
        out->free_on_purge.push_back(read_ref(&in));
      break;
    }
    case UndoType::kOverflow:
      out->overflow = read_ref(&in);
      break;
    case UndoType::kContinue:
    case UndoType::kPrepare:
    case UndoType::kRewind:
      return error_corruption("an undo pointer leads to a mark");
  }
  if (!in.ok() || in.remaining() != 0) return error_corruption("undo record does not parse");
  return ok_status();
}

void note_space(const RawRecord& raw, std::vector<SpaceId>* spaces) {
  ByteReader in(raw.body);
  (void)in.u32();  // index
  const SpaceId space{in.u32()};
  if (in.ok() && std::find(spaces->rbegin(), spaces->rend(), space) == spaces->rend())
    spaces->push_back(space);
}

bool parse_raw(const char* page, uint32_t offset, TrxId expected, RawRecord* out) noexcept {
  if (offset < kFirstRecordOffset || offset + kRecordPrefixBytes > kPageBytes) return false;
  const char* p = page + offset;
  out->length = load_u16(p);
  if (out->length < kRecordPrefixBytes || offset + out->length > kPageBytes) return false;
  const auto type = static_cast<uint8_t>(p[2]);
  if (type < 1 || type > static_cast<uint8_t>(UndoType::kRewind)) return false;
  out->type = static_cast<UndoType>(type);
  out->trx_id = TrxId{load_u64(p + 4)};
  out->prev_in_trx = UndoPtr{load_u64(p + 12)};
  out->body = Bytes(p + kRecordPrefixBytes, out->length - kRecordPrefixBytes);
  return out->trx_id == expected &&
         static_cast<uint8_t>(p[3]) ==
             check_of(offset, out->length, out->type, expected, out->prev_in_trx);
}

uint32_t used_bytes(const char* page) noexcept {
  uint32_t offset = kFirstRecordOffset;
  while (offset + kRecordPrefixBytes <= kPageBytes) {
    const uint32_t length = load_u16(page + offset);
    if (length == 0) return offset;
    if (length < kRecordPrefixBytes || offset + length > kPageBytes) return kPageBytes;
    offset += length;
  }
  return kPageBytes;
}

namespace {

// Where the records of `trx_id` that follow each other from `offset` on end.
uint32_t run_end(const char* page, uint32_t offset, TrxId trx_id) noexcept {
  RawRecord raw;
  while (parse_raw(page, offset, trx_id, &raw)) offset += raw.length;
  return offset;
}

// kNotFound for a page that is no undo page (any more).
StatusOr<PageGuard> fix_undo_page(BufferPool* pool, UndoPtr ptr) {
  const PageId id{undo_space_of(undo_node(ptr)), undo_page_number(ptr)};
  STRATA_ASSIGN_OR_RETURN(PageGuard guard, expect_written(pool->fix(id, LatchMode::kShared), id));
  if (header_of(guard.page())->type != static_cast<uint8_t>(PageType::kUndo))
    return error_not_found();
  return guard;
}

}  // namespace

Status walk_run(BufferPool* pool, TrxId trx_id, UndoPtr first,
                const std::function<void(UndoPtr, const RawRecord&)>& visit,
                const std::function<void(uint32_t page)>& new_page, RunEnd* end) {
  UndoPtr next_page_at = first;
  while (!next_page_at.is_zero()) {
    const UndoPtr at = next_page_at;
    next_page_at = UndoPtr{};
    STRATA_ASSIGN_OR_RETURN(const PageGuard guard, fix_undo_page(pool, at));
    if (new_page) new_page(undo_page_number(at));
    uint32_t offset = undo_offset(at);
    RawRecord raw;
    if (!parse_raw(guard.page(), offset, trx_id, &raw)) return error_not_found();
    while (parse_raw(guard.page(), offset, trx_id, &raw)) {
      const UndoPtr ptr =
          make_undo_ptr(undo_node(at), undo_page_number(at), static_cast<uint16_t>(offset));
      offset += raw.length;
      if (raw.type == UndoType::kContinue) {
        if (raw.body.size() != 8) return error_corruption("undo: continuation does not parse");
        next_page_at = UndoPtr{load_u64(raw.body.data())};
        if (next_page_at.is_zero()) return error_corruption("undo: continuation leads nowhere");
        break;
      }
      visit(ptr, raw);
    }
    if (end != nullptr) *end = RunEnd{undo_page_number(at), offset};
  }
  return ok_status();
}

}  // namespace undo_internal

using namespace undo_internal;  // NOLINT: this folder's own

Status previous_payload(const UndoRecord& record, Bytes new_payload, std::string* out) {
  if (size_t{record.prefix_bytes} + record.suffix_bytes > new_payload.size())
    return error_corruption("undo record does not fit the record it belongs to");
  out->assign(new_payload.substr(0, record.prefix_bytes));
  out->append(record.middle);
  out->append(new_payload.substr(new_payload.size() - record.suffix_bytes));
  return ok_status();
}

namespace {

// How many of the first (last) `size` bytes are the same; eight at a time: most of a row is.
size_t same_from_begin(const char* a, const char* b, size_t size) noexcept {
  size_t same = 0;
  for (; same + 8 <= size; same += 8) {
    const uint64_t different = load_u64(a + same) ^ load_u64(b + same);
    if (different != 0) return same + static_cast<size_t>(std::countr_zero(different)) / 8;
  }
  while (same < size && a[same] == b[same]) ++same;
  return same;
}
size_t same_from_end(const char* a_end, const char* b_end, size_t size) noexcept {
  size_t same = 0;
  for (; same + 8 <= size; same += 8) {
    const uint64_t different = load_u64(a_end - same - 8) ^ load_u64(b_end - same - 8);
    if (different != 0) return same + static_cast<size_t>(std::countl_zero(different)) / 8;
  }
  while (same < size &&
         a_end[-1 - static_cast<ptrdiff_t>(same)] == b_end[-1 - static_cast<ptrdiff_t>(same)])
    ++same;
  return same;
}

}  // namespace

void set_payload_difference(UndoRecord* record, Bytes before, Bytes after) {
  const size_t common = std::min({before.size(), after.size(), size_t{UINT16_MAX}});
  const bool is_whole = before.data() == after.data() && before.size() == after.size();
  const size_t prefix = is_whole ? common : same_from_begin(before.data(), after.data(), common);
  const size_t suffix =
      same_from_end(before.data() + before.size(), after.data() + after.size(), common - prefix);
  record->prefix_bytes = static_cast<uint16_t>(prefix);
  record->suffix_bytes = static_cast<uint16_t>(suffix);
  record->middle.assign(before.substr(prefix, before.size() - prefix - suffix));
}

Status read_undo(BufferPool* pool, UndoPtr ptr, TrxId expected, UndoRecord* out) {
  STRATA_ASSIGN_OR_RETURN(const PageGuard guard, fix_undo_page(pool, ptr));
  RawRecord raw;
  if (!parse_raw(guard.page(), undo_offset(ptr), expected, &raw)) return error_not_found();
  return decode_record(raw, out);
}

Status read_changed_spaces(BufferPool* pool, TrxId trx_id, UndoPtr first,
                           std::vector<SpaceId>* spaces) {
  return walk_run(
      pool, trx_id, first,
      [&](UndoPtr, const RawRecord& raw) {
        if (!is_mark(raw.type)) note_space(raw, spaces);
      },
      nullptr, nullptr);
}

Status for_each_undo(BufferPool* pool, TrxId trx_id, UndoPtr first,
                     const std::function<Status(UndoPtr, const UndoRecord&)>& visit) {
  // First pass: where does the chain leave the order of writing? `jump` says, for a record that was
  // rolled back to, which one came next; the newest entry wins (U5).
  std::unordered_map<uint64_t, UndoPtr> jump;
  UndoPtr newest;
  STRATA_RETURN_IF_ERROR(walk_run(
      pool, trx_id, first,
      [&](UndoPtr ptr, const RawRecord& raw) {
        const bool in_order = raw.prev_in_trx == newest && !is_mark(raw.type);
        if (!in_order || jump.count(raw.prev_in_trx.value) != 0) jump[raw.prev_in_trx.value] = ptr;
        if (!is_mark(raw.type)) newest = ptr;
      },
      {}, nullptr));

  // Second pass: page by page, on a copy of what the run has there, so that `visit` may latch what
  // it wants. Within a page the chain only goes forward.
  const auto copy = std::make_unique_for_overwrite<char[]>(kPageBytes);
  uint32_t copied_end = 0;
  UndoRecord record;
  UndoPtr at = first;
  UndoPtr previous;  // last live record
  uint32_t copied = kNoPage;
  const auto jumped = [&](UndoPtr from) {
    const auto it = jump.find(from.value);
    return it == jump.end() ? UndoPtr{} : it->second;
  };
  if (const UndoPtr start = jumped(UndoPtr{}); !start.is_zero()) at = start;
  for (;;) {
    if (undo_page_number(at) != copied) {
      STRATA_ASSIGN_OR_RETURN(const PageGuard guard, fix_undo_page(pool, at));
      const uint32_t from = undo_offset(at);
      copied_end = std::max(from, run_end(guard.page(), from, trx_id));
      std::memcpy(copy.get() + from, guard.page() + from, copied_end - from);
      copied = undo_page_number(at);
    }
    RawRecord raw;
    if (undo_offset(at) >= copied_end || !parse_raw(copy.get(), undo_offset(at), trx_id, &raw))
      return ok_status();  // end of the run
    if (raw.type == UndoType::kContinue) {
      at = UndoPtr{load_u64(raw.body.data())};
      continue;
    }
    // A mark that the chain leads to is its end; so is a record that does not continue it.
    if (is_mark(raw.type) || raw.prev_in_trx != previous) return ok_status();
    STRATA_RETURN_IF_ERROR(decode_record(raw, &record));
    STRATA_RETURN_IF_ERROR(visit(at, record));
    previous = at;
    const UndoPtr to = jumped(at);
    at = !to.is_zero() ? to
                       : make_undo_ptr(undo_node(at), undo_page_number(at),
                                       static_cast<uint16_t>(undo_offset(at) + raw.length));
  }
}

}  // namespace strata
