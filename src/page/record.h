// Layout of a leaf record's value: version header, then payload. Every tree is multi-version
// (docs/adr: secondary indexes carry undo pointers too).
//   flags u8 | trx_id u64 | cts u64 | undo_ptr u64 | payload
//   flags u8 (kSettled) | payload
//   R1  cts 0 = not stamped: look trx_id up in TIT / status pages.
//   R2  undo_ptr leads to the undo record of the change that made this version; it holds the
//       previous version (or says there was none).
//   R3  A settled record is one that everybody sees and that has no older version: its header is
//       all zeroes and takes one byte. Index builds write such records; who changes, deletes or
//       locks one in its page makes the header whole, for which the page may need room, and a
//       rollback makes it short again. One header has one encoding.
#pragma once

#include <string>

#include "base/bytes.h"
#include "base/ids.h"

namespace strata {

constexpr uint16_t kRecordHeaderBytes = 25;  // of a whole one
constexpr uint16_t kSettledHeaderBytes = 1;
constexpr uint16_t kRecordFlagsOffset = 0;
constexpr uint16_t kRecordTrxOffset = 1;
constexpr uint16_t kRecordCtsOffset = 9;
constexpr uint16_t kRecordUndoOffset = 17;

enum RecordFlags : uint8_t {
  kDeleted = 1,        // delete mark
  kLockOnly = 2,       // newest "version" is only a row lock: payload equals the previous version's
  kNextIsDelete = 64,  // only inside undo: the change after this version is a delete (purge looks)
  kSettled = 128       // only in the encoding: R3
};

struct RecordHeader {
  TrxId trx_id;
  Cts cts;
  UndoPtr undo_ptr;
  uint8_t flags = 0;
  [[nodiscard]] bool deleted() const noexcept { return (flags & kDeleted) != 0; }
};

// Whether these bytes begin with a header.
inline bool has_record_header(Bytes value) noexcept {
  if (value.empty()) return false;
  return (static_cast<uint8_t>(value[0]) & kSettled) != 0 || value.size() >= kRecordHeaderBytes;
}

// From here on `value` must have one (validated when the page arrived).
inline bool is_settled(Bytes value) noexcept {
  return (static_cast<uint8_t>(value[kRecordFlagsOffset]) & kSettled) != 0;
}
inline uint16_t record_header_bytes(Bytes value) noexcept {
  return is_settled(value) ? kSettledHeaderBytes : kRecordHeaderBytes;
}
inline RecordHeader read_record_header(Bytes value) noexcept {
  if (is_settled(value)) return {};
  return RecordHeader{TrxId{load_u64(value.data() + kRecordTrxOffset)},
                      Cts{load_u64(value.data() + kRecordCtsOffset)},
                      UndoPtr{load_u64(value.data() + kRecordUndoOffset)},
                      static_cast<uint8_t>(value[kRecordFlagsOffset])};
}
inline Bytes record_payload(Bytes value) noexcept {
  return value.substr(record_header_bytes(value));
}
inline void append_record_header(std::string* out, const RecordHeader& h) {
  if (h.trx_id.is_zero() && h.cts.is_zero() && h.undo_ptr.is_zero() && h.flags == 0) {
    out->push_back(static_cast<char>(kSettled));
    return;
  }
  const size_t at = out->size();
  out->resize(at + kRecordHeaderBytes);
  char* const to = out->data() + at;
  to[kRecordFlagsOffset] = static_cast<char>(h.flags);
  store_u64(to + kRecordTrxOffset, h.trx_id.value);
  store_u64(to + kRecordCtsOffset, h.cts.value);
  store_u64(to + kRecordUndoOffset, h.undo_ptr.value);
}

}  // namespace strata
