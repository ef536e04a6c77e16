#include "engine/backup.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/assert.h"
#include "engine/internal/kernel_impl.h"
#include "page/page.h"
#include "redo/gone_spaces.h"
#include "redo/redo.h"
#include "wal/log_reader.h"

namespace strata::engine {
namespace {

// A page that does not verify may have been read in the middle of a write. That write is over soon.
constexpr int kReadsMax = 100;
constexpr uint64_t kReadAgainUs = 2'000;
// Log is copied between pages, so that little of it has to be kept.
constexpr uint32_t kBatchesBetweenLog = 16;

void pause_us(uint64_t us) {
  Mutex mutex{LatchRank::kLeaf};
  CondVar changed;
  CondVarSleep sleep(&mutex, &changed);
  const WaitInterrupt::Asleep asleep(WaitInterrupt::current(), &sleep);
  MutexLock lock(mutex);
  if (!is_interrupted_now(WaitInterrupt::current())) changed.wait_for_us(lock, us);
}

std::string file_name_of(SpaceId space) {
  char name[32];
  std::snprintf(name, sizeof name, "space-%08" PRIx32 ".pages", space.value);
  return name;
}

}  // namespace

struct Backup::Impl {
  Impl(KernelImpl* kernel, BackupOptions wanted)
      : k(kernel),
        options(std::move(wanted)),
        log_of_server(kernel->files, kernel->log_folder(0)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    k->checkpointer->release_log();
    k->backup.running.store(false);
  }

  Status begin();
  Status copy_space(SpaceId space);
  Status copy_batch(SpaceId space, uint32_t first, uint32_t count, File* to);
  Status read_alone(PageId id, char* page);
  [[nodiscard]] bool is_wanted(const char* page) const {
    return header_of(page)->llsn > options.since.value;
  }
  Status copy_log(Lsn to);
  Status read_copied_log(std::set<uint32_t>* changed, std::set<uint32_t>* gone);
  Status make_missing_files();
  [[nodiscard]] Status log_is_kept() const;
  [[nodiscard]] std::string path(const std::string& name) const {
    return options.folder + "/" + name;
  }

  KernelImpl* const k;
  const BackupOptions options;
  ControlData control;  // of the checkpoint where the copied log begins
  std::unique_ptr<LogSink> log_copy;
  DurableLogReader log_of_server;
  Lsn log_end;  // of what has been copied
  Lsn end;      // the cut
  std::set<uint32_t> copied;
  AlignedBytes pages{kReadBatchPages * kPageBytes};
};

Status Backup::Impl::begin() {
  FileSystem* const files = k->files;
  STRATA_RETURN_IF_ERROR(files->make_directory(options.folder));
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> there, files->list(options.folder));
  if (!there.empty())
    return error_in_use("the folder " + options.folder +
                        " is not empty; to do: name one that is not there yet");
  {
    // Of everybody: a KILL of the backup must not fail it.
    const InterruptScope goes_on(nullptr);
    STRATA_RETURN_IF_ERROR(k->checkpointer->run_once());
  }
  control = k->checkpointer->keep_log();  // BU2
  control.clean_shutdown = false;
  log_end = control.checkpoint_lsn;
  k->backup.checkpoint_llsn.store(control.checkpoint_lsn.value + control.llsn_bias);
  STRATA_RETURN_IF_ERROR(files->make_directory(path("pages")));
  STRATA_RETURN_IF_ERROR(files->make_directory(path("log")));
  LocalLogOptions log_options = k->log_folder(control.database_id);
  log_options.directory = path("log");
  log_options.reserve_segments = 0;
  log_options.fill_pause_us = 0;  // nobody's commits wait for this disk
  STRATA_ASSIGN_OR_RETURN(log_copy, create_local_log(files, log_options, log_end));
  return ok_status();
}

// BU5
Status Backup::Impl::log_is_kept() const {
  if (!k->backup.log_given_up.load()) return ok_status();
  return error_no_space(
      "the server had no room left for its log, so the log that the backup needed was given up; to "
      "do: free room on the disk of the server's data, then make the backup again");
}

Status Backup::Impl::copy_log(Lsn to) {
  while (log_end < to) {
    if (options.go_on) STRATA_RETURN_IF_ERROR(options.go_on());
    auto bytes = log_of_server.read(log_end, to);
    STRATA_RETURN_IF_ERROR(log_is_kept());  // what was read may be anything otherwise
    STRATA_RETURN_IF_ERROR(bytes.status());
    const Lsn next{log_end.value + bytes->size()};
    STRATA_RETURN_IF_ERROR(log_copy->prepare_room(next));
    STRATA_RETURN_IF_ERROR(log_copy->append(log_end, *bytes));
    log_end = next;
    k->backup.log_bytes.store(log_end.value - control.checkpoint_lsn.value);
    k->checkpointer->keep_log_from(log_end);
  }
  return ok_status();
}

// BU1. Not found: never written, or the space has just been dropped.
Status Backup::Impl::read_alone(PageId id, char* page) {
  Status status;
  for (int reads = 0; reads < kReadsMax; ++reads) {
    if (reads != 0) pause_us(kReadAgainUs);
    if (options.go_on) STRATA_RETURN_IF_ERROR(options.go_on());
    status = k->source->read(id, Llsn{}, page);
    if (!is_corruption(status)) return status;
  }
  return status;
}

Status Backup::Impl::copy_batch(SpaceId space, uint32_t first, uint32_t count, File* to) {
  PageId ids[kReadBatchPages];
  Status results[kReadBatchPages];
  STRATA_ASSERT(count <= kReadBatchPages);
  for (uint32_t i = 0; i < count; ++i) ids[i] = PageId{space.value, first + i};
  k->source->read_batch(ids, count, pages.get(), results);
  uint32_t begin = 0;  // of the run of pages that are written together
  const auto write_run = [&](uint32_t run_end) -> Status {
    if (begin == run_end) return ok_status();
    return to->write_at(uint64_t{first + begin} * kPageBytes,
                        pages.get() + size_t{begin} * kPageBytes,
                        size_t{run_end - begin} * kPageBytes);
  };
  for (uint32_t i = 0; i < count; ++i) {
    char* const page = pages.get() + size_t{i} * kPageBytes;
    if (!results[i].ok() && !is_not_found(results[i])) results[i] = read_alone(ids[i], page);
    if (!results[i].ok() && !is_not_found(results[i])) return results[i];
    if (results[i].ok() && is_wanted(page)) {
      k->backup.pages_copied.fetch_add(1);
      continue;
    }
    STRATA_RETURN_IF_ERROR(write_run(i));
    begin = i + 1;
  }
  k->backup.pages_done.fetch_add(count);
  return write_run(count);
}

Status Backup::Impl::copy_space(SpaceId space) {
  const auto size = k->source->space_pages(space);
  if (is_not_found(size.status())) return ok_status();  // BU3
  STRATA_RETURN_IF_ERROR(size.status());
  const std::string name = path("pages/" + file_name_of(space));
  STRATA_ASSIGN_OR_RETURN(
      const std::unique_ptr<File> file,
      k->files->open(name, {.create = true, .exclusive = true, .direct = k->options.direct_io}));
  uint32_t batches = 0;
  for (uint32_t first = 0, count = 0; first < *size; first += count) {
    count = std::min<uint32_t>(*size - first, kReadBatchPages);
    if (options.go_on) STRATA_RETURN_IF_ERROR(options.go_on());
    STRATA_RETURN_IF_ERROR(copy_batch(space, first, count, file.get()));
    if (++batches % kBatchesBetweenLog == 0)
      STRATA_RETURN_IF_ERROR(copy_log(k->log->durable_lsn()));
  }
  STRATA_ASSIGN_OR_RETURN(const bool still_there, k->source->space_exists(space));
  if (!still_there) return k->files->remove(name);  // BU3
  STRATA_RETURN_IF_ERROR(file->truncate(uint64_t{*size} * kPageBytes));
  STRATA_RETURN_IF_ERROR(file->sync_data());
  copied.insert(space.value);
  return ok_status();
}

// BU4. Nobody writes the copy any more, so a group that does not verify is damage.
Status Backup::Impl::read_copied_log(std::set<uint32_t>* changed, std::set<uint32_t>* gone) {
  LogReader reader(log_copy.get(), control.checkpoint_lsn, control.llsn_bias);
  redo::GroupView group;
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(const bool more, reader.next(&group));
    if (!more) break;
    if (options.go_on) STRATA_RETURN_IF_ERROR(options.go_on());
    STRATA_RETURN_IF_ERROR(redo::for_each_section(group, [&](const redo::SectionView& section) {
      changed->insert(section.page_id.space);
      redo::for_each_gone_space(section, [&](SpaceId space) { gone->insert(space.value); });
      return ok_status();
    }));
  }
  if (reader.end_lsn() == end) return ok_status();
  return error_corruption("the copied log in " + path("log") + " is whole up to " +
                          std::to_string(reader.end_lsn().value) + " only, not up to " +
                          std::to_string(end.value));
}

// BU3. Redo finds a file for every space that it is to make.
Status Backup::Impl::make_missing_files() {
  std::set<uint32_t> changed;
  std::set<uint32_t> gone;
  STRATA_RETURN_IF_ERROR(read_copied_log(&changed, &gone));
  for (const uint32_t space : changed) {
    if (copied.contains(space) || gone.contains(space)) continue;
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                            k->files->open(path("pages/" + file_name_of(SpaceId{space})),
                                           {.create = true, .exclusive = true}));
    STRATA_RETURN_IF_ERROR(file->sync_data());
  }
  return k->files->sync_directory(path("pages"));
}

Backup::Backup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Backup::~Backup() = default;

StatusOr<std::unique_ptr<Backup>> Backup::begin(Kernel* kernel, BackupOptions options) {
  KernelImpl* const k = kernel->impl();
  if (k->own_source == nullptr || k->own_sink == nullptr || k->options.unlogged)
    return error_unsupported("with profile '" + k->options.profile +
                             "' the data is not in this server's folder; to do: back it up with "
                             "mariadb-dump --single-transaction or mydumper");
  if (k->backup.running.exchange(true))
    return error_in_use("a backup is being made already; to do: wait until it has ended");
  k->backup.log_given_up.store(false);
  for (std::atomic<uint64_t>* const number :
       {&k->backup.pages, &k->backup.pages_done, &k->backup.pages_copied, &k->backup.log_bytes,
        &k->backup.checkpoint_llsn, &k->backup.end_lsn})
    number->store(0);
  auto impl = std::make_unique<Impl>(k, std::move(options));
  STRATA_RETURN_IF_ERROR(impl->begin());
  return std::unique_ptr<Backup>(new Backup(std::move(impl)));
}

Status Backup::copy_pages() {
  Impl& b = *impl_;
  // After the checkpoint: a space that was made before it and is not listed now has been dropped.
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> spaces, b.k->source->list_spaces());
  uint64_t total = 0;
  for (const SpaceId space : spaces) {
    const auto pages = b.k->source->space_pages(space);
    if (pages.ok()) total += *pages;
  }
  b.k->backup.pages.store(total);
  for (const SpaceId space : spaces) STRATA_RETURN_IF_ERROR(b.copy_space(space));
  STRATA_RETURN_IF_ERROR(b.copy_log(b.k->log->durable_lsn()));
  return b.log_is_kept();
}

Status Backup::cut() {
  Impl& b = *impl_;
  STRATA_ASSERT(b.end.is_zero());
  const Lsn end = b.k->log->next_lsn();
  STRATA_RETURN_IF_ERROR(b.k->log->persist(end));
  b.end = end;
  b.k->backup.end_lsn.store(end.value);
  return ok_status();
}

Status Backup::finish() {
  Impl& b = *impl_;
  STRATA_ASSERT(!b.end.is_zero());
  STRATA_RETURN_IF_ERROR(b.copy_log(b.end));
  STRATA_RETURN_IF_ERROR(b.log_is_kept());
  STRATA_RETURN_IF_ERROR(b.log_copy->sync());
  STRATA_RETURN_IF_ERROR(b.make_missing_files());
  FileSystem* const files = b.k->files;
  STRATA_RETURN_IF_ERROR(files->sync_directory(b.options.folder));
  const std::string name = "control-" + std::to_string(b.k->options.node);
  const auto made = ControlFile::create(files, b.path(name), b.control);
  return made.status();
}

}  // namespace strata::engine
