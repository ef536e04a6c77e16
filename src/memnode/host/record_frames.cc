#include "memnode/host/record_frames.h"

#include "base/assert.h"
#include "base/crc32c.h"

namespace strata::memnode {

namespace {

constexpr uint32_t kMagic = 0x43455246;  // "FREC"
constexpr size_t kHeaderBytes = 24;      // magic u32, bytes u32, at u64, crc32c u32, zero u32
constexpr size_t kCrcOffset = 16;

constexpr size_t padded(size_t bytes) noexcept {
  return (bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

// Of everything but itself; the padding is part of it.
uint32_t crc_of(Bytes frame) {
  const uint32_t head = crc32c(frame.data(), kCrcOffset);
  return crc32c(frame.data() + kCrcOffset + 4, frame.size() - kCrcOffset - 4, head);
}

// The record in a whole frame at the beginning of `bytes`; nothing: there is none.
std::optional<Bytes> record_in(Bytes bytes, Lsn at, size_t* frame_bytes) {
  ByteReader in(bytes);
  if (in.u32() != kMagic) return std::nullopt;
  const size_t length = in.u32();
  if (in.u64() != at.value || length > kRecordBytesMax) return std::nullopt;
  const uint32_t crc = in.u32();
  *frame_bytes = kHeaderBytes + padded(length);
  if (*frame_bytes > bytes.size() || crc != crc_of(bytes.substr(0, *frame_bytes)))
    return std::nullopt;
  return bytes.substr(kHeaderBytes, length);
}

}  // namespace

std::string frame_of(Lsn at, Bytes record) {
  STRATA_ASSERT(at.value % kFrameAlignment == 0);
  STRATA_ASSERT(record.size() <= kRecordBytesMax);
  std::string frame;
  append_u32(&frame, kMagic);
  append_u32(&frame, static_cast<uint32_t>(record.size()));
  append_u64(&frame, at.value);
  append_u32(&frame, 0);
  append_u32(&frame, 0);
  frame += record;
  frame.resize(kHeaderBytes + padded(record.size()), '\0');
  store_u32(frame.data() + kCrcOffset, crc_of(frame));
  return frame;
}

StatusOr<LastRecord> last_record(Bytes log, Lsn begin) {
  LastRecord last{{}, begin, begin};
  bool whole_so_far = true;
  for (size_t at = 0; at < log.size();) {
    const Lsn lsn{begin.value + at};
    size_t bytes = 0;
    const std::optional<Bytes> record = record_in(log.substr(at), lsn, &bytes);
    if (record.has_value() && !whole_so_far)
      return error_corruption("the authority stream is damaged between positions " +
                              std::to_string(last.end.value) + " and " + std::to_string(lsn.value));
    whole_so_far = record.has_value();
    if (whole_so_far) last = {std::string(*record), lsn, Lsn{lsn.value + bytes}};
    at += whole_so_far ? bytes : kFrameAlignment;
  }
  return last;
}

}  // namespace strata::memnode
