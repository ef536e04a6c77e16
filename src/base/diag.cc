#include "base/diag.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace strata {
namespace {

void write_to_stderr(Severity severity, std::string_view message) {
  const char* word = severity == Severity::kError     ? "error"
                     : severity == Severity::kWarning ? "warning"
                                                      : "info";
  std::fprintf(stderr, "strata [%s] %.*s\n", word, static_cast<int>(message.size()),
               message.data());
}

std::atomic<DiagSink> sink{&write_to_stderr};

}  // namespace

void set_diag_sink(DiagSink new_sink) noexcept {
  sink.store(new_sink != nullptr ? new_sink : &write_to_stderr);
}

void diag(Severity severity, const char* format, ...) {
  char buffer[1024];
  va_list args;
  va_start(args, format);
  const int n = std::vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  if (n <= 0) return;
  const size_t length =
      static_cast<size_t>(n) < sizeof buffer ? static_cast<size_t>(n) : sizeof buffer - 1;
  sink.load()(severity, std::string_view(buffer, length));
}

}  // namespace strata
