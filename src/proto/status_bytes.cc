#include "proto/status_bytes.h"

#include <algorithm>

namespace strata::proto {

void append_status(std::string* out, const Status& status) {
  append_u8(out, wire_number(status));
  const absl::string_view message = status.message();
  append_bytes32(out, Bytes(message.data(), std::min(message.size(), kMessageBytesMax)));
}

Status read_status(ByteReader* reader, bool* well_formed) {
  const uint8_t code = reader->u8();
  const Bytes message = reader->bytes32();
  if (message.size() > kMessageBytesMax || (code == 0 && !message.empty())) {
    *well_formed = false;
    return ok_status();
  }
  return code == 0 ? ok_status() : status_from_wire(code, message);
}

}  // namespace strata::proto
