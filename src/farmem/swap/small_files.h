// The kernel's switches and figures, which are small files of text.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "base/status.h"

namespace strata::farmem {

// Empty when it cannot be read.
inline std::string read_small(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// One write, as these files want it. Error: kInvalidArgument, with the reason.
inline Status write_small(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool done =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (fd >= 0) ::close(fd);
  return done ? ok_status() : error_invalid_argument(path + ": " + std::strerror(error));
}

// Of "name 12" lines; 0 when there is none of the name.
inline uint64_t figure_of(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.size() > name.size() && line[name.size()] == ' ' &&
        std::string_view(line).substr(0, name.size()) == name)
      return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10);
  return 0;
}

}  // namespace strata::farmem
