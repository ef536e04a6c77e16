// What one process's pager has done. Fixed layout: lies in memory that the process shares with the
// one that started it (shared_setup.h), which reads while the other counts. Each number by itself.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "farmem/node/messages.h"

namespace strata::farmem {

constexpr size_t kHistogramBuckets = 32;  // bucket i: service times of [2^i, 2^(i+1)) ns
constexpr size_t kMessageBytesMax = 256;

using Counter = std::atomic<uint64_t>;
static_assert(sizeof(Counter) == 8 && Counter::is_always_lock_free);

struct PagerCounters {
  Counter faults{0};         // pages touched that were not mapped
  Counter soft_hits{0};      // of them: still local, staged
  Counter zero_filled{0};    // of them: no content yet
  Counter fetched{0};        // of them: from the memory node
  Counter prefetched{0};     // pages that came along
  Counter evicted_dirty{0};  // written to the memory node
  Counter evicted_clean{0};  // dropped: the node has the same content
  Counter evicted_zero{0};   // dropped: zeros
  Counter discarded{0};      // local pages the program had no more use for
  Counter pinned{0};         // pages that could not go because the kernel was using them
  Counter mapped{0};         // now
  Counter staged{0};         // now
  Counter local_max{0};      // mapped and staged, at most so far
  Counter service_ns{0};     // sum over faults, from being told to having put the page there
  std::array<Counter, kHistogramBuckets> service_histogram{};
};

struct ProcessCounters {
  std::atomic<uint64_t> pid{0};    // 0: the place is free
  Counter far_bytes_allocated{0};  // by the program, now
  Counter far_bytes_refused{0};    // asked for when far memory had no room; they are local
  std::atomic<uint64_t> lost{0};   // not 0: the process ended itself, `message` says why
  std::array<char, kMessageBytesMax> message{};
  Credentials credentials{};  // of its region, once client != 0
  PagerCounters pager;
};
static_assert(std::is_standard_layout_v<ProcessCounters>);

}  // namespace strata::farmem
