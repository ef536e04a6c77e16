// What it costs to get a page: hits, and misses over a source in memory and over the disk.
#include <cstring>
#include <vector>

#include "bufpool/buffer_pool.h"
#include "micro.h"
#include "pagefile/local_page_source.h"

namespace strata::micro {
namespace {

constexpr uint32_t kSpace = 300;

void make_blank(PageId id, char* page) {
  std::memset(page, 0, kPageBytes);
  header_of(page)->format = kPageFormat;
  header_of(page)->type = static_cast<uint8_t>(PageType::kStatus);
  header_of(page)->space = id.space;
  header_of(page)->number = id.number;
  header_of(page)->llsn = 1;
}

class BlankSource final : public PageSource {
 public:
  Status read(PageId id, Llsn, char* page) override {
    make_blank(id, page);
    return ok_status();
  }
  Status write(PageId, const char*) override { return ok_status(); }
  Status sync() override { return ok_status(); }
  Status create_space(SpaceId) override { return ok_status(); }
  Status delete_space(SpaceId) override { return ok_status(); }
  StatusOr<bool> space_exists(SpaceId) override { return true; }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return std::vector<SpaceId>(); }
  Status grow_space(SpaceId, uint32_t) override { return ok_status(); }
  [[nodiscard]] bool needs_page_images() const override { return false; }
};

std::unique_ptr<BufferPool> make_pool(PageSource* source) {
  BufferPoolOptions options;
  options.bytes = 64u << 20;
  auto made = BufferPool::create(options, source, no_page_lock(), nullptr);
  must(made.status());
  return std::move(*made);
}

BlankSource blank_source;
std::unique_ptr<BufferPool> shared_pool;

void fix_pages(benchmark::State& state, LatchMode mode) {
  if (state.thread_index() == 0) {
    shared_pool = make_pool(&blank_source);
    for (uint32_t page = 0; page < 1000; ++page)
      must(shared_pool->fix({kSpace, page}, LatchMode::kShared).status());
  }
  const auto pages = static_cast<uint32_t>(state.range(0));
  Rng rng(static_cast<uint64_t>(state.thread_index()) + 1);
  for (auto _ : state) {
    const auto number = static_cast<uint32_t>(rng.next() % pages);
    auto guard = shared_pool->fix(PageId{kSpace, number}, mode);
    STRATA_ASSERT(guard.ok());
  }
  state.SetLabel("limit: atomic_add x4");
  if (state.thread_index() == 0) shared_pool.reset();
}
void hit_shared(benchmark::State& state) { fix_pages(state, LatchMode::kShared); }
void hit_exclusive(benchmark::State& state) { fix_pages(state, LatchMode::kExclusive); }
BENCHMARK(hit_shared)->Name("pool/hit_shared")->Arg(16)->Arg(1000);
BENCHMARK(hit_exclusive)->Name("pool/hit_exclusive")->Arg(16);
BENCHMARK(hit_shared)->Name("pool/hit_2_threads")->Arg(1)->Arg(1000)->Threads(2)->UseRealTime();

void miss_in_memory(benchmark::State& state) {
  const auto pool = make_pool(&blank_source);
  for (uint32_t number = 0; number < 8192; ++number)  // every frame's memory is there
    STRATA_ASSERT(pool->fix({kSpace, number}, LatchMode::kShared).ok());
  Rng rng(1);
  for (auto _ : state) {
    const auto number = static_cast<uint32_t>(rng.below(1'000'000));
    STRATA_ASSERT(pool->fix({kSpace, number}, LatchMode::kShared).ok());
  }
  state.SetLabel("limit: memcpy_16k");
}
BENCHMARK(miss_in_memory)->Name("pool/miss_from_memory");

void miss_on_disk(benchmark::State& state) {
  constexpr uint32_t kPages = 8192;
  const auto files = make_posix_file_system();
  auto source = open_local_page_source(files.get(), {.directory = directory()});
  must(source.status());
  must((*source)->create_space(SpaceId{kSpace}));
  must((*source)->grow_space(SpaceId{kSpace}, kPages));
  PageBytes page;
  for (uint32_t number = 0; number < kPages; ++number) {
    make_blank({kSpace, number}, page.bytes);
    seal_page(page.bytes);
    must((*source)->write({kSpace, number}, page.bytes));
  }
  must((*source)->sync());
  {
    const auto pool = make_pool(source->get());
    Rng rng(1);
    for (auto _ : state) {
      const auto number = static_cast<uint32_t>(rng.below(kPages));
      must(pool->fix({kSpace, number}, LatchMode::kShared).status());
    }
    // Half of the file fits: a hit costs nothing beside a miss.
    state.SetItemsProcessed(static_cast<int64_t>(pool->counters().misses.load()));
  }
  must((*source)->delete_space(SpaceId{kSpace}));
  state.SetLabel("limit: disk_read_16k");
}
BENCHMARK(miss_on_disk)->Name("pool/miss_from_disk")->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace strata::micro
