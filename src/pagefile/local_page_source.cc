#include "pagefile/local_page_source.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/latch.h"
#include "io/batch_io.h"
#include "page/page.h"
#include "pagefile/double_write.h"

namespace strata {
namespace {

constexpr uint64_t kOpenFilesMin = 8;
constexpr uint64_t kOpenFilesMax = 1000;
constexpr size_t kSyncToClose = 64;  // files synced at once when all are waiting for a sync
constexpr const char* kDoubleWriteName = "/double-write.pages";

struct SpaceFile {
  std::unique_ptr<File> file;
  std::atomic<bool> unsynced{false};    // a write has finished since the last sync began
  std::atomic<uint64_t> room_bytes{0};  // known to exist
  std::atomic<uint64_t> last_use{0};
};
using SpaceFilePtr = std::shared_ptr<SpaceFile>;

// The rest of the limit is the server's: connections, other engines' files, the log.
size_t open_files_max(uint32_t wanted) {
  if (wanted != 0) return std::max<uint64_t>(wanted, kOpenFilesMin);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return kOpenFilesMax;
  return std::clamp<uint64_t>(limit.rlim_cur / 4, kOpenFilesMin, kOpenFilesMax);
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kDirectIoAlignment == 0; }

// Length of the run of neighbours at the beginning of ids[0..count).
uint32_t run_length(const PageId* ids, uint32_t count) {
  uint32_t length = 1;
  while (length < count && ids[length].space == ids[0].space &&
         ids[length].number == ids[0].number + length)
    ++length;
  return length;
}

// Neighbours of a batch.
struct Run {
  uint32_t begin = 0;
  uint32_t length = 0;
  SpaceFilePtr space;  // keeps the file open
};

// What a read brought of the pages ids[0..count).
void verify_run(const PageId* ids, uint32_t count, const FileRead& read, Status* results) {
  if (!read.status.ok()) {
    std::fill(results, results + count, read.status);
    return;
  }
  const size_t whole_and_cut = (read.got + kPageBytes - 1) / kPageBytes * kPageBytes;
  std::memset(read.data + read.got, 0, whole_and_cut - read.got);  // a cut page fails its checksum
  for (uint32_t i = 0; i < count; ++i) {
    const bool is_there = size_t{i} * kPageBytes < read.got;
    results[i] =
        is_there ? verify_page(read.data + size_t{i} * kPageBytes, ids[i]) : error_not_found();
    if (!results[i].ok() && !is_not_found(results[i]))
      results[i] =
          with_message(results[i], read.file->path() + ": page " + std::to_string(ids[i].number) +
                                       ": " + std::string(results[i].message()));
  }
}

class LocalPageSource final : public PageSource {
 public:
  LocalPageSource(FileSystem* fs, const LocalPageSourceOptions& options)
      : fs_(fs), options_(options), open_files_max_(open_files_max(options.open_files)) {}

  Status open();
  Status read(PageId id, Llsn at_least, char* page) override;
  void read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) override;
  Status write(PageId id, const char* page) override;
  Status write_batch(const PageId* ids, uint32_t count, const char* pages, bool* ok) override;
  Status sync() override;
  Status create_space(SpaceId space) override;
  Status delete_space(SpaceId space) override;
  StatusOr<bool> space_exists(SpaceId space) override { return fs_->exists(path_of(space)); }
  StatusOr<std::vector<SpaceId>> list_spaces() override;
  Status grow_space(SpaceId space, uint32_t pages) override;
  StatusOr<uint32_t> space_pages(SpaceId space) override;
  [[nodiscard]] bool needs_page_images() const override { return false; }

 private:
  [[nodiscard]] std::string path_of(SpaceId space) const;
  [[nodiscard]] Status check_version(PageId id, Llsn at_least, const char* page) const;
  StatusOr<SpaceFilePtr> file_of(uint32_t space);
  Status make_room_for_a_file();
  bool close_idle_files(std::vector<SpaceFilePtr>* unsynced) STRATA_REQUIRES(mutex_);
  Status sync_some(const std::vector<SpaceFilePtr>& files) STRATA_REQUIRES(mutex_);
  Status note_sync(const Status& status) STRATA_REQUIRES(mutex_);
  Status sync_files(const std::vector<SpaceFilePtr>& files);
  Status write_runs(const PageId* ids, uint32_t count, const char* pages, bool* ok);
  void note_failed_batch(DoubleWrite::Ticket ticket, const PageId* ids, uint32_t count,
                         const bool* ok);
  Status write_one_by_one(const PageId* ids, uint32_t count, const char* pages, bool* ok);
  Status write_in_place(PageId id, const char* page);
  Status write_with_faults(SpaceFile* space, uint64_t offset, const char* page);

  FileSystem* const fs_;
  const LocalPageSourceOptions options_;
  const size_t open_files_max_;
  Mutex mutex_{LatchRank::kFileTable};
  std::unordered_map<uint32_t, SpaceFilePtr> files_ STRATA_GUARDED_BY(mutex_);
  uint64_t deletes_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t use_clock_ STRATA_GUARDED_BY(mutex_) = 0;
  bool syncing_ STRATA_GUARDED_BY(mutex_) = false;
  CondVar sync_ended_;
  bool sync_failing_ STRATA_GUARDED_BY(mutex_) = false;  // since the last sync
  std::unique_ptr<DoubleWrite> double_write_;
  BatchIo batch_io_;
};

Status LocalPageSource::open() {
  DoubleWriteRepair repair;
  repair.read = [this](PageId id, char* page) -> Status {
    STRATA_ASSIGN_OR_RETURN(const SpaceFilePtr space, file_of(id.space));
    space->unsynced.store(true);
    return read(id, Llsn{}, page);
  };
  repair.write = [this](PageId id, const char* page) { return write_in_place(id, page); };
  repair.sync = [this] { return sync(); };
  STRATA_ASSIGN_OR_RETURN(
      double_write_,
      DoubleWrite::open(fs_, options_.directory + kDoubleWriteName, options_.double_write_pages,
                        options_.direct_io, repair, [this] { return sync(); }));
  return ok_status();
}

std::string LocalPageSource::path_of(SpaceId space) const {
  char name[32];
  std::snprintf(name, sizeof name, "/space-%08" PRIx32 ".pages", space.value);
  return options_.directory + name;
}

// mutex_ held. Closes the idle file used longest ago. A file with writes not yet synced stays open:
// its errors would go unseen otherwise. False: there is none; *unsynced gets the oldest that wait
// for a sync.
bool LocalPageSource::close_idle_files(std::vector<SpaceFilePtr>* unsynced) {
  auto victim = files_.end();
  std::vector<SpaceFilePtr> waiting;
  for (auto it = files_.begin(); it != files_.end(); ++it) {
    if (it->second.use_count() != 1) continue;
    if (it->second->unsynced.load()) {
      waiting.push_back(it->second);
    } else if (victim == files_.end() || it->second->last_use < victim->second->last_use) {
      victim = it;
    }
  }
  if (victim != files_.end()) {
    files_.erase(victim);
    return true;
  }
  const size_t count = std::min(kSyncToClose, waiting.size());
  std::partial_sort(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(count),
                    waiting.end(),
                    [](const auto& a, const auto& b) { return a->last_use < b->last_use; });
  waiting.resize(count);
  *unsynced = std::move(waiting);
  return false;
}

// Blocks for a sync when every open file has unsynced writes. The limit is exceeded only while more
// files than it allows are in use at this very moment.
Status LocalPageSource::make_room_for_a_file() {
  MutexLock lock(mutex_);
  while (files_.size() >= open_files_max_) {
    std::vector<SpaceFilePtr> unsynced;
    if (close_idle_files(&unsynced)) continue;
    if (unsynced.empty()) return ok_status();
    STRATA_RETURN_IF_ERROR(sync_some(unsynced));
  }
  return ok_status();
}

StatusOr<SpaceFilePtr> LocalPageSource::file_of(uint32_t space) {
  for (;;) {
    uint64_t deletes_before;
    {
      const MutexLock lock(mutex_);
      if (auto it = files_.find(space); it != files_.end()) {
        it->second->last_use = ++use_clock_;
        return it->second;
      }
      deletes_before = deletes_;
    }
    STRATA_RETURN_IF_ERROR(make_room_for_a_file());
    auto made = std::make_shared<SpaceFile>();
    STRATA_ASSIGN_OR_RETURN(
        made->file, fs_->open(path_of(SpaceId{space}), OpenOptions{.direct = options_.direct_io}));
    STRATA_ASSIGN_OR_RETURN(const uint64_t bytes, made->file->size());
    made->room_bytes = bytes;
    const MutexLock lock(mutex_);
    if (deletes_ != deletes_before) continue;  // perhaps the file that was just opened
    const auto [it, added] = files_.emplace(space, std::move(made));
    it->second->last_use = ++use_clock_;
    return it->second;
  }
}

Status LocalPageSource::read(PageId id, Llsn at_least, char* page) {
  if (!aligned(page)) {
    const AlignedBytes bounce(kPageBytes);
    STRATA_RETURN_IF_ERROR(read(id, at_least, bounce.get()));
    std::memcpy(page, bounce.get(), kPageBytes);
    return ok_status();
  }
  STRATA_ASSIGN_OR_RETURN(const SpaceFilePtr space, file_of(id.space));
  if (double_write_ != nullptr && double_write_->read_copy(id, page))
    return check_version(id, at_least, page);
  FileRead read{.file = space->file.get(),
                .offset = uint64_t{id.number} * kPageBytes,
                .data = page,
                .bytes = kPageBytes};
  read.status = read.file->read_at(read.offset, read.data, read.bytes, &read.got);
  Status result;
  verify_run(&id, 1, read, &result);
  STRATA_RETURN_IF_ERROR(result);
  return check_version(id, at_least, page);
}

Status LocalPageSource::check_version(PageId id, Llsn at_least, const char* page) const {
  if (header_of(page)->llsn < at_least.value)
    return error_corruption(path_of(SpaceId{id.space}) + ": page " + std::to_string(id.number) +
                            ": old version, llsn " + std::to_string(header_of(page)->llsn) +
                            " where at least " + std::to_string(at_least.value) + " is needed");
  return ok_status();
}

// Every run of neighbours is one transfer of a batch. An error is that of its whole run.
void LocalPageSource::read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) {
  STRATA_ASSERT(aligned(pages) && count <= kReadBatchPages);
  std::array<Run, kReadBatchPages> runs;
  std::array<FileRead, kReadBatchPages> reads;
  size_t opened = 0;
  for (uint32_t begin = 0, length = 0; begin < count; begin += length) {
    length = run_length(ids + begin, count - begin);
    auto space = file_of(ids[begin].space);
    if (!space.ok()) {
      std::fill(results + begin, results + begin + length, space.status());
      continue;
    }
    runs[opened] = {.begin = begin, .length = length, .space = std::move(*space)};
    reads[opened] = {.file = runs[opened].space->file.get(),
                     .offset = uint64_t{ids[begin].number} * kPageBytes,
                     .data = pages + size_t{begin} * kPageBytes,
                     .bytes = size_t{length} * kPageBytes};
    ++opened;
  }
  batch_io_.read_all(reads.data(), opened);
  for (size_t i = 0; i < opened; ++i)
    verify_run(ids + runs[i].begin, runs[i].length, reads[i], results + runs[i].begin);
  for (uint32_t i = 0; i < count; ++i)
    if (double_write_->read_copy(ids[i], pages + size_t{i} * kPageBytes)) results[i] = ok_status();
}

Status LocalPageSource::write(PageId id, const char* page) {
  bool ok = false;
  return write_batch(&id, 1, page, &ok);
}

Status LocalPageSource::write_batch(const PageId* ids, uint32_t count, const char* pages,
                                    bool* ok) {
  std::fill(ok, ok + count, false);
  STRATA_ASSIGN_OR_RETURN(const DoubleWrite::Ticket ticket, double_write_->protect(pages, count));
  Status status;
  if (fault(FaultPoint::double_write_done))
    status = error_io_error("fault point double_write_done");
  else if (internal::faults_armed.load(std::memory_order_relaxed) != 0)
    status = write_one_by_one(ids, count, pages, ok);
  else
    status = write_runs(ids, count, pages, ok);
  if (status.ok())
    double_write_->written(ticket, ok);
  else
    note_failed_batch(ticket, ids, count, ok);
  return status;
}

// A page whose space is not there has no place that could be torn, and nobody may ever come to
// write it: its copy need not be kept.
void LocalPageSource::note_failed_batch(DoubleWrite::Ticket ticket, const PageId* ids,
                                        uint32_t count, const bool* ok) {
  std::array<bool, kWriteBatchPages> whole_or_gone{};
  for (uint32_t i = 0; i < count; ++i) {
    if (ok[i]) {
      whole_or_gone[i] = true;
      continue;
    }
    const auto exists = space_exists(SpaceId{ids[i].space});
    whole_or_gone[i] = exists.ok() && !*exists;
  }
  double_write_->written(ticket, whole_or_gone.data());
}

// In place; every run of neighbours is one transfer of a batch. Returns the first error.
Status LocalPageSource::write_runs(const PageId* ids, uint32_t count, const char* pages, bool* ok) {
  std::array<Run, kWriteBatchPages> runs;
  std::array<FileWrite, kWriteBatchPages> writes;
  size_t opened = 0;
  Status first_error;
  for (uint32_t begin = 0, length = 0; begin < count; begin += length) {
    length = run_length(ids + begin, count - begin);
    auto space = file_of(ids[begin].space);
    if (!space.ok()) {
      if (first_error.ok()) first_error = space.status();
      continue;
    }
    runs[opened] = {.begin = begin, .length = length, .space = std::move(*space)};
    writes[opened] = {.file = runs[opened].space->file.get(),
                      .offset = uint64_t{ids[begin].number} * kPageBytes,
                      .data = pages + size_t{begin} * kPageBytes,
                      .bytes = size_t{length} * kPageBytes};
    ++opened;
  }
  batch_io_.write_all(writes.data(), opened);
  for (size_t i = 0; i < opened; ++i) {
    runs[i].space->unsynced.store(true);  // before returning: a finished write is covered (LP2)
    std::fill_n(ok + runs[i].begin, runs[i].length, writes[i].status.ok());
    if (first_error.ok()) first_error = writes[i].status;
  }
  return first_error;
}

// With fault points in between.
Status LocalPageSource::write_one_by_one(const PageId* ids, uint32_t count, const char* pages,
                                         bool* ok) {
  Status first_error;
  for (uint32_t i = 0; i < count; ++i) {
    const Status status = write_in_place(ids[i], pages + size_t{i} * kPageBytes);
    ok[i] = status.ok();
    if (first_error.ok()) first_error = status;
  }
  return first_error;
}

Status LocalPageSource::write_in_place(PageId id, const char* page) {
  STRATA_ASSIGN_OR_RETURN(const SpaceFilePtr space, file_of(id.space));
  const uint64_t offset = uint64_t{id.number} * kPageBytes;
  const bool faults = internal::faults_armed.load(std::memory_order_relaxed) != 0;
  const Status status = faults ? write_with_faults(space.get(), offset, page)
                               : space->file->write_at(offset, page, kPageBytes);
  space->unsynced.store(true);  // before returning: a write that finished is covered (LP2)
  STRATA_RETURN_IF_ERROR(status);
  if (faults && fault(FaultPoint::page_write_after))
    return error_io_error("fault point page_write_after");
  return ok_status();
}

Status LocalPageSource::write_with_faults(SpaceFile* space, uint64_t offset, const char* page) {
  constexpr size_t kHalf = kPageBytes / 2;
  if (fault(FaultPoint::page_write_before)) return error_io_error("fault point page_write_before");
  STRATA_RETURN_IF_ERROR(space->file->write_at(offset, page, kHalf));
  if (fault(FaultPoint::page_write_half)) return error_io_error("fault point page_write_half");
  return space->file->write_at(offset + kHalf, page + kHalf, kHalf);
}

Status LocalPageSource::sync_files(const std::vector<SpaceFilePtr>& files) {
  for (const SpaceFilePtr& space : files) {
    if (!space->unsynced.exchange(false)) continue;
    if (Status status = space->file->sync_data(); !status.ok()) {
      space->unsynced.store(true);
      space->room_bytes.store(0);  // asked for again
      return status;
    }
  }
  return ok_status();
}

// mutex_ held on entry and return, not in between. One at a time: a second caller must not return
// while the first is still syncing what it cleared.
Status LocalPageSource::sync_some(const std::vector<SpaceFilePtr>& files) {
  sync_ended_.wait(mutex_, [this]() STRATA_REQUIRES(mutex_) { return !syncing_; });
  syncing_ = true;
  mutex_.unlock();
  const Status status = sync_files(files);
  if (!status.ok() && double_write_ != nullptr) double_write_->sync_failed();  // LP3
  mutex_.lock();
  syncing_ = false;
  sync_ended_.notify_all();
  return note_sync(status);
}

// One message per episode of failures.
Status LocalPageSource::note_sync(const Status& status) {
  if (status.ok()) {
    if (sync_failing_) diag(Severity::kInfo, "data files can be synced again");
    sync_failing_ = false;
    return status;
  }
  Status told = with_message(
      status, "a data file could not be synced (" + cause_of(status) +
                  "); to do: look at the disk; what was written since the last sync is written "
                  "again by itself");
  if (!sync_failing_) diag(Severity::kError, "%s", std::string(told.message()).c_str());
  sync_failing_ = true;
  return told;
}

Status LocalPageSource::sync() {
  uint64_t mark = 0;
  if (double_write_ != nullptr) {
    STRATA_ASSIGN_OR_RETURN(mark, double_write_->begin_sync());
  }
  MutexLock lock(mutex_);
  // Chosen only when nobody else is syncing: what they cleared is durable then.
  sync_ended_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !syncing_; });
  std::vector<SpaceFilePtr> files;
  files.reserve(files_.size());
  for (const auto& [space, file] : files_)
    if (file->unsynced.load()) files.push_back(file);
  STRATA_RETURN_IF_ERROR(sync_some(files));
  if (double_write_ == nullptr || double_write_->synced(mark)) return ok_status();
  return error_busy("another sync of the data files failed meanwhile");
}

Status LocalPageSource::create_space(SpaceId space) {
  STRATA_ASSIGN_OR_RETURN(
      std::unique_ptr<File> file,
      fs_->open(path_of(space), OpenOptions{.create = true, .direct = options_.direct_io}));
  return fs_->sync_directory(options_.directory);
}

Status LocalPageSource::delete_space(SpaceId space) {
  STRATA_RETURN_IF_ERROR(fs_->remove(path_of(space)));
  double_write_->forget(space);
  {
    const MutexLock lock(mutex_);
    files_.erase(space.value);
    ++deletes_;
  }
  return fs_->sync_directory(options_.directory);
}

StatusOr<std::vector<SpaceId>> LocalPageSource::list_spaces() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->list(options_.directory));
  std::vector<SpaceId> spaces;
  for (const std::string& name : names) {
    if (options_.directory + "/" + name == options_.directory + kDoubleWriteName) continue;
    // Exactly what path_of() makes: anything looser could count one space twice.
    constexpr std::string_view kPrefix = "space-";
    constexpr std::string_view kSuffix = ".pages";
    const std::string digits =
        name.size() == 20 && name.starts_with(kPrefix) && name.ends_with(kSuffix)
            ? name.substr(kPrefix.size(), 8)
            : std::string();
    if (digits.empty() || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
      diag(Severity::kWarning, "%s/%s is not a data file of Strata; left alone",
           options_.directory.c_str(), name.c_str());
      continue;
    }
    spaces.push_back(SpaceId{static_cast<uint32_t>(std::strtoul(digits.c_str(), nullptr, 16))});
  }
  std::sort(spaces.begin(), spaces.end());
  return spaces;
}

// In steps that grow with the file, so that it stays contiguous; if the disk cannot give a whole
// step, exactly what was asked for.
Status LocalPageSource::grow_space(SpaceId space_id, uint32_t pages) {
  STRATA_ASSIGN_OR_RETURN(const SpaceFilePtr space, file_of(space_id.value));
  const uint64_t need_bytes = uint64_t{pages} * kPageBytes;
  uint64_t known = space->room_bytes.load();
  if (need_bytes <= known) return ok_status();
  const uint64_t step_pages = std::clamp(pages / 8, kGrowPagesMin, kGrowPagesMax);
  uint64_t bytes = need_bytes + step_pages * kPageBytes;
  bytes -= bytes % (kGrowPagesMin * uint64_t{kPageBytes});
  Status status = space->file->allocate(bytes);
  if (is_no_space(status)) {
    bytes = need_bytes;
    status = space->file->allocate(bytes);
  }
  STRATA_RETURN_IF_ERROR(status);
  space->unsynced.store(true);  // the size
  while (known < bytes && !space->room_bytes.compare_exchange_weak(known, bytes)) {
  }
  return ok_status();
}

StatusOr<uint32_t> LocalPageSource::space_pages(SpaceId space_id) {
  STRATA_ASSIGN_OR_RETURN(const SpaceFilePtr space, file_of(space_id.value));
  STRATA_ASSIGN_OR_RETURN(const uint64_t bytes, space->file->size());
  return static_cast<uint32_t>(std::min<uint64_t>((bytes + kPageBytes - 1) / kPageBytes, kNoPage));
}

}  // namespace

StatusOr<std::unique_ptr<PageSource>> open_local_page_source(
    FileSystem* fs, const LocalPageSourceOptions& options) {
  STRATA_RETURN_IF_ERROR(fs->make_directory(options.directory));
  auto source = std::make_unique<LocalPageSource>(fs, options);
  STRATA_RETURN_IF_ERROR(source->open());
  return std::unique_ptr<PageSource>(std::move(source));
}

}  // namespace strata
