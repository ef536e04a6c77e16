// Goal: the etcd client keeps every promise of registry.h and etcd.h against a real etcd, through
// kill -9, pauses, lost replies, compaction and a replaced data folder. Method: the conformance
// suite, then scenarios, with an etcd started for this program.
#include "registry/etcd/etcd.h"

#include <gtest/gtest.h>

#include <latch>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "cluster/stream_epochs.h"
#include "cluster/testing/held_by.h"
#include "registry/etcd/testing/etcd_process.h"
#include "registry/etcd/testing/fake_server.h"
#include "registry/testing/conformance.h"

namespace strata::registry {

using cluster::ClusterKeys;
using cluster::StreamEpochs;
namespace {

using testing::EtcdProcess;
using testing::Seen;

constexpr uint64_t kSecond = 1'000'000;

EtcdProcess* etcd = nullptr;  // of the whole program

class Environment final : public ::testing::Environment {
 public:
  void SetUp() override {
    set_diag_sink([](Severity, std::string_view) {});  // interruptions are what is tested
    etcd = new EtcdProcess;
  }
  void TearDown() override { delete etcd; }
};
const auto* const environment = ::testing::AddGlobalTestEnvironment(new Environment);

std::string fresh_name() {
  static int count = 0;
  return "t" + std::to_string(++count) + ".";
}

class EtcdWorld final : public testing::World {
 public:
  std::unique_ptr<Registry> connect() override { return etcd->connect(); }
  bool wait_until(absl::FunctionRef<bool()> condition) override {
    return strata::testing::wait_until(condition);
  }
  void restart() override {
    etcd->kill();
    etcd->start();
  }
  [[nodiscard]] std::string prefix() const override { return prefix_; }

 private:
  const std::string prefix_ = fresh_name();
};

std::unique_ptr<testing::World> make_world() { return std::make_unique<EtcdWorld>(); }

}  // namespace

namespace testing {
INSTANTIATE_TEST_SUITE_P(Etcd, RegistryConformance, ::testing::Values<WorldFactory>(&make_world));
}  // namespace testing

namespace {

class EtcdTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string key(const std::string& name) const { return prefix_ + name; }
  static uint64_t deadline() { return monotonic_us() + 10 * kSecond; }
  StatusOr<Version> put(const std::string& name, const std::string& value) {
    STRATA_ASSIGN_OR_RETURN(const auto there, registry_->get(key(name), deadline()));
    return registry_->change(
        Change::replace(key(name), there.has_value() ? there->version : Version{}, value),
        deadline());
  }
  const std::string prefix_ = fresh_name();
  std::unique_ptr<Registry> registry_ = etcd->connect();
};

TEST_F(EtcdTest, NothingListensIsUnavailableAtOnce) {
  const std::string nobody = "http://127.0.0.1:" + std::to_string(testing::free_port());
  const auto registry = *make_etcd_registry({.endpoints = {nobody}});
  const uint64_t began = monotonic_us();
  const auto changed = registry->change(Change::create("a", "x"), deadline());
  EXPECT_TRUE(is_peer_down(changed.status())) << changed.status();
  EXPECT_TRUE(is_peer_down(registry->get("a", deadline()).status()));
  EXPECT_TRUE(is_peer_down(registry->grant_lease(5, nullptr, deadline()).status()));
  EXPECT_LT(monotonic_us() - began, 5 * kSecond);
}

TEST_F(EtcdTest, EndpointsThatCannotBeAreRefused) {
  for (const char* endpoint :
       {"", "127.0.0.1:2379", "https://127.0.0.1:2379", "http://:2379", "http://127.0.0.1",
        "http://127.0.0.1:0", "http://127.0.0.1:99999", "http://127.0.0.1:2379/", "http://a b:1",
        "http://u@h:1", "file:///etc/passwd"})
    EXPECT_TRUE(is_invalid_argument(make_etcd_registry({.endpoints = {endpoint}}).status()))
        << endpoint;
  EXPECT_TRUE(is_invalid_argument(make_etcd_registry({}).status()));
}

TEST_F(EtcdTest, TheNextEndpointIsTried) {
  const std::string nobody = "http://127.0.0.1:" + std::to_string(testing::free_port());
  testing::FakeServer silent([](const std::string&) { return std::nullopt; });
  const auto registry =
      *make_etcd_registry({.endpoints = {nobody, silent.endpoint(), etcd->endpoint()},
                           .watch_check_us = kSecond / 5,
                           .retry_us_min = 10'000});
  // A read goes on from an endpoint that says nothing; a change may not (EC1).
  const auto read = registry->get(key("a"), monotonic_us() + 2 * kSecond);
  EXPECT_TRUE(read.ok()) << read.status();
  const auto changed = registry->change(Change::create(key("a"), "x"), deadline());
  EXPECT_TRUE(changed.ok()) << changed.status();  // the endpoint that answered comes first now
  Seen seen;
  const auto watch = registry->watch(key(""), seen.handler());
  EXPECT_TRUE(strata::testing::wait_until([&] { return seen.entries().size() == 1; }));
  auto lease = registry->grant_lease(2, nullptr, deadline());
  ASSERT_TRUE(lease.ok()) << lease.status();
}

TEST_F(EtcdTest, KilledAndRestarted) {
  Seen seen;
  const auto watch = registry_->watch(key(""), seen.handler());
  ASSERT_TRUE(put("a", "1").ok());
  std::atomic<int> lost{0};
  auto lease = registry_->grant_lease(
      20, [&](LeaseId) { lost++; }, deadline());
  ASSERT_TRUE(lease.ok()) << lease.status();
  etcd->kill();
  const auto changed = registry_->change(Change::create(key("b"), "x"), deadline());
  EXPECT_TRUE(is_peer_down(changed.status())) << changed.status();
  EXPECT_TRUE(is_peer_down(registry_->get(key("a"), deadline()).status()));
  EXPECT_TRUE(is_peer_down((*lease)->valid() ? registry_->list(key(""), deadline()).status()
                                             : ok_status()));
  etcd->start();
  // What was unavailable was not done, and nothing else was lost.
  ASSERT_TRUE(registry_->get(key("b"), deadline()).ok());
  EXPECT_FALSE(registry_->get(key("b"), deadline())->has_value());
  ASSERT_TRUE(put("c", "2").ok());
  EXPECT_TRUE(strata::testing::wait_until([&] { return seen.entries().size() == 2; }));
  EXPECT_EQ(seen.snapshots(), 1u);
  EXPECT_TRUE((*lease)->valid());
  EXPECT_EQ(lost.load(), 0);
}

TEST_F(EtcdTest, PausedCallsEndByTheirDeadlineAndSayWhatIsKnown) {
  Seen seen;
  const auto watch = registry_->watch(key(""), seen.handler());
  ASSERT_TRUE(put("a", "1").ok());
  ASSERT_TRUE(strata::testing::wait_until([&] { return seen.entries().size() == 1; }));
  etcd->pause();
  const uint64_t began = monotonic_us();
  const auto changed =
      registry_->change(Change::create(key("late"), "x"), monotonic_us() + kSecond / 2);
  EXPECT_TRUE(is_outcome_unknown(changed.status())) << changed.status();
  const auto read = registry_->get(key("a"), monotonic_us() + kSecond / 2);
  EXPECT_TRUE(is_timed_out(read.status())) << read.status();
  const auto granted = registry_->grant_lease(5, nullptr, monotonic_us() + kSecond / 2);
  EXPECT_TRUE(is_timed_out(granted.status())) << granted.status();
  EXPECT_LT(monotonic_us() - began, 3 * kSecond);
  etcd->resume();
  // Whether etcd still makes the change when it wakes up is its affair: that is what kUnknown says.
  EXPECT_TRUE(strata::testing::wait_until([&] { return put("b", "2").ok(); }));
  EXPECT_TRUE(strata::testing::wait_until([&] {
    const auto listing = registry_->list(key(""), deadline());
    return listing.ok() && listing->entries.size() >= 2 && seen.entries() == listing->entries;
  }));
  EXPECT_EQ(seen.snapshots(), 1u);
}

TEST_F(EtcdTest, ALeaseThatCannotBeRenewedIsLostForGoodAndReported) {
  std::atomic<int> lost{0};
  auto lease = registry_->grant_lease(
      1, [&](LeaseId) { lost++; }, deadline());
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_TRUE(registry_->change(Change::create(key("a"), "x", (*lease)->id()), deadline()).ok());
  etcd->pause();
  EXPECT_TRUE(strata::testing::wait_until([&] { return lost.load() == 1; }));
  EXPECT_FALSE((*lease)->valid());
  etcd->resume();
  ASSERT_TRUE(put("b", "1").ok());
  EXPECT_FALSE((*lease)->valid());
  EXPECT_TRUE(strata::testing::wait_until([&] {
    const auto there = registry_->get(key("a"), deadline());
    return there.ok() && !there->has_value();
  }));
  EXPECT_EQ(lost.load(), 1);
}

TEST_F(EtcdTest, ALeaseThatEtcdDroppedIsReported) {
  std::atomic<int> lost{0};
  auto lease = registry_->grant_lease(
      3, [&](LeaseId) { lost++; }, deadline());
  ASSERT_TRUE(lease.ok()) << lease.status();
  // Somebody revokes it by hand.
  const std::string body = "{\"ID\":\"" + std::to_string((*lease)->id().value) + "\"}";
  const std::string reply = testing::forward(
      etcd->endpoint(), "POST /v3/lease/revoke HTTP/1.1\r\nHost: a\r\nContent-Length: " +
                            std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_NE(reply.find("200 OK"), std::string::npos) << reply;
  EXPECT_TRUE(strata::testing::wait_until([&] { return lost.load() == 1; }));
  EXPECT_FALSE((*lease)->valid());
}

// EC3
TEST_F(EtcdTest, AWatchStartsOverWhenEtcdForgotWhatComesNext) {
  ASSERT_TRUE(put("a", "1").ok());
  // One that is busy with a batch while etcd goes on without it.
  Seen seen;
  std::atomic<int> busy{0};
  std::latch free_again(1);
  const auto slow = etcd->connect();
  const auto watch =
      slow->watch(key(""), [&, keep = seen.handler()](const WatchBatch& batch) mutable {
        keep(batch);
        if (++busy == 2) free_again.wait();
      });
  ASSERT_TRUE(strata::testing::wait_until([&] { return busy.load() == 1; }));
  const bool changed = put("a", "2").ok();
  const bool is_busy = strata::testing::wait_until([&] { return busy.load() == 2; });
  etcd->kill();
  etcd->start();
  const auto a = registry_->get(key("a"), deadline());
  const bool removed = a.ok() && a->has_value() &&
                       registry_->change(Change::remove(key("a"), (*a)->version), deadline()).ok();
  const bool added = put("b", "3").ok();
  etcd->compact();
  free_again.count_down();
  ASSERT_TRUE(changed && is_busy && removed && added);
  ASSERT_TRUE(strata::testing::wait_until([&] {
    const auto entries = seen.entries();
    return entries.size() == 1 && entries[0].key == key("b");
  }));
  EXPECT_EQ(seen.snapshots(), 2u);
  EXPECT_TRUE(seen.batches().back().snapshot);
}

// EC4: the member the watch is on freezes; the connection stays open and says nothing.
TEST_F(EtcdTest, AWatchLeavesAFrozenEndpoint) {
  std::atomic<bool> frozen{false};
  testing::FakeServer front([&](const std::string& request) -> std::optional<std::string> {
    if (frozen.load()) return std::nullopt;
    if (request.find("/v3/watch") == std::string::npos)
      return testing::forward(etcd->endpoint(), request);
    frozen = true;  // the watch is opened here and then hears nothing any more
    return std::nullopt;
  });
  const auto registry = *make_etcd_registry({.endpoints = {front.endpoint(), etcd->endpoint()},
                                             .watch_check_us = kSecond / 4,
                                             .retry_us_min = 10'000});
  Seen seen;
  const auto watch = registry->watch(key(""), seen.handler());
  ASSERT_TRUE(strata::testing::wait_until([&] { return frozen.load(); }));
  ASSERT_TRUE(put("a", "1").ok());
  EXPECT_TRUE(strata::testing::wait_until([&] { return seen.entries().size() == 1; }));
  EXPECT_EQ(seen.snapshots(), 1u);
}

// SE1, SE2 with a real etcd behind a connection that loses requests and replies.
TEST_F(EtcdTest, EpochsGrowThroughLostRequestsAndReplies) {
  std::atomic<int> count{0};
  testing::FakeServer lossy([&](const std::string& request) -> std::optional<std::string> {
    if (request.find("/v3/kv/txn") == std::string::npos)
      return testing::forward(etcd->endpoint(), request);
    const int n = ++count;
    if (n % 3 == 1) return "";  // never arrives
    std::string reply = testing::forward(etcd->endpoint(), request);
    if (n % 3 == 2) return "";  // nobody hears of it
    return reply;
  });
  const auto registry = *make_etcd_registry({.endpoints = {lossy.endpoint()}});
  auto lease = *registry->grant_lease(30, nullptr, deadline());
  StreamEpochs epochs(registry.get(), *ClusterKeys::of(prefix_));
  uint64_t last = 0;
  for (int i = 0; i < 10; i++) {
    const auto grant = epochs.acquire({StreamId{1}, "n", {}, {}}, *lease, deadline());
    ASSERT_TRUE(grant.ok()) << grant.status();
    EXPECT_EQ(grant->epoch.value, last + 3);  // two in doubt before each
    last = grant->epoch.value;
    EXPECT_EQ((*epochs.current(StreamId{1}, deadline()))->epoch, grant->epoch);
  }
}

// Several processes' worth of threads want one stream while etcd is killed and started again.
TEST_F(EtcdTest, EpochsOfRivalsAreUniqueAndGrowThroughKills) {
  std::atomic<bool> stop{false};
  Mutex mutex{LatchRank::kLeaf};
  std::set<uint64_t> given;
  std::atomic<uint64_t> newest{0};
  std::vector<std::thread> rivals;
  for (int i = 0; i < 4; i++) {
    rivals.emplace_back([&, i] {
      const auto registry = etcd->connect();
      StreamEpochs epochs(registry.get(), *ClusterKeys::of(prefix_));
      std::unique_ptr<Lease> lease;
      while (!stop.load()) {
        if (lease == nullptr || !lease->valid()) {
          auto granted = registry->grant_lease(5, nullptr, monotonic_us() + kSecond);
          if (granted.ok()) lease = *std::move(granted);
          if (!granted.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          continue;
        }
        const uint64_t before = newest.load();
        const Version held =
            cluster::testing::held_by(&epochs, StreamId{1}, monotonic_us() + kSecond);
        const auto grant = epochs.acquire({StreamId{1}, "n" + std::to_string(i), {}, held}, *lease,
                                          monotonic_us() + kSecond);
        if (!grant.ok()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          continue;
        }
        EXPECT_GT(grant->epoch.value, before);
        const MutexLock lock(mutex);
        EXPECT_TRUE(given.insert(grant->epoch.value).second);
        newest = std::max(newest.load(), grant->epoch.value);
      }
    });
  }
  const auto more = [&] {
    const uint64_t before = newest.load();
    return strata::testing::wait_until([&] { return newest.load() >= before + 20; });
  };
  EXPECT_TRUE(more());
  for (int i = 0; i < 2; i++) {
    etcd->kill();
    etcd->start();
    EXPECT_TRUE(more());
  }
  etcd->pause();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the pause itself, not a wait
  etcd->resume();
  EXPECT_TRUE(more());
  stop = true;
  for (std::thread& rival : rivals) rival.join();
}

// EC2. Last: the cluster that the other tests share is gone afterwards.
TEST_F(EtcdTest, ZReplacedDataAreRefused) {
  ASSERT_TRUE(put("a", "1").ok());
  Seen seen;
  const auto watch = registry_->watch(key(""), seen.handler());
  ASSERT_TRUE(strata::testing::wait_until([&] { return seen.entries().size() == 1; }));
  etcd->kill();
  etcd->wipe();
  etcd->start();
  const auto read = registry_->get(key("a"), deadline());
  EXPECT_TRUE(is_corruption(read.status())) << read.status();
  const auto changed = registry_->change(Change::create(key("a"), "x"), deadline());
  EXPECT_TRUE(is_outcome_unknown(changed.status())) << changed.status();
  const auto fresh = etcd->connect();
  EXPECT_TRUE(fresh->get(key("b"), deadline()).ok());
  ASSERT_TRUE(fresh->change(Change::create(key("b"), "x"), deadline()).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // nothing may come
  EXPECT_EQ(seen.entries().size(), 1u);
}

}  // namespace
}  // namespace strata::registry
