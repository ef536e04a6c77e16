// One tree in memory, about 30 MB: descents (three levels), inserts, scans.
#include "btree/btree.h"
#include "btree/testing/tree_driver.h"
#include "micro.h"

namespace strata::micro {
namespace {

using testing::record_value;
using testing::TestStore;
using testing::TreeDriver;

constexpr uint64_t kRecords = 200'000;

struct Forest {
  Forest() : store({.frames = 32768, .writers = 1, .log_segment_bytes = 64u << 20}) {
    must(store.spaces()->create(SpaceId{256}));
    tree = std::make_unique<TreeDriver>(&store, TreeDriver::create(&store, SpaceId{256}, 1));
  }
  TestStore store;
  std::unique_ptr<TreeDriver> tree;
};

const std::string& value() {
  static const std::string bytes = record_value(std::string(75, 'v'));
  return bytes;
}

void insert(benchmark::State& state, bool random) {
  Forest forest;
  uint64_t n = 0;
  for (auto _ : state) {
    must(forest.tree->put(key_of(random ? mix64(n) : n), value()));
    ++n;
  }
  state.SetLabel(random ? "limit: load_32m x3" : "limit: memcpy_256");
}
void insert_ascending(benchmark::State& state) { insert(state, false); }
void insert_random(benchmark::State& state) { insert(state, true); }
BENCHMARK(insert_ascending)->Name("tree/insert_ascending")->Iterations(kRecords);
BENCHMARK(insert_random)->Name("tree/insert_random")->Iterations(kRecords);

// Filled once, in random order, for the benchmarks that only read.
Forest* filled() {
  static const auto forest = [] {
    auto made = std::make_unique<Forest>();
    for (uint64_t n = 0; n < kRecords; ++n) must(made->tree->put(key_of(mix64(n)), value()));
    return made;
  }();
  return forest.get();
}

void descend(benchmark::State& state) {
  Forest* const forest = filled();
  Rng rng(1);
  for (auto _ : state) {
    Mtr mtr(forest->store.pool(), forest->store.log());
    TreeCursor cursor(forest->tree->context(), forest->tree->tree(), &mtr);
    const std::string key = key_of(mix64(rng.below(kRecords)));
    must(cursor.seek(key, LatchMode::kShared));
    STRATA_ASSERT(cursor.equals(key));
  }
  state.SetLabel("limit: load_32m x3");
}
BENCHMARK(descend)->Name("tree/descend");

void scan(benchmark::State& state) {
  Forest* const forest = filled();
  uint64_t bytes = 0;
  int64_t seen = 0;
  for (auto _ : state) {
    Mtr mtr(forest->store.pool(), forest->store.log());
    TreeCursor cursor(forest->tree->context(), forest->tree->tree(), &mtr);
    must(cursor.seek({}, LatchMode::kShared));
    must(cursor.settle());
    for (; !cursor.at_end(); ++seen) {
      bytes += static_cast<uint8_t>(cursor.value()[0]);
      must(cursor.next());
    }
  }
  benchmark::DoNotOptimize(bytes);
  state.SetItemsProcessed(seen);
  state.SetLabel("limit: memcpy_256");
}
BENCHMARK(scan)->Name("tree/scan_record");

}  // namespace
}  // namespace strata::micro
