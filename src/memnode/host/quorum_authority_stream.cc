#include "memnode/host/quorum_authority_stream.h"

#include <utility>

#include "base/assert.h"
#include "base/thread_name.h"
#include "memnode/host/record_frames.h"

namespace strata::memnode {

namespace {

constexpr size_t kReadBytes = 256u << 10;
constexpr Lsn kNoEnd{uint64_t{1} << 60};

Status has_stopped() { return error_outcome_unknown("the memory node stops"); }

}  // namespace

// --- taking over ---

StatusOr<std::unique_ptr<QuorumAuthorityStream>> QuorumAuthorityStream::open(
    const transport::World& world, const transport::Secret& secret,
    AuthorityStreamOptions options) {
  std::unique_ptr<QuorumAuthorityStream> stream(new QuorumAuthorityStream(std::move(options)));
  stream->options_.log.give_up = [self = stream.get()] { return self->stopping_.load(); };
  STRATA_ASSIGN_OR_RETURN(stream->sink_,
                          clients::QuorumLogSink::open(world, secret, stream->options_.log));
  stream->sealed_us_ = stream->options_.now_us();  // AQ1
  STRATA_RETURN_IF_ERROR(stream->read_back());
  return stream;
}

// AQ2
Status QuorumAuthorityStream::read_back() {
  const Lsn begin = sink_->begin_lsn();
  std::string log;
  std::string part(kReadBytes, '\0');
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(const size_t got,
                            sink_->read(Lsn{begin.value + log.size()}, part.data(), part.size()));
    if (got == 0) break;
    log.append(part, 0, got);
  }
  STRATA_ASSIGN_OR_RETURN(const LastRecord found, last_record(log, begin));
  end_ = found.end.value;
  trimmed_ = begin;
  if (!found.record.has_value()) return ok_status();
  STRATA_ASSIGN_OR_RETURN(last_, fusion::decode_authority_record(*found.record));
  return ok_status();
}

Status QuorumAuthorityStream::begin() {
  STRATA_ASSERT(!writer_.joinable());
  STRATA_RETURN_IF_ERROR(sink_->cut_at(end()));
  STRATA_RETURN_IF_ERROR(sink_->prepare_room(kNoEnd));
  writer_ = std::thread([this] { write_all(); });
  return ok_status();
}

// --- writing ---

// AQ3
void QuorumAuthorityStream::append(std::string record, Done done) {
  {
    const MutexLock lock(mutex_);
    STRATA_ASSERT(!waiting_.has_value());  // one is under way at a time
    if (!stopping_) {
      waiting_ = Waiting{std::move(record), std::move(done)};
      changed_.notify_all();
      return;
    }
  }
  done(has_stopped());
}

void QuorumAuthorityStream::write_all() {
  name_this_thread("authority-log");
  for (;;) {
    std::optional<Waiting> next;
    {
      MutexLock lock(mutex_);
      changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) {
        return stopping_.load() || waiting_.has_value();
      });
      next.swap(waiting_);  // before `done`, which may append
    }
    if (!next.has_value()) return;
    next->done(stopping_ ? has_stopped() : write(next->record));
  }
}

Status QuorumAuthorityStream::write(const std::string& record) {
  const Lsn at = end();
  std::string frame = frame_of(at, record);
  const uint64_t bytes = frame.size();
  STRATA_RETURN_IF_ERROR(sink_->append_whole(at, std::move(frame)));
  end_ = at.value + bytes;
  STRATA_RETURN_IF_ERROR(sink_->sync());
  trim(at);
  return ok_status();
}

// AQ4. Below a record that was appended before: by now storage nodes know that it is durable. If it
// fails the log stays as long as it is until the next one; what ends the stream append() tells.
void QuorumAuthorityStream::trim(Lsn last) {
  if (last.value - trimmed_.value < options_.trim_bytes) return;
  trimmed_ = last;
  sink_->truncate_below(last).IgnoreError();
}

void QuorumAuthorityStream::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

QuorumAuthorityStream::~QuorumAuthorityStream() { stop(); }

}  // namespace strata::memnode
