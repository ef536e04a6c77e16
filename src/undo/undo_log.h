// Undo: for every change of a record, how it looked before. Ordinary redo-logged pages in the
// node's undo space, so any node reads them like any page.
//
//   U1  Each undo record carries its trx_id, checked on every hop: a reader that lands on another
//       transaction's record (page reused) gets kNotFound.
//   U2  Several transactions share a page one after the other: a transaction takes a partly used
//       tail page (or a new one) at its first change, keeps it to itself while active, and gives it
//       back. A transaction's records therefore form runs: contiguous in a page, continued by a
//       kContinue record.
//   U3  The undo record and the change it describes are in one mini-transaction.
//   U4  A page is freed when all transactions with records on it are purged or rolled back and it
//       is nobody's tail, present or future. The counts are in memory and rebuilt from the status
//       pages at start.
//   U5  Records after a partial rollback skip the undone ones: prev_in_trx of the next record, or
//       of a kRewind mark, leads past them. for_each_undo() does not visit them: their overflow
//       chains live.
//   U6  Marks (kContinue, kPrepare, kRewind) are in the run but not in the prev_in_trx chain:
//       neither a reader, nor rollback, nor purge meets one.
// Page layout (PageType::kUndo): records from offset 72 on, end marked by a zero length (an
// initialised page is all zero), so that an append is one redo operation:
//   length u16 | type u8 | check u8 | trx_id u64 | prev_in_trx u64 | body
// check is a hash of the rest of these 20 bytes and of the record's offset (U1).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "minitxn/mtr.h"
#include "page/page.h"
#include "page/record.h"
#include "space/space_manager.h"

namespace strata {

// A value stored outside the row in a chain of overflow pages. Unique for ever by (creator,
// ordinal).
struct OverflowRef {
  uint32_t first_page = kNoPage;
  uint32_t ordinal = 0;  // counts within the creating transaction
  uint64_t bytes = 0;
  TrxId creator;
  bool operator==(const OverflowRef&) const = default;
};
constexpr uint32_t kOverflowRefBytes = 24;

enum class UndoType : uint8_t {
  kContinue = 1,  // mark: the run goes on in another page (body: undo pointer u64)
  kInsert = 2,    // the record did not exist before
  kUpdate = 3,    // the record existed: header, and payload as a difference to the new payload
  kOverflow = 4,  // an overflow chain is about to be written: rollback frees it
  kPrepare = 5,   // mark: the transaction is prepared (body: its xid)
  kRewind = 6,    // mark: what lies between prev_in_trx and here is rolled back (no body)
};
constexpr uint32_t kXidBytesMax = 256;
// Bound of one record's size: what to ask prepare() for.
constexpr uint32_t undo_bytes_max(size_t key_bytes, size_t payload_bytes, size_t free_on_purge) {
  return static_cast<uint32_t>(96 + key_bytes + payload_bytes + kOverflowRefBytes * free_on_purge);
}
// The most that prepare() accepts: the largest record with all its overflow references fits.
constexpr uint32_t kUndoPrepareBytesMax = kPageBytes - 72 - 28;
static_assert(undo_bytes_max(4060, 4060, 4060 / kOverflowRefBytes) <= kUndoPrepareBytesMax);

struct UndoRecord {
  UndoType type = UndoType::kInsert;
  TrxId trx_id;
  UndoPtr prev_in_trx;  // previous undo record of the same transaction; 0 = first
  IndexId index;
  PageId root;  // of the tree (kOverflow: first page of the chain)
  std::string key;
  RecordHeader previous;  // kUpdate: header before the change
  // kUpdate: old payload = new[0, prefix) + middle + new[size - suffix, size)
  uint16_t prefix_bytes = 0;
  uint16_t suffix_bytes = 0;
  std::string middle;
  std::vector<OverflowRef> free_on_purge;  // kUpdate: chains only the previous version uses
  OverflowRef overflow;                    // kOverflow
};

// Rebuilds the previous payload. kDataLoss when the sizes do not fit.
Status previous_payload(const UndoRecord& record, Bytes new_payload, std::string* out);
// Fills prefix/suffix/middle so that previous_payload() gives `before` back.
void set_payload_difference(UndoRecord* record, Bytes before, Bytes after);

// Undo space of one node. Thread-safe. (Readers of other nodes' undo use read_undo with any pool.)
class UndoSpace {
 public:
  UndoSpace(BufferPool* pool, Log* log, SpaceManager* spaces, NodeId node);
  ~UndoSpace();

  // The undo position of one active transaction; one thread at a time.
  struct Writer {
    TrxId trx_id;
    UndoPtr first;                 // first record, zero = none
    UndoPtr last;                  // newest record
    uint32_t page = kNoPage;       // tail page held
    uint32_t used_bytes = 0;       // fill of that page as far as this writer knows
    uint32_t next_page = kNoPage;  // prepared: the run goes on there
    uint32_t next_used_bytes = 0;
    UndoPtr newest;  // as `last`, but not moved by rewind()
    uint64_t records = 0;
    std::vector<uint32_t> pages;  // every page with records of this transaction
  };

  // Before the first latch: makes sure that append() of up to `bytes` in all will find a page. May
  // block. kInvalidArgument above kUndoPrepareBytesMax.
  Status prepare(Writer* writer, uint32_t bytes);
  // What append() can still write without another prepare(), in all.
  [[nodiscard]] static uint32_t room(const Writer& writer) noexcept;
  // Appends inside `mtr` (latches the undo page; rank after tree pages). Cannot fail after
  // prepare() but for kDataLoss / I/O errors, and then nothing was changed. Sets
  // record->prev_in_trx and trx_id.
  StatusOr<UndoPtr> append(Mtr* mtr, Writer* writer, UndoRecord* record);
  // Latches what append() will change; a failure leaves the mtr unchanged. For callers that must
  // latch more before they change anything; append() does it itself otherwise.
  Status fix_tail(Mtr* mtr, Writer* writer);
  // As append(), for a kPrepare or kRewind mark (U6). prepare() with kUndoMarkBytes + body first.
  static constexpr uint32_t kUndoMarkBytes = 20;
  Status append_mark(Mtr* mtr, Writer* writer, UndoType type, Bytes body);
  // True if records were undone and nothing written since says so: commit needs a kRewind mark
  // (U5).
  [[nodiscard]] static bool needs_rewind_mark(const Writer& writer) noexcept {
    return writer.newest != writer.last;
  }
  // Rolled back to an earlier position: later appends go on; records in between are dead.
  void rewind(Writer* writer, UndoPtr last);
  // The transaction ended; gives the tail page back. Its pages stay until forget().
  void detach(Writer* writer);
  // The transaction is purged (or fully rolled back): drops its claim on `pages`; frees those that
  // have none.
  Status forget(const std::vector<uint32_t>& pages);
  // What else adopt() learns about a run.
  struct Adopted {
    std::string xid;  // of a kPrepare mark
    // Spaces of the trees with changes, whether or not these were undone later; in no order.
    std::vector<SpaceId> spaces;
  };
  // Recovery: this transaction's run starts at `first`; walks it, claims its pages, finds the last
  // record. kNotFound: the run is gone, wholly or in part; nothing is claimed. Nothing can be
  // appended to an adopted run.
  Status adopt(TrxId trx_id, UndoPtr first, Writer* writer, Adopted* adopted = nullptr);
  // Recovery, after all adopt() calls: frees allocated undo pages nobody claims; the rest become
  // reusable.
  Status finish_recovery();
  [[nodiscard]] uint64_t pages_in_use() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads one record through any pool. kNotFound: not (or no longer) a record of `expected` there
// (U1).
Status read_undo(BufferPool* pool, UndoPtr ptr, TrxId expected, UndoRecord* out);
// Adds the spaces of the trees in which an undecided transaction, of any node, has changes, whether
// or not these were undone later. kNotFound: the run is gone, so it has been decided.
Status read_changed_spaces(BufferPool* pool, TrxId trx_id, UndoPtr first,
                           std::vector<SpaceId>* spaces);
// All records of a finished transaction's run from `first` on, in order of writing, but for those
// that were rolled back (U5). `visit` is called without latches. kNotFound: the run is gone.
Status for_each_undo(BufferPool* pool, TrxId trx_id, UndoPtr first,
                     const std::function<Status(UndoPtr, const UndoRecord&)>& visit);

}  // namespace strata
