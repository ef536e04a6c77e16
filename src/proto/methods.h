// The calls that nodes make to storage nodes and memory nodes, and what methods.def says of each.
//   MD1  A number never changes its meaning; a new meaning gets a new number.
//   MD2  Two builds that lay out a method's messages differently have different digests of it, but
//        for one change in 65,536; builds that do not have the same, whatever else they differ in.
#pragma once

#include <absl/types/span.h>

#include <cstdint>

namespace strata::proto {

enum Method : uint16_t {
#define STRATA_METHOD(service, number, constant, ...) constant = number,
#include "proto/methods.def"
};

#define STRATA_LIMIT(name, value, what) constexpr uint32_t name = value;
#define STRATA_REGION(name, version, what) constexpr uint32_t name = version;
#include "proto/methods.def"

enum class Service : uint8_t { kLog, kPages, kWritten, kPeers, kPools, kFusion };
enum class Caller : uint8_t { kCompute, kStorage, kBoth };
enum class Ends : uint8_t { kAtOnce, kDurable, kWaits };
enum class Again : uint8_t { kRepeat, kNever };

struct MethodTraits {
  Method method;
  const char* name;  // in metrics
  Service service;
  Caller caller;
  Ends ends;
  Again again;
  const char* request;  // the fields, as methods.def writes them
  const char* reply;
  uint16_t layout;  // MD2; never 0
};

// In the order of their numbers.
[[nodiscard]] absl::Span<const MethodTraits> all_methods() noexcept;
// By a table. Asserts that there is such a method.
[[nodiscard]] const MethodTraits& traits_of(uint16_t method) noexcept;
// Whether the transport may send the call once more (CallOptions::idempotent).
[[nodiscard]] inline bool may_repeat(uint16_t method) noexcept {
  return traits_of(method).again == Again::kRepeat;
}
// The fields that a name in a request or a reply stands for; nullptr: it stands for none.
[[nodiscard]] const char* fields_named(const char* name) noexcept;

}  // namespace strata::proto
