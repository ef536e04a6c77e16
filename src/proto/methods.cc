#include "proto/methods.h"

#include <array>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "base/assert.h"
#include "proto/internal/layout_digest.h"

namespace strata::proto {
namespace {

constexpr internal::NamedFields kGroups[] = {
#define STRATA_FIELDS(group, fields) {#group, fields},
#include "proto/methods.def"
};
constexpr internal::NamedValue kValues[] = {
#define STRATA_LIMIT(name, value, what) {#name, name},
#define STRATA_REGION(name, version, what) {#name, name},
#include "proto/methods.def"
};
constexpr uint16_t digest_of(std::string_view request, std::string_view reply) {
  return internal::LayoutDigest(kGroups, kValues).of(request, reply);
}

// A digest for each line by itself: compilers limit how long they compute one constant.
constexpr MethodTraits kMethods[] = {
#define STRATA_METHOD(service, number, constant, counter, caller, ends, again, request, reply, \
                      what)                                                                    \
  {                                                                                            \
      constant,                                                                                \
      #counter,                                                                                \
      Service::service,                                                                        \
      Caller::caller,                                                                          \
      Ends::ends,                                                                              \
      Again::again,                                                                            \
      request,                                                                                 \
      reply,                                                                                   \
      std::integral_constant<uint16_t, digest_of(request, reply)>::value},
#include "proto/methods.def"
};

// MD1: appended, never renumbered; the transport has the numbers from here on.
constexpr uint16_t kNumbersMax = 240;
constexpr bool numbers_grow() {
  for (size_t i = 1; i < std::size(kMethods); ++i)
    if (kMethods[i].method <= kMethods[i - 1].method) return false;
  return kMethods[0].method > 0 && kMethods[std::size(kMethods) - 1].method < kNumbersMax;
}
static_assert(numbers_grow());

constexpr uint8_t kNoMethod = 255;
static_assert(std::size(kMethods) < kNoMethod);

constexpr std::array<uint8_t, kNumbersMax> make_places() {
  std::array<uint8_t, kNumbersMax> places{};
  for (uint8_t& place : places) place = kNoMethod;
  for (size_t i = 0; i < std::size(kMethods); ++i)
    places[kMethods[i].method] = static_cast<uint8_t>(i);
  return places;
}
constexpr std::array<uint8_t, kNumbersMax> kPlaces = make_places();  // in kMethods, by number

}  // namespace

absl::Span<const MethodTraits> all_methods() noexcept { return kMethods; }

const MethodTraits& traits_of(uint16_t method) noexcept {
  STRATA_ASSERT(method < kNumbersMax && kPlaces[method] != kNoMethod);
  return kMethods[kPlaces[method]];
}

const char* fields_named(const char* name) noexcept {
  for (const internal::NamedFields& group : kGroups)
    if (group.name == name) return group.fields.data();
  return nullptr;
}

}  // namespace strata::proto
