// Searching and changing one tree page in memory.
#include <vector>

#include "micro.h"
#include "micro_page.h"
#include "redo/redo.h"

namespace strata::micro {
namespace {

void search(benchmark::State& state) {
  Rng rng(1);
  const FullPage full(&rng);
  const TreePageView view(full.page());
  std::vector<std::string> keys;
  for (int i = 0; i < 1024; ++i) keys.push_back(key_of(kLowKey + rng.below(kKeys)));
  size_t i = 0;
  uint64_t sum = 0;
  for (auto _ : state) {
    bool equal = false;
    sum += view.lower_bound(keys[i++ % keys.size()], &equal);
  }
  benchmark::DoNotOptimize(sum);
  state.SetLabel("limit: load_16k x8");
}
BENCHMARK(search)->Name("page/search");

void fill(benchmark::State& state) {
  Rng rng(1);
  uint64_t inserted = 0;
  for (auto _ : state) {
    const FullPage full(&rng);
    inserted += full.sections().size();
  }
  state.SetItemsProcessed(static_cast<int64_t>(inserted));
  state.SetLabel("limit: memcpy_256");
}
BENCHMARK(fill)->Name("page/search_and_insert");

void compacting(benchmark::State& state) {
  Rng rng(1);
  FullPage full(&rng);
  for (auto _ : state) compact(full.mutable_page());
  state.SetLabel("limit: memcpy_16k");
}
BENCHMARK(compacting)->Name("page/compact");

void sealing(benchmark::State& state) {
  Rng rng(1);
  FullPage full(&rng);
  for (auto _ : state) seal_page(full.mutable_page());
  state.SetLabel("limit: crc32c_16k");
}
BENCHMARK(sealing)->Name("page/seal");

void validating(benchmark::State& state) {
  Rng rng(1);
  const FullPage full(&rng);
  for (auto _ : state) must(validate_tree_page(full.page()));
  state.SetLabel("limit: memcpy_16k");
}
BENCHMARK(validating)->Name("page/validate");

}  // namespace
}  // namespace strata::micro
