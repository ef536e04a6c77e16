// A daemon's log: one line per event on standard error, `time level event key=value ...`, with the
// time in UTC. Thread-safe.
//
//   DM1  An event is one line, whatever its values hold, and is written with one call: lines of up
//        to 4,096 bytes are never mixed with those of other threads or processes.
//   DM2  A log that cannot be written (closed, full disk, nobody reads the pipe any more) loses
//        lines, and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/types/span.h"

namespace strata::daemon {

enum class Level : uint8_t { kDebug, kInfo, kWarning, kError };

// Before it events are dropped, and the kernel's messages (base/diag.h) go where they went; from
// then on they are events "diag". Again: another level.
void start_log(Level least);
[[nodiscard]] bool log_is_started() noexcept;

using Field = std::pair<std::string_view, std::string>;
void log_event(Level level, std::string_view event, absl::Span<const Field> fields = {});

// As it stands, or in quotes with escapes where it would not be one word.
[[nodiscard]] std::string quoted(std::string_view value);

}  // namespace strata::daemon
