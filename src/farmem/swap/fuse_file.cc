#include "farmem/swap/fuse_file.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/prctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
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
constexpr uint64_t kForeverS = 1u << 30;  // nothing of it ever changes
constexpr uint16_t kInBackgroundMax = 64;

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

template <typename T>
T argument_as(const char* argument) {
  T out;
  std::memcpy(&out, argument, sizeof out);
  return out;
}

}  // namespace

StatusOr<std::unique_ptr<FuseFile>> FuseFile::make(const std::string& folder, FuseContent content) {
  const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return error_invalid_argument(std::string("/dev/fuse cannot be opened: ") +
                                  std::strerror(errno));
  std::array<char, 128> options;
  std::snprintf(options.data(), options.size(), "fd=%d,rootmode=40000,user_id=%u,group_id=%u", fd,
                ::geteuid(), ::getegid());
  if (::mount("strata-farmem", folder.c_str(), "fuse", MS_NOSUID | MS_NODEV | MS_NOEXEC,
              options.data()) != 0) {
    const int error = errno;
    ::close(fd);
    return error_invalid_argument(std::string("a FUSE file system cannot be mounted: ") +
                                  std::strerror(error));
  }
  return std::unique_ptr<FuseFile>(new FuseFile(fd, folder, std::move(content)));
}

FuseFile::FuseFile(int fd, std::string folder, FuseContent content)
    : fd_(fd),
      folder_(std::move(folder)),
      path_(folder_ + "/" + kName),
      content_(std::move(content)),
      in_(new char[kRequestBytesMax]),
      out_(new char[kDataBytesMax]) {}

FuseFile::~FuseFile() { ::close(fd_); }

Status FuseFile::unmount() const {
  if (::umount2(folder_.c_str(), MNT_DETACH) == 0) return ok_status();
  return error_internal(folder_ + " cannot be unmounted: " + std::strerror(errno));
}

void FuseFile::serve() noexcept {
  for (;;) {
    const ssize_t bytes = ::read(fd_, in_.get(), kRequestBytesMax);
    if (bytes >= static_cast<ssize_t>(sizeof(fuse_in_header))) {
      handle(static_cast<size_t>(bytes));
      continue;
    }
    // ENODEV: nothing uses it any more. ENOENT: a request was taken back; the next one.
    if (bytes < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
    return;
  }
}

void FuseFile::answer(uint64_t request, int error, const void* out, size_t bytes) const noexcept {
  fuse_out_header header{
      .len = static_cast<uint32_t>(sizeof header + bytes), .error = -error, .unique = request};
  const std::array<iovec, 2> parts{{{&header, sizeof header}, {const_cast<void*>(out), bytes}}};
  // ENOENT: whoever asked has gone. ENODEV: serve() sees it next.
  (void)!::writev(fd_, parts.data(), bytes > 0 ? 2 : 1);
}

void FuseFile::handle(size_t bytes) noexcept {
  const auto header = argument_as<fuse_in_header>(in_.get());
  const char* const argument = in_.get() + sizeof header;
  const uint64_t request = header.unique;
  const uint64_t file_bytes = content_.pages * kPageBytes;
  switch (header.opcode) {
    case FUSE_INIT: {
      const auto wanted = argument_as<fuse_init_in>(argument);
      fuse_init_out out{};
      out.major = FUSE_KERNEL_VERSION;
      out.minor = FUSE_KERNEL_MINOR_VERSION;
      out.max_readahead = wanted.max_readahead;
      out.flags =
          wanted.flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ASYNC_DIO | FUSE_MAX_PAGES);
      out.max_background = kInBackgroundMax;
      out.congestion_threshold = kInBackgroundMax;
      out.max_write = kDataBytesMax;
      out.time_gran = 1;
      out.max_pages = kPagesAtOnceMax;
      answer(request, 0, &out, sizeof out);
      return;
    }
    case FUSE_LOOKUP: {
      in_[bytes < kRequestBytesMax ? bytes : kRequestBytesMax - 1] = '\0';
      if (header.nodeid != kRoot || std::string_view(argument) != kName)
        return answer(request, ENOENT, nullptr, 0);
      fuse_entry_out out{};
      out.nodeid = kFile;
      out.entry_valid = out.attr_valid = kForeverS;
      out.attr = attributes_of(kFile, file_bytes);
      answer(request, 0, &out, sizeof out);
      return;
    }
    case FUSE_GETATTR: {
      fuse_attr_out out{};
      out.attr_valid = kForeverS;
      out.attr = attributes_of(header.nodeid, file_bytes);
      answer(request, 0, &out, sizeof out);
      return;
    }
    case FUSE_OPEN: {
      const fuse_open_out out{};
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

void FuseFile::read(uint64_t request, const char* argument) noexcept {
  const auto wanted = argument_as<fuse_read_in>(argument);
  const uint64_t first = wanted.offset / kPageBytes;
  if (wanted.offset % kPageBytes != 0 || wanted.size > kDataBytesMax || first > content_.pages)
    return answer(request, EINVAL, nullptr, 0);
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
      wanted.size > kDataBytesMax || sizeof wanted + wanted.size > bytes)
    return answer(request, EINVAL, nullptr, 0);
  if (!content_.write(first, pages, argument + sizeof wanted).ok())
    return answer(request, EIO, nullptr, 0);
  const fuse_write_out out{.size = wanted.size, .padding = 0};
  answer(request, 0, &out, sizeof out);
}

Status lock_memory() {
  if (::mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0)
    return error_invalid_argument(std::string("memory cannot be locked: ") + std::strerror(errno));
  // Of kernels before 5.6, which did not know it, nothing more is to be had.
  (void)::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
  return ok_status();
}

}  // namespace strata::farmem
