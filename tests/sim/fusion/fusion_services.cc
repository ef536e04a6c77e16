// Timestamps, views, other nodes' transactions, row locks, page locks, shared pages, names of
// tables and rounds of page reuse of a test's Cluster by the clients of a memory node, over regions
// that are exposed over a unix socket and mapped: what several servers on one host have. The memory
// node's half is three threads here, its authority stream always takes what it gets, and messages
// are calls of functions.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/fusion_locks.h"
#include "clients/fusion/fusion_pages.h"
#include "clients/fusion/horizon_client.h"
#include "clients/fusion/name_locks.h"
#include "clients/fusion/oracle_client.h"
#include "clients/fusion/reuse_client.h"
#include "clients/fusion/tit_reader.h"
#include "clients/fusion/tit_region.h"
#include "engine/testing/cluster.h"
#include "fusion/timestamps/time_service.h"
#include "lock_pump.h"
#include "names_node.h"
#include "pages_node.h"
#include "proto/fusion.h"
#include "transport/calls/testing/io_node.h"
#include "transport/regions/region_server.h"

namespace strata::engine::testing {
namespace {

using clients::FusionLease;
using clients::FusionLocks;
using clients::FusionPages;
using clients::HorizonClient;
using clients::OracleClient;
using clients::TitOwners;
using clients::TitReader;
using clients::TitRegion;
using fusion::TimeService;
using sim::LockPump;
using sim::LockService;
using sim::NamesNode;
using sim::PagesNode;
using transport::BlockingChannel;
using transport::Region;
using transport::RegionAccess;
using transport::RegionPath;
using transport::RegionServer;
using transport::RemoteRegion;
using transport::RpcServer;

constexpr Epoch kEpoch{1};
constexpr uint64_t kTitSlots = 1u << 16;   // as many as a node's own table has
constexpr uint64_t kLeaseUs = 60'000'000;  // nobody loses it only because the machine is busy

// Calls between nodes are calls of functions.
class Owners final : public TitOwners {
 public:
  Status join(NodeId node, OwnTransactions* own) override {
    const std::unique_lock lock(mutex_);
    nodes_[node.value] = own;
    return ok_status();
  }
  void leave(NodeId node) noexcept override {
    const std::unique_lock lock(mutex_);  // nobody is asking it
    nodes_.erase(node.value);
  }
  StatusOr<TrxLookup> read(TrxId id) override {
    return ask(id, [&](OwnTransactions* own) { return own->own_state(sequence_of(id)); });
  }
  StatusOr<TrxLookup> wait_decided(TrxId id) override {
    return ask(id, [&](OwnTransactions* own) { return own->own_outcome(sequence_of(id)); });
  }
  uint64_t bound_of(uint8_t node) {
    const std::shared_lock lock(mutex_);
    const auto it = nodes_.find(node);
    return it == nodes_.end() ? 0 : it->second->own_bound();
  }

 private:
  template <typename Ask>
  StatusOr<TrxLookup> ask(TrxId id, const Ask& ask) {
    const std::shared_lock lock(mutex_);
    const auto it = nodes_.find(node_of(id).value);
    if (it == nodes_.end()) return error_not_found();
    return ask(it->second);
  }
  std::shared_mutex mutex_;
  std::map<uint8_t, OwnTransactions*> nodes_;
};

class FusionServices final : public ClusterServices {
 public:
  FusionServices() {
    server_ = std::make_unique<RpcServer>(io_.world(), transport::test::secret_of('s'),
                                          transport::ServerOptions());
    regions_ = std::make_unique<RegionServer>(server_.get());
    channel_ = std::make_shared<BlockingChannel>(transport::test::secret_of('s'),
                                                 *server_->listen("unix:" + (folder_ / "socket")),
                                                 transport::BlockingChannelOptions());
    times_ = make("times", proto::kTimesBytes, RegionAccess::kReadWrite);
    fusion::PagesOptions pages;
    pages.slots = 2048;
    pages.entries_max = 1024;  // they are dropped, too
    const uint64_t pool_bytes = uint64_t{pages.slots} * kPageBytes;
    pages_ = std::make_unique<PagesNode>(pages, kEpoch,
                                         make("pages", pool_bytes, RegionAccess::kReadWrite));
    fusion::TimeServiceOptions options;
    options.authority.lease_us = kLeaseUs;
    options.oracle.step = 10'000;  // the ceiling is met, too
    service_.emplace(options, kEpoch, std::nullopt, now_us(), times_->data());
    settle();
    keeper_ = std::thread([this] { keep(); });
  }
  ~FusionServices() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    keeper_.join();
    pages_->stop();
    pages_.reset();
    names_.stop();
    uint64_t fetches = 0, requests = 0, gets = 0, calls = 0, waits = 0, notes = 0, ends = 0;
    for (const auto* list : {&graveyard_})
      for (const auto& life : *list) {
        const auto& c = life->oracle.counters();
        fetches += c.fetches.load();
        requests += c.views.load() + c.commits.load();
        gets += life->reader.counters().gets.load();
        calls += life->reader.counters().calls.load();
        const clients::RowLockClientCounters of = life->locks.counters();
        waits += of.waits;
        notes += of.notes;
        ends += of.ends_told;
      }
    std::printf("fusion: %llu timestamps by %llu fetches; %llu slots read, %llu owners asked\n",
                static_cast<unsigned long long>(requests), static_cast<unsigned long long>(fetches),
                static_cast<unsigned long long>(gets), static_cast<unsigned long long>(calls));
    std::printf(
        "pages: %llu times held already, %llu grants, %llu given up, %llu got from slots, %llu "
        "from storage, %llu put\n",
        static_cast<unsigned long long>(of_pages_.held),
        static_cast<unsigned long long>(of_pages_.grants),
        static_cast<unsigned long long>(of_pages_.given_up),
        static_cast<unsigned long long>(of_pages_.gets),
        static_cast<unsigned long long>(of_pages_.storage_reads),
        static_cast<unsigned long long>(of_pages_.puts));
    const fusion::RowLockCounters rows = lock_service_.counters();
    std::printf(
        "row locks: %llu waits, %llu turns (%llu before others), %llu holders' ends told, %llu "
        "holders told of, %llu deadlocks, %llu that were none any more\n",
        static_cast<unsigned long long>(waits), static_cast<unsigned long long>(rows.turns),
        static_cast<unsigned long long>(rows.overtaken), static_cast<unsigned long long>(ends),
        static_cast<unsigned long long>(notes), static_cast<unsigned long long>(rows.deadlocks),
        static_cast<unsigned long long>(rows.unconfirmed));
    EXPECT_EQ(rows.polls_found, 0u);  // no wake-up was lost (FU26)
    lives_.clear();
    graveyard_.clear();
    server_.reset();
  }

  Seams start(uint8_t node, PageSource* storage) override {
    auto life = std::make_shared<Life>(this, node, ++last_life_);
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        const Status joined = service_->join(life->id, life->number, now_us());
        if (joined.ok()) break;
        EXPECT_TRUE(may_pass(joined)) << joined;
        settle();
      }
    }
    life->oracle.use(open("times"), kEpoch);
    life->horizon.use(open("times"), kEpoch);
    beat(life.get());
    const std::lock_guard lock(mutex_);
    for (auto& [other, there] : lives_) {
      there->reader.opened(life->id, open(life->table_name()), kTitSlots);
      life->reader.opened(there->id, open(there->table_name()), kTitSlots);
    }
    lives_[node] = life;
    life->pump = std::make_unique<LockPump>(&life->locks, &lock_service_, kEpoch);
    while (!life->locks.joined()) std::this_thread::yield();
    clients::FusionPagesOptions options;
    options.stream = StreamId{node};
    life->service = std::make_unique<PagesNode::Server>(
        pages_.get(), proto::PageCaller{life->id, life->number, kEpoch});
    life->pages = std::make_unique<FusionPages>(options, kEpoch, &life->lease, life->service.get(),
                                                open("pages"), storage);
    pages_->joined(life->id, life->number, life->pages.get(), storage);
    const Status begun = life->pages->begin();
    EXPECT_TRUE(begun.ok()) << begun;
    start_names(life.get());
    return {&life->oracle,     &life->horizon,        &life->reader,     &life->locks,
            life->pages.get(), life->pages->source(), life->names.get(), life->page_reuse.get()};
  }

  void ended(uint8_t node, bool crashed) override {
    std::shared_ptr<Life> life;
    {
      const std::lock_guard lock(mutex_);
      life = lives_[node];
      lives_.erase(node);
      graveyard_.push_back(life);
    }
    life->pump->stop();
    if (!crashed) {
      end_pages(life.get(), false);
      end_names(life.get(), false);
      const std::lock_guard lock(mutex_);
      lock_service_.gone(life->id);
      service_->leave(life->id, life->number);
      settle();
      for (auto& [other, there] : lives_) there->reader.closed(life->id);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      EXPECT_TRUE(service_->authority()->fence(life->id).ok());
      service_->authority()->exited(life->id, life->number);
      settle();
    }
    // FU4: all others hear of it, and say so; who comes meanwhile hears of it, too.
    for (const uint64_t deadline_us = now_us() + 60'000'000;;) {
      for (const auto& there : living()) beat(there.get());
      const std::lock_guard lock(mutex_);
      if (service_->authority()->may_release(life->id, now_us())) break;
      if (now_us() < deadline_us) continue;
      ADD_FAILURE() << "node " << int{node} << " is never released";
      break;
    }
    end_pages(life.get(), true);
    end_names(life.get(), true);
    const std::lock_guard lock(mutex_);
    lock_service_.gone(life->id);
    service_->authority()->forget(life->id);
    settle();
  }

  void hear(uint8_t node) override {
    for (const auto& life : living()) say(life.get());
    std::shared_ptr<Life> life;
    {
      const std::lock_guard lock(mutex_);
      settle();
      const auto it = lives_.find(node);
      if (it != lives_.end()) life = it->second;
    }
    if (life != nullptr) beat(life.get());
  }
  Status store_all() override { return pages_->store_all(); }
  [[nodiscard]] uint64_t page_transfers() override {
    const std::lock_guard lock(mutex_);
    uint64_t given_up = of_pages_.given_up;
    for (const auto& [node, life] : lives_)
      given_up += life->pages->holds().counters().given_up.load();
    return given_up;
  }
  [[nodiscard]] uint64_t reads_of_others(uint8_t node) override {
    const std::lock_guard lock(mutex_);
    const clients::TitCounters& counters = lives_[node]->reader.counters();
    return counters.gets.load() + counters.calls.load();
  }
  [[nodiscard]] LockAuthority* any_locks() override {
    const std::lock_guard lock(mutex_);
    return lives_.empty() ? nullptr : &lives_.begin()->second->locks;
  }

 private:
  struct Life {
    Life(FusionServices* all, uint8_t node, uint64_t number)
        : id(node),
          number(number),
          table(all->make(table_name(), TitRegion::bytes_of(kTitSlots), RegionAccess::kReadWrite)),
          tit(table->data(), kTitSlots),
          oracle(&lease),
          horizon(&lease),
          reader(&lease, &all->owners_, &tit),
          locks(id, number, &reader, &tit) {}
    [[nodiscard]] std::string table_name() const {
      return "tit-" + std::to_string(id.value) + "-" + std::to_string(number);
    }
    const NodeId id;
    const uint64_t number;
    const std::shared_ptr<Region> table;
    TitRegion tit;
    FusionLease lease;
    OracleClient oracle;
    HorizonClient horizon;
    TitReader reader;
    FusionLocks locks;
    std::unique_ptr<LockPump> pump;
    std::unique_ptr<PagesNode::Server> service;
    std::unique_ptr<FusionPages> pages;
    std::unique_ptr<NamesNode::Server> names_service;
    std::unique_ptr<clients::NameLocks> names;
    std::unique_ptr<clients::ReuseClient> page_reuse;
    std::mutex beating;
    uint64_t fences_heard = 0;  // under beating
  };

  struct PagesSum {
    uint64_t held = 0, grants = 0, given_up = 0, gets = 0, storage_reads = 0, puts = 0;
  };
  // Nothing that its kernel had is left, and its thread ends.
  void end_pages(Life* life, bool crashed) {
    pages_->ended(life->id, life->number, crashed);
    const std::lock_guard lock(mutex_);
    const clients::PageHoldsCounters& holds = life->pages->holds().counters();
    const clients::FusionPagesCounters& pages = life->pages->counters();
    of_pages_.held += holds.held.load();
    of_pages_.grants += holds.grants.load();
    of_pages_.given_up += holds.given_up.load();
    of_pages_.gets += pages.gets.load();
    of_pages_.storage_reads += pages.storage_reads.load();
    of_pages_.puts += pages.puts.load();
    life->pages.reset();
    life->service.reset();
  }

  void start_names(Life* life) {
    life->names_service = std::make_unique<NamesNode::Server>(
        &names_, proto::NameCaller{life->id, life->number, kEpoch});
    clients::NameLocksOptions options;
    options.try_us = 20'000;  // what is in use is often used by who waits for somebody else's name
    options.space_wait_us = kLeaseUs;
    life->names = std::make_unique<clients::NameLocks>(options, kEpoch, &life->lease,
                                                       life->names_service.get());
    life->page_reuse = std::make_unique<clients::ReuseClient>(clients::ReuseClientOptions(),
                                                              life->names_service.get());
    names_.joined(life->id, life->number, life->names.get(), life->page_reuse.get());
  }
  void end_names(Life* life, bool crashed) {
    names_.ended(life->id, life->number, crashed);
    life->names.reset();
    life->page_reuse.reset();
    life->names_service.reset();
  }

  static uint64_t now_us() { return clients::boot_time_us(); }
  std::shared_ptr<Region> make(const std::string& name, uint64_t bytes, RegionAccess access) {
    std::shared_ptr<Region> region = *Region::create(folder_ / name, bytes, kEpoch.value);
    regions_->expose(name, region, access);
    return region;
  }
  std::shared_ptr<RemoteRegion> open(const std::string& name) {
    auto opened = transport::open_remote_region(channel_, name, RegionPath::kMapped,
                                                monotonic_us() + 60'000'000);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
  std::vector<std::shared_ptr<Life>> living() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Life>> all;
    for (const auto& [node, life] : lives_) all.push_back(life);
    return all;
  }
  // The memory node's records are durable at once. Under mutex_.
  void settle() {
    for (;;) {
      const auto append = service_->tick(now_us());
      if (!append.has_value()) return;
      service_->append_durable(append->number);
    }
  }
  // What a heartbeat says and brings. `hears`: the reply comes.
  void beat(Life* life, bool hears = true) {
    const std::lock_guard one(life->beating);
    proto::Heartbeat beat;
    beat.server = life->id;
    beat.life = life->number;
    beat.epoch = kEpoch;
    beat.fences_heard = life->fences_heard;
    const std::optional<Cts> oldest = life->horizon.oldest_own_view();  // may fetch
    beat.has_views = oldest.has_value();
    beat.oldest_view = oldest.value_or(Cts{});
    beat.bound = owners_.bound_of(life->id.value);
    const uint64_t asked_us = now_us();
    StatusOr<proto::HeartbeatReply> reply = error_peer_down();
    {
      const std::lock_guard lock(mutex_);
      reply = service_->heartbeat(beat, now_us());
    }
    if (!reply.ok()) {
      const std::lock_guard lock(mutex_);
      const auto it = lives_.find(life->id.value);
      const bool is_current = it != lives_.end() && it->second.get() == life;
      EXPECT_FALSE(is_current) << reply.status();  // else it was fenced meanwhile
      return;
    }
    for (const proto::Fence& fence : reply->fences) {
      // Of a life that is there again the table is another one.
      const std::lock_guard lock(mutex_);
      if (!lives_.contains(fence.server.value)) {
        life->reader.closed(fence.server);
      }
      life->fences_heard = std::max(life->fences_heard, fence.number);
    }
    life->lease.granted(reply->epoch, asked_us, reply->lease_us);
    if (!hears) return;
    life->horizon.heard(reply->horizon);
    for (const proto::HeartbeatReply::Bound& bound : reply->bounds)
      life->reader.heard_bound(bound.server, bound.bound);
  }
  void say(Life* life) { beat(life, false); }
  // Raises the ceiling in time and renews leases. What nodes hear is up to the test.
  void keep() {
    uint64_t beats_at_us = now_us();
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      settle();
      if (now_us() >= beats_at_us) {
        beats_at_us = now_us() + kLeaseUs / 8;
        lock_service_.tick(now_us());
        lock.unlock();
        for (const auto& life : living()) say(life.get());
        lock.lock();
        continue;
      }
      stop_.wait_for(lock, std::chrono::milliseconds(1));
    }
  }

  transport::test::Folder folder_;
  transport::test::IoNode io_;
  std::unique_ptr<RegionServer> regions_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<BlockingChannel> channel_;
  std::shared_ptr<Region> times_;
  std::unique_ptr<PagesNode> pages_;
  NamesNode names_{kEpoch};
  Owners owners_;
  LockService lock_service_{kEpoch};
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::optional<TimeService> service_;              // under mutex_
  std::map<uint8_t, std::shared_ptr<Life>> lives_;  // under mutex_
  std::vector<std::shared_ptr<Life>> graveyard_;  // the last views of a kernel may still point here
  std::atomic<uint64_t> last_life_{0};
  PagesSum of_pages_;  // of lives that have ended; under mutex_
  std::thread keeper_;
};

const bool is_set = [] {
  cluster_services = [](uint8_t) { return std::make_unique<FusionServices>(); };
  return true;
}();

}  // namespace
}  // namespace strata::engine::testing
