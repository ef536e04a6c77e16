// Status and StatusOr of the kernel: Abseil's, with one helper per outcome in errors.def and the
// two propagation macros. Hot paths return statuses without a message (no heap use).
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace strata {

using absl::Status;
using absl::StatusCode;
using absl::StatusOr;

inline Status ok_status() noexcept { return Status(); }

#define STRATA_ERROR(name, absl_code, cls)                                                   \
  inline Status error_##name(std::string_view message = {}) {                                \
    return Status(StatusCode::absl_code, absl::string_view(message.data(), message.size())); \
  }                                                                                          \
  inline bool is_##name(const Status& s) noexcept { return s.code() == StatusCode::absl_code; }
#include "base/errors.def"
#undef STRATA_ERROR

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
