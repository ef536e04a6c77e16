#include "fusion/names/dropped_spaces.h"

#include <utility>

namespace strata::fusion {

using proto::NameCaller;
using proto::SpaceIsLeft;
using proto::SpaceLeave;

Status DroppedSpaces::joined(NodeId server, uint64_t life) {
  const auto [it, is_new] = members_.try_emplace(server.value, Member{.life = life});
  if (is_new || (it->second.life == life && !it->second.fenced)) return ok_status();
  return error_in_use("an earlier process of this server has not been released yet");
}

void DroppedSpaces::left(NodeId server, uint64_t life) {
  const auto it = members_.find(server.value);
  if (it == members_.end() || it->second.life != life || it->second.fenced) return;
  gone(server);
}

void DroppedSpaces::fence(NodeId server) {
  if (const auto it = members_.find(server.value); it != members_.end()) it->second.fenced = true;
}

void DroppedSpaces::release_fenced(NodeId server) {
  const auto it = members_.find(server.value);
  if (it == members_.end() || !it->second.fenced) return;
  gone(server);
}

void DroppedSpaces::gone(NodeId server) {
  for (auto it = spaces_.begin(); it != spaces_.end();) {
    const auto at = it++;
    if (at->second.dropped_by == server)
      forget(at);  // NL8
    else
      heard(at, server);
  }
  members_.erase(server.value);
}

Status DroppedSpaces::check_caller(const NameCaller& caller) const {
  const auto it = members_.find(caller.server.value);
  if (caller.epoch != epoch_ || it == members_.end() || it->second.life != caller.life ||
      it->second.fenced)
    return error_fenced("this server was fenced, or knows another memory node");
  return ok_status();
}

StatusOr<bool> DroppedSpaces::dropped(const NameCaller& caller, SpaceId space, uint64_t now_us) {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  auto it = spaces_.find(space.value);
  if (it == spaces_.end()) {
    Member& member = members_.at(caller.server.value);
    if (member.announced >= options_.of_server_max)
      return error_busy("too many dropped spaces have not been left by all servers yet");
    it = spaces_.try_emplace(space.value).first;
    it->second.dropped_by = caller.server;
    ++member.announced;
    for (const auto& [other, there] : members_)
      if (other != caller.server.value) it->second.awaited.insert(other);
    ask(it, now_us);
  }
  if (!it->second.awaited.empty()) return false;
  if (it->second.dropped_by == caller.server) forget(it);  // NL7
  return true;
}

Status DroppedSpaces::has_left(const NameCaller& caller, absl::Span<const SpaceId> spaces) {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  for (const SpaceId space : spaces)
    if (const auto it = spaces_.find(space.value); it != spaces_.end()) heard(it, caller.server);
  return ok_status();
}

void DroppedSpaces::heard(Spaces::iterator it, NodeId server) {
  Space& space = it->second;
  space.awaited.erase(server.value);
  if (!space.awaited.empty() || std::exchange(space.told, true)) return;
  const auto member = members_.find(space.dropped_by.value);
  if (member == members_.end() || member->second.fenced) return;
  outgoing_.push_back({space.dropped_by, member->second.life, SpaceIsLeft{SpaceId{it->first}}});
}

void DroppedSpaces::forget(Spaces::iterator it) {
  const auto member = members_.find(it->second.dropped_by.value);
  if (member != members_.end()) --member->second.announced;
  spaces_.erase(it);
}

void DroppedSpaces::ask(Spaces::iterator it, uint64_t now_us) {
  it->second.asked_us = now_us;
  for (const uint8_t server : it->second.awaited) {
    const Member& member = members_.at(server);
    if (!member.fenced)
      outgoing_.push_back({NodeId{server}, member.life, SpaceLeave{SpaceId{it->first}}});
  }
}

std::vector<DroppedSpaces::Outgoing> DroppedSpaces::take_outgoing() {
  return std::exchange(outgoing_, {});
}

void DroppedSpaces::tick(uint64_t now_us) {
  for (auto it = spaces_.begin(); it != spaces_.end(); ++it)
    if (now_us >= it->second.asked_us + options_.ask_again_us) ask(it, now_us);
}

}  // namespace strata::fusion
