#include <algorithm>

#include "transport/regions/fabric.h"

namespace strata::transport {

void append_place(std::string* out, const FabricPlace& place) {
  append_bytes32(out, place.address);
  append_u64(out, place.base);
  append_u64(out, place.key);
  out->append(place.token.data(), place.token.size());
}

FabricPlace read_place(ByteReader* reader) {
  FabricPlace place;
  place.address = std::string(reader->bytes32());
  place.base = reader->u64();
  place.key = reader->u64();
  const Bytes token = reader->bytes(place.token.size());
  std::copy(token.begin(), token.end(), place.token.begin());
  return place;
}

}  // namespace strata::transport
