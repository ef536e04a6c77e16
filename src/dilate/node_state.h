// What the processes of one emulated node share: a file of one page, mapped by each of them, and by
// whoever wants to know how late they were. Written by: all processes, each word atomically. Read
// by: the same, and by tools at any time. Native byte order: it never leaves the machine.
//   TD4  Lateness is counted where it cannot be made good: when a thread that is behind its
//        bookings begins to wait for something, or is more than kCarriedNsMax behind. A thread that
//        goes on computing makes it good by itself, since it is paced from where it should be. What
//        a sleep on an idle machine is late by (kSleepErrorNs) is not counted: of nodes with short
//        bursts there would be nothing else, and they are as often early (TD6).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dilate/dilated_clock.h"

namespace strata::dilate {

constexpr size_t kCoresMax = 64;
constexpr uint32_t kNodeStateVersion = 1;
constexpr std::array<char, 8> kNodeStateMagic = {'s', 't', 'r', 'd', 'i', 'l', 'a', 't'};

struct NodeState {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t cores;
  uint64_t factor_milli;
  int64_t origin_monotonic_ns;
  int64_t origin_realtime_ns;
  std::atomic<uint64_t> cpu_ns;     // real CPU time that was charged
  std::atomic<uint64_t> booked_ns;  // what it was stretched to: the node's busy time, in real time
  std::atomic<uint64_t> late_ns;
  std::atomic<uint64_t> late_ns_max;  // of one wait
  std::atomic<uint64_t> bookings;
  std::atomic<uint64_t> sleeps;    // until a booking was over
  std::atomic<uint64_t> slices;    // bookings in the middle of long bursts (TD8)
  std::atomic<uint64_t> programs;  // that were started with this file
  std::array<uint64_t, 3> reserved;
  std::array<std::atomic<int64_t>, kCoresMax> free_at_ns;  // by CLOCK_MONOTONIC
};
static_assert(offsetof(NodeState, cpu_ns) == 40 && offsetof(NodeState, free_at_ns) == 128);
static_assert(sizeof(NodeState) == 128 + 8 * kCoresMax);
static_assert(std::atomic<int64_t>::is_always_lock_free);

}  // namespace strata::dilate
