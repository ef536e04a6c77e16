// Files as the kernel sees them, so that tests can replace the disk. Thread-safe.
//
// Implementations: posix (production); power_loss (wraps posix in a server process and journals the
// pre-image of every write not yet synced, so that a tool can drop or tear them after a kill);
// sim (in memory; crash() keeps only what was synced, tearing 512-byte sectors by seed).
//   IO1  A write is durable only after sync_data() of its file returned OK; a created, renamed or
//        removed name only after sync_directory() of its folder.
//   IO2  Errors name the operation and the path; ENOSPC and EDQUOT are kResourceExhausted.
//   IO3  A lock of a file has one holder, of all processes, and ends with it, however it ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace strata {

class File {
 public:
  virtual ~File() = default;
  // Reads exactly `bytes` unless the file ends first; *got says how many. Blocks.
  virtual Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) = 0;
  // Writes all bytes or fails. Blocks. With direct I/O, address, offset and length are multiples of
  // kDirectIoAlignment.
  virtual Status write_at(uint64_t offset, const void* data, size_t bytes) = 0;
  virtual Status sync_data() = 0;               // fdatasync
  virtual StatusOr<uint64_t> size() = 0;        // bytes
  virtual Status allocate(uint64_t bytes) = 0;  // extends to at least `bytes`, reading as zero
  virtual Status truncate(uint64_t bytes) = 0;
  [[nodiscard]] virtual const std::string& path() const = 0;
  // Of the operating system's file if nobody has to hear of single calls (batch_io.h), else -1.
  [[nodiscard]] virtual int descriptor() const { return -1; }
};

// A lock of a file (IO3): held until this is destroyed, or its process has ended.
class FileLock {
 public:
  FileLock() = default;
  virtual ~FileLock() = default;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
};

struct OpenOptions {
  bool read_only = false;  // who watches the file does not hear of it; writes fail
  bool create = false;     // make the file when absent (else kNotFound)
  bool exclusive = false;  // with create: fail when present (kAlreadyExists)
  bool direct = false;  // O_DIRECT where the file system supports it, silently buffered otherwise
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) = 0;
  virtual Status make_directory(const std::string& path) = 0;  // OK when it exists
  virtual Status remove(const std::string& path) = 0;          // OK when absent
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual StatusOr<bool> exists(const std::string& path) = 0;
  virtual StatusOr<std::vector<std::string>> list(
      const std::string& directory) = 0;  // names, sorted
  virtual Status sync_directory(const std::string& path) = 0;
  // Makes the file when absent. Does not wait: in_use if somebody holds it, this process included.
  virtual StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) = 0;
};

std::unique_ptr<FileSystem> make_posix_file_system();
// Journals pre-images to `journal_path` (see io/README.md for the format).
std::unique_ptr<FileSystem> make_power_loss_file_system(std::unique_ptr<FileSystem> inner,
                                                        const std::string& journal_path);

// While the file `marker_path` exists nothing gets more room: what would make or lengthen a file
// fails with kResourceExhausted, after half of a write. All else goes on.
std::unique_ptr<FileSystem> make_full_disk_file_system(std::unique_ptr<FileSystem> inner,
                                                       const std::string& marker_path);
// While the file `marker_path` exists, what it names fails with kInternal, as after EIO. A line is
// "operations part": operations are some of read, write (and allocate, truncate), sync (also of
// folders) and name (open, make, remove, rename), with commas; they fail for paths that contain
// `part`. Make the file elsewhere and rename it into its place.
std::unique_ptr<FileSystem> make_failing_disk_file_system(std::unique_ptr<FileSystem> inner,
                                                          const std::string& marker_path);

// What the environment asks for, for crash tests of whole processes: STRATA_POWER_LOSS_JOURNAL,
// STRATA_FULL_DISK and STRATA_FAILING_DISK name the file that one of the disks above takes.
// nullptr: none of them is set.
std::unique_ptr<FileSystem> make_file_system_for_tests();

// In-memory disk for tests.
class SimFileSystem : public FileSystem {
 public:
  // Forgets everything not synced. Each unsynced 512-byte sector of each unsynced write survives or
  // not by `seed`; open File objects of the old life fail from now on with io_error, and its locks
  // are free.
  virtual void crash(uint64_t seed) = 0;
  virtual void set_capacity(uint64_t bytes) = 0;  // writes beyond it fail with kResourceExhausted
  virtual void flip_bit(const std::string& path, uint64_t bit) = 0;
  // From now on syncs of files with `part` in their path fail with EIO, and take with them, by
  // `seed`, sectors that were not synced: as if they had never been written, for readers, too.
  // A later sync says nothing about them. Empty: syncs work again.
  virtual void fail_syncs(const std::string& part, uint64_t seed) = 0;
  // A second disk that holds what this one holds now, unsynced changes included. Cheap: unchanged
  // bytes are shared.
  virtual std::unique_ptr<SimFileSystem> fork() = 0;
  // Called, with no lock held, by whoever changed or synced anything, after each such call. Set
  // while nobody uses the disk.
  virtual void set_observer(std::function<void()> observer) = 0;
};
std::unique_ptr<SimFileSystem> make_sim_file_system();

}  // namespace strata
