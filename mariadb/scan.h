// An open scan, or a position in an index: where the next entry comes from, and which row the
// server holds. It knows keys as bytes and the kernel's cursor, no type of the server.
//
//   SCN1  The walking cursor is of the index that was used last. From reset() on it rests; when the
//         TABLE goes to another connection, that makes it its own (MA3). Point reads have a cursor
//         of their own, so that they leave the scan where it is.
//   SCN2  current() is the cursor whose row the server holds, or null when it holds none that can
//         be changed: after an entry that was read without its row, and after a write. It is one of
//         the two cursors, and forgotten with it.
//   SCN3  arrive() says whether the entry under the cursor is one that the scan wants: it compares
//         whole keys with the prefix and, forwards, with the end of the range (LK2).
//   SCN4  Each time an entry is asked for, the scan is in one of three states. It stands on an
//         entry. Or it is nowhere: a search found nothing, it has left the index at one end, or the
//         transaction it stood in has ended (CX3, HANDLER). Then must_resume() is true, and
//         resume() finds the place again. Or it has never begun; then resume() says that it ends.
//   SCN5  The kernel is told what the scan may still read (set_bounds) before the cursor moves,
//         where it protects that and no more, or refuses what the snapshot does not show there;
//         those bounds never lie inside a group of cut keys (LK1).
//   SCN6  Of an UPDATE at READ COMMITTED that only looked at the row (HC2), the next step locks the
//         same row and delivers it again; any other way on gives it up.
// One thread. Functions return the kernel's errors.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/kernel.h"
#include "mariadb/buffer.h"

namespace strata::glue {

enum class Direction : uint8_t { kForward, kBackward };

// Where a search leads: HA_READ_..., without the names for the same.
enum class Search : uint8_t {
  kExact,       // the first entry that starts with the key
  kAtLeast,     // ... that is not less than it
  kAfter,       // ... behind all that start with it
  kBefore,      // the last one that is less than it
  kLastExact,   // ... that starts with it
  kLastAtMost,  // ... that is less or starts with it
};
[[nodiscard]] constexpr Direction direction_of(Search search) noexcept {
  return search <= Search::kAfter ? Direction::kForward : Direction::kBackward;
}
[[nodiscard]] constexpr bool is_exact(Search search) noexcept {
  return search == Search::kExact || search == Search::kLastExact;
}

// On which terms rows are read: the connection's and the statement's, at the time of a call.
struct ScanTerms {
  engine::Session* session = nullptr;
  const engine::TableRef* table = nullptr;
  uint64_t generation = 0;  // of the connection's transactions (CX3)
  engine::LockMode lock = engine::LockMode::kNone;
  bool skip_locked = false;
  bool reads_dirty = false;    // without a lock: what is in the rows now, not a snapshot
  bool protects_gaps = false;  // also below SERIALIZABLE: of the walking cursor only
  bool needs_limits = false;   // the kernel protects what may be read (SCN5)
};

// What a scan has to know of an index's keys (TL3).
struct ScanIndex {
  uint32_t most_key = UINT32_MAX;            // bytes of a key that is kept whole
  uint32_t most_clustered_key = UINT32_MAX;  // ... of the clustered key
  bool unique = false;
  bool may_be_cut = false;
  bool clustered_may_be_cut = false;

  // Up to here entries are in order as they are.
  [[nodiscard]] size_t in_order_bytes() const noexcept {
    return std::min(most_key, most_clustered_key);
  }
};

// What a scan asks for where keys are cut: never for a table whose keys are all kept whole.
class WholeKeys {
 public:
  // The whole key, clustered key included, of the entry whose row the cursor has fetched. *gone: at
  // READ UNCOMMITTED the row has changed under the scan.
  virtual Status whole_key(engine::TableCursor* cursor, uint32_t index, std::string* whole,
                           bool* gone) = 0;
  // The first `own_bytes` of `key`, a key of the index, become what is stored of it.
  virtual void cut(uint32_t index, size_t own_bytes, Buffer* key) = 0;
  [[nodiscard]] virtual bool killed() const = 0;  // the client has gone, or KILL was said

 protected:
  ~WholeKeys() = default;
};

// The first key behind all that start with this one; infinite when there is none.
void make_successor(Buffer* key, bool* infinite);

class Scan {
 public:
  Scan();
  ~Scan();
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;

  // Once per table; one index per index of the kernel.
  void open(std::vector<ScanIndex> indexes, WholeKeys* whole_keys);
  void drop_cursors() noexcept;
  void reset() noexcept;  // the statement has ended

  // --- beginning ---
  void begin(uint32_t index) noexcept;  // nothing is read before the first search
  void end() noexcept;
  // The same for all rows of the table. `starts`: the first step goes to the first row, which
  // start_table() does; otherwise rows are read by position only.
  void begin_table(bool starts) noexcept;
  void end_table() noexcept { starts_ = false; }
  [[nodiscard]] bool starts_table() const noexcept { return starts_; }
  Status start_table(const ScanTerms& terms);
  // The first entry of the index, or the last.
  Status seek_first(const ScanTerms& terms, uint32_t index);
  Status seek_last(const ScanTerms& terms, uint32_t index);
  // A search in three steps. What start_search() returns is to be filled with the whole key;
  // `own_bytes` of it are the index's own parts, SIZE_MAX: some are missing. Then walk to the first
  // entry, and say in the end whether there was none.
  Buffer* start_search(const ScanTerms& terms, uint32_t index);
  Status search(const ScanTerms& terms, Search search, size_t own_bytes, bool one_row);
  void end_search(Search search, bool found_none);

  // --- limits ---
  // Where the range ends that is about to be read: to be filled with a whole key, which
  // end_range() takes, including what starts with it or not. hold_range(): the searches from
  // here on are within that range; without it, a search forgets it.
  Buffer* start_range() noexcept;
  void end_range(bool inclusive);
  void hold_range(bool hold) noexcept { range_held_ = hold; }
  // Entries of one key from here on, and no longer so; filled as for a search.
  Buffer* start_key() noexcept;
  void keep_to_key(size_t own_bytes, bool needs_limits);
  void leave_key() noexcept { prefix_only_ = as_stored_ = false; }
  // What may be read when the scan goes on by single entries.
  void go_on(Direction direction, bool needs_limits);

  // --- entries ---
  [[nodiscard]] bool must_resume(uint64_t generation) const noexcept {
    return missed_ || at_end_ != AtEnd::kNo || cursor_ == nullptr ||
           (generation_ != generation && !saved_entry_.empty());
  }
  // *at_end: there is nothing in this direction; else walk to the next entry.
  Status resume(const ScanTerms& terms, Direction direction, bool* at_end);
  // Goes to the next entry in the tree that the scan wants; stays if it stands on one. *at_end:
  // there is none (SCN3).
  Status arrive(Direction direction, engine::TableCursor::Entry* entry, bool* at_end) {
    if (in_order_ && !as_stored_) STRATA_RETURN_IF_ERROR(settle(direction));
    *at_end = true;
    if (!cursor_->valid()) {
      at_end_ = direction == Direction::kForward ? AtEnd::kBehind : AtEnd::kBefore;
      return ok_status();
    }
    *entry = cursor_->entry();
    if (prefix_only_ || range_limited_) {
      const Bytes whole = whole_of(*entry);
      if (prefix_only_ && !whole.starts_with(prefix_.bytes())) return ok_status();
      if (range_limited_ && direction == Direction::kForward && whole >= range_end_.bytes())
        return ok_status();
    }
    *at_end = false;
    return ok_status();
  }
  // One entry on in the tree, from one that arrive() gave and the server does not want.
  Status move(Direction direction) {
    return direction == Direction::kForward ? cursor_->next() : cursor_->prev();
  }
  // One entry on from the one that the server has.
  Status step(Direction direction) {
    if (group_ != nullptr) forget_search_limits();
    if (in_order_ && !as_stored_) return step_in_order(direction);
    return move(direction);
  }
  [[nodiscard]] bool on_entry() const noexcept { return cursor_->valid(); }
  [[nodiscard]] uint32_t index() const noexcept { return index_; }
  [[nodiscard]] engine::TableCursor* cursor() const noexcept { return cursor_.get(); }

  // --- rows ---
  // Fetches the row of the entry, locked as the terms say, or only looked at (HC2).
  Status fetch(bool* gone) {
    if (!looks_only()) return cursor_->fetch(gone);
    Status status = cursor_->fetch_unlocked(gone);
    if (status.ok() && !*gone) semi_read_ = SemiRead::kDid;
    return status;
  }
  // The row that was only looked at, now with its lock.
  Status fetch_again_locked(bool* gone) {
    semi_read_ = SemiRead::kTry;
    return cursor_->fetch(gone);
  }
  void try_semi_read(bool yes) noexcept { semi_read_ = yes ? SemiRead::kTry : SemiRead::kOff; }
  [[nodiscard]] bool did_semi_read() const noexcept { return semi_read_ == SemiRead::kDid; }
  // The row read last does not qualify. `releases`: its lock may be given back.
  Status give_back_row(bool releases);
  // Reads a row by its clustered key; stand_on() makes it the current one.
  Status read_row(const ScanTerms& terms, Bytes clustered_key, engine::TableCursor** cursor,
                  bool* gone);

  [[nodiscard]] engine::TableCursor* current() const noexcept { return at_; }  // SCN2
  void stand_on(engine::TableCursor* cursor) noexcept { at_ = cursor; }
  void stand_on_no_row() noexcept { at_ = nullptr; }
  // The hidden clustered key of the row the server holds, also of one that is not current().
  [[nodiscard]] Bytes hidden_key() const noexcept { return hidden_key_; }
  void set_hidden_key(Bytes key) { hidden_key_.assign(key); }

  // HW1: whether the statement changes the rows it scans later, and this one.
  void change_later(bool yes) noexcept { changes_later_ = yes; }
  [[nodiscard]] bool changes_later() const noexcept { return changes_later_; }
  [[nodiscard]] bool changes_current_row_later() const noexcept {
    return changes_later_ && at_ == cursor_.get() && index_ == 0 && at_->holds_run();
  }

  // --- a place that outlives its transaction (HANDLER) ---
  // `open`: the server has not ended the scan. An error: the place is that of the key as it is
  // stored.
  Status save_place(bool open);
  void forget_place() noexcept;

 private:
  // READ COMMITTED (HC2): kTry: rows are shown before they are locked; kDid: the last one was.
  enum class SemiRead : uint8_t { kOff, kTry, kDid };
  // The scan has left the index behind the last entry, or before the first.
  enum class AtEnd : uint8_t { kNo, kBehind, kBefore };
  struct Group;

  engine::TableCursor* make_cursor(const ScanTerms& terms, uint32_t index);
  void restart(const ScanTerms& terms);
  void leave_place() noexcept;
  [[nodiscard]] bool looks_only() const noexcept {
    return semi_read_ == SemiRead::kTry && index_ == 0 && !unique_read_;
  }
  Status reposition(const ScanTerms& terms, Direction direction);
  Status resume_at_miss(const ScanTerms& terms, Direction direction);

  void limit(Bytes low, Bytes high);
  void limit_to_prefix();
  void limit_to_range() { limit(Bytes(), range_limited_ ? range_end_.bytes() : Bytes()); }
  void choose_stored_key(size_t own_bytes);

  // Keys that are cut, in order (scan_groups.cc).
  [[nodiscard]] const ScanIndex& keys() const noexcept { return indexes_[index_]; }
  [[nodiscard]] bool is_cut(const engine::TableCursor::Entry& entry) const noexcept {
    return entry.key.size() > keys().most_key ||
           entry.clustered_key.size() > keys().most_clustered_key;
  }
  [[nodiscard]] Bytes whole_of(const engine::TableCursor::Entry& entry) const noexcept {
    return group_ == nullptr ? entry.whole : whole_in_group(entry);
  }
  [[nodiscard]] Bytes whole_in_group(const engine::TableCursor::Entry& entry) const noexcept;
  Group* group();
  static Bytes behind_all();  // no key is behind this one
  void leave_group() noexcept;
  void forget_search_limits() noexcept;
  [[nodiscard]] bool is_in_group() const noexcept;
  Status seek_at_least(Bytes key);
  Status seek_below(Bytes key, bool infinite);
  Status seek_behind(Bytes start, Direction direction);
  [[nodiscard]] bool is_behind_limits(Bytes stored, bool forward) const;
  Status whole_key(std::string* whole, bool* gone);
  Status enter_group(Direction direction);
  Status next_run(Direction direction);
  Status settle(Direction direction);
  Status step_in_order(Direction direction);
  Status step_into_group(Direction direction);

  // Of the open table.
  std::vector<ScanIndex> indexes_;
  WholeKeys* whole_keys_ = nullptr;
  // Of the table's use by one connection (SCN1).
  std::unique_ptr<engine::TableCursor> cursor_;
  std::unique_ptr<engine::TableCursor> point_;
  // Of the row that the server holds (SCN2).
  engine::TableCursor* at_ = nullptr;
  std::string hidden_key_;
  // Of the statement.
  SemiRead semi_read_ = SemiRead::kOff;
  bool changes_later_ = false;
  // Of the scan, from begin() on.
  bool starts_ = false;
  uint32_t index_ = 0;            // of cursor_
  uint64_t generation_ = 0;       // when cursor_ began to walk
  bool in_order_ = false;         // it may meet cut keys and has to put them in order
  std::unique_ptr<Group> group_;  // not before it is needed
  // Of the last search and what follows it.
  bool unique_read_ = false;    // one row at most
  bool prefix_only_ = false;    // entries must start with prefix_
  bool as_stored_ = false;      // prefix_ is compared with entries as they are stored
  bool missed_ = false;         // none starts with prefix_: go on from where one would be
  bool range_limited_ = false;  // entries must be below range_end_
  bool range_held_ = false;
  Buffer prefix_;
  Buffer search_key_;  // what the search made of prefix_, or prefix_ before it was cut
  Buffer range_end_;
  Buffer prefix_end_;
  // Of a place in the index, until the scan stands again.
  AtEnd at_end_ = AtEnd::kNo;
  std::string saved_entry_;  // where the cursor stood when its transaction ended: the whole key
};

}  // namespace strata::glue
