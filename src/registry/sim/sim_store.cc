#include "registry/sim/internal/sim_store.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::registry {
namespace {

Status lost_change() {
  return error_outcome_unknown("sent to the registry, but the reply was lost");
}

// Whatever may be asked again.
Status lost_read(SimFault fault) {
  return fault == SimFault::kLostReply ? error_timed_out("no reply in time")
                                       : error_peer_down("the connection broke");
}

}  // namespace

// --- the store ---

// What happens by time alone, in the order of time.
void SimStore::Impl::settle_locked() {
  for (;;) {
    const uint64_t now = now_us();
    auto request =
        std::min_element(delayed_.begin(), delayed_.end(),
                         [](const Delayed& a, const Delayed& b) { return a.due_us < b.due_us; });
    auto lease = std::min_element(leases_.begin(), leases_.end(), [](const auto& a, const auto& b) {
      return a.second.end_us < b.second.end_us;
    });
    const uint64_t request_us = request == delayed_.end() ? kNever : request->due_us;
    const uint64_t lease_us = lease == leases_.end() || !up_ ? kNever : lease->second.end_us;
    if (std::min(request_us, lease_us) > now) return;
    if (lease_us <= request_us) {
      drop_lease_locked(LeaseId{lease->first});
    } else {
      const Delayed arrived = std::move(*request);
      delayed_.erase(request);
      if (up_) apply_locked(arrived.changes, nullptr).status().IgnoreError();
    }
  }
}

StatusOr<Version> SimStore::Impl::apply_locked(absl::Span<const Change> changes,
                                               std::vector<KeyValue>* found) {
  bool as_expected = true;
  std::vector<KeyValue> there;
  for (const Change& change : changes) {
    const auto at = keys_.find(change.key);
    as_expected &= change.expected == (at == keys_.end() ? Version{} : at->second.version);
    if (at != keys_.end()) there.push_back(at->second);
  }
  if (!as_expected) {
    if (found != nullptr) *found = std::move(there);
    return error_conflict("a key is not at the version expected");
  }
  for (const Change& change : changes)
    if (!change.lease.is_zero() && leases_.count(change.lease) == 0)
      return error_not_found("the lease is gone");
  const Version version{revision_ + 1};
  std::vector<WatchEvent> events;
  for (const Change& change : changes) {
    if (change.kind == Change::Kind::kPut) {
      const KeyValue entry{change.key, change.value, version, change.lease};
      keys_[change.key] = entry;
      events.push_back({false, entry});
    } else if (change.kind == Change::Kind::kRemove) {
      keys_.erase(change.key);
      events.push_back({true, {change.key, {}, version, {}}});
    }
  }
  record_locked(std::move(events));
  return version;
}

void SimStore::Impl::record_locked(std::vector<WatchEvent> events) {
  revision_++;
  history_.push_back(std::move(events));
  if (observer_) observer_(Version{revision_}, keys_);
}

void SimStore::Impl::drop_lease_locked(LeaseId lease) {
  leases_.erase(lease);
  std::vector<WatchEvent> events;
  for (const auto& [key, entry] : keys_)
    if (entry.lease == lease) events.push_back({true, {key, {}, Version{revision_ + 1}, {}}});
  if (events.empty()) return;
  for (const WatchEvent& event : events) keys_.erase(event.entry.key);
  record_locked(std::move(events));
}

void SimStore::Impl::set_up(bool up) {
  const MutexLock lock(mutex);
  settle_locked();
  if (up && !up_)
    for (auto& [id, lease] : leases_) lease.end_us = now_us() + lease.ttl_us;
  up_ = up;
}

void SimStore::Impl::compact() {
  const MutexLock lock(mutex);
  settle_locked();
  history_.clear();
}

void SimStore::Impl::observe(std::function<void(Version, const Contents&)> observer) {
  const MutexLock lock(mutex);
  observer_ = std::move(observer);
}

SimStore::Contents SimStore::Impl::contents() {
  const MutexLock lock(mutex);
  settle_locked();
  return keys_;
}

Version SimStore::Impl::version() {
  const MutexLock lock(mutex);
  settle_locked();
  return Version{revision_};
}

bool SimStore::Impl::has_lease(LeaseId lease) {
  const MutexLock lock(mutex);
  settle_locked();
  return leases_.count(lease) != 0;
}

// --- requests ---

void SimStore::Impl::add(SimClient* client) {
  const MutexLock lock(mutex);
  clients_.push_back(client);
}

void SimStore::Impl::remove(SimClient* client) {
  const MutexLock lock(mutex);
  STRATA_ASSERT(client->leases.empty() && client->watches.empty());
  std::erase(clients_, client);
}

SimFault SimStore::Impl::draw_fault_locked(SimClient* client) {
  auto& [ordered, skip] = client->ordered;
  if (ordered != SimFault::kNone && skip-- == 0) return std::exchange(ordered, SimFault::kNone);
  const SimFaults& chances = client->faults;
  uint64_t drawn = rng_.below(1000);
  for (const auto& [chance, fault] : {std::pair(chances.unavailable, SimFault::kUnavailable),
                                      std::pair(chances.lost_request, SimFault::kLostRequest),
                                      std::pair(chances.lost_reply, SimFault::kLostReply),
                                      std::pair(chances.delayed, SimFault::kDelayed)}) {
    if (drawn < chance) return fault;
    drawn -= chance;
  }
  return SimFault::kNone;
}

Status SimStore::Impl::arrive_locked(SimClient* client, uint64_t deadline_us, SimFault* fault) {
  settle_locked();
  if (deadline_us <= now_us()) return error_timed_out("not sent");
  *fault = draw_fault_locked(client);
  if (!reachable_locked(*client) || *fault == SimFault::kUnavailable)
    return error_peer_down("the registry cannot be reached");
  return ok_status();
}

StatusOr<Version> SimStore::Impl::change(SimClient* client, absl::Span<const Change> changes,
                                         uint64_t deadline_us, std::vector<KeyValue>* found) {
  STRATA_RETURN_IF_ERROR(check_changes(changes));
  const MutexLock lock(mutex);
  SimFault fault{};
  STRATA_RETURN_IF_ERROR(arrive_locked(client, deadline_us, &fault));
  if (fault == SimFault::kLostRequest) return lost_change();
  if (fault == SimFault::kDelayed) {
    const uint64_t due_us = now_us() + 1 + rng_.below(client->faults.delay_us_max + 1);
    delayed_.push_back({due_us, {changes.begin(), changes.end()}});
    return lost_change();
  }
  std::vector<KeyValue> there;
  StatusOr<Version> done = apply_locked(changes, &there);
  if (fault == SimFault::kLostReply) return lost_change();
  if (is_conflict(done.status()) && found != nullptr) *found = std::move(there);
  return done;
}

StatusOr<Listing> SimStore::Impl::read(SimClient* client, std::string_view first, bool prefix,
                                       uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(check_key(first));
  const MutexLock lock(mutex);
  SimFault fault{};
  STRATA_RETURN_IF_ERROR(arrive_locked(client, deadline_us, &fault));
  if (fault != SimFault::kNone) return lost_read(fault);
  Listing listing;
  listing.at = Version{revision_};
  for (auto at = keys_.lower_bound(std::string(first)); at != keys_.end(); ++at) {
    if (!(prefix ? at->first.starts_with(first) : at->first == first)) break;
    listing.entries.push_back(at->second);
  }
  return listing;
}

StatusOr<std::shared_ptr<SimLeaseState>> SimStore::Impl::grant(SimClient* client, uint32_t ttl_s,
                                                               LeaseLostHandler on_lost,
                                                               uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(check_ttl(ttl_s));
  const MutexLock lock(mutex);
  SimFault fault{};
  STRATA_RETURN_IF_ERROR(arrive_locked(client, deadline_us, &fault));
  if (fault == SimFault::kLostRequest || fault == SimFault::kDelayed) return lost_read(fault);
  const uint64_t ttl_us = uint64_t{ttl_s} * 1'000'000;
  const LeaseId id{++last_lease_};
  leases_[id] = {ttl_us, now_us() + ttl_us};
  if (fault == SimFault::kLostReply) return lost_read(fault);  // nobody's: it runs out
  auto state = std::make_shared<SimLeaseState>(id, ttl_us, now_us());
  state->on_lost = std::move(on_lost);
  client->leases.push_back(state);
  return state;
}

Status SimStore::Impl::revoke(SimClient* client, LeaseId lease, uint64_t deadline_us) {
  const MutexLock lock(mutex);
  SimFault fault{};
  STRATA_RETURN_IF_ERROR(arrive_locked(client, deadline_us, &fault));
  if (fault == SimFault::kLostRequest || fault == SimFault::kDelayed) return lost_read(fault);
  if (leases_.count(lease) != 0) drop_lease_locked(lease);
  return fault == SimFault::kLostReply ? lost_read(fault) : ok_status();
}

// --- what comes back to the clients ---

uint64_t SimStore::Impl::run_due() {
  for (;;) {
    Handler handler;
    {
      const MutexLock lock(mutex);
      STRATA_ASSERT(running_ == nullptr);  // SY1
      settle_locked();
      handler = next_handler_locked();
      if (handler == nullptr) return next_due_locked();
      runner_ = std::this_thread::get_id();
    }
    handler();
    const MutexLock lock(mutex);
    running_ = nullptr;
    handler_ended_.notify_all();
  }
}

void SimStore::Impl::wait_for_handler_locked(const void* state) {
  STRATA_ASSERT(running_ == nullptr || runner_ != std::this_thread::get_id());
  handler_ended_.wait(mutex, [&]() STRATA_REQUIRES(mutex) { return running_ != state; });
}

SimStore::Impl::Handler SimStore::Impl::next_handler_locked() {
  for (SimClient* client : clients_) {
    if (client->paused) continue;
    Handler handler = lease_handler_locked(client);
    if (handler == nullptr) handler = watch_handler_locked(client);
    if (handler != nullptr) return handler;
  }
  return nullptr;
}

SimStore::Impl::Handler SimStore::Impl::lease_handler_locked(SimClient* client) {
  for (const auto& lease : client->leases) {
    if (lease->ended) continue;
    const uint64_t now = now_us();
    if (lease->term.valid(now) && lease->renew_us <= now) renew_locked(client, lease.get());
    if (lease->term.valid(now)) continue;
    lease->ended = true;
    running_ = lease.get();
    return [lease] {
      if (lease->on_lost) lease->on_lost(lease->id);
    };
  }
  return nullptr;
}

void SimStore::Impl::renew_locked(SimClient* client, SimLeaseState* lease) {
  const uint64_t now = now_us();
  const bool arrives = reachable_locked(*client) && rng_.below(1000) >= client->faults.lost_renewal;
  lease->renew_us = now + std::max<uint64_t>(1, lease->ttl_us / (arrives ? 3 : 20));
  if (!arrives) return;
  const auto known = leases_.find(lease->id);
  if (known == leases_.end()) return lease->term.end();
  known->second.end_us = now + lease->ttl_us;
  lease->term.renew(now, internal::LeaseTerm::end_of(now, lease->ttl_us / 1'000'000));
}

SimStore::Impl::Handler SimStore::Impl::watch_handler_locked(SimClient* client) {
  if (!reachable_locked(*client)) return nullptr;
  for (const auto& watch : client->watches) {
    while (watch->delivered != Version{revision_}) {
      if (watch->due_us == kNever)
        watch->due_us = now_us() + rng_.below(client->faults.watch_delay_us_max + 1);
      if (watch->due_us > now_us()) break;
      watch->due_us = kNever;
      WatchBatch batch;
      if (!fill_batch_locked(watch.get(), &batch)) continue;
      running_ = watch.get();
      return [watch, batch = std::move(batch)] { watch->handler(batch); };
    }
  }
  return nullptr;
}

// False: nothing of what happened concerns this watch.
bool SimStore::Impl::fill_batch_locked(SimWatchState* watch, WatchBatch* batch) {
  const uint64_t forgotten = revision_ - history_.size();  // the newest change no longer kept
  batch->snapshot = watch->delivered.is_zero() || watch->delivered.value < forgotten;
  batch->at = Version{revision_};
  if (batch->snapshot) {
    for (const auto& [key, entry] : keys_)
      if (key.starts_with(watch->prefix)) batch->events.push_back({false, entry});
  } else {
    // Sometimes not all at once.
    if (rng_.one_in(2)) batch->at.value -= rng_.below(revision_ - watch->delivered.value);
    for (uint64_t v = watch->delivered.value + 1; v <= batch->at.value; v++)
      for (const WatchEvent& event : history_[v - forgotten - 1])
        if (event.entry.key.starts_with(watch->prefix)) batch->events.push_back(event);
  }
  watch->delivered = batch->at;
  return batch->snapshot || !batch->events.empty();
}

uint64_t SimStore::Impl::next_due_locked() const {
  uint64_t next = kNever;
  for (const Delayed& request : delayed_) next = std::min(next, request.due_us);
  if (up_)
    for (const auto& [id, lease] : leases_) next = std::min(next, lease.end_us);
  for (const SimClient* client : clients_) {
    if (client->paused) continue;
    for (const auto& lease : client->leases) {
      if (lease->ended) continue;
      const uint64_t now = now_us();
      next = std::min({next, lease->renew_us, now + lease->term.remaining_us(now)});
    }
    for (const auto& watch : client->watches)
      if (reachable_locked(*client)) next = std::min(next, watch->due_us);
  }
  return next;
}

}  // namespace strata::registry
