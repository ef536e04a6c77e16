// How local memory is used as a cache of far memory. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace strata::farmem {

constexpr uint64_t kPageBytes = 4096;

enum class Replacement : uint8_t {
  kFifo,          // who came first goes first
  kSecondChance,  // FIFO, and a quarter of the frames for pages on their way out, from where a
                  // touch brings them back: as near to LRU as a pager without accessed bits comes
  kAssociative,   // a page has its place in one set of `ways` frames only, FIFO in each set
};

struct PolicyOptions {
  Replacement replacement = Replacement::kFifo;
  uint32_t frames = 0;    // local pages, all together: the cap
  uint32_t ways = 0;      // kAssociative only
  uint32_t prefetch = 0;  // so many of the pages that follow come along with a missing one
};

constexpr uint32_t kFramesMin = 32;
constexpr uint32_t kPrefetchMax = 63;

// "fifo", "second-chance", "assoc:256"; sets `replacement` and `ways`. Error: kInvalidArgument,
// which says what there is.
Status parse_policy(std::string_view text, PolicyOptions* options);
std::string policy_name(const PolicyOptions& options);
// Whether the numbers fit each other. Error: kInvalidArgument.
Status check_policy(const PolicyOptions& options);

// How `frames` are divided.
struct Shares {
  uint32_t staged = 0;  // at most so many pages are on their way out
  uint32_t batch = 0;   // so many leave at once
  uint32_t sets = 0;
  uint32_t ways = 0;  // mapped pages of each set
};
Shares shares_of(const PolicyOptions& options) noexcept;

}  // namespace strata::farmem
