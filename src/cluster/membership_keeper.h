// Keeps a node among the members: a lease of its own, and a new one when that is lost. Thread-safe.
//
//   MK1  While the registry can be reached, the node is a member again soon after its lease was
//        lost. That it is none for a while stops nothing: the epochs protect the data (S2).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/latch.h"
#include "cluster/membership.h"
#include "cluster/registry_calls.h"

namespace strata::cluster {

struct MembershipState {
  bool joined = false;
  uint64_t times_joined = 0;
  uint64_t lease_remaining_us = 0;
  std::string trouble;  // why it is not joined
};

class MembershipKeeper {
 public:
  struct Options {
    Member member;
    uint32_t lease_s = 10;
    uint64_t call_timeout_us = 2'000'000;
  };
  // The registry outlives it.
  MembershipKeeper(registry::Registry* registry, const ClusterKeys& keys, Options options);
  ~MembershipKeeper();  // leave()
  MembershipKeeper(const MembershipKeeper&) = delete;
  MembershipKeeper& operator=(const MembershipKeeper&) = delete;

  // Joins, and keeps it from then on. Once. Blocks as `calls` does. in_use: the name
  // is another node's.
  Status join(RegistryCalls* calls);
  // Not a member any more; the lease ends now if the registry can be reached. Blocks.
  void leave();
  [[nodiscard]] MembershipState state() const;

 private:
  Status attempt(uint64_t deadline_us);
  void keep();
  [[nodiscard]] bool joined() const STRATA_REQUIRES(mutex_);
  registry::Registry* const registry_;
  Membership membership_;
  const Options options_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  // The lease itself is used and destroyed without it: its handler takes it.
  std::shared_ptr<registry::Lease> lease_ STRATA_GUARDED_BY(mutex_);
  registry::LeaseId lease_id_ STRATA_GUARDED_BY(mutex_);
  registry::LeaseId last_lost_ STRATA_GUARDED_BY(mutex_);
  uint64_t times_joined_ STRATA_GUARDED_BY(mutex_) = 0;
  std::string trouble_ STRATA_GUARDED_BY(mutex_);
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the starter's and stopper's
};

}  // namespace strata::cluster
