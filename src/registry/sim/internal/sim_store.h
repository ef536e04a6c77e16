// The insides of sim.h: the store, and what the clients have in it: that, too, is touched with the
// store's mutex only.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "base/rng.h"
#include "registry/lease_term.h"
#include "registry/sim/sim.h"

namespace strata::registry {

constexpr uint64_t kNever = UINT64_MAX;

struct SimLeaseState {
  SimLeaseState(LeaseId given, uint64_t ttl, uint64_t now)
      : id(given),
        ttl_us(ttl),
        term(internal::LeaseTerm::end_of(now, ttl / 1'000'000)),
        renew_us(now + ttl / 3) {}
  const LeaseId id;
  const uint64_t ttl_us;
  internal::LeaseTerm term;
  uint64_t renew_us;
  bool ended = false;  // revoked, destroyed, or its handler was called
  LeaseLostHandler on_lost;
};

struct SimWatchState {
  std::string prefix;
  Version delivered;         // 0: a snapshot comes next
  uint64_t due_us = kNever;  // of the next batch, once something is there for it
  WatchHandler handler;
};

struct SimClient {
  SimFaults faults;
  std::pair<SimFault, uint32_t> ordered;  // after so many more requests
  bool connected = true;
  bool paused = false;
  std::list<std::shared_ptr<SimLeaseState>> leases;
  std::list<std::shared_ptr<SimWatchState>> watches;
};

class SimStore::Impl {
 public:
  Impl(Clock now_us, uint64_t seed) : now_us_(std::move(now_us)), rng_(seed) {}

  [[nodiscard]] uint64_t now_us() const { return now_us_(); }
  uint64_t run_due();
  void set_up(bool up);
  void compact();
  void observe(std::function<void(Version, const Contents&)> observer);
  Contents contents();
  Version version();
  bool has_lease(LeaseId lease);

  // --- clients ---
  void add(SimClient* client);
  void remove(SimClient* client);
  // Waits until no handler of `state` (a lease's or a watch's) runs.
  void wait_for_handler_locked(const void* state) STRATA_REQUIRES(mutex);
  StatusOr<Version> change(SimClient* client, absl::Span<const Change> changes,
                           uint64_t deadline_us, std::vector<KeyValue>* found);
  StatusOr<Listing> read(SimClient* client, std::string_view first, bool prefix,
                         uint64_t deadline_us);
  StatusOr<std::shared_ptr<SimLeaseState>> grant(SimClient* client, uint32_t ttl_s,
                                                 LeaseLostHandler on_lost, uint64_t deadline_us);
  Status revoke(SimClient* client, LeaseId lease, uint64_t deadline_us);

  Mutex mutex{LatchRank::kLeaf};

 private:
  struct Delayed {
    uint64_t due_us;
    std::vector<Change> changes;
  };
  struct LeaseRecord {
    uint64_t ttl_us;
    uint64_t end_us;
  };
  using Handler = std::function<void()>;

  void settle_locked() STRATA_REQUIRES(mutex);
  // OK: the request arrives; *fault says what happens to it then.
  Status arrive_locked(SimClient* client, uint64_t deadline_us, SimFault* fault)
      STRATA_REQUIRES(mutex);
  SimFault draw_fault_locked(SimClient* client) STRATA_REQUIRES(mutex);
  [[nodiscard]] bool reachable_locked(const SimClient& client) const STRATA_REQUIRES(mutex) {
    return up_ && client.connected && !client.paused;
  }
  StatusOr<Version> apply_locked(absl::Span<const Change> changes, std::vector<KeyValue>* found)
      STRATA_REQUIRES(mutex);
  void record_locked(std::vector<WatchEvent> events) STRATA_REQUIRES(mutex);
  void drop_lease_locked(LeaseId lease) STRATA_REQUIRES(mutex);
  Handler next_handler_locked() STRATA_REQUIRES(mutex);
  Handler lease_handler_locked(SimClient* client) STRATA_REQUIRES(mutex);
  Handler watch_handler_locked(SimClient* client) STRATA_REQUIRES(mutex);
  void renew_locked(SimClient* client, SimLeaseState* lease) STRATA_REQUIRES(mutex);
  bool fill_batch_locked(SimWatchState* watch, WatchBatch* batch) STRATA_REQUIRES(mutex);
  [[nodiscard]] uint64_t next_due_locked() const STRATA_REQUIRES(mutex);

  const Clock now_us_;
  Rng rng_ STRATA_GUARDED_BY(mutex);
  CondVar handler_ended_;
  const void* running_ STRATA_GUARDED_BY(mutex) = nullptr;  // whose handler runs
  std::thread::id runner_ STRATA_GUARDED_BY(mutex);
  std::function<void(Version, const Contents&)> observer_ STRATA_GUARDED_BY(mutex);

  bool up_ STRATA_GUARDED_BY(mutex) = true;
  Contents keys_ STRATA_GUARDED_BY(mutex);
  uint64_t revision_ STRATA_GUARDED_BY(mutex) = 1;
  std::deque<std::vector<WatchEvent>> history_
      STRATA_GUARDED_BY(mutex);  // one entry per revision, the last is revision_
  std::map<LeaseId, LeaseRecord> leases_ STRATA_GUARDED_BY(mutex);
  uint64_t last_lease_ STRATA_GUARDED_BY(mutex) = 0;
  std::vector<Delayed> delayed_ STRATA_GUARDED_BY(mutex);
  std::vector<SimClient*> clients_ STRATA_GUARDED_BY(mutex);
};

}  // namespace strata::registry
