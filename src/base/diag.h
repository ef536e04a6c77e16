// Messages for operators. One process-wide sink; the plugin forwards it to the server's error log,
// tests keep the default (standard error). Never on hot paths. Thread-safe.
#pragma once

#include <string_view>

namespace strata {

enum class Severity { kInfo, kWarning, kError };
using DiagSink = void (*)(Severity severity, std::string_view message);

void set_diag_sink(DiagSink sink) noexcept;
// printf-style. Messages say what, where and what to do.
void diag(Severity severity, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace strata
