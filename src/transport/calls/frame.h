// The frame: what travels on a connection. Encoding and decoding, pure functions over bytes.
//
//   FR1  A frame is whole and verified (both checksums, version, flags, limit) or it is not handed
//        out.
//   FR2  A header is verified before its length is believed: memory taken for a frame is bounded by
//        the payload limit, which is small until the peer is authenticated.
//   FR3  After one refused frame the decoder refuses everything: there is no resynchronisation.
//   FR4  The payload checksum continues that of the header (crc32c of the first 40 bytes, then the
//        payload), so a payload cannot be taken for another frame's.
//   FR5  A request says how its caller lays out the method's messages; nothing else does. Version 1
//        had zeros there: a build of before is refused in the handshake, before anything is asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/bytes.h"
#include "base/status.h"

namespace strata::transport {

constexpr uint32_t kFrameMagic = 0x46525453;  // "STRF"
constexpr uint8_t kFrameVersion = 2;

// What a frame is. Exactly these values of `flags` exist in version 2.
enum class FrameKind : uint16_t { kRequest = 0, kReply = 1, kHeartbeat = 2, kHandshake = 3 };

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint8_t version = kFrameVersion;
  uint8_t status = 0;  // of a reply: base/errors.def's number; its payload is the message then
  uint16_t method = 0;
  uint16_t flags = 0;   // FrameKind
  uint16_t layout = 0;  // of a request: a digest (CallOptions::layout); else 0
  uint32_t payload_bytes = 0;
  uint64_t request_id = 0;  // a reply repeats its request's
  uint64_t epoch = 0;       // the sender's, of whatever the method is about
  uint32_t service_ns = 0;  // of a reply: from the request's arrival to the answer, or the maximum
  uint32_t reserved_2 = 0;
  uint32_t payload_crc32c = 0;
  uint32_t header_crc32c = 0;  // of the 44 bytes before it

  [[nodiscard]] FrameKind kind() const noexcept { return static_cast<FrameKind>(flags); }
};
constexpr uint32_t kFrameHeaderBytes = 48;
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);
static_assert(offsetof(FrameHeader, layout) == 10);
static_assert(offsetof(FrameHeader, payload_bytes) == 12);
static_assert(offsetof(FrameHeader, request_id) == 16);
static_assert(offsetof(FrameHeader, payload_crc32c) == 40);
static_assert(offsetof(FrameHeader, header_crc32c) == 44);
static_assert(std::is_trivially_copyable_v<FrameHeader>);
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

constexpr uint32_t kPayloadBytesMax = 64u << 20;  // no limit may be set above this

struct Frame {
  FrameHeader header;
  Bytes payload;
};

// Fills in length and checksums of `header` and writes its bytes to `out` (kFrameHeaderBytes). The
// payload follows it on the wire. Asserts payload.size() <= kPayloadBytesMax.
void encode_header(FrameHeader header, Bytes payload, char* out) noexcept;

// The two halves of decoding, for readers that place the payload themselves. kDataLoss: the bytes
// are no frame of ours; kResourceExhausted: longer than payload_bytes_max.
StatusOr<FrameHeader> decode_header(Bytes header, uint32_t payload_bytes_max);
Status verify_payload(const FrameHeader& header, Bytes payload);

// Cuts a stream of bytes, arriving in pieces of any size, into frames. Not thread-safe.
class FrameDecoder {
 public:
  explicit FrameDecoder(uint32_t payload_bytes_max) noexcept
      : payload_bytes_max_(payload_bytes_max) {}
  void set_payload_bytes_max(uint32_t bytes) noexcept { payload_bytes_max_ = bytes; }

  // Takes bytes from the front of *in. True: *frame is whole; its payload lies in *in's bytes or in
  // the decoder and is valid until the next call. False: *in is used up. Errors: as decode_header;
  // every later call fails, too (FR3).
  StatusOr<bool> next(Bytes* in, Frame* frame);

  // No frame has begun: the end of the stream here cuts nothing off.
  [[nodiscard]] bool between_frames() const noexcept { return partial_.empty() || partial_given_; }

 private:
  StatusOr<bool> next_of(Bytes* in, Frame* frame);
  StatusOr<bool> whole(Bytes payload, Frame* frame);
  uint32_t payload_bytes_max_;
  bool failed_ = false;
  bool header_known_ = false;
  bool partial_given_ = false;  // partial_ holds the frame handed out last
  FrameHeader header_;
  std::string partial_;  // what has arrived of a frame that was not whole in one piece
};

}  // namespace strata::transport
