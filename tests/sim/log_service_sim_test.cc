// Goal: a log kept by storage nodes survives what may happen to them and to whoever writes it,
// through everything production uses: client, channels, frames, services, log stores. Method: three
// nodes with disks of their own and two compute nodes in a simulated world; bytes once acknowledged
// are compared with what any later holder, and every replica in the end, has. Random runs print
// their seed (STRATA_SEED, STRATA_ROUNDS).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "clients/storage/quorum_client.h"
#include "io/file_system.h"
#include "proto/calls/calls.h"
#include "proto/log_messages.h"
#include "proto/methods.h"
#include "storenode/service/log_service.h"
#include "storenode/service/peer_reader.h"
#include "transport/calls/channel.h"
#include "transport/calls/rpc_server.h"
#include "transport/calls/testing/connections.h"
#include "transport/sim/sim_world.h"

namespace strata::sim {
namespace {

using clients::ChosenLog;
using clients::QuorumClient;
using clients::QuorumClientOptions;
using clients::QuorumEvents;
using transport::SimWorld;

constexpr StreamId kStream{1};
constexpr Lsn kFirst{4096};
constexpr uint64_t kSecond = 1'000'000;  // us
constexpr uint32_t kNodes = 3;
constexpr uint32_t kComputes = 2;

std::string address_of(uint32_t node) { return "sim:" + std::to_string(node) + ":1"; }

// What the registry would say.
struct Epochs {
  uint64_t last_given = 0;
  bool begun = false;
};

// Node 0, 1 or 2 of the world. The disk outlives the process.
class StorageNode {
 public:
  StorageNode(SimWorld* world, uint32_t number, const Epochs* epochs, bool came_later = false)
      : world_(world),
        number_(number),
        epochs_(epochs),
        came_later_(came_later),
        disk_(make_sim_file_system()) {
    start();
  }
  ~StorageNode() { stop(); }

  void start() {
    LogStoreOptions options;
    options.directory = "/log";
    options.cluster_id = 7;
    options.segment_bytes = 64 << 10;
    auto opened = LogStore::open(disk_.get(), options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = std::move(*opened);
    const transport::World world = world_->world(number_);
    peers_ = std::make_unique<storenode::PeerReader>(
        world, transport::test::secret_of('s'),
        [](StreamId, quorum::ReplicaIndex replica) { return address_of(replica); });
    storenode::LogService::Parts parts;
    parts.store = store_.get();
    parts.offload = [](absl::AnyInvocable<void()> task) {
      task();
      return true;
    };
    parts.fetch = [this](StreamId stream, quorum::ReplicaIndex peer,
                         const quorum::ReadRequest& request, SelfCatchUp::FetchDone done) {
      peers_->fetch(stream, peer, request, std::move(done));
    };
    parts.origin = [this](StreamId) -> StatusOr<quorum::StreamOrigin> {
      return quorum::StreamOrigin{Epoch{epochs_->last_given}, !came_later_ && !epochs_->begun};
    };
    parts.stream_made = [](StreamId) {};
    parts.needed_from = [](StreamId) { return Lsn{UINT64_MAX}; };
    service_ = std::make_unique<storenode::LogService>(std::move(parts));
    server_ = std::make_unique<transport::RpcServer>(world, transport::test::secret_of('s'),
                                                     transport::ServerOptions{});
    service_->register_on(server_.get());
    ASSERT_TRUE(server_->listen(address_of(number_)).ok());
    persist(world.executor);
  }
  // The process is gone; `power`: what was not synced, too.
  void kill(bool power, uint64_t seed) {
    world_->kill(number_, power ? SimWorld::Death::kMachine : SimWorld::Death::kProcess);
    if (power) disk_->crash(seed);
    stop();
  }
  void restart() {
    world_->restart(number_);
    start();
  }
  [[nodiscard]] bool alive() const { return store_ != nullptr; }
  [[nodiscard]] LogStore* store() { return store_.get(); }

  // All that an applier may see, from the start.
  std::string applied() { return read({kFirst, 1 << 20, false, {}}); }
  // All that is here, for the holder of the promised epoch.
  std::string all_of(Epoch epoch) { return read({kFirst, 1 << 20, true, epoch}); }
  std::string read(quorum::ReadRequest request) {
    std::string out;
    for (;;) {
      const auto reply = store_->read(kStream, request);
      if (!reply.status.ok() || reply.bytes.empty()) return out;
      out += reply.bytes;
      request.from.value += reply.bytes.size();
    }
  }

 private:
  void stop() {
    server_.reset();
    service_.reset();
    peers_.reset();
    store_.reset();
  }
  // What a LogStoreRunner's thread does.
  void persist(transport::Executor* executor) {
    while (store_ != nullptr && store_->persist_pending()) {
    }
    executor->run_at(executor->now_ns() + 100'000, [this, executor] { persist(executor); });
  }

  SimWorld* const world_;
  const uint32_t number_;
  const Epochs* const epochs_;
  const bool came_later_;
  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<LogStore> store_;
  std::unique_ptr<storenode::PeerReader> peers_;
  std::unique_ptr<storenode::LogService> service_;
  std::unique_ptr<transport::RpcServer> server_;
};

// A compute node that holds an epoch, or tries to.
struct Writer {
  std::unique_ptr<QuorumClient> client;
  uint64_t epoch = 0;
  std::optional<ChosenLog> chosen;
  std::optional<Lsn> begun;
  Lsn durable;
  Status ended;
  std::string written;  // behind *begun
};

class Cluster {
 public:
  explicit Cluster(uint64_t seed) : rng_(seed), world_(seed) {
    for (uint32_t i = 0; i < kNodes + kComputes; ++i) world_.add_node();
    for (uint32_t i = 0; i < kNodes; ++i)
      nodes_.push_back(std::make_unique<StorageNode>(&world_, i, &epochs_));
  }
  ~Cluster() {
    for (Writer& writer : writers_) writer.client.reset();
  }

  Writer& open(uint32_t compute) {
    Writer& writer = writers_[compute];
    writer.client.reset();
    writer = Writer();
    writer.epoch = ++epochs_.last_given;
    QuorumClientOptions options;
    options.stream = kStream;
    options.quorum.request_bytes_max = 4096;
    options.quorum.retain_bytes = 256 << 10;
    options.call_timeout_us = 200'000;
    options.news_delay_us = news_delay_us_;
    for (uint32_t i = 0; i < kNodes; ++i) {
      options.addresses.push_back(address_of(i));
      options.keys.push_back(std::to_string(i));
    }
    QuorumEvents events;
    events.chosen = [&writer](const ChosenLog& log) { writer.chosen = log; };
    events.begun = [this, &writer](Lsn start) {
      writer.begun = writer.durable = start;
      epochs_.begun = true;  // before anything is acknowledged
    };
    events.durable = [this, &writer](Lsn lsn) {
      EXPECT_GT(lsn, writer.durable);
      writer.durable = lsn;
      acknowledge(writer);
    };
    events.ended = [&writer](const Status& why, Epoch) { writer.ended = why; };
    writer.client = std::make_unique<QuorumClient>(
        world_.world(kNodes + compute), transport::test::secret_of('s'), options,
        quorum::Holder{Epoch{writer.epoch}, rng_.next() | 1},
        epochs_.begun ? std::nullopt : std::optional<Lsn>(kFirst), std::move(events));
    return writer;
  }
  // As a kernel does: reads what is there and begins behind the last whole group, or at the very
  // end if nothing is torn. False: the node that has the log does not answer now.
  bool begin(Writer* writer) {
    const ChosenLog& log = *writer->chosen;
    EXPECT_GE(log.end.value, kFirst.value + acknowledged_.size())
        << "acknowledged bytes are nowhere";
    StorageNode& node = *nodes_[log.replica];
    if (!node.alive()) return false;
    std::string rest;
    for (Lsn at = kFirst; at < log.end;) {
      const auto reply = node.store()->read(kStream, {at, 1 << 20, true, Epoch{writer->epoch}});
      if (!reply.status.ok() || reply.bytes.empty()) return false;
      rest += reply.bytes;
      at.value += reply.bytes.size();
    }
    size_t whole = 0;
    while (rest.size() - whole >= 4 && rest.size() - whole >= load_u32(rest.data() + whole))
      whole += load_u32(rest.data() + whole);
    torn_ += whole < rest.size() ? 1 : 0;
    EXPECT_GE(kFirst.value + whole, log.quorum_durable.value);
    writer->client->begin_at(Lsn{kFirst.value + whole});
    return true;
  }
  // One group: its length, and anything.
  void append(Writer* writer, size_t bytes) {
    std::string group(bytes, '\0');
    for (char& c : group) c = static_cast<char>(rng_.next());
    store_u32(group.data(), static_cast<uint32_t>(bytes));
    writer->written += group;
    writer->client->append(std::move(group));
  }
  bool until(absl::FunctionRef<bool()> done, uint64_t us = 10 * kSecond) {
    return world_.run_until(done, us);
  }
  // Everything written so far is acknowledged.
  bool settle(Writer* writer) {
    return until(
        [&] { return writer->durable.value == writer->begun->value + writer->written.size(); });
  }

  // For what takes long to look at.
  bool eventually(absl::FunctionRef<bool()> done, uint64_t us = 10 * kSecond) {
    for (uint64_t waited = 0; waited < us && !done(); waited += 5000) world_.run_for(5000);
    return done();
  }

  bool all_applied() {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [&](auto& node) { return node->applied() == acknowledged_; });
  }

  // Acknowledged bytes never change.
  void acknowledge(const Writer& writer) {
    const uint64_t from = writer.begun->value - kFirst.value;
    const uint64_t to = writer.durable.value - kFirst.value;
    ASSERT_GE(acknowledged_.size(), from) << "a gap in what is acknowledged";
    // A holder may hear late of what its successor has found and kept.
    const uint64_t known = std::min(acknowledged_.size(), to) - from;
    EXPECT_EQ(acknowledged_.compare(from, known, writer.written, 0, known), 0)
        << "an acknowledged byte is another one now";
    if (to > acknowledged_.size()) acknowledged_ += writer.written.substr(known, to - from - known);
  }
  // What the chosen log has before its epoch began counts as acknowledged from then on. A node that
  // nobody can reach any more may not know yet that it is, but as the epoch's holder one can read
  // it.
  void adopt(Writer* writer) {
    const uint64_t start = writer->begun->value - kFirst.value;
    if (acknowledged_.size() >= start) return;
    std::string log;
    ASSERT_TRUE(eventually([&] {
      for (const auto& node : nodes_) {
        if (!node->alive()) continue;
        const auto state = node->store()->state(kStream);
        if (!state.ok() || state->last_epoch.value != writer->epoch) continue;
        log = node->all_of(Epoch{writer->epoch});
        if (log.size() >= start) return true;
      }
      return false;
    })) << "nobody who has begun the epoch has the log up to there";
    EXPECT_EQ(log.compare(0, acknowledged_.size(), acknowledged_), 0);
    acknowledged_ = log.substr(0, start);
  }

  Rng rng_;
  Epochs epochs_;
  SimWorld world_;
  std::vector<std::unique_ptr<StorageNode>> nodes_;
  Writer writers_[kComputes];
  std::string acknowledged_;
  int torn_ = 0;  // ends left behind
  uint64_t news_delay_us_ = QuorumClientOptions().news_delay_us;
};

class LogServiceSim : public ::testing::Test {
 protected:
  LogServiceSim() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  static void take_over(Cluster* c, Writer* writer) {
    ASSERT_TRUE(c->until([&] { return writer->chosen.has_value(); })) << writer->ended;
    ASSERT_TRUE(c->begin(writer));
    ASSERT_TRUE(c->until([&] { return writer->begun.has_value(); })) << writer->ended;
    c->adopt(writer);
  }
};

TEST_F(LogServiceSim, AFirstWriterAppendsAndAllReplicasServeIt) {
  Cluster c(1);
  Writer& writer = c.open(0);
  take_over(&c, &writer);
  EXPECT_EQ(*writer.begun, kFirst);
  for (int i = 0; i < 20; ++i) c.append(&writer, 3000);
  ASSERT_TRUE(c.settle(&writer));
  EXPECT_TRUE(c.eventually([&] {
    for (auto& node : c.nodes_)
      if (node->applied() != c.acknowledged_) return false;
    return true;
  }));
  EXPECT_EQ(c.acknowledged_.size(), 60'000u);
}

// LSV5: a node says how long its replies are and how many streams it has.
TEST_F(LogServiceSim, WhatACallerAsksForIsBoundedByTheNode) {
  Cluster c(1);
  Writer& writer = c.open(0);
  take_over(&c, &writer);
  for (int i = 0; i < 100; ++i) {
    c.append(&writer, 50'000);
    ASSERT_TRUE(c.settle(&writer));
  }
  ASSERT_TRUE(c.eventually([&] { return c.all_applied(); }));
  transport::Channel channel(c.world_.world(kNodes), transport::test::secret_of('s'), address_of(0),
                             {}, [](bool, uint64_t, const Status&) {});
  std::optional<Status> status;
  std::string bytes;
  const auto ask = [&](StreamId stream) {
    status.reset();
    channel.call(proto::call_of(proto::kLogRead, c.world_.now_us() + 60 * kSecond),
                 proto::encode(stream, quorum::ReadRequest{kFirst, UINT32_MAX, false, {}}),
                 [&](const transport::Reply& reply) {
                   status = reply.status;
                   const auto read = proto::decode_read_reply(reply.payload);
                   if (reply.status.ok() && read.ok()) bytes = read->bytes;
                 });
    return c.eventually([&] { return status.has_value(); });
  };
  ASSERT_TRUE(ask(kStream));
  ASSERT_TRUE(status->ok()) << *status;
  EXPECT_EQ(bytes, c.acknowledged_.substr(0, proto::kReadBytesMax));
  ASSERT_TRUE(ask(StreamId{proto::kStreamsMax + 1}));
  EXPECT_EQ(status->code(), StatusCode::kInvalidArgument);
}

// WR8
TEST_F(LogServiceSim, TheNextAppendTellsWhatIsDurable) {
  Cluster c(9);
  Writer& writer = c.open(0);
  take_over(&c, &writer);
  c.append(&writer, 1000);
  ASSERT_TRUE(c.settle(&writer));
  c.world_.run_for(100'000);
  std::vector<uint64_t> before;
  for (auto& node : c.nodes_) before.push_back(node->store()->counters().appends);
  for (int i = 0; i < 100; ++i) {
    c.append(&writer, 1000);
    ASSERT_TRUE(c.settle(&writer));
  }
  EXPECT_TRUE(c.eventually([&] { return c.all_applied(); }, 100'000)) << "a little later all know";
  for (size_t i = 0; i < c.nodes_.size(); ++i) {
    EXPECT_GE(c.nodes_[i]->store()->counters().appends - before[i], 100u);
    EXPECT_LE(c.nodes_[i]->store()->counters().appends - before[i], 105u);
  }
}

TEST_F(LogServiceSim, WhatIsDurableIsToldAtOnceIfSomebodyWaits) {  // WR8
  Cluster c(10);
  c.news_delay_us_ = 100 * kSecond;
  Writer& writer = c.open(0);
  take_over(&c, &writer);
  for (int i = 0; i < 10; ++i) {
    c.append(&writer, 1000);
    ASSERT_TRUE(c.settle(&writer));
    EXPECT_FALSE(c.all_applied());
    writer.client->spread_news();
    EXPECT_TRUE(c.eventually([&] { return c.all_applied(); }, 20'000));
  }
}

TEST_F(LogServiceSim, OneDeadNodeHoldsNobodyUpAndCatchesUpByItself) {
  Cluster c(2);
  Writer& writer = c.open(0);
  take_over(&c, &writer);
  c.nodes_[1]->kill(/*power=*/true, 1);
  for (int i = 0; i < 40; ++i) {
    c.append(&writer, 20'000);  // far more than is retained for the slow
    ASSERT_TRUE(c.settle(&writer));
  }
  c.nodes_[1]->restart();
  EXPECT_TRUE(
      c.eventually([&] { return c.nodes_[1]->applied() == c.acknowledged_; }, 60 * kSecond));
}

// QC3, WR6
TEST_F(LogServiceSim, ANewNodeTakesThePlaceOfADeadOne) {
  Cluster c(6);
  constexpr uint32_t kNew = kNodes + kComputes;
  c.world_.add_node();
  Writer& writer = c.open(0);
  // Told before there is a writer: followed from when there is one.
  writer.client->follow(
      {2, 2, {{"0", address_of(0)}, {"new", address_of(kNew)}, {"2", address_of(2)}}});
  take_over(&c, &writer);
  for (int i = 0; i < 20; ++i) {
    c.append(&writer, 20'000);  // far more than is retained for the slow
    ASSERT_TRUE(c.settle(&writer));
  }
  c.nodes_[1]->kill(/*power=*/true, 1);
  StorageNode spare(&c.world_, kNew, &c.epochs_, /*came_later=*/true);
  ASSERT_TRUE(c.eventually([&] { return spare.applied() == c.acknowledged_; }, 60 * kSecond));
  ASSERT_TRUE(c.eventually([&] { return spare.store()->state(kStream)->voting; }));
  c.nodes_[2]->kill(/*power=*/true, 2);
  c.append(&writer, 1000);
  EXPECT_TRUE(c.settle(&writer)) << "the new one counts";
  // A placement nobody could have made changes nothing.
  writer.client->follow({3, 1, {{"0", address_of(0)}}});
  c.append(&writer, 1000);
  EXPECT_TRUE(c.settle(&writer));
}

// QC4, WR7
TEST_F(LogServiceSim, AReplicaLeavesAndTheOthersGoOn) {
  Cluster c(7);
  Writer& writer = c.open(0);
  take_over(&c, &writer);
  for (int i = 0; i < 10; ++i) c.append(&writer, 3000);
  const clients::ReplicaSet others{
      1, 2, {{"0", address_of(0)}, {"2", address_of(2)}}, Epoch{writer.epoch}};
  writer.client->follow(others);  // nobody has prepared for that: it is not followed
  ASSERT_TRUE(c.settle(&writer));
  EXPECT_FALSE(writer.client->prepare_leave("1", 2, 2)) << "another generation";
  EXPECT_FALSE(writer.client->prepare_leave("9", 0, 2)) << "no such replica";
  ASSERT_TRUE(c.until([&] { return writer.client->prepare_leave("1", 0, 2); }));
  c.append(&writer, 1000);
  writer.client->follow(others);
  c.nodes_[1]->kill(/*power=*/true, 1);
  for (int i = 0; i < 10; ++i) c.append(&writer, 3000);
  ASSERT_TRUE(c.settle(&writer));
  EXPECT_EQ(writer.client->status().size(), 2u);
  // Two of two are a quorum, no less.
  c.nodes_[2]->kill(/*power=*/true, 2);
  c.append(&writer, 1000);
  EXPECT_FALSE(
      c.until([&] { return writer.durable.value == writer.begun->value + writer.written.size(); },
              kSecond));
  c.nodes_[2]->restart();
  EXPECT_TRUE(c.settle(&writer));
  EXPECT_TRUE(c.eventually([&] { return c.nodes_[2]->applied() == c.acknowledged_; }));
}

TEST_F(LogServiceSim, AHolderEndsWhenALaterOneHasTakenAReplicaOut) {  // QC4
  Cluster c(8);
  Writer& writer = c.open(0);
  take_over(&c, &writer);
  c.append(&writer, 1000);
  writer.client->follow(
      {1, 2, {{"0", address_of(0)}, {"2", address_of(2)}}, Epoch{writer.epoch + 1}});
  EXPECT_TRUE(c.until([&] { return !writer.ended.ok(); }));
  EXPECT_TRUE(is_fenced(writer.ended)) << writer.ended;
}

TEST_F(LogServiceSim, ASuccessorFencesAndHasEverything) {
  Cluster c(3);
  Writer& first = c.open(0);
  take_over(&c, &first);
  for (int i = 0; i < 5; ++i) c.append(&first, 1000);
  ASSERT_TRUE(c.settle(&first));
  Writer& second = c.open(1);
  take_over(&c, &second);
  EXPECT_GE(second.begun->value, kFirst.value + 5000);
  c.append(&second, 500);
  ASSERT_TRUE(c.settle(&second));
  const Lsn before = first.durable;
  c.append(&first, 700);
  EXPECT_TRUE(c.until([&] { return !first.ended.ok(); }));
  EXPECT_TRUE(is_fenced(first.ended)) << first.ended;
  EXPECT_EQ(first.durable, before);
}

TEST_F(LogServiceSim, APausedWriterThatWakesUpIsFenced) {
  Cluster c(4);
  Writer& first = c.open(0);
  take_over(&c, &first);
  c.append(&first, 1000);
  ASSERT_TRUE(c.settle(&first));
  c.world_.pause(kNodes + 0, 3 * kSecond);
  for (int i = 0; i < 3; ++i) c.append(&first, 800);  // will be sent when it wakes up
  Writer& second = c.open(1);
  take_over(&c, &second);
  c.append(&second, 500);
  ASSERT_TRUE(c.settle(&second));
  EXPECT_TRUE(c.until([&] { return !first.ended.ok(); }));
  EXPECT_TRUE(is_fenced(first.ended)) << first.ended;
  c.append(&second, 500);
  ASSERT_TRUE(c.settle(&second));
}

TEST_F(LogServiceSim, ATornEndIsLeftBehind) {
  Cluster c(5);
  Writer& first = c.open(0);
  take_over(&c, &first);
  c.append(&first, 3000);
  ASSERT_TRUE(c.settle(&first));
  // Half of what comes next arrives anywhere.
  for (uint32_t i = 0; i < kNodes; ++i) c.world_.set_extra_delay(kNodes + 0, i, 300);
  c.append(&first, 100'000);
  c.world_.run_for(600);
  for (uint32_t i = 0; i < kNodes; ++i) c.world_.set_partitioned(kNodes + 0, i, true);
  Writer& second = c.open(1);
  ASSERT_TRUE(c.until([&] { return second.chosen.has_value(); }));
  EXPECT_EQ(second.chosen->quorum_durable.value, kFirst.value + 3000)
      << "nobody was told of half a piece";
  ASSERT_TRUE(c.begin(&second));
  EXPECT_EQ(c.torn_, 1);
  ASSERT_TRUE(c.until([&] { return second.begun.has_value(); }));
  c.append(&second, 10);
  ASSERT_TRUE(c.settle(&second));
  EXPECT_TRUE(c.eventually([&] { return c.nodes_[0]->applied() == c.acknowledged_; }));
  EXPECT_EQ(c.acknowledged_.size(), 3010u);
}

// --- random runs ---

void disturb(Cluster* c) {
  Rng& rng = c->rng_;
  const auto node = static_cast<uint32_t>(rng.below(kNodes));
  const auto other = static_cast<uint32_t>(rng.below(kNodes + kComputes));
  switch (rng.below(8)) {
    case 0:
    case 1: {
      uint32_t dead = 0;
      for (auto& one : c->nodes_) dead += one->alive() ? 0 : 1;
      if (c->nodes_[node]->alive() && dead == 0) c->nodes_[node]->kill(rng.one_in(2), rng.next());
      return;
    }
    case 2:
    case 3:
      for (auto& one : c->nodes_)
        if (!one->alive()) one->restart();
      return;
    case 4:
      if (c->nodes_[node]->alive()) c->world_.pause(node, rng.below(400'000));
      return;
    case 5:
      return c->world_.cut_connections(node, other);
    case 6:
      return c->world_.set_partitioned(node, other, true);
    default:
      for (uint32_t i = 0; i < kNodes; ++i)
        for (uint32_t j = 0; j < kNodes + kComputes; ++j) c->world_.set_partitioned(i, j, false);
  }
}

void heal(Cluster* c) {
  for (auto& one : c->nodes_)
    if (!one->alive()) one->restart();
  for (uint32_t i = 0; i < kNodes; ++i)
    for (uint32_t j = 0; j < kNodes + kComputes; ++j) c->world_.set_partitioned(i, j, false);
  c->world_.set_faults({});
}

void random_run(uint64_t seed) {
  Cluster c(seed);
  c.world_.set_faults({.lose_one_in = 200, .cut_one_in = 400});
  for (int life = 0; life < 6 && !::testing::Test::HasFailure(); ++life) {
    Writer& writer = c.open(life % kComputes);
    const uint64_t end_us = c.world_.now_us() + c.rng_.below(3 * kSecond);
    while (c.world_.now_us() < end_us && writer.ended.ok()) {
      c.world_.run_for(c.rng_.below(30'000));
      if (c.rng_.one_in(4)) disturb(&c);
      if (writer.chosen.has_value() && !writer.begun.has_value()) (void)c.begin(&writer);
      if (writer.begun.has_value()) {
        c.adopt(&writer);
        c.append(&writer, 4 + c.rng_.below(c.rng_.one_in(5) ? 30'000 : 500));
      }
    }
  }
  heal(&c);
  Writer& last = c.open(0);
  ASSERT_TRUE(c.until([&] { return last.chosen.has_value() || !last.ended.ok(); }, 60 * kSecond));
  ASSERT_TRUE(last.ended.ok()) << last.ended;
  ASSERT_TRUE(c.begin(&last));
  ASSERT_TRUE(c.until([&] { return last.begun.has_value(); }, 60 * kSecond)) << last.ended;
  c.adopt(&last);
  c.append(&last, 100);
  ASSERT_TRUE(c.settle(&last));
  EXPECT_TRUE(c.eventually(
      [&] {
        for (auto& node : c.nodes_)
          if (node->applied() != c.acknowledged_) return false;
        return true;
      },
      60 * kSecond))
      << "a replica did not get everything";
}

TEST_F(LogServiceSim, NothingAcknowledgedIsEverLost) {
  const char* fixed = std::getenv("STRATA_SEED");
  const char* rounds = std::getenv("STRATA_ROUNDS");
  std::random_device entropy;
  const uint64_t first = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : entropy();
  const uint64_t count = rounds != nullptr
                             ? std::strtoull(rounds, nullptr, 10)
                             : (fixed != nullptr ? 1 : strata::testing::fewer_if_sanitized(10, 4));
  for (uint64_t i = 0; i < count && !HasFailure(); ++i) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(first + i));
    random_run(first + i);
  }
}

}  // namespace
}  // namespace strata::sim
