// Pages written in place: so many of them, anywhere in a file, with one call or one by one.
#include <array>
#include <cstring>

#include "base/aligned.h"
#include "io/batch_io.h"
#include "io/internal/ring.h"
#include "micro.h"

namespace strata::micro {
namespace {

constexpr size_t kPages = 8192;
constexpr size_t kBatchMax = 64;

std::unique_ptr<File> make_file(FileSystem* files) {
  auto made = files->open(directory() + "/batch.tmp", OpenOptions{.create = true, .direct = true});
  must(made.status());
  const AlignedBytes filling(kBatchMax * kPageBytes, 4096);
  std::memset(filling.get(), 'x', kBatchMax * kPageBytes);
  for (size_t page = 0; page < kPages; page += kBatchMax)
    must((*made)->write_at(page * kPageBytes, filling.get(), kBatchMax * kPageBytes));
  must((*made)->sync_data());
  return std::move(*made);
}

void write_pages(benchmark::State& state, bool at_once) {
  const auto files = make_posix_file_system();
  const std::unique_ptr<File> file = make_file(files.get());
  BatchIo io(at_once ? BatchIo::MakeRing(internal::make_ring)
                     : [] { return error_peer_down("not wanted"); });
  const AlignedBytes pages(kBatchMax * kPageBytes, 4096);
  std::memset(pages.get(), 'y', kBatchMax * kPageBytes);
  const auto count = static_cast<size_t>(state.range(0));
  std::array<FileWrite, kBatchMax> writes;
  Rng rng(3);
  for (auto _ : state) {
    for (size_t i = 0; i < count; ++i)
      writes[i] = {.file = file.get(),
                   .offset = rng.below(kPages) * kPageBytes,
                   .data = pages.get() + i * kPageBytes,
                   .bytes = kPageBytes};
    io.write_all(writes.data(), count);
    for (size_t i = 0; i < count; ++i) must(writes[i].status);
  }
  must(files->remove(directory() + "/batch.tmp"));
  state.SetLabel("limit: disk_read_16k x" + std::to_string(count));
}
void write_at_once(benchmark::State& state) { write_pages(state, true); }
void write_one_by_one(benchmark::State& state) { write_pages(state, false); }

// Elapsed, and the CPU time of the process; that of interrupts is not in it.
BENCHMARK(write_at_once)->Name("io/write_pages")->Arg(8)->Arg(32)->Arg(64)->UseRealTime();
BENCHMARK(write_one_by_one)->Name("io/write_pages_one_by_one")->Arg(32)->Arg(64)->UseRealTime();
BENCHMARK(write_at_once)->Name("io/cpu_of_write_pages")->Arg(8)->Arg(32)->Arg(64);
BENCHMARK(write_one_by_one)->Name("io/cpu_of_write_pages_one_by_one")->Arg(32)->Arg(64);

}  // namespace
}  // namespace strata::micro
