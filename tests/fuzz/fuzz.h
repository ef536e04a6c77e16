// What every fuzz target needs: cutting an input into pieces. Each target defines
// LLVMFuzzerTestOneInput; libFuzzer calls it, or replay_main.cc over the files of a corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "page/page.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace strata::fuzz {

// A broken promise ends the run, as a crash does.
#define FUZZ_CHECK(condition)                                                      \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  uint8_t u8() { return static_cast<uint8_t>(take(1)[0]); }
  uint16_t u16() { return load_u16(take(2).data()); }
  [[nodiscard]] Bytes rest() const { return rest_; }
  [[nodiscard]] bool empty() const { return rest_.empty(); }
  // Up to `count` bytes, padded with zeroes; a piece of its own, so that reading past it is seen.
  std::string take(size_t count) {
    std::string out(rest_.substr(0, count));
    rest_.remove_prefix(out.size());
    out.resize(count, '\0');
    return out;
  }
  std::string take_some(size_t count) {
    std::string out(rest_.substr(0, count));
    rest_.remove_prefix(out.size());
    return out;
  }

 private:
  Bytes rest_;
};

// A page whose first bytes and last bytes are the input's: what lies between is zero, which keeps
// inputs small.
inline std::unique_ptr<char[]> page_from(Input* input) {
  auto page = std::make_unique<char[]>(kPageBytes);
  std::memset(page.get(), 0, kPageBytes);
  const size_t front = input->u16() % (kPageBytes + 1);
  const std::string head = input->take_some(front);
  std::memcpy(page.get(), head.data(), head.size());
  const std::string tail = input->take_some(kPageBytes - head.size());
  std::memcpy(page.get() + kPageBytes - tail.size(), tail.data(), tail.size());
  return page;
}

}  // namespace strata::fuzz
