#include "proto/methods.h"

#include <cstddef>
#include <cstring>
#include <iterator>

#include "base/assert.h"

namespace strata::proto {
namespace {

constexpr MethodTraits kMethods[] = {
#define STRATA_METHOD(service, number, constant, counter, caller, ends, again, request, reply, \
                      what)                                                                    \
  {constant, #counter, Service::service, Caller::caller, Ends::ends, Again::again, request, reply},
#include "proto/methods.def"
};

// MD1: appended, never renumbered; the transport has the numbers from 240 on.
constexpr bool numbers_grow() {
  for (size_t i = 1; i < std::size(kMethods); ++i)
    if (kMethods[i].method <= kMethods[i - 1].method) return false;
  return kMethods[0].method > 0 && kMethods[std::size(kMethods) - 1].method < 240;
}
static_assert(numbers_grow());

}  // namespace

absl::Span<const MethodTraits> all_methods() noexcept { return kMethods; }

bool may_repeat(uint16_t method) noexcept {
  for (const MethodTraits& traits : kMethods)
    if (traits.method == method) return traits.again == Again::kRepeat;
  STRATA_ASSERT(false);
}

const char* fields_named(const char* name) noexcept {
#define STRATA_FIELDS(group, fields) \
  if (std::strcmp(name, #group) == 0) return fields;
#include "proto/methods.def"
  return nullptr;
}

}  // namespace strata::proto
