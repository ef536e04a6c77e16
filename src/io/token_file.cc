#include "io/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace strata {
namespace {

Status refused(const std::string& path, const std::string& why) {
  return error_invalid_argument("token " + path + ": " + why);
}

StatusOr<std::string> token_in(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return refused(path, "not a file");
  if (info.st_uid != ::geteuid()) return refused(path, "belongs to another user");
  if ((info.st_mode & 0177) != 0) return refused(path, "others may use it; chmod 600");
  char text[kTokenBytesMax + 2];
  const ssize_t got = ::read(fd, text, sizeof text);
  if (got < 0) return refused(path, std::strerror(errno));
  std::string_view token(text, static_cast<size_t>(got));
  if (token.ends_with('\n')) token.remove_suffix(1);
  if (token.size() < kTokenBytesMin || token.size() > kTokenBytesMax ||
      token.find('\n') != std::string_view::npos)
    return refused(path, "must be one line of " + std::to_string(kTokenBytesMin) + " to " +
                             std::to_string(kTokenBytesMax) + " bytes");
  return std::string(token);
}

}  // namespace

StatusOr<std::string> read_token(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT) return error_not_found("token " + path + ": no such file");
    return refused(path, std::strerror(error));
  }
  StatusOr<std::string> token = token_in(fd, path);
  ::close(fd);
  return token;
}

}  // namespace strata
