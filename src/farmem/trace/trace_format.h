// A file of what one process's pager was asked and did, in its order: for replay with other
// policies (policy/replay.h), and for looking at how a program touches its memory. Little endian,
// packed.
//
//   header    kTraceHeaderBytes, most of them zeros (TraceHeader)
//   records   16 bytes each, as many as the header says (TraceRecord)
//
//   FM30  A version's meaning never changes. A reader refuses versions that it does not know, and
//         bytes that cannot be what a writer wrote: the header has a checksum, and so has each
//         record.
//   FM31  The file is complete up to the header's count at every moment, also after kill -9 of the
//         process: it is written through a mapping. (Not after a crash of the machine.)
// What a trace has are faults, not touches: of a page that is local nothing is seen. The less local
// memory it was recorded with, the closer it comes to all touches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/crc32c.h"

namespace strata::farmem {

constexpr std::array<char, 8> kTraceMagic{'S', 'T', 'R', 'F', 'A', 'R', 'T', 'R'};
constexpr uint32_t kTraceVersion = 1;
constexpr uint64_t kTraceHeaderBytes = 4096;
constexpr size_t kTraceNameBytes = 64;
constexpr uint64_t kTracePagesMax = 1ull << 28;  // of the region

struct TraceHeader {
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t record_bytes = 0;
  uint64_t pages = 0;  // of the region
  uint64_t page_bytes = 0;
  uint32_t replacement = 0;  // the recording's policy, as in policy_options.h
  uint32_t frames = 0;
  uint32_t ways = 0;
  uint32_t prefetch = 0;
  uint64_t pid = 0;
  std::array<char, kTraceNameBytes> name{};  // of the program
  uint32_t reserved = 0;
  uint32_t crc32c = 0;  // of all before
  // Of these the writer changes the values.
  uint64_t records = 0;
  uint64_t error = 0;  // not 0: the errno for which the recording ended before the program
};
static_assert(std::is_standard_layout_v<TraceHeader> && sizeof(TraceHeader) == 144);
static_assert(offsetof(TraceHeader, crc32c) == 124 && offsetof(TraceHeader, records) == 128);

enum class TraceKind : uint8_t {
  kSoft = 1,         // a fault: the page was local still, staged
  kNew = 2,          // a fault: it had no content yet
  kFetched = 3,      // a fault: it came from far memory, and `pages` that follow along with it
  kLeftWritten = 4,  // evicted, with content that far memory did not have
  kLeftClean = 5,    // evicted, far memory had it
  kLeftZero = 6,     // evicted, all zeros
  kDiscarded = 7,    // the program has no use for `pages` pages from here on
  kPinned = 8,       // was to go, and could not: the kernel was using it
};
constexpr uint8_t kTraceKindMax = 8;

// Flags.
constexpr uint8_t kTraceWrite = 1;  // of a fault: the thread wanted to write
constexpr uint8_t kTraceQuiet = 2;  // of a fault: no other thread waited for a page after it

struct TraceRecord {
  uint32_t page = 0;
  uint32_t pages = 0;
  uint32_t at_us = 0;  // since the recording began, modulo 2^32
  TraceKind kind{};
  uint8_t flags = 0;
  uint16_t check = 0;  // the lower half of the CRC-32C of all before
};
static_assert(std::is_standard_layout_v<TraceRecord> && sizeof(TraceRecord) == 16);
static_assert(offsetof(TraceRecord, check) == 14);

inline uint32_t trace_header_crc(const TraceHeader& header) noexcept {
  return crc32c(&header, offsetof(TraceHeader, crc32c));
}
inline uint16_t trace_check(const TraceRecord& record) noexcept {
  return static_cast<uint16_t>(crc32c(&record, offsetof(TraceRecord, check)));
}

}  // namespace strata::farmem
