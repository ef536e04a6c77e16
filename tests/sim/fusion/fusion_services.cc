// Timestamps, views, other nodes' transactions, page locks and shared pages of a test's Cluster by
// the clients of a memory node, over regions that are exposed over a unix socket and mapped: what several servers on one
// host have. The memory node's half is a thread here, its authority stream always takes what it
// gets.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/fusion_pages.h"
#include "clients/fusion/horizon_client.h"
#include "clients/fusion/oracle_client.h"
#include "clients/fusion/tit_reader.h"
#include "clients/fusion/tit_region.h"
#include "engine/testing/cluster.h"
#include "fusion/pages/pages.h"
#include "fusion/timestamps/time_service.h"
#include "proto/fusion.h"
#include "transport/calls/testing/io_node.h"
#include "transport/regions/region_server.h"

namespace strata::engine::testing {
namespace {

using clients::FusionLease;
using clients::FusionPages;
using clients::HorizonClient;
using clients::OracleClient;
using clients::PageService;
using clients::PageSlots;
using clients::TitOwners;
using clients::TitReader;
using clients::TitRegion;
using fusion::Pages;
using fusion::TimeService;
using transport::BlockingChannel;
using transport::Region;
using transport::RegionAccess;
using transport::RegionPath;
using transport::RegionServer;
using transport::RemoteRegion;
using transport::RpcServer;

constexpr Epoch kEpoch{1};
constexpr uint64_t kTitSlots = 1u << 16;  // as many as a node's own table has
constexpr uint32_t kPoolSlots = 2048;
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

// The memory node's half of pages: calls are calls of functions, and what it has to say to a server
// is said in the thread that made it say so, without its mutex. A thread writes to storage.
class PagesNode {
 public:
  explicit PagesNode(std::shared_ptr<Region> pool)
      : pool_(std::move(pool)), pages_(options(), kEpoch) {
    writer_ = std::thread([this] { write_on(); });
  }
  ~PagesNode() {
    const fusion::PagesCounters& c = pages_.counters();
    std::printf(
        "pages: %llu grants, %llu asked back, %llu versions, %llu written, %llu dropped\n",
        static_cast<unsigned long long>(c.grants), static_cast<unsigned long long>(c.give_ups),
        static_cast<unsigned long long>(c.versions), static_cast<unsigned long long>(c.writes),
        static_cast<unsigned long long>(c.dropped));
  }

  class Server final : public PageService {
   public:
    Server(PagesNode* node, NodeId id, uint64_t life) : node_(node), caller_{id, life, kEpoch} {}
    StatusOr<std::vector<proto::PageGrant>> ask(const std::vector<proto::PageAsk>& asks) override {
      std::vector<proto::PageGrant> granted;
      STRATA_RETURN_IF_ERROR(
          node_->call([&](Pages* pages) { return pages->ask(caller_, asks, monotonic_us()); },
                      caller_.server, &granted));
      return granted;
    }
    Status report(const std::vector<proto::PageReport>& reports) override {
      return node_->call(
          [&](Pages* pages) { return pages->report(caller_, reports, monotonic_us()); });
    }
    StatusOr<std::vector<uint32_t>> take_slots(uint64_t request, uint32_t wanted) override {
      const std::lock_guard lock(node_->mutex_);
      return node_->pages_.take_slots(caller_, request, wanted);
    }
    StatusOr<std::vector<PageId>> adopt() override {
      const std::lock_guard lock(node_->mutex_);
      const Status status = node_->pages_.adopt(caller_, caller_.server);
      if (!status.ok() && !is_not_found(status)) return status;
      std::vector<PageId> pages;
      for (const Pages::DeadPage& page : node_->pages_.dead_pages(caller_.server))
        pages.push_back(page.page);
      return pages;
    }
    Status adoption_ended() override {
      return node_->call(
          [&](Pages* pages) { return pages->adoption_ended(caller_, caller_.server); });
    }
    Status write_back_below(StreamId stream, Lsn below) override {
      return node_->write_back_below([=](const Pages& p) { return p.oldest(stream) >= below; });
    }
    Status forget_space(SpaceId space) override {
      return node_->call([&](Pages* pages) {
        pages->forget_space(space);
        return ok_status();
      });
    }

   private:
    PagesNode* const node_;
    const proto::PageCaller caller_;
  };

  void joined(NodeId id, uint64_t life, FusionPages* client, PageSource* storage) {
    const std::lock_guard lock(mutex_);
    storage_ = storage;
    EXPECT_TRUE(pages_.joined(id, life).ok());
    clients_[id.value] = {life, client};
  }
  // Its kernel has gone, and with it whoever could put anything.
  void ended(NodeId id, uint64_t life, bool crashed) {
    const Status status = call([&](Pages* pages) {
      clients_.erase(id.value);
      if (crashed) {
        pages->fence(id);
        pages->release_fenced(id);
      } else {
        pages->left(id, life);
      }
      pages->mapping_gone(id, life);
      return ok_status();
    });
    EXPECT_TRUE(status.ok());
    // Nobody says anything to it any more.
    std::unique_lock lock(mutex_);
    while (saying_ != 0) changed_.wait_for(lock, std::chrono::milliseconds(1));
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    writer_.join();
  }
  Status store_all() {
    return write_back_below([](const Pages& pages) { return pages.dirty_pages() == 0; });
  }

 private:
  struct Client {
    uint64_t life = 0;
    FusionPages* pages = nullptr;
  };
  static fusion::PagesOptions options() {
    fusion::PagesOptions options;
    options.slots = kPoolSlots;
    options.entries_max = 1024;  // they are dropped, too
    return options;
  }
  // Says what there is to say. Grants to `self` go to *granted instead.
  Status call(const std::function<Status(Pages*)>& action, NodeId self = {},
              std::vector<proto::PageGrant>* granted = nullptr) {
    std::unique_lock lock(mutex_);
    const Status status = action(&pages_);
    std::vector<Pages::Outgoing> out = pages_.take_outgoing();
    ++saying_;
    lock.unlock();
    for (Pages::Outgoing& one : out) {
      auto* const grant = std::get_if<proto::PageGrant>(&one.message);
      if (grant != nullptr && granted != nullptr && one.server == self) {
        granted->push_back(std::move(*grant));
        continue;
      }
      FusionPages* client = nullptr;
      {
        const std::lock_guard look(mutex_);
        const auto it = clients_.find(one.server.value);
        if (it != clients_.end() && it->second.life == one.life) client = it->second.pages;
      }
      if (client == nullptr) continue;  // and its object lives on
      if (grant != nullptr)
        client->granted(*grant);
      else
        client->asked_back(std::get<proto::PageGiveUp>(one.message));
    }
    lock.lock();
    --saying_;
    return status;
  }
  // One batch; false: there is nothing to write.
  StatusOr<bool> write_some() {
    std::vector<Pages::Write> writes;
    PageSource* storage = nullptr;
    {
      const std::lock_guard lock(mutex_);
      writes = pages_.begin_writes(kWriteBatchPages);
      storage = storage_;
    }
    if (writes.empty()) return false;
    AlignedBytes page(kPageBytes);
    Status status;
    std::vector<bool> written;
    for (const Pages::Write& write : writes) {
      std::memcpy(page.get(), pool_->data() + uint64_t{write.slot} * kPageBytes, kPageBytes);
      Status one = PageSlots::check(page.get(), write.page, write.llsn);
      EXPECT_TRUE(one.ok()) << one;  // what is in a page's slot nobody puts into
      if (one.ok()) one = storage->write(write.page, page.get());
      written.push_back(one.ok());
      if (!one.ok()) status = one;
    }
    if (status.ok()) status = storage->sync();
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < writes.size(); ++i)
      pages_.write_ended(writes[i], status.ok() && written[i]);
    changed_.notify_all();
    return true;
  }
  Status write_back_below(const std::function<bool(const Pages&)>& reached) {
    const uint64_t deadline_us = monotonic_us() + 60'000'000;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        if (reached(pages_)) return ok_status();
        if (monotonic_us() > deadline_us) return error_timed_out();
      }
      STRATA_ASSIGN_OR_RETURN(const bool wrote, write_some());
      if (wrote) continue;
      std::unique_lock lock(mutex_);  // the writer has it
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
  }
  void write_on() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::milliseconds(10));
        if (stopping_) return;
      }
      Status said = call([](Pages* pages) {
        pages->tick(monotonic_us());
        return ok_status();
      });
      EXPECT_TRUE(said.ok());
      const auto wrote = write_some();
      EXPECT_TRUE(wrote.ok()) << wrote.status();
    }
  }

  const std::shared_ptr<Region> pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Pages pages_;                        // under mutex_
  std::map<uint8_t, Client> clients_;  // under mutex_
  PageSource* storage_ = nullptr;      // under mutex_
  uint64_t saying_ = 0;                // under mutex_
  bool stopping_ = false;              // under mutex_
  std::thread writer_;
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
    pages_ = std::make_unique<PagesNode>(
        make("pages", uint64_t{kPoolSlots} * kPageBytes, RegionAccess::kReadWrite));
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
    for (const auto& life : graveyard_) life->pages.reset();  // their threads end
    pages_.reset();
    uint64_t fetches = 0, requests = 0, gets = 0, calls = 0;
    for (const auto* list : {&graveyard_})
      for (const auto& life : *list) {
        const auto& c = life->oracle.counters();
        fetches += c.fetches.load();
        requests += c.views.load() + c.commits.load();
        gets += life->reader.counters().gets.load();
        calls += life->reader.counters().calls.load();
      }
    std::printf("fusion: %llu timestamps by %llu fetches; %llu slots read, %llu owners asked\n",
                static_cast<unsigned long long>(requests), static_cast<unsigned long long>(fetches),
                static_cast<unsigned long long>(gets), static_cast<unsigned long long>(calls));
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
    clients::FusionPagesOptions options;
    options.stream = StreamId{node};
    life->service = std::make_unique<PagesNode::Server>(pages_.get(), life->id, life->number);
    life->pages = std::make_unique<FusionPages>(options, kEpoch, &life->lease, life->service.get(),
                                                open("pages"), storage);
    pages_->joined(life->id, life->number, life->pages.get(), storage);
    const Status begun = life->pages->begin();
    EXPECT_TRUE(begun.ok()) << begun;
    return {&life->oracle, &life->horizon, &life->reader, life->pages.get(), life->pages->source()};
  }

  void ended(uint8_t node, bool crashed) override {
    std::shared_ptr<Life> life;
    {
      const std::lock_guard lock(mutex_);
      life = lives_[node];
      lives_.erase(node);
      graveyard_.push_back(life);
      pages_->ended(life->id, life->number, crashed);
      if (!crashed) {
        service_->leave(life->id, life->number);
        settle();
        for (auto& [other, there] : lives_) there->reader.closed(life->id);
        return;
      }
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
    const std::lock_guard lock(mutex_);
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
  [[nodiscard]] uint64_t reads_of_others(uint8_t node) override {
    const std::lock_guard lock(mutex_);
    const clients::TitCounters& counters = lives_[node]->reader.counters();
    return counters.gets.load() + counters.calls.load();
  }

 private:
  struct Life {
    Life(FusionServices* all, uint8_t node, uint64_t number)
        : id(node),
          number(number),
          table(all->make(table_name(), TitRegion::bytes_of(kTitSlots), RegionAccess::kReadOnly)),
          tit(table->data(), kTitSlots),
          oracle(&lease),
          horizon(&lease),
          reader(&lease, &all->owners_, &tit) {}
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
    std::unique_ptr<PagesNode::Server> service;
    std::unique_ptr<FusionPages> pages;
    std::mutex beating;
    uint64_t fences_heard = 0;  // under beating
  };

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
      if (!lives_.contains(fence.server.value)) life->reader.closed(fence.server);
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
  Owners owners_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::optional<TimeService> service_;              // under mutex_
  std::map<uint8_t, std::shared_ptr<Life>> lives_;  // under mutex_
  std::vector<std::shared_ptr<Life>> graveyard_;  // the last views of a kernel may still point here
  uint64_t last_life_ = 0;
  std::thread keeper_;
};

const bool is_set = [] {
  cluster_services = [](uint8_t) { return std::make_unique<FusionServices>(); };
  return true;
}();

}  // namespace
}  // namespace strata::engine::testing
