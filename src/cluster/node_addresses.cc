#include "cluster/node_addresses.h"

#include <algorithm>

namespace strata::cluster {

NodeAddresses::NodeAddresses(Registry* registry, const ClusterKeys& keys) : registry_(registry) {
  watch_ = Membership(registry, keys).watch([this](const std::vector<Member>& members) {
    learn(members);
  });
}

NodeAddresses::~NodeAddresses() { watch_.reset(); }

void NodeAddresses::learn(const std::vector<Member>& members) {
  {
    const MutexLock lock(mutex_);
    for (const Member& member : members) addresses_[member.name] = member.address;  // NA1
  }
  changed_.notify_all();
}

std::string NodeAddresses::address_of(std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto it = addresses_.find(name);
  return it == addresses_.end() ? std::string() : it->second;
}

size_t NodeAddresses::known(const std::vector<std::string>& names) const {
  return static_cast<size_t>(
      std::count_if(addresses_.begin(), addresses_.end(), [&](const auto& e) {
        return std::find(names.begin(), names.end(), e.first) != names.end();
      }));
}

bool NodeAddresses::wait_for(const std::vector<std::string>& names, size_t at_least,
                             uint64_t deadline_us) const {
  MutexLock lock(mutex_);
  while (known(names) < at_least) {
    const uint64_t now_us = registry_->now_us();
    if (now_us >= deadline_us) return false;
    // Not longer than a condition variable's clock can count.
    constexpr uint64_t kWaitUsMax = 3'600'000'000;
    changed_.wait_for_us(lock, std::min(deadline_us - now_us, kWaitUsMax));
  }
  return true;
}

}  // namespace strata::cluster
