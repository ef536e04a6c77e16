// The daemon's log: one line per event on standard error, `time level event key=value ...`.
// Thread-safe.
//   CL1  An event is one line, whatever its values hold.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace strata::daemon {

enum class Level { kDebug, kInfo, kWarning, kError };

// Once, before anything else here. The kernel's messages (base/diag.h) come here from then on.
void start_log(Level least);

using Field = std::pair<std::string_view, std::string>;
void log_event(Level level, std::string_view event, std::initializer_list<Field> fields = {});

// As it stands, or in quotes with escapes where it would not be one word.
[[nodiscard]] std::string quoted(std::string_view value);

}  // namespace strata::daemon
