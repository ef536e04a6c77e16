// Appending to the log, and waiting until it is durable: alone and as a group.
#include "wal/log.h"

#include "io/file_system.h"
#include "micro.h"
#include "wal/local_log_sink.h"

namespace strata::micro {
namespace {

constexpr uint32_t kGroupBytes = 256;
constexpr Lsn kStart{4096};

// Takes everything and keeps nothing.
class NoSink final : public LogSink {
 public:
  [[nodiscard]] Lsn begin_lsn() const override { return kStart; }
  Status prepare_room(Lsn) override { return ok_status(); }
  [[nodiscard]] Lsn room_end() const override { return Lsn{UINT64_MAX / 2}; }
  Status append(Lsn, Bytes) override { return ok_status(); }
  Status sync() override { return ok_status(); }
  StatusOr<size_t> read(Lsn, char*, size_t) override { return size_t{0}; }
  Status truncate_below(Lsn) override { return ok_status(); }
};

// The cost of a group here is the log's: the bytes are copied as they are.
LogReservation write_group(Log* log, Bytes group) {
  must(log->reserve_capacity(kGroupBytes, false));
  LogReservation r;
  while (!log->reserve(kGroupBytes, log->image_floor(), Llsn{}, &r)) {
  }
  log->copy(r, group);
  log->complete(r);
  return r;
}

NoSink no_sink;
std::unique_ptr<Log> shared_log;

void append(benchmark::State& state) {
  if (state.thread_index() == 0)
    shared_log = std::make_unique<Log>(LogOptions{}, &no_sink, kStart, 0);
  const std::string group(kGroupBytes, 'g');
  for (auto _ : state) write_group(shared_log.get(), group);
  state.SetLabel("limit: memcpy_256");
  if (state.thread_index() == 0) shared_log.reset();
}
BENCHMARK(append)->Name("log/append")->UseRealTime();
BENCHMARK(append)->Name("log/append_2_threads")->Threads(2)->UseRealTime();

struct DiskLog {
  DiskLog() : files(make_posix_file_system()) {
    const LocalLogOptions options{.directory = directory(), .database_id = 1};
    auto made = create_local_log(files.get(), options, kStart);
    must(made.status());
    sink = std::move(*made);
    // Ahead of the clock: filling segments competes with the syncs that are measured.
    must(sink->prepare_room(Lsn{128u << 20}));
    log = std::make_unique<Log>(LogOptions{}, sink.get(), kStart, 0);
  }
  ~DiskLog() {
    log.reset();
    sink.reset();
    const auto names = files->list(directory());
    must(names.status());
    for (const std::string& name : *names)
      if (name.ends_with(".seg")) must(files->remove(directory() + "/" + name));
  }
  DiskLog(const DiskLog&) = delete;
  DiskLog& operator=(const DiskLog&) = delete;
  std::unique_ptr<FileSystem> files;
  std::unique_ptr<LogSink> sink;
  std::unique_ptr<Log> log;
};
std::unique_ptr<DiskLog> disk_log;

// Time per commit: with many threads one sync carries many of them.
void commit(benchmark::State& state) {
  if (state.thread_index() == 0) disk_log = std::make_unique<DiskLog>();
  const std::string group(kGroupBytes, 'g');
  for (auto _ : state) {
    Log* const log = disk_log->log.get();
    must(log->persist(write_group(log, group).end));
  }
  state.SetLabel("limit: fdatasync_4k");
  if (state.thread_index() == 0) {
    const auto syncs = static_cast<double>(disk_log->log->counters().syncs.load());
    state.counters["syncs"] = syncs;
    disk_log.reset();
  }
}
BENCHMARK(commit)
    ->Name("log/group_commit")
    ->ThreadRange(1, 64)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace strata::micro
