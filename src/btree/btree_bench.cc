// Figures of one tree in memory: sequential and random inserts, point reads, scans. Prints one line
// each.
//   btree_bench [records]
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "btree/testing/tree_driver.h"

namespace strata {
namespace {

using testing::be_key;
using testing::record_value;
using testing::TestStore;
using testing::TreeDriver;

uint64_t cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

void report(const char* what, uint64_t count, uint64_t started_us) {
  const double us = static_cast<double>(cpu_us() - started_us);
  std::printf("%-28s %8.0f thousand/s  %6.2f us each\n", what,
              static_cast<double>(count) * 1e3 / us, us / static_cast<double>(count));
}

void run(uint64_t records) {
  TestStore store({.frames = 32768, .writers = 1, .log_segment_bytes = 64u << 20});
  const SpaceId space{256};
  if (!store.spaces()->create(space).ok()) std::abort();
  TreeDriver tree(&store, TreeDriver::create(&store, space, 1));
  TreeDriver random(&store, TreeDriver::create(&store, space, 2));
  const std::string value = record_value(std::string(75, 'v'));

  uint64_t started = cpu_us();
  for (uint64_t i = 0; i < records; ++i)
    if (!tree.put(be_key(i), value).ok()) std::abort();
  report("insert, ascending", records, started);
  const TreeCheck check = tree.check();
  std::printf("  %llu leaves, %.1f %% full, height %u\n",
              static_cast<unsigned long long>(check.leaf_pages),
              100.0 * static_cast<double>(records * (value.size() + 12)) /
                  static_cast<double>(check.leaf_pages * (kPageBytes - kPageHeaderBytes)),
              check.height);

  started = cpu_us();
  for (uint64_t i = 0; i < records; ++i)
    if (!random.put(be_key(mix64(i)), value).ok()) std::abort();
  report("insert, random", records, started);

  started = cpu_us();
  for (uint64_t i = 0; i < records; ++i) {
    Mtr mtr(store.pool(), store.log());
    TreeCursor cursor(random.context(), random.tree(), &mtr);
    const uint64_t n = mix64(mix64(i) % records);
    char key[8];
    store_be64(key, n);
    if (!cursor.seek(Bytes(key, 8), LatchMode::kShared).ok() || !cursor.equals(Bytes(key, 8)))
      std::abort();
  }
  report("point read, random", records, started);

  started = cpu_us();
  Mtr mtr(store.pool(), store.log());
  TreeCursor cursor(random.context(), random.tree(), &mtr);
  uint64_t seen = 0;
  uint64_t bytes = 0;
  if (!cursor.seek({}, LatchMode::kShared).ok() || !cursor.settle().ok()) std::abort();
  for (; !cursor.at_end(); ++seen) {
    bytes += cursor.value().size();
    if (!cursor.next().ok()) std::abort();
  }
  report(bytes == 0 ? "?" : "scan, record by record", seen, started);
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  strata::run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300000);
  return 0;
}
