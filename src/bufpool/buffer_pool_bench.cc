// What a fix costs: hits on hot pages (one thread, several threads, one page for all),
// note_modified on a page that is dirty already, and misses over a source in memory. Prints
// nanoseconds per operation.
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "bufpool/buffer_pool.h"
#include "page/page.h"

namespace strata {
namespace {

constexpr uint32_t kSpace = 300;

class EmptySource final : public PageSource {
 public:
  Status read(PageId id, Llsn, char* page) override {
    std::memset(page, 0, kPageBytes);
    header_of(page)->space = id.space;
    header_of(page)->number = id.number;
    header_of(page)->llsn = 1;
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

uint64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

void print(const char* name, uint64_t ns, uint64_t operations) {
  std::printf("%-30s %8.1f ns\n", name, static_cast<double>(ns) / static_cast<double>(operations));
}

void run(const char* name, BufferPool* pool, int threads, uint32_t pages, LatchMode mode,
         uint64_t operations) {
  std::atomic<uint64_t> cpu_ns{0};
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([=, &cpu_ns] {
      Rng rng(static_cast<uint64_t>(t) + 1);
      const uint64_t before_ns = thread_cpu_ns();
      for (uint64_t i = 0; i < operations; ++i) {
        auto guard = pool->fix(PageId{kSpace, static_cast<uint32_t>(rng.next() % pages)}, mode);
        if (!guard.ok()) std::abort();
      }
      cpu_ns += thread_cpu_ns() - before_ns;
    });
  }
  for (std::thread& t : running) t.join();
  print(name, cpu_ns, operations * static_cast<uint64_t>(threads));
}

int bench() {
  EmptySource source;
  BufferPoolOptions options;
  options.bytes = 64u << 20;
  auto made = BufferPool::create(options, &source, no_page_lock(), nullptr);
  if (!made.ok()) return 1;
  BufferPool* pool = made->get();
  run("warm up (misses)", pool, 1, 1000, LatchMode::kShared, 20000);
  run("hit, 16 pages, shared", pool, 1, 16, LatchMode::kShared, 20'000'000);
  run("hit, 16 pages, exclusive", pool, 1, 16, LatchMode::kExclusive, 20'000'000);
  run("hit, 1000 pages, shared", pool, 1, 1000, LatchMode::kShared, 20'000'000);
  run("hit, 1000 pages, 2 threads", pool, 2, 1000, LatchMode::kShared, 10'000'000);
  run("hit, one page, 2 threads", pool, 2, 1, LatchMode::kShared, 10'000'000);
  run("miss, clean pool", pool, 1, 1'000'000, LatchMode::kShared, 300'000);
  auto guard = pool->fix(PageId{kSpace, 1}, LatchMode::kExclusive);
  const uint64_t before_ns = thread_cpu_ns();
  constexpr uint64_t kChanges = 20'000'000;
  for (uint64_t i = 1; i <= kChanges; ++i)
    pool->note_modified(*guard, Lsn{i * 64}, Lsn{i * 64 + 64}, false);
  print("note_modified, dirty page", thread_cpu_ns() - before_ns, kChanges);
  return 0;
}

}  // namespace
}  // namespace strata

int main() { return strata::bench(); }
