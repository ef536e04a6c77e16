#include "daemon/log.h"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include "base/diag.h"

namespace strata::daemon {
namespace {

constexpr int kNotStarted = 100;  // above every level
std::atomic<int> least_level{kNotStarted};

const char* name_of(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      return "error";
  }
  return "error";
}

void take_diag(Severity severity, std::string_view message) {
  const Level level = severity == Severity::kError     ? Level::kError
                      : severity == Severity::kWarning ? Level::kWarning
                                                       : Level::kInfo;
  log_event(level, "diag", {{"message", std::string(message)}});
}

bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("_-./:,+[]").find(c) != std::string_view::npos;
}

// "2026-11-25T23:59:01.000123Z"
std::string time_now() {
  timeval now{};
  ::gettimeofday(&now, nullptr);
  tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  char text[64];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  char rest[16];
  std::snprintf(rest, sizeof rest, ".%06dZ", static_cast<int>(now.tv_usec));
  return std::string(text, length).append(rest);
}

// What cannot be written is dropped (DM2): there is no better place to say so.
void write_line(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    line.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void start_log(Level least) {
  least_level.store(static_cast<int>(least), std::memory_order_relaxed);
  set_diag_sink(&take_diag);
}

bool log_is_started() noexcept {
  return least_level.load(std::memory_order_relaxed) != kNotStarted;
}

std::string quoted(std::string_view value) {
  if (!value.empty() && std::all_of(value.begin(), value.end(), is_plain))
    return std::string(value);
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text.append({'\\', c});
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(c));
      text.append(escaped);
    } else {
      text.push_back(c);
    }
  }
  return text.append("\"");
}

void log_event(Level level, std::string_view event, absl::Span<const Field> fields) {
  if (static_cast<int>(level) < least_level.load(std::memory_order_relaxed)) return;
  std::string line = time_now().append(" ").append(name_of(level)).append(" ").append(event);
  for (const Field& field : fields)
    line.append(" ").append(field.first).append("=").append(quoted(field.second));
  write_line(line.append("\n"));
}

}  // namespace strata::daemon
