// Group commit throughput of Log over local segments, and the cost of publishing without
// persisting.
//   strata_wal_log_bench <directory> [threads] [seconds]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "redo/redo.h"
#include "wal/local_log_sink.h"
#include "wal/log.h"

namespace strata {
namespace {

constexpr uint32_t kGroupBytes = 256;

// The cost of a group here is the log's: the bytes are sealed once and copied as they are.
LogReservation write_group(Log* log, const std::string& group) {
  if (!log->reserve_capacity(kGroupBytes, false).ok()) std::abort();
  LogReservation r;
  while (!log->reserve(kGroupBytes, log->image_floor(), Llsn{}, &r)) {
  }
  log->copy(r, group);
  log->complete(r);
  return r;
}

void run(Log* log, const char* what, int threads, double seconds, bool persist) {
  const std::string group(kGroupBytes, 'g');
  std::atomic<uint64_t> done{0};
  const uint64_t syncs_before = log->counters().syncs.load();
  const uint64_t began = monotonic_us();
  const uint64_t until = began + static_cast<uint64_t>(seconds * 1e6);
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; i++) {
    workers.emplace_back([&] {
      uint64_t n = 0;
      for (; monotonic_us() < until; n++) {
        const LogReservation r = write_group(log, group);
        if (persist && !log->persist(r.end).ok()) std::abort();
      }
      done += n;
    });
  }
  for (std::thread& t : workers) t.join();
  const double took = static_cast<double>(monotonic_us() - began) / 1e6;
  const double syncs = static_cast<double>(log->counters().syncs.load() - syncs_before);
  std::printf("%-24s %2d threads %10.0f groups/s %8.2f us each %8.0f syncs/s\n", what, threads,
              static_cast<double>(done.load()) / took,
              took * 1e6 * threads / static_cast<double>(done.load()), syncs / took);
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  using namespace strata;
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s <empty directory> [threads] [seconds]\n", argv[0]);
    return 2;
  }
  const int most = argc > 2 ? std::atoi(argv[2]) : 16;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 2;
  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  auto sink = create_local_log(fs.get(), {.directory = argv[1], .database_id = 1}, Lsn{4096});
  if (!sink.ok()) {
    std::fprintf(stderr, "%s\n", sink.status().ToString().c_str());
    return 1;
  }
  // Ahead of the clock: filling segments competes with the syncs that are measured.
  if (!(*sink)->prepare_room(Lsn{512u << 20}).ok()) return 1;
  Log log(LogOptions{}, sink->get(), Lsn{4096}, 0);
  for (int threads = 1; threads <= most; threads *= 4)
    run(&log, "persist each group", threads, seconds, true);
  for (int threads = 1; threads <= most; threads *= 4)
    run(&log, "no persist", threads, seconds / 10, false);
  return 0;
}
