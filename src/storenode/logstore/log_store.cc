#include "storenode/logstore/log_store.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <variant>

#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/latch.h"
#include "storenode/logstore/internal/gather_policy.h"
#include "storenode/logstore/internal/stream.h"

namespace strata {
namespace {

using logstore::Stream;
using quorum::ChangeReply;
using quorum::SealReply;

struct MakeCommand {
  quorum::StreamOrigin origin;
  LogStore::ChangeDone done;
};
struct SealCommand {
  quorum::SealRequest request;
  LogStore::SealDone done;
};
struct BeginCommand {
  quorum::BeginRequest request;
  LogStore::ChangeDone done;
};
struct CatchUpCommand {
  quorum::CatchUpRequest request;
  LogStore::ChangeDone done;
};
struct AppendCommand {
  quorum::AppendRequest request;
  LogStore::ChangeDone done;
};
struct TruncateCommand {
  Lsn lsn;
  LogStore::ChangeDone done;
};
struct RepairCommand {
  Lsn from;
  std::string bytes;
  LogStore::ChangeDone done;
};
struct Command {
  StreamId stream;
  uint64_t bytes = 0;
  std::variant<MakeCommand, SealCommand, BeginCommand, CatchUpCommand, AppendCommand,
               TruncateCommand, RepairCommand>
      what;
};

// What one batch may hold; the rest waits for the next one.
constexpr uint64_t kBatchBytesMax = 8u << 20;
// So much is not left waiting for more.
constexpr uint64_t kGatherBytesMax = 256u << 10;

}  // namespace

class LogStore::Impl {
 public:
  Impl(FileSystem* fs, const LogStoreOptions& options) {
    context.fs = fs;
    context.options = options;
    context.spares = std::make_unique<logstore::Spares>(
        fs, options.directory, options.segment_bytes, options.spare_segments_max);
  }
  ~Impl();

  Status open();
  void enqueue(Command command);
  bool persist_pending();
  bool wait_for_work();
  void gather();
  void stop();
  Stream* find(StreamId stream) const;
  std::vector<Stream*> all() const;

  logstore::StoreContext context;
  std::atomic<uint64_t> pending_bytes{0};
  std::atomic<bool> wants_spare{false};

 private:
  // An append or catch-up that waits for the batch to be durable.
  struct Waiter {
    Stream* stream;
    LogStore::ChangeDone done;
  };

  void run(Command command);
  void run_on(StreamId stream, MakeCommand* command);
  void run_on(StreamId stream, SealCommand* command);
  void run_on(StreamId stream, BeginCommand* command);
  void run_on(StreamId stream, CatchUpCommand* command);
  void run_on(StreamId stream, AppendCommand* command);
  void run_on(StreamId stream, TruncateCommand* command);
  void run_on(StreamId stream, RepairCommand* command);
  void stage(Stream* stream, Lsn at, Bytes bytes, Lsn quorum_durable, ChangeDone done);
  void flush_batch();
  static bool is_urgent(const Command& command);
  [[nodiscard]] bool may_gather() const STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool others_suffice() const STRATA_REQUIRES(mutex_);
  // Null when it does not answer (*why says so).
  Stream* find_usable(StreamId stream, Status* why);

  mutable Mutex mutex_{LatchRank::kLogStore};
  CondVar changed_;
  std::deque<Command> pending_ STRATA_GUARDED_BY(mutex_);
  std::map<StreamId, std::unique_ptr<Stream>> streams_ STRATA_GUARDED_BY(mutex_);  // never shrinks
  bool persisting_ STRATA_GUARDED_BY(mutex_) = false;
  bool gathering_ STRATA_GUARDED_BY(mutex_) = false;
  bool urgent_ STRATA_GUARDED_BY(mutex_) = false;  // of pending_
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  logstore::GatherPolicy gather_policy_;  // of whoever calls gather()
  // The persister's: streams with something staged, and who waits.
  std::vector<Stream*> batch_;
  std::vector<Waiter> waiters_;
};

// --- opening and closing ---

Status LogStore::Impl::open() {
  FileSystem* const fs = context.fs;
  const std::string& folder = context.options.directory;
  STRATA_ASSIGN_OR_RETURN(const bool present, fs->exists(folder));
  if (!present) STRATA_RETURN_IF_ERROR(fs->make_directory(folder));
  // A killed process may have left names that a power loss could still take back.
  STRATA_RETURN_IF_ERROR(fs->sync_directory(folder));
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->list(folder));
  STRATA_RETURN_IF_ERROR(context.spares->adopt(names));
  std::map<StreamId, std::vector<logstore::SegmentName>> found;
  for (const std::string& name : names) {
    if (const auto segment = logstore::parse_segment_name(name)) {
      found[segment->stream].push_back(*segment);
    } else if (const auto stream = logstore::parse_control_name(name)) {
      found[*stream];
    }
  }
  for (auto& [id, segments] : found) {
    auto stream = std::make_unique<Stream>(&context, id);
    Status opened = stream->open(std::move(segments));
    if (!opened.ok())
      diag(Severity::kError, "stream %u is not served: %s", id.value,
           std::string(opened.message()).c_str());
    stream->set_failure(std::move(opened));
    const MutexLock lock(mutex_);
    streams_[id] = std::move(stream);
  }
  return ok_status();
}

LogStore::Impl::~Impl() {
  std::deque<Command> left;
  {
    const MutexLock lock(mutex_);
    STRATA_ASSERT(!persisting_);
    left.swap(pending_);
  }
  const Status closed = error_peer_down("the log store was closed");
  for (Command& command : left)
    std::visit(
        [&](auto& c) {
          if constexpr (std::is_same_v<std::decay_t<decltype(c)>, SealCommand>) {
            c.done(SealReply{closed, {}, {}});
          } else {
            c.done(ChangeReply{closed, {}, {}});
          }
        },
        command.what);
}

Stream* LogStore::Impl::find(StreamId stream) const {
  const MutexLock lock(mutex_);
  const auto it = streams_.find(stream);
  return it == streams_.end() ? nullptr : it->second.get();
}

std::vector<Stream*> LogStore::Impl::all() const {
  const MutexLock lock(mutex_);
  std::vector<Stream*> found;
  for (const auto& [id, stream] : streams_) found.push_back(stream.get());
  return found;
}

Stream* LogStore::Impl::find_usable(StreamId stream, Status* why) {
  Stream* const found = find(stream);
  if (found == nullptr) {
    *why = error_not_found("no stream " + std::to_string(stream.value) + " here");
    return nullptr;
  }
  *why = found->failure();
  return why->ok() ? found : nullptr;
}

// --- the queue ---

void LogStore::Impl::enqueue(Command command) {
  bool wake = false;
  {
    const MutexLock lock(mutex_);
    pending_bytes += command.bytes;
    pending_.push_back(std::move(command));
    urgent_ = urgent_ || is_urgent(pending_.back());
    wake = !gathering_ || !may_gather();
  }
  if (wake) changed_.notify_all();
}

// LG11. All but appends; and those without bytes, which are sent when somebody waits for the news.
bool LogStore::Impl::is_urgent(const Command& command) {
  return command.bytes == 0 || !std::holds_alternative<AppendCommand>(command.what);
}

bool LogStore::Impl::may_gather() const {
  return !urgent_ && !stopped_ && !pending_.empty() && pending_bytes <= kGatherBytesMax;
}

// Bytes that are not durable here are so on a write quorum.
bool LogStore::Impl::others_suffice() const {
  for (const Command& command : pending_) {
    const auto* const append = std::get_if<AppendCommand>(&command.what);
    const auto stream = streams_.find(command.stream);
    if (append != nullptr && stream != streams_.end() &&
        append->request.quorum_durable > stream->second->state().end)
      return true;
  }
  return false;
}

void LogStore::Impl::gather() {
  const uint64_t wait_us = context.options.gather_us;
  if (wait_us == 0 || !gather_policy_.may_wait(context.options.now_us())) return;
  MutexLock lock(mutex_);
  if (!may_gather()) return;
  STRATA_ASSERT(!gathering_);  // GA2: one thread does
  gathering_ = true;
  changed_.wait_for_us(lock, wait_us, [&]() STRATA_REQUIRES(mutex_) { return !may_gather(); });
  gathering_ = false;
  if (!others_suffice()) return gather_policy_.waited(false, context.options.now_us());
  ++context.counters.gathered;
  gather_policy_.waited(true, context.options.now_us());
}

bool LogStore::Impl::wait_for_work() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [&]() STRATA_REQUIRES(mutex_) { return !pending_.empty() || stopped_; });
  return !pending_.empty();
}

void LogStore::Impl::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

bool LogStore::Impl::persist_pending() {
  std::deque<Command> taken;
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() STRATA_REQUIRES(mutex_) { return !persisting_; });
    if (pending_.empty()) return false;
    uint64_t bytes = 0;
    while (!pending_.empty() && bytes <= kBatchBytesMax) {
      bytes += pending_.front().bytes;
      taken.push_back(std::move(pending_.front()));
      pending_.pop_front();
    }
    if (pending_.empty()) urgent_ = false;
    persisting_ = true;
  }
  for (Command& command : taken) {
    const uint64_t bytes = command.bytes;
    run(std::move(command));
    STRATA_ASSERT(pending_bytes >= bytes);
    pending_bytes -= bytes;
  }
  flush_batch();
  {
    const MutexLock lock(mutex_);
    STRATA_ASSERT(persisting_ && batch_.empty() && waiters_.empty());
    persisting_ = false;
  }
  changed_.notify_all();
  return true;
}

// --- one batch ---

// Appends gather; anything else sees them durable, or failed.
void LogStore::Impl::run(Command command) {
  const bool gathers = std::holds_alternative<AppendCommand>(command.what) ||
                       std::holds_alternative<CatchUpCommand>(command.what);
  if (!gathers) flush_batch();
  std::visit([&](auto& c) { run_on(command.stream, &c); }, command.what);
}

// LG10. What a failed attempt may have left on disk says nothing wrong and is written over.
void LogStore::Impl::run_on(StreamId id, MakeCommand* command) {
  Status why;
  if (find(id) == nullptr) {
    auto made = std::make_unique<Stream>(&context, id);
    why = made->make(command->origin);
    if (why.ok()) {
      const MutexLock lock(mutex_);
      STRATA_ASSERT(!streams_.contains(id));
      streams_[id] = std::move(made);
    }
  }
  const Stream* const stream = why.ok() ? find_usable(id, &why) : nullptr;
  if (stream == nullptr) return command->done({std::move(why), {}, {}});
  const quorum::ReplicaState state = stream->state();
  command->done({ok_status(), state, state.end});
}

void LogStore::Impl::run_on(StreamId id, SealCommand* command) {
  Status why;
  Stream* const stream = find_usable(id, &why);
  if (stream == nullptr) return command->done({std::move(why), {}, {}});
  SealReply sealed = stream->seal(command->request);
  fault(FaultPoint::node_log_sealed);
  command->done(std::move(sealed));
}

void LogStore::Impl::run_on(StreamId id, BeginCommand* command) {
  Status why;
  Stream* const stream = find_usable(id, &why);
  if (stream == nullptr) return command->done({std::move(why), {}, {}});
  ChangeReply begun = stream->begin(command->request);
  fault(FaultPoint::node_log_begun);
  command->done(std::move(begun));
}

void LogStore::Impl::run_on(StreamId id, CatchUpCommand* command) {
  flush_batch();  // it may cut the log
  Status why;
  Stream* const stream = find_usable(id, &why);
  if (stream == nullptr) return command->done({std::move(why), {}, {}});
  quorum::CatchUpRequest& request = command->request;
  ChangeReply ready = stream->prepare_catch_up(request);
  if (!ready.status.ok()) return command->done(std::move(ready));
  stage(stream, request.at, request.bytes, request.quorum_durable, std::move(command->done));
}

void LogStore::Impl::run_on(StreamId id, AppendCommand* command) {
  ++context.counters.appends;
  Status why;
  Stream* const stream = find_usable(id, &why);
  if (stream == nullptr) return command->done({std::move(why), {}, {}});
  quorum::AppendRequest& request = command->request;
  ChangeReply ready = stream->check_append(request);
  if (!ready.status.ok()) return command->done(std::move(ready));
  stage(stream, request.at, request.bytes, request.quorum_durable, std::move(command->done));
}

void LogStore::Impl::run_on(StreamId id, TruncateCommand* command) {
  Status why;
  Stream* const stream = find_usable(id, &why);
  command->done(stream == nullptr ? ChangeReply{std::move(why), {}, {}}
                                  : stream->truncate_prefix(command->lsn));
}

void LogStore::Impl::run_on(StreamId id, RepairCommand* command) {
  Status why;
  Stream* const stream = find_usable(id, &why);
  command->done(stream == nullptr ? ChangeReply{std::move(why), {}, {}}
                                  : stream->repair(command->from, command->bytes));
}

void LogStore::Impl::stage(Stream* stream, Lsn at, Bytes bytes, Lsn quorum_durable,
                           ChangeDone done) {
  ChangeReply staged = stream->stage(at, bytes, quorum_durable);
  if (!staged.status.ok()) return done(std::move(staged));
  if (std::find(batch_.begin(), batch_.end(), stream) == batch_.end()) batch_.push_back(stream);
  waiters_.push_back({stream, std::move(done)});
}

// Everything is written before anything is synced, so that the disk sees it together.
void LogStore::Impl::flush_batch() {
  STRATA_ASSERT(batch_.empty() == waiters_.empty());
  if (batch_.empty()) return;
  ++context.counters.batches;
  std::vector<Stream*> batch = std::move(batch_);
  std::vector<Waiter> waiters = std::move(waiters_);
  batch_.clear();
  waiters_.clear();
  std::map<Stream*, Status> outcome;
  const bool write_fails = fault(FaultPoint::node_log_before_write);
  for (Stream* stream : batch)
    outcome[stream] = write_fails ? error_internal("fault point") : stream->write_staged();
  const bool sync_fails = fault(FaultPoint::node_log_after_write);
  for (Stream* stream : batch)
    if (outcome[stream].ok())
      outcome[stream] = sync_fails ? error_internal("fault point") : stream->sync_staged();
  fault(FaultPoint::node_log_after_sync);
  std::vector<std::function<void()>> ready;
  for (Stream* stream : batch) {
    if (outcome[stream].ok()) {
      for (auto& notify : stream->commit_staged()) ready.push_back(std::move(notify));
    } else {
      stream->drop_staged();
    }
    if (stream->wants_spare() && context.spares->lacks_one()) wants_spare = true;
  }
  for (Waiter& waiter : waiters) {
    const quorum::ReplicaState state = waiter.stream->state();
    const Status& status = outcome[waiter.stream];
    if (is_no_space(status)) ++context.counters.disk_full;
    waiter.done({status, state, state.end});
  }
  for (auto& notify : ready) notify();
}

// --- the public face ---

LogStore::LogStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LogStore::~LogStore() = default;

StatusOr<std::unique_ptr<LogStore>> LogStore::open(FileSystem* fs, const LogStoreOptions& options) {
  constexpr uint64_t kSegmentMost = uint64_t{1} << 40;
  if (options.segment_bytes < 2 * logstore::kSegmentHeaderBytes ||
      options.segment_bytes > kSegmentMost || options.segment_bytes % BlockWriter::kBlock != 0)
    return error_invalid_argument(
        "log store: segments of " + std::to_string(options.segment_bytes) +
        " bytes; use a multiple of " + std::to_string(BlockWriter::kBlock) + " from " +
        std::to_string(2 * logstore::kSegmentHeaderBytes) + " to 1 TiB");
  if (options.chunk_bytes_max == 0 || options.chunk_bytes_max > logstore::kChunkPayloadMax)
    return error_invalid_argument("log store: chunks of " +
                                  std::to_string(options.chunk_bytes_max) +
                                  " bytes; use 1 to 16 MiB");
  auto impl = std::make_unique<Impl>(fs, options);
  STRATA_RETURN_IF_ERROR(impl->open());
  return std::unique_ptr<LogStore>(new LogStore(std::move(impl)));
}

void LogStore::make_stream(StreamId stream, quorum::StreamOrigin origin, ChangeDone done) {
  impl_->enqueue({stream, 0, MakeCommand{origin, std::move(done)}});
}

void LogStore::seal(StreamId stream, quorum::SealRequest request, SealDone done) {
  impl_->enqueue({stream, 0, SealCommand{request, std::move(done)}});
}

void LogStore::begin_epoch(StreamId stream, quorum::BeginRequest request, ChangeDone done) {
  impl_->enqueue({stream, 0, BeginCommand{std::move(request), std::move(done)}});
}

void LogStore::catch_up(StreamId stream, quorum::CatchUpRequest request, ChangeDone done) {
  const uint64_t bytes = request.bytes.size();
  if (impl_->pending_bytes + bytes > impl_->context.options.pending_bytes_max)
    return done({error_busy("the log store's queue is full"), {}, {}});
  impl_->enqueue({stream, bytes, CatchUpCommand{std::move(request), std::move(done)}});
}

void LogStore::append(StreamId stream, quorum::AppendRequest request, ChangeDone done) {
  const uint64_t bytes = request.bytes.size();
  if (impl_->pending_bytes + bytes > impl_->context.options.pending_bytes_max)
    return done({error_busy("the log store's queue is full"), {}, {}});
  impl_->enqueue({stream, bytes, AppendCommand{std::move(request), std::move(done)}});
}

void LogStore::truncate_prefix(StreamId stream, Lsn lsn, ChangeDone done) {
  impl_->enqueue({stream, 0, TruncateCommand{lsn, std::move(done)}});
}

void LogStore::repair(StreamId stream, Lsn from, std::string bytes, ChangeDone done) {
  impl_->enqueue({stream, 0, RepairCommand{from, std::move(bytes), std::move(done)}});
}

bool LogStore::persist_pending() { return impl_->persist_pending(); }
Status LogStore::close() {
  Status first;
  for (Stream* stream : impl_->all()) {
    const Status closed = stream->close();
    if (first.ok()) first = closed;
  }
  return first;
}

bool LogStore::wait_for_work() { return impl_->wait_for_work(); }
void LogStore::gather() { impl_->gather(); }
void LogStore::stop() { impl_->stop(); }

void LogStore::upkeep() {
  if (!impl_->wants_spare.exchange(false)) return;
  impl_->context.spares->fill_one().IgnoreError();  // a full disk is reported by who needs room
}

bool LogStore::upkeep_is_due() const noexcept { return impl_->wants_spare; }

namespace {
// OK when the stream can be asked.
Status usable(const Stream* stream, StreamId id) {
  if (stream == nullptr) return error_not_found("no stream " + std::to_string(id.value) + " here");
  return stream->failure();
}
}  // namespace

quorum::ReadReply LogStore::read(StreamId stream, const quorum::ReadRequest& request) {
  Stream* const found = impl_->find(stream);
  const Status why = usable(found, stream);
  if (why.ok()) return found->read(request);
  quorum::ReadReply reply;
  reply.status = why;
  reply.from = request.from;
  return reply;
}

StatusOr<uint64_t> LogStore::tail(StreamId stream, Lsn lsn, const std::function<void()>& notify) {
  Stream* const found = impl_->find(stream);
  STRATA_RETURN_IF_ERROR(usable(found, stream));
  uint64_t ticket = 0;
  if (!found->tail(lsn, notify, &ticket)) notify();
  return ticket;
}

void LogStore::cancel_tail(StreamId stream, uint64_t ticket) {
  Stream* const found = impl_->find(stream);
  if (found != nullptr) found->cancel_tail(ticket);
}

Status LogStore::verify(StreamId stream) {
  Stream* const found = impl_->find(stream);
  STRATA_RETURN_IF_ERROR(usable(found, stream));
  return found->verify();
}

std::vector<StreamStatus> LogStore::status() const {
  std::vector<StreamStatus> all;
  for (const Stream* stream : impl_->all()) all.push_back(stream->status());
  return all;
}

StatusOr<StreamStatus> LogStore::status(StreamId stream) const {
  const Stream* const found = impl_->find(stream);
  if (found == nullptr) return error_not_found("no stream " + std::to_string(stream.value));
  return found->status();
}

StatusOr<quorum::ReplicaState> LogStore::state(StreamId stream) const {
  const Stream* const found = impl_->find(stream);
  STRATA_RETURN_IF_ERROR(usable(found, stream));
  return found->state();
}

const LogStoreCounters& LogStore::counters() const noexcept { return impl_->context.counters; }
uint64_t LogStore::pending_bytes() const noexcept { return impl_->pending_bytes; }

}  // namespace strata
