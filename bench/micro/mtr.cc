// Mini-transactions: latch a page, change it, publish the redo (nobody waits for the disk here).
#include "minitxn/mtr.h"

#include "micro.h"
#include "page/record.h"
#include "space/testing/test_store.h"

namespace strata::micro {
namespace {

using testing::TestStore;

constexpr SpaceId kSpace{256};
constexpr uint16_t kRecords = 50;

PageId make_leaf(TestStore* store) {
  must(store->spaces()->create(kSpace));
  must(store->spaces()->ensure_room(kSpace, 1));
  Mtr mtr(store->pool(), store->log());
  must(mtr.begin_write());
  const auto number = store->spaces()->allocate(&mtr, kSpace);
  must(number.status());
  const PageId id{kSpace.value, *number};
  MtrPage* const page = *mtr.fix_new(id);
  mtr.init_tree(page,
                TreePageInit{.page_id = id, .index_id = IndexId{1}, .flags = kHighIsInfinity});
  const std::string value(kRecordHeaderBytes + 100, 'v');
  for (uint16_t slot = 0; slot < kRecords; ++slot) mtr.insert(page, slot, key_of(slot), value);
  mtr.publish();
  return id;
}

void change(benchmark::State& state) {
  TestStore store({.frames = 64, .log_segment_bytes = 64u << 20});
  const PageId id = make_leaf(&store);
  char bytes[24];
  Rng rng(1);
  for (auto _ : state) {
    Mtr mtr(store.pool(), store.log());
    must(mtr.begin_write());
    MtrPage* const page = *mtr.fix(id, LatchMode::kExclusive);
    for (int at = 0; at < 24; at += 8) store_u64(bytes + at, rng.next());
    mtr.patch(page, static_cast<uint16_t>(rng.below(kRecords)), 0, Bytes(bytes, sizeof bytes));
    mtr.publish();
  }
  state.SetLabel("limit: memcpy_256");
}
// A fixed number: the simulated disk keeps the whole log in memory.
BENCHMARK(change)->Name("mtr/change_one_record")->Iterations(1'000'000);

void read_only(benchmark::State& state) {
  TestStore store;
  const PageId id = make_leaf(&store);
  for (auto _ : state) {
    Mtr mtr(store.pool(), store.log());
    benchmark::DoNotOptimize((*mtr.fix(id, LatchMode::kShared))->page());
  }
  state.SetLabel("limit: atomic_add x4");
}
BENCHMARK(read_only)->Name("mtr/read_one_page");

}  // namespace
}  // namespace strata::micro
