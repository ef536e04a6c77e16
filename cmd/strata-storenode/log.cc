#include "log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/diag.h"

namespace strata::daemon {
namespace {

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
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

}  // namespace

void start_log(Level least) {
  auto logger = spdlog::stderr_logger_mt("strata");
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%fZ %l %v", spdlog::pattern_time_type::utc);
  logger->set_level(level_of(least));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  set_diag_sink(&take_diag);
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

void log_event(Level level, std::string_view event, std::initializer_list<Field> fields) {
  std::string line(event);
  for (const Field& field : fields)
    line.append(" ").append(field.first).append("=").append(quoted(field.second));
  spdlog::default_logger_raw()->log(level_of(level),
                                    spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace strata::daemon
