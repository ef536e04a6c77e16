#include "farmem/trace/trace_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "farmem/trace/trace_format.h"

namespace strata::farmem {
namespace {

constexpr size_t kRecordsAtOnce = 4096;
constexpr uint32_t kNone = UINT32_MAX;

class File {
 public:
  explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  // How many bytes there are, at most `bytes`; -1: errno says why.
  ssize_t read(void* to, size_t bytes, uint64_t offset) const {
    size_t done = 0;
    while (done < bytes) {
      const ssize_t part = ::pread(fd_, static_cast<char*>(to) + done, bytes - done,
                                   static_cast<off_t>(offset + done));
      if (part < 0 && errno == EINTR) continue;
      if (part < 0) return -1;
      if (part == 0) break;
      done += static_cast<size_t>(part);
    }
    return static_cast<ssize_t>(done);
  }

 private:
  const int fd_;
};

Status damaged(uint64_t record) {
  return error_corruption("record " + std::to_string(record) + " of the trace is damaged");
}

// Records into accesses.
class Reading {
 public:
  explicit Reading(Trace* trace) : trace_(trace) {}

  // False: no writer writes that.
  bool take(const TraceRecord& record) {
    if (record.check != trace_check(record)) return false;
    const uint64_t length =
        record.kind == TraceKind::kDiscarded ? record.pages : uint64_t{record.pages} + 1;
    if (record.page >= trace_->pages || length > trace_->pages - record.page) return false;
    trace_->pages_end = std::max(trace_->pages_end, record.page + length);
    if (touched_.size() < trace_->pages_end) touched_.resize(trace_->pages_end, kNone);
    switch (record.kind) {
      case TraceKind::kSoft:
      case TraceKind::kNew:
      case TraceKind::kFetched:
        touch(record);
        return true;
      case TraceKind::kLeftWritten:
        trace_->recorded.evicted_dirty++;
        leave(record.page, Change::kWritten);
        return true;
      case TraceKind::kLeftClean:
        trace_->recorded.evicted_clean++;
        leave(record.page, Change::kNone);
        return true;
      case TraceKind::kLeftZero:
        trace_->recorded.evicted_zero++;
        leave(record.page, Change::kCleared);
        return true;
      case TraceKind::kDiscarded:
        trace_->accesses.push_back(
            {.page = record.page, .event = Event::kDiscard, .pages = record.pages});
        std::fill_n(touched_.begin() + record.page, record.pages, kNone);
        return true;
      case TraceKind::kPinned:
        trace_->pinned++;
        return true;
    }
    return false;
  }
  // Of pages that never left nothing is known but how they were touched.
  void finish() {
    for (const uint32_t at : touched_)
      if (at != kNone && writes_[at]) trace_->accesses[at].change = Change::kWritten;
  }

 private:
  void touch(const TraceRecord& record) {
    PageCounts& counts = trace_->recorded;
    counts.faults++;
    if (record.kind == TraceKind::kSoft) counts.soft_hits++;
    if (record.kind == TraceKind::kNew) counts.zero_filled++;
    if (record.kind == TraceKind::kFetched) {
      counts.fetched++;
      counts.prefetched += record.pages;
    }
    note_arrival(record.page);
    trace_->accesses.push_back({.page = record.page, .quiet = (record.flags & kTraceQuiet) != 0});
    writes_.resize(trace_->accesses.size());
    writes_.back() = (record.flags & kTraceWrite) != 0;
    // Places for what becomes of the pages that came along: whether it is anything is known when
    // they leave.
    for (uint32_t i = 1; i <= record.pages; i++) {
      note_arrival(record.page + i);
      trace_->accesses.push_back({.page = record.page + i, .event = Event::kChange});
    }
    writes_.resize(trace_->accesses.size());
  }
  void note_arrival(uint32_t page) {
    touched_[page] = static_cast<uint32_t>(trace_->accesses.size());
  }
  // The page's content changed between its last touch and now.
  void leave(uint32_t page, Change change) {
    const uint32_t at = touched_[page];
    touched_[page] = kNone;
    if (at != kNone) trace_->accesses[at].change = change;
  }

  Trace* const trace_;
  std::vector<uint32_t> touched_;  // of each local page: its last touch, or its place
  std::vector<bool> writes_;       // of each access
};

Status read_header(const File& file, Trace* trace, uint64_t* records) {
  TraceHeader header;
  if (file.read(&header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
      header.magic != kTraceMagic)
    return error_corruption("this is no trace of strata-farmem");
  if (header.version != kTraceVersion)
    return error_unsupported("the trace is of version " + std::to_string(header.version) +
                             ", and this program reads version " + std::to_string(kTraceVersion));
  trace->policy = {.replacement = static_cast<Replacement>(header.replacement),
                   .frames = header.frames,
                   .ways = header.ways,
                   .prefetch = header.prefetch};
  const bool fits = header.crc32c == trace_header_crc(header) &&
                    header.record_bytes == sizeof(TraceRecord) && header.page_bytes == kPageBytes &&
                    header.pages > 0 && header.pages <= kTracePagesMax &&
                    header.frames <= kTracePagesMax &&
                    header.replacement <= static_cast<uint32_t>(Replacement::kAssociative) &&
                    check_policy(trace->policy).ok();
  if (!fits) return error_corruption("the header of the trace is damaged");
  const std::string_view name(header.name.data(), header.name.size());
  trace->program = name.substr(0, name.find('\0'));
  trace->pid = header.pid;
  trace->pages = header.pages;
  trace->error = static_cast<int>(header.error);
  *records = header.records;
  return ok_status();
}

}  // namespace

StatusOr<Trace> read_trace(const std::string& path) {
  const File file(path);
  if (!file.is_open()) {
    const std::string what = path + ": " + std::strerror(errno);
    return errno == ENOENT ? error_not_found(what) : error_io_error(what);
  }
  Trace trace;
  uint64_t records = 0;
  STRATA_RETURN_IF_ERROR(read_header(file, &trace, &records));
  if (records > kNone) return error_unsupported("the trace has more than 2^32 records");
  Reading reading(&trace);
  std::array<TraceRecord, kRecordsAtOnce> part;
  for (uint64_t done = 0; done < records;) {
    const size_t wanted = std::min<uint64_t>(part.size(), records - done);
    const ssize_t got = file.read(part.data(), wanted * sizeof(TraceRecord),
                                  kTraceHeaderBytes + done * sizeof(TraceRecord));
    if (got < 0) return error_io_error(path + ": " + std::strerror(errno));
    const size_t whole = static_cast<size_t>(got) / sizeof(TraceRecord);
    for (size_t i = 0; i < whole; i++)
      if (!reading.take(part[i])) return damaged(done + i);
    done += whole;
    if (whole < wanted) return damaged(done);
  }
  reading.finish();
  return trace;
}

}  // namespace strata::farmem
