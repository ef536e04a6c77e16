// Shared by the microbenchmarks. Every benchmark names the physical limit it stands beside: its
// label is "limit: <name of a benchmark in limits.cc> [x how often]".
#pragma once

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/assert.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/rng.h"
#include "base/status.h"
#include "page/page.h"

namespace strata::micro {

// A folder on the disk to be measured, emptied by whoever started the program.
inline std::string directory() {
  const char* const wanted = std::getenv("STRATA_MICRO_DIRECTORY");
  return wanted == nullptr ? "." : wanted;
}

struct alignas(4096) PageBytes {
  char bytes[kPageBytes] = {};
};

inline std::string key_of(uint64_t n) {
  std::string key(8, '\0');
  store_be64(key.data(), n);
  return key;
}

inline void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::abort();
}

}  // namespace strata::micro
