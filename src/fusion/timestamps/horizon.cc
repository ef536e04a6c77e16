#include "fusion/timestamps/horizon.h"

#include <algorithm>

namespace strata::fusion {

Horizon::Horizon(uint64_t durable_horizon) noexcept
    : horizon_(std::max<uint64_t>(durable_horizon, 1)) {}

void Horizon::joined(NodeId server) { servers_.try_emplace(server.value); }

void Horizon::ended(NodeId server) { servers_.erase(server.value); }

void Horizon::said(NodeId server, Cts oldest_view, uint64_t bound) {
  const auto it = servers_.find(server.value);
  if (it == servers_.end()) return;
  it->second.said = true;
  it->second.oldest_view = oldest_view.value;
  it->second.bound = std::max(it->second.bound, bound);
}

uint64_t Horizon::wanted() {
  if (servers_.empty()) return horizon_;
  uint64_t least = UINT64_MAX;
  for (const auto& [server, said] : servers_)
    least = std::min(least, said.said ? said.oldest_view : horizon_);
  horizon_ = std::max(horizon_, least);
  return horizon_;
}

std::vector<proto::HeartbeatReply::Bound> Horizon::bounds() const {
  std::vector<proto::HeartbeatReply::Bound> bounds;
  for (const auto& [server, said] : servers_)
    if (said.said) bounds.push_back({NodeId{server}, said.bound});
  return bounds;
}

}  // namespace strata::fusion
