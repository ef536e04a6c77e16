// For tests: a disk with places that cannot be read or written, which says so (EIO) each time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/latch.h"
#include "io/file_system.h"

namespace strata::storenode::testing {

class RefusingFileSystem final : public FileSystem {
 public:
  explicit RefusingFileSystem(FileSystem* inner) : inner_(inner) {}

  // An end of names; none at first. May be set while others use the disk.
  class NameEnd {
   public:
    NameEnd& operator=(const std::string& end) {
      const MutexLock lock(mutex_);
      end_ = end;
      return *this;
    }
    [[nodiscard]] bool is_of(const std::string& path) const {
      const MutexLock lock(mutex_);
      return !end_.empty() && path.ends_with(end_);
    }

   private:
    mutable Mutex mutex_{LatchRank::kLeaf};
    std::string end_ STRATA_GUARDED_BY(mutex_);
  };
  NameEnd reads_of, writes_of;                  // files that are refused
  std::atomic<uint64_t> reads{0}, writes{0};    // that were refused
  std::atomic<uint64_t> reads_max{UINT64_MAX};  // refused at most
  // What is said.
  std::string error = "Input/output error";

  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, inner_->open(path, options));
    return std::unique_ptr<File>(std::make_unique<Refusing>(this, std::move(file)));
  }
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
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
    return inner_->lock_file(path);
  }

 private:
  class Refusing final : public File {
   public:
    Refusing(RefusingFileSystem* fs, std::unique_ptr<File> file)
        : fs_(fs), file_(std::move(file)) {}
    Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
      if (fs_->reads_of.is_of(path()) && fs_->reads < fs_->reads_max) {
        ++fs_->reads;
        *got = 0;
        return error_io_error("read " + path() + ": " + fs_->error);
      }
      return file_->read_at(offset, data, bytes, got);
    }
    Status write_at(uint64_t offset, const void* data, size_t bytes) override {
      if (fs_->writes_of.is_of(path())) {
        ++fs_->writes;
        return error_io_error("write " + path() + ": " + fs_->error);
      }
      return file_->write_at(offset, data, bytes);
    }
    Status sync_data() override { return file_->sync_data(); }
    StatusOr<uint64_t> size() override { return file_->size(); }
    Status allocate(uint64_t bytes) override { return file_->allocate(bytes); }
    Status truncate(uint64_t bytes) override { return file_->truncate(bytes); }
    [[nodiscard]] const std::string& path() const override { return file_->path(); }

   private:
    RefusingFileSystem* const fs_;
    const std::unique_ptr<File> file_;
  };

  FileSystem* const inner_;
};

}  // namespace strata::storenode::testing
