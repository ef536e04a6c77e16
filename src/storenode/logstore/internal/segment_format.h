// Bytes of a log segment file: encoding and decoding. Pure; the bytes decoded are untrusted.
//
//   segment = header, zero up to the end of its block | chunk... | anything
//   chunk   = magic u32 | header crc32c u32 | bytes u32 | payload crc32c u32 | lsn u64
//             | durable lsn u64 | quorum-durable lsn u64 | payload | zero padding to 8 bytes
//   SEF1  A chunk's header proves itself: its checksum starts from the checksum of the segment's
//         own header, so chunks of an earlier life of a recycled file do not pass.
//   SEF2  `durable lsn` is what the stream had durable before the chunk was written. A whole header
//         anywhere in the file therefore proves that bytes before that Lsn were there once.
#pragma once

#include <cstddef>
#include <string>

#include "base/aligned.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"

namespace strata::logstore {

constexpr uint64_t kSegmentHeaderBytes = kDirectIoAlignment;  // a block
constexpr uint32_t kSegmentFormat = 1;
constexpr uint32_t kChunkPayloadMax = 1u << 24;  // none is longer; a length above it is damage

struct SegmentInfo {
  uint64_t cluster_id = 0;
  StreamId stream;
  uint64_t sequence = 0;  // counts the segments of the stream, from 1
  uint64_t previous = 0;  // sequence of the segment that holds the bytes before `start`; 0: none
  Epoch epoch;            // of its bytes
  Lsn start;
  bool operator==(const SegmentInfo&) const noexcept = default;
};

struct SegmentHeader {
  uint64_t magic;
  uint32_t format;
  uint32_t crc32c;  // of format, then of everything behind crc32c
  uint64_t cluster_id;
  uint64_t sequence;
  uint64_t previous;
  uint64_t epoch;
  uint64_t start_lsn;
  uint32_t stream;
  uint32_t unused;
};
static_assert(sizeof(SegmentHeader) == 64);
static_assert(offsetof(SegmentHeader, crc32c) == 12);

struct ChunkHeader {
  uint32_t magic;
  uint32_t header_crc32c;  // of everything behind it, from the segment header's checksum on
  uint32_t bytes;          // of the payload
  uint32_t payload_crc32c;
  uint64_t lsn;
  uint64_t durable_lsn;
  uint64_t quorum_durable_lsn;
};
static_assert(sizeof(ChunkHeader) == 40);

// kSegmentHeaderBytes. *salt is what its chunks' checksums start from.
std::string encode_segment_header(const SegmentInfo& info, uint32_t* salt);
// kDataLoss: not a segment, or damaged; unsupported: written by a newer version. `path` is
// for the message.
StatusOr<SegmentInfo> decode_segment_header(Bytes bytes, const std::string& path, uint32_t* salt);

// Appends a chunk. `payload` is not empty and has at most kChunkPayloadMax bytes.
void encode_chunk(std::string* out, uint32_t salt, Lsn lsn, Lsn durable, Lsn quorum_durable,
                  Bytes payload);
[[nodiscard]] constexpr uint64_t chunk_bytes(uint64_t payload_bytes) noexcept {
  return (sizeof(ChunkHeader) + payload_bytes + 7) / 8 * 8;
}
// False unless a whole chunk header of the segment with this salt stands at the start of `bytes`.
[[nodiscard]] bool decode_chunk_header(Bytes bytes, uint32_t salt, ChunkHeader* out) noexcept;
[[nodiscard]] bool payload_is_whole(const ChunkHeader& header, Bytes payload) noexcept;

}  // namespace strata::logstore
