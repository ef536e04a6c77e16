#include "clients/fusion/remote_owners.h"

#include <utility>

#include "base/clock.h"
#include "base/thread_name.h"
#include "base/wait_interrupt.h"

namespace strata::clients {

static_assert(static_cast<uint8_t>(TrxState::kAborted) == 5);  // as TrxOutcome takes it to be

RemoteOwners::RemoteOwners(RemoteCalls* calls, const LeaseCheck* lease,
                           const RemoteOwnersOptions& options)
    : calls_(calls), lease_(lease), options_(options) {
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < options_.readers; ++i)
    threads_.emplace_back([this, queue = &reads_] { work(queue); });
  for (size_t i = 0; i < options_.waiters; ++i)
    threads_.emplace_back([this, queue = &waits_] { work(queue); });
}

RemoteOwners::~RemoteOwners() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    reads_.changed.notify_all();
    waits_.changed.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

// --- this server's transactions ---

Status RemoteOwners::join(NodeId, OwnTransactions* own) {
  const MutexLock lock(mutex_);
  own_ = own;
  return ok_status();
}

void RemoteOwners::leave(NodeId) noexcept {
  MutexLock lock(mutex_);
  own_ = nullptr;
  while (asking_ != 0) unused_.wait(lock);
}

OwnTransactions* RemoteOwners::begin_asking() const {
  const MutexLock lock(mutex_);
  if (own_ != nullptr) ++asking_;
  return own_;
}

void RemoteOwners::end_asking() const {
  const MutexLock lock(mutex_);
  if (--asking_ == 0) unused_.notify_all();
}

uint64_t RemoteOwners::own_bound() const {
  const OwnTransactions* const own = begin_asking();
  if (own == nullptr) return 0;
  const uint64_t bound = own->own_bound();
  end_asking();
  return bound;
}

// FC25
void RemoteOwners::asked(const proto::OwnerQuestion& question, Epoch asked_under) {
  const MutexLock lock(mutex_);
  Queue& queue = question.decided ? waits_ : reads_;
  if (queue.questions.size() >= options_.questions_max) {
    counters_.dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  queue.questions.push_back({question, asked_under});
  queue.changed.notify_one();
}

void RemoteOwners::work(Queue* queue) {
  name_this_thread("tit-answers");
  for (;;) {
    Asked asked;
    {
      MutexLock lock(mutex_);
      while (queue->questions.empty() && !stopping_) queue->changed.wait(lock);
      if (stopping_) return;
      asked = queue->questions.front();
      queue->questions.pop_front();
    }
    answer(asked);
  }
}

void RemoteOwners::answer(const Asked& asked) {
  const proto::OwnerQuestion& question = asked.question;
  StatusOr<TrxLookup> found = error_not_found();  // FC23
  OwnTransactions* const own = node_of(question.trx) == calls_->server() ? begin_asking() : nullptr;
  if (own != nullptr) {
    const uint64_t sequence = sequence_of(question.trx);
    found = question.decided ? own->own_outcome(sequence) : own->own_state(sequence);
    end_asking();
  }
  proto::AnswerAskersRequest request{calls_->caller_under(asked.epoch), {}};
  request.answers.push_back({question.number, found.status(), {}});
  if (found.ok())
    request.answers.back().outcome = {static_cast<uint8_t>(found->state), found->cts,
                                      found->commit_lsn};
  counters_.answered.fetch_add(1, std::memory_order_relaxed);
  // If it is lost the other one asks again.
  calls_->call(proto::kAnswerAskers, proto::encode(request)).status().IgnoreError();
}

// --- transactions of others ---

StatusOr<TrxLookup> RemoteOwners::ask(TrxId id, bool decided) {
  counters_.asked.fetch_add(1, std::memory_order_relaxed);
  const proto::AskOwnerRequest request{calls_->caller(), id, decided, options_.wait_us};
  STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                          calls_->call(proto::kAskOwner, proto::encode(request), options_.wait_us));
  STRATA_ASSIGN_OR_RETURN(const proto::TrxOutcome outcome, proto::decode_ask_owner_reply(bytes));
  return TrxLookup{static_cast<TrxState>(outcome.state), outcome.cts, outcome.commit};
}

StatusOr<TrxLookup> RemoteOwners::read(TrxId id) {
  return ask_again(id, false, monotonic_us() + options_.read_us_max);
}

StatusOr<TrxLookup> RemoteOwners::wait_decided(TrxId id) { return ask_again(id, true, UINT64_MAX); }

// FC24
StatusOr<TrxLookup> RemoteOwners::ask_again(TrxId id, bool decided, uint64_t deadline_us) {
  uint64_t leased_us = monotonic_us();
  for (;;) {
    StatusOr<TrxLookup> found = ask(id, decided);
    if (found.ok() && !(decided && found->state == TrxState::kCommitting)) return found;
    const bool again = found.ok() || may_be_repeated(found.status());
    if (!again || monotonic_us() >= deadline_us) return found;
    if (lease_->valid(calls_->epoch()))
      leased_us = monotonic_us();
    else if (monotonic_us() >= leased_us + options_.lease_us_max)
      return error_lease_lost("this server has no lease from the memory node at the moment");
    counters_.asked_again.fetch_add(1, std::memory_order_relaxed);
    if (!pause()) return error_interrupted();
  }
}

bool RemoteOwners::pause() {
  CondVarSleep sleeper(&mutex_, &never_);
  WaitInterrupt* const interrupt = WaitInterrupt::current();
  const WaitInterrupt::Asleep asleep(interrupt, &sleeper);
  MutexLock lock(mutex_);
  if (is_interrupted_now(interrupt)) return false;
  never_.wait_for_us(lock, options_.pause_us);
  return !is_interrupted_now(interrupt);
}

}  // namespace strata::clients
