#include "io/internal/power_loss_revert.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <vector>

#include "io/file_system.h"
#include "io/internal/errno_status.h"
#include "io/internal/power_loss_journal.h"

namespace strata {
namespace {

using power_loss::change_of;
using power_loss::Record;
using power_loss::RecordKind;
using power_loss::take_record;

class RealFile final : public ChangedFile {
 public:
  explicit RealFile(const std::string& path) : path_(path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd_ < 0 && errno != ENOENT) fail("open");
  }
  ~RealFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  RealFile(const RealFile&) = delete;
  RealFile& operator=(const RealFile&) = delete;

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  [[nodiscard]] const Status& status() const { return status_; }

  uint64_t size() override {
    struct stat info = {};
    if (::fstat(fd_, &info) != 0) fail("fstat");
    return static_cast<uint64_t>(info.st_size);
  }
  void write(uint64_t offset, Bytes bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return fail("write");
      bytes.remove_prefix(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
  }
  void resize(uint64_t bytes) override {
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail("ftruncate");
  }

 private:
  void fail(std::string_view operation) {
    if (status_.ok()) status_ = errno_status(operation, path_, errno);
  }
  const std::string path_;
  int fd_ = -1;
  Status status_;
};

class Reverter {
 public:
  explicit Reverter(uint64_t seed) : rng_(seed) {}

  void read(Bytes journal) {
    while (std::optional<Record> record = take_record(&journal)) {
      ++report_.records;
      note(std::move(*record));
    }
    report_.tail_cut = !journal.empty();
    drop_name_not_made();
  }

  StatusOr<PowerLossReport> revert() {
    for (const auto& [file, changes] : changes_) STRATA_RETURN_IF_ERROR(revert_file(file, changes));
    STRATA_RETURN_IF_ERROR(revert_names());
    return report_;
  }

 private:
  void note(Record record) {
    switch (record.kind) {
      case RecordKind::kFile:
        paths_[record.file] = record.path;
        return;
      case RecordKind::kChange:
        changes_[record.file][record.seq] = change_of(record);
        return;
      case RecordKind::kSync:
        return note_sync(record);
      case RecordKind::kCreate:
      case RecordKind::kRename:
      case RecordKind::kRemove:
        return note_name(std::move(record));
      case RecordKind::kCancel:
        if (!names_.empty() && names_.back().seq == record.a) {
          move_back(names_.back());
          names_.pop_back();
        }
        newest_name_ = 0;
        return;
      case RecordKind::kSyncDirectory:
        std::erase_if(names_, [&](const Record& name) {
          return folder(name) == record.path && name.seq < record.a;
        });
        return;
    }
  }

  void note_name(Record record) {
    newest_name_ = record.seq;
    paths_[record.file] = record.kind == RecordKind::kCreate ? record.path : record.path2;
    if (record.kind == RecordKind::kRename && record.b != 0) paths_[record.b] = record.data;
    names_.push_back(std::move(record));
  }
  // The record tells of a change that was not made.
  void move_back(const Record& name) {
    paths_[name.file] = name.path;
    if (name.kind == RecordKind::kRename && name.b != 0) paths_[name.b] = name.path2;
  }
  // The kill may have come between the last record and its change.
  void drop_name_not_made() {
    if (names_.empty() || names_.back().seq != newest_name_) return;
    const Record& name = names_.back();
    const bool made = is_there(name.path) == (name.kind == RecordKind::kCreate);
    if (made) return;
    move_back(name);
    names_.pop_back();
  }

  void note_sync(const Record& record) {
    std::set<uint64_t> pending;
    ByteReader in(record.data);
    while (in.remaining() >= 8) pending.insert(in.u64());
    std::erase_if(changes_[record.file], [&](const auto& change) {
      return change.first < record.a && pending.count(change.first) == 0;
    });
  }

  static std::string folder(const Record& name) {
    return folder_of(name.kind == RecordKind::kRename ? name.path2 : name.path);
  }

  Status revert_file(uint64_t id, const std::map<uint64_t, FileChange>& changes) {
    if (changes.empty()) return ok_status();
    report_.unsynced_changes += changes.size();
    RealFile file(paths_[id]);
    STRATA_RETURN_IF_ERROR(file.status());
    if (!file.is_open()) return ok_status();  // removed for good
    PowerLoss loss(&rng_, &file);
    for (auto it = changes.rbegin(); it != changes.rend() && file.status().ok(); ++it)
      loss.undo(it->second);
    report_.reverted_sectors += loss.reverted_sectors();
    return file.status();
  }

  // Of each folder's changes the newest few are undone: a journalled file system keeps a prefix.
  Status revert_names() {
    report_.unsynced_names = names_.size();
    std::map<std::string, uint64_t> left;
    for (const Record& name : names_) ++left[folder(name)];
    for (auto& [path, n] : left) n = rng_.below(n + 1);
    for (auto it = names_.rbegin(); it != names_.rend(); ++it) {
      uint64_t& n = left[folder(*it)];
      if (n == 0) continue;
      if (!can_undo(*it)) {
        n = 0;
        continue;
      }
      --n;
      STRATA_RETURN_IF_ERROR(undo_name(*it));
      ++report_.reverted_names;
    }
    return ok_status();
  }

  // Not if the removed file could not be kept, or if its name has moved on through another folder.
  static bool can_undo(const Record& name) {
    switch (name.kind) {
      case RecordKind::kCreate:
        return is_there(name.path);
      case RecordKind::kRename:
        return is_there(name.path2) && !is_there(name.path) && (name.b == 0 || is_there(name.data));
      case RecordKind::kRemove:
        return is_there(name.path2) && !is_there(name.path);
      default:
        return false;
    }
  }
  static bool is_there(const std::string& path) {
    return !path.empty() && ::access(path.c_str(), F_OK) == 0;
  }

  Status undo_name(const Record& name) {
    switch (name.kind) {
      case RecordKind::kCreate:
        return disk_->remove(name.path);
      case RecordKind::kRename:
        STRATA_RETURN_IF_ERROR(disk_->rename(name.path2, name.path));
        return name.b == 0 ? ok_status() : disk_->rename(name.data, name.path2);
      case RecordKind::kRemove:
        return disk_->rename(name.path2, name.path);
      default:
        return ok_status();
    }
  }

  Rng rng_;
  const std::unique_ptr<FileSystem> disk_ = make_posix_file_system();
  std::map<uint64_t, std::string> paths_;                       // where each file is now
  std::map<uint64_t, std::map<uint64_t, FileChange>> changes_;  // file -> seq -> unsynced change
  std::vector<Record> names_;                                   // unsynced, oldest first
  uint64_t newest_name_ = 0;  // seq of the last change of a name in the journal
  PowerLossReport report_;
};

StatusOr<std::string> read_whole(FileSystem* disk, const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, disk->open(path, OpenOptions{}));
  STRATA_ASSIGN_OR_RETURN(const uint64_t size, file->size());
  std::string bytes(size, '\0');
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file->read_at(0, bytes.data(), size, &got));
  bytes.resize(got);
  return bytes;
}

}  // namespace

StatusOr<PowerLossReport> revert_unsynced(const std::string& journal_path, uint64_t seed) {
  const std::unique_ptr<FileSystem> disk = make_posix_file_system();
  STRATA_ASSIGN_OR_RETURN(const std::string journal, read_whole(disk.get(), journal_path));
  Reverter reverter(seed);
  reverter.read(journal);
  STRATA_ASSIGN_OR_RETURN(const PowerLossReport report, reverter.revert());
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                          disk->open(journal_path, OpenOptions{}));
  STRATA_RETURN_IF_ERROR(file->truncate(0));
  power_loss::empty_kept_folder(journal_path);
  return report;
}

}  // namespace strata
