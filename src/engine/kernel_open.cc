// Opening, creating and closing a database.
#include <random>
#include <set>

#include "base/assert.h"
#include "base/clock.h"
#include "base/data_format.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/profiles.h"
#include "engine/internal/kernel_impl.h"
#include "txn/trx_system.h"

namespace strata::engine {
namespace {

std::string control_name(uint8_t node) { return "control-" + std::to_string(node); }

uint64_t random_database_id() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

KernelImpl::~KernelImpl() {
  stop_threads();
  if (waits != nullptr) waits->on_deadlock(nullptr);
  if (told_schema) seams.schema->leave(NodeId{options.node});
  // The next start finds them again. What they have reserved in the log is given back to it.
  unfinished.clear();
  prepared.clear();
  if (log != nullptr) log->on_no_room(nullptr);
  checkpointer.reset();
  dictionary.reset();
  trxs.reset();
  waits.reset();
  undo.reset();
  spaces.reset();
  if (pool != nullptr && seams.page_lock != nullptr) seams.page_lock->serve(nullptr);
  pool.reset();
  log.reset();
  own_sink.reset();
}

// Two processes on one folder would destroy it. The lock goes with the process, however it ends.
Status KernelImpl::lock_directory() {
  const std::string lock_path = path("lock");
  auto locked = files->lock_file(lock_path);
  if (is_in_use(locked.status()))
    return error_in_use("the data folder " + options.directory +
                        " is in use by another process (lock on " + lock_path + ")");
  STRATA_RETURN_IF_ERROR(locked.status());
  directory_lock = std::move(locked).value();
  return ok_status();
}

Status KernelImpl::open() {
  const uint64_t begin = monotonic_us();
  if ((seams.log_sink == nullptr) != (seams.control == nullptr))
    return error_invalid_argument("a log sink and a control store come together");
  const Profile* profile = find_profile(options.profile);
  if (seams.control == nullptr && (profile == nullptr || profile->is_of_cluster())) {
    return error_invalid_argument("profile '" + options.profile +
                                  "' is none of a database whose files are all in its folder");
  }
  if (options.node == 0 || options.node == 255) {
    return error_invalid_argument("the node number must be between 1 and 254");
  }
  if (options.file_system == nullptr) own_file_system = make_posix_file_system();
  files = options.file_system != nullptr ? options.file_system : own_file_system.get();
  if (options.unlogged) {
    STRATA_RETURN_IF_ERROR(open_unlogged());
    start_threads();
    return ok_status();
  }
  STRATA_RETURN_IF_ERROR(files->make_directory(options.directory));
  // Before the lock file is made: a folder of somebody else's stays as it is. With a lock file
  // another process may be creating the database right now.
  STRATA_ASSIGN_OR_RETURN(const bool locked_once, files->exists(path("lock")));
  if (!locked_once) STRATA_RETURN_IF_ERROR(check_folder());
  STRATA_RETURN_IF_ERROR(lock_directory());

  STRATA_ASSIGN_OR_RETURN(const bool exists, find_control());
  STRATA_RETURN_IF_ERROR(exists ? open_database() : create_database());
  STRATA_RETURN_IF_ERROR(clear_sort_folder());
  if (seams.schema != nullptr) {
    STRATA_RETURN_IF_ERROR(seams.schema->join(NodeId{options.node}, this));
    told_schema = true;
    STRATA_RETURN_IF_ERROR(drop_half_made());  // before others may look (MW23)
    STRATA_RETURN_IF_ERROR(seams.schema->has_recovered(NodeId{options.node}));
    if (!seams.recovers_only) STRATA_RETURN_IF_ERROR(take_up_drops());
  }
  start_threads();
  recovery.total_us = monotonic_us() - begin;
  return ok_status();
}

StatusOr<bool> KernelImpl::find_control() {
  if (seams.control != nullptr) {
    control = seams.control;
    return control->data().database_id != 0;
  }
  auto opened = ControlFile::open(files, path(control_name(options.node).c_str()));
  if (is_not_found(opened.status())) return false;
  if (!opened.ok()) return opened.status();
  own_control = std::move(opened).value();
  control = own_control.get();
  return true;
}

Status KernelImpl::publish_first(const ControlData& data) {
  if (seams.control != nullptr || options.unlogged) return control->publish(data);
  STRATA_RETURN_IF_ERROR(files->sync_directory(options.directory));
  STRATA_ASSIGN_OR_RETURN(
      own_control, ControlFile::create(files, path(control_name(options.node).c_str()), data));
  control = own_control.get();
  return ok_status();
}

Status KernelImpl::start_services(Lsn log_start, uint64_t bias) {
  STRATA_ASSERT(log == nullptr && pool != nullptr && sink != nullptr);
  LogOptions log_options;
  log_options.node = NodeId{options.node};
  log_options.buffer_bytes = options.log_buffer_bytes;
  // The reserve is there before anything can need it (wal LS7). Without it the database serves all
  // the same; the log says so when it looks for room next.
  if (own_sink != nullptr) own_sink->prepare_room(own_sink->room_end()).IgnoreError();
  log = std::make_unique<Log>(log_options, sink, log_start, bias);
  pool->attach_log(log.get());
  if (seams.page_lock != nullptr) seams.page_lock->serve(pool.get());  // PL3
  return ok_status();
}

Status KernelImpl::make_trx_system() {
  const NodeId node{options.node};
  STRATA_ASSERT(log != nullptr && spaces == nullptr);
  spaces = std::make_unique<SpaceManager>(
      pool.get(), log.get(), node,
      SpaceOptions{.shared = several_writers(), .reuse = seams.page_reuse});
  STRATA_RETURN_IF_ERROR(spaces->join_reuse());
  if (several_writers()) numbers = make_header_numbers(pool.get(), log.get(), spaces.get());
  undo = std::make_unique<UndoSpace>(pool.get(), log.get(), spaces.get(), node);
  waits = std::make_unique<RowWaits>(seams.locks);
  return ok_status();
}

namespace {

StatusOr<std::unique_ptr<BufferPool>> make_pool(const KernelImpl& k) {
  BufferPoolOptions pool_options;
  pool_options.bytes = k.options.buffer_pool_bytes;
  pool_options.sole_writer = k.sole_writer();
  pool_options.writers = k.options.background ? 2 : 0;
  PageLock* lock = k.seams.page_lock != nullptr ? k.seams.page_lock : no_page_lock();
  return BufferPool::create(pool_options, k.source, lock, nullptr);
}

}  // namespace

LocalLogOptions KernelImpl::log_folder(uint64_t database_id) const {
  LocalLogOptions log_options;
  log_options.directory = path("log");
  log_options.node = NodeId{options.node};
  log_options.database_id = database_id;
  log_options.segment_bytes = options.log_segment_bytes;
  // As many as a checkpoint frees (CP5): filling a new one with zeroes writes every log byte twice.
  log_options.spare_segments_max = static_cast<uint32_t>(
      std::max<uint64_t>(2 * options.log_checkpoint_bytes / options.log_segment_bytes, 4));
  log_options.reserve_segments = 1;
  log_options.direct_io = options.direct_io;
  return log_options;
}

Status KernelImpl::create_log(const ControlData& data) {
  sink = options.unlogged ? own_sink.get() : seams.log_sink;
  if (sink != nullptr) {
    // Whatever an earlier attempt left behind that was never a database.
    return sink->cut_at(data.checkpoint_lsn);
  }
  const LocalLogOptions folder = log_folder(data.database_id);
  STRATA_RETURN_IF_ERROR(files->make_directory(folder.directory));
  STRATA_ASSIGN_OR_RETURN(own_sink, create_local_log(files, folder, data.checkpoint_lsn));
  sink = own_sink.get();
  return ok_status();
}

Status KernelImpl::open_log(const ControlData& data) {
  sink = seams.log_sink;
  if (sink != nullptr) return ok_status();
  STRATA_ASSIGN_OR_RETURN(own_sink, open_local_log(files, log_folder(data.database_id)));
  sink = own_sink.get();
  return ok_status();
}

namespace {

void wire_rows(KernelImpl* k) {
  k->row.tree = TreeContext{k->pool.get(), k->log.get(), k->spaces.get()};
  k->row.trxs = k->trxs.get();
  k->row.undo = k->undo.get();
  // Of a row that is locked and not written to no other node would know.
  if (k->seams.locks != nullptr) k->row.unwritten_locks_max = k->row.runs_max = 0;
}

Status open_source(KernelImpl* k) {
  if (k->seams.page_source != nullptr) {
    k->source = k->seams.page_source;
    return ok_status();
  }
  LocalPageSourceOptions source_options;
  source_options.directory = k->path("pages");
  source_options.direct_io = k->options.direct_io;
  source_options.open_files = k->options.open_files;
  STRATA_RETURN_IF_ERROR(k->files->make_directory(source_options.directory));
  STRATA_ASSIGN_OR_RETURN(k->own_source, open_local_page_source(k->files, source_options));
  k->source = k->own_source.get();
  return ok_status();
}

void make_trxs(KernelImpl* k) {
  STRATA_ASSERT(k->undo != nullptr && k->waits != nullptr && k->trxs == nullptr);
  if (k->seams.timestamps != nullptr) {
    k->timestamps = k->seams.timestamps;
  } else {
    k->own_timestamps = make_local_timestamp_source(k->pool.get(), k->log.get(), k->spaces.get());
    k->timestamps = k->own_timestamps.get();
  }
  TrxSystemOptions trx_options;
  trx_options.node = NodeId{k->options.node};
  trx_options.horizon = k->seams.horizon;
  trx_options.others = k->seams.others;
  k->trxs = std::make_unique<TrxSystem>(trx_options, k->pool.get(), k->log.get(), k->spaces.get(),
                                        k->undo.get(), k->timestamps, k->waits.get());
  if (k->options.wait_listener != nullptr)
    k->waits->set_listener(k->options.wait_listener,
                           [trxs = k->trxs.get()](TrxId id) { return trxs->owner_of(id); });
  k->waits->on_deadlock([k](const DeadlockReport& report) { k->note_deadlock(report); });
  wire_rows(k);
  k->dictionary = std::make_unique<Dictionary>(&k->row);
}

void make_checkpointer(KernelImpl* k) {
  STRATA_ASSERT(k->control != nullptr && k->checkpointer == nullptr);
  CheckpointerOptions checkpoint_options;
  checkpoint_options.log_bytes = k->options.log_checkpoint_bytes;
  checkpoint_options.interval_us = k->options.checkpoint_interval_us;
  checkpoint_options.memory_interval_us = k->options.memory_checkpoint_interval_us;
  checkpoint_options.background = k->options.background;
  k->checkpointer =
      std::make_unique<Checkpointer>(checkpoint_options, k->pool.get(), k->log.get(), k->control);
  if (k->options.background) k->log->on_no_room([k] { k->ask_for_log_room(); });
}

// The pending-delete page always is page 2 of the system space.
Status create_system_page(KernelImpl* k) {
  const SpaceId system{kSystemSpace};
  STRATA_RETURN_IF_ERROR(k->spaces->ensure_room(system, 64));
  Mtr mtr(k->pool.get(), k->log.get());
  STRATA_RETURN_IF_ERROR(mtr.begin_write());
  STRATA_ASSIGN_OR_RETURN(const uint32_t number, k->spaces->allocate(&mtr, system));
  STRATA_ASSERT(number == kPendingDeletePage.number);
  STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr.fix_new(kPendingDeletePage));
  mtr.init_plain(page, PageType::kSystem, IndexId{0}, 0);
  return k->log->persist(mtr.publish());
}

}  // namespace

// A folder without a control file must hold nothing at all: a half-initialised or damaged database,
// or somebody else's files, are reported, never overwritten.
Status KernelImpl::check_folder() {
  if (seams.attach) return ok_status();
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->list(options.directory));
  for (const std::string& name : names) {
    if (!name.starts_with("control-") || name.ends_with(".tmp")) continue;
    if (seams.control == nullptr) return ok_status();
    return error_wrong_database(
        "the data folder " + options.directory + " holds a database of its own ('" + name +
        "', profile 'monolithic'); with profile '" + options.profile +
        "' the data are elsewhere; to do: use another folder, or the profile it was made with");
  }
  if (seams.control != nullptr) return ok_status();
  for (const std::string& name : names) {
    if (name == "lock") continue;
    if (name == "node-identity")
      return error_wrong_database(
          "the data folder " + options.directory +
          " is that of a compute node whose data are on storage nodes; to do: start "
          "it with the profile of its cluster, or use another folder");
    return error_corruption("the data folder " + options.directory + " holds '" + name +
                            "' but no file '" + control_name(options.node) +
                            "': it is half-initialised, damaged or not of this engine. If it was "
                            "never used remove it; otherwise restore the control file. Nothing was "
                            "changed");
  }
  return ok_status();
}

// The control file is written last, so a crash in here leaves a folder that is recognised as
// half-initialised.
Status KernelImpl::create_database() {
  if (!options.create) {
    return error_not_found("no database in " + options.directory + " (no control file)");
  }
  if (!options.unlogged) STRATA_RETURN_IF_ERROR(check_folder());
  ControlData data;
  data.database_id = random_database_id();
  data.profile = options.profile;
  data.node = NodeId{options.node};
  data.checkpoint_lsn = seams.log_sink != nullptr ? seams.log_sink->begin_lsn() : kFirstLsn;
  data.llsn_bias = seams.first_llsn_bias;
  STRATA_RETURN_IF_ERROR(create_log(data));
  STRATA_RETURN_IF_ERROR(open_source(this));
  STRATA_ASSIGN_OR_RETURN(pool, make_pool(*this));
  STRATA_RETURN_IF_ERROR(start_services(data.checkpoint_lsn, data.llsn_bias));
  STRATA_RETURN_IF_ERROR(make_trx_system());
  const SpaceId undo_space{undo_space_of(NodeId{options.node})};
  if (!seams.attach) {
    STRATA_RETURN_IF_ERROR(spaces->create(SpaceId{kSystemSpace}));
    STRATA_RETURN_IF_ERROR(create_system_page(this));
  } else {
    STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> present, source->list_spaces());
    for (const SpaceId space : present) {
      if (is_undo_space(space)) continue;  // our own: of an attempt that failed half-way
      const Status opened = spaces->open(space, false);
      // Of a CREATE that never came to be, or of a drop under way.
      if (is_not_found(opened) && space.value >= kFirstUserSpace) continue;
      if (!opened.ok() && space.value >= kFirstUserSpace && several_writers()) {
        // Another node may be deleting the file of one that it has dropped.
        STRATA_ASSIGN_OR_RETURN(const bool still, source->space_exists(space));
        if (!still) continue;
      }
      STRATA_RETURN_IF_ERROR(opened);
    }
  }
  STRATA_RETURN_IF_ERROR(spaces->create(undo_space));
  make_trxs(this);
  STRATA_RETURN_IF_ERROR(trxs->initialise());
  if (!seams.attach) {
    STRATA_RETURN_IF_ERROR(dictionary->initialise());
  } else {
    STRATA_RETURN_IF_ERROR(dictionary->open());
    STRATA_RETURN_IF_ERROR(load_tables());
  }
  STRATA_RETURN_IF_ERROR(log->persist(log->next_lsn()));
  STRATA_RETURN_IF_ERROR(publish_first(data));
  make_checkpointer(this);
  return checkpointer->run_once();
}

Status KernelImpl::open_database() {
  const ControlData& data = control->data();
  if (data.profile != options.profile) {
    return error_wrong_database("the database in " + options.directory +
                                " was made with profile '" + data.profile +
                                "' and cannot be opened with '" + options.profile +
                                "'; to do: set the profile it was made with");
  }
  if (data.page_bytes != kPageBytes) {
    return error_unsupported("the database in " + options.directory + " has pages of " +
                             std::to_string(data.page_bytes) + " bytes; this build uses " +
                             std::to_string(kPageBytes));
  }
  STRATA_RETURN_IF_ERROR(open_log(data));
  STRATA_RETURN_IF_ERROR(open_source(this));
  STRATA_ASSIGN_OR_RETURN(pool, make_pool(*this));

  Lsn end;
  const MemoryCheckpoint from = redo_start(data);
  uint64_t bias = from.llsn_bias;
  std::vector<SpaceId> gone;
  const uint64_t redo_begin = monotonic_us();
  STRATA_RETURN_IF_ERROR(redo(from.lsn, &end, &bias, &gone));
  recovery.redo_us = monotonic_us() - redo_begin;
  fault(FaultPoint::recovery_after_redo);

  STRATA_RETURN_IF_ERROR(start_services(end, bias));
  STRATA_RETURN_IF_ERROR(make_trx_system());
  const std::set<SpaceId> dropped_spaces(gone.begin(), gone.end());
  const SpaceId own_undo{undo_space_of(NodeId{options.node})};
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> present, source->list_spaces());
  for (const SpaceId space : present) {
    if (dropped_spaces.count(space) != 0) continue;
    // Nobody allocates in another's: its pages are read without it being open here.
    if (several_writers() && is_undo_space(space) && space != own_undo) continue;
    const Status opened = spaces->open(space, !seams.attach);
    // A space whose creation never became durable in the log has an empty file: the orphan pass
    // removes it.
    if (is_not_found(opened) && space.value >= kFirstUserSpace) continue;
    if (!opened.ok() && space.value >= kFirstUserSpace && several_writers()) {
      // Another node may be deleting the file of one that it has dropped.
      STRATA_ASSIGN_OR_RETURN(const bool still, source->space_exists(space));
      if (!still) continue;
    }
    if (is_not_found(opened)) return missing_space(space.value);
    STRATA_RETURN_IF_ERROR(opened);
  }
  for (const uint32_t needed : {kSystemSpace, undo_space_of(NodeId{options.node})})
    if (!spaces->is_live(SpaceId{needed})) return missing_space(needed);
  make_trxs(this);
  make_checkpointer(this);
  STRATA_RETURN_IF_ERROR(dictionary->open());
  STRATA_RETURN_IF_ERROR(roll_back_unfinished());
  STRATA_RETURN_IF_ERROR(load_tables());
  // With several nodes a space that no table names may be of another's CREATE.
  if (!seams.attach && seams.schema == nullptr) STRATA_RETURN_IF_ERROR(collect_orphan_spaces());
  return ok_status();
}

// The later of the two tiers. What a memory tier has must be of this log: one beyond its end is
// not.
MemoryCheckpoint KernelImpl::redo_start(const ControlData& data) const {
  const MemoryCheckpoint stored{data.checkpoint_lsn, data.llsn_bias};
  if (!options.redo_from_memory) return stored;
  const std::optional<MemoryCheckpoint> memory = source->memory_checkpoint();
  if (!memory.has_value() || memory->lsn <= stored.lsn) return stored;
  diag(Severity::kInfo,
       "recovery begins at the checkpoint in the memory tier, log position %llu; "
       "the one in storage is at %llu",
       static_cast<unsigned long long>(memory->lsn.value),
       static_cast<unsigned long long>(stored.lsn.value));
  return *memory;
}

Status KernelImpl::missing_space(uint32_t space) const {
  return error_corruption("space " + std::to_string(space) +
                          " is in use but its file is missing or empty in " + options.directory +
                          "/pages; restore the file from a copy of the whole folder");
}

// With several nodes each table is loaded when it is used first, under a lock on its name.
Status KernelImpl::load_tables() {
  if (seams.schema != nullptr) return ok_status();
  return dictionary->for_each_table([this](TableSpec spec) {
    for (const uint32_t space : spaces_of(spec))
      if (!spaces->is_live(SpaceId{space})) return missing_space(space);
    TableRef table = make_table(std::move(spec));
    STRATA_RETURN_IF_ERROR(load_counters(table.get()));
    const MutexLock lock(tables_mutex);
    tables[table_key(table->spec().schema, table->spec().name)] = table;
    return ok_status();
  });
}

// Spaces that no committed table names: left by DDL that never committed, or by a drop whose file
// was still there.
Status KernelImpl::collect_orphan_spaces() {
  std::set<uint32_t> wanted;
  {
    const MutexLock lock(tables_mutex);
    for (const auto& [key, table] : tables)
      for (const uint32_t space : spaces_of(table->spec())) wanted.insert(space);
  }
  std::set<uint32_t> listed;
  {
    Mtr mtr(pool.get(), log.get());
    STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr.fix(kPendingDeletePage, LatchMode::kShared));
    for (const SpaceId space : redo::read_pending_deletes(page->page())) listed.insert(space.value);
  }
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> present, source->list_spaces());
  for (const SpaceId space : present) {
    if (space.value < kFirstUserSpace || wanted.count(space.value) != 0) continue;
    if (listed.count(space.value) == 0) {
      Mtr mtr(pool.get(), log.get());
      STRATA_RETURN_IF_ERROR(mtr.begin_write());
      STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr.fix(kPendingDeletePage, LatchMode::kExclusive));
      mtr.pending_delete_add(page, space);
      STRATA_RETURN_IF_ERROR(log->persist(mtr.publish()));
      listed.insert(space.value);
    }
  }
  for (const uint32_t space : listed) {
    // "Not found" for most: what is listed was not opened, or its file is gone already.
    spaces->drop(SpaceId{space}).IgnoreError();
    note_dropped(SpaceId{space});
  }
  return options.background ? ok_status() : reap_dropped();
}

// E23. Those that live nodes see to are among them: what is done twice changes nothing.
Status KernelImpl::take_up_drops() {
  std::vector<SpaceId> listed;
  {
    Mtr mtr(pool.get(), log.get());
    STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr.fix(kPendingDeletePage, LatchMode::kShared));
    listed = redo::read_pending_deletes(page->page());
  }
  for (const SpaceId space : listed) {
    STRATA_RETURN_IF_ERROR(leave_space(space));
    note_dropped(space);
  }
  return ok_status();
}

// Runs of index builds that a crash interrupted.
Status KernelImpl::clear_sort_folder() {
  STRATA_RETURN_IF_ERROR(files->make_directory(sort_folder()));
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->list(sort_folder()));
  for (const std::string& name : names)
    STRATA_RETURN_IF_ERROR(files->remove(sort_folder() + "/" + name));
  return ok_status();
}

void KernelImpl::start_threads() {
  if (!options.background) return;
  STRATA_ASSERT(threads.empty() && checkpointer != nullptr && !stopping.load());
  threads.emplace_back([this] { reaper_thread(); });
  threads.emplace_back([this] { log_flusher_thread(); });
  threads.emplace_back([this] { rollback_thread(); });
  for (uint32_t i = 0; i < options.purge_threads; ++i)
    threads.emplace_back([this] { purge_thread(); });
}

void KernelImpl::stop_threads() {
  stopping.store(true);
  if (trxs != nullptr) trxs->wake_purge();
  {
    const MutexLock lock(flusher_mutex);  // no wake-up is lost between a test and a wait
  }
  { const MutexLock lock(dropped_mutex); }
  { const MutexLock lock(unfinished_mutex); }
  flusher_wakes.notify_all();
  unfinished_changed.notify_all();
  dropped_changed.notify_all();
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

StatusOr<std::unique_ptr<Kernel>> Kernel::open(const KernelOptions& options) {
  return open_with_seams(options, KernelSeams{});
}

Kernel::Kernel() : impl_(std::make_unique<KernelImpl>()) {}
Kernel::~Kernel() = default;

StatusOr<std::unique_ptr<Kernel>> open_with_seams(const KernelOptions& options,
                                                  const KernelSeams& seams) {
  std::unique_ptr<Kernel> kernel(KernelImpl::make_kernel());
  kernel->impl()->options = options;
  kernel->impl()->seams = seams;
  STRATA_RETURN_IF_ERROR(kernel->impl()->open());
  return kernel;
}

Kernel* KernelImpl::make_kernel() { return new Kernel(); }

Status Kernel::shutdown() {
  KernelImpl* k = impl_.get();
  if (k->shut_down) return ok_status();
  k->stop_threads();
  // Files that cannot be deleted now stay listed (E10, E23), and must not keep what is committed
  // from becoming durable.
  if (const Status reaped = k->reap_dropped(); !reaped.ok())
    diag(Severity::kWarning, "shutdown: files of dropped tables stay until the next start: %s",
         text_of(reaped).c_str());
  k->checkpointer->stop();
  STRATA_RETURN_IF_ERROR(k->log->persist(k->log->next_lsn()));
  STRATA_RETURN_IF_ERROR(k->checkpointer->run_once(true));
  k->shut_down = true;
  return ok_status();
}

std::unique_ptr<Session> Kernel::new_session() { return impl_->new_session(); }

std::unique_ptr<Session> KernelImpl::new_session() {
  auto impl = std::make_unique<Session::Impl>();
  impl->kernel = this;
  impl->trx = std::make_unique<Trx>();
  std::unique_ptr<Session> session(new Session(std::move(impl)));
  session->impl_->session = session.get();
  return session;
}

}  // namespace strata::engine
