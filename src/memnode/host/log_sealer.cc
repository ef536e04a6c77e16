#include "memnode/host/log_sealer.h"

#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/data_format.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "cluster/log_checkpoints.h"

namespace strata::memnode {

namespace {

constexpr uint64_t kLookUs = 50'000;  // how often one that waits for storage looks for a stop

}  // namespace

LogSealer::LogSealer(Parts parts) : parts_(std::move(parts)), thread_([this] { work(); }) {}

LogSealer::~LogSealer() { stop(); }

void LogSealer::stop() {
  stopping_.raise();
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// --- in turn ---

void LogSealer::seal(StreamId stream, Done done) {
  {
    const MutexLock lock(mutex_);
    if (!stopped_) {
      wanted_.push_back({stream, std::move(done)});
      changed_.notify_all();
      return;
    }
  }
  done(error_interrupted("the memory node stops"));
}

// Each has its turn, so that one that cannot be sealed keeps no other waiting for ever.
void LogSealer::work() {
  name_this_thread("log-sealer");
  for (;;) {
    std::optional<Wanted> next;
    {
      MutexLock lock(mutex_);
      changed_.wait(lock,
                    [this]() STRATA_REQUIRES(mutex_) { return stopped_ || !wanted_.empty(); });
      if (wanted_.empty()) return;
      next = std::move(wanted_.front());
      wanted_.pop_front();
    }
    const StreamId stream = next->stream;
    const Status sealed = seal_now(stream).status();
    {
      const MutexLock lock(mutex_);
      last_failure_ = sealed;
      if (!sealed.ok() && !stopped_) {  // again, in its turn
        wanted_.push_back(std::move(*next));
        next.reset();
      }
    }
    if (next.has_value()) {
      next->done(sealed);
      continue;
    }
    diag(Severity::kWarning, "fusion: log stream %u of a fenced server is not sealed yet: %s",
         unsigned{stream.value}, cause_of(sealed).c_str());
    (void)stopping_.wait_for_us(parts_.again_us);  // seal_now() looks for a stop
  }
}

uint64_t LogSealer::waiting() const {
  const MutexLock lock(mutex_);
  return wanted_.size();
}

Status LogSealer::last_failure() const {
  const MutexLock lock(mutex_);
  return last_failure_;
}

// --- one try ---

// LSE2. In the place of whoever has the stream now.
StatusOr<cluster::EpochGrant> LogSealer::take(StreamId stream, bool* never_held) {
  cluster::StreamEpochs epochs(parts_.registry, parts_.keys);
  STRATA_ASSIGN_OR_RETURN(const auto holder, epochs.current(stream, deadline()));
  *never_held = !holder.has_value();
  if (*never_held) return cluster::EpochGrant{stream, Epoch{}, {}};
  const std::shared_ptr<registry::Lease> lease = parts_.lease();
  if (lease == nullptr) return error_lease_lost("this memory node has no lease in the registry");
  return epochs.acquire({stream, parts_.holder, Epoch{}, holder->writer}, *lease, deadline());
}

StatusOr<SealedLog> LogSealer::seal_now(StreamId stream) {
  if (stopping_.raised()) return error_interrupted("the memory node stops");
  STRATA_ASSIGN_OR_RETURN(
      const auto founded,
      cluster::LogCheckpoints(parts_.registry, parts_.keys).read(stream, deadline()));
  bool never_held = false;
  STRATA_ASSIGN_OR_RETURN(const cluster::EpochGrant grant, take(stream, &never_held));
  if (never_held) return SealedLog{};
  const StatusOr<Lsn> end = ask_storage(grant, !founded.has_value());
  // LSE3. Also after a failure: the next try, or the lease's end, frees what this does not.
  const Status released =
      cluster::StreamEpochs(parts_.registry, parts_.keys).release(grant, deadline());
  STRATA_RETURN_IF_ERROR(end.status());
  STRATA_RETURN_IF_ERROR(released);
  return SealedLog{grant.epoch, *end};
}

// What the recovery tells, in the executor's thread; kept as long as it may tell something.
struct LogSealer::Chosen {
  Mutex mutex{LatchRank::kLeaf};
  CondVar changed;
  std::optional<Lsn> end STRATA_GUARDED_BY(mutex);
  Status failed STRATA_GUARDED_BY(mutex);
};

// LSE1. A recovery that has chosen a log has the promises of a recovery quorum; it goes no further.
StatusOr<Lsn> LogSealer::ask_storage(const cluster::EpochGrant& grant, bool founding) {
  STRATA_ASSIGN_OR_RETURN(clients::QuorumClientOptions options, parts_.storage_now());  // LSE5
  options.stream = grant.stream;
  const auto chosen = std::make_shared<Chosen>();
  clients::QuorumEvents events;
  events.chosen = [chosen](const clients::ChosenLog& log) {
    const MutexLock lock(chosen->mutex);
    chosen->end = log.end;
    chosen->changed.notify_all();
  };
  events.begun = [](Lsn) {};
  events.durable = [](Lsn) {};
  events.ended = [chosen](const Status& why, Epoch) {
    const MutexLock lock(chosen->mutex);
    chosen->failed = why;
    chosen->changed.notify_all();
  };
  const std::optional<Lsn> start = founding ? std::optional<Lsn>(kFirstLsn) : std::nullopt;
  const clients::QuorumClient client(parts_.world, parts_.secret, std::move(options),
                                     {grant.epoch, grant.epoch.value}, start, std::move(events));
  const uint64_t until_us = monotonic_us() + parts_.seal_timeout_us;
  for (;;) {
    if (stopping_.raised()) return error_interrupted("the memory node stops");
    MutexLock lock(chosen->mutex);
    if (!chosen->end.has_value() && chosen->failed.ok() && monotonic_us() < until_us)
      chosen->changed.wait_for_us(lock, kLookUs);
    if (chosen->end.has_value()) return *chosen->end;
    // Fenced: it was given out to somebody else meanwhile; the next try asks for a larger one.
    if (!chosen->failed.ok())
      return is_fenced(chosen->failed) ? error_peer_down(cause_of(chosen->failed)) : chosen->failed;
    if (monotonic_us() >= until_us)
      return error_peer_down("too few storage nodes answer to seal log stream " +
                             std::to_string(grant.stream.value));
  }
}

}  // namespace strata::memnode
