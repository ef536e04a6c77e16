// A disk that works until a test says otherwise: whatever `refuse` answers for an operation is what
// the operation answers. Files stay as they were, as after a call that failed at once.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "io/file_system.h"

namespace strata::engine::testing {

enum class DiskCall : uint8_t { kRead, kWrite, kSync, kAllocate, kOther };

class FailingDisk final : public FileSystem {
 public:
  using Refuse = std::function<Status(DiskCall call, const std::string& path)>;
  explicit FailingDisk(FileSystem* inner) : inner_(inner) {}

  // Null: everything works again. Called by any thread.
  void set_refuse(Refuse refuse) {
    const std::lock_guard<std::mutex> lock(mutex_);
    refuse_ = std::move(refuse);
  }
  // What needs room fails, as on a full disk. What has it goes on.
  void fill_up() {
    set_refuse([](DiskCall call, const std::string& path) {
      return call == DiskCall::kAllocate ? error_no_space("allocate " + path + ": no space left")
                                         : ok_status();
    });
  }
  void empty() { set_refuse(nullptr); }

  [[nodiscard]] Status ask(DiskCall call, const std::string& path) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return refuse_ ? refuse_(call, path) : ok_status();
  }

  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override;
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
  Status remove(const std::string& path) override {
    STRATA_RETURN_IF_ERROR(ask(DiskCall::kOther, path));
    return inner_->remove(path);
  }
  Status rename(const std::string& from, const std::string& to) override {
    STRATA_RETURN_IF_ERROR(ask(DiskCall::kOther, from));
    return inner_->rename(from, to);
  }
  StatusOr<bool> exists(const std::string& path) override { return inner_->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    return inner_->list(directory);
  }
  Status sync_directory(const std::string& path) override {
    STRATA_RETURN_IF_ERROR(ask(DiskCall::kSync, path));
    return inner_->sync_directory(path);
  }
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    STRATA_RETURN_IF_ERROR(ask(DiskCall::kOther, path));
    return inner_->lock_file(path);
  }

 private:
  FileSystem* const inner_;
  mutable std::mutex mutex_;
  Refuse refuse_;
};

class FailingDiskFile final : public File {
 public:
  FailingDiskFile(std::unique_ptr<File> inner, const FailingDisk* disk)
      : inner_(std::move(inner)), disk_(disk) {}
  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    STRATA_RETURN_IF_ERROR(disk_->ask(DiskCall::kRead, path()));
    return inner_->read_at(offset, data, bytes, got);
  }
  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    STRATA_RETURN_IF_ERROR(disk_->ask(DiskCall::kWrite, path()));
    STRATA_ASSIGN_OR_RETURN(const uint64_t size, inner_->size());
    if (offset + bytes > size) STRATA_RETURN_IF_ERROR(disk_->ask(DiskCall::kAllocate, path()));
    return inner_->write_at(offset, data, bytes);
  }
  Status sync_data() override {
    STRATA_RETURN_IF_ERROR(disk_->ask(DiskCall::kSync, path()));
    return inner_->sync_data();
  }
  StatusOr<uint64_t> size() override { return inner_->size(); }
  Status allocate(uint64_t bytes) override {
    STRATA_ASSIGN_OR_RETURN(const uint64_t size, inner_->size());
    if (bytes > size) STRATA_RETURN_IF_ERROR(disk_->ask(DiskCall::kAllocate, path()));
    return inner_->allocate(bytes);
  }
  Status truncate(uint64_t bytes) override { return inner_->truncate(bytes); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }

 private:
  const std::unique_ptr<File> inner_;
  const FailingDisk* const disk_;
};

inline StatusOr<std::unique_ptr<File>> FailingDisk::open(const std::string& path,
                                                         OpenOptions options) {
  if (options.create) {
    STRATA_ASSIGN_OR_RETURN(const bool there, inner_->exists(path));
    if (!there) STRATA_RETURN_IF_ERROR(ask(DiskCall::kAllocate, path));
  }
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, inner_->open(path, options));
  return std::unique_ptr<File>(std::make_unique<FailingDiskFile>(std::move(file), this));
}

}  // namespace strata::engine::testing
