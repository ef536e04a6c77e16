#include "fusion/authority/authority.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::fusion {
namespace {

// How much longer than its holder a lease is kept: clocks may differ by a part in 32 each way, and
// a holder takes that much off.
constexpr uint64_t with_drift(uint64_t us) noexcept { return us + us / 8; }

}  // namespace

Authority::Authority(const AuthorityOptions& options, Epoch epoch,
                     std::optional<AuthorityRecord> last, uint64_t sealed_us)
    : options_(options),
      epoch_(epoch),
      serves_from_us_(last.has_value() ? sealed_us + options.takeover_wait_us : sealed_us),
      durable_(last.has_value() ? *std::move(last) : AuthorityRecord{}),
      wanted_(durable_) {
  STRATA_ASSERT(durable_.epoch < epoch);
  wanted_.epoch = epoch;
}

Authority::Phase Authority::phase(uint64_t now_us) const noexcept {
  if (deposed_) return Phase::kDeposed;
  const bool began = durable_.epoch == epoch_;
  return began && now_us >= serves_from_us_ ? Phase::kServing : Phase::kWaiting;
}

bool Authority::serves(uint64_t now_us) const noexcept {
  return phase(now_us) == Phase::kServing && now_us < valid_until_us_;
}

// --- the authority stream ---

std::optional<Authority::Append> Authority::next_append(uint64_t now_us) {
  if (deposed_ || in_flight_.has_value()) return std::nullopt;
  const bool is_due = last_number_ == 0 || now_us >= last_sent_us_ + options_.renew_us;
  if (!is_due && wanted_ == durable_) return std::nullopt;
  last_sent_us_ = now_us;
  in_flight_ = InFlight{++last_number_, now_us, wanted_};
  return Append{last_number_, encode(wanted_)};
}

uint64_t Authority::next_append_at_us() const noexcept {
  return last_number_ == 0 ? 0 : last_sent_us_ + options_.renew_us;
}

void Authority::append_durable(uint64_t number) {
  if (deposed_ || !in_flight_.has_value() || in_flight_->number != number) return;
  durable_ = std::move(in_flight_->record);
  valid_until_us_ = in_flight_->sent_us + options_.lease_us;
  in_flight_.reset();
}

void Authority::append_failed(uint64_t number) {
  if (!in_flight_.has_value() || in_flight_->number != number) return;
  in_flight_.reset();
}

void Authority::raise_ceiling(uint64_t ceiling) {
  wanted_.ceiling = std::max(wanted_.ceiling, ceiling);
}

void Authority::raise_horizon(uint64_t horizon) {
  wanted_.horizon = std::max(wanted_.horizon, horizon);
}

// --- servers ---

Member* Authority::find(AuthorityRecord* record, NodeId server) noexcept {
  for (Member& member : record->members)
    if (member.server == server) return &member;
  return nullptr;
}

const Member* Authority::find(const AuthorityRecord& record, NodeId server) noexcept {
  for (const Member& member : record.members)
    if (member.server == server) return &member;
  return nullptr;
}

Status Authority::join(NodeId server, uint64_t life, uint64_t now_us) {
  if (deposed_) return error_fenced("another memory node has taken over");
  if (phase(now_us) != Phase::kServing) return error_peer_down("the memory node is not ready yet");
  const Member* const member = find(wanted_, server);
  if (member == nullptr) {
    if (wanted_.members.size() >= kMembersMax)
      return error_no_space("there are as many servers as there may be");
    wanted_.members.push_back({server, life, 0});
  } else if (member->life != life) {
    return error_in_use("an earlier process of this server has not been taken over yet");
  } else if (member->fence != 0) {
    return error_fenced("this server was fenced: another one goes on with what it had");
  }
  const Member* const durable = find(durable_, server);
  if (durable == nullptr || durable->life != life)
    return error_peer_down("the server is not a member yet");
  return ok_status();
}

StatusOr<uint64_t> Authority::renew(const proto::Heartbeat& beat, uint64_t now_us) {
  if (deposed_ || beat.epoch != epoch_)
    return error_fenced("this is not the epoch of the memory node");  // FU1
  const Member* const member = find(wanted_, beat.server);
  const Member* const durable = find(durable_, beat.server);
  if (member == nullptr || member->life != beat.life || member->fence != 0)
    return error_fenced("this server was fenced, or has never joined");
  if (durable == nullptr || durable->life != beat.life)  // FA1
    return error_peer_down("the server is not a member yet");
  if (!serves(now_us))
    return error_peer_down("the memory node cannot tell whether it still serves");
  Kept& kept = kept_[beat.server.value];
  kept.fences_heard = std::max(kept.fences_heard, beat.fences_heard);
  const uint64_t lease_us = valid_until_us_ - now_us;
  kept.lease_end_us = std::max(kept.lease_end_us, now_us + with_drift(lease_us));
  return lease_us;
}

void Authority::leave(NodeId server, uint64_t life) {
  std::erase_if(wanted_.members, [&](const Member& member) {
    return member.server == server && member.life == life && member.fence == 0;
  });
}

Status Authority::fence(NodeId server) {
  Member* const member = find(&wanted_, server);
  if (member == nullptr) return error_not_found();
  if (member->fence != 0) return ok_status();
  member->fence = ++wanted_.fences;
  std::erase_if(wanted_.fenced, [&](const proto::Fence& f) { return f.server == server; });
  wanted_.fenced.push_back({server, member->fence});
  return ok_status();
}

void Authority::exited(NodeId server, uint64_t life) {
  const Member* const member = find(wanted_, server);
  if (member != nullptr && member->life == life) kept_[server.value].lease_end_us = 0;
}

bool Authority::has_ended(NodeId server, uint64_t now_us) const {
  const Member* const member = find(durable_, server);
  if (member == nullptr || member->fence == 0 || phase(now_us) != Phase::kServing) return false;
  const auto kept = kept_.find(server.value);
  return kept == kept_.end() || now_us >= kept->second.lease_end_us;
}

bool Authority::may_release(NodeId server, uint64_t now_us) const {
  if (!has_ended(server, now_us)) return false;
  const uint64_t number = find(durable_, server)->fence;
  return std::all_of(wanted_.members.begin(), wanted_.members.end(), [&](const Member& other) {
    if (other.server == server) return true;
    const auto kept = kept_.find(other.server.value);
    // Who has no lease is told of the fence before it gets another one.
    return kept == kept_.end() || kept->second.fences_heard >= number ||
           now_us >= kept->second.lease_end_us;
  });
}

void Authority::forget(NodeId server) {
  const Member* const member = find(durable_, server);
  if (member == nullptr || member->fence == 0) return;
  std::erase_if(wanted_.members, [&](const Member& m) { return m.server == server; });
  kept_.erase(server.value);
}

std::vector<proto::Fence> Authority::fences_above(uint64_t number) const {
  std::vector<proto::Fence> fences;
  for (const proto::Fence& fence : durable_.fenced)
    if (fence.number > number) fences.push_back(fence);
  return fences;
}

}  // namespace strata::fusion
