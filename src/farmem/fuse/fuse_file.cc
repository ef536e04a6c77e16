#include "farmem/fuse/fuse_file.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/fuse.h>
#include <linux/prctl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "farmem/policy/policy_options.h"

namespace strata::farmem {
namespace {

constexpr uint64_t kRoot = FUSE_ROOT_ID;
constexpr uint64_t kFile = 2;
constexpr const char* kName = "pages";
constexpr uint32_t kPagesAtOnceMax = 256;
constexpr size_t kDataBytesMax = kPagesAtOnceMax * kPageBytes;
constexpr size_t kRequestBytesMax = kDataBytesMax + kPageBytes;
constexpr const char* kGuardFolder = "/dev";  // any that is there, seen so by the guard only
constexpr uint64_t kForeverS = 1u << 30;      // nothing of it ever changes
constexpr uint16_t kInBackgroundMax = 64;
// FOPEN_NOFLUSH, newer than some headers. A kernel that does not know it (before 5.16) writes what
// was changed whenever a process closes the file.
constexpr uint32_t kWriteNothingWhenClosed = 1u << 5;
constexpr timespec kGuardLooksEvery{.tv_sec = 1, .tv_nsec = 0};
constexpr timespec kEndEvery{.tv_sec = 0, .tv_nsec = 100'000'000};
constexpr int kEndTurnsMax = 600;

fuse_attr attributes_of(uint64_t node, uint64_t bytes) {
  const bool folder = node == kRoot;
  fuse_attr out{};
  out.ino = node;
  out.size = folder ? 0 : bytes;
  out.blocks = out.size / 512;
  out.mode = folder ? S_IFDIR | 0700 : S_IFREG | 0600;
  out.nlink = folder ? 2 : 1;
  out.blksize = kPageBytes;
  return out;
}

Status not_mounted() {
  return error_invalid_argument(std::string("a FUSE file system cannot be mounted: ") +
                                std::strerror(errno));
}

StatusOr<int> open_device(int flags) {
  const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC | flags);
  if (fd >= 0) return fd;
  return error_invalid_argument(std::string("/dev/fuse cannot be opened: ") + std::strerror(errno));
}

bool configure(int context, const char* name, const std::string& value) {
  return ::fsconfig(context, FSCONFIG_SET_STRING, name, value.c_str(), 0) == 0;
}

// A mount that is in no folder: its descriptor. The memory is for whoever is given the file,
// whatever user that is, and one request is for one page.
StatusOr<int> mount_unseen(int fd) {
  const int context = ::fsopen("fuse", FSOPEN_CLOEXEC);
  if (context < 0) return not_mounted();
  const bool configured = configure(context, "source", "strata-farmem") &&
                          configure(context, "fd", std::to_string(fd)) &&
                          configure(context, "rootmode", "40000") &&
                          configure(context, "user_id", std::to_string(::geteuid())) &&
                          configure(context, "group_id", std::to_string(::getegid())) &&
                          configure(context, "max_read", std::to_string(kPageBytes)) &&
                          ::fsconfig(context, FSCONFIG_SET_FLAG, "allow_other", nullptr, 0) == 0 &&
                          ::fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  const int mount = configured ? ::fsmount(context, FSMOUNT_CLOEXEC,
                                           MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)
                               : -1;
  const Status why = mount < 0 ? not_mounted() : ok_status();
  ::close(context);
  if (mount < 0) return why;
  return mount;
}

// A number of a line of /proc/.../stat, whose fields are counted from 1 and of which the second, a
// name in brackets, may have anything in it. 0: there is none.
uint64_t number_in_stat(std::string_view line, int field) {
  const size_t name_end = line.rfind(')');
  size_t at = name_end == std::string_view::npos ? line.size() : name_end;
  for (int f = 2; f < field && at < line.size(); f++)
    at = std::min(line.find(' ', at + 1), line.size());
  uint64_t out = 0;
  for (at++; at < line.size() && line[at] >= '0' && line[at] <= '9'; at++)
    out = out * 10 + static_cast<uint64_t>(line[at] - '0');
  return out;
}

// Whether a thread is gone, or on its way, or is to be killed, though it may be stuck before it
// gets there. Of its file /proc/.../stat, which stays this thread's if its number is used again.
bool is_ending(int stat_fd) noexcept {
  constexpr int kFlagsField = 9, kPendingField = 31;
  constexpr uint64_t kExiting = 0x4, kKilled = 0x400;  // PF_EXITING, PF_SIGNALED of the kernel
  constexpr uint64_t kToBeKilled = 1u << (SIGKILL - 1);
  std::array<char, 1024> text;
  const ssize_t bytes = ::pread(stat_fd, text.data(), text.size(), 0);
  if (bytes <= 0) return bytes == 0 || errno == ESRCH;
  const std::string_view line(text.data(), static_cast<size_t>(bytes));
  return (number_in_stat(line, kFlagsField) & (kExiting | kKilled)) != 0 ||
         (number_in_stat(line, kPendingField) & kToBeKilled) != 0;
}

struct Device {
  unsigned major = 0, minor = 0;
};

// Whether a process, of which this is the folder in /proc, has something of the device mapped. Of
// its "maps", where a device is "00:2e", between blanks.
bool has_mapped(int process, const Device& device) noexcept {
  std::array<char, 32> wanted;
  std::snprintf(wanted.data(), wanted.size(), " %02x:%02x ", device.major, device.minor);
  const int fd = ::openat(process, "maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const std::string_view name(wanted.data());
  std::array<char, 8192> text;
  size_t kept = 0;  // what a name may begin in, of what was read before
  bool found = false;
  while (!found) {
    const ssize_t bytes = ::read(fd, text.data() + kept, text.size() - kept);
    if (bytes <= 0) break;
    const std::string_view read(text.data(), kept + static_cast<size_t>(bytes));
    found = read.find(name) != std::string_view::npos;
    kept = std::min(read.size(), name.size() - 1);
    std::memmove(text.data(), read.data() + read.size() - kept, kept);
  }
  ::close(fd);
  return found;
}

// Whether it had. By its folder, which stays this process's if its number is used again.
bool end_if_mapped(int proc, const char* pid, const Device& device) noexcept {
  const int process = ::openat(proc, pid, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (process < 0) return false;
  const bool found = has_mapped(process, device);
  if (found) ::syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, 0);
  ::close(process);
  return found;
}

// FM47. How many there were; `but` is left alone.
size_t end_all_with(const Device& device, pid_t but) noexcept {
  struct Entry {
    uint64_t inode;
    int64_t next;
    uint16_t bytes;
    uint8_t type;
  };
  constexpr size_t kNameAt = 19;
  const int folder = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return 0;
  size_t ended = 0;
  alignas(8) std::array<char, 8192> entries;
  for (;;) {
    const long bytes = ::syscall(SYS_getdents64, folder, entries.data(), entries.size());
    if (bytes <= 0) break;
    for (long at = 0; at < bytes;) {
      Entry entry;
      std::memcpy(&entry, entries.data() + at, sizeof entry);
      const char* const name = entries.data() + at + kNameAt;
      at += entry.bytes;
      pid_t pid = 0;
      for (const char* digit = name; *digit >= '0' && *digit <= '9'; digit++)
        pid = pid * 10 + (*digit - '0');
      if (pid <= 1 || pid == but || pid == ::getpid()) continue;
      ended += end_if_mapped(folder, name, device) ? 1 : 0;
    }
  }
  ::close(folder);
  return ended;
}

// FM46. Nothing but system calls: the process that it is a copy of may have threads.
[[noreturn]] void be_guard(int mount_fd, int ready, int starter) {
  const pid_t starters = ::getppid();
  // Not to be asked of the file system itself: nobody answers yet.
  struct statx info {};
  ::statx(mount_fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &info);
  const Device device{.major = info.stx_dev_major, .minor = info.stx_dev_minor};
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::setsid();
  ::prctl(PR_SET_NAME, "fm-guard", 0, 0, 0);
  // The signal comes when the thread is gone, though others of its process may be stuck: at once,
  // but not if the thread itself is.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
  int error = 0;
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::move_mount(mount_fd, "", AT_FDCWD, kGuardFolder, MOVE_MOUNT_F_EMPTY_PATH) != 0)
    error = errno;
  (void)!::write(ready, &error, sizeof error);
  // What it has of the starter's, its output above all, nobody must wait for. But it keeps the file
  // system: a device whose last user is gone has its number given to the next one, whose users it
  // would end (FM48).
  const int kept = ::fcntl(mount_fd, F_DUPFD, 2);  // neither may be where the other goes
  ::dup2(starter, 0);
  ::dup2(kept, 1);
  ::close_range(2, ~0u, 0);
  if (error != 0) ::_exit(1);
  sigset_t end;
  ::sigemptyset(&end);
  ::sigaddset(&end, SIGTERM);
  while (!is_ending(0) && ::sigtimedwait(&end, nullptr, &kGuardLooksEvery) < 0) {
  }
  const bool in_order = !is_ending(0);
  ::umount2(kGuardFolder, MNT_FORCE | MNT_DETACH);
  // Again until there are none: one may have been on its way to having it.
  for (int turn = 0; !in_order && turn < kEndTurnsMax && end_all_with(device, starters) > 0; turn++)
    ::nanosleep(&kEndEvery, nullptr);
  ::_exit(0);
}

StatusOr<pid_t> start_guard(int mount_fd) {
  const int starter = ::open("/proc/thread-self/stat", O_RDONLY | O_CLOEXEC);
  if (starter < 0)
    return error_invalid_argument(std::string("/proc/thread-self/stat cannot be opened: ") +
                                  std::strerror(errno));
  std::array<int, 2> ready{-1, -1};
  if (::pipe2(ready.data(), O_CLOEXEC) != 0) {
    ::close(starter);
    return error_no_space("no descriptor is left");
  }
  const pid_t guard = ::fork();
  if (guard == 0) be_guard(mount_fd, ready[1], starter);
  int error = guard < 0 ? errno : 0;
  ::close(starter);
  ::close(ready[1]);
  if (guard > 0 && ::read(ready[0], &error, sizeof error) != sizeof error) error = ECHILD;
  ::close(ready[0]);
  if (error == 0) return guard;
  if (guard > 0) ::waitpid(guard, nullptr, 0);
  return error_invalid_argument(std::string("a FUSE file system cannot be guarded: ") +
                                std::strerror(error));
}

template <typename T>
T argument_as(const char* argument) {
  T out;
  std::memcpy(&out, argument, sizeof out);
  return out;
}

}  // namespace

StatusOr<std::unique_ptr<FuseFile>> FuseFile::make(const std::string& folder, FuseContent content) {
  STRATA_ASSIGN_OR_RETURN(const int fd, open_device(0));
  std::array<char, 128> options;
  std::snprintf(options.data(), options.size(), "fd=%d,rootmode=40000,user_id=%u,group_id=%u", fd,
                ::geteuid(), ::getegid());
  if (::mount("strata-farmem", folder.c_str(), "fuse", MS_NOSUID | MS_NODEV | MS_NOEXEC,
              options.data()) != 0) {
    const Status why = not_mounted();
    ::close(fd);
    return why;
  }
  return std::unique_ptr<FuseFile>(new FuseFile(fd, -1, -1, folder, std::move(content)));
}

StatusOr<std::unique_ptr<FuseFile>> FuseFile::make_unseen(FuseContent content) {
  STRATA_ASSIGN_OR_RETURN(const int fd, open_device(O_NONBLOCK));
  const auto mounted = mount_unseen(fd);
  if (!mounted.ok()) {
    ::close(fd);
    return mounted.status();
  }
  const auto guard = start_guard(*mounted);
  if (!guard.ok()) {
    ::close(fd);
    ::close(*mounted);
    return guard.status();
  }
  return std::unique_ptr<FuseFile>(new FuseFile(fd, *mounted, *guard, "", std::move(content)));
}

FuseFile::FuseFile(int fd, int mount_fd, pid_t guard, std::string folder, FuseContent content)
    : fd_(fd),
      mount_fd_(mount_fd),
      guard_(guard),
      folder_(std::move(folder)),
      path_(folder_ + "/" + kName),
      content_(std::move(content)),
      in_(new char[kRequestBytesMax]),
      out_(new char[kDataBytesMax]) {}

FuseFile::~FuseFile() {
  end();
  ::close(fd_);
  if (mount_fd_ >= 0) ::close(mount_fd_);
}

void FuseFile::end() noexcept {
  if (guard_ < 0) return;
  ::kill(guard_, SIGTERM);
  while (::waitpid(guard_, nullptr, 0) < 0 && errno == EINTR) {
  }
  guard_ = -1;
}

StatusOr<int> FuseFile::open() const {
  const int file = ::openat(mount_fd_, kName, O_RDWR | O_CLOEXEC);
  if (file >= 0) return file;
  return error_invalid_argument(std::string("the FUSE file cannot be opened: ") +
                                std::strerror(errno));
}

Status FuseFile::unmount() const {
  if (::umount2(folder_.c_str(), MNT_DETACH) == 0) return ok_status();
  return error_internal(folder_ + " cannot be unmounted: " + std::strerror(errno));
}

void FuseFile::serve() noexcept {
  while (handle_one() != Heard::kEnd) {
  }
}

FuseFile::Heard FuseFile::handle_one() noexcept {
  const ssize_t bytes = ::read(fd_, in_.get(), kRequestBytesMax);
  if (bytes >= static_cast<ssize_t>(sizeof(fuse_in_header))) {
    handle(static_cast<size_t>(bytes));
    return Heard::kRequest;
  }
  if (bytes < 0 && errno == EAGAIN) return Heard::kNothing;
  // ENOENT: a request was taken back; the next one.
  if (bytes < 0 && (errno == EINTR || errno == ENOENT)) return Heard::kRequest;
  return Heard::kEnd;  // ENODEV: nothing uses it any more
}

void FuseFile::answer(uint64_t request, int error, const void* out, size_t bytes) const noexcept {
  fuse_out_header header{
      .len = static_cast<uint32_t>(sizeof header + bytes), .error = -error, .unique = request};
  const std::array<iovec, 2> parts{{{&header, sizeof header}, {const_cast<void*>(out), bytes}}};
  // ENOENT: whoever asked has gone, or has not the page. ENODEV: serve() sees it next.
  (void)!::writev(fd_, parts.data(), bytes > 0 ? 2 : 1);
}

void FuseFile::handle(size_t bytes) noexcept {
  const auto header = argument_as<fuse_in_header>(in_.get());
  const char* const argument = in_.get() + sizeof header;
  const uint64_t request = header.unique;
  const uint64_t file_bytes = content_.pages * kPageBytes;
  switch (header.opcode) {
    case FUSE_INIT:
      return begin(request, argument);
    case FUSE_LOOKUP:
      return look_up(request, header.nodeid, bytes);
    case FUSE_GETATTR: {
      fuse_attr_out out{};
      out.attr_valid = kForeverS;
      out.attr = attributes_of(header.nodeid, file_bytes);
      answer(request, 0, &out, sizeof out);
      return;
    }
    case FUSE_OPEN: {
      fuse_open_out out{};
      out.open_flags = FOPEN_KEEP_CACHE;
      // FM46: the process that answers has it open, too, and would wait for itself when it ends.
      if (content_.read_later) out.open_flags |= kWriteNothingWhenClosed;
      answer(request, 0, &out, sizeof out);
      return;
    }
    case FUSE_STATFS: {
      fuse_statfs_out out{};
      out.st.bsize = out.st.frsize = kPageBytes;
      out.st.blocks = content_.pages;
      out.st.namelen = NAME_MAX;
      answer(request, 0, &out, sizeof out);
      return;
    }
    case FUSE_READ:
      return read(request, argument);
    case FUSE_WRITE:
      return write(request, argument, bytes - sizeof header);
    case FUSE_NOTIFY_REPLY:
      return take_copy(argument, bytes - sizeof header);
    case FUSE_FLUSH:
    case FUSE_FSYNC:
    case FUSE_RELEASE:
    case FUSE_ACCESS:
    case FUSE_DESTROY:
      return answer(request, 0, nullptr, 0);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return;  // no answer is expected
    default:
      return answer(request, ENOSYS, nullptr, 0);
  }
}

void FuseFile::begin(uint64_t request, const char* argument) const noexcept {
  const auto wanted = argument_as<fuse_init_in>(argument);
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  // What is read ahead would be local without having been asked for.
  out.max_readahead = content_.read_later ? 0 : wanted.max_readahead;
  out.flags = wanted.flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ASYNC_DIO | FUSE_MAX_PAGES);
  out.max_background = kInBackgroundMax;
  out.congestion_threshold = kInBackgroundMax;
  out.max_write = kDataBytesMax;
  out.time_gran = 1;
  out.max_pages = kPagesAtOnceMax;
  answer(request, 0, &out, sizeof out);
}

void FuseFile::look_up(uint64_t request, uint64_t folder, size_t bytes) noexcept {
  in_[bytes < kRequestBytesMax ? bytes : kRequestBytesMax - 1] = '\0';
  if (folder != kRoot || std::string_view(in_.get() + sizeof(fuse_in_header)) != kName)
    return answer(request, ENOENT, nullptr, 0);
  fuse_entry_out out{};
  out.nodeid = kFile;
  out.entry_valid = out.attr_valid = kForeverS;
  out.attr = attributes_of(kFile, content_.pages * kPageBytes);
  answer(request, 0, &out, sizeof out);
}

void FuseFile::read(uint64_t request, const char* argument) noexcept {
  const auto wanted = argument_as<fuse_read_in>(argument);
  const uint64_t first = wanted.offset / kPageBytes;
  if (wanted.offset % kPageBytes != 0 || wanted.size > kDataBytesMax || first > content_.pages)
    return answer(request, EINVAL, nullptr, 0);
  if (content_.read_later) {
    // The kernel keeps to the size it was given when it was mounted.
    if (wanted.size != kPageBytes || first == content_.pages)
      return answer(request, EINVAL, nullptr, 0);
    return content_.read_later(request, first);
  }
  // A read beyond the end gets what is there.
  const uint64_t pages =
      std::min<uint64_t>((wanted.size + kPageBytes - 1) / kPageBytes, content_.pages - first);
  if (!content_.read(first, pages, out_.get()).ok()) return answer(request, EIO, nullptr, 0);
  answer(request, 0, out_.get(), std::min<uint64_t>(wanted.size, pages * kPageBytes));
}

void FuseFile::write(uint64_t request, const char* argument, size_t bytes) noexcept {
  const auto wanted = argument_as<fuse_write_in>(argument);
  const uint64_t first = wanted.offset / kPageBytes, pages = wanted.size / kPageBytes;
  if (wanted.offset % kPageBytes != 0 || wanted.size % kPageBytes != 0 ||
      wanted.size > kDataBytesMax || sizeof wanted + wanted.size > bytes ||
      first > content_.pages || pages > content_.pages - first)
    return answer(request, EINVAL, nullptr, 0);
  if (!content_.write(first, pages, argument + sizeof wanted).ok())
    return answer(request, EIO, nullptr, 0);
  const fuse_write_out out{.size = wanted.size, .padding = 0};
  answer(request, 0, &out, sizeof out);
}

void FuseFile::take_copy(const char* argument, size_t bytes) noexcept {
  const auto sent = argument_as<fuse_notify_retrieve_in>(argument);
  const uint64_t page = sent.offset / kPageBytes;
  if (sent.offset % kPageBytes != 0 || sent.size != kPageBytes || page >= content_.pages ||
      sizeof sent + sent.size > bytes || !content_.copied)
    return;
  content_.copied(page, argument + sizeof sent);
}

void FuseFile::answer_page(uint64_t request, const char* bytes) const noexcept {
  answer(request, 0, bytes, kPageBytes);
}

void FuseFile::refuse_page(uint64_t request) const noexcept { answer(request, EIO, nullptr, 0); }

void FuseFile::forget(uint64_t first, uint64_t count) const noexcept {
  const fuse_notify_inval_inode_out what{.ino = kFile,
                                         .off = static_cast<int64_t>(first * kPageBytes),
                                         .len = static_cast<int64_t>(count * kPageBytes)};
  answer(0, -FUSE_NOTIFY_INVAL_INODE, &what, sizeof what);
}

void FuseFile::ask_for_copy(uint64_t page) const noexcept {
  const fuse_notify_retrieve_out what{.notify_unique = page,
                                      .nodeid = kFile,
                                      .offset = page * kPageBytes,
                                      .size = kPageBytes,
                                      .padding = 0};
  answer(0, -FUSE_NOTIFY_RETRIEVE, &what, sizeof what);
}

Status lock_memory() {
  if (::mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0)
    return error_invalid_argument(std::string("memory cannot be locked: ") + std::strerror(errno));
  // Of kernels before 5.6, which did not know it, nothing more is to be had.
  (void)::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
  return ok_status();
}

}  // namespace strata::farmem
