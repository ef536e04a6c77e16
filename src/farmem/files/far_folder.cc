#include "farmem/files/far_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/thread_name.h"
#include "farmem/policy/policy_options.h"

namespace strata::farmem {
namespace {

constexpr uint32_t kPagesAtOnceMax = 256;
constexpr size_t kDataBytesMax = kPagesAtOnceMax * kPageBytes;
constexpr size_t kRequestBytesMax = kDataBytesMax + kPageBytes;
constexpr uint64_t kValidS = 1;  // nobody else changes the folder, but who knows

Status missing(const char* what) {
  return error_invalid_argument(std::string(what) + ": " + std::strerror(errno));
}

fuse_attr attributes_of(uint64_t node, const struct stat& from) {
  fuse_attr out{};
  out.ino = node;
  out.size = static_cast<uint64_t>(from.st_size);
  out.blocks = static_cast<uint64_t>(from.st_blocks);
  out.atime = static_cast<uint64_t>(from.st_atim.tv_sec);
  out.atimensec = static_cast<uint32_t>(from.st_atim.tv_nsec);
  out.mtime = static_cast<uint64_t>(from.st_mtim.tv_sec);
  out.mtimensec = static_cast<uint32_t>(from.st_mtim.tv_nsec);
  out.ctime = static_cast<uint64_t>(from.st_ctim.tv_sec);
  out.ctimensec = static_cast<uint32_t>(from.st_ctim.tv_nsec);
  out.mode = from.st_mode;
  out.nlink = static_cast<uint32_t>(from.st_nlink);
  out.uid = from.st_uid;
  out.gid = from.st_gid;
  out.blksize = kPageBytes;
  return out;
}

// Each file that is known is open.
void allow_many_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

// One request of the kernel's; `rest` is what comes after its header.
struct FarFolder::Request {
  fuse_in_header header{};
  const char* rest = nullptr;
  size_t bytes = 0;  // of rest

  template <typename T>
  [[nodiscard]] T as() const {
    T out{};
    std::memcpy(&out, rest, std::min(sizeof out, bytes));
    return out;
  }
  // Behind an argument of so many bytes; the kernel ends it with a zero, and so do we.
  [[nodiscard]] const char* name(size_t after) const { return rest + std::min(after, bytes); }
};

StatusOr<std::unique_ptr<FarFolder>> FarFolder::mount(std::unique_ptr<MemoryClient> client,
                                                      const FarFolderOptions& options) {
  const int lower = ::open(options.folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (lower < 0) return missing(options.folder.c_str());
  const int fuse = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fuse < 0) {
    const Status why = missing("/dev/fuse cannot be opened");
    ::close(lower);
    return why;
  }
  std::array<char, 128> text;
  std::snprintf(text.data(), text.size(),
                "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions,allow_other", fuse,
                ::geteuid(), ::getegid());
  struct stat info {};
  if (::fstat(lower, &info) != 0 || ::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("strata-farmem-files", options.folder.c_str(), "fuse", MS_NOSUID | MS_NODEV,
              text.data()) != 0) {
    const Status why = missing("a FUSE file system cannot be mounted");
    ::close(lower);
    ::close(fuse);
    return why;
  }
  allow_many_files();
  auto folder = std::unique_ptr<FarFolder>(new FarFolder(fuse, std::move(client), options));
  folder->nodes_[FUSE_ROOT_ID] = {
      .fd = lower, .device = info.st_dev, .inode = info.st_ino, .known = 1};
  folder->numbers_[{info.st_dev, info.st_ino}] = FUSE_ROOT_ID;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  folder->server_ = std::thread([one = folder.get()] { one->serve(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return folder;
}

FarFolder::FarFolder(int fuse_fd, std::unique_ptr<MemoryClient> client,
                     const FarFolderOptions& options)
    : fuse_fd_(fuse_fd),
      options_(options),
      cache_(std::move(client), options.counters),
      in_(new char[kRequestBytesMax + 1]),
      out_(new char[kDataBytesMax]) {}

FarFolder::~FarFolder() {
  // The server's read ends: there is no file system any more. By force: somebody may have a file
  // of it open.
  ::umount2(options_.folder.c_str(), MNT_FORCE | MNT_DETACH);
  if (server_.joinable()) server_.join();
  for (auto& [number, handle] : handles_) ::close(handle.fd);
  for (auto& [number, node] : nodes_) ::close(node.fd);
  ::close(fuse_fd_);
}

void FarFolder::serve() noexcept {
  name_this_thread("fm-files");
  for (;;) {
    const ssize_t bytes = ::read(fuse_fd_, in_.get(), kRequestBytesMax);
    // ENOENT: a request was taken back.
    if (bytes < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) continue;
    if (bytes < static_cast<ssize_t>(sizeof(fuse_in_header))) return;  // ENODEV: unmounted
    in_[static_cast<size_t>(bytes)] = '\0';
    Request request;
    std::memcpy(&request.header, in_.get(), sizeof request.header);
    request.rest = in_.get() + sizeof request.header;
    request.bytes = static_cast<size_t>(bytes) - sizeof request.header;
    handle(request);
    check_lost();
  }
}

void FarFolder::check_lost() {
  if (told_ || cache_.lost().ok()) return;
  told_ = true;
  options_.on_lost(cache_.lost());
}

void FarFolder::answer(const Request& request, const void* out, size_t bytes) const noexcept {
  fuse_out_header header{.len = static_cast<uint32_t>(sizeof header + bytes),
                         .error = 0,
                         .unique = request.header.unique};
  const std::array<iovec, 2> parts{{{&header, sizeof header}, {const_cast<void*>(out), bytes}}};
  // ENOENT: whoever asked has gone.
  (void)!::writev(fuse_fd_, parts.data(), bytes > 0 ? 2 : 1);
}

void FarFolder::refuse(const Request& request, int error) const noexcept {
  fuse_out_header header{.len = sizeof header, .error = -error, .unique = request.header.unique};
  (void)!::write(fuse_fd_, &header, sizeof header);
}

void FarFolder::handle(const Request& request) {
  switch (request.header.opcode) {
    case FUSE_INIT:
      return begin(request);
    case FUSE_LOOKUP:
      return look_up(request);
    case FUSE_FORGET:
      return forget(request.header.nodeid, request.as<fuse_forget_in>().nlookup);
    case FUSE_BATCH_FORGET: {
      const uint32_t count = request.as<fuse_batch_forget_in>().count;
      for (uint32_t i = 0; i < count; i++) {
        fuse_forget_one one{};
        const size_t at = sizeof(fuse_batch_forget_in) + i * sizeof one;
        if (at + sizeof one > request.bytes) return;
        std::memcpy(&one, request.rest + at, sizeof one);
        forget(one.nodeid, one.nlookup);
      }
      return;
    }
    case FUSE_GETATTR:
      return attributes(request);
    case FUSE_SETATTR:
      return set_attributes(request);
    case FUSE_OPEN:
      return open_file(request);
    case FUSE_CREATE:
      return make_file(request);
    case FUSE_MKNOD:
    case FUSE_MKDIR:
      return make_other(request);
    case FUSE_READ:
      return read(request);
    case FUSE_WRITE:
      return write(request);
    case FUSE_OPENDIR:
      return open_folder(request);
    case FUSE_READDIR:
      return read_folder(request);
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
      return sync(request);
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
      return close(request);
    case FUSE_STATFS:
      return statistics(request);
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_RENAME:
    case FUSE_RENAME2: {
      const int error = change(request);
      return error == 0 ? answer(request, nullptr, 0) : refuse(request, error);
    }
    case FUSE_FLUSH:
      return answer(request, nullptr, 0);
    case FUSE_INTERRUPT:
      return;
    default:
      return refuse(request, ENOSYS);
  }
}

void FarFolder::begin(const Request& request) {
  const auto wanted = request.as<fuse_init_in>();
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  out.max_readahead = 0;
  out.flags =
      wanted.flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_ATOMIC_O_TRUNC);
  out.max_background = 64;
  out.congestion_threshold = 64;
  out.max_write = kDataBytesMax;
  out.time_gran = 1;
  out.max_pages = kPagesAtOnceMax;
  answer(request, &out, sizeof out);
}

FarFolder::Node* FarFolder::node_of(uint64_t number) {
  const auto found = nodes_.find(number);
  return found == nodes_.end() ? nullptr : &found->second;
}

FarFolder::Handle* FarFolder::handle_of(uint64_t number) {
  const auto found = handles_.find(number);
  return found == handles_.end() ? nullptr : &found->second;
}

uint64_t FarFolder::add_handle(Handle handle) {
  if (Node* const node = node_of(handle.node)) node->opened++;
  handles_[++last_handle_] = std::move(handle);
  return last_handle_;
}

// A name by which a file that is open as O_PATH can be opened again, or changed.
std::string FarFolder::path_of(const Node& node) const {
  return "/proc/self/fd/" + std::to_string(node.fd);
}

// What the kernel is told of a name; 0, or an errno.
int FarFolder::entry_of(uint64_t folder, const char* name, void* entry) {
  const Node* const parent = node_of(folder);
  if (parent == nullptr) return ESTALE;
  const int fd = ::openat(parent->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno;
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return error;
  }
  const auto [number, is_new] = numbers_.try_emplace({info.st_dev, info.st_ino}, last_number_ + 1);
  if (is_new) {
    last_number_++;
    nodes_[number->second] = {.fd = fd, .device = info.st_dev, .inode = info.st_ino};
  } else {
    ::close(fd);
  }
  nodes_[number->second].known++;
  fuse_entry_out out{};
  out.nodeid = number->second;
  out.entry_valid = out.attr_valid = kValidS;
  out.attr = attributes_of(number->second, info);
  std::memcpy(entry, &out, sizeof out);
  return 0;
}

void FarFolder::look_up(const Request& request) {
  fuse_entry_out out{};
  const int error = entry_of(request.header.nodeid, request.name(0), &out);
  if (error != 0) return refuse(request, error);
  answer(request, &out, sizeof out);
}

void FarFolder::forget(uint64_t number, uint64_t times) {
  Node* const node = node_of(number);
  if (node == nullptr || number == FUSE_ROOT_ID) return;
  node->known -= std::min(node->known, times);
  if (node->known > 0 || node->opened > 0) return;
  struct stat info {};
  // Without a name the file is no more; with one it keeps its number, and what is kept of it.
  if (::fstat(node->fd, &info) != 0 || info.st_nlink == 0) {
    cache_.cut(number, 0);
    numbers_.erase({node->device, node->inode});
    ::close(node->fd);
    nodes_.erase(number);
  }
}

void FarFolder::attributes(const Request& request) {
  const Node* const node = node_of(request.header.nodeid);
  struct stat info {};
  if (node == nullptr) return refuse(request, ESTALE);
  if (::fstat(node->fd, &info) != 0) return refuse(request, errno);
  fuse_attr_out out{};
  out.attr_valid = kValidS;
  out.attr = attributes_of(request.header.nodeid, info);
  answer(request, &out, sizeof out);
}

void FarFolder::set_attributes(const Request& request) {
  const auto wanted = request.as<fuse_setattr_in>();
  const Node* const node = node_of(request.header.nodeid);
  if (node == nullptr) return refuse(request, ESTALE);
  const std::string path = path_of(*node);
  if ((wanted.valid & FATTR_MODE) != 0 && ::chmod(path.c_str(), wanted.mode & 07777) != 0)
    return refuse(request, errno);
  if ((wanted.valid & (FATTR_UID | FATTR_GID)) != 0) {
    const uid_t user = (wanted.valid & FATTR_UID) != 0 ? wanted.uid : static_cast<uid_t>(-1);
    const gid_t group = (wanted.valid & FATTR_GID) != 0 ? wanted.gid : static_cast<gid_t>(-1);
    if (::chown(path.c_str(), user, group) != 0) return refuse(request, errno);
  }
  if ((wanted.valid & FATTR_SIZE) != 0) {
    cache_.cut(request.header.nodeid, wanted.size);
    if (::truncate(path.c_str(), static_cast<off_t>(wanted.size)) != 0)
      return refuse(request, errno);
  }
  if ((wanted.valid & (FATTR_ATIME | FATTR_MTIME)) != 0) {
    const auto time = [&wanted](uint32_t given, uint32_t now, uint64_t s, uint32_t ns) {
      if ((wanted.valid & given) == 0) return timespec{.tv_sec = 0, .tv_nsec = UTIME_OMIT};
      if ((wanted.valid & now) != 0) return timespec{.tv_sec = 0, .tv_nsec = UTIME_NOW};
      return timespec{.tv_sec = static_cast<time_t>(s), .tv_nsec = static_cast<long>(ns)};
    };
    const std::array<timespec, 2> times{
        time(FATTR_ATIME, FATTR_ATIME_NOW, wanted.atime, wanted.atimensec),
        time(FATTR_MTIME, FATTR_MTIME_NOW, wanted.mtime, wanted.mtimensec)};
    if (::utimensat(AT_FDCWD, path.c_str(), times.data(), 0) != 0) return refuse(request, errno);
  }
  attributes(request);
}

void FarFolder::open_file(const Request& request) {
  const Node* const node = node_of(request.header.nodeid);
  if (node == nullptr) return refuse(request, ESTALE);
  const uint32_t wanted = request.as<fuse_open_in>().flags;
  // What is written must be read where only a part of a page is; and where it is written is said.
  const int access = (wanted & O_ACCMODE) == O_RDONLY ? O_RDONLY : O_RDWR;
  const int truncates = static_cast<int>(wanted & O_TRUNC);
  const int fd = ::open(path_of(*node).c_str(), access | truncates | O_CLOEXEC);
  if (fd < 0) return refuse(request, errno);
  if (truncates != 0) cache_.cut(request.header.nodeid, 0);
  fuse_open_out out{};
  out.fh = add_handle({.fd = fd, .node = request.header.nodeid, .entries = {}});
  out.open_flags = FOPEN_DIRECT_IO;
  answer(request, &out, sizeof out);
}

void FarFolder::make_file(const Request& request) {
  const auto wanted = request.as<fuse_create_in>();
  const Node* const parent = node_of(request.header.nodeid);
  const char* const name = request.name(sizeof wanted);
  if (parent == nullptr) return refuse(request, ESTALE);
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW |
                    static_cast<int>(wanted.flags & (O_EXCL | O_TRUNC));
  const int fd = ::openat(parent->fd, name, flags, wanted.mode & 07777);
  if (fd < 0) return refuse(request, errno);
  struct {
    fuse_entry_out entry{};
    fuse_open_out open{};
  } out;
  // One that somebody else has made meanwhile gets a new owner, too; there is nobody else.
  int error = ::fchown(fd, request.header.uid, request.header.gid) != 0 ? errno : 0;
  if (error == 0) error = entry_of(request.header.nodeid, name, &out.entry);
  if (error != 0) {
    ::close(fd);
    return refuse(request, error);
  }
  cache_.cut(out.entry.nodeid, 0);
  out.open.fh = add_handle({.fd = fd, .node = out.entry.nodeid, .entries = {}});
  out.open.open_flags = FOPEN_DIRECT_IO;
  answer(request, &out, sizeof out);
}

void FarFolder::make_other(const Request& request) {
  const bool is_folder = request.header.opcode == FUSE_MKDIR;
  const Node* const parent = node_of(request.header.nodeid);
  if (parent == nullptr) return refuse(request, ESTALE);
  const char* const name = request.name(is_folder ? sizeof(fuse_mkdir_in) : sizeof(fuse_mknod_in));
  const int made = is_folder ? ::mkdirat(parent->fd, name, request.as<fuse_mkdir_in>().mode & 07777)
                             : ::mknodat(parent->fd, name, request.as<fuse_mknod_in>().mode,
                                         static_cast<dev_t>(request.as<fuse_mknod_in>().rdev));
  if (made != 0) return refuse(request, errno);
  if (::fchownat(parent->fd, name, request.header.uid, request.header.gid, AT_SYMLINK_NOFOLLOW) !=
      0)
    return refuse(request, errno);
  look_up({.header = request.header,
           .rest = name,
           .bytes = request.bytes - static_cast<size_t>(name - request.rest)});
}

// Names that go or change; 0, or an errno.
int FarFolder::change(const Request& request) {
  const Node* const from = node_of(request.header.nodeid);
  if (from == nullptr) return ESTALE;
  const uint32_t what = request.header.opcode;
  if (what == FUSE_UNLINK || what == FUSE_RMDIR)
    return ::unlinkat(from->fd, request.name(0), what == FUSE_RMDIR ? AT_REMOVEDIR : 0) == 0
               ? 0
               : errno;
  const bool second = what == FUSE_RENAME2;
  const auto wanted = request.as<fuse_rename2_in>();
  const uint64_t to_number = second ? wanted.newdir : request.as<fuse_rename_in>().newdir;
  const Node* const to = node_of(to_number);
  if (to == nullptr) return ESTALE;
  const char* const old_name = request.name(second ? sizeof wanted : sizeof(fuse_rename_in));
  const char* const new_name =
      std::min(old_name + std::strlen(old_name) + 1, request.rest + request.bytes);
  return ::renameat2(from->fd, old_name, to->fd, new_name, second ? wanted.flags : 0) == 0 ? 0
                                                                                           : errno;
}

void FarFolder::read(const Request& request) {
  const auto wanted = request.as<fuse_read_in>();
  const Handle* const handle = handle_of(wanted.fh);
  if (handle == nullptr) return refuse(request, EBADF);
  int error = 0;
  const auto got = cache_.read(handle->node, handle->fd, wanted.offset,
                               std::min<uint64_t>(wanted.size, kDataBytesMax), out_.get(), &error);
  if (!got.ok()) return refuse(request, error);
  answer(request, out_.get(), *got);
}

void FarFolder::write(const Request& request) {
  const auto wanted = request.as<fuse_write_in>();
  const Handle* const handle = handle_of(wanted.fh);
  if (handle == nullptr) return refuse(request, EBADF);
  if (sizeof wanted + wanted.size > request.bytes) return refuse(request, EINVAL);
  int error = 0;
  const Status written = cache_.write(handle->node, handle->fd, wanted.offset, wanted.size,
                                      request.rest + sizeof wanted, &error);
  if (!written.ok()) return refuse(request, error);
  const fuse_write_out out{.size = wanted.size, .padding = 0};
  answer(request, &out, sizeof out);
}

void FarFolder::open_folder(const Request& request) {
  const Node* const node = node_of(request.header.nodeid);
  if (node == nullptr) return refuse(request, ESTALE);
  const int fd = ::open(path_of(*node).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return refuse(request, errno);
  Handle handle{.fd = fd, .node = request.header.nodeid, .entries = {}};
  if (DIR* const folder = ::fdopendir(::dup(fd))) {
    while (const dirent* const entry = ::readdir(folder))  // NOLINT(concurrency-mt-unsafe)
      handle.entries.push_back({entry->d_name, entry->d_ino, entry->d_type});
    ::closedir(folder);
  }
  fuse_open_out out{};
  out.fh = add_handle(std::move(handle));
  answer(request, &out, sizeof out);
}

void FarFolder::read_folder(const Request& request) {
  const auto wanted = request.as<fuse_read_in>();
  const Handle* const handle = handle_of(wanted.fh);
  if (handle == nullptr) return refuse(request, EBADF);
  const size_t room = std::min<size_t>(wanted.size, kDataBytesMax);
  size_t used = 0;
  for (uint64_t i = wanted.offset; i < handle->entries.size(); i++) {
    const Entry& entry = handle->entries[i];
    const size_t bytes = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + entry.name.size());
    if (used + bytes > room) break;
    fuse_dirent out{};
    out.ino = entry.inode;
    out.off = i + 1;
    out.namelen = static_cast<uint32_t>(entry.name.size());
    out.type = entry.type;
    std::memset(out_.get() + used, 0, bytes);
    std::memcpy(out_.get() + used, &out, FUSE_NAME_OFFSET);
    std::memcpy(out_.get() + used + FUSE_NAME_OFFSET, entry.name.data(), entry.name.size());
    used += bytes;
  }
  answer(request, out_.get(), used);
}

void FarFolder::sync(const Request& request) {
  const auto wanted = request.as<fuse_fsync_in>();
  const Handle* const handle = handle_of(wanted.fh);
  if (handle == nullptr) return refuse(request, EBADF);
  const bool data_only = (wanted.fsync_flags & FUSE_FSYNC_FDATASYNC) != 0;
  if ((data_only ? ::fdatasync(handle->fd) : ::fsync(handle->fd)) != 0)
    return refuse(request, errno);
  // FM62: it is clean now, so the kernel can let it go.
  (void)::posix_fadvise(handle->fd, 0, 0, POSIX_FADV_DONTNEED);
  answer(request, nullptr, 0);
}

void FarFolder::close(const Request& request) {
  const auto wanted = request.as<fuse_release_in>();
  if (const Handle* const handle = handle_of(wanted.fh)) {
    const uint64_t node = handle->node;
    ::close(handle->fd);
    handles_.erase(wanted.fh);
    if (Node* const of = node_of(node)) of->opened--;
    forget(node, 0);
  }
  answer(request, nullptr, 0);
}

void FarFolder::statistics(const Request& request) {
  struct statvfs info {};
  const Node* const node = node_of(FUSE_ROOT_ID);
  if (::fstatvfs(node->fd, &info) != 0) return refuse(request, errno);
  fuse_statfs_out out{};
  out.st.blocks = info.f_blocks;
  out.st.bfree = info.f_bfree;
  out.st.bavail = info.f_bavail;
  out.st.files = info.f_files;
  out.st.ffree = info.f_ffree;
  out.st.bsize = static_cast<uint32_t>(info.f_bsize);
  out.st.frsize = static_cast<uint32_t>(info.f_frsize);
  out.st.namelen = static_cast<uint32_t>(info.f_namemax);
  answer(request, &out, sizeof out);
}

}  // namespace strata::farmem
