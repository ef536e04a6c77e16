#include "storenode/logstore/internal/segment_format.h"

#include <cstring>

#include "base/assert.h"
#include "base/crc32c.h"

namespace strata::logstore {
namespace {

constexpr uint64_t kSegmentMagic = 0x3147455352545353ull;  // "SSTRSEG1"
constexpr uint32_t kChunkMagic = 0x4b4e4843u;              // "CHNK"

// Every later format keeps the places of magic, format and crc32c and what crc32c covers, so that
// an older program can tell "newer" from "damaged".
uint32_t header_crc(const SegmentHeader& h) noexcept {
  constexpr size_t kBegin = offsetof(SegmentHeader, cluster_id);
  return crc32c(reinterpret_cast<const char*>(&h) + kBegin, sizeof(h) - kBegin,
                crc32c(&h.format, sizeof(h.format)));
}

uint32_t chunk_header_crc(const ChunkHeader& h, uint32_t salt) noexcept {
  constexpr size_t kBegin = offsetof(ChunkHeader, bytes);
  return crc32c(reinterpret_cast<const char*>(&h) + kBegin, sizeof(h) - kBegin, salt);
}

}  // namespace

std::string encode_segment_header(const SegmentInfo& info, uint32_t* salt) {
  SegmentHeader h{};
  h.magic = kSegmentMagic;
  h.format = kSegmentFormat;
  h.cluster_id = info.cluster_id;
  h.sequence = info.sequence;
  h.previous = info.previous;
  h.epoch = info.epoch.value;
  h.start_lsn = info.start.value;
  h.stream = info.stream.value;
  h.crc32c = *salt = header_crc(h);
  std::string out(kSegmentHeaderBytes, '\0');
  std::memcpy(out.data(), &h, sizeof(h));
  return out;
}

StatusOr<SegmentInfo> decode_segment_header(Bytes bytes, const std::string& path, uint32_t* salt) {
  SegmentHeader h{};
  if (bytes.size() < sizeof(h))
    return error_corruption("log segment " + path + " is cut off inside its header");
  std::memcpy(&h, bytes.data(), sizeof(h));
  if (h.magic != kSegmentMagic)
    return error_corruption("log segment " + path + " is not a log segment (byte 0)");
  if (h.crc32c != header_crc(h))
    return error_corruption("log segment " + path + ": the header is damaged (byte 0)");
  if (h.format > kSegmentFormat)
    return error_unsupported("log segment " + path + " was written by a newer version (format " +
                             std::to_string(h.format) +
                             "); nothing was changed; to do: start that version");
  *salt = h.crc32c;
  SegmentInfo info;
  info.cluster_id = h.cluster_id;
  info.stream = StreamId{h.stream};
  info.sequence = h.sequence;
  info.previous = h.previous;
  info.epoch = Epoch{h.epoch};
  info.start = Lsn{h.start_lsn};
  return info;
}

void encode_chunk(std::string* out, uint32_t salt, Lsn lsn, Lsn durable, Lsn quorum_durable,
                  Bytes payload) {
  STRATA_ASSERT(!payload.empty());
  STRATA_ASSERT(payload.size() <= kChunkPayloadMax);
  ChunkHeader h{};
  h.magic = kChunkMagic;
  h.bytes = static_cast<uint32_t>(payload.size());
  h.payload_crc32c = crc32c(payload.data(), payload.size());
  h.lsn = lsn.value;
  h.durable_lsn = durable.value;
  h.quorum_durable_lsn = quorum_durable.value;
  h.header_crc32c = chunk_header_crc(h, salt);
  out->append(reinterpret_cast<const char*>(&h), sizeof(h));
  out->append(payload.data(), payload.size());
  out->append(chunk_bytes(payload.size()) - sizeof(h) - payload.size(), '\0');
}

bool decode_chunk_header(Bytes bytes, uint32_t salt, ChunkHeader* out) noexcept {
  if (bytes.size() < sizeof(*out) || load_u32(bytes.data()) != kChunkMagic) return false;
  std::memcpy(out, bytes.data(), sizeof(*out));
  return out->bytes != 0 && out->bytes <= kChunkPayloadMax &&
         out->header_crc32c == chunk_header_crc(*out, salt) &&
         out->lsn + out->bytes > out->lsn;  // no wrap: a right checksum proves no sense
}

bool payload_is_whole(const ChunkHeader& header, Bytes payload) noexcept {
  return payload.size() == header.bytes &&
         crc32c(payload.data(), payload.size()) == header.payload_crc32c;
}

}  // namespace strata::logstore
