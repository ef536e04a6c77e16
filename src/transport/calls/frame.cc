#include "transport/calls/frame.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/crc32c.h"

namespace strata::transport {
namespace {

constexpr size_t kKeptBytesMax = 1u << 20;  // of a decoder's buffer between frames
constexpr size_t kHeaderCrcOffset = offsetof(FrameHeader, header_crc32c);
constexpr size_t kPayloadCrcOffset = offsetof(FrameHeader, payload_crc32c);

uint32_t payload_crc(const char* header, Bytes payload) noexcept {  // FR4
  return crc32c(payload.data(), payload.size(), crc32c(header, kPayloadCrcOffset));
}

}  // namespace

void encode_header(FrameHeader header, Bytes payload, char* out) noexcept {
  STRATA_ASSERT(payload.size() <= kPayloadBytesMax);
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  std::memcpy(out, &header, sizeof header);
  store_u32(out + kPayloadCrcOffset, payload_crc(out, payload));
  store_u32(out + kHeaderCrcOffset, crc32c(out, kHeaderCrcOffset));
}

StatusOr<FrameHeader> decode_header(Bytes bytes, uint32_t payload_bytes_max) {
  STRATA_ASSERT(bytes.size() == kFrameHeaderBytes);
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kFrameMagic) return error_corruption("not a frame");
  if (header.header_crc32c != crc32c(bytes.data(), kHeaderCrcOffset))
    return error_corruption("frame header checksum");
  // From here on the header is what its sender wrote.
  if (header.version != kFrameVersion)
    return error_corruption("a frame of version " + std::to_string(header.version) +
                            ", and this build has version " + std::to_string(kFrameVersion) +
                            "; to do: bring all nodes to the same version");
  if (header.flags > static_cast<uint16_t>(FrameKind::kHandshake) || header.reserved_2 != 0)
    return error_corruption("unknown frame flags");
  if (header.layout != 0 && header.kind() != FrameKind::kRequest)  // FR5
    return error_corruption("frame with an impossible layout");
  if (header.status != 0 && header.kind() != FrameKind::kReply)
    return error_corruption("frame with an impossible status");
  if (header.payload_bytes > payload_bytes_max) return error_no_space("frame above the limit");
  return header;
}

Status verify_payload(const FrameHeader& header, Bytes payload) {
  const char* const bytes = reinterpret_cast<const char*>(&header);
  if (payload_crc(bytes, payload) != header.payload_crc32c)
    return error_corruption("frame payload checksum");
  return ok_status();
}

StatusOr<bool> FrameDecoder::next(Bytes* in, Frame* frame) {
  if (failed_) return error_corruption("the stream is broken");
  StatusOr<bool> result = next_of(in, frame);
  failed_ = !result.ok();
  return result;
}

StatusOr<bool> FrameDecoder::next_of(Bytes* in, Frame* frame) {
  if (partial_given_) {
    if (partial_.capacity() > kKeptBytesMax) partial_ = std::string();
    partial_.clear();
    partial_given_ = false;
  }
  // The usual case: the frame lies whole in what arrived.
  if (partial_.empty() && in->size() >= kFrameHeaderBytes) {
    STRATA_ASSIGN_OR_RETURN(header_,
                            decode_header(in->substr(0, kFrameHeaderBytes), payload_bytes_max_));
    const size_t frame_bytes = kFrameHeaderBytes + size_t{header_.payload_bytes};
    if (in->size() >= frame_bytes) {
      const Bytes payload = in->substr(kFrameHeaderBytes, header_.payload_bytes);
      in->remove_prefix(frame_bytes);
      return whole(payload, frame);
    }
  }
  for (;;) {
    const size_t wanted =
        header_known_ ? kFrameHeaderBytes + size_t{header_.payload_bytes} : kFrameHeaderBytes;
    const size_t taken = std::min(wanted - partial_.size(), in->size());
    partial_.append(in->data(), taken);
    in->remove_prefix(taken);
    if (partial_.size() < wanted) return false;
    if (header_known_) break;
    STRATA_ASSIGN_OR_RETURN(header_, decode_header(partial_, payload_bytes_max_));
    header_known_ = true;
    partial_.reserve(kFrameHeaderBytes + size_t{header_.payload_bytes});  // FR2
  }
  header_known_ = false;
  partial_given_ = true;
  return whole(Bytes(partial_).substr(kFrameHeaderBytes), frame);
}

StatusOr<bool> FrameDecoder::whole(Bytes payload, Frame* frame) {
  STRATA_RETURN_IF_ERROR(verify_payload(header_, payload));
  *frame = Frame{header_, payload};
  return true;
}

}  // namespace strata::transport
