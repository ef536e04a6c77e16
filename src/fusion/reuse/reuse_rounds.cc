#include "fusion/reuse/reuse_rounds.h"

#include <algorithm>
#include <utility>

namespace strata::fusion {

using proto::NameCaller;

Status ReuseRounds::joined(NodeId server, uint64_t life) {
  const auto [it, is_new] = members_.try_emplace(server.value);
  Member& member = it->second;
  if (is_new) member = Member{.life = life, .reported = last_round_};  // RU2
  if (member.life == life && !member.fenced) return ok_status();
  return error_in_use("an earlier process of this server has not been released yet");
}

void ReuseRounds::resumed(NodeId server, uint64_t round) {
  last_round_ = std::max(last_round_, round);
  if (const auto it = members_.find(server.value); it != members_.end()) it->second.reported = 0;
}

void ReuseRounds::left(NodeId server, uint64_t life) {
  const auto it = members_.find(server.value);
  if (it != members_.end() && it->second.life == life && !it->second.fenced) members_.erase(it);
}

void ReuseRounds::fence(NodeId server) {
  if (const auto it = members_.find(server.value); it != members_.end()) it->second.fenced = true;
}

void ReuseRounds::release_fenced(NodeId server) {
  const auto it = members_.find(server.value);
  if (it != members_.end() && it->second.fenced) members_.erase(it);
}

Status ReuseRounds::check_caller(const NameCaller& caller) const {
  const auto it = members_.find(caller.server.value);
  if (caller.epoch != epoch_ || it == members_.end() || it->second.life != caller.life ||
      it->second.fenced)
    return error_fenced("this server was fenced, or knows another memory node");
  return ok_status();
}

StatusOr<uint64_t> ReuseRounds::begin(const NameCaller& caller, uint64_t now_us) {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  ++last_round_;
  for (auto& [server, member] : members_)
    if (server != caller.server.value) ask(server, &member, now_us);
  return last_round_;
}

StatusOr<bool> ReuseRounds::ended(const NameCaller& caller, uint64_t round) const {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  if (round > last_round_) return error_invalid_argument("there has been no such round");
  return std::all_of(members_.begin(), members_.end(), [&](const auto& member) {
    return member.first == caller.server.value || member.second.reported >= round;
  });
}

Status ReuseRounds::report(const NameCaller& caller, uint64_t round) {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  if (round > last_round_) return error_invalid_argument("there has been no such round");
  uint64_t& reported = members_.at(caller.server.value).reported;
  reported = std::max(reported, round);
  return ok_status();
}

void ReuseRounds::ask(uint8_t server, Member* member, uint64_t now_us) {
  if (member->fenced) return;
  member->asked_us = now_us;
  outgoing_.push_back({NodeId{server}, member->life, {last_round_}});
}

std::vector<ReuseRounds::Outgoing> ReuseRounds::take_outgoing() {
  return std::exchange(outgoing_, {});
}

void ReuseRounds::tick(uint64_t now_us) {
  for (auto& [server, member] : members_)
    if (member.reported < last_round_ && now_us >= member.asked_us + options_.ask_again_us)
      ask(server, &member, now_us);
}

}  // namespace strata::fusion
