// Status and StatusOr of the kernel: Abseil's, with one helper per outcome in errors.def and the
// two propagation macros. Hot paths return statuses without a message (no heap use).
//   ER6  Abseil has too few codes, so ours go beyond them: Status::code() says kUnknown for those.
//        Outside of this file nobody calls code(): is_<name>(), error_of() or error_class() do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace strata {

using absl::Status;
using absl::StatusCode;
using absl::StatusOr;

inline Status ok_status() noexcept { return Status(); }

// What the caller does. In doubt the later one.
enum class ErrorClass : uint8_t {
  none,        // it went well
  retry,       // it passes by itself: the same may be asked again, here or of another node
  statement,   // this operation fails; the next one may go. The same again would fail again
  abort_trx,   // the whole transaction is, or has to be, rolled back
  unknown,     // done or not: who can look does so; who cannot passes on that it is unknown
  ends_right,  // this process may not go on with it while it lives; another one may
  fatal,       // what is stored or set up is wrong: nothing but a person's hand changes it
};

enum class Error : uint8_t {
  ok = 0,
#define STRATA_ERROR(name, number, cls, cause, remedy) name = number,
#include "base/errors.def"
#undef STRATA_ERROR
};

#define STRATA_ERROR(name, number, cls, cause, remedy)                \
  inline Status error_##name(std::string_view message = {}) {         \
    return Status(static_cast<StatusCode>(number),                    \
                  absl::string_view(message.data(), message.size())); \
  }                                                                   \
  inline bool is_##name(const Status& s) noexcept { return s.raw_code() == (number); }
#include "base/errors.def"
#undef STRATA_ERROR

// internal for a number that errors.def does not have.
[[nodiscard]] Error error_of(const Status& status) noexcept;
[[nodiscard]] ErrorClass error_class(const Status& status) noexcept;
[[nodiscard]] std::string_view error_name(Error error) noexcept;

// True: whoever has time waits and does the same again.
[[nodiscard]] inline bool may_pass(const Status& status) noexcept {
  return error_class(status) == ErrorClass::retry;
}
// For what may safely be done twice: an unknown outcome is no reason to stop, either.
[[nodiscard]] inline bool may_be_repeated(const Status& status) noexcept {
  return may_pass(status) || error_class(status) == ErrorClass::unknown;
}
// True: this process is not to try that again while it lives.
[[nodiscard]] inline bool ends_right(const Status& status) noexcept {
  return error_class(status) == ErrorClass::ends_right;
}

// The same error in other words.
[[nodiscard]] Status with_message(const Status& status, std::string_view message);

// A number from a peer (ER4). Not for 0.
[[nodiscard]] Status status_from_wire(uint8_t number, std::string_view message);
[[nodiscard]] inline uint8_t wire_number(const Status& status) noexcept {
  return static_cast<uint8_t>(error_of(status));
}

// What a person is told: what happened, and what to do about it. A message with a remedy of its own
// has it after the mark.
constexpr std::string_view kRemedyMark = "; to do: ";
[[nodiscard]] std::string cause_of(const Status& status);
[[nodiscard]] std::string remedy_of(const Status& status);
[[nodiscard]] std::string cause_and_remedy(const Status& status);  // with the mark between
// The same error with this remedy, unless its message has one of its own.
[[nodiscard]] Status with_remedy(const Status& status, std::string_view remedy);

}  // namespace strata

#define STRATA_RETURN_IF_ERROR(expr)                                                         \
  do {                                                                                       \
    if (::strata::Status strata_status_ = (expr); __builtin_expect(!strata_status_.ok(), 0)) \
      return strata_status_;                                                                 \
  } while (0)

#define STRATA_CONCAT_INNER(a, b) a##b
#define STRATA_CONCAT(a, b) STRATA_CONCAT_INNER(a, b)
#define STRATA_ASSIGN_OR_RETURN(lhs, expr) \
  STRATA_ASSIGN_OR_RETURN_IMPL(STRATA_CONCAT(strata_statusor_, __LINE__), lhs, expr)
#define STRATA_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr)       \
  auto tmp = (expr);                                       \
  if (__builtin_expect(!tmp.ok(), 0)) return tmp.status(); \
  lhs = std::move(tmp).value()
