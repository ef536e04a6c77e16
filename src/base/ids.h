// Strong types for every identifier the kernel passes around. No implicit conversion, no I/O.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace strata {

// A 64-bit (or narrower) number with a meaning of its own. `Tag` makes the types distinct.
template <typename Tag, typename Rep>
struct StrongId {
  Rep value = 0;

  constexpr StrongId() noexcept = default;
  constexpr explicit StrongId(Rep v) noexcept : value(v) {}
  constexpr auto operator<=>(const StrongId&) const noexcept = default;
  [[nodiscard]] constexpr bool is_zero() const noexcept { return value == 0; }
};

using Lsn = StrongId<struct LsnTag, uint64_t>;    // byte offset in one node's log stream
using Llsn = StrongId<struct LlsnTag, uint64_t>;  // orders the changes of one page over all streams
using Cts = StrongId<struct CtsTag, uint64_t>;    // commit timestamp; 0 = not stamped
using TrxId = StrongId<struct TrxTag, uint64_t>;  // node 8 bits | sequence 56 bits; 0 = none
using NodeId = StrongId<struct NodeTag, uint8_t>;  // 1..254
using Epoch =
    StrongId<struct EpochTag, uint64_t>;  // who may write a stream; never issued twice; 0 = none
using StreamId = StrongId<struct StreamTag, uint32_t>;  // one replicated log
using SpaceId = StrongId<struct SpaceTag, uint32_t>;
using IndexId = StrongId<struct IndexTag, uint32_t>;
using FrameIndex = StrongId<struct FrameTag, uint32_t>;
using UndoPtr = StrongId<struct UndoTag, uint64_t>;  // node 8 | page number 32 | offset 16 (top 8
                                                     // bits zero); 0 = none

constexpr uint64_t kTrxSequenceMask = (uint64_t{1} << 56) - 1;
constexpr TrxId make_trx_id(NodeId node, uint64_t sequence) noexcept {
  return TrxId{(uint64_t{node.value} << 56) | (sequence & kTrxSequenceMask)};
}
constexpr NodeId node_of(TrxId id) noexcept { return NodeId{static_cast<uint8_t>(id.value >> 56)}; }
constexpr uint64_t sequence_of(TrxId id) noexcept { return id.value & kTrxSequenceMask; }

constexpr UndoPtr make_undo_ptr(NodeId node, uint32_t page_number, uint16_t offset) noexcept {
  return UndoPtr{(uint64_t{node.value} << 48) | (uint64_t{page_number} << 16) | offset};
}
constexpr NodeId undo_node(UndoPtr p) noexcept {
  return NodeId{static_cast<uint8_t>(p.value >> 48)};
}
constexpr uint32_t undo_page_number(UndoPtr p) noexcept {
  return static_cast<uint32_t>(p.value >> 16);
}
constexpr uint16_t undo_offset(UndoPtr p) noexcept { return static_cast<uint16_t>(p.value); }

// A page's address: space 32 | number 32.
struct PageId {
  uint32_t space = 0;
  uint32_t number = 0;
  constexpr auto operator<=>(const PageId&) const noexcept = default;
  [[nodiscard]] constexpr uint64_t packed() const noexcept {
    return (uint64_t{space} << 32) | number;
  }
  static constexpr PageId unpack(uint64_t v) noexcept {
    return PageId{static_cast<uint32_t>(v >> 32), static_cast<uint32_t>(v)};
  }
};

// Space numbering. Space 0 is the system space (dictionary, pending deletes, oracle ceiling);
// 1..254 are the undo spaces of the nodes; user spaces start at 256 and are never reused (K2).
constexpr uint32_t kSystemSpace = 0;
constexpr uint32_t kFirstUserSpace = 256;
constexpr uint32_t undo_space_of(NodeId node) noexcept { return node.value; }
constexpr uint32_t kNoPage = 0xffffffffu;

inline uint64_t mix64(uint64_t x) noexcept {  // finalizer of splitmix64
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  x ^= x >> 31;
  return x;
}

}  // namespace strata

template <>
struct std::hash<strata::PageId> {
  size_t operator()(const strata::PageId& id) const noexcept {
    return static_cast<size_t>(strata::mix64(id.packed()));
  }
};
template <typename Tag, typename Rep>
struct std::hash<strata::StrongId<Tag, Rep>> {
  size_t operator()(const strata::StrongId<Tag, Rep>& id) const noexcept {
    return static_cast<size_t>(strata::mix64(id.value));
  }
};
