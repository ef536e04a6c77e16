#include "proto/status_bytes.h"

#include <algorithm>

namespace strata::proto {

void append_status(std::string* out, const Status& status) {
  append_u8(out, static_cast<uint8_t>(status.code()));
  const absl::string_view message = status.message();
  append_bytes32(out, Bytes(message.data(), std::min(message.size(), kMessageBytesMax)));
}

Status read_status(ByteReader* reader, bool* well_formed) {
  const uint8_t code = reader->u8();
  const Bytes message = reader->bytes32();
  if (code > static_cast<uint8_t>(StatusCode::kUnauthenticated) ||
      message.size() > kMessageBytesMax || (code == 0 && !message.empty())) {
    *well_formed = false;
    return ok_status();
  }
  return Status(static_cast<StatusCode>(code), absl::string_view(message.data(), message.size()));
}

}  // namespace strata::proto
