#include "clients/fusion/remote_events.h"

#include <utility>

#include "base/thread_name.h"
#include "proto/fusion_messages.h"

namespace strata::clients {
namespace {
constexpr uint64_t kPauseUs = 20'000;  // after a call that failed
}  // namespace

RemoteEvents::RemoteEvents(RemoteCalls* calls, FusionPages* pages, RemoteOwners* owners,
                           std::function<void(const Status&)> ended, uint32_t wait_us)
    : calls_(calls),
      pages_(pages),
      owners_(owners),
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
    for (const proto::OwnerQuestion& question : reply->questions)
      if (owners_ != nullptr) owners_->asked(question);
    if (pages_ == nullptr) continue;
    for (const proto::PageGrant& grant : reply->grants) pages_->granted(grant);
    for (const proto::PageGiveUp& give_up : reply->give_ups) pages_->asked_back(give_up);
  }
}

}  // namespace strata::clients
