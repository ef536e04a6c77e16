// One change of one record: the loop of "prepare, latch, look, change or back off" (RW1-RW4).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "row/internal/conflicts.h"
#include "row/internal/versions.h"
#include "row/row_store.h"

namespace strata::row_internal {

class RecordChange {
 public:
  RecordChange(RowContext* context, Trx* trx, TreeId tree, Bytes key) noexcept
      : context_(context),
        trx_(trx),
        tree_(tree),
        key_(key),
        conflicts_(context, trx, tree.index_id) {}

  Status insert(Bytes payload, size_t unique_bytes, const SlotRaise* raise, Duplicate* duplicate);
  Status update(Bytes payload);
  Status erase(const std::vector<OverflowRef>& moved);
  // RW20: makes as many of them as one mini-transaction can have, perhaps none.
  StatusOr<size_t> change_group(const HeldChange* changes, size_t count);
  Status lock_exclusive(std::string* payload, bool* fresh);
  Status lock_shared(std::string* payload, bool* fresh);

 private:
  // What an attempt under latches came to, and so what has to happen without any.
  enum class Next : uint8_t {
    kDone,
    kWait,
    kWaitForShared,
    kResolve,
    kRoom,
    kUndoRoom,
    kLookAgain,
    kUnseen  // RW22
  };
  struct Outcome {
    Next next = Next::kDone;
    TrxId other{};           // kWait, kResolve
    bool other_row = false;  // kWait: the row is other_key_, not key_
    bool in_memory = false;  // kWait: `other` has not written to the row
    size_t bytes = 0;        // kRoom: of the value; kUndoRoom
  };
  // Where the record is, or belongs.
  struct Place {
    MtrPage* leaf = nullptr;
    uint16_t slot = 0;
    bool exists = false;
  };

  // Repeats attempt(mtr, cursor) -> StatusOr<Outcome> until it is kDone or fails.
  template <typename Attempt>
  Status run(size_t undo_bytes_first, const Attempt& attempt, bool frees_room = false);
  // Without latches: what the last attempt asked for.
  Status back_off(const Outcome& outcome);

  // Whether the record may be changed as far as other transactions go; else *outcome says what to
  // do. Fills header->cts if known.
  bool is_free(RecordHeader* header, Outcome* outcome);
  bool is_decided(RecordHeader* header, Outcome* outcome);
  // RW12: whether another transaction has read that there is no such record.
  bool is_kept_absent(Outcome* outcome) const noexcept;
  Status note_duplicate(Bytes key, const RecordHeader& header, Bytes value);
  // Whether this attempt may go on to write `undo_` and a value that `fits`.
  bool can_write(bool fits, size_t value_bytes, Outcome* outcome) const noexcept;

  StatusOr<Outcome> try_insert(Mtr* mtr, TreeCursor* cursor, Bytes payload, size_t unique_bytes,
                               const SlotRaise* raise);
  // RW4. Leaves every leaf it may have to write to latched.
  StatusOr<Outcome> find_unique_place(Mtr* mtr, TreeCursor* cursor, size_t unique_bytes,
                                      Place* place);
  StatusOr<Outcome> insert_new(Mtr* mtr, TreeCursor* cursor, const Place& place, Bytes payload,
                               const SlotRaise* raise);
  StatusOr<Outcome> insert_over(Mtr* mtr, const Place& place, Bytes payload,
                                const SlotRaise* raise);
  // payload == nullptr: a delete.
  StatusOr<Outcome> try_change(Mtr* mtr, TreeCursor* cursor, const Bytes* payload,
                               const std::vector<OverflowRef>& moved);
  // The record under the cursor, which may be changed.
  StatusOr<Outcome> change_found(Mtr* mtr, TreeCursor* cursor, const RecordHeader& header,
                                 const Bytes* payload, const std::vector<OverflowRef>& moved);
  StatusOr<size_t> try_group(Mtr* mtr, TreeCursor* cursor, const HeldChange* changes, size_t count);
  // RW5: undo_.free_on_purge = chains of `before` that are neither in `after` nor in `moved`.
  Status list_freed(Bytes before, const Bytes* after, const std::vector<OverflowRef>& moved);
  // A change that keeps the payload: delete mark or lock.
  Status patch_header(Mtr* mtr, TreeCursor* cursor, uint8_t flags);
  // RW2. *fresh: the transaction did not have the row.
  Status lock_in_memory(std::string* payload, bool* fresh);
  StatusOr<Outcome> try_lock_in_memory(TreeCursor* cursor, std::string* payload, bool* fresh);
  Status lock_in_record(std::string* payload, bool* fresh);
  StatusOr<Outcome> try_lock_in_record(Mtr* mtr, TreeCursor* cursor, std::string* payload);
  // To where key_ is or would be. A row is looked for two or three times in a row: found, locked,
  // changed.
  Status seek_row(TreeCursor* cursor, LatchMode mode);
  StatusOr<Outcome> find_live(TreeCursor* cursor, LatchMode mode, RecordHeader* header);
  StatusOr<Outcome> look_shared(TreeCursor* cursor, bool held, Version* copy);

  void describe_undo(UndoType type);
  // RW1: appends undo_ in the mtr; value_ becomes header + payload of the new version.
  Status add_undo(Mtr* mtr, uint8_t flags, Bytes payload);

  RowContext* const context_;
  Trx* const trx_;
  const TreeId tree_;
  Bytes key_;  // of the record being changed
  Conflicts conflicts_;
  bool is_row_ = false;  // the key has a live record of somebody else's, as is_free() saw it
  bool queued_ = false;  // others wait for the row, and it is not our turn
  uint32_t undo_bytes_ = 0;
  Duplicate* duplicate_ = nullptr;  // of insert(): who wants to know
  UndoRecord undo_;
  std::string value_;
  std::string other_key_;
};

}  // namespace strata::row_internal
