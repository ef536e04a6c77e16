#include "clients/fusion/remote_events.h"

#include <algorithm>
#include <utility>

#include "base/thread_name.h"
#include "proto/methods.h"

namespace strata::clients {
namespace {
constexpr uint64_t kPauseUs = 20'000;  // after a call that failed
}  // namespace

RemoteEvents::RemoteEvents(RemoteCalls* calls, const Hearers& hearers,
                           std::function<void(const Status&)> ended, uint32_t wait_us)
    : calls_(calls),
      hearers_(hearers),
      ended_(std::move(ended)),
      wait_us_(wait_us),
      thread_([this] { work(); }) {}

RemoteEvents::~RemoteEvents() { stop(); }

void RemoteEvents::stop() {
  stopping_.raise();
  interrupt_.interrupt();
  if (thread_.joinable()) thread_.join();
}

void RemoteEvents::work() {
  name_this_thread("fusion-events");
  const InterruptScope scope(&interrupt_);
  while (!stopping_.raised()) {
    const proto::FusionEventsRequest request{calls_->caller(), wait_us_};
    const auto bytes = calls_->call(proto::kFusionEvents, proto::encode(request), wait_us_);
    const auto reply = bytes.ok() ? proto::decode_fusion_events_reply(*bytes) : bytes.status();
    if (!reply.ok()) {
      if (has_ended(reply.status())) {
        if (ended_ != nullptr) ended_(reply.status());
        return;
      }
      if (stopping_.wait_for_us(kPauseUs)) return;
      continue;
    }
    hand_on(*reply, request.caller.epoch);
  }
}

void RemoteEvents::epoch_is_over(Epoch epoch) {
  const MutexLock lock(handing_);
  over_ = std::max(over_, epoch);
}

// FC26
void RemoteEvents::hand_on(const proto::FusionEventsReply& reply, Epoch epoch) {
  const MutexLock lock(handing_);
  if (epoch <= over_) return;  // FC57
  if (hearers_.owners != nullptr)
    for (const proto::OwnerQuestion& question : reply.questions)
      hearers_.owners->asked(question, epoch);
  if (hearers_.pages != nullptr) {
    for (const proto::PageGrant& grant : reply.grants) hearers_.pages->granted(grant);
    for (const proto::PageGiveUp& give_up : reply.give_ups) hearers_.pages->asked_back(give_up);
  }
  const proto::NameNews& names = reply.names;
  if (hearers_.names != nullptr) {
    for (const proto::NameGrant& grant : names.grants) hearers_.names->granted(grant);
    for (const proto::NameGiveUp& give_up : names.give_ups) hearers_.names->asked_back(give_up);
    for (const proto::SpaceLeave& leave : names.leave) hearers_.names->asked_to_leave(leave);
    for (const proto::SpaceIsLeft& left : names.left) hearers_.names->is_left(left);
  }
  if (hearers_.reuse != nullptr && names.reuse_round != 0)
    hearers_.reuse->asked({names.reuse_round});
}

}  // namespace strata::clients
