// A disk in memory that can lose power.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <set>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/latch.h"
#include "io/file_system.h"
#include "io/internal/errno_status.h"
#include "io/internal/unsynced.h"

namespace strata {
namespace {

uint64_t new_owner() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// Bytes of a file; what was never written costs nothing and reads as zero. Copies share chunks: a
// chunk is written in place only by the copy that made it and has not been copied since.
class SparseBytes final : public ChangedFile {
 public:
  SparseBytes() = default;
  SparseBytes& operator=(const SparseBytes&) = delete;
  // From now on neither side owns what both can see.
  SparseBytes(SparseBytes& from) : ChangedFile(), chunks_(from.chunks_), size_(from.size_) {
    from.owner_ = new_owner();
  }

  uint64_t size() override { return size_; }

  [[nodiscard]] size_t read(uint64_t offset, char* out, size_t bytes) const {
    if (offset >= size_) return 0;
    bytes = static_cast<size_t>(std::min<uint64_t>(bytes, size_ - offset));
    for (size_t done = 0; done < bytes;) {
      const uint64_t at = offset + done;
      const size_t n = std::min<size_t>(bytes - done, kChunk - at % kChunk);
      const auto it = chunks_.find(at / kChunk);
      if (it == chunks_.end()) {
        std::memset(out + done, 0, n);
      } else {
        std::memcpy(out + done, it->second->bytes.data() + at % kChunk, n);
      }
      done += n;
    }
    return bytes;
  }

  void write(uint64_t offset, Bytes bytes) override {
    size_ = std::max<uint64_t>(size_, offset + bytes.size());
    for (size_t done = 0; done < bytes.size();) {
      const uint64_t at = offset + done;
      const size_t n = std::min<size_t>(bytes.size() - done, kChunk - at % kChunk);
      std::memcpy(own(&chunks_[at / kChunk]) + at % kChunk, bytes.data() + done, n);
      done += n;
    }
  }

  void resize(uint64_t bytes) override {
    if (bytes < size_) {
      chunks_.erase(chunks_.lower_bound((bytes + kChunk - 1) / kChunk), chunks_.end());
      const auto it = chunks_.find(bytes / kChunk);
      if (it != chunks_.end())
        std::memset(own(&it->second) + bytes % kChunk, 0, kChunk - bytes % kChunk);
    }
    size_ = bytes;
  }

 private:
  static constexpr size_t kChunk = 4096;
  struct Chunk {
    uint64_t owner = 0;
    std::array<char, kChunk> bytes{};
  };
  char* own(std::shared_ptr<Chunk>* chunk) const {
    if (*chunk == nullptr) {
      *chunk = std::make_shared<Chunk>();
    } else if ((*chunk)->owner != owner_) {
      *chunk = std::make_shared<Chunk>(**chunk);
    }
    (*chunk)->owner = owner_;
    return (*chunk)->bytes.data();
  }

  std::map<uint64_t, std::shared_ptr<Chunk>> chunks_;
  uint64_t owner_ = new_owner();
  uint64_t size_ = 0;
};

struct Inode {
  SparseBytes bytes;
  std::vector<std::shared_ptr<const FileChange>> unsynced;  // oldest first

  void lose_unsynced(Rng* rng) {
    PowerLoss loss(rng, &bytes);
    for (size_t i = unsynced.size(); i-- > 0;) loss.undo(*unsynced[i]);
    unsynced.clear();
  }
};
using InodePtr = std::shared_ptr<Inode>;

// A change of names since the last sync of its folder.
struct NameChange {
  std::string directory;
  std::string from;  // empty: created
  std::string to;    // empty: removed
  InodePtr inode;
  InodePtr replaced;  // what `to` named before
};

std::string tidy(std::string path) {  // no trailing slash
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

struct Disk {
  Mutex mutex{LatchRank::kDisk};
  std::function<void()> observer STRATA_GUARDED_BY(mutex);
  std::map<std::string, InodePtr> names STRATA_GUARDED_BY(mutex);
  std::set<std::string> directories STRATA_GUARDED_BY(mutex) = {"/", "."};
  std::vector<NameChange> unsynced_names STRATA_GUARDED_BY(mutex);  // oldest first
  uint64_t capacity STRATA_GUARDED_BY(mutex) = ~uint64_t{0};
  uint64_t life STRATA_GUARDED_BY(mutex) = 0;  // grows at every crash
  std::set<InodePtr> locked STRATA_GUARDED_BY(mutex);
  // Part of the paths of files that cannot be synced; empty: none.
  std::string failing_syncs STRATA_GUARDED_BY(mutex);
  Rng failing_rng STRATA_GUARDED_BY(mutex){0};

  uint64_t used_bytes() STRATA_REQUIRES(mutex) {
    uint64_t sum = 0;
    for (const auto& [path, inode] : names) sum += inode->bytes.size();
    return sum;
  }
};

// Tells the observer after the disk's mutex is free again: declared before the lock.
class Announce {
 public:
  explicit Announce(const Disk* disk, bool changed = true) : disk_(disk), changed_(changed) {}
  ~Announce() {
    if (changed_ && disk_->observer) disk_->observer();
  }
  void changed() { changed_ = true; }
  Announce(const Announce&) = delete;
  Announce& operator=(const Announce&) = delete;

 private:
  const Disk* disk_;
  bool changed_;
};

class SimFile final : public File {
 public:
  SimFile(std::shared_ptr<Disk> disk, InodePtr inode, std::string path, bool direct)
      : disk_(std::move(disk)),
        inode_(std::move(inode)),
        path_(std::move(path)),
        direct_(direct),
        life_(disk_->life) {}

  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    *got = 0;
    const MutexLock lock(disk_->mutex);
    STRATA_RETURN_IF_ERROR(check_alive());
    STRATA_RETURN_IF_ERROR(check_blocks("read", offset, data, bytes));
    *got = inode_->bytes.read(offset, static_cast<char*>(data), bytes);
    return ok_status();
  }

  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    const Announce announce(disk_.get());
    const MutexLock lock(disk_->mutex);
    STRATA_RETURN_IF_ERROR(check_alive());
    if (bytes == 0) return ok_status();
    STRATA_RETURN_IF_ERROR(check_blocks("write", offset, data, bytes));
    STRATA_RETURN_IF_ERROR(check_room("write", offset + bytes));
    note_change(offset, bytes, std::max<uint64_t>(inode_->bytes.size(), offset + bytes));
    inode_->bytes.write(offset, Bytes(static_cast<const char*>(data), bytes));
    return ok_status();
  }

  Status sync_data() override {
    const Announce announce(disk_.get());
    const MutexLock lock(disk_->mutex);
    STRATA_RETURN_IF_ERROR(check_alive());
    const bool fails =
        !disk_->failing_syncs.empty() && path_.find(disk_->failing_syncs) != std::string::npos;
    if (fails) inode_->lose_unsynced(&disk_->failing_rng);
    inode_->unsynced.clear();
    return fails ? errno_status("fdatasync", path_, EIO) : ok_status();
  }

  StatusOr<uint64_t> size() override {
    const MutexLock lock(disk_->mutex);
    STRATA_RETURN_IF_ERROR(check_alive());
    return inode_->bytes.size();
  }

  Status allocate(uint64_t bytes) override {
    const Announce announce(disk_.get());
    const MutexLock lock(disk_->mutex);
    STRATA_RETURN_IF_ERROR(check_alive());
    if (inode_->bytes.size() >= bytes) return ok_status();
    return resize("allocate", bytes);
  }

  Status truncate(uint64_t bytes) override {
    const Announce announce(disk_.get());
    const MutexLock lock(disk_->mutex);
    STRATA_RETURN_IF_ERROR(check_alive());
    if (inode_->bytes.size() == bytes) return ok_status();
    return resize("truncate", bytes);
  }

  [[nodiscard]] const std::string& path() const override { return path_; }

 private:
  [[nodiscard]] Status check_alive() const STRATA_REQUIRES(disk_->mutex) {
    if (life_ == disk_->life) return ok_status();
    return error_io_error(path_ + ": opened before the crash");
  }
  // As a disk's file system has it for direct I/O.
  Status check_blocks(std::string_view operation, uint64_t offset, const void* data,
                      size_t bytes) const {
    const bool whole =
        (offset | bytes | reinterpret_cast<uintptr_t>(data)) % kDirectIoAlignment == 0;
    return !direct_ || whole ? ok_status() : errno_status(operation, path_, EINVAL);
  }
  Status check_room(std::string_view operation, uint64_t end) STRATA_REQUIRES(disk_->mutex) {
    const uint64_t size = inode_->bytes.size();
    if (end <= size || disk_->used_bytes() + (end - size) <= disk_->capacity) return ok_status();
    return errno_status(operation, path_, ENOSPC);
  }
  Status resize(std::string_view operation, uint64_t bytes) STRATA_REQUIRES(disk_->mutex) {
    const uint64_t size = inode_->bytes.size();
    STRATA_RETURN_IF_ERROR(check_room(operation, bytes));
    note_change(std::min(bytes, size), bytes < size ? size - bytes : 0, bytes);
    inode_->bytes.resize(bytes);
    return ok_status();
  }
  void note_change(uint64_t offset, uint64_t bytes, uint64_t new_size) {
    FileChange change{.offset = offset,
                      .bytes = bytes,
                      .old_size = inode_->bytes.size(),
                      .new_size = new_size,
                      .before = std::string(bytes, '\0')};
    change.before.resize(inode_->bytes.read(offset, change.before.data(), bytes));
    inode_->unsynced.push_back(std::make_shared<const FileChange>(std::move(change)));
  }

  const std::shared_ptr<Disk> disk_;  // outlives the file system while files are open
  const InodePtr inode_;
  const std::string path_;
  const bool direct_;
  const uint64_t life_;
};

class SimLock final : public FileLock {
 public:
  SimLock(std::shared_ptr<Disk> disk, InodePtr inode) STRATA_REQUIRES(disk->mutex)
      : disk_(std::move(disk)), inode_(std::move(inode)), life_(disk_->life) {}
  ~SimLock() override {
    const MutexLock lock(disk_->mutex);
    if (life_ == disk_->life) disk_->locked.erase(inode_);  // else a crash was faster
  }

 private:
  const std::shared_ptr<Disk> disk_;
  const InodePtr inode_;
  const uint64_t life_;
};

class SimFileSystemImpl final : public SimFileSystem {
 public:
  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    Announce announce(disk_.get(), false);
    const MutexLock lock(disk_->mutex);
    const auto it = disk_->names.find(path);
    if (it != disk_->names.end()) {
      if (options.create && options.exclusive) return errno_status("open", path, EEXIST);
      return file_for(it->second, path, options.direct);
    }
    if (!options.create || !has_directory(folder_of(path)))
      return errno_status("open", path, ENOENT);
    announce.changed();
    return file_for(create(path), path, options.direct);
  }

  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    Announce announce(disk_.get(), false);
    const MutexLock lock(disk_->mutex);
    const auto it = disk_->names.find(path);
    if (it == disk_->names.end() && !has_directory(folder_of(path)))
      return errno_status("open", path, ENOENT);
    if (it == disk_->names.end()) announce.changed();
    const InodePtr inode = it == disk_->names.end() ? create(path) : it->second;
    if (!disk_->locked.insert(inode).second)
      return error_in_use("lock " + path + ": another process holds it");
    return std::unique_ptr<FileLock>(std::make_unique<SimLock>(disk_, inode));
  }

  Status make_directory(const std::string& path) override {
    const Announce announce(disk_.get());
    const MutexLock lock(disk_->mutex);
    if (disk_->names.count(tidy(path)) > 0) return errno_status("mkdir", path, EEXIST);
    if (!has_directory(folder_of(tidy(path)))) return errno_status("mkdir", path, ENOENT);
    disk_->directories.insert(tidy(path));
    return ok_status();
  }

  Status remove(const std::string& path) override {
    const Announce announce(disk_.get());
    const MutexLock lock(disk_->mutex);
    const auto it = disk_->names.find(path);
    if (it == disk_->names.end()) {
      if (!is_empty_directory(tidy(path))) return errno_status("remove", path, ENOTEMPTY);
      disk_->directories.erase(tidy(path));
      return ok_status();
    }
    disk_->unsynced_names.push_back(NameChange{folder_of(path), path, "", it->second, nullptr});
    disk_->names.erase(it);
    return ok_status();
  }

  Status rename(const std::string& from, const std::string& to) override {
    const Announce announce(disk_.get());
    const MutexLock lock(disk_->mutex);
    const auto it = disk_->names.find(from);
    if (it == disk_->names.end() || !has_directory(folder_of(to)))
      return errno_status("rename", from + " to " + to, ENOENT);
    if (from == to) return ok_status();
    const InodePtr inode = it->second;
    disk_->names.erase(it);
    InodePtr& target = disk_->names[to];
    disk_->unsynced_names.push_back(NameChange{folder_of(to), from, to, inode, target});
    target = inode;
    return ok_status();
  }

  StatusOr<bool> exists(const std::string& path) override {
    const MutexLock lock(disk_->mutex);
    return disk_->names.count(path) > 0 || has_directory(tidy(path));
  }

  StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    const MutexLock lock(disk_->mutex);
    const std::string parent = tidy(directory);
    if (!has_directory(parent)) return errno_status("list", directory, ENOENT);
    std::vector<std::string> found;
    const auto add = [&](const std::string& path) {
      if (path != parent && folder_of(path) == parent)
        found.push_back(path.substr(path.find_last_of('/') + 1));
    };
    for (const auto& [path, inode] : disk_->names) add(path);
    for (const std::string& path : disk_->directories) add(path);
    std::sort(found.begin(), found.end());
    return found;
  }

  Status sync_directory(const std::string& path) override {
    const Announce announce(disk_.get());
    const MutexLock lock(disk_->mutex);
    const std::string directory = tidy(path);
    if (!has_directory(directory)) return errno_status("fsync directory", path, ENOENT);
    std::erase_if(disk_->unsynced_names,
                  [&](const NameChange& c) { return c.directory == directory; });
    return ok_status();
  }

  void crash(uint64_t seed) override {
    const MutexLock lock(disk_->mutex);
    Rng rng(seed);
    ++disk_->life;
    disk_->locked.clear();
    undo_names(&rng);
    for (const auto& [path, inode] : disk_->names) inode->lose_unsynced(&rng);
  }

  std::unique_ptr<SimFileSystem> fork() override {
    auto copy = std::make_unique<SimFileSystemImpl>();
    std::map<std::string, InodePtr> names;
    std::set<std::string> directories;
    std::vector<NameChange> unsynced_names;
    uint64_t capacity = 0;
    std::map<const Inode*, InodePtr> copies;  // an inode may be named more than once
    const auto copy_of = [&copies](const InodePtr& inode) -> InodePtr {
      if (inode == nullptr) return nullptr;
      InodePtr& made = copies[inode.get()];
      if (made == nullptr) made = std::make_shared<Inode>(*inode);
      return made;
    };
    {
      const MutexLock lock(disk_->mutex);
      for (const auto& [path, inode] : disk_->names) names[path] = copy_of(inode);
      directories = disk_->directories;
      for (const NameChange& c : disk_->unsynced_names)
        unsynced_names.push_back(
            NameChange{c.directory, c.from, c.to, copy_of(c.inode), copy_of(c.replaced)});
      capacity = disk_->capacity;
    }
    Disk& to = *copy->disk_;
    const MutexLock lock(to.mutex);
    to.names = std::move(names);
    to.directories = std::move(directories);
    to.unsynced_names = std::move(unsynced_names);
    to.capacity = capacity;
    return copy;
  }

  void set_observer(std::function<void()> observer) override {
    const MutexLock lock(disk_->mutex);
    disk_->observer = std::move(observer);
  }

  void set_capacity(uint64_t bytes) override {
    const MutexLock lock(disk_->mutex);
    disk_->capacity = bytes;
  }

  void fail_syncs(const std::string& part, uint64_t seed) override {
    const MutexLock lock(disk_->mutex);
    disk_->failing_syncs = part;
    disk_->failing_rng = Rng(seed);
  }

  void flip_bit(const std::string& path, uint64_t bit) override {
    const MutexLock lock(disk_->mutex);
    const auto it = disk_->names.find(path);
    STRATA_ASSERT(it != disk_->names.end());
    SparseBytes& bytes = it->second->bytes;
    STRATA_ASSERT(bit / 8 < bytes.size());
    char byte = 0;
    STRATA_ASSERT(bytes.read(bit / 8, &byte, 1) == 1);
    byte = static_cast<char>(byte ^ (1 << bit % 8));
    bytes.write(bit / 8, Bytes(&byte, 1));
  }

 private:
  std::unique_ptr<File> file_for(InodePtr inode, const std::string& path, bool direct) {
    return std::make_unique<SimFile>(disk_, std::move(inode), path, direct);
  }
  InodePtr create(const std::string& path) STRATA_REQUIRES(disk_->mutex) {
    const InodePtr inode = std::make_shared<Inode>();
    disk_->names[path] = inode;
    disk_->unsynced_names.push_back(NameChange{folder_of(path), "", path, inode, nullptr});
    return inode;
  }
  [[nodiscard]] bool has_directory(const std::string& path) const STRATA_REQUIRES(disk_->mutex) {
    return disk_->directories.count(path) > 0;
  }
  [[nodiscard]] bool is_empty_directory(const std::string& path) const
      STRATA_REQUIRES(disk_->mutex) {
    for (const auto& [name, inode] : disk_->names)
      if (folder_of(name) == path) return false;
    return true;
  }

  // A journalled file system keeps a prefix of each folder's changes.
  void undo_names(Rng* rng) STRATA_REQUIRES(disk_->mutex) {
    std::map<std::string, uint64_t> count;
    for (const NameChange& c : disk_->unsynced_names) ++count[c.directory];
    for (auto& [directory, n] : count) n = rng->below(n + 1);  // from now on: how many are undone
    for (size_t i = disk_->unsynced_names.size(); i-- > 0;) {
      const NameChange& c = disk_->unsynced_names[i];
      uint64_t& left = count[c.directory];
      if (left == 0) continue;
      --left;
      undo_name(c);
    }
    disk_->unsynced_names.clear();
  }
  void undo_name(const NameChange& c) STRATA_REQUIRES(disk_->mutex) {
    if (!c.to.empty()) {
      const auto it = disk_->names.find(c.to);
      if (it == disk_->names.end() || it->second != c.inode) return;  // moved on by another folder
      disk_->names.erase(it);
      if (c.replaced != nullptr) disk_->names[c.to] = c.replaced;
    }
    if (!c.from.empty()) disk_->names[c.from] = c.inode;
  }

  const std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
};

}  // namespace

std::unique_ptr<SimFileSystem> make_sim_file_system() {
  return std::make_unique<SimFileSystemImpl>();
}

}  // namespace strata
