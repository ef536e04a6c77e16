// What several servers that write the same tables, and the memory node between them, read and write
// in each other's memory, and what a server tells and hears several times a second.
//
//   FW1  A word of 8 bytes has one writer at a time or is changed by atomics only, and is read as
//        one word. Nothing relies on two words having been read at one moment.
//   FW2  What is read from another node may be anything: it is judged, never asserted.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace strata::proto {

// Of a memory node's region "times". A change of what is where raises kTimesLayout (methods.def).
constexpr uint64_t kClockOffset = 0;     // the largest cts given out: servers add to it
constexpr uint64_t kCeilingOffset = 8;   // what is above it does not count yet (FT1)
constexpr uint64_t kHorizonOffset = 64;  // the oldest snapshot that anybody may still read
constexpr uint64_t kTimesBytes = 4096;
static_assert(kClockOffset % 8 == 0 && kCeilingOffset % 8 == 0 && kHorizonOffset % 8 == 0);

constexpr uint64_t kCtsBits = 48;
constexpr uint64_t kCtsMax = (uint64_t{1} << kCtsBits) - 1;

// A slot of a server's region "tit": what a transaction of it has come to. Written by the server
// alone, but for `waiters`, which is changed by atomics only; read by anyone, the sequence first.
// Torn read: the tag in the word is of another sequence than the one asked for. Reused: when the
// state is not an undecided one; the same tag comes again in the same slot after 8,192 transactions
// there. A change of this, of the word or of how many slots there are raises kTableLayout.
struct TitSlot {
  uint64_t sequence = 0;
  uint64_t word = 0;     // state 3 bits | cts 48 | tag 13
  uint64_t waiters = 0;  // others add to it before they wait; zero: nobody does (FC15)
  uint64_t spare = 0;
};
static_assert(sizeof(TitSlot) == 32);
constexpr uint64_t kTitTagBits = 13;
static_assert(3 + kCtsBits + kTitTagBits == 64);

// As TrxState, and one more: committed as far as the server goes, but perhaps not durable.
constexpr uint8_t kTitEnded = 6;

constexpr uint64_t tit_tag(uint64_t sequence, uint64_t slots) noexcept {
  return sequence / slots & ((uint64_t{1} << kTitTagBits) - 1);
}
constexpr uint64_t tit_word(uint8_t state, Cts cts, uint64_t tag) noexcept {
  return uint64_t{state} << 61 | (cts.value & kCtsMax) << kTitTagBits | tag;
}
constexpr uint8_t tit_state(uint64_t word) noexcept { return static_cast<uint8_t>(word >> 61); }
constexpr Cts tit_cts(uint64_t word) noexcept { return Cts{word >> kTitTagBits & kCtsMax}; }
constexpr uint64_t tit_tag_of(uint64_t word) noexcept {
  return word & ((uint64_t{1} << kTitTagBits) - 1);
}

// A server to the memory node, each 300 ms.
struct Heartbeat {
  NodeId server;
  uint64_t life = 0;  // random, of the server's process
  Epoch epoch;        // of the memory node, as the server knows it
  uint64_t fences_heard = 0;
  bool has_views = false;  // it has joined the horizon: the next two count
  Cts oldest_view;         // no view of it has an older snapshot, nor will one that it opens
  uint64_t bound = 0;      // of its transactions (MW10)
};

struct Fence {
  NodeId server;
  uint64_t number = 0;  // the first is 1
  bool operator==(const Fence&) const noexcept = default;
};

struct HeartbeatReply {
  Epoch epoch;
  uint64_t lease_us = 0;      // counted from when the server asked
  std::vector<Fence> fences;  // above those it has heard: heeded before the lease is used
  Cts horizon;
  struct Bound {
    NodeId server;
    uint64_t bound = 0;
  };
  std::vector<Bound> bounds;
};

}  // namespace strata::proto
