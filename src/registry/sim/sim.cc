#include "registry/sim/sim.h"

#include "base/assert.h"
#include "registry/sim/internal/sim_store.h"

namespace strata::registry {
namespace {

class SimLease final : public Lease {
 public:
  SimLease(SimStore::Impl* store, SimClient* client, std::shared_ptr<SimLeaseState> state)
      : store_(store), client_(client), state_(std::move(state)) {}
  ~SimLease() override {
    MutexLock lock(store_->mutex);
    end_locked();
    client_->leases.remove(state_);
  }
  [[nodiscard]] LeaseId id() const noexcept override { return state_->id; }
  [[nodiscard]] bool valid() const noexcept override { return remaining_us() != 0; }
  [[nodiscard]] uint64_t remaining_us() const noexcept override {
    return state_->term.remaining_us(store_->now_us());
  }
  Status revoke(uint64_t deadline_us) override {
    {
      MutexLock lock(store_->mutex);
      end_locked();
    }
    return store_->revoke(client_, state_->id, deadline_us);
  }

 private:
  void end_locked() STRATA_REQUIRES(store_->mutex) {
    store_->wait_for_handler_locked(state_.get());
    state_->ended = true;
    state_->term.end();
  }
  SimStore::Impl* const store_;
  SimClient* const client_;
  const std::shared_ptr<SimLeaseState> state_;
};

class SimWatch final : public Watch {
 public:
  SimWatch(SimStore::Impl* store, SimClient* client, std::shared_ptr<SimWatchState> state)
      : store_(store), client_(client), state_(std::move(state)) {}
  ~SimWatch() override {
    MutexLock lock(store_->mutex);
    store_->wait_for_handler_locked(state_.get());
    client_->watches.remove(state_);
  }

 private:
  SimStore::Impl* const store_;
  SimClient* const client_;
  const std::shared_ptr<SimWatchState> state_;
};

class SimRegistryImpl final : public SimRegistry {
 public:
  explicit SimRegistryImpl(SimStore::Impl* store) : store_(store) { store_->add(&client_); }
  ~SimRegistryImpl() override { store_->remove(&client_); }

  [[nodiscard]] uint64_t now_us() const noexcept override { return store_->now_us(); }

  StatusOr<Version> change(absl::Span<const Change> changes, uint64_t deadline_us,
                           std::vector<KeyValue>* found) override {
    return store_->change(&client_, changes, deadline_us, found);
  }
  StatusOr<std::optional<KeyValue>> get(std::string_view key, uint64_t deadline_us) override {
    STRATA_ASSIGN_OR_RETURN(Listing listing, store_->read(&client_, key, false, deadline_us));
    std::optional<KeyValue> entry;
    if (!listing.entries.empty()) entry = std::move(listing.entries[0]);
    return entry;
  }
  StatusOr<Listing> list(std::string_view prefix, uint64_t deadline_us) override {
    return store_->read(&client_, prefix, true, deadline_us);
  }
  StatusOr<std::unique_ptr<Lease>> grant_lease(uint32_t ttl_s, LeaseLostHandler on_lost,
                                               uint64_t deadline_us) override {
    STRATA_ASSIGN_OR_RETURN(auto state,
                            store_->grant(&client_, ttl_s, std::move(on_lost), deadline_us));
    return std::make_unique<SimLease>(store_, &client_, std::move(state));
  }
  std::unique_ptr<Watch> watch(std::string prefix, WatchHandler handler) override {
    STRATA_ASSERT(check_key(prefix).ok());
    auto state = std::make_shared<SimWatchState>();
    state->prefix = std::move(prefix);
    state->handler = std::move(handler);
    const MutexLock lock(store_->mutex);
    client_.watches.push_back(state);
    return std::make_unique<SimWatch>(store_, &client_, std::move(state));
  }

  void set_faults(const SimFaults& faults) override {
    const MutexLock lock(store_->mutex);
    client_.faults = faults;
  }
  void fail_next(SimFault fault, uint32_t skip) override {
    const MutexLock lock(store_->mutex);
    client_.ordered = {fault, skip};
  }
  void set_connected(bool connected) override {
    const MutexLock lock(store_->mutex);
    client_.connected = connected;
  }
  void set_paused(bool paused) override {
    const MutexLock lock(store_->mutex);
    client_.paused = paused;
  }

 private:
  SimStore::Impl* const store_;
  SimClient client_;
};

}  // namespace

SimStore::SimStore(Clock now_us, uint64_t seed)
    : impl_(std::make_unique<Impl>(std::move(now_us), seed)) {}
SimStore::~SimStore() = default;

std::unique_ptr<SimRegistry> SimStore::connect() {
  return std::make_unique<SimRegistryImpl>(impl_.get());
}
uint64_t SimStore::run_due() { return impl_->run_due(); }
void SimStore::set_up(bool up) { impl_->set_up(up); }
void SimStore::compact() { impl_->compact(); }
SimStore::Contents SimStore::contents() { return impl_->contents(); }
Version SimStore::version() { return impl_->version(); }
bool SimStore::has_lease(LeaseId lease) { return impl_->has_lease(lease); }
void SimStore::observe(std::function<void(Version, const Contents&)> observer) {
  impl_->observe(std::move(observer));
}

}  // namespace strata::registry
