#include "clients/fusion/remote_row_locks.h"

#include <utility>

#include "base/thread_name.h"
#include "proto/fusion_messages.h"

namespace strata::clients {
namespace {
constexpr uint64_t kPauseUs = 10'000;     // after a call that failed
constexpr uint64_t kNothingUs = 100'000;  // looked at again, though nobody has said anything
}  // namespace

RemoteRowLocks::RemoteRowLocks(RemoteCalls* calls, FusionLocks* locks,
                               std::function<void(const Status&)> refused, uint32_t wait_us)
    : calls_(calls), locks_(locks), refused_(std::move(refused)), wait_us_(wait_us) {
  locks_->use(calls_->caller().epoch);
  sender_ = std::thread([this] { send(); });
  hearer_ = std::thread([this] { hear(); });
}

RemoteRowLocks::~RemoteRowLocks() { stop(); }

void RemoteRowLocks::stop() {
  end();
  sender_interrupt_.interrupt();
  hearer_interrupt_.interrupt();
  if (sender_.joinable()) sender_.join();
  if (hearer_.joinable()) hearer_.join();
}

void RemoteRowLocks::end() {
  stopping_.raise();
  locks_->end();
  reported_.raise();
  joined_.raise();
}

bool RemoteRowLocks::wait_joined(uint64_t wait_us) {
  return joined_.wait_for_us(wait_us) && locks_->joined();
}

// Of a fence the lease's renewal tells; what a memory node of another build refuses is perhaps
// nothing but this (FC64). The reason first: whoever wakes up asks for it.
void RemoteRowLocks::end_because(const Status& why) {
  if (is_unsupported(why) && refused_ != nullptr) refused_(why);
  end();
}

void RemoteRowLocks::send() {
  name_this_thread("row-lock-send");
  const InterruptScope scope(&sender_interrupt_);
  while (!stopping_.raised()) {
    const auto batch = locks_->next_batch(kNothingUs);
    if (!batch.has_value()) {
      if (locks_->ended()) return end();  // perhaps before there was this: whoever waits is told
      continue;
    }
    const auto bytes = calls_->call(proto::kRowLocks, proto::encode(*batch));
    const auto reply = bytes.ok() ? proto::decode_row_locks_reply(*bytes) : bytes.status();
    if (reply.ok()) {
      locks_->heard(batch->epoch, *reply);
      reported_.raise();
      if (locks_->joined()) joined_.raise();
      continue;
    }
    if (has_ended(reply.status())) return end_because(reply.status());
    stopping_.wait_for_us(kPauseUs);
  }
}

void RemoteRowLocks::hear() {
  name_this_thread("row-lock-hear");
  const InterruptScope scope(&hearer_interrupt_);
  reported_.wait();
  while (!stopping_.raised()) {
    const proto::LockBatch poll = locks_->poll();
    const proto::RowLockEventsRequest request{
        {poll.server, poll.life, poll.epoch}, poll.heard, wait_us_};
    const auto bytes = calls_->call(proto::kRowLockEvents, proto::encode(request), wait_us_);
    const auto reply = bytes.ok() ? proto::decode_row_locks_reply(*bytes) : bytes.status();
    if (reply.ok()) {
      locks_->heard(poll.epoch, *reply);
      if (locks_->joined()) joined_.raise();
      continue;
    }
    if (has_ended(reply.status())) return end_because(reply.status());
    stopping_.wait_for_us(kPauseUs);
  }
}

}  // namespace strata::clients
