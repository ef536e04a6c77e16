// For tests: passes calls on and makes the n-th write or sync fail. One thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace strata::testing {

class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem* inner) : inner_(inner) {}

  // Asked before each write, sync, rename and directory sync; not OK: the call fails so. A failed
  // write is half done first (while half_writes), a failed sync may have done its work or not.
  std::function<Status(const char* operation, const std::string& path)> judge;
  bool half_writes = true;
  // Asked before each read.
  std::function<Status(const std::string& path, uint64_t offset, size_t bytes)> judge_read;

  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, inner_->open(path, options));
    return std::unique_ptr<File>(std::make_unique<FaultyFile>(this, std::move(file)));
  }
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
  Status remove(const std::string& path) override { return inner_->remove(path); }
  Status rename(const std::string& from, const std::string& to) override {
    STRATA_RETURN_IF_ERROR(ask("rename", from));
    return inner_->rename(from, to);
  }
  StatusOr<bool> exists(const std::string& path) override { return inner_->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    return inner_->list(directory);
  }
  Status sync_directory(const std::string& path) override {
    STRATA_RETURN_IF_ERROR(ask("sync_directory", path));
    return inner_->sync_directory(path);
  }
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    return inner_->lock_file(path);
  }

 private:
  Status ask(const char* operation, const std::string& path) {
    return judge ? judge(operation, path) : ok_status();
  }

  class FaultyFile final : public File {
   public:
    FaultyFile(FaultyFileSystem* fs, std::unique_ptr<File> file)
        : fs_(fs), file_(std::move(file)) {}
    Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
      if (fs_->judge_read) STRATA_RETURN_IF_ERROR(fs_->judge_read(path(), offset, bytes));
      return file_->read_at(offset, data, bytes, got);
    }
    Status write_at(uint64_t offset, const void* data, size_t bytes) override {
      const Status verdict = fs_->ask("write", path());
      if (verdict.ok()) return file_->write_at(offset, data, bytes);
      if (fs_->half_writes) file_->write_at(offset, data, bytes / 2).IgnoreError();
      return verdict;
    }
    Status sync_data() override {
      STRATA_RETURN_IF_ERROR(fs_->ask("sync", path()));
      return file_->sync_data();
    }
    StatusOr<uint64_t> size() override { return file_->size(); }
    Status allocate(uint64_t bytes) override {
      STRATA_RETURN_IF_ERROR(fs_->ask("allocate", path()));
      return file_->allocate(bytes);
    }
    Status truncate(uint64_t bytes) override { return file_->truncate(bytes); }
    [[nodiscard]] const std::string& path() const override { return file_->path(); }

   private:
    FaultyFileSystem* const fs_;
    const std::unique_ptr<File> file_;
  };

  FileSystem* const inner_;
};

}  // namespace strata::testing
