// A disk whose files fail while a server runs on it, as a test says in a file that it makes,
// changes and removes: the counterpart of full_disk.cc for EIO.
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/latch.h"
#include "io/file_system.h"

namespace strata {
namespace {

enum Operation : uint8_t { kRead = 1, kWrite = 2, kSync = 4, kName = 8 };
constexpr std::array<std::pair<std::string_view, Operation>, 4> kOperations{
    {{"read", kRead}, {"write", kWrite}, {"sync", kSync}, {"name", kName}}};
constexpr size_t kMarkerBytesMax = 4096;

// One line of the marker.
struct Rule {
  uint8_t operations = 0;
  std::string part;  // of the paths it holds for; empty: of all
};

Rule parse_rule(std::string_view line) {
  Rule rule;
  const size_t space = std::min(line.find(' '), line.size());
  const std::string_view names = line.substr(0, space);
  if (space < line.size()) rule.part = line.substr(space + 1);
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    for (const auto& [name, operation] : kOperations)
      if (names.substr(at, end - at) == name) rule.operations |= operation;
    at = end + 1;
  }
  return rule;
}

// Thread-safe. Looks at the marker at each call, for only tests use such a disk.
class Failures {
 public:
  explicit Failures(std::string marker_path) : marker_path_(std::move(marker_path)) {}

  [[nodiscard]] Status check(Operation operation, const char* what, const std::string& path) {
    const MutexLock lock(mutex_);
    look();
    for (const Rule& rule : rules_) {
      if ((rule.operations & operation) == 0 || path.find(rule.part) == std::string::npos) continue;
      // As EIO reads (device_error.h).
      return error_io_error(std::string(what) + " " + path + ": Input/output error (" +
                            marker_path_ + ")");
    }
    return ok_status();
  }

 private:
  void look() STRATA_REQUIRES(mutex_) {
    struct stat now = {};
    if (::stat(marker_path_.c_str(), &now) != 0) now = {};
    if (now.st_ino == seen_.st_ino && now.st_size == seen_.st_size &&
        now.st_mtim.tv_sec == seen_.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen_.st_mtim.tv_nsec)
      return;
    seen_ = now;
    rules_.clear();
    const auto close = [](FILE* file) { std::fclose(file); };
    const std::unique_ptr<FILE, decltype(close)> file(
        now.st_ino == 0 ? nullptr : std::fopen(marker_path_.c_str(), "re"), close);
    if (file == nullptr) return;
    std::string text(kMarkerBytesMax, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file.get()));
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      rules_.push_back(parse_rule(std::string_view(text).substr(at, end - at)));
      at = end + 1;
    }
  }

  const std::string marker_path_;
  Mutex mutex_{LatchRank::kDisk};                    // held over I/O; see the class
  struct stat seen_ STRATA_GUARDED_BY(mutex_) = {};  // the marker when it was read
  std::vector<Rule> rules_ STRATA_GUARDED_BY(mutex_);
};

class FailingFile final : public File {
 public:
  FailingFile(std::unique_ptr<File> inner, Failures* failures)
      : inner_(std::move(inner)), failures_(failures) {}
  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    STRATA_RETURN_IF_ERROR(failures_->check(kRead, "read", path()));
    return inner_->read_at(offset, data, bytes, got);
  }
  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    STRATA_RETURN_IF_ERROR(failures_->check(kWrite, "write", path()));
    return inner_->write_at(offset, data, bytes);
  }
  Status sync_data() override {
    STRATA_RETURN_IF_ERROR(failures_->check(kSync, "sync", path()));
    return inner_->sync_data();
  }
  StatusOr<uint64_t> size() override { return inner_->size(); }
  Status allocate(uint64_t bytes) override {
    STRATA_RETURN_IF_ERROR(failures_->check(kWrite, "allocate", path()));
    return inner_->allocate(bytes);
  }
  Status truncate(uint64_t bytes) override {
    STRATA_RETURN_IF_ERROR(failures_->check(kWrite, "truncate", path()));
    return inner_->truncate(bytes);
  }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }

 private:
  const std::unique_ptr<File> inner_;
  Failures* const failures_;
};

class FailingDiskFileSystem final : public FileSystem {
 public:
  FailingDiskFileSystem(std::unique_ptr<FileSystem> inner, const std::string& marker_path)
      : inner_(std::move(inner)), failures_(marker_path) {}
  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    STRATA_RETURN_IF_ERROR(failures_.check(kName, "open", path));
    STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, inner_->open(path, options));
    return std::unique_ptr<File>(std::make_unique<FailingFile>(std::move(file), &failures_));
  }
  Status make_directory(const std::string& path) override {
    STRATA_RETURN_IF_ERROR(failures_.check(kName, "mkdir", path));
    return inner_->make_directory(path);
  }
  Status remove(const std::string& path) override {
    STRATA_RETURN_IF_ERROR(failures_.check(kName, "remove", path));
    return inner_->remove(path);
  }
  Status rename(const std::string& from, const std::string& to) override {
    STRATA_RETURN_IF_ERROR(failures_.check(kName, "rename", from));
    return inner_->rename(from, to);
  }
  StatusOr<bool> exists(const std::string& path) override { return inner_->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    STRATA_RETURN_IF_ERROR(failures_.check(kRead, "list", directory));
    return inner_->list(directory);
  }
  Status sync_directory(const std::string& path) override {
    STRATA_RETURN_IF_ERROR(failures_.check(kSync, "sync", path));
    return inner_->sync_directory(path);
  }
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    STRATA_RETURN_IF_ERROR(failures_.check(kName, "lock", path));
    return inner_->lock_file(path);
  }

 private:
  const std::unique_ptr<FileSystem> inner_;
  Failures failures_;
};

}  // namespace

std::unique_ptr<FileSystem> make_failing_disk_file_system(std::unique_ptr<FileSystem> inner,
                                                          const std::string& marker_path) {
  return std::make_unique<FailingDiskFileSystem>(std::move(inner), marker_path);
}

}  // namespace strata
