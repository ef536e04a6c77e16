// Multi-version records in trees: insert, update, delete, lock, read, roll back, purge. Every tree,
// clustered or secondary, works the same way. Thread-safe; a Trx and a RowCursor belong to one
// thread.
//
//   RW1  A change of a record writes its undo record in the same mtr; the record's header then
//        carries trx_id, cts 0 and the undo pointer.
//   RW2  A row is exclusively locked by the transaction in its header while that is undecided, or
//        by the one that the lock table has entered for it (row_waits.h, L10). Locking without
//        changing writes nothing, until a transaction holds `unwritten_locks_max` such rows: then
//        it writes an undo record whose previous version has the same payload (kLockOnly).
//   RW3  A conflict releases every latch, waits in RowWaits, and starts over.
//   RW4  (K6) A unique insert latches exclusively the leaf that covers (unique part, -inf) and
//        keeps it, coupling right, through check and insert; live or undecided entries with the
//        same unique part conflict.
//   RW5  Overflow chains are freed only through undo records: on rollback by kOverflow, on purge by
//        free_on_purge. A chain's undo record is written before its first page.
//   RW6  Purge erases a record when it is delete-marked and its header still carries the purged
//        trx_id.
//   RW7  Payload = ext_count u8 | OverflowRef[ext_count] | inline bytes.
//   RW8  A view sees its transaction's own changes, but not through its own lock-only versions:
//        locking a row does not change what plain reads show. Of a row that the transaction itself
//        has changed, the newest entries of every index count, even those that others wrote after
//        the view was opened.
//   RW9  A range is registered first and read then; what was read is settled. A record that another
//        transaction owns is not kept registered while we wait for that (row_waits.h, L7, L8).
//   RW11  A locking scan (RowCursor::set_lock_ahead) enters what it copies from a leaf as a run,
//         under the leaf's latch, and gives back what nobody came to see. Its rows are changed by
//         the statement that scans and through no other cursor ahead of it.
//   RW12  An insert writes nothing while another transaction is known to keep the key absent (by a
//         range lock): that one may insert it itself, and must not have to wait for us.
//   RW20  Changes of rows that the transaction holds already may be made together: a group has the
//         leaf, the undo page and its log in one mini-transaction. Whatever needs more than those
//         (a wait, room, another page) ends the group, and is done as a single change.
//   RW21  Purge erases neighbours on a leaf in one mini-transaction, too; what is freed outside the
//         rows comes after.
//   RW22  A transaction with `refuses_unseen` and an open view neither changes nor locks a record
//         whose newest decided version the view does not see, deleted ones included: row_changed,
//         and only rollback is left. A locking scan does not pass such a delete mark in silence,
//         either: it stands for a row that the view shows. What the transaction holds was seen
//         when it was locked, and nobody has changed it since. A lock-only version (RW2) counts as
//         a version.
//   RW10  Whoever commits a small transaction purges it at once if no view needs what it left
//         (T11). It merges no leaves: what would need that, or fails, a purge thread does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "btree/btree.h"
#include "txn/trx_system.h"

namespace strata {

struct RowContext {
  TreeContext tree;
  TrxSystem* trxs;
  UndoSpace* undo;
  // Rows that a transaction may hold in memory only (about 100 bytes each).
  uint32_t unwritten_locks_max = 1000;
  // And runs of rows, each of one leaf at the most (row_waits.h, L12; about 200 bytes each).
  uint32_t runs_max = 16384;
};

enum class RowLock : uint8_t { kNone, kShared, kExclusive };

// Inline bytes and the refs of the values stored outside.
std::string encode_payload(const std::vector<OverflowRef>& refs, Bytes inline_bytes);
Status decode_payload(Bytes payload, std::vector<OverflowRef>* refs, Bytes* inline_bytes);

// Piggyback: raises a header slot in the mtr of the insert (AUTO_INCREMENT).
struct SlotRaise {
  SpaceId space;
  HeaderSlot slot;
  uint64_t value;
};

// What an insert has met, as it was then: live and committed, or the transaction's own.
struct Duplicate {
  std::string key;
  std::string payload;
  bool own = false;
};

// --- changes; each may wait for row locks. Errors: kAlreadyExists, kAborted (deadlock: the
// transaction must roll back), kDeadlineExceeded, kCancelled, kNotFound, kResourceExhausted,
// kDataLoss, row_changed (RW22; the transaction must roll back) ---

// unique_bytes: length of the key's leading part that must be unique among live entries; 0 = only
// the whole key must be (primary key); SIZE_MAX = no check beyond that either (non-unique index:
// whole key is unique anyway).
// Of kAlreadyExists, *duplicate is the record in the way. It is not locked: lock_record() does
// that, and says kNotFound if it is gone by then.
Status insert_record(RowContext* context, Trx* trx, TreeId tree, Bytes key, Bytes payload,
                     size_t unique_bytes, const SlotRaise* raise = nullptr,
                     Duplicate* duplicate = nullptr);
// The record must exist and be visible as the latest version (kNotFound otherwise). Chains that the
// old payload uses and the new one does not are freed once nobody can see the old version, but for
// those in `moved`: another record has them now.
Status update_record(RowContext* context, Trx* trx, TreeId tree, Bytes key, Bytes new_payload);
Status delete_record(RowContext* context, Trx* trx, TreeId tree, Bytes key,
                     const std::vector<OverflowRef>& moved = {});
// A change of a row that the transaction holds: update_record(), or delete_record().
struct HeldChange {
  Bytes key;
  Bytes payload;
  bool deletes = false;
};
// Makes them in the order given; those that follow one another on a leaf in one mini-transaction
// (RW20). Errors as of single changes; what comes before the one that fails has been made.
Status change_held_records(RowContext* context, Trx* trx, TreeId tree, const HeldChange* changes,
                           size_t count);
// Locks the latest version of a row. kNotFound: no live row (then nothing is locked). On OK
// *payload is it, and *fresh says whether the transaction had no such lock before.
Status lock_record(RowContext* context, Trx* trx, TreeId tree, Bytes key, RowLock mode,
                   std::string* payload, bool* fresh = nullptr);

// Latest version visible to the transaction's view (point read). kNotFound if none.
Status read_record(RowContext* context, Trx* trx, TreeId tree, Bytes key, std::string* payload);
// Latest committed or own version, whatever the view; waits for nobody.
Status read_committed(RowContext* context, Trx* trx, TreeId tree, Bytes key, std::string* payload);
// Uncommitted latest version (READ UNCOMMITTED).
Status read_dirty(RowContext* context, TreeId tree, Bytes key, std::string* payload);

// --- overflow chains ---
// Writes the value in pages of `space` (own mtrs; undo first).
StatusOr<OverflowRef> write_overflow(RowContext* context, Trx* trx, SpaceId space, Bytes value);
Status read_overflow(RowContext* context, SpaceId space, const OverflowRef& ref, std::string* out);

// --- scans ---
// For a cursor over a secondary tree: where the row of an entry is.
struct BaseRow {
  TreeId tree;
  Bytes (*key_of)(Bytes entry_key, Bytes entry_payload);
};

// Consistent (kNone) or locking scan over one tree. Position survives between calls without
// latches.
class RowCursor {
 public:
  enum class Read : uint8_t {
    kConsistent,
    kDirty,
    kLatest
  };  // kLatest: newest committed or own (for locking callers)
  RowCursor(RowContext* context, TreeId tree);
  ~RowCursor();
  // Secondary trees only: RW8.
  void set_base_row(const BaseRow& base) noexcept;
  // Clustered trees, kLatest: RW11. The transaction has an id. Holds until the next seek.
  // `shared`: row_waits.h, L20.
  void set_lock_ahead(bool ahead, bool shared = false) noexcept;
  // Whether the transaction holds the row, in the mode asked for, by now.
  [[nodiscard]] bool locked() const noexcept;
  // The caller wants the row shown. Of rows that it passes without, only the last may be one.
  void took() noexcept;
  // Gives back the rows behind the last one that was taken. The cursor then shows none: only seek()
  // may follow. `trx`: what seek() was called with, if it has not ended.
  void give_back(Trx* trx) noexcept;
  // kLatest: nothing outside [low, high) is wanted (empty high: no bound), whatever is shown; RW22.
  void set_bounds(Bytes low, Bytes high);
  // First visible record with key >= `key`, or last with key < `key` (`infinite`: last of all).
  Status seek(Trx* trx, Read read, Bytes key);
  Status seek_before(Trx* trx, Read read, Bytes key, bool infinite);
  Status next();
  Status prev();
  // The payload of the record shown as it is now, committed or not, as read_dirty() has it; but it
  // finds the leaf that has not changed since without a way down the tree. kNotFound: deleted.
  Status look_again(std::string* payload);
  // Stands nowhere, for another transaction to use; gives the memory of a long scan back.
  void reset() noexcept;
  [[nodiscard]] bool valid() const noexcept;  // stands on a record
  [[nodiscard]] Bytes key() const noexcept;   // until the next move
  [[nodiscard]] Bytes payload() const noexcept;
  // kLatest: the record shown may belong to an undecided transaction, or be delete-marked by one.
  [[nodiscard]] bool undecided() const noexcept;
  [[nodiscard]] bool deleted() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A locking scan that keeps others from changing what it has passed, records as well as the gaps
// between them, until the transaction ends (SERIALIZABLE; RW9). Every move may wait for the owner
// of a record; errors as of changes.
class RangeCursor {
 public:
  RangeCursor(RowContext* context, TreeId tree);
  ~RangeCursor();
  // Scans end at the bounds, and nothing outside of them is protected. Empty high: no bound.
  void set_bounds(Bytes low, Bytes high);
  // True: the cursor shows a record before it is protected, so that the caller can lock the row
  // first; it calls took() then. A record it has not taken is protected by the next move; if it
  // has become another version meanwhile, that move shows it again instead.
  void set_records_later(bool later) noexcept;
  Status seek(Trx* trx, Bytes key);
  Status seek_before(Trx* trx, Bytes key, bool infinite);
  Status next();
  Status prev();
  // The caller holds a lock that keeps the record as it is.
  void took();
  [[nodiscard]] bool valid() const noexcept;
  [[nodiscard]] Bytes key() const noexcept;  // until the next move
  [[nodiscard]] Bytes payload() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// --- rollback and purge ---
// Undoes every change newer than `to` (zero: all). Continues over errors of dropped spaces only.
// After any other error the transaction can only be rolled back (T13), unless the same call is made
// again, at once, and goes well.
Status rollback_to(RowContext* context, Trx* trx, UndoPtr to);
// Undoes everything and ends the transaction.
// `stop` (may be null): once true, kInterrupted between two records; what is left can be undone
// later, by calling again or by the next recovery.
Status rollback_all(RowContext* context, Trx* trx, const std::atomic<bool>* stop = nullptr);
// What commit_finish() gave to its caller: purged at once (RW10), or left to the purge threads.
void purge_own(RowContext* context, TrxSystem::PurgeItem item);
// Purges up to `limit` transactions; returns how many. One that fails is set aside (T12).
StatusOr<uint64_t> purge_some(RowContext* context, uint64_t limit);

}  // namespace strata
