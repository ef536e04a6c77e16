// The kernel's parts and how they are wired; private to this folder.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/assert.h"
#include "base/latch.h"
#include "bufpool/buffer_pool.h"
#include "bufpool/checkpointer.h"
#include "dict/dictionary.h"
#include "engine/kernel.h"
#include "engine/kernel_seams.h"
#include "io/file_system.h"
#include "lock/row_waits.h"
#include "pagefile/local_page_source.h"
#include "row/row_store.h"
#include "space/number_source.h"
#include "space/space_manager.h"
#include "txn/trx_system.h"
#include "undo/undo_log.h"
#include "wal/control_file.h"
#include "wal/local_log_sink.h"
#include "wal/log.h"

namespace strata::engine {

// A space whose drop is committed: the file goes first, the pending-delete entry after a checkpoint
// (E4).
struct DroppedSpace {
  SpaceId space;
  bool file_deleted = false;
  Lsn forget_after;  // entry may go once redo starts here or later
};

// Of the backup that is being made, or of the last one (backup.h). Written by its thread.
struct BackupState {
  std::atomic<bool> running{false};       // one at a time
  std::atomic<bool> log_given_up{false};  // BU5
  std::atomic<uint64_t> pages{0};         // of the spaces there were at its beginning
  std::atomic<uint64_t> pages_done{0};
  std::atomic<uint64_t> pages_copied{0};
  std::atomic<uint64_t> log_bytes{0};
  std::atomic<uint64_t> checkpoint_llsn{0};  // every change up to here is in its pages
  std::atomic<uint64_t> end_lsn{0};          // where its log ends; 0: not known yet
};

struct RecoveryStatistics {
  uint64_t log_bytes = 0;
  uint64_t groups = 0;
  uint64_t sections_applied = 0;
  uint64_t sections_skipped = 0;
  uint64_t redo_us = 0;
  std::atomic<uint64_t> rolled_back{0};
  std::atomic<uint64_t> to_roll_back{0};  // behind the service
  uint64_t total_us = 0;
};

struct KernelImpl final : SchemaUser {
  KernelOptions options;
  KernelSeams seams;
  std::unique_ptr<FileSystem> own_file_system;
  std::unique_ptr<FileSystem> unsynced_files;  // E30
  FileSystem* files = nullptr;
  std::unique_ptr<FileLock> directory_lock;

  std::unique_ptr<ControlStore> own_control;
  ControlStore* control = nullptr;
  std::unique_ptr<LogSink> own_sink;
  LogSink* sink = nullptr;
  std::unique_ptr<PageSource> own_source;
  PageSource* source = nullptr;
  std::unique_ptr<BufferPool> pool;
  std::unique_ptr<Log> log;
  std::unique_ptr<SpaceManager> spaces;
  std::unique_ptr<NumberSource> numbers;  // with several writers
  std::unique_ptr<UndoSpace> undo;
  std::unique_ptr<RowWaits> waits;
  std::unique_ptr<TimestampSource> own_timestamps;
  TimestampSource* timestamps = nullptr;
  std::unique_ptr<TrxSystem> trxs;
  RowContext row{};
  std::unique_ptr<Dictionary> dictionary;
  std::unique_ptr<Checkpointer> checkpointer;
  RecoveryStatistics recovery;
  BackupState backup;

  // Committed tables by table_key(). Published at commit, never while a page latch is held.
  Mutex tables_mutex{LatchRank::kDictionary};
  std::map<std::string, TableRef, std::less<>> tables STRATA_GUARDED_BY(tables_mutex);
  // With several nodes (SchemaChanges): names this node has the lock of, with what it remembers.
  struct Name {
    uint32_t users = 0;     // transactions that have found it
    bool known = false;     // the lock is there, and the table map tells the truth about the name
    bool loading = false;   // one transaction sees to that; others wait
    bool given_up = false;  // another node wants it: nobody begins to use it
  };
  std::map<std::string, Name, std::less<>> names STRATA_GUARDED_BY(tables_mutex);
  CondVar names_changed;
  bool told_schema = false;
  // Alone: names that a DDL transaction has to itself.
  std::set<std::string, std::less<>> ddl_names STRATA_GUARDED_BY(tables_mutex);
  // FK9. By table_key(): transactions in which a cascade changes the table; how many keep it still.
  struct Cascades {
    uint32_t users = 0;
    uint32_t kept_still = 0;
  };
  std::map<std::string, Cascades, std::less<>> cascades STRATA_GUARDED_BY(tables_mutex);

  // Transactions without a session. A prepared one stays here until its end is reached, so that DDL
  // sees it (E14); while it is being decided `trx` is null.
  struct Prepared {
    std::unique_ptr<Trx> trx;
    std::vector<SpaceId> changed_spaces;
  };
  Mutex prepared_mutex{LatchRank::kEngine};
  CondVar prepared_decided;
  std::atomic<uint64_t> ddl_waiting{0};  // statements that wait for a decision
  std::map<std::string, Prepared> prepared STRATA_GUARDED_BY(prepared_mutex);
  // Transactions that a thread of ours brings to their end (E18): what recovery found active, and
  // what a session could not undo, or could not commit though that was decided.
  struct Unfinished {
    std::unique_ptr<Trx> trx = nullptr;
    bool commit = false;                       // decided by others: never to be undone
    bool recovered = false;                    // by this start, from the log
    std::vector<SpaceId> created_spaces = {};  // go once it is rolled back
    std::string why = {};  // it did not work the last time; empty: not tried yet
    uint64_t retry_us = 0;
    uint64_t retry_at = 0;
  };
  Mutex unfinished_mutex{LatchRank::kEngine};
  CondVar unfinished_changed;
  std::vector<Unfinished> unfinished STRATA_GUARDED_BY(unfinished_mutex);  // newest last
  std::atomic<uint64_t> unfinished_rollbacks{0};                           // with the one in work
  std::atomic<uint64_t> unfinished_commits{0};

  Mutex dropped_mutex{LatchRank::kLeaf};
  CondVar dropped_changed;
  std::vector<DroppedSpace> dropped STRATA_GUARDED_BY(dropped_mutex);
  size_t dropped_count STRATA_GUARDED_BY(dropped_mutex) =
      0;  // entries of the pending-delete page, also those being worked on

  // A change was refused for want of room; until look_for_disk_room() finds some.
  std::atomic<bool> growth_refused{false};

  // The last one, as text; and when one was last written to the error log.
  Mutex deadlock_mutex{LatchRank::kLeaf};
  std::string last_deadlock STRATA_GUARDED_BY(deadlock_mutex);
  uint64_t deadlock_logged_us STRATA_GUARDED_BY(deadlock_mutex) = 0;
  uint64_t deadlocks_not_logged STRATA_GUARDED_BY(deadlock_mutex) = 0;

  Mutex flusher_mutex{LatchRank::kLeaf};
  CondVar flusher_wakes;

  std::atomic<bool> stopping{false};
  std::vector<std::thread> threads;
  bool shut_down = false;

  ~KernelImpl() override;

  // K13: `told`, if that says something of the data (OK, not found, a duplicate) and this node may
  // still answer for it; else that it may not.
  [[nodiscard]] Status answer(Status told) const;

  // kernel_open.cc
  static Kernel* make_kernel();
  Status open();
  Status create_database();
  Status open_database();
  Status check_folder();
  Status lock_directory();
  Status start_services(Lsn log_start, uint64_t bias);
  Status make_trx_system();
  // Nobody else writes pages of this database.
  [[nodiscard]] bool sole_writer() const noexcept {
    return (seams.page_source == nullptr || seams.control != nullptr) &&
           seams.page_lock == nullptr && !seams.attach;
  }
  // Other nodes change the same pages.
  [[nodiscard]] bool several_writers() const noexcept { return seams.page_lock != nullptr; }
  [[nodiscard]] bool shares_tables() const noexcept { return seams.schema != nullptr; }
  [[nodiscard]] uint64_t first_row_id() const noexcept {
    return (uint64_t{options.node} << 56) + 1;
  }
  Status load_tables();
  [[nodiscard]] Status missing_space(uint32_t space) const;
  [[nodiscard]] MemoryCheckpoint redo_start(const ControlData& data) const;
  Status collect_orphan_spaces();
  Status take_up_drops();
  // half_made.cc (E32)
  std::unique_ptr<Session> new_session();
  Status drop_half_made();
  struct HalfMade;
  Status drop_half_made(const HalfMade& mark);
  Status unmark(Session::Impl* session, Bytes schema, Bytes name);
  Status clear_sort_folder();
  [[nodiscard]] std::string sort_folder() const { return options.directory + "/sort"; }
  void start_threads();
  void stop_threads();
  StatusOr<bool> find_control();
  [[nodiscard]] LocalLogOptions log_folder(uint64_t database_id) const;
  Status create_log(const ControlData& data);
  Status open_log(const ControlData& data);
  Status publish_first(const ControlData& data);
  // looking_inside.cc
  [[nodiscard]] std::vector<Kernel::LockWaitInfo> with_names(const std::vector<RowWait>& waits);
  void note_deadlock(const DeadlockReport& report);
  // unlogged.cc
  Status open_unlogged();
  Status remove_left_files();
  // recovery.cc
  Status redo(Lsn from, Lsn* end, uint64_t* bias, std::vector<SpaceId>* dropped);
  Status collect_pending_deletes(std::set<uint32_t>* gone);
  Status scan_log(Lsn from, Lsn* end, uint64_t* bias, std::set<uint32_t>* gone);
  Status apply_log(Lsn from, Lsn end, uint64_t bias, uint64_t bias_at_end,
                   const std::set<uint32_t>& gone);
  Status roll_back_unfinished();
  // unfinished.cc
  Status roll_back(Trx* trx);
  void finish_later(Unfinished item);
  void commit_later(std::unique_ptr<Trx> trx, std::vector<SpaceId> spaces, const Status& why);
  Status try_to_finish(Unfinished* item, const std::atomic<bool>* stop);
  void keep_for_retry(Unfinished item, const Status& failure);
  bool take_unfinished(uint64_t now, Unfinished* out, uint64_t* next_at)
      STRATA_REQUIRES(unfinished_mutex);
  void rollback_thread();
  [[nodiscard]] std::string describe_unfinished(size_t limit);
  [[nodiscard]] bool checkpoint_frees_log() const;
  void ask_for_log_room();
  bool free_log_room();
  // prepared.cc
  void keep_prepared(std::unique_ptr<Trx> trx);
  Status decide_prepared(Bytes xid, const std::function<Status(Trx*)>& decide);
  Status wait_until_decided(SpaceId space, Trx* waiter);
  bool wait_until_decided(SpaceId space, uint64_t deadline_us);
  Status wait_until_decided_here(SpaceId space, Trx* waiter, uint64_t deadline_us);
  Status wait_until_decided_elsewhere(std::vector<TrxId> undecided, Trx* waiter,
                                      uint64_t deadline_us);
  StatusOr<std::vector<TrxId>> prepared_elsewhere(SpaceId space);
  [[nodiscard]] bool is_undecided(SpaceId space) const STRATA_REQUIRES(prepared_mutex);
  // reaper.cc
  void note_dropped(SpaceId space);
  void discard_created(SpaceId space);  // of a rolled back CREATE
  Status wait_for_drop_room(WaitInterrupt* interrupt);
  Status reap_dropped();
  void reaper_thread();
  void purge_thread();
  void log_flusher_thread();
  void look_for_disk_room();
  // names.cc
  Status use_name(Session::Impl* session, const std::string& key, bool exclusive);
  Status lock_name(Session::Impl* session, const std::string& key);
  Status ask_for_name(const std::string& key, bool exclusive, uint64_t left_us,
                      WaitInterrupt* interrupt);
  void no_more_changes(Bytes right) STRATA_REQUIRES(tables_mutex);
  void release_names(Session::Impl* session) noexcept;
  Status use_for_cascade(Session::Impl* session, const std::string& key);
  Status keep_still(Session::Impl* session, const std::string& key);
  void let_go(const std::vector<std::string>& kept) STRATA_REQUIRES(tables_mutex);
  void give_up_copy(Table* copy);
  template <typename Free>
  Status wait_for_names(Session::Impl* session, const Free& is_free) STRATA_REQUIRES(tables_mutex);
  StatusOr<TableRef> load_table(const std::string& key);
  Status give_up(Bytes name, uint64_t timeout_us) override;
  Status forget(Bytes name, uint64_t timeout_us);
  Status leave_space(SpaceId space) override;
  // tables.cc
  using VisitReferences =
      std::function<void(const TableSpec& spec, const std::vector<ForeignKeySpec>& keys)>;
  Status for_each_child(Session::Impl* session, const VisitReferences& visit);
  Status tables_referring_to(Session::Impl* session, const std::string& name,
                             std::vector<std::string>* children);
  TableRef make_table(TableSpec spec);
  Status make_trees(TableSpec* spec, SpaceId space, const std::vector<uint32_t>& indexes);
  Status load_counters(Table* table);
  [[nodiscard]] std::string path(const char* name) const { return options.directory + "/" + name; }
};

class References;
struct RowKeys;

// For people: what went wrong. Statuses of hot paths carry a code only.
std::string text_of(const Status& failure);

inline bool is_undo_space(SpaceId space) noexcept {
  return space.value != kSystemSpace && space.value < kFirstUserSpace;
}

inline TreeId tree_of(const Table& table, uint32_t index) {
  const TableSpec& spec = table.spec();
  STRATA_ASSERT(index < spec.indexes.size());
  const IndexSpec& tree = spec.indexes[index];
  return TreeId{IndexId{tree.index_id},
                PageId{tree.own_space_id != 0 ? tree.own_space_id : spec.space_id, tree.root_page}};
}

// One uncommitted dictionary change of a session; table null = the name is gone.
struct DdlChange {
  std::string key;
  TableRef table = nullptr;
  TableRef replaced = nullptr;               // becomes stale when this commits
  std::vector<SpaceId> created_spaces = {};  // deleted when this is rolled back
  std::vector<SpaceId> dropped_spaces = {};  // deleted when this commits
  bool rebuilt = false;                      // older views cannot read `table` (E6)
  std::vector<uint32_t> built = {};          // ... nor these indexes
  // Only what refers to what has changed; `table` is the one that was there.
  std::unique_ptr<TableReferences> references = nullptr;
  std::vector<std::string> keeps_still = {};  // FK9: by `table`, a copy, from the commit on
};

struct Session::Impl {
  KernelImpl* kernel = nullptr;
  Session* session = nullptr;
  std::unique_ptr<Trx> trx;
  // Guards swapping trx against interrupt(), which takes the mutex of what the session waits for:
  // any of them, so this one comes before all.
  Mutex trx_mutex{LatchRank::kSession};
  Isolation isolation = Isolation::kRepeatableRead;
  uint64_t lock_wait_timeout_us = 50000000;
  bool ordered = false;  // commit_ordered() ran
  bool reserved = false;
  struct RowDelta {
    TableRef table;
    int64_t net;  // rows more or less
    uint64_t changed;
  };
  std::vector<RowDelta> row_deltas;  // journal, cut back by savepoints
  size_t merge_floor =
      0;  // journal length at the newest savepoint: entries below it keep their extent
  std::vector<DdlChange> ddl;
  std::map<std::string, bool> used_names;          // by this transaction; true: exclusively
  const Session::Impl* lender = nullptr;           // of names, Session::borrow_names()
  std::set<std::string, std::less<>> cascaded_to;  // FK9
  std::vector<std::string> kept_still;             // likewise; until this transaction ends
  std::string payload, key, old_payload;           // scratch, reused
  bool foreign_key_checks = true;
  std::unique_ptr<References> references;  // made when a table has some
  ForeignKeyError foreign_key_error;

  Impl();
  ~Impl();
  // E21
  struct LaterRow {  // places in `bytes`, one behind the other
    uint32_t key_bytes;
    uint32_t payload_bytes;  // of the new version
    uint32_t entry_count;    // of a deleted row; in `entries`
    bool deletes;
  };
  struct LaterEntry {
    uint32_t index;
    uint32_t key_bytes;  // without the clustered key, in `bytes` behind the row's
  };
  struct Later {
    TableRef table;
    std::string bytes;
    std::vector<LaterRow> rows;
    std::vector<LaterEntry> entries;
    std::vector<HeldChange> changes;  // scratch
    Status failed;
  } later;

  Status wait_for_log_room();
  [[nodiscard]] Status make_later() {
    return later.rows.empty() && later.failed.ok() ? ok_status() : session->make_later_changes();
  }
  Status add_later(Table* table, const LaterRow& row, Bytes key, Bytes payload,
                   const EntryImage* entries);
  Status apply_later();
  void drop_later() noexcept;
  Status order_commit();
  Status order_decided_commit();
  std::unique_ptr<Trx> give_up_trx();
  void count_unseen();
  void forget_lock(const Table& table, Bytes key);
  Status delete_entry(const Table& table, uint32_t index, Bytes own_key, Bytes clustered_key);
  void ended();
  void note_rows(Table* table, int32_t delta);
  // references.cc. Null: the table has no foreign keys that would have to be checked.
  StatusOr<std::shared_ptr<const struct Links>> links_to_check(Table* table);
  Status follow(Table* table, const RowKeys& keys, uint32_t index, Bytes unwritten);
  void merge_row_deltas(size_t from);
  void apply_row_deltas();
  void publish_ddl();
};

}  // namespace strata::engine
