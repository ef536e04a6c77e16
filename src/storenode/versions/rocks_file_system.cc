#include "storenode/versions/rocks_file_system.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/latch.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"

namespace strata::storenode {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

IOStatus to_rocks(const Status& status) {
  if (status.ok()) return IOStatus::OK();
  const std::string text(status.message());
  if (is_not_found(status)) return IOStatus::PathNotFound(text);
  if (is_no_space(status)) return IOStatus::NoSpace(text);
  return IOStatus::IOError(text);
}

constexpr uint64_t kSectorBytes = 512;

// RocksDB takes a MANIFEST for damaged if of its last, unsynced record the end is there and the
// beginning is not: it counts on file systems that let appended bytes survive in their order. A
// disk of ours may lose any sector (io/file_system.h).
bool must_survive_in_order(const std::string& name) {
  return name.substr(name.rfind('/') + 1).starts_with("MANIFEST-");
}

class SequentialFile final : public rocksdb::FSSequentialFile {
 public:
  explicit SequentialFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
  IOStatus Read(size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) override {
    size_t got = 0;
    const Status status = file_->read_at(position_, scratch, n, &got);
    position_ += got;
    *result = Slice(scratch, got);
    return to_rocks(status);
  }
  IOStatus Skip(uint64_t n) override {
    position_ += n;
    return IOStatus::OK();
  }

 private:
  const std::unique_ptr<File> file_;
  uint64_t position_ = 0;
};

class RandomAccessFile final : public rocksdb::FSRandomAccessFile {
 public:
  explicit RandomAccessFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
  IOStatus Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    size_t got = 0;
    const Status status = file_->read_at(offset, scratch, n, &got);
    *result = Slice(scratch, got);
    return to_rocks(status);
  }

 private:
  const std::unique_ptr<File> file_;
};

class WritableFile final : public rocksdb::FSWritableFile {
 public:
  WritableFile(std::unique_ptr<File> file, uint64_t end, bool in_order)
      : file_(std::move(file)), end_(end), in_order_(in_order) {}
  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    if (in_order_) return to_rocks(append_in_order(Bytes(data.data(), data.size())));
    const Status status = file_->write_at(end_, data.data(), data.size());
    if (status.ok()) end_ += data.size();
    return to_rocks(status);
  }
  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override {
    const Status status = file_->truncate(size);
    if (status.ok()) end_ = size;
    return to_rocks(status);
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return to_rocks(file_->sync_data()); }
  bool IsSyncThreadSafe() const override { return true; }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return end_; }

 private:
  // What a power loss leaves is a front part, sector by sector.
  Status append_in_order(Bytes bytes) {
    while (!bytes.empty()) {
      const Bytes piece = bytes.substr(0, kSectorBytes - end_ % kSectorBytes);
      if (end_ % kSectorBytes == 0) STRATA_RETURN_IF_ERROR(file_->sync_data());
      STRATA_RETURN_IF_ERROR(file_->write_at(end_, piece.data(), piece.size()));
      end_ += piece.size();
      bytes.remove_prefix(piece.size());
    }
    return ok_status();
  }
  const std::unique_ptr<File> file_;
  uint64_t end_;
  const bool in_order_;
};

class Directory final : public rocksdb::FSDirectory {
 public:
  Directory(FileSystem* files, std::string path) : files_(files), path_(std::move(path)) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return to_rocks(files_->sync_directory(path_));
  }

 private:
  FileSystem* const files_;
  const std::string path_;
};

class Lock final : public rocksdb::FileLock {
 public:
  explicit Lock(std::string path) : path(std::move(path)) {}
  const std::string path;
};

// RocksDB asks for a file's age only to clean up files this adapter does not let it make.
class RocksFileSystem final : public rocksdb::FileSystem {
 public:
  explicit RocksFileSystem(strata::FileSystem* files) : files_(files) {}
  const char* Name() const override { return "strata"; }

  IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions&,
                             std::unique_ptr<rocksdb::FSSequentialFile>* result,
                             IODebugContext*) override {
    return open_as<SequentialFile>(name, result);
  }
  IOStatus NewRandomAccessFile(const std::string& name, const rocksdb::FileOptions&,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext*) override {
    return open_as<RandomAccessFile>(name, result);
  }
  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                           IODebugContext*) override {
    return open_writable(name, /*keep=*/false, result);
  }
  IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions&,
                              std::unique_ptr<rocksdb::FSWritableFile>* result,
                              IODebugContext*) override {
    return open_writable(name, /*keep=*/true, result);
  }
  IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name,
                             const rocksdb::FileOptions&,
                             std::unique_ptr<rocksdb::FSWritableFile>* result,
                             IODebugContext*) override {
    if (Status status = files_->rename(old_name, name); !status.ok()) return to_rocks(status);
    return open_writable(name, /*keep=*/false, result);
  }
  IOStatus NewDirectory(const std::string& name, const IOOptions&,
                        std::unique_ptr<rocksdb::FSDirectory>* result, IODebugContext*) override {
    *result = std::make_unique<Directory>(files_, name);
    return IOStatus::OK();
  }
  IOStatus FileExists(const std::string& name, const IOOptions&, IODebugContext*) override {
    const StatusOr<bool> exists = files_->exists(name);
    if (!exists.ok()) return to_rocks(exists.status());
    return *exists ? IOStatus::OK() : IOStatus::NotFound(name);
  }
  IOStatus GetChildren(const std::string& directory, const IOOptions&,
                       std::vector<std::string>* result, IODebugContext*) override {
    StatusOr<std::vector<std::string>> names = files_->list(directory);
    if (!names.ok()) return to_rocks(names.status());
    *result = *std::move(names);
    return IOStatus::OK();
  }
  IOStatus DeleteFile(const std::string& name, const IOOptions&, IODebugContext*) override {
    return to_rocks(files_->remove(name));
  }
  IOStatus Truncate(const std::string& name, size_t size, const IOOptions&,
                    IODebugContext*) override {
    StatusOr<std::unique_ptr<File>> file = files_->open(name, {});
    return to_rocks(file.ok() ? (*file)->truncate(size) : file.status());
  }
  IOStatus CreateDir(const std::string& name, const IOOptions&, IODebugContext*) override {
    return to_rocks(files_->make_directory(name));
  }
  IOStatus CreateDirIfMissing(const std::string& name, const IOOptions&, IODebugContext*) override {
    return to_rocks(files_->make_directory(name));
  }
  IOStatus DeleteDir(const std::string&, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus GetFileSize(const std::string& name, const IOOptions&, uint64_t* size,
                       IODebugContext*) override {
    StatusOr<std::unique_ptr<File>> file = files_->open(name, {});
    if (!file.ok()) return to_rocks(file.status());
    const StatusOr<uint64_t> bytes = (*file)->size();
    if (bytes.ok()) *size = *bytes;
    return to_rocks(bytes.status());
  }
  IOStatus GetFileModificationTime(const std::string&, const IOOptions&, uint64_t* time,
                                   IODebugContext*) override {
    *time = 0;
    return IOStatus::OK();
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions&,
                      IODebugContext*) override {
    return to_rocks(files_->rename(from, to));
  }
  IOStatus LockFile(const std::string& name, const IOOptions&, rocksdb::FileLock** lock,
                    IODebugContext*) override {
    const MutexLock guard(mutex_);
    if (!locked_.insert(name).second) return IOStatus::IOError("is locked", name);
    *lock = new Lock(name);
    return IOStatus::OK();
  }
  IOStatus UnlockFile(rocksdb::FileLock* lock, const IOOptions&, IODebugContext*) override {
    const std::unique_ptr<Lock> mine(static_cast<Lock*>(lock));
    const MutexLock guard(mutex_);
    locked_.erase(mine->path);
    return IOStatus::OK();
  }
  IOStatus GetTestDirectory(const IOOptions&, std::string* path, IODebugContext*) override {
    *path = "/tmp";
    return IOStatus::OK();
  }
  IOStatus NewLogger(const std::string&, const IOOptions&, std::shared_ptr<rocksdb::Logger>* result,
                     IODebugContext*) override {
    result->reset();
    return IOStatus::NotSupported();  // who wants messages passes a logger
  }
  IOStatus GetAbsolutePath(const std::string& path, const IOOptions&, std::string* result,
                           IODebugContext*) override {
    *result = path;
    return IOStatus::OK();
  }
  IOStatus IsDirectory(const std::string& path, const IOOptions&, bool* is_directory,
                       IODebugContext*) override {
    *is_directory = files_->list(path).ok();
    return IOStatus::OK();
  }

 private:
  template <typename Made, typename Interface>
  IOStatus open_as(const std::string& name, std::unique_ptr<Interface>* result) {
    StatusOr<std::unique_ptr<File>> file = files_->open(name, {});
    if (!file.ok()) return to_rocks(file.status());
    *result = std::make_unique<Made>(*std::move(file));
    return IOStatus::OK();
  }
  IOStatus open_writable(const std::string& name, bool keep,
                         std::unique_ptr<rocksdb::FSWritableFile>* result) {
    StatusOr<std::unique_ptr<File>> file = files_->open(name, {.create = true});
    if (!file.ok()) return to_rocks(file.status());
    uint64_t end = 0;
    if (keep) {
      const StatusOr<uint64_t> size = (*file)->size();
      if (!size.ok()) return to_rocks(size.status());
      end = *size;
    } else if (Status status = (*file)->truncate(0); !status.ok()) {
      return to_rocks(status);
    }
    *result = std::make_unique<WritableFile>(*std::move(file), end, must_survive_in_order(name));
    return IOStatus::OK();
  }

  strata::FileSystem* const files_;
  Mutex mutex_{LatchRank::kLeaf};
  std::set<std::string> locked_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<rocksdb::Env> make_rocks_env(FileSystem* files) {
  return rocksdb::NewCompositeEnv(std::make_shared<RocksFileSystem>(files));
}

}  // namespace strata::storenode
