// Reading a stream, waiting for its tail, looking for damage.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "storenode/logstore/internal/stream.h"

namespace strata::logstore {

using quorum::ReadReply;
using quorum::ReadRequest;

// Bytes below this were durable in the segment once.
Lsn Stream::known_end_of(size_t index) const noexcept {
  STRATA_ASSERT(index < segments_.size());
  if (index + 1 == segments_.size()) return durable_end_;
  return std::min(segments_[index + 1]->info.start, durable_end_);
}

// The first span begins behind `from` when nothing holds the first bytes.
std::vector<Stream::Span> Stream::spans_locked(Lsn from, Lsn to) const {
  std::vector<Span> spans;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Lsn known_end = known_end_of(i);
    const Lsn begin = std::max(from, segments_[i]->info.start);
    const Lsn end = std::min(to, known_end);
    if (begin < end) spans.push_back({segments_[i], begin, end, known_end});
  }
  return spans;
}

// What was read before a failure stays in *out.
Status Stream::read_spans(const std::vector<Span>& spans, std::string* out) const {
  for (const Span& span : spans)
    STRATA_RETURN_IF_ERROR(span.segment->read(span.from, span.to, span.known_end, out));
  return ok_status();
}

// The persister's.
Status Stream::read_range(Lsn from, Lsn to, std::string* out) {
  const std::vector<Span> spans = spans_locked(from, to);
  if (spans.empty() || spans.front().from != from)
    return error_corruption("lsn " + std::to_string(from.value) + " is in no segment here");
  const size_t before = out->size();
  STRATA_RETURN_IF_ERROR(read_spans(spans, out));
  if (out->size() - before == to.value - from.value) return ok_status();
  return error_corruption("bytes between lsn " + std::to_string(from.value) + " and lsn " +
                          std::to_string(to.value) + " are in no segment here");
}

ReadReply Stream::read(const ReadRequest& request) {
  ReadReply reply;
  reply.from = request.from;
  std::vector<Span> spans;
  uint64_t cuts = 0;
  {
    const MutexLock lock(mutex_);
    reply.quorum_durable = readable_end();
    reply.start = control_.start;
    reply.votes = durable_end_ >= control_.voter_end;
    if (request.recovery && request.epoch != control_.promised.epoch) {
      reply.status = error_fenced("epoch " + std::to_string(control_.promised.epoch.value) +
                                  " is promised here");
      return reply;
    }
    const Lsn limit = request.recovery ? durable_end_ : readable_end();
    if (request.from < control_.start || request.from > limit) {
      reply.status = error_out_of_range(
          "lsn " + std::to_string(request.from.value) + " is outside of what may be read: " +
          std::to_string(control_.start.value) + " to " + std::to_string(limit.value));
      return reply;
    }
    const uint64_t bytes = std::min<uint64_t>(request.bytes_max, limit.value - request.from.value);
    if (bytes == 0) return reply;
    STRATA_ASSERT(request.from < durable_end_ && recent_.size() <= durable_end_.value);
    const uint64_t before_end = durable_end_.value - request.from.value;
    if (!request.recovery && before_end <= recent_.size()) {
      reply.bytes.assign(recent_, recent_.size() - before_end, bytes);
      return reply;
    }
    spans = spans_locked(request.from, Lsn{request.from.value + bytes});
    cuts = cuts_;
    if (spans.empty() || spans.front().from != request.from)
      reply.status =
          error_corruption(holes_.empty() ? "no segment of stream " + std::to_string(id_.value) +
                                                " holds lsn " + std::to_string(request.from.value)
                                          : holes_.front().what);
  }
  if (!reply.status.ok()) return reply;
  const Status done = read_spans(spans, &reply.bytes);
  const MutexLock lock(mutex_);
  // Bytes cut off meanwhile are not of this log any more; quorum-durable ones never are (LG5).
  if (request.recovery && cuts != cuts_) {
    reply.bytes.clear();
    reply.status = error_peer_down("the log was cut while it was read");
  } else if (!done.ok() && request.from < control_.start) {
    reply.bytes.clear();
    reply.status = error_out_of_range("truncated");
    reply.start = control_.start;
  } else if (reply.bytes.empty()) {
    reply.status = done;
  }
  return reply;
}

bool Stream::tail(Lsn lsn, std::function<void()> notify, uint64_t* ticket) {
  const MutexLock lock(mutex_);
  if (readable_end() > lsn) return false;
  *ticket = ++last_ticket_;
  tails_.emplace(*ticket, std::pair(lsn, std::move(notify)));
  return true;
}

void Stream::cancel_tail(uint64_t ticket) {
  const MutexLock lock(mutex_);
  tails_.erase(ticket);
}

Status Stream::verify() {
  std::vector<Span> spans;
  {
    const MutexLock lock(mutex_);
    spans = spans_locked(control_.start, durable_end_);
  }
  Status first;
  for (const Span& span : spans) {
    const Status whole = span.segment->verify(span.known_end);
    if (first.ok()) first = whole;
  }
  const MutexLock lock(mutex_);
  const std::vector<LogDamage> damages = damages_locked();
  if (first.ok() || is_corruption(first))  // damage below the start does not count any more
    return damages.empty() ? ok_status() : error_corruption(damages.front().what);
  return first;
}

std::vector<LogDamage> Stream::damages_locked() const {
  std::vector<LogDamage> found = holes_;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = *segments_[i];
    const Lsn known_end = known_end_of(i);
    std::vector<LogDamage> damages = segment.damages();
    if (!segment.header_failure.ok())
      damages = {{segment.info.start, known_end, segment.path, 0,
                  std::string(segment.header_failure.message()) +
                      "; copy the range from a peer (repair)"}};
    for (LogDamage& damage : damages) {
      damage.to = std::min(damage.to, known_end);
      if (damage.from < damage.to && damage.to > control_.start) found.push_back(std::move(damage));
    }
  }
  return found;
}

StreamStatus Stream::status() const {
  StreamStatus s;
  s.stream = id_;
  s.failure = failure_;
  if (!failure_.ok()) return s;
  const MutexLock lock(mutex_);
  s.state = state_locked();
  s.history = quorum::clipped(control_.history, durable_end_);
  s.segments = static_cast<uint32_t>(segments_.size());
  s.damages = damages_locked();
  return s;
}

}  // namespace strata::logstore
