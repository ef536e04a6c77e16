// A disk that a test fills up and frees again while a server runs on it, by making and removing a
// file. Nobody needs a mount or rights for it.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "io/file_system.h"

namespace strata {
namespace {

class Fullness {
 public:
  explicit Fullness(std::string marker_path) : marker_path_(std::move(marker_path)) {}
  [[nodiscard]] bool is_full() const noexcept { return ::access(marker_path_.c_str(), F_OK) == 0; }
  [[nodiscard]] Status refuse(const char* what, const std::string& path) const {
    return error_no_space(std::string(what) + " " + path + ": no space left on device (" +
                          marker_path_ + ")");
  }

 private:
  const std::string marker_path_;
};

class FullDiskFile final : public File {
 public:
  FullDiskFile(std::unique_ptr<File> inner, const Fullness* fullness)
      : inner_(std::move(inner)), fullness_(fullness) {}
  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    return inner_->read_at(offset, data, bytes, got);
  }
  // Bytes that have room already can always be written.
  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    if (!fullness_->is_full()) return inner_->write_at(offset, data, bytes);
    STRATA_ASSIGN_OR_RETURN(const uint64_t size, inner_->size());
    if (offset + bytes <= size) return inner_->write_at(offset, data, bytes);
    const uint64_t room = std::max(size, offset) - offset;
    STRATA_RETURN_IF_ERROR(inner_->write_at(offset, data, std::min<uint64_t>(room, bytes)));
    return fullness_->refuse("write", path());
  }
  Status sync_data() override { return inner_->sync_data(); }
  StatusOr<uint64_t> size() override { return inner_->size(); }
  Status allocate(uint64_t bytes) override {
    STRATA_ASSIGN_OR_RETURN(const uint64_t size, inner_->size());
    if (bytes > size && fullness_->is_full()) return fullness_->refuse("allocate", path());
    return inner_->allocate(bytes);
  }
  Status truncate(uint64_t bytes) override { return inner_->truncate(bytes); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }

 private:
  const std::unique_ptr<File> inner_;
  const Fullness* const fullness_;
};

class FullDiskFileSystem final : public FileSystem {
 public:
  FullDiskFileSystem(std::unique_ptr<FileSystem> inner, const std::string& marker_path)
      : inner_(std::move(inner)), fullness_(marker_path) {}
  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    if (options.create && fullness_.is_full()) {
      STRATA_ASSIGN_OR_RETURN(const bool exists, inner_->exists(path));
      if (!exists) return fullness_.refuse("open", path);
    }
    STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, inner_->open(path, options));
    return std::unique_ptr<File>(std::make_unique<FullDiskFile>(std::move(file), &fullness_));
  }
  Status make_directory(const std::string& path) override {
    STRATA_ASSIGN_OR_RETURN(const bool exists, inner_->exists(path));
    if (!exists && fullness_.is_full()) return fullness_.refuse("mkdir", path);
    return inner_->make_directory(path);
  }
  Status remove(const std::string& path) override { return inner_->remove(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return inner_->rename(from, to);
  }
  StatusOr<bool> exists(const std::string& path) override { return inner_->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    return inner_->list(directory);
  }
  Status sync_directory(const std::string& path) override { return inner_->sync_directory(path); }
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    STRATA_ASSIGN_OR_RETURN(const bool exists, inner_->exists(path));
    if (!exists && fullness_.is_full()) return fullness_.refuse("open", path);
    return inner_->lock_file(path);
  }

 private:
  const std::unique_ptr<FileSystem> inner_;
  const Fullness fullness_;
};

}  // namespace

std::unique_ptr<FileSystem> make_full_disk_file_system(std::unique_ptr<FileSystem> inner,
                                                       const std::string& marker_path) {
  return std::make_unique<FullDiskFileSystem>(std::move(inner), marker_path);
}

}  // namespace strata
