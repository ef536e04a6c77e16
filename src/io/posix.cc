// The operating system's files.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/file_system.h"
#include "io/internal/errno_status.h"

namespace strata {
namespace {

// Calls `call` again while a signal interrupts it.
template <typename Call>
auto retry_interrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

std::string parent_of(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

class PosixFile final : public File {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixFile() override { ::close(fd_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    *got = 0;
    while (*got < bytes) {
      const ssize_t n = retry_interrupted([&] {
        return ::pread(fd_, static_cast<char*>(data) + *got, bytes - *got,
                       static_cast<off_t>(offset + *got));
      });
      if (n < 0) return errno_status("read", path_, errno);
      if (n == 0) break;
      *got += static_cast<size_t>(n);
    }
    return ok_status();
  }

  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    for (size_t done = 0; done < bytes;) {
      const ssize_t n = retry_interrupted([&] {
        return ::pwrite(fd_, static_cast<const char*>(data) + done, bytes - done,
                        static_cast<off_t>(offset + done));
      });
      if (n < 0) return errno_status("write", path_, errno);
      if (n == 0) return errno_status("write", path_, ENOSPC);
      done += static_cast<size_t>(n);
    }
    return ok_status();
  }

  // A failed fdatasync is final: the kernel may have dropped the dirty pages. The caller must not
  // try again and believe a later success.
  Status sync_data() override {
    if (retry_interrupted([&] { return ::fdatasync(fd_); }) != 0)
      return errno_status("fdatasync", path_, errno);
    return ok_status();
  }

  StatusOr<uint64_t> size() override {
    struct stat info;
    if (::fstat(fd_, &info) != 0) return errno_status("fstat", path_, errno);
    return static_cast<uint64_t>(info.st_size);
  }

  Status allocate(uint64_t bytes) override {
    STRATA_ASSIGN_OR_RETURN(const uint64_t now, size());
    if (now >= bytes) return ok_status();
    const auto extra = static_cast<off_t>(bytes - now);
    if (retry_interrupted([&] { return ::fallocate(fd_, 0, static_cast<off_t>(now), extra); }) == 0)
      return ok_status();
    if (errno != EOPNOTSUPP) return errno_status("fallocate", path_, errno);
    return truncate(bytes);
  }

  Status truncate(uint64_t bytes) override {
    if (retry_interrupted([&] { return ::ftruncate(fd_, static_cast<off_t>(bytes)); }) != 0)
      return errno_status("ftruncate", path_, errno);
    return ok_status();
  }

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] int descriptor() const override { return fd_; }

 private:
  const int fd_;
  const std::string path_;
};

// The system frees it when the descriptor is closed; that is not passed on to other programs.
class PosixLock final : public FileLock {
 public:
  explicit PosixLock(int fd) : fd_(fd) {}
  ~PosixLock() override { ::close(fd_); }

 private:
  const int fd_;
};

class PosixFileSystem final : public FileSystem {
 public:
  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    int flags = (options.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
    if (options.create) flags |= O_CREAT;
    if (options.create && options.exclusive) flags |= O_EXCL;
    int fd = -1;
    if (options.direct) {
      fd = open_fd(path, flags | O_DIRECT);
      // EINVAL: no direct I/O here. The file may have been made all the same.
      if (fd < 0 && errno == EINVAL) fd = open_fd(path, flags & ~O_EXCL);
    } else {
      fd = open_fd(path, flags);
    }
    if (fd < 0) return errno_status("open", path, errno);
    return std::unique_ptr<File>(std::make_unique<PosixFile>(fd, path));
  }

  Status make_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0750) == 0) return sync_directory(parent_of(path));  // IO1
    const int error = errno;
    struct stat info;
    if (error == EEXIST && ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
      return ok_status();
    return errno_status("mkdir", path, error);
  }

  Status remove(const std::string& path) override {
    if (::remove(path.c_str()) != 0 && errno != ENOENT) return errno_status("remove", path, errno);
    return ok_status();
  }

  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      return errno_status("rename", from + " to " + to, errno);
    return ok_status();
  }

  StatusOr<bool> exists(const std::string& path) override {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return errno_status("stat", path, errno);
  }

  StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    DIR* dir = ::opendir(directory.c_str());
    if (dir == nullptr) return errno_status("list", directory, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    const int error = errno;
    ::closedir(dir);
    if (error != 0) return errno_status("list", directory, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status sync_directory(const std::string& path) override {
    const int fd =
        retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return errno_status("open directory", path, errno);
    const int result = retry_interrupted([&] { return ::fsync(fd); });
    const int error = errno;
    ::close(fd);
    if (result != 0) return errno_status("fsync directory", path, error);
    return ok_status();
  }

  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC;
    const int fd = retry_interrupted([&] { return ::open(path.c_str(), kFlags, 0660); });
    if (fd < 0) return errno_status("open", path, errno);
    auto lock = std::make_unique<PosixLock>(fd);
    if (retry_interrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0)
      return std::unique_ptr<FileLock>(std::move(lock));
    // Anything else would not pass with the end of another process.
    if (errno != EWOULDBLOCK) return errno_status("lock", path, errno);
    return error_in_use("lock " + path + ": another process holds it");
  }

 private:
  static int open_fd(const std::string& path, int flags) {
    return retry_interrupted([&] { return ::open(path.c_str(), flags, 0640); });
  }
};

}  // namespace

Status errno_status(std::string_view operation, std::string_view path, int error) {
  char buffer[128];
  std::string message(operation);
  message.append(" ").append(path).append(": ").append(::strerror_r(error, buffer, sizeof(buffer)));
  switch (error) {
    case ENOENT:
      return error_not_found(message);
    case EEXIST:
      return error_duplicate_key(message);
    case ENOSPC:
    case EDQUOT:
      return error_no_space(message);
    default:
      return error_io_error(message);
  }
}

std::unique_ptr<FileSystem> make_posix_file_system() { return std::make_unique<PosixFileSystem>(); }

}  // namespace strata
