// Bytes of undo records and pages. Pure but for walk_run(), which reads pages through a pool.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "bufpool/buffer_pool.h"
#include "page/page.h"
#include "undo/undo_log.h"

namespace strata::undo_internal {

constexpr uint32_t kFirstRecordOffset = 72;
constexpr uint32_t kRecordPrefixBytes = 20;
constexpr uint32_t kContinueBytes = kRecordPrefixBytes + 8;
static_assert(kUndoPrepareBytesMax == kPageBytes - kFirstRecordOffset - kContinueBytes);
static_assert(UndoSpace::kUndoMarkBytes == kRecordPrefixBytes);

// The 20 bytes in front of every record, and what follows.
struct RawRecord {
  uint16_t length = 0;
  UndoType type = UndoType::kContinue;
  TrxId trx_id;
  UndoPtr prev_in_trx;
  Bytes body;
};

inline bool is_mark(UndoType type) noexcept {
  return type == UndoType::kContinue || type == UndoType::kPrepare || type == UndoType::kRewind;
}

// A complete record to stand at `offset` of its page, instead of what *out has.
void encode_raw(std::string* out, uint32_t offset, UndoType type, TrxId trx_id, UndoPtr prev,
                Bytes body);
void encode_body(std::string* out, const UndoRecord& record);
// kDataLoss if the body does not parse.
Status decode_record(const RawRecord& raw, UndoRecord* out);
// Adds the space of the record's tree, unless it is there.
void note_space(const RawRecord& raw, std::vector<SpaceId>* spaces);
// False: no whole record of that transaction there (U1). `page` has kPageBytes bytes.
bool parse_raw(const char* page, uint32_t offset, TrxId expected, RawRecord* out) noexcept;
// First byte behind the last record; kPageBytes if the page is not well formed.
uint32_t used_bytes(const char* page) noexcept;

// Where a run ends.
struct RunEnd {
  uint32_t page = kNoPage;
  uint32_t used_bytes = 0;
};
// Visits every record of a run, marks included but for kContinue, under the page's shared latch.
// `new_page` (may be empty) is called once per page. kNotFound: no record of the transaction where
// one must be.
Status walk_run(BufferPool* pool, TrxId trx_id, UndoPtr first,
                const std::function<void(UndoPtr, const RawRecord&)>& visit,
                const std::function<void(uint32_t page)>& new_page, RunEnd* end);

}  // namespace strata::undo_internal
