#include "storenode/logstore/self_catch_up.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/latch.h"
#include "quorum/catch_up.h"

namespace strata {

using quorum::CatchUp;

struct SelfCatchUp::Shared : std::enable_shared_from_this<SelfCatchUp::Shared> {
  Shared(LogStore* log_store, StreamId id, Fetch fetch_from)
      : store(log_store), stream(id), fetch(std::move(fetch_from)) {}

  LogStore* const store;
  const StreamId stream;
  const Fetch fetch;

  Mutex mutex{LatchRank::kCatchUp};
  std::optional<CatchUp> steps STRATA_GUARDED_BY(mutex);  // nothing: idle
  quorum::CatchUpOrder order STRATA_GUARDED_BY(mutex);
  uint64_t run STRATA_GUARDED_BY(mutex) =
      0;  // counts orders: answers to an earlier one are ignored
  size_t tries STRATA_GUARDED_BY(mutex) = 0;  // sources that failed in a row
  size_t cut STRATA_GUARDED_BY(mutex) =
      0;                                // of these, those whose log begins behind what is needed
  Lsn begins STRATA_GUARDED_BY(mutex);  // the lowest place where one of these does
  size_t source STRATA_GUARDED_BY(mutex) = 0;

  // Carries out the step that stands. Called without the mutex.
  void go_on(uint64_t of_run);
  void on_target(uint64_t of_run, const quorum::ChangeReply& reply);
  void on_read(uint64_t of_run, quorum::ReadReply reply);
  LogStore::ChangeDone target_done(uint64_t of_run) {
    return [self = shared_from_this(), of_run](const quorum::ChangeReply& reply) {
      self->on_target(of_run, reply);
    };
  }
};

SelfCatchUp::SelfCatchUp(LogStore* store, StreamId stream, Fetch fetch)
    : shared_(std::make_shared<Shared>(store, stream, std::move(fetch))) {}

SelfCatchUp::~SelfCatchUp() {
  const MutexLock lock(shared_->mutex);
  shared_->steps.reset();
  ++shared_->run;
}

bool SelfCatchUp::running() const {
  const MutexLock lock(shared_->mutex);
  return shared_->steps.has_value();
}

void SelfCatchUp::order(quorum::CatchUpOrder order) {
  uint64_t run = 0;
  {
    const MutexLock lock(shared_->mutex);
    const Epoch epoch = order.tenure.holder.epoch;
    if (order.sources.empty() || order.until < order.tenure.start) return;
    if (shared_->steps.has_value() && shared_->order.tenure.holder.epoch >= epoch) return;
    shared_->steps.emplace(CatchUp::Options{
        .tenure = order.tenure, .voter_end = order.voter_end, .goal = order.until});
    shared_->order = std::move(order);
    shared_->tries = shared_->cut = 0;
    run = ++shared_->run;
  }
  shared_->go_on(run);
}

void SelfCatchUp::Shared::go_on(uint64_t of_run) {
  MutexLock lock(mutex);
  if (run != of_run || !steps.has_value()) return;
  switch (steps->state()) {
    case CatchUp::State::kBegin: {
      quorum::BeginRequest request = steps->begin_request();
      lock.unlock();
      return store->begin_epoch(stream, std::move(request), target_done(of_run));
    }
    case CatchUp::State::kFetch: {
      STRATA_ASSERT(!order.sources.empty());
      const quorum::ReadRequest request = steps->read_request();
      const quorum::ReplicaIndex from = order.sources[source % order.sources.size()];
      lock.unlock();
      return fetch(from, request, [self = shared_from_this(), of_run](quorum::ReadReply reply) {
        self->on_read(of_run, std::move(reply));
      });
    }
    case CatchUp::State::kStore: {
      if (steps->stores_as_append()) {
        quorum::AppendRequest request = steps->append_request();
        lock.unlock();
        return store->append(stream, std::move(request), target_done(of_run));
      }
      quorum::CatchUpRequest request = steps->catch_up_request();
      lock.unlock();
      return store->catch_up(stream, std::move(request), target_done(of_run));
    }
    case CatchUp::State::kDone:
    case CatchUp::State::kFailed:
      return steps.reset();
  }
}

void SelfCatchUp::Shared::on_target(uint64_t of_run, const quorum::ChangeReply& reply) {
  {
    const MutexLock lock(mutex);
    if (run != of_run || !steps.has_value()) return;
    if (!steps->on_target(reply)) return steps.reset();  // the local disk is in trouble
  }
  go_on(of_run);
}

void SelfCatchUp::Shared::on_read(uint64_t of_run, quorum::ReadReply reply) {
  {
    const MutexLock lock(mutex);
    if (run != of_run || !steps.has_value()) return;
    if (is_out_of_range(reply.status) && reply.start > reply.from) {
      begins = cut == 0 ? reply.start : std::min(begins, reply.start);
      ++cut;
    }
    if (steps->on_read(std::move(reply))) {
      tries = cut = 0;
    } else {
      ++source;
      STRATA_ASSERT(cut <= tries + 1);
      if (++tries >= order.sources.size()) {
        // CU3: every one of them says so, none is merely away.
        if (cut < tries || !steps->raise_base(begins)) return steps.reset();
        tries = cut = 0;
      }
    }
  }
  go_on(of_run);
}

}  // namespace strata
