// The dictionary's table definitions: what decodes, encodes to the same again.
#include "dict/table_spec.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto spec = decode_table_spec(bytes);
  if (!spec.ok()) return 0;
  const std::string again = encode_table_spec(*spec);
  const auto second = decode_table_spec(again);
  FUZZ_CHECK(second.ok() && encode_table_spec(*second) == again);
  return 0;
}
