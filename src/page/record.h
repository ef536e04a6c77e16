// Layout of a leaf record's value: version header, then payload. Every tree is multi-version
// (docs/adr: secondary indexes carry undo pointers too).
//   trx_id u64 | cts u64 | undo_ptr u64 | flags u8 | payload
//   R1  cts 0 = not stamped: look trx_id up in TIT / status pages.
//   R2  undo_ptr leads to the undo record of the change that made this version; it holds the
//   previous
//       version (or says there was none).
#pragma once

#include "base/bytes.h"
#include "base/ids.h"

namespace strata {

constexpr uint16_t kRecordHeaderBytes = 25;
constexpr uint16_t kRecordTrxOffset = 0;
constexpr uint16_t kRecordCtsOffset = 8;
constexpr uint16_t kRecordUndoOffset = 16;
constexpr uint16_t kRecordFlagsOffset = 24;

enum RecordFlags : uint8_t {
  kDeleted = 1,   // delete mark
  kLockOnly = 2,  // newest "version" is only a row lock: payload equals the previous version's
  kNextIsDelete = 128,  // only inside undo: the change after this version is a delete (purge looks)
};

struct RecordHeader {
  TrxId trx_id;
  Cts cts;
  UndoPtr undo_ptr;
  uint8_t flags = 0;
  [[nodiscard]] bool deleted() const noexcept { return (flags & kDeleted) != 0; }
};

// `value` must have at least kRecordHeaderBytes (validated when the page arrived).
inline RecordHeader read_record_header(Bytes value) noexcept {
  return RecordHeader{TrxId{load_u64(value.data())}, Cts{load_u64(value.data() + 8)},
                      UndoPtr{load_u64(value.data() + 16)},
                      static_cast<uint8_t>(value[kRecordFlagsOffset])};
}
inline void write_record_header(char* out, const RecordHeader& h) noexcept {
  store_u64(out, h.trx_id.value);
  store_u64(out + 8, h.cts.value);
  store_u64(out + 16, h.undo_ptr.value);
  out[kRecordFlagsOffset] = static_cast<char>(h.flags);
}
inline Bytes record_payload(Bytes value) noexcept { return value.substr(kRecordHeaderBytes); }

}  // namespace strata
