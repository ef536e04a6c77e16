// Payloads of rows and index entries: references to values outside, and inline bytes.
#include "fuzz.h"
#include "row/row_store.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  std::vector<OverflowRef> refs;
  Bytes inline_bytes;
  if (!decode_payload(bytes, &refs, &inline_bytes).ok()) return 0;
  FUZZ_CHECK(encode_payload(refs, inline_bytes) == bytes);
  return 0;
}
