#include "cluster/membership_keeper.h"

#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/thread_name.h"

namespace strata::cluster {

using registry::Lease;
using registry::LeaseId;

MembershipKeeper::MembershipKeeper(registry::Registry* registry, const ClusterKeys& keys,
                                   Options options)
    : registry_(registry), membership_(registry, keys), options_(std::move(options)) {}

MembershipKeeper::~MembershipKeeper() { leave(); }

bool MembershipKeeper::joined() const { return lease_ != nullptr && last_lost_ != lease_id_; }

Status MembershipKeeper::attempt(uint64_t deadline_us) {
  auto lease = registry_->grant_lease(
      options_.lease_s,
      [this](LeaseId lost) {
        {
          const MutexLock lock(mutex_);
          last_lost_ = lost;
        }
        changed_.notify_all();
      },
      deadline_us);
  Status joined = lease.status();
  if (joined.ok()) {
    joined = membership_.join(options_.member, **lease, deadline_us).status();
    if (is_not_found(joined)) joined = error_lease_lost("the lease was gone");
  }
  const LeaseId id = joined.ok() ? (*lease)->id() : LeaseId{};
  const MutexLock lock(mutex_);
  trouble_ = std::string(joined.message());
  if (!joined.ok()) return joined;  // the lease, if any, ends after the lock
  STRATA_ASSERT(lease_ == nullptr);
  lease_ = *std::move(lease);
  lease_id_ = id;
  ++times_joined_;
  return ok_status();
}

Status MembershipKeeper::join(RegistryCalls* calls) {
  STRATA_RETURN_IF_ERROR(calls->until_reached(
      "joining the cluster", [this](uint64_t deadline_us) { return attempt(deadline_us); }));
  STRATA_ASSERT(!thread_.joinable());
  thread_ = std::thread([this] { keep(); });
  return ok_status();
}

void MembershipKeeper::keep() {
  name_this_thread("membership");
  GrowingPause pause;
  MutexLock lock(mutex_);
  while (!stopped_) {
    if (joined()) {
      changed_.wait(lock);
      continue;
    }
    std::shared_ptr<Lease> lost = std::move(lease_);
    lock.unlock();
    if (lost != nullptr) {
      diag(Severity::kWarning, "the lease of node %s was lost; joining again",
           options_.member.name.c_str());
      lost.reset();
    }
    const Status done = attempt(registry_->now_us() + options_.call_timeout_us);
    if (done.ok()) {
      diag(Severity::kInfo, "node %s is a member again", options_.member.name.c_str());
      pause.reset();
    } else {
      diag(Severity::kWarning, "node %s cannot join: %s", options_.member.name.c_str(),
           std::string(done.message()).c_str());
    }
    lock.lock();
    if (!done.ok())
      changed_.wait_for_us(lock, pause.next_us(),
                           [this]() STRATA_REQUIRES(mutex_) { return stopped_; });
  }
}

void MembershipKeeper::leave() {
  std::shared_ptr<Lease> lease;
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  {
    const MutexLock lock(mutex_);
    lease = std::move(lease_);
  }
  if (lease == nullptr) return;
  const Status ended = lease->revoke(registry_->now_us() + options_.call_timeout_us);
  if (!ended.ok())
    diag(Severity::kWarning, "node %s could not leave; its entry goes with its lease: %s",
         options_.member.name.c_str(), std::string(ended.message()).c_str());
}

MembershipState MembershipKeeper::state() const {
  MembershipState state;
  std::shared_ptr<Lease> lease;
  {
    const MutexLock lock(mutex_);
    if (joined()) lease = lease_;
    state.times_joined = times_joined_;
    state.trouble = trouble_;
    if (state.trouble.empty() && lease == nullptr)
      state.trouble = stopped_ ? "it has left" : "its lease was lost";
  }
  if (lease == nullptr) return state;
  state.joined = lease->valid();
  state.lease_remaining_us = lease->remaining_us();
  if (!state.joined) state.trouble = "its lease was lost";
  return state;
}

}  // namespace strata::cluster
