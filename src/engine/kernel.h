// The kernel's one public API: what the MariaDB glue (and tests, benches, tools) uses. The kernel
// knows no SQL types: keys are memcomparable bytes, rows are opaque payloads.
//
//   E1  Nothing here throws. Errors are statuses of base/errors.def; after kAborted (deadlock) only
//       rollback() is allowed on the session.
//   E2  Several kernels can live in one process; there is no global state but fault points and
//       diag.
//   E3  DDL runs inside the session's transaction and becomes visible to others, atomically, when
//       it commits.
//   E4  Files of dropped spaces are deleted only after the drop is durable, from the pending-delete
//       list.
//   E5  Sessions and cursors are used by one thread at a time; kernel and tables are thread-safe.
//   E21  Changes that a scan leaves for later (update_row_later()) are of rows that the transaction
//        has locked, so nobody sees when they are made; the session itself makes them before it
//        reads anything but the next row of that scan, before another change, and before a
//        savepoint or the transaction's end.
//   E32  Where several nodes change tables, a statement that commits a table before what belongs
//        into it (CREATE TABLE ... SELECT, CREATE SEQUENCE) leaves a mark in the journal with the
//        first, which goes with the second, or with the table. If it is killed in between, the
//        next life of its node, be that in another server (E31), drops the table under a lock on
//        its name before other nodes get that. A table with a committed row is never dropped so:
//        it only loses its mark.
//   E30  An unlogged kernel is for what may be lost with the process (temporary tables). All that
//        E1 to E21 say of a living kernel holds. But its log is thrown away, no file is ever
//        synced, and nothing is recovered: each opening begins with an empty database.
//   E6  CREATE, TRUNCATE and a copying ALTER write anew what a table holds. A view from before
//       their commit would find it empty; reading it is refused (definition_changed). The same
//       goes for an index that was added later: it has entries for the rows of its day only.
//
// After rollback() and commit() the session has no transaction any more, whatever they answer (E18,
// E19 of README.md).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/wait_interrupt.h"
#include "dict/table_spec.h"
#include "lock/wait_listener.h"

namespace strata {
class FileSystem;
class PageSource;
class LogSink;
class TimestampSource;
class PageLock;
struct Trx;
}  // namespace strata

namespace strata::engine {

class TableCodecs;

struct KernelOptions {
  std::string directory;  // data folder; made when absent and `create`
  std::string profile = "monolithic";
  bool create = true;  // initialise an empty folder
  uint8_t node = 1;
  uint64_t buffer_pool_bytes = 128u << 20;
  uint64_t log_segment_bytes = 64u << 20;
  uint64_t log_checkpoint_bytes = 256u << 20;
  uint64_t checkpoint_interval_us = 300'000'000;
  uint64_t memory_checkpoint_interval_us = 500'000;  // where there is a memory tier
  bool redo_from_memory = true;  // false: as if that tier had no checkpoint (for experiments)
  uint32_t log_buffer_bytes = 32u << 20;
  bool direct_io = true;    // pages, and what is written to the log
  uint32_t open_files = 0;  // data files kept open; 0: a quarter of the process's limit, <= 1000
  bool background = true;   // writers, checkpointer, purge; false: tests drive them
  uint32_t purge_threads = 1;
  FileSystem* file_system = nullptr;      // null: posix
  WaitListener* wait_listener = nullptr;  // hears of waits of sessions that have an owner
  // E30: the database ends with the kernel; what an earlier one has left in the folder is removed.
  bool unlogged = false;
  TableCodecs* codecs = nullptr;  // table_codec.h; null: no cascades, and no old parents
};

enum class Isolation : uint8_t { kReadUncommitted, kReadCommitted, kRepeatableRead, kSerializable };
enum class LockMode : uint8_t { kNone, kShared, kExclusive };
enum class Durability : uint8_t { kSync, kNoSync };

// --- schema objects ---
// IndexSpec and TableSpec: dict/table_spec.h.
using strata::ForeignKeySpec;
using strata::IndexSpec;
using strata::KeyPartSpec;
using strata::ReferentialAction;
using strata::TableSpec;
using strata::WaitListener;
using strata::WaitOwner;

class Kernel;
struct KernelImpl;
class ReservedNumbers;

// The foreign keys of a table and the tables that refer to it, as they are now: those in the spec
// are of the day the Table was made (FK5). Never changed, but replaced.
struct TableReferences {
  std::vector<ForeignKeySpec> foreign_keys;
  std::vector<std::string> children;  // table_key() of others
  bool may_be_cascaded_to = false;    // a statement on another row may change rows here
};

// What alter_table() may call otherwise.
struct ColumnRename {
  std::string from, to;
};

// The foreign key that a row change, or DDL, has come to grief over. Names as in TableSpec.
struct ForeignKeyError {
  std::string schema, table;  // of the child
  ForeignKeySpec key;
  bool name_taken = false;  // of a key that was refused
  std::string index;        // cascaded_duplicate: the child's index; its key is not told
};

// What is counted of a table, so that several nodes can tell each other.
struct TableCounts {
  bool known = false;    // false: never sampled here, nor told
  uint64_t version = 0;  // grows whenever somebody tells something new
  uint64_t base = 0;     // the version with the sample from which the rows were counted
  uint64_t rows = 0;
  uint64_t modified = 0;  // rows that have changed since the last sample
  uint64_t clustered_pages = 1, index_pages = 0, index_pages_beside = 0;
  int64_t updated_at = 0;
};
// Of a table, by transactions of this node. The totals since it was opened only grow in `changed`:
// of two the one with more is the later one.
struct Committed {
  int64_t net = 0;  // rows more or less
  uint64_t changed = 0;
};
// What refresh_statistics() has come to.
struct Sampled {
  bool done = false;
  bool recounted = false;  // the number of rows is the sample's, no longer what was counted
};

// A table as committed (or as this session's own DDL made it). Shared, immutable but for counters.
class Table : public std::enable_shared_from_this<Table> {
 public:
  [[nodiscard]] const TableSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] uint64_t estimated_rows() const noexcept;  // live estimate, never negative
  // Of the trees, from samples; Kernel::sizes() also knows what is kept outside of rows.
  [[nodiscard]] uint64_t data_bytes() const noexcept;
  [[nodiscard]] uint64_t index_bytes() const noexcept;
  [[nodiscard]] uint64_t clustered_leaf_pages() const noexcept;
  // Seconds since 1970 of the last commit that changed rows here; 0: none since the database was
  // opened.
  [[nodiscard]] int64_t updated_at() const noexcept {
    return updated_at_.load(std::memory_order_relaxed);
  }
  // Never sampled since the database was opened, or more than a tenth of the rows has changed.
  [[nodiscard]] bool statistics_are_old() const noexcept;
  // Next AUTO_INCREMENT: reserves `count` values with the given step; returns the first. Never
  // returns a value up to `most` twice, also after a crash; what lies above does not fit the column
  // and is not reserved. `raise_auto_increment`: explicit value used. 0 = counter not initialised.
  // With several nodes each gives values out of ranges it takes for itself: taking one blocks, and
  // has the errors of NumberSource::reserve().
  StatusOr<uint64_t> reserve_auto_increment(uint64_t offset, uint64_t step, uint64_t count,
                                            uint64_t most);
  void raise_auto_increment(uint64_t used) noexcept;  // next > used
  [[nodiscard]] uint64_t next_auto_increment() const noexcept;
  uint64_t next_row_id() noexcept;  // hidden clustered key
  // Whether the definition was dropped or replaced since (stale handle): the caller reopens.
  [[nodiscard]] bool stale() const noexcept { return stale_.load(std::memory_order_acquire); }

  // Session::may_change() would ask nobody.
  [[nodiscard]] bool may_be_changed() const noexcept {
    return may_change_.load(std::memory_order_acquire);
  }

  // Valid as long as the table. Null: it has no foreign keys, and nobody refers to it.
  [[nodiscard]] const TableReferences* references() const noexcept {
    return references_.load(std::memory_order_acquire);
  }

  // Whether the counter in the table's space needs not be told of this value.
  [[nodiscard]] bool has_noted(uint64_t used) const noexcept;

 private:
  [[nodiscard]] uint64_t readable_since(uint32_t index) const noexcept {  // E6: snapshot
    return std::max(rebuilt_at_.load(std::memory_order_relaxed), index_built_at_[index]);
  }
  friend class Kernel;
  friend class Session;
  friend class TableCursor;
  friend struct KernelImpl;
  TableSpec spec_;
  std::shared_ptr<ReservedNumbers> numbers_;  // with several nodes, instead of auto_increment_
  std::atomic<bool> stale_{false};
  // This node may change rows, as far as other nodes are concerned (Session::may_change()).
  std::atomic<bool> may_change_{false};
  std::atomic<uint64_t> auto_increment_{1};
  std::atomic<uint64_t> row_id_{1};
  std::atomic<int64_t> rows_{0};
  std::atomic<uint64_t> clustered_pages_{1}, index_pages_{0};
  std::atomic<uint64_t> index_pages_beside_{0};  // those of index_pages_ in the table's own space
  std::atomic<int64_t> updated_at_{0};
  std::atomic<uint64_t> modified_since_sample_{0};  // rows
  std::atomic<bool> statistics_known_{true};        // false: opened from disk, not yet sampled
  std::atomic<bool> rows_exact_{true};              // counted since the table was made
  std::atomic<bool> refreshing_{false};
  // With several nodes: all that was committed here, and what of it the others know.
  std::atomic<int64_t> committed_net_{0}, told_net_{0};
  std::atomic<uint64_t> committed_changed_{0}, told_changed_{0};
  // Of the TableCounts taken last.
  std::atomic<uint64_t> counts_version_{0}, counts_base_{0}, counts_rows_{0};
  std::atomic<uint64_t> rebuilt_at_{0};             // E6: commit timestamp
  void set_references(TableReferences references);  // under the table map's mutex, or unpublished
  std::atomic<const TableReferences*> references_{nullptr};
  std::vector<std::unique_ptr<const TableReferences>> all_references_;  // who reads one keeps none
  std::vector<std::string> keeps_still_;  // FK9: of a copy; under the table map's mutex
  std::vector<uint64_t> index_built_at_;  // likewise; set before others see the table
};
using TableRef = std::shared_ptr<Table>;

// What a table takes on disk, in bytes.
struct TableSizes {
  uint64_t data = 0;     // the rows, with what is kept outside of them
  uint64_t indexes = 0;  // secondary ones
  uint64_t free = 0;     // pages in its files that nothing is on any more
};

// --- rows ---
// One secondary entry. The kernel appends the clustered key to `key` and remembers its length.
struct EntryImage {
  uint32_t index = 0;         // position in TableSpec::indexes, >= 1
  Bytes key;                  // encoded key parts
  bool check_unique = false;  // unique index and no NULL in the key
  Bytes covering;             // values an index-only read needs and the key cannot give back
};
// A value kept outside the row. `unchanged_from` >= 0: take the chain of the old row's value number
// so-and-so.
struct ExternalImage {
  Bytes value;
  int32_t unchanged_from = -1;
};
struct RowImage {
  Bytes key;           // clustered key
  Bytes inline_bytes;  // opaque; refers to externals by position
  const ExternalImage* externals = nullptr;
  uint32_t external_count = 0;
  const EntryImage* entries = nullptr;
  uint32_t entry_count = 0;
  uint64_t auto_increment_used = 0;  // persisted in the insert's mtr when > 0
  // A row that has one of the keys already stays locked: shared, or exclusively if the statement
  // will change it (REPLACE, ON DUPLICATE KEY UPDATE).
  bool changes_duplicates = false;
};
// How to build indexes of rows that are there already.
struct IndexBuild {
  // Gives the entries of a row in the indexes to be built: emit(entry), where entry.index is a
  // position in the new definition (others are ignored). What it fails with ends the build.
  using Emit = std::function<Status(const EntryImage& entry)>;
  using External = std::function<Status(uint32_t position, std::string* value)>;
  std::function<Status(Bytes clustered_key, Bytes row, const External& external, const Emit& emit)>
      entries_of;
  // Called every now and then; what it fails with ends the build. Rows and entries dealt with so
  // far, and how many there will be (an estimate).
  std::function<Status(uint64_t done, uint64_t of)> progress;
  uint64_t memory_bytes = 64u << 20;  // for sorting; what does not fit is sorted in files
  // Of kAlreadyExists: the index and the clustered key of one of the rows.
  uint32_t duplicate_index = 0;
  std::string duplicate_row;
};
// Largest clustered key / secondary key incl. clustered key, and largest row kept in a page: key,
// inline bytes, and kExternalBytes for each outside value. The glue moves values outside until it
// fits.
constexpr uint32_t kMaxKeyLength = 3600;
constexpr uint32_t kMaxRowBytes = 4034;
// Of an entry of a secondary index: its key, the clustered key and the covering bytes. Covering
// bytes that do not fit may be left out; what they mean is the glue's business.
constexpr uint32_t kMaxEntryBytes = kMaxRowBytes - 2;
constexpr uint32_t kExternalBytes = 24;

// A position in the session's transaction.
struct Savepoint {
  uint64_t undo = 0;         // undo position
  uint64_t row_deltas = 0;   // length of the row count journal
  uint64_t ddl_changes = 0;  // length of the list of DDL changes
};

class TableCursor;

// One client connection's transaction state.
class Session {
 public:
  // Rolls back what is active (a prepared transaction must have been detached), at once or in the
  // background.
  ~Session();

  // What KernelOptions::wait_listener knows it by. Before the first transaction.
  void set_owner(void* owner) noexcept;
  // Starts a transaction if none is active.
  void begin(Isolation isolation);
  [[nodiscard]] bool in_transaction() const noexcept;
  [[nodiscard]] bool has_changes() const noexcept;
  // After kAborted: a deadlock victim, or a transaction a part of which could not be undone.
  [[nodiscard]] bool must_rollback() const noexcept;
  Status undo_failure() const;  // why it could not; OK: there was no such failure
  [[nodiscard]] uint64_t trx_id() const noexcept;  // 0 before the first change
  Status open_view();                              // consistent snapshot now (idempotent)
  void close_view() noexcept;                      // READ COMMITTED: at statement end
  void set_isolation(Isolation isolation) noexcept;
  // At REPEATABLE READ, once there is a view: what it does not show is neither changed nor locked
  // (row_changed; only rollback is left). Until the transaction ends, or the next call.
  void set_refuses_unseen(bool refuses) noexcept;
  void set_lock_wait_timeout_us(uint64_t timeout_us) noexcept;  // 0 = NOWAIT
  // Off: foreign keys are neither checked nor followed, and tables may be made and dropped in any
  // order (FK7).
  void set_foreign_key_checks(bool on) noexcept;
  // After an error that is about one, until the next.
  [[nodiscard]] const ForeignKeyError& foreign_key_error() const noexcept;

  Savepoint savepoint();
  // kAborted: it could not, and only rollback() is left (E18).
  Status rollback_to(const Savepoint& savepoint);
  // First half of two-phase commit; durable when it returns. xid: opaque, at most 140 bytes.
  Status prepare(Bytes xid);
  // Fixes the commit position; no I/O, may run on another OS thread. reserve_commit() before it may
  // fail and block.
  Status reserve_commit();
  Status commit_ordered();
  // Ends the transaction (both halves if commit_ordered() did not run). kUnknown: outcome unknown,
  // or, of a prepared one, certain but not reached yet (E19). Any other error: it is, or is being,
  // rolled back. Blocks until a prepared one is committed, unless interrupted.
  Status commit(Durability durability = Durability::kSync);
  // kAborted: it could not be undone now and is undone in the background (E18).
  Status rollback();
  // Leaves a prepared transaction behind for commit_by_xid / rollback_by_xid.
  void detach_prepared();
  // Ends what this session waits for, but for commit, prepare and rollback; any thread.
  void interrupt() noexcept;
  void clear_interrupt() noexcept;
  // For an InterruptScope around calls that have no session. Valid until the session is detached or
  // destroyed.
  WaitInterrupt* wait_interrupt() noexcept;

  // --- changes. Errors: kAlreadyExists (*duplicate_index = which), kAborted, kDeadlineExceeded,
  // kCancelled, kNotFound, kResourceExhausted, kDataLoss. A failed call has undone its own row
  // completely. ---
  Status insert_row(Table* table, const RowImage& row, uint32_t* duplicate_index);
  // `entries_old`: keys (without clustered key) of the old row's entries to remove; row.entries:
  // entries to add. Entries that stay the same (key and covering) are in neither, unless the
  // clustered key changes: then all are in both.
  Status update_row(Table* table, Bytes old_key, const RowImage& row, const EntryImage* entries_old,
                    uint32_t entries_old_count, uint32_t* duplicate_index);
  Status delete_row(Table* table, Bytes key, const EntryImage* entries, uint32_t entry_count);
  // The same for the row that a scan stands on and holds (TableCursor::holds_run()), and may not
  // become a duplicate: made with others of its leaf, later, but before anything else that this
  // session does or reads (E21). update_row_later(): no outside value, neither before nor
  // afterwards, the key stays, and no entry changes.
  Status update_row_later(Table* table, Bytes key, Bytes inline_bytes);
  Status delete_row_later(Table* table, Bytes key, const EntryImage* entries, uint32_t entry_count);
  // Makes what was left for later. After a failure the session only says so again, until
  // rollback_to() a savepoint, or rollback().
  Status make_later_changes();

  // --- DDL (E3). What it means for foreign keys: references.h. foreign_key_refused, and
  // row_is_referenced of drop and truncate, if somebody else refers to the table ---
  // kAlreadyExists. `replaces`: table_key() of the table whose copy this will be.
  Status create_table(const TableSpec& spec, TableRef* out, Bytes replaces = {});
  // E32, where several nodes change tables; else nothing. In the transaction that creates it: the
  // statement is not done with that. Then with what makes it whole: it is done.
  Status begin_making(const TableRef& table);
  Status end_making(Bytes schema, Bytes name);
  // kNotFound. `with_schema`: children in the table's schema do not keep it, they go as well.
  Status drop_table(Bytes schema, Bytes name, bool with_schema = false);
  Status rename_table(Bytes schema, Bytes name, Bytes new_schema, Bytes new_name);
  // New empty space, same definition, but for the options if they are to be forgotten.
  Status truncate_table(Bytes schema, Bytes name, TableRef* out, bool forget_options = false);
  // Waits, up to the lock wait timeout, while a prepared transaction without a session has changes
  // in the table. What replaces a table, or begins to copy it, does that itself.
  // kDeadlineExceeded, kCancelled.
  Status wait_until_decided(const Table& table);
  // Makes `spec` the definition of the table whose name it has. The rows stay where they are: ids,
  // spaces and the clustered index are the old ones, every other index is an old one (index_id,
  // root_page, own_space_id; name and position may change) or one that build_indexes() has made in
  // this transaction. Indexes with a space of their own may be left out: they are dropped, unless a
  // foreign key needs them (foreign_key_refused). Foreign keys and children stay what they are, but
  // for the names of columns that are renamed: in the table's own keys, and in its children's.
  Status alter_table(const TableSpec& spec, const std::vector<ColumnRename>& renamed = {});
  // Builds those indexes of `spec` that have no index_id yet, each in a space of its own, from the
  // committed rows of `table`, and fills in what alter_table() needs. Nobody may change the table
  // until this transaction ends: a metadata lock sees to that, FK9 to cascades. Blocks for long;
  // log and disk are bounded as for row changes. kAlreadyExists, kCancelled, kResourceExhausted,
  // kDeadlineExceeded, kDataLoss.
  Status build_indexes(const TableRef& table, TableSpec* spec, IndexBuild* build);
  // With several nodes: nobody else uses or changes what has this name until the transaction ends;
  // whoever knew the table before sees by stale() whether it has changed. Else nothing. Also of a
  // name without a table. kDeadlineExceeded, kCancelled, kUnavailable.
  Status lock_name(Bytes schema, Bytes name);
  // With several nodes: what `lender` has locked by lock_name() this session has, too; the lender
  // keeps it. Null: nobody. The lender outlives the transactions of this session.
  void borrow_names(const Session* lender) noexcept;
  // With several nodes, before this transaction changes rows of the table: no other node keeps them
  // still (keep_rows_still()). Asks nobody if this node may still change them. Until it
  // ends, or for as long as whatever stands above the kernel (TableUsers) keeps give_up() waiting.
  // kDeadlineExceeded, kCancelled, kUnavailable.
  Status may_change(const TableRef& table);
  // With several nodes: no other one changes rows of the table until this transaction ends; it has
  // waited for transactions of others that have. Any number of nodes may do so at once. This node's
  // own are the caller's affair. Errors as above.
  Status keep_rows_still(Bytes schema, Bytes name);
  // Latest committed table of that name, or this session's own uncommitted one. kNotFound.
  StatusOr<TableRef> open_table(Bytes schema, Bytes name);
  // Journal of an ALTER by copy, kept in the dictionary (key -> value), for the glue's DDL
  // recovery.
  Status journal_put(Bytes key, Bytes value);
  Status journal_erase(Bytes key);

  struct Impl;

 private:
  friend class Kernel;
  friend class TableCursor;
  friend struct KernelImpl;
  Status rollback_to_position(UndoPtr to);
  Status commit_later(const Status& why);
  TableRef find(const std::string& key);
  StatusOr<SpaceId> make_space();
  Status make_table_space(TableSpec* spec);
  Status keep_originals_still(const TableSpec& copy, Bytes original);
  Status undo_row(const Savepoint& before, const Status& failure);
  // references_ddl.cc
  enum class ParentsMissing : uint8_t { kAsChecked, kOk };
  TableSpec spec_now(const std::string& key, const Table& table);
  Status use_names(std::vector<std::string> keys, const TableSpec* with_parents_of);
  Status check_references(const TableSpec& spec, Bytes as, const std::vector<std::string>& children,
                          ParentsMissing missing);
  Status check_names(const TableSpec& spec, Bytes but_of);
  Status refuse_if_referred_to(const TableSpec& spec, Bytes but_for_schema);
  static Status refuse_if_too_old(const TableSpec& parent);
  Status refuse(const TableSpec& child, const ForeignKeySpec& key, const std::string& why);
  Status change_parents(const TableSpec& spec, const std::string& key, bool add);
  Status change_children(const std::string& parent, const std::string& child, bool add);
  Status rename_parent(const std::vector<std::string>& children, const std::string& from,
                       const std::string& to);
  Status rename_parent_columns(const TableSpec& parent, const std::string& key,
                               const std::vector<ColumnRename>& renamed);
  Status put_references(const std::string& key, const TableRef& table, const TableSpec& spec);
  static void copy_counters(const Table& from, Table* to);
  static void copy_age(const Table& from, Table* to);
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Scan or point reads over one index. Holds no latch between calls.
class TableCursor {
 public:
  TableCursor(Session* session, TableRef table, uint32_t index);
  ~TableCursor();
  // kNone: consistent read by the session's view (opened on first use at >= READ COMMITTED; dirty
  // at READ UNCOMMITTED). Otherwise the latest version, locked before it is returned. With a lock
  // mode at SERIALIZABLE, what was read stays so until the transaction ends: rows and gaps are
  // protected against everybody else, not with set_skip_locked().
  void set_lock_mode(LockMode mode) noexcept;
  void set_skip_locked(
      bool skip) noexcept;  // rows that would have to be waited for are passed over
  // What is read with a lock mode stays so until the transaction ends, as at SERIALIZABLE, from the
  // next seek on: for whoever is about to write what was not there.
  void set_protects_ranges(bool protects) noexcept;
  // Whatever the isolation level: kNone reads what is in the rows now, by a session whose tables no
  // other one changes.
  void set_reads_dirty(bool dirty) noexcept;
  // A promise that nothing outside [low, high) is wanted (empty high: no bound), in force from the
  // next move on: SERIALIZABLE protects no more than that, and no delete outside of it is refused
  // (set_refuses_unseen()). Entries outside may be left out.
  void set_bounds(Bytes low, Bytes high);
  // Stand on the first entry with key >= `key` (prefixes are fine) / the last with key < `key`
  // (empty = last of all). Afterwards valid() says whether there is one.
  Status seek(Bytes key);
  Status seek_before(Bytes key);
  Status next();
  Status prev();
  [[nodiscard]] bool valid() const noexcept;
  // The entry the cursor stands on, until the next move. In the clustered index all three keys are
  // the row's and nothing is covered.
  struct Entry {
    Bytes whole;  // what seek() compares with: `key`, then the clustered key
    Bytes key;    // of this index
    Bytes clustered_key;
    Bytes covering;  // the covering bytes
  };
  [[nodiscard]] Entry entry() const noexcept;
  [[nodiscard]] Bytes clustered_key() const noexcept;
  // The clustered row: on the clustered index what seek/next found; on a secondary index it is
  // looked up, and, with a lock mode, locked. *gone = true: the row is no longer there (or fails
  // the index entry): move on. With a lock mode this is the point where the row is locked; entries
  // not fetched are not locked.
  Status fetch(bool* gone);
  // Locks the entry itself, shared, and not the row: LockMode::kShared only. *gone = true: it is no
  // longer there.
  Status lock_entry(bool* gone);
  // The latest committed (or own) version of the row, without a lock whatever the lock mode, and
  // without a wait. Clustered index only, and not at SERIALIZABLE; a fetch() afterwards locks.
  Status fetch_unlocked(bool* gone);
  // Gives back the lock that the last fetch() took, unless it was held before or the row has been
  // changed since. Not at REPEATABLE READ and above.
  Status unlock_row();
  [[nodiscard]] Bytes row() const noexcept;  // inline bytes, after fetch(), until the next move
  [[nodiscard]] uint32_t external_count() const noexcept;
  // A value kept outside, of the fetched row. At READ UNCOMMITTED without a lock mode "not found"
  // says that the row has changed since and the value is gone: fetch_again() reads the row anew,
  // and what was taken from it before no longer counts.
  Status external(uint32_t position, std::string* out);
  Status fetch_again(bool* gone);
  // Whether the row fetched last is locked together with others of its leaf.
  [[nodiscard]] bool holds_run() const noexcept;
  // Point read by clustered key, as seek+fetch on the clustered index. *gone = not found.
  Status get(Bytes clustered_key, bool* gone);
  // As after get(), of a row that is not in its place yet. `payload`: as the kernel writes it.
  Status show(Bytes clustered_key, Bytes payload);
  // Reads what is there now, whatever the session's view, and locks no row before it is fetched:
  // for whoever follows foreign keys. Only with a lock mode.
  void set_follows_references() noexcept;
  // As if just made. A cursor at rest may outlive its session, but must not be used then.
  void reset() noexcept;
  // From now on for this session of the same kernel; resets a cursor that was another's.
  void use_in(Session* session) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct PreparedTransaction {
  std::string xid;
};

struct CheckResult {
  uint64_t rows = 0;
  std::vector<std::string> problems;
};

class Kernel {
 public:
  // Opens (or creates) the database: recovery = redo, then rollback in the background. Errors name
  // file and remedy; nothing is overwritten: kDataLoss (damaged/foreign), in_use, wrong_database,
  // unsupported (newer format, other profile, in use).
  static StatusOr<std::unique_ptr<Kernel>> open(const KernelOptions& options);
  ~Kernel();          // stops without a final checkpoint, like a crash, unless shutdown() ran
  Status shutdown();  // sessions are gone; stops purge, rolls back, checkpoint, marks clean

  std::unique_ptr<Session> new_session();

  // Committed names; `visit(schema, name)` for each table whose name is not internal (or all).
  void for_each_table(bool include_internal, const std::function<void(const TableSpec&)>& visit);
  bool table_exists(Bytes schema, Bytes name);
  // What is not visited after an error may be there all the same.
  Status for_each_journal(const std::function<void(Bytes key, Bytes value)>& visit) {
    return for_each_journal(Bytes(), visit);
  }
  // Only rows whose keys begin with `prefix`; no others are read.
  Status for_each_journal(Bytes prefix, const std::function<void(Bytes key, Bytes value)>& visit);

  // XA.
  std::vector<PreparedTransaction> prepared_transactions();
  Status commit_by_xid(Bytes xid);  // kNotFound
  Status rollback_by_xid(Bytes xid);

  // Statistics.
  StatusOr<uint64_t> estimate_range(Table* table, uint32_t index, Bytes low,
                                    Bytes high);  // empty high = infinite
  // Samples an index: visit(leaf, key) for entries of up to `pages` leaf pages picked at random;
  // those of one leaf come in order and have the same `leaf`.
  Status sample(Table* table, uint32_t index, uint32_t pages,
                const std::function<void(uint32_t leaf, Bytes key)>& visit);
  Status refresh_statistics(Table* table, Sampled* out = nullptr);
  // Without I/O; as exact as the last samples of its indexes.
  [[nodiscard]] TableSizes sizes(const Table& table) const;
  // Does so when they are old: reads some 20 leaves, so that it may run before any query.
  Status refresh_old_statistics(Table* table, Sampled* out = nullptr);
  // Several nodes tell each other what they count (counts.cc). Each adds what it has committed and
  // not told yet to what all of them know.
  [[nodiscard]] static TableCounts counts(const Table& table) noexcept;
  [[nodiscard]] static Committed committed(const Table& table) noexcept;  // totals
  // Of these totals, what nobody else knows.
  [[nodiscard]] static Committed untold(const Table& table, const Committed& totals) noexcept;
  // What all know, unless something newer is known here. `told`: the totals of this node that are
  // in it, which may be old news; without, somebody else may have told it: a newer sample than was
  // known here has seen all of this node's. Of one table by one thread at a time.
  static void take_counts(Table* table, const TableCounts& known, const Committed* told) noexcept;
  std::vector<TableRef> tables_with_untold();
  // Structure of every tree of the table, and entries against rows both ways: row_entries(row
  // inline bytes, externals loader, emit(index, key)) computes the entries a row must have. As of
  // one moment, whatever the session's isolation level.
  using EmitEntry = std::function<void(uint32_t index, Bytes key)>;
  using RowEntries = std::function<Status(
      Bytes clustered_key, Bytes row, const std::function<Status(uint32_t, std::string*)>& external,
      const EmitEntry& emit)>;
  Status check_table(Session* session, const TableRef& table, bool entries,
                     const RowEntries& row_entries, CheckResult* out);

  Status persist_log();  // everything committed so far is durable (FLUSH LOGS, checkpoint request)
  Status checkpoint();
  Status memory_checkpoint();  // in the memory tier; OK without one
  std::string status_text();   // SHOW ENGINE STRATA STATUS
  // For people. A transaction is listed once it has changed or locked something.
  struct TransactionInfo {
    uint64_t id;
    const char* state;  // ACTIVE, PREPARED, COMMITTING
    uint64_t age_us;
    uint64_t connection;    // 0: it has none (any more)
    std::string statement;  // which runs in it
  };
  std::vector<TransactionInfo> transactions();
  struct LockWaitInfo {
    uint64_t waiter, holder;  // transactions; 0: not known
    uint64_t waiter_connection, holder_connection;
    std::string waiter_statement, holder_statement;
    uint64_t waited_us;
    std::string schema, table, index;  // empty: not known
    std::string key;                   // in hexadecimal digits, or its beginning
  };
  // `most` at most.
  std::vector<LockWaitInfo> lock_waits(size_t most);
  // What a person should know and do (cause_and_remedy()). OK: all is well.
  [[nodiscard]] Status trouble() const;
  struct Counter {
    const char* name;
    uint64_t value;
  };
  std::vector<Counter> counters();
  [[nodiscard]] uint64_t database_id() const noexcept;
  // Other nodes change the same tables.
  [[nodiscard]] bool shares_tables() const noexcept;
  // E32, for what had to wait for prepared transactions when the kernel was opened, before anybody
  // has a session. What cannot be dropped stays for the next time, with a line.
  Status drop_half_made();
  Status run_purge(uint64_t limit);  // tests, and background = false
  Status run_unfinished();           // likewise: tries once to end each that is left (E18, E19)

  struct KernelImpl* impl() noexcept {
    return impl_.get();
  }

 private:
  friend class Session;
  friend class TableCursor;
  friend struct KernelImpl;
  class ReadsByView;
  Kernel();
  std::unique_ptr<struct KernelImpl> impl_;
};

}  // namespace strata::engine
