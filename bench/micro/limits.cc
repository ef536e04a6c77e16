// What the machine allows: nothing that copies a page, misses the caches or waits for the disk is
// quicker than this.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/crc32c.h"
#include "base/latch.h"
#include "micro.h"

namespace strata::micro {
namespace {

void copy_page(benchmark::State& state) {
  PageBytes from;
  PageBytes to;
  benchmark::DoNotOptimize(from.bytes);
  for (auto _ : state) {
    std::memcpy(to.bytes, from.bytes, kPageBytes);
    benchmark::DoNotOptimize(to.bytes);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(copy_page)->Name("limit/memcpy_16k");

void copy_group(benchmark::State& state) {
  char from[256] = {};
  char to[256];
  for (auto _ : state) {
    benchmark::DoNotOptimize(from);
    std::memcpy(to, from, sizeof from);
    benchmark::DoNotOptimize(to);
  }
}
BENCHMARK(copy_group)->Name("limit/memcpy_256");

void checksum_page(benchmark::State& state) {
  PageBytes page;
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(page.bytes, kPageBytes));
}
BENCHMARK(checksum_page)->Name("limit/crc32c_16k");

void atomic_add(benchmark::State& state) {
  static std::atomic<uint64_t> shared{0};
  for (auto _ : state) shared.fetch_add(1, std::memory_order_acq_rel);
}
BENCHMARK(atomic_add)->Name("limit/atomic_add");

// A chain of dependent loads in random order through so many bytes: the price of a load that hits
// the first cache, the last one, or none.
void load(benchmark::State& state, size_t bytes) {
  constexpr size_t kLine = 64;
  struct alignas(kLine) Node {
    uint32_t next;
  };
  const size_t lines = bytes / kLine;
  std::vector<Node> nodes(lines);
  std::vector<uint32_t> order(lines);
  std::iota(order.begin(), order.end(), 0);
  Rng rng(1);
  for (size_t i = lines - 1; i > 0; --i) std::swap(order[i], order[rng.below(i + 1)]);
  for (size_t i = 0; i < lines; ++i) nodes[order[i]].next = order[(i + 1) % lines];
  uint32_t at = 0;
  for (auto _ : state) at = nodes[at].next;
  benchmark::DoNotOptimize(at);
}
void load_near(benchmark::State& state) { load(state, 16u << 10); }
void load_middle(benchmark::State& state) { load(state, 32u << 20); }
void load_far(benchmark::State& state) { load(state, 512u << 20); }
BENCHMARK(load_near)->Name("limit/load_16k");
BENCHMARK(load_middle)->Name("limit/load_32m");
BENCHMARK(load_far)->Name("limit/load_512m");

class RawFile {
 public:
  RawFile(const char* name, int flags, size_t bytes) : path_(directory() + "/" + name) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    STRATA_ASSERT(fd_ >= 0);
    const std::vector<char> filling(1u << 20, 'x');
    for (size_t at = 0; at < bytes; at += filling.size())
      STRATA_ASSERT(::pwrite(fd_, filling.data(), filling.size(), static_cast<off_t>(at)) ==
                    static_cast<ssize_t>(filling.size()));
    STRATA_ASSERT(::fsync(fd_) == 0);
    if (flags == 0) return;
    const int direct = ::open(path_.c_str(), O_RDWR | flags);
    if (direct < 0) return;  // not on this file system: through the cache then
    ::close(fd_);
    fd_ = direct;
  }
  ~RawFile() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  std::string path_;
  int fd_;
};

void sync_4k(benchmark::State& state) {
  constexpr size_t kBytes = 16u << 20;
  const RawFile file("sync.tmp", 0, kBytes);
  const PageBytes block;
  uint64_t at = 0;
  for (auto _ : state) {
    STRATA_ASSERT(::pwrite(file.fd(), block.bytes, 4096, static_cast<off_t>(at)) == 4096);
    STRATA_ASSERT(::fdatasync(file.fd()) == 0);
    at = (at + 4096) % kBytes;
  }
}
BENCHMARK(sync_4k)->Name("limit/fdatasync_4k")->UseRealTime()->Unit(benchmark::kMicrosecond);

void read_16k(benchmark::State& state) {
  constexpr size_t kPages = 8192;
  const RawFile file("read.tmp", O_DIRECT, kPages * kPageBytes);
  PageBytes page;
  Rng rng(2);
  for (auto _ : state)
    STRATA_ASSERT(::pread(file.fd(), page.bytes, kPageBytes,
                          static_cast<off_t>(rng.below(kPages) * kPageBytes)) == kPageBytes);
}
BENCHMARK(read_16k)->Name("limit/disk_read_16k")->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace strata::micro
