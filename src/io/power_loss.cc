// Wraps a file system inside a server under test and journals how to undo everything not yet
// synced.
//   PW1  The record of a change is in the journal before the change is made; the mark of a sync
//        after the sync succeeded and before the caller hears of it.
//   PW2  Changes of one file are made one at a time, so that each pre-image is what the change
//        before it left. A sync covers the changes that were complete when it began.
//   PW3  A removed or replaced file lives on as a hard link in <journal>.removed/ until the removal
//        is durable.
//   PW4  The journal holds little more than the unsynced changes: it is rewritten when most of it
//        is dead.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>

#include "base/latch.h"
#include "io/file_system.h"
#include "io/internal/errno_status.h"
#include "io/internal/power_loss_journal.h"

namespace strata {
namespace {

using power_loss::append_record;
using power_loss::change_record;
using power_loss::Record;
using power_loss::RecordKind;

// One file, however many handles are open and whatever it is called.
struct TrackedFile {
  uint64_t id = 0;
  std::set<uint64_t> in_flight;  // changes begun, not complete; of who holds the journal's mutex
  Mutex change_mutex{LatchRank::kDiskChange};  // PW2; taken before the journal's mutex
};
using TrackedPtr = std::shared_ptr<TrackedFile>;

class Journal {
 public:
  explicit Journal(std::string path)
      : path_(std::move(path)), kept_folder_(power_loss::kept_folder_of(path_)) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    if (fd_ < 0) status_ = errno_status("open", path_, errno);
    ::mkdir(kept_folder_.c_str(), 0750);
    power_loss::empty_kept_folder(path_);
  }
  ~Journal() {
    if (fd_ >= 0) ::close(fd_);
  }
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  mutable Mutex mutex{LatchRank::kDisk};  // held for every change of a name, too

  uint64_t next_seq() STRATA_REQUIRES(mutex) { return ++seq_; }
  [[nodiscard]] uint64_t last_seq() const STRATA_REQUIRES(mutex) { return seq_; }

  // Appends; the record stays alive until forget(). `live` = false for marks.
  Status append(const Record& record, bool live) STRATA_REQUIRES(mutex) {
    STRATA_RETURN_IF_ERROR(status_);
    scratch_.clear();
    append_record(&scratch_, record);
    STRATA_RETURN_IF_ERROR(write_all(fd_, scratch_));
    if (live) {
      live_[record.seq] = Extent{end_, scratch_.size()};
      live_bytes_ += scratch_.size();
    }
    end_ += scratch_.size();
    return ok_status();
  }

  void forget(uint64_t seq) STRATA_REQUIRES(mutex) {
    const auto it = live_.find(seq);
    if (it == live_.end()) return;
    live_bytes_ -= it->second.bytes;
    live_.erase(it);
  }

  // PW4. `files` tells where the tracked files are now.
  Status shrink_if_worthwhile(const std::map<std::string, TrackedPtr>& files)
      STRATA_REQUIRES(mutex) {
    constexpr uint64_t kWorthwhile = 32u << 20;
    if (end_ < kWorthwhile || end_ < 2 * live_bytes_) return status_;
    return rewrite(files);
  }

  // Keeps the file under another name; returns it, empty when that is impossible. PW3.
  std::string keep(const std::string& path, uint64_t seq) STRATA_REQUIRES(mutex) {
    std::string kept = kept_folder_ + "/" + std::to_string(seq);
    return ::link(path.c_str(), kept.c_str()) == 0 ? kept : std::string();
  }

 private:
  struct Extent {
    uint64_t offset;
    uint64_t bytes;
  };

  Status write_all(int fd, Bytes bytes) STRATA_REQUIRES(mutex) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return status_ = errno_status("write", path_, n < 0 ? errno : ENOSPC);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return ok_status();
  }

  Status rewrite(const std::map<std::string, TrackedPtr>& files) STRATA_REQUIRES(mutex) {
    const std::string fresh = path_ + ".new";
    const int fd = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    if (fd < 0) return status_ = errno_status("open", fresh, errno);
    uint64_t end = 0;
    for (auto& [seq, extent] : live_) {
      scratch_.resize(extent.bytes);
      if (::pread(fd_, scratch_.data(), extent.bytes, static_cast<off_t>(extent.offset)) !=
          static_cast<ssize_t>(extent.bytes))
        status_ = errno_status("read", path_, errno);
      extent.offset = end;
      end += extent.bytes;
      if (status_.ok()) status_ = write_all(fd, scratch_);
    }
    scratch_.clear();
    for (const auto& [path, file] : files)
      append_record(&scratch_, Record{.kind = RecordKind::kFile,
                                      .seq = seq_,
                                      .file = file->id,
                                      .path = path,
                                      .path2 = {},
                                      .data = {}});
    if (status_.ok()) status_ = write_all(fd, scratch_);
    if (status_.ok() && ::rename(fresh.c_str(), path_.c_str()) != 0)
      status_ = errno_status("rename", fresh, errno);
    ::close(fd_);
    fd_ = fd;
    end_ = end + scratch_.size();
    return status_;
  }

  const std::string path_;
  const std::string kept_folder_;
  int fd_ STRATA_GUARDED_BY(mutex) = -1;
  Status status_ STRATA_GUARDED_BY(mutex);  // the first failure; sticks
  uint64_t seq_ STRATA_GUARDED_BY(mutex) = 0;
  uint64_t end_ STRATA_GUARDED_BY(mutex) = 0;
  uint64_t live_bytes_ STRATA_GUARDED_BY(mutex) = 0;
  std::map<uint64_t, Extent> live_ STRATA_GUARDED_BY(mutex);  // by seq
  std::string scratch_ STRATA_GUARDED_BY(mutex);
};

// What wrapped files share; outlives the file system while files are open.
struct Shared {
  Shared(std::unique_ptr<FileSystem> inner_in, const std::string& journal_path)
      : inner(std::move(inner_in)), journal(journal_path) {}

  struct NameChange {
    uint64_t seq;
    std::string folder;
    std::string kept;  // hard link, or empty
    TrackedPtr gone;   // file that has no name any more
  };

  const std::unique_ptr<FileSystem> inner;
  Journal journal;
  std::map<std::string, TrackedPtr> files STRATA_GUARDED_BY(journal.mutex);  // by path
  std::map<uint64_t, std::set<uint64_t>> unsynced
      STRATA_GUARDED_BY(journal.mutex);  // file id -> seqs of its changes
  std::vector<NameChange> unsynced_names STRATA_GUARDED_BY(journal.mutex);  // oldest first
  uint64_t next_file STRATA_GUARDED_BY(journal.mutex) = 0;

  Status shrink() STRATA_REQUIRES(journal.mutex) { return journal.shrink_if_worthwhile(files); }
};

class PowerLossFile final : public File {
 public:
  PowerLossFile(std::shared_ptr<Shared> shared, TrackedPtr tracked, std::unique_ptr<File> inner)
      : shared_(std::move(shared)), tracked_(std::move(tracked)), inner_(std::move(inner)) {}

  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    return inner_->read_at(offset, data, bytes, got);
  }

  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    if (bytes == 0) return ok_status();
    const MutexLock one_at_a_time(tracked_->change_mutex);
    STRATA_ASSIGN_OR_RETURN(const uint64_t size, inner_->size());
    return change(FileChange{.offset = offset,
                             .bytes = bytes,
                             .old_size = size,
                             .new_size = std::max<uint64_t>(size, offset + bytes),
                             .before = {}},
                  [&] { return inner_->write_at(offset, data, bytes); });
  }

  Status sync_data() override {
    Record mark{
        .kind = RecordKind::kSync, .file = tracked_->id, .path = {}, .path2 = {}, .data = {}};
    std::set<uint64_t> pending;
    {
      const MutexLock lock(shared_->journal.mutex);
      mark.a = shared_->journal.last_seq() + 1;
      pending = tracked_->in_flight;
    }
    STRATA_RETURN_IF_ERROR(inner_->sync_data());
    for (const uint64_t seq : pending) append_u64(&mark.data, seq);
    const MutexLock lock(shared_->journal.mutex);
    mark.seq = shared_->journal.next_seq();
    STRATA_RETURN_IF_ERROR(shared_->journal.append(mark, false));
    std::set<uint64_t>& unsynced = shared_->unsynced[tracked_->id];
    for (auto it = unsynced.begin(); it != unsynced.end() && *it < mark.a;) {
      if (pending.count(*it) > 0) {
        ++it;
        continue;
      }
      shared_->journal.forget(*it);
      it = unsynced.erase(it);
    }
    return shared_->shrink();
  }

  StatusOr<uint64_t> size() override { return inner_->size(); }

  Status allocate(uint64_t bytes) override {
    const MutexLock one_at_a_time(tracked_->change_mutex);
    STRATA_ASSIGN_OR_RETURN(const uint64_t size, inner_->size());
    if (size >= bytes) return ok_status();
    return change(
        FileChange{.offset = size, .bytes = 0, .old_size = size, .new_size = bytes, .before = {}},
        [&] { return inner_->allocate(bytes); });
  }

  Status truncate(uint64_t bytes) override {
    const MutexLock one_at_a_time(tracked_->change_mutex);
    STRATA_ASSIGN_OR_RETURN(const uint64_t size, inner_->size());
    if (size == bytes) return ok_status();
    return change(FileChange{.offset = std::min(bytes, size),
                             .bytes = bytes < size ? size - bytes : 0,
                             .old_size = size,
                             .new_size = bytes,
                             .before = {}},
                  [&] { return inner_->truncate(bytes); });
  }

  [[nodiscard]] const std::string& path() const override { return inner_->path(); }

 private:
  // Journals the change with its pre-image, then makes it. PW1, PW2.
  template <typename Make>
  Status change(FileChange change, Make make) {
    change.before.resize(change.bytes);
    size_t got = 0;
    STRATA_RETURN_IF_ERROR(
        inner_->read_at(change.offset, change.before.data(), change.bytes, &got));
    change.before.resize(got);
    uint64_t seq = 0;
    {
      const MutexLock lock(shared_->journal.mutex);
      seq = shared_->journal.next_seq();
      STRATA_RETURN_IF_ERROR(
          shared_->journal.append(change_record(seq, tracked_->id, change), true));
      shared_->unsynced[tracked_->id].insert(seq);
      tracked_->in_flight.insert(seq);
    }
    const Status status = make();
    const MutexLock lock(shared_->journal.mutex);
    tracked_->in_flight.erase(seq);
    return status;
  }

  const std::shared_ptr<Shared> shared_;
  const TrackedPtr tracked_;
  const std::unique_ptr<File> inner_;
};

class PowerLossFileSystem final : public FileSystem {
 public:
  PowerLossFileSystem(std::unique_ptr<FileSystem> inner, const std::string& journal_path)
      : shared_(std::make_shared<Shared>(std::move(inner), journal_path)) {}

  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    options.direct = false;  // pre-images are read through the page cache
    const MutexLock lock(shared_->journal.mutex);
    STRATA_ASSIGN_OR_RETURN(const bool existed, shared_->inner->exists(path));
    TrackedPtr tracked;
    if (!existed && options.create) {
      STRATA_ASSIGN_OR_RETURN(tracked, track(path, RecordKind::kCreate));
    }
    StatusOr<std::unique_ptr<File>> file = shared_->inner->open(path, options);
    if (!file.ok()) {
      if (tracked != nullptr) {
        shared_->files.erase(path);
        STRATA_RETURN_IF_ERROR(cancel());
      }
      return file.status();
    }
    if (tracked == nullptr) {
      STRATA_ASSIGN_OR_RETURN(tracked, track(path, RecordKind::kFile));
    }
    return std::unique_ptr<File>(
        std::make_unique<PowerLossFile>(shared_, std::move(tracked), std::move(*file)));
  }

  // Folders are taken to be durable at once.
  Status make_directory(const std::string& path) override {
    return shared_->inner->make_directory(path);
  }

  Status remove(const std::string& path) override {
    const MutexLock lock(shared_->journal.mutex);
    STRATA_ASSIGN_OR_RETURN(const bool existed, shared_->inner->exists(path));
    if (!existed) return ok_status();
    STRATA_ASSIGN_OR_RETURN(const TrackedPtr tracked, track(path, RecordKind::kFile));
    Record record{.kind = RecordKind::kRemove,
                  .seq = shared_->journal.next_seq(),
                  .file = tracked->id,
                  .path = path,
                  .path2 = {},
                  .data = {}};
    record.path2 = shared_->journal.keep(path, record.seq);
    STRATA_RETURN_IF_ERROR(note(record, folder_of(path), record.path2, tracked));
    const Status removed = shared_->inner->remove(path);
    if (removed.ok()) {
      shared_->files.erase(path);
    } else {
      STRATA_RETURN_IF_ERROR(cancel());
    }
    return removed;
  }

  Status rename(const std::string& from, const std::string& to) override {
    const MutexLock lock(shared_->journal.mutex);
    STRATA_ASSIGN_OR_RETURN(const bool existed, shared_->inner->exists(from));
    if (!existed || from == to) return shared_->inner->rename(from, to);
    STRATA_ASSIGN_OR_RETURN(const TrackedPtr moved, track(from, RecordKind::kFile));
    STRATA_ASSIGN_OR_RETURN(const bool replaces, shared_->inner->exists(to));
    TrackedPtr replaced;
    if (replaces) {
      STRATA_ASSIGN_OR_RETURN(replaced, track(to, RecordKind::kFile));
    }
    Record record{.kind = RecordKind::kRename,
                  .seq = shared_->journal.next_seq(),
                  .file = moved->id,
                  .b = replaces ? replaced->id : 0,
                  .path = from,
                  .path2 = to,
                  .data = {}};
    if (replaces) record.data = shared_->journal.keep(to, record.seq);
    STRATA_RETURN_IF_ERROR(note(record, folder_of(to), record.data, replaced));
    const Status renamed = shared_->inner->rename(from, to);
    if (renamed.ok()) {
      shared_->files.erase(from);
      shared_->files[to] = moved;
    } else {
      STRATA_RETURN_IF_ERROR(cancel());
    }
    return renamed;
  }

  StatusOr<bool> exists(const std::string& path) override { return shared_->inner->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    return shared_->inner->list(directory);
  }

  Status sync_directory(const std::string& path) override {
    const MutexLock lock(shared_->journal.mutex);
    STRATA_RETURN_IF_ERROR(shared_->inner->sync_directory(path));
    const std::string folder = folder_of(path + (path.back() == '/' ? "" : "/"));
    Record mark{.kind = RecordKind::kSyncDirectory,
                .seq = shared_->journal.next_seq(),
                .path = folder,
                .path2 = {},
                .data = {}};
    mark.a = mark.seq;
    STRATA_RETURN_IF_ERROR(shared_->journal.append(mark, false));
    std::vector<Shared::NameChange>& names = shared_->unsynced_names;
    std::erase_if(names, [&](const Shared::NameChange& c) STRATA_REQUIRES(shared_->journal.mutex) {
      if (c.folder != folder) return false;
      forget(c);
      return true;
    });
    return shared_->shrink();
  }

  // Nothing is kept in the file, so whether a power loss takes it is all the same.
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    return shared_->inner->lock_file(path);
  }

 private:
  // The tracked file at `path`, announced to the journal when it is new there.
  StatusOr<TrackedPtr> track(const std::string& path, RecordKind kind)
      STRATA_REQUIRES(shared_->journal.mutex) {
    const auto it = shared_->files.find(path);
    if (it != shared_->files.end()) return it->second;
    auto fresh = std::make_shared<TrackedFile>();
    fresh->id = ++shared_->next_file;
    const Record record{.kind = kind,
                        .seq = shared_->journal.next_seq(),
                        .file = fresh->id,
                        .path = path,
                        .path2 = {},
                        .data = {}};
    if (kind == RecordKind::kCreate) {
      STRATA_RETURN_IF_ERROR(note(record, folder_of(path), "", nullptr));
    } else {
      STRATA_RETURN_IF_ERROR(shared_->journal.append(record, false));
    }
    shared_->files[path] = fresh;
    return fresh;
  }

  Status note(const Record& record, const std::string& folder, const std::string& kept,
              const TrackedPtr& gone) STRATA_REQUIRES(shared_->journal.mutex) {
    STRATA_RETURN_IF_ERROR(shared_->journal.append(record, true));
    shared_->unsynced_names.push_back(Shared::NameChange{record.seq, folder, kept, gone});
    return ok_status();
  }

  // The change of a name noted last was not made after all.
  Status cancel() STRATA_REQUIRES(shared_->journal.mutex) {
    const Shared::NameChange change = shared_->unsynced_names.back();
    shared_->unsynced_names.pop_back();
    shared_->journal.forget(change.seq);
    if (!change.kept.empty()) ::unlink(change.kept.c_str());
    return shared_->journal.append(Record{.kind = RecordKind::kCancel,
                                          .seq = shared_->journal.next_seq(),
                                          .a = change.seq,
                                          .path = {},
                                          .path2 = {},
                                          .data = {}},
                                   false);
  }

  // The change of a name is durable: a file that lost its last name is gone for good.
  void forget(const Shared::NameChange& c) STRATA_REQUIRES(shared_->journal.mutex) {
    shared_->journal.forget(c.seq);
    if (!c.kept.empty()) ::unlink(c.kept.c_str());
    if (c.gone == nullptr) return;
    for (const uint64_t seq : shared_->unsynced[c.gone->id]) shared_->journal.forget(seq);
    shared_->unsynced.erase(c.gone->id);
  }

  const std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<FileSystem> make_power_loss_file_system(std::unique_ptr<FileSystem> inner,
                                                        const std::string& journal_path) {
  return std::make_unique<PowerLossFileSystem>(std::move(inner), journal_path);
}

}  // namespace strata
