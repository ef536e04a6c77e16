// Goal: whatever the connections, the clients and the registry go through, every promise of
// registry.h and stream_epochs.h holds. Method: several clients of one simulated registry write
// keys, acquire and release epochs, join and watch, in random order, while requests and replies are
// lost or late, clients are paused and cut off, leases run out, the registry restarts and forgets
// history. An oracle that is told every change of the store checks each answer. At the end the
// faults stop and everything has to settle. Seeds are printed; STRATA_SEED=n replays one,
// STRATA_ROUNDS=n runs so many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "base/rng.h"
#include "cluster/membership.h"
#include "cluster/stream_epochs.h"
#include "registry/sim/sim.h"

namespace strata::cluster {

using registry::SimFaults;
using registry::SimRegistry;
using registry::SimStore;
namespace {

constexpr uint64_t kSecond = 1'000'000;
constexpr size_t kClients = 5;
constexpr uint32_t kStreams = 3;
constexpr uint64_t kKeys = 8;
constexpr int kSteps = 1500;
const std::string kPrefix = "k/";

// What the store was like at each version, and what may never be in it.
class Oracle {
 public:
  void changed(Version version, const SimStore::Contents& contents) {
    ASSERT_GT(version, last_);  // RG1
    last_ = version;
    history_[version] = contents;
    for (const auto& [key, entry] : contents) {
      EXPECT_LE(entry.version, version);
      EXPECT_EQ(refused_.count(entry.value), 0u) << key << " = " << entry.value;  // RG3
    }
  }
  void refuse(const std::string& value) { refused_.insert(value); }
  [[nodiscard]] Version last() const { return last_; }
  // The keys below `prefix` as they were at a version.
  [[nodiscard]] std::vector<KeyValue> at(Version version, const std::string& prefix) const {
    std::vector<KeyValue> entries;
    const auto state = history_.upper_bound(version);
    if (state == history_.begin()) return entries;
    for (const auto& [key, entry] : std::prev(state)->second)
      if (key.starts_with(prefix)) entries.push_back(entry);
    return entries;
  }

 private:
  Version last_{1};
  std::map<Version, SimStore::Contents> history_;
  std::set<std::string> refused_;  // values are unique
};

struct HeldLease {
  std::unique_ptr<Lease> lease;
  LeaseId id;
  int lost = 0;
  bool revoked = false;
  bool seen_invalid = false;
};

// One process: its connection, its leases and what its watch has told it.
struct Node {
  std::string name;
  uint64_t identity = 0;
  std::unique_ptr<SimRegistry> registry;
  std::vector<std::unique_ptr<HeldLease>> leases;
  std::map<StreamId, EpochGrant> grants;
  std::map<StreamId, Version> read_writers;  // as it saw them last
  WatchedKeys view;
  size_t snapshots = 0;
  std::unique_ptr<Watch> watch;
};

class Model {
 public:
  explicit Model(uint64_t seed) : rng_(seed), store_([this] { return now_us_; }, seed) {
    store_.observe([this](Version version, const SimStore::Contents& contents) {
      oracle_.changed(version, contents);
      note_epochs(contents);
    });
    for (size_t i = 0; i < kClients; i++) start_node(i);
  }
  ~Model() {
    for (Node& node : nodes_) stop_node(&node);
  }

  void run() {
    for (int step = 0; step < kSteps && !::testing::Test::HasFailure(); step++) {
      act(&nodes_[rng_.below(kClients)]);
      if (rng_.one_in(8)) store_.set_up(true);
      if (rng_.one_in(3)) pass(rng_.below(kSecond));
      check();
    }
    settle();
  }
  [[nodiscard]] const std::map<std::string, int>& counts() const { return counts_; }

 private:
  void start_node(size_t i) {
    Node& node = nodes_[i];
    node.name = "node-" + std::to_string(i);
    node.identity = 1 + rng_.next() / 2;
    node.registry = store_.connect();
    node.registry->set_faults(faults());
    node.view = WatchedKeys();
    node.snapshots = 0;
    node.watch = node.registry->watch(kPrefix, [this, &node](const WatchBatch& batch) {
      EXPECT_TRUE(batch.snapshot || batch.at > node.view.at());
      EXPECT_TRUE(batch.snapshot || node.snapshots > 0);
      node.snapshots += batch.snapshot;
      node.view.apply(batch);
      EXPECT_EQ(node.view.entries(), oracle_.at(batch.at, kPrefix));  // RG5
      counts_[batch.snapshot ? "snapshots" : "batches"]++;
    });
  }
  void stop_node(Node* node) {
    node->watch.reset();
    node->leases.clear();
    node->grants.clear();
    node->registry.reset();
  }

  SimFaults faults() {
    const auto chance = [&] { return static_cast<uint32_t>(rng_.one_in(2) ? rng_.below(150) : 0); };
    return {.unavailable = chance(),
            .lost_request = chance(),
            .lost_reply = chance(),
            .delayed = chance(),
            .lost_renewal = chance() * 2,
            .delay_us_max = rng_.below(3 * kSecond),
            .watch_delay_us_max = rng_.below(kSecond)};
  }
  [[nodiscard]] uint64_t deadline() const { return now_us_ + kSecond; }

  void pass(uint64_t us) {
    for (const uint64_t until = now_us_ + us;;) {
      const uint64_t due = store_.run_due();
      if (now_us_ >= until) return;
      now_us_ = std::max(now_us_, std::min(due, until));
    }
  }

  void act(Node* node) {
    switch (rng_.below(16)) {
      case 0:
        return disturb(node);
      case 1:
        return grant_lease(node);
      case 2:
        return drop_lease(node);
      case 3:
        return join(node);
      case 4:
        return read(node);
      case 5:
        return release(node);
      case 6:
      case 7:
      case 8:
        return acquire(node);
      default:
        return write(node);
    }
  }

  void disturb(Node* node) {
    counts_["disturbances"]++;
    switch (rng_.below(9)) {
      case 0:
        return store_.compact();
      case 1:
        return store_.set_up(false);
      case 2:
      case 3:
        return store_.set_up(true);
      case 4:
        return node->registry->set_connected(rng_.one_in(2));
      case 5:
        return node->registry->set_paused(rng_.one_in(2));
      case 6:
        return node->registry->set_faults(faults());
      case 7: {  // kill -9, and a start in the same folder
        const uint64_t identity = node->identity;
        stop_node(node);
        start_node(static_cast<size_t>(node - nodes_.data()));
        node->identity = identity;
        return;
      }
      default:
        node->registry->set_connected(true);
        node->registry->set_paused(false);
        node->registry->set_faults(faults());
    }
  }

  void grant_lease(Node* node) {
    auto held = std::make_unique<HeldLease>();
    HeldLease* raw = held.get();
    auto lease = node->registry->grant_lease(
        static_cast<uint32_t>(1 + rng_.below(5)),
        [raw](LeaseId id) {
          EXPECT_EQ(id, raw->id);
          EXPECT_FALSE(raw->revoked);
          EXPECT_FALSE(raw->lease->valid());
          raw->lost++;
        },
        deadline());
    if (!lease.ok()) return;
    held->lease = *std::move(lease);
    held->id = held->lease->id();
    node->leases.push_back(std::move(held));
    counts_["leases"]++;
  }
  HeldLease* any_lease(Node* node) {
    return node->leases.empty() ? nullptr : node->leases[rng_.below(node->leases.size())].get();
  }
  void drop_lease(Node* node) {
    HeldLease* held = any_lease(node);
    if (held == nullptr) return;
    if (rng_.one_in(2)) {
      std::erase_if(node->leases, [&](const auto& one) { return one.get() == held; });
    } else {
      held->revoked |= held->lost == 0;
      EXPECT_FALSE(held->lease->revoke(deadline()).ok() && store_.has_lease(held->id));
      EXPECT_FALSE(held->lease->valid());
    }
  }

  // One or two keys at once; what each answer says is compared with the store.
  void write(Node* node) {
    std::vector<Change> changes;
    std::vector<KeyValue> before;
    const std::string value = "value " + std::to_string(++last_value_);
    HeldLease* held = rng_.one_in(4) ? any_lease(node) : nullptr;
    const uint64_t first = rng_.below(kKeys);
    for (uint64_t i = 0; i < 1 + rng_.below(2); i++) {
      const std::string key = kPrefix + std::to_string((first + i) % kKeys);
      const auto contents = store_.contents();
      const auto there = contents.find(key);
      Version version = there == contents.end() ? Version{} : there->second.version;
      if (rng_.one_in(6)) version = Version{rng_.below(store_.version().value + 1)};
      if (there != contents.end()) before.push_back(there->second);
      if (!version.is_zero() && rng_.one_in(4))
        changes.push_back(Change::remove(key, version));
      else
        changes.push_back(
            Change::replace(key, version, value, held == nullptr ? LeaseId{} : held->id));
    }
    const Version at = oracle_.last();
    std::vector<KeyValue> found;
    const StatusOr<Version> done = node->registry->change(changes, deadline(), &found);
    counts_["write " + std::string(error_name(error_of(done.status())))]++;
    if (done.ok()) {
      EXPECT_EQ(*done, store_.version());
      for (const Change& change : changes) expect_made(change, *done);
      return;
    }
    EXPECT_TRUE(oracle_.last() == at || is_outcome_unknown(done.status()));
    if (is_outcome_unknown(done.status())) return;
    oracle_.refuse(value);
    if (is_conflict(done.status())) {
      EXPECT_EQ(found, before);
      bool differs = false;
      for (const Change& change : changes) differs |= version_of(change.key) != change.expected;
      EXPECT_TRUE(differs);
    }
  }
  Version version_of(const std::string& key) {
    const auto contents = store_.contents();
    const auto there = contents.find(key);
    return there == contents.end() ? Version{} : there->second.version;
  }
  void expect_made(const Change& change, Version version) {
    const auto contents = store_.contents();
    const auto there = contents.find(change.key);
    if (change.kind == Change::Kind::kRemove) {
      EXPECT_TRUE(there == contents.end());
    } else {
      ASSERT_TRUE(there != contents.end());
      EXPECT_EQ(there->second, (KeyValue{change.key, change.value, version, change.lease}));
    }
  }

  void read(Node* node) {
    const auto listing = node->registry->list(kPrefix, deadline());
    if (!listing.ok()) return;
    EXPECT_EQ(listing->at, store_.version());
    EXPECT_EQ(listing->entries, oracle_.at(listing->at, kPrefix));
  }

  // Every epoch that ever was in the store, as the oracle sees it.
  void note_epochs(const SimStore::Contents& contents) {
    for (uint32_t i = 0; i < kStreams; i++) {
      const auto there = contents.find(keys_.epoch(StreamId{i}));
      const uint64_t epoch = there == contents.end() ? 0 : epoch_in(there->second.value);
      EXPECT_GE(epoch, stored_[i]) << "stream " << i;  // never regresses
      stored_[i] = epoch;
    }
  }
  static uint64_t epoch_in(const std::string& value) {
    return std::strtoull(value.c_str() + value.find(':') + 1, nullptr, 10);
  }

  void acquire(Node* node) {
    HeldLease* held = any_lease(node);
    if (held == nullptr) return grant_lease(node);
    const StreamId stream{static_cast<uint32_t>(rng_.below(kStreams))};
    const uint64_t before = stored_[stream.value];
    const uint64_t above = rng_.one_in(10) ? before + rng_.below(5) : 0;
    StreamEpochs epochs(node->registry.get(), keys_);
    // Read a moment ago, or long ago: perhaps another holder is there by now.
    if (rng_.one_in(2)) node->read_writers[stream] = version_of(keys_.writer(stream));
    const Version in_place_of = rng_.one_in(3) ? Version{} : node->read_writers[stream];
    const auto contents = store_.contents();
    const auto writer = contents.find(keys_.writer(stream));
    const bool held_by_other = writer != contents.end() && writer->second.lease != held->id;
    const bool named = writer != contents.end() && writer->second.version == in_place_of;
    const auto grant =
        epochs.acquire({stream, node->name, Epoch{above}, in_place_of}, *held->lease, deadline());
    counts_["acquire " + std::string(error_name(error_of(grant.status())))]++;
    if (!grant.ok()) return;
    EXPECT_GT(grant->epoch.value, before);                                            // SE1
    EXPECT_GT(grant->epoch.value, above);                                             // SE1
    EXPECT_TRUE(given_.insert({stream, grant->epoch}).second);                        // SE2
    EXPECT_GT(grant->epoch, newest_[stream]);                                         // SE1, SE2
    EXPECT_FALSE(held_by_other && !named && store_.has_lease(writer->second.lease));  // SE3
    EXPECT_TRUE(held->lease->valid() && store_.has_lease(held->id));                  // SE4
    EXPECT_EQ(stored_[stream.value], grant->epoch.value);
    EXPECT_EQ(version_of(keys_.writer(stream)), grant->writer);
    newest_[stream] = grant->epoch;
    node->grants[stream] = *grant;
  }

  void release(Node* node) {
    if (node->grants.empty()) return;
    const EpochGrant grant = node->grants.begin()->second;
    const Version writer = version_of(keys_.writer(grant.stream));
    StreamEpochs epochs(node->registry.get(), keys_);
    const Status status = epochs.release(grant, deadline());
    const Version after = version_of(keys_.writer(grant.stream));
    EXPECT_FALSE(status.ok() && after == grant.writer);
    EXPECT_TRUE(after == writer || writer == grant.writer);  // another's is not touched
    if (status.ok()) node->grants.erase(grant.stream);
  }

  void join(Node* node) {
    HeldLease* held = any_lease(node);
    if (held == nullptr) return;
    Membership membership(node->registry.get(), keys_);
    const auto joined = membership.join(
        {node->name, Role::kCompute, node->identity, "a:1", "", {}, {}}, *held->lease, deadline());
    counts_["join " + std::string(error_name(error_of(joined.status())))]++;
    EXPECT_TRUE(!joined.ok() || version_of(keys_.member(node->name)) == *joined);
  }

  // RG4: what a node believes to have, the registry keeps for it.
  void check() {
    for (Node& node : nodes_) {
      for (const auto& held : node.leases) {
        const bool valid = held->lease->valid();
        EXPECT_TRUE(!valid || store_.has_lease(held->id));
        EXPECT_FALSE(valid && (held->seen_invalid || held->lost > 0 || held->revoked));
        held->seen_invalid |= !valid;
        EXPECT_LE(held->lost, 1);
      }
    }
  }

  void settle() {
    store_.set_up(true);
    for (Node& node : nodes_) {
      node.registry->set_connected(true);
      node.registry->set_paused(false);
      node.registry->set_faults({});
    }
    pass(30 * kSecond);
    check();
    for (Node& node : nodes_) {
      EXPECT_EQ(node.view.entries(), oracle_.at(oracle_.last(), kPrefix));
      for (const auto& held : node.leases) {
        EXPECT_TRUE(held->lease->valid() || held->lost == 1 || held->revoked);
        EXPECT_EQ(store_.has_lease(held->id), held->lease->valid());
      }
    }
  }

  Rng rng_;
  uint64_t now_us_ = kSecond;
  SimStore store_;
  Oracle oracle_;
  const ClusterKeys keys_ = *ClusterKeys::of("c");
  std::vector<Node> nodes_ = std::vector<Node>(kClients);
  std::map<uint32_t, uint64_t> stored_;
  std::set<std::pair<StreamId, Epoch>> given_;
  std::map<StreamId, Epoch> newest_;
  uint64_t last_value_ = 0;
  std::map<std::string, int> counts_;
};

TEST(RegistryModel, EveryPromiseHoldsWhateverHappens) {
  const char* chosen = std::getenv("STRATA_SEED");
  const char* wanted = std::getenv("STRATA_ROUNDS");
  const uint64_t first = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 1;
  const uint64_t rounds = wanted != nullptr   ? std::strtoull(wanted, nullptr, 10)
                          : chosen != nullptr ? 1
                                              : 60;
  std::map<std::string, int> counts;
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); seed++) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    Model model(seed);
    model.run();
    for (const auto& [what, count] : model.counts()) counts[what] += count;
  }
  std::printf("seeds %llu..%llu:", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + rounds - 1));
  for (const auto& [what, count] : counts) std::printf(" %s %d,", what.c_str(), count);
  std::printf("\n");
  if (chosen != nullptr) return;
  // The test has met what it is about.
  for (const char* what :
       {"write ok", "write outcome_unknown", "write conflict", "write not_found", "acquire ok",
        "acquire in_use", "acquire lease_lost", "join ok", "snapshots", "batches"})
    EXPECT_GT(counts[what], 0) << what;
}

}  // namespace
}  // namespace strata::cluster
