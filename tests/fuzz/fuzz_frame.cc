// Frames: a stream of any bytes, in pieces of any size; frames among it get right checksums on
// request, so that the decoder goes on behind them.
#include "base/crc32c.h"
#include "fuzz.h"
#include "transport/calls/frame.h"

namespace strata::fuzz {
namespace {

constexpr uint32_t kLimit = 4096;

std::string make_stream(Input* input) {
  std::string stream;
  while (!input->empty() && stream.size() < 20000) {
    const uint8_t mode = input->u8();
    if ((mode & 1) != 0) {
      stream += input->take_some(mode >> 1);
      continue;
    }
    // A header of the input's bytes over a sealed frame, with a right checksum of its own or not.
    transport::FrameHeader header;
    header.method = input->u8();
    header.request_id = input->u8();
    const std::string payload = input->take_some(input->u16() % (kLimit + 16));
    std::string frame(transport::kFrameHeaderBytes, '\0');
    transport::encode_header(header, payload, frame.data());
    if ((mode & 2) != 0) {
      const size_t at = input->u8() % 44;
      const std::string patch = input->take_some(std::min<size_t>(44 - at, mode >> 4));
      std::memcpy(frame.data() + at, patch.data(), patch.size());
      if ((mode & 4) != 0) store_u32(frame.data() + 44, crc32c(frame.data(), 44));
    }
    stream += frame + payload;
  }
  return stream;
}

// What the decoder makes of the stream, cut as `piece` says: the frames, and whether it refused.
std::pair<std::string, bool> decode(const std::string& stream, size_t piece) {
  std::string frames;
  transport::FrameDecoder decoder(kLimit);
  for (size_t at = 0; at < stream.size(); at += piece) {
    const std::string part = stream.substr(at, piece);
    Bytes in = part;
    transport::Frame frame;
    for (;;) {
      const auto more = decoder.next(&in, &frame);
      if (!more.ok()) return {frames, true};
      if (!*more) break;
      FUZZ_CHECK(frame.payload.size() == frame.header.payload_bytes);  // FR1
      FUZZ_CHECK(frame.payload.size() <= kLimit);
      std::string again(transport::kFrameHeaderBytes, '\0');
      transport::encode_header(frame.header, frame.payload, again.data());
      FUZZ_CHECK(std::memcmp(again.data(), &frame.header, again.size()) == 0);
      frames.append(again).append(frame.payload);
    }
    FUZZ_CHECK(in.empty());
  }
  FUZZ_CHECK(stream.starts_with(frames));
  return {frames, false};
}

}  // namespace
}  // namespace strata::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  fuzz::Input input(data, size);
  const size_t piece = 1 + input.u8();
  const std::string stream = fuzz::make_stream(&input);
  // However it is cut, the same frames come out.
  FUZZ_CHECK(fuzz::decode(stream, piece) == fuzz::decode(stream, stream.size() + 1));
  return 0;
}
