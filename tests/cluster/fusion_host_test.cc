// Goal: what memnode/host promises of a memory node that several servers share (FHO1-FHO5,
// FTM1-FTM6): servers that share pages through it lose nothing, storage has what it was given, one
// memory node serves at a time, one that is deposed begins anew, and one that comes after another
// serves only when storage has what the servers before had logged; whatever fails passes. Method:
// real memory nodes, three storage nodes of profile remote-disk and FusionMember clients in one
// process, over sockets, the registry in memory. No time limit here is one that a slow machine
// would miss.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "bufpool/pool_test_support.h"
#include "clients/fusion/fusion_member.h"
#include "clients/storage/registry_control.h"
#include "cluster/holder_address.h"
#include "memnode/node/memory_node.h"
#include "storage_cluster.h"

namespace strata::testing {
namespace {

using cluster::kAuthorityStream;
using memnode::FusionPhase;
using memnode::FusionTerm;
using memnode::MemoryNode;

constexpr uint32_t kSpace = 300;
constexpr uint32_t kPages = 12;
constexpr StreamId kServersStream = cluster::log_stream_of(NodeId{5});  // of nobody's here

// Storage as servers of a node have it: by way of whatever term the node is in, which they outlive.
class StorageNow final : public PageSource {
 public:
  explicit StorageNow(MemoryNode* node) : node_(node) {}
  Status read(PageId id, Llsn at_least, char* page) override {
    return now([&](PageSource* pages) { return pages->read(id, at_least, page); });
  }
  Status write(PageId id, const char* page) override {
    return now([&](PageSource* pages) { return pages->write(id, page); });
  }
  Status sync() override {
    return now([](PageSource* pages) { return pages->sync(); });
  }
  Status create_space(SpaceId space) override {
    return now([space](PageSource* pages) { return pages->create_space(space); });
  }
  Status delete_space(SpaceId space) override {
    return now([space](PageSource* pages) { return pages->delete_space(space); });
  }
  StatusOr<bool> space_exists(SpaceId) override { return true; }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return std::vector<SpaceId>{}; }
  Status grow_space(SpaceId, uint32_t) override { return ok_status(); }
  [[nodiscard]] bool needs_page_images() const override { return false; }

 private:
  Status now(const std::function<Status(PageSource*)>& does) {
    Status status = error_peer_down("the memory node is between two terms");
    node_->fusion()->with_term([&](FusionTerm* term) { status = does(term->pages()); });
    return status;
  }
  MemoryNode* const node_;
};

// A server that shares pages, as far as those go.
struct Server {
  Server(MemoryNode* node, uint8_t number, uint64_t life)
      : storage(node),
        log(std::make_unique<Log>(LogOptions{.buffer_bytes = 1u << 20}, &sink, Lsn{4096}, 0)) {
    clients::FusionMemberOptions options;
    options.server = NodeId{number};
    options.life = life;
    options.alone = true;
    options.renew_us = 20'000;
    options.placement = [this] { return placement.load(); };
    auto joined = clients::FusionMember::join(
        options, std::make_shared<transport::BlockingChannel>(cluster_secret(), node->address(),
                                                              transport::BlockingChannelOptions{}));
    EXPECT_TRUE(joined.ok()) << joined.status();
    if (!joined.ok()) return;
    member = *std::move(joined);
    clients::FusionPagesOptions page_options;
    page_options.stream = cluster::log_stream_of(NodeId{number});
    page_options.look_us = 5'000;
    page_options.slots_at_once = 8;
    const auto pages = member->make_pages(page_options, &storage);
    EXPECT_TRUE(pages.ok()) << pages.status();
    EXPECT_TRUE((*pages)->begin().ok());
    EXPECT_TRUE(member->serve().ok());
    auto made = BufferPool::create(tiny_pool(40, 1), (*pages)->source(), *pages, log.get());
    EXPECT_TRUE(made.ok()) << made.status();
    pool = *std::move(made);
    (*pages)->serve(pool.get());
  }
  ~Server() { die(); }
  Status change(PageId page) {
    STRATA_RETURN_IF_ERROR(log->reserve_capacity(64, false));
    STRATA_ASSIGN_OR_RETURN(auto guard, pool->fix(page, LatchMode::kExclusive));
    PageVersion v;
    EXPECT_EQ(check_page(guard.page(), page, &v), "");
    LogReservation r;
    while (!log->reserve(64, log->image_floor(), Llsn{header_of(guard.page())->llsn}, &r)) {
    }
    log->copy(r, std::string(64, 'g'));
    fill_page(guard.mutable_page(), page, r.llsn.value, PageVersion{v.version + 1, 0});
    pool->note_modified(guard, r.start, r.end, false);
    log->complete(r);
    return ok_status();
  }
  StatusOr<uint64_t> version(PageId page) {
    STRATA_ASSIGN_OR_RETURN(const auto guard, pool->fix(page, LatchMode::kShared));
    PageVersion v;
    EXPECT_EQ(check_page(guard.page(), page, &v), "");
    return v.version;
  }
  // Storage has everything that it has changed.
  Status write_back() {
    STRATA_RETURN_IF_ERROR(log->persist(log->next_lsn()));
    STRATA_RETURN_IF_ERROR(pool->write_back_below(log->next_lsn()));
    return pool->source()->sync_below(log->next_lsn());
  }
  Status leave() {
    close_pool();
    return member->leave();
  }
  void close_pool() {
    if (pool == nullptr) return;
    member->pages()->serve(nullptr);
    pool.reset();
  }
  // Without a word.
  void die() {
    if (member == nullptr) return;
    member->stop();
    close_pool();
    member.reset();
  }

  std::atomic<uint64_t> placement{1};  // that it finds pages by, as it says
  StorageNow storage;
  MemoryLogSink sink;
  std::unique_ptr<Log> log;
  std::unique_ptr<clients::FusionMember> member;
  std::unique_ptr<BufferPool> pool;
};

class FusionHosts : public ::testing::Test {
 protected:
  FusionHosts() {
    set_diag_sink([](Severity, std::string_view) {});
    for (int i = 0; i < 3; ++i)
      around_.addresses.push_back("unix:" + (folder_ / ("socket-" + std::to_string(i))));
    fusion_.service.pages.slots = 160;
    fusion_.service.pages.ask_again_us = 20'000;
    fusion_.service.table_slots = 128;
    fusion_.service.tick_us = 2'000;
    fusion_.service.slot_wait_us = 10'000;
    fusion_.service.resume_us_max = 300'000;  // of servers that are dead, but for one test
    fusion_.service.time.authority.lease_us = 60'000'000;  // nobody loses it on a slow machine
    fusion_.service.time.authority.renew_us = 50'000;
    fusion_.service.time.authority.takeover_wait_us = 1'000;
    fusion_.again_us = 20'000;
    fusion_.take_over_timeout_us = 10'000'000;
  }
  ~FusionHosts() override {
    nodes_.clear();
    storage_.clear();
    set_diag_sink(nullptr);
  }

  void start_storage() {
    for (size_t i = 0; i < 3; ++i)
      storage_.push_back(std::make_unique<StorageNode>(
          &around_, i, folder_ / ("node-" + std::to_string(i)), "remote-disk"));
  }
  struct Node {
    std::unique_ptr<registry::SimRegistry> registry;
    std::unique_ptr<FileSystem> files = make_posix_file_system();
    std::unique_ptr<MemoryNode> node;
  };
  Node* start_node(const std::string& name) {
    auto& made = nodes_[name];
    made = std::make_unique<Node>();
    made->registry = around_.sim.store().connect();
    memnode::NodeOptions options;
    options.name = name;
    options.cluster = "test";
    options.directory = folder_ / name;
    options.listen = {"unix:" + (folder_ / (name + ".socket"))};
    options.memory_bytes = 16u << 20;
    options.workers = 2;
    options.lease_s = 600;  // what takes over does so since the other one has left, or by its name
    options.call_timeout_us = 2'000'000;
    options.fusion = fusion_;
    auto opened =
        MemoryNode::open(made->registry.get(), made->files.get(), cluster_secret(), options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) made->node = *std::move(opened);
    return made.get();
  }
  // As if it was killed: nobody hears of it, and its lease goes on.
  void kill_node(const std::string& name) {
    nodes_[name]->registry->set_connected(false);
    nodes_.erase(name);
  }
  static memnode::FusionHostStatus status(Node* node) { return node->node->fusion()->status(); }
  static bool serves(Node* node) {
    const memnode::FusionHostStatus now = status(node);
    return now.phase == FusionPhase::kServes && now.service->status().serves;
  }
  static bool wait_serves(Node* node) {
    return wait_until([&] { return serves(node); });
  }
  static clients::WrittenPageSource* pages(Node* node) {
    clients::WrittenPageSource* pages = nullptr;
    node->node->fusion()->with_term([&](FusionTerm* term) { pages = term->pages(); });
    EXPECT_NE(pages, nullptr);
    return pages;
  }
  static void make_pages(Node* node) {
    ASSERT_TRUE(pages(node)->create_space(SpaceId{kSpace}).ok());
    const AlignedBytes bytes(kPageBytes);
    for (uint32_t i = 0; i < kPages; ++i) {
      fill_page(bytes.get(), PageId{kSpace, i}, 1, PageVersion{0, 0});
      seal_page(bytes.get());
      ASSERT_TRUE(pages(node)->write(PageId{kSpace, i}, bytes.get()).ok());
    }
    ASSERT_TRUE(pages(node)->sync().ok());
  }
  std::unique_ptr<Server> server(Node* node, uint8_t number, uint64_t life) {
    return std::make_unique<Server>(node->node.get(), number, life);
  }
  uint64_t deadline() const { return registry_->now_us() + 10'000'000; }
  // A server's word that its database is whole, and from where its log is to be redone.
  void publish(Lsn checkpoint) {
    cluster::StreamEpochs epochs(registry_.get(), around_.keys);
    auto lease = registry_->grant_lease(
        600, [](registry::LeaseId) {}, deadline());
    ASSERT_TRUE(lease.ok()) << lease.status();
    const auto grant =
        epochs.acquire({kServersStream, "server-5", Epoch{}, {}}, **lease, deadline());
    ASSERT_TRUE(grant.ok()) << grant.status();
    auto control = clients::RegistryControl::open(registry_.get(), around_.keys, *grant, kCallUs);
    ASSERT_TRUE(control.ok()) << control.status();
    ControlData data = (*control)->data();
    data.database_id = 1;
    data.profile = "remote-disk";
    data.checkpoint_lsn = checkpoint;
    ASSERT_TRUE((*control)->publish(data).ok());
    ASSERT_TRUE(epochs.release(*grant, deadline()).ok());
  }
  // Bytes in that server's log; where it ends.
  Lsn write_log(bool founding) {
    cluster::StreamEpochs epochs(registry_.get(), around_.keys);
    auto lease = registry_->grant_lease(
        600, [](registry::LeaseId) {}, deadline());
    const auto grant =
        epochs.acquire({kServersStream, "server-5", Epoch{}, {}}, **lease, deadline());
    EXPECT_TRUE(grant.ok()) << grant.status();
    clients::QuorumLogOptions log;
    log.client.stream = kServersStream;
    log.client.addresses.assign(around_.addresses.begin(), around_.addresses.end());
    log.holder = {grant->epoch, grant->epoch.value};
    log.founding = founding;
    auto sink = clients::QuorumLogSink::open(io_.world(), cluster_secret(), log);
    EXPECT_TRUE(sink.ok()) << sink.status();
    const Lsn at = founding ? (*sink)->begin_lsn() : (*sink)->room_end();
    EXPECT_TRUE((*sink)->cut_at(at).ok());
    EXPECT_TRUE((*sink)->prepare_room(Lsn{1 << 30}).ok());
    EXPECT_TRUE((*sink)->append_whole(at, std::string(64, 'w')).ok());
    EXPECT_TRUE((*sink)->sync().ok());
    EXPECT_TRUE(epochs.release(*grant, deadline()).ok());
    return Lsn{at.value + 64};
  }
  // One more storage node, that nobody hears of but from the registry.
  void add_storage_node() {
    cluster::Topology topology(registry_.get(), around_.keys);
    const auto now = topology.placement(deadline());
    ASSERT_TRUE(now.ok() && now->has_value()) << now.status();
    const auto groups = cluster::with_added(**now, 1, "s9", 0);
    ASSERT_TRUE(groups.ok()) << groups.status();
    ASSERT_TRUE(topology.change_placement(*now, *groups, deadline()).ok());
  }
  static size_t written_nodes(Node* node) {
    size_t nodes = 0;
    node->node->fusion()->with_term(
        [&](FusionTerm* term) { nodes = term->pages()->nodes()->states().size(); });
    return nodes;
  }
  static uint64_t value(Node* node, const char* name) {
    for (const auto& of : node->node->status().values)
      if (std::string(of.name) == name) return of.value;
    ADD_FAILURE() << name;
    return 0;
  }

  transport::test::Folder folder_;
  transport::test::IoNode io_;
  Surroundings around_;
  std::unique_ptr<registry::SimRegistry> registry_ = around_.sim.store().connect();
  std::vector<std::unique_ptr<StorageNode>> storage_;
  memnode::FusionHostOptions fusion_;
  std::map<std::string, std::unique_ptr<Node>> nodes_;
};

TEST_F(FusionHosts, ServersShareItsPagesAndSoDoTheirNextLivesAfterItWasKilled) {
  start_storage();
  Node* node = start_node("m1");
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  make_pages(node);
  std::vector<std::atomic<uint64_t>> changed(kPages);
  const auto work = [&](Server* of, uint64_t seed) {
    Rng rng(seed);
    for (int i = 0; i < 60 && !HasFailure(); ++i) {
      const auto number = static_cast<uint32_t>(rng.below(kPages));
      const Status done = of->change(PageId{kSpace, number});
      ASSERT_TRUE(done.ok()) << done;
      ++changed[number];
    }
  };
  uint64_t life = 0;
  Epoch before;
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    EXPECT_GT(status(node).epoch, before);
    before = status(node).epoch;
    const auto a = server(node, 1, ++life);
    const auto b = server(node, 2, ++life);
    ASSERT_NE(a->pool, nullptr);
    ASSERT_NE(b->pool, nullptr);
    if (round == 0) publish(kFirstLsn);  // the database is whole
    for (uint32_t i = 0; i < kPages; ++i) {
      const auto version = a->version(PageId{kSpace, i});
      ASSERT_TRUE(version.ok()) << version.status();
      EXPECT_EQ(*version, changed[i].load()) << "page " << i;
    }
    std::thread other([&] { work(b.get(), 17 + life); });
    work(a.get(), 900 + life);
    other.join();
    for (uint32_t i = 0; i < kPages; ++i) {
      const auto version = b->version(PageId{kSpace, i});
      ASSERT_TRUE(version.ok()) << version.status();
      EXPECT_EQ(*version, changed[i].load()) << "page " << i;
    }
    EXPECT_TRUE(a->write_back().ok());
    EXPECT_TRUE(b->write_back().ok());
    EXPECT_EQ(value(node, "fusion_servers"), 2u);
    EXPECT_GT(value(node, "fusion_pages_written_total"), 0u);
    if (round == 1) {  // one that leaves, and comes again
      EXPECT_TRUE(a->leave().ok());
    }
    a->die();
    b->die();
    kill_node("m1");
    node = start_node("m1");
    ASSERT_TRUE(wait_serves(node)) << status(node).why;
  }
}

TEST_F(FusionHosts, OneServesAtATimeAndTheOtherStandsBy) {  // FHO1, FHO4
  start_storage();
  Node* const first = start_node("m1");
  ASSERT_TRUE(wait_serves(first)) << status(first).why;
  Node* const second = start_node("m2");
  ASSERT_TRUE(wait_until([&] { return status(second).phase == FusionPhase::kStandsBy; }));
  EXPECT_TRUE(is_in_use(status(second).why));
  EXPECT_NE(status(second).why.message().find("m1"), std::string::npos) << "it says who serves";
  EXPECT_TRUE(second->node->health().ok());
  const cluster::HolderAddress address(registry_.get(), around_.keys, kAuthorityStream);
  EXPECT_TRUE(wait_until([&] { return address.now() == first->node->address(); }));
  const Epoch epoch = status(first).epoch;
  first->node->stop();
  EXPECT_EQ(status(first).phase, FusionPhase::kStopped);
  ASSERT_TRUE(wait_serves(second)) << status(second).why;
  EXPECT_GT(status(second).epoch, epoch);
  EXPECT_TRUE(wait_until([&] { return address.now() == second->node->address(); }));
  make_pages(second);
  const auto joined = server(second, 1, 1);
  ASSERT_NE(joined->member, nullptr);
  EXPECT_TRUE(joined->change({kSpace, 0}).ok());
}

TEST_F(FusionHosts, WhoStandsByFollowsOneThatIsGoneThoughItsLeaseLives) {  // FHO1, AUW2
  start_storage();
  Node* node = start_node("m1");
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  std::string serving = "m1", waiting = "m2";
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    Node* const next = start_node(waiting);
    ASSERT_TRUE(wait_until([&] { return status(next).has_line; })) << status(next).why;
    EXPECT_EQ(status(next).phase, FusionPhase::kStandsBy);
    EXPECT_EQ(value(next, "fusion_stands_by"), 1u);
    EXPECT_EQ(value(next, "memory_used_bytes"), 0u);
    const Epoch epoch = status(node).epoch;
    kill_node(serving);
    ASSERT_TRUE(wait_serves(next)) << status(next).why;
    EXPECT_GT(status(next).epoch, epoch);
    EXPECT_EQ(value(next, "fusion_stands_by"), 0u);
    std::swap(serving, waiting);
    node = next;
  }
  make_pages(node);
  const auto joined = server(node, 1, 1);
  ASSERT_NE(joined->member, nullptr);
  EXPECT_TRUE(joined->change({kSpace, 0}).ok());
}

// Else a server could read from two nodes of the old placement what two of the new one have newer.
TEST_F(FusionHosts, PagesGoByAPlacementThatAllServersGoBy) {  // FTM9
  fusion_.service.resume_us_max = 60'000'000;
  start_storage();
  Node* node = start_node("m1");
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  make_pages(node);
  publish(kFirstLsn);
  const auto a = server(node, 1, 1);
  const auto b = server(node, 2, 2);
  ASSERT_NE(a->member, nullptr);
  ASSERT_NE(b->member, nullptr);
  add_storage_node();
  a->placement = 2;
  std::this_thread::sleep_for(std::chrono::milliseconds(1'500));
  EXPECT_EQ(written_nodes(node), 3u);
  EXPECT_TRUE(a->change(PageId{kSpace, 1}).ok()) << "work goes on";
  // The next memory node goes by the new one at once, and grants nothing before all servers do.
  kill_node("m1");
  node = start_node("m1");
  EXPECT_TRUE(wait_until([&] { return status(node).phase == FusionPhase::kPrepares; }));
  EXPECT_TRUE(wait_until([&] {
    return std::string(status(node).why.message()).find("have heard of") != std::string::npos;
  })) << status(node).why;
  b->placement = 2;
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  EXPECT_EQ(written_nodes(node), 4u);
  EXPECT_TRUE(b->change(PageId{kSpace, 1}).ok());
}

TEST_F(FusionHosts, NewStorageNodesAreFollowedWhileServersWork) {  // FTM1, FTM9
  start_storage();
  Node* node = start_node("m1");
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  make_pages(node);
  publish(kFirstLsn);
  const auto a = server(node, 1, 1);
  ASSERT_NE(a->member, nullptr);
  add_storage_node();
  EXPECT_TRUE(a->change(PageId{kSpace, 1}).ok());
  EXPECT_EQ(written_nodes(node), 3u);
  a->placement = 2;
  EXPECT_TRUE(wait_until([&] { return written_nodes(node) == 4; }));
  EXPECT_TRUE(a->change(PageId{kSpace, 1}).ok());
  EXPECT_TRUE(a->write_back().ok());
  EXPECT_TRUE(wait_until([&] { return status(node).why.ok(); })) << status(node).why;
}

TEST_F(FusionHosts, WhoIsDeposedBeginsAnewAndItsServersGoOn) {  // FHO3, FHO5, AQ1
  fusion_.service.resume_us_max = 60'000'000;
  start_storage();
  Node* const node = start_node("m1");
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  make_pages(node);
  publish(kFirstLsn);
  const Epoch epoch = status(node).epoch;
  auto a = server(node, 1, 1);
  ASSERT_NE(a->member, nullptr);
  // Another one takes the stream and seals it, whatever the first one's lease says.
  const std::shared_ptr<registry::Lease> lease = *registry_->grant_lease(
      600, [](registry::LeaseId) {}, deadline());
  const auto storage = [&] {
    clients::QuorumClientOptions options;
    options.addresses.assign(around_.addresses.begin(), around_.addresses.end());
    return options;
  };
  memnode::LogSealer usurper(memnode::LogSealer::Parts{.registry = registry_.get(),
                                                       .keys = around_.keys,
                                                       .world = io_.world(),
                                                       .secret = cluster_secret(),
                                                       .holder = "m9",
                                                       .lease = [&] { return lease; },
                                                       .storage = storage,
                                                       .storage_now = storage,
                                                       .seal_timeout_us = 20'000'000});
  const auto sealed = usurper.seal_now(kAuthorityStream);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  ASSERT_TRUE(wait_until([&] { return serves(node) && status(node).terms == 2; }))
      << status(node).why;
  EXPECT_GT(status(node).epoch, sealed->epoch);
  EXPECT_GT(sealed->epoch, epoch);
  EXPECT_TRUE(a->member->status().ok());
  EXPECT_EQ(a->member->epoch(), status(node).epoch);
  EXPECT_TRUE(a->change({kSpace, 0}).ok());
  EXPECT_TRUE(a->write_back().ok());
  a->die();
  a = server(node, 1, 2);
  ASSERT_NE(a->member, nullptr);
  EXPECT_TRUE(a->change({kSpace, 0}).ok());
}

TEST_F(FusionHosts, NobodyIsServedBeforeStorageHasWhatEarlierServersHaveLogged) {  // FTM3
  start_storage();
  Node* node = start_node("m1");
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  make_pages(node);
  auto five = server(node, 5, 1);
  ASSERT_NE(five->member, nullptr);
  write_log(true);
  publish(kFirstLsn);
  five->die();
  // Where that log begins cannot be read: nobody knows what storage lacks.
  const std::string key = around_.keys.control(kServersStream);
  const auto good = registry_->get(key, deadline());
  ASSERT_TRUE(good.ok() && good->has_value());
  const auto bad =
      registry_->change(registry::Change::replace(key, (*good)->version, "?"), deadline());
  ASSERT_TRUE(bad.ok()) << bad.status();
  kill_node("m1");
  node = start_node("m1");
  ASSERT_TRUE(wait_until([&] {
    return status(node).phase != FusionPhase::kServes && is_corruption(status(node).why);
  })) << status(node).why;
  EXPECT_FALSE(node->node->health().ok());
  EXPECT_EQ(value(node, "fusion_serves"), 0u);
  // Who wants to join waits, and may come again (FHO5).
  clients::FusionMemberOptions options;
  options.server = NodeId{1};
  options.life = 9;
  options.join_us_max = 100'000;
  const auto early = clients::FusionMember::join(
      options, std::make_shared<transport::BlockingChannel>(cluster_secret(), node->node->address(),
                                                            transport::BlockingChannelOptions{}));
  EXPECT_TRUE(may_be_repeated(early.status())) << early.status();
  // It goes on as soon as it can be, and what is no whole group is no longer in the log.
  ASSERT_TRUE(
      registry_->change(registry::Change::replace(key, *bad, (*good)->value), deadline()).ok());
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  EXPECT_EQ(status(node).terms, 1u);
  EXPECT_TRUE(node->node->health().ok());
  const auto next = server(node, 5, 2);
  ASSERT_NE(next->member, nullptr);
  EXPECT_TRUE(next->change({kSpace, 0}).ok());
}

TEST_F(FusionHosts, StorageNodesThatAreAwayAreWaitedFor) {  // FHO3
  Node* const node = start_node("m1");
  ASSERT_TRUE(wait_until(
      [&] { return status(node).phase == FusionPhase::kWaits && is_peer_down(status(node).why); }));
  EXPECT_FALSE(node->node->health().ok());
  start_storage();
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  make_pages(node);
  auto a = server(node, 1, 1);
  ASSERT_NE(a->member, nullptr);
  // A write quorum is away: nothing is lost, and it goes on.
  const uint64_t appends = value(node, "fusion_appends_total");
  for (size_t i = 1; i < 3; ++i) storage_[i]->stop();
  EXPECT_TRUE(wait_until([&] { return value(node, "fusion_appends_total") > appends; }));
  for (size_t i = 1; i < 3; ++i) storage_[i]->start();
  const uint64_t then = value(node, "fusion_appends_total");
  EXPECT_TRUE(wait_until([&] { return value(node, "fusion_appends_total") > then + 3; }));
  EXPECT_TRUE(wait_until([&] { return a->change({kSpace, 1}).ok(); }));
  EXPECT_TRUE(wait_until([&] { return a->write_back().ok(); }));
  EXPECT_EQ(status(node).terms, 1u);
}

TEST_F(FusionHosts, WithoutTheRegistryItGoesOnServing) {  // FTM4
  start_storage();
  Node* const node = start_node("m1");
  ASSERT_TRUE(wait_serves(node)) << status(node).why;
  make_pages(node);
  const auto a = server(node, 1, 1);
  ASSERT_NE(a->member, nullptr);
  const Epoch epoch = status(node).epoch;
  node->registry->set_connected(false);
  around_.sim.leap(700'000'000);  // the lease is lost
  for (uint32_t i = 0; i < kPages; ++i) EXPECT_TRUE(a->change({kSpace, i}).ok());
  EXPECT_TRUE(a->write_back().ok());
  node->registry->set_connected(true);
  // It has the stream under another lease again.
  cluster::StreamEpochs epochs(registry_.get(), around_.keys);
  EXPECT_TRUE(wait_until([&] {
    const auto now = epochs.current(kAuthorityStream, deadline());
    return now.ok() && now->has_value() && (*now)->held;
  }));
  EXPECT_EQ(status(node).epoch, epoch);
  EXPECT_TRUE(serves(node)) << status(node).why;
  EXPECT_TRUE(a->change({kSpace, 0}).ok());
}

TEST_F(FusionHosts, PagesThatAServerAloneHasWrittenAreRefused) {
  start_storage();
  publish(kFirstLsn);
  Node* const node = start_node("m1");
  ASSERT_TRUE(wait_until([&] { return is_unsupported(status(node).why); }));
  EXPECT_EQ(status(node).phase, FusionPhase::kWaits);
  EXPECT_FALSE(node->node->health().ok());
}

}  // namespace
}  // namespace strata::testing
