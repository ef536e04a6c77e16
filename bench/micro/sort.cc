// Sorting a million pairs (12 bytes of key, 8 of value): in memory, and through runs on the disk.
#include "io/file_system.h"
#include "micro.h"
#include "sort/sorter.h"

namespace strata::micro {
namespace {

constexpr uint64_t kPairs = 1'000'000;

void sort_pairs(benchmark::State& state, bool random, size_t memory_bytes) {
  const auto files = make_posix_file_system();
  uint64_t bytes = 0;
  for (auto _ : state) {
    Sorter sorter(files.get(), directory() + "/sort-", memory_bytes);
    char key[12] = {};
    char value[8] = {};
    for (uint64_t n = 0; n < kPairs; ++n) {
      store_be64(key, random ? mix64(n) : n);
      store_u64(value, n);
      must(sorter.add(Bytes(key, sizeof key), Bytes(value, sizeof value)));
    }
    must(sorter.finish());
    Bytes found_key;
    Bytes found_value;
    for (uint64_t n = 0; n < kPairs; ++n) {
      const auto found = sorter.next(&found_key, &found_value);
      must(found.status());
      STRATA_ASSERT(*found);
      bytes += static_cast<uint8_t>(found_value[0]);
    }
  }
  benchmark::DoNotOptimize(bytes);
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kPairs));
  state.SetLabel(random ? "limit: load_32m x3" : "limit: memcpy_256");
}
void sort_random(benchmark::State& state) { sort_pairs(state, true, 256u << 20); }
void sort_ascending(benchmark::State& state) { sort_pairs(state, false, 256u << 20); }
void sort_runs(benchmark::State& state) { sort_pairs(state, true, 4u << 20); }
BENCHMARK(sort_random)->Name("sort/pair_random");
BENCHMARK(sort_ascending)->Name("sort/pair_ascending");
BENCHMARK(sort_runs)->Name("sort/pair_through_runs");

}  // namespace
}  // namespace strata::micro
