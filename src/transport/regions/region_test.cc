// Goal: regions keep their promises, mapped, by call and over a fabric (RN1-RN4, RR1-RR7, RX1,
// RX3).
// Method: the same tests through all ways; random operations against a string; an owner that is
// killed; requests that nobody encoded. What is particular to a fabric: ofi/fabric_test.cc.
#include "transport/regions/region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "transport/calls/testing/io_node.h"
#include "transport/regions/fabric.h"
#include "transport/regions/region_memory.h"
#include "transport/regions/region_server.h"

extern char** environ;

namespace strata::transport {
namespace {

using test::Folder;
using test::IoNode;
using test::secret_of;

constexpr uint64_t kBytes = 64u << 10;

uint64_t soon() { return monotonic_us() + 60'000'000; }

std::shared_ptr<Region> make_region(const std::string& path, uint64_t epoch) {
  auto region = Region::create(path, kBytes, epoch);
  EXPECT_TRUE(region.ok()) << region.status();
  return *std::move(region);
}

struct Way {
  const char* name;
  const char* address;
  RegionPath path;
  FabricManner manner = FabricManner::kOfProvider;
  bool from_replies = false;  // over a Channel
};

class Regions : public ::testing::TestWithParam<Way> {
 protected:
  Regions() {
    set_diag_sink([](Severity, std::string_view) {});
    server_ = std::make_unique<RpcServer>(node_.world(), secret_of('s'), ServerOptions());
    if (GetParam().path == RegionPath::kFabric) {
      auto fabric = FabricServer::start("tcp:127.0.0.1:0");
      EXPECT_TRUE(fabric.ok()) << fabric.status();
      fabric_ = *std::move(fabric);
    }
    regions_ = std::make_unique<RegionServer>(server_.get(), fabric_.get());
    const std::string address = GetParam().address;
    address_ = *server_->listen(address == "unix" ? "unix:" + (folder_ / "socket") : address);
    region_ = make_region(folder_ / "region", 7);
    regions_->expose("pool", region_);
    channel_ =
        std::make_shared<BlockingChannel>(secret_of('s'), address_, BlockingChannelOptions());
  }
  ~Regions() override { server_.reset(); }  // before regions_
  std::unique_ptr<RemoteRegion> open(const std::string& name = "pool") {
    if (GetParam().from_replies) return open_from_replies(name);
    auto remote = GetParam().manner == FabricManner::kAsHardware
                      ? open_fabric_region(channel_, name, FabricManner::kAsHardware, soon())
                      : open_remote_region(channel_, name, GetParam().path, soon());
    EXPECT_TRUE(remote.ok()) << remote.status();
    return *std::move(remote);
  }
  std::unique_ptr<RemoteRegion> open_from_replies(const std::string& name) {
    ChannelOptions options;
    options.link_model = link_model_;
    auto channel =
        std::make_shared<Channel>(node_.world(), secret_of('s'), address_, std::move(options));
    std::promise<StatusOr<std::unique_ptr<RemoteRegion>>> opened;
    start_open_region(channel, node_.world().executor, name, soon(),
                      [&opened](auto region) { opened.set_value(std::move(region)); });
    auto remote = opened.get_future().get();
    EXPECT_TRUE(remote.ok()) << remote.status();
    return *std::move(remote);
  }
  [[nodiscard]] bool mapped() const { return GetParam().path == RegionPath::kMapped; }

  Folder folder_;
  IoNode node_;
  std::unique_ptr<FabricServer> fabric_;
  std::unique_ptr<RegionServer> regions_;
  std::unique_ptr<RpcServer> server_;
  std::string address_;
  std::shared_ptr<Region> region_;
  std::shared_ptr<BlockingChannel> channel_;
  std::shared_ptr<LinkModel> link_model_;
};

std::vector<Way> ways() {
  std::vector<Way> all = {
      {"mapped", "unix", RegionPath::kMapped},
      {"calls_unix", "unix", RegionPath::kCalls},
      {"calls_tcp", "tcp:127.0.0.1:0", RegionPath::kCalls},
      {.name = "replies_unix", .address = "unix", .path = RegionPath::kCalls, .from_replies = true},
      {.name = "replies_tcp",
       .address = "tcp:127.0.0.1:0",
       .path = RegionPath::kCalls,
       .from_replies = true}};
  if (fabric_is_built()) {
    all.push_back({"fabric", "unix", RegionPath::kFabric});
    all.push_back({"fabric_as_hardware", "unix", RegionPath::kFabric, FabricManner::kAsHardware});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Ways, Regions, ::testing::ValuesIn(ways()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Regions, PutGetAndAtomics) {
  const auto remote = open();
  EXPECT_EQ(remote->bytes(), kBytes);
  EXPECT_EQ(remote->epoch(), 7u);
  EXPECT_EQ(remote->truly_one_sided(), mapped());
  EXPECT_EQ(remote->direct() != nullptr, mapped());
  ASSERT_TRUE(remote->put(100, "hello", soon()).ok());
  EXPECT_EQ(Bytes(region_->data() + 100, 5), "hello");
  char got[5];
  ASSERT_TRUE(remote->get(100, absl::MakeSpan(got), soon()).ok());
  EXPECT_EQ(Bytes(got, 5), "hello");
  EXPECT_EQ(*remote->fetch_add(8, 5, soon()), 0u);
  EXPECT_EQ(*remote->fetch_add(8, 5, soon()), 5u);
  EXPECT_EQ(*remote->compare_swap(8, 9, 1, soon()), 10u);
  EXPECT_EQ(*remote->compare_swap(8, 10, 77, soon()), 10u);
  EXPECT_EQ(load_u64(region_->data() + 8), 77u);
  ASSERT_TRUE(remote->persist(0, kBytes, soon()).ok());
  EXPECT_EQ(remote->persist(1, kBytes, soon()).code(), StatusCode::kOutOfRange);
}

TEST_P(Regions, ABatchIsDoneInOrderOrNotAtAll) {
  const auto remote = open();
  char got[8];
  std::vector<RegionOperation> batch = {
      RegionOperation::put(0, "11111111"), RegionOperation::get(0, absl::MakeSpan(got)),
      RegionOperation::put(0, Bytes("\2\0\0\0\0\0\0\0", 8)), RegionOperation::fetch_add(0, 3),
      RegionOperation::compare_swap(0, 5, 9)};
  ASSERT_TRUE(remote->run(absl::MakeSpan(batch), soon()).ok());
  EXPECT_EQ(Bytes(got, 8), "11111111");
  EXPECT_EQ(batch[3].before, 2u);
  EXPECT_EQ(batch[4].before, 5u);
  EXPECT_EQ(load_u64(region_->data()), 9u);
  std::vector<char> large(100);
  const std::vector<RegionOperation> wrong = {
      RegionOperation::put(kBytes - 4, "12345"),
      RegionOperation::put(UINT64_MAX - 2, "12345"),
      RegionOperation::get(kBytes - 99, absl::MakeSpan(large)),
      RegionOperation::get(kBytes + 1, absl::MakeSpan(large.data(), 0)),
      RegionOperation::fetch_add(kBytes - 4, 1),
      RegionOperation::fetch_add(kBytes, 1),
      RegionOperation::fetch_add(12, 1),
      RegionOperation::compare_swap(1, 0, 1)};
  for (const RegionOperation& operation : wrong) {
    std::vector<RegionOperation> two = {RegionOperation::fetch_add(0, 1), operation};
    const StatusCode code = remote->run(absl::MakeSpan(two), soon()).code();
    EXPECT_TRUE(code == StatusCode::kOutOfRange || code == StatusCode::kInvalidArgument) << code;
    // The owner does not rely on the peer's own check (RX1).
    const auto by_owner =
        run_encoded(Bytes(encode_operations(0, two)).substr(8), *region_, 1u << 20);
    EXPECT_FALSE(by_owner.ok());
  }
  EXPECT_EQ(load_u64(region_->data()), 9u) << "RR1";
}

TEST_P(Regions, RandomOperationsAgainstAString) {
  const auto remote = open();
  std::string model(kBytes, '\0');
  Rng rng(5);
  for (int round = 0; round < 400; round++) {
    std::vector<std::string> sources, targets(10);
    sources.reserve(10);
    std::vector<RegionOperation> batch;
    std::vector<std::string> expected;
    std::vector<uint64_t> before;
    for (uint64_t n = 1 + rng.below(8); n > 0; n--) {
      const uint64_t offset = rng.below(kBytes - 3000);
      const size_t bytes = rng.one_in(3) ? 8 : rng.below(3000);
      const uint64_t word = offset / 8 * 8;
      before.push_back(load_u64(model.data() + word));
      expected.emplace_back();
      switch (rng.below(4)) {
        case 0:
          sources.emplace_back(bytes, static_cast<char>(rng.next()));
          batch.push_back(RegionOperation::put(offset, sources.back()));
          model.replace(offset, bytes, sources.back());
          break;
        case 1:
          targets[batch.size()].resize(bytes);
          batch.push_back(
              RegionOperation::get(offset, absl::MakeSpan(targets[batch.size()].data(), bytes)));
          expected.back() = model.substr(offset, bytes);
          break;
        case 2:
          batch.push_back(RegionOperation::fetch_add(word, rng.next()));
          store_u64(model.data() + word, before.back() + batch.back().operand);
          break;
        default:
          batch.push_back(RegionOperation::compare_swap(
              word, rng.one_in(2) ? before.back() : before.back() + 1, rng.next()));
          if (batch.back().expected == before.back())
            store_u64(model.data() + word, batch.back().operand);
      }
    }
    ASSERT_TRUE(remote->run(absl::MakeSpan(batch), soon()).ok());
    for (size_t i = 0; i < batch.size(); i++) {
      using Kind = RegionOperation::Kind;
      if (batch[i].kind == Kind::kGet) {
        ASSERT_EQ(targets[i], expected[i]);
      }
      if (batch[i].kind == Kind::kFetchAdd || batch[i].kind == Kind::kCompareSwap) {
        ASSERT_EQ(batch[i].before, before[i]);
      }
    }
  }
  EXPECT_EQ(Bytes(region_->data(), kBytes), model);
}

// RR6
TEST_P(Regions, BatchesThatWereBegunEndOnceAndInTheirOrder) {
  const auto remote = open();
  constexpr uint32_t kBatches = 200;
  std::vector<std::vector<RegionOperation>> batches(kBatches);
  std::vector<std::string> sources(kBatches);
  std::vector<char> got(size_t{kBatches} * 8);
  std::atomic<uint32_t> ended{0};
  std::vector<uint32_t> order;  // of whichever thread ends them
  for (uint32_t i = 0; i < kBatches; i++) {
    append_u64(&sources[i], i);
    batches[i] = {RegionOperation::put(0, sources[i]), RegionOperation::fetch_add(64, 1),
                  RegionOperation::get(0, absl::MakeSpan(got.data() + size_t{i} * 8, 8))};
    remote->start(absl::MakeSpan(batches[i]), soon(), [&, i](const Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      order.push_back(i);
      ended++;
    });
    if (!GetParam().from_replies) {
      EXPECT_EQ(ended, i + 1);
    }
  }
  ASSERT_TRUE(strata::testing::wait_until([&] { return ended == kBatches; }));
  for (uint32_t i = 0; i < kBatches; i++) {
    EXPECT_EQ(order[i], i);
    EXPECT_EQ(batches[i][1].before, i);
    EXPECT_EQ(load_u64(got.data() + size_t{i} * 8), i);
  }
}

TEST_P(Regions, ABatchThatIsBegunAndCannotBeEndsWithTheReason) {
  const auto remote = open();
  std::vector<RegionOperation> wrong = {RegionOperation::fetch_add(0, 1),
                                        RegionOperation::fetch_add(kBytes, 1)};
  std::promise<Status> refused, persisted, beyond;
  remote->start(absl::MakeSpan(wrong), soon(),
                [&](const Status& status) { refused.set_value(status); });
  EXPECT_EQ(refused.get_future().get().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(load_u64(region_->data()), 0u) << "RR1";
  remote->start_persist(0, kBytes, soon(),
                        [&](const Status& status) { persisted.set_value(status); });
  EXPECT_TRUE(persisted.get_future().get().ok());
  remote->start_persist(1, kBytes, soon(), [&](const Status& status) { beyond.set_value(status); });
  EXPECT_EQ(beyond.get_future().get().code(), StatusCode::kOutOfRange);
}

// RR5, RR6: the owner is gone.
TEST_P(Regions, BatchesThatWereBegunEndWhenTheOwnerIsGone) {
  const auto remote = open();
  ASSERT_TRUE(remote->put(0, "12345678", soon()).ok());
  server_.reset();
  if (GetParam().path != RegionPath::kCalls) return;  // RR4; a fabric has a server of its own
  char bytes[8];
  std::vector<RegionOperation> get = {RegionOperation::get(0, absl::MakeSpan(bytes))};
  std::vector<RegionOperation> put = {RegionOperation::put(0, "87654321")};
  std::promise<Status> of_get, of_put;
  const uint64_t until_us = monotonic_us() + 500'000;
  remote->start(absl::MakeSpan(get), until_us,
                [&](const Status& status) { of_get.set_value(status); });
  remote->start(absl::MakeSpan(put), until_us,
                [&](const Status& status) { of_put.set_value(status); });
  const Status got = of_get.get_future().get();
  EXPECT_TRUE(is_peer_down(got) || is_timed_out(got)) << got;
  EXPECT_FALSE(of_put.get_future().get().ok());
}

TEST_P(Regions, AtomicsOfAllWaysCountTogether) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      const RegionPath path = t % 2 == 0 ? GetParam().path : RegionPath::kCalls;
      const auto remote = open_remote_region(channel_, "pool", path, soon());
      ASSERT_TRUE(remote.ok());
      for (int i = 0; i < 500; i++) ASSERT_TRUE((*remote)->fetch_add(64, 1, soon()).ok());
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(load_u64(region_->data() + 64), 2000u);
}

TEST_P(Regions, AWithdrawnRegionIsFenced) {
  const auto remote = open();
  ASSERT_TRUE(remote->put(0, "before", soon()).ok());
  // RN3: a new file under the same name.
  const auto next = make_region(folder_ / "region", 8);
  regions_->expose("pool", next);
  const Status late = remote->put(0, "after!", soon());
  if (mapped()) {
    EXPECT_TRUE(late.ok()) << "RR4: a mapping notices nothing";
    EXPECT_EQ(Bytes(region_->data(), 6), "after!") << "it writes to the old file";
  } else {
    EXPECT_TRUE(is_withdrawn(late));
  }
  EXPECT_EQ(Bytes(next->data(), 6), Bytes("\0\0\0\0\0\0", 6));
  EXPECT_EQ(open()->epoch(), 8u);
  regions_->withdraw("pool");
  EXPECT_EQ(open_remote_region(channel_, "pool", GetParam().path, soon()).status().code(),
            StatusCode::kNotFound);
}

// RR7, RX3
TEST_P(Regions, OneForReadingOnlyIsReadAndNothingElse) {
  std::memcpy(region_->data() + 8, "as it is", 8);
  regions_->expose("pool", region_, RegionAccess::kReadOnly);
  const auto remote = open();
  EXPECT_EQ(remote->access(), RegionAccess::kReadOnly);
  char got[8];
  ASSERT_TRUE(remote->get(8, absl::MakeSpan(got), soon()).ok());
  EXPECT_EQ(Bytes(got, 8), "as it is");
  const std::string before(region_->data(), kBytes);
  EXPECT_TRUE(is_invalid_argument(remote->put(8, "changed!", soon())));
  EXPECT_TRUE(is_invalid_argument(remote->put(3, "", soon()))) << "not even of nothing";
  EXPECT_TRUE(is_invalid_argument(remote->fetch_add(8, 1, soon()).status()));
  EXPECT_TRUE(is_invalid_argument(remote->compare_swap(8, 0, 1, soon()).status()));
  std::memset(got, 'x', sizeof got);
  std::vector<RegionOperation> batch = {RegionOperation::get(8, absl::MakeSpan(got)),
                                        RegionOperation::put(8, "changed!")};
  EXPECT_TRUE(is_invalid_argument(remote->run(absl::MakeSpan(batch), soon())));
  EXPECT_EQ(Bytes(got, 8), "xxxxxxxx") << "of a batch nothing is done";
  std::promise<Status> refused;
  remote->start(absl::MakeSpan(batch), soon(),
                [&](const Status& status) { refused.set_value(status); });
  EXPECT_TRUE(is_invalid_argument(refused.get_future().get()));
  std::memcpy(region_->data() + 8, "anew now", 8);
  ASSERT_TRUE(remote->get(8, absl::MakeSpan(got), soon()).ok());
  EXPECT_EQ(Bytes(got, 8), "anew now") << "its owner goes on writing";
  std::memcpy(region_->data() + 8, "as it is", 8);
  EXPECT_EQ(Bytes(region_->data(), kBytes), before);
  // The next one to open it may write again, if its owner wants that.
  regions_->expose("pool", region_);
  EXPECT_EQ(open()->access(), RegionAccess::kReadWrite);
  EXPECT_TRUE(open()->put(8, "changed!", soon()).ok());
}

// RX3: the owner does not rely on what a peer makes of it.
TEST_P(Regions, WritesByCallToOneForReadingOnlyAreRefusedAndCounted) {
  regions_->expose("pool", region_, RegionAccess::kReadOnly);
  const auto believes_it_may = make_call_region(channel_, kBytes, region_->epoch(),
                                                region_->incarnation(), RegionAccess::kReadWrite);
  EXPECT_TRUE(is_invalid_argument(believes_it_may->put(8, "changed!", soon())));
  EXPECT_TRUE(is_invalid_argument(believes_it_may->fetch_add(8, 1, soon()).status()));
  char got[8];
  std::vector<RegionOperation> batch = {RegionOperation::get(8, absl::MakeSpan(got)),
                                        RegionOperation::put(8, "changed!"),
                                        RegionOperation::compare_swap(8, 0, 1)};
  EXPECT_TRUE(is_invalid_argument(believes_it_may->run(absl::MakeSpan(batch), soon())));
  EXPECT_EQ(regions_->writes_refused(), 4u);
  EXPECT_EQ(load_u64(region_->data() + 8), 0u);
  ASSERT_TRUE(believes_it_may->get(8, absl::MakeSpan(got), soon()).ok());
  EXPECT_EQ(regions_->writes_refused(), 4u);
}

TEST_P(Regions, AFabricIsThereWhereTheOwnerHasOne) {
  const auto remote = open_remote_region(channel_, "pool", RegionPath::kFabric, soon());
  EXPECT_EQ(remote.status().code(),
            fabric_ != nullptr ? StatusCode::kOk : StatusCode::kInvalidArgument);
  if (!fabric_is_built()) {
    EXPECT_EQ(FabricServer::start("tcp:127.0.0.1:0").status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_P(Regions, AModelledLinkSlowsOperationsDown) {
  BlockingChannelOptions options;
  link_model_ = std::make_shared<LinkModel>(LinkSpeed{2'000'000, 1'000'000'000});
  options.link_model = link_model_;
  channel_ = std::make_shared<BlockingChannel>(secret_of('s'), address_, options);
  const auto remote = open();
  const uint64_t begin_us = monotonic_us();
  for (int i = 0; i < 5; i++) ASSERT_TRUE(remote->put(0, "12345678", soon()).ok());
  EXPECT_GE(monotonic_us() - begin_us, 10'000u);
}

TEST(RegionFile, IsRefusedUnlessItIsOne) {
  Folder folder;
  const std::string path = folder / "region";
  EXPECT_EQ(Region::open(path).status().code(), StatusCode::kNotFound);
  {
    const auto region = make_region(path, 3);
    std::memcpy(region->data(), "kept", 4);
  }
  {
    const auto again = Region::open(path);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ((*again)->epoch(), 3u);
    EXPECT_EQ(Bytes((*again)->data(), 4), "kept");
  }
  const FileDescriptor file(::open(path.c_str(), O_RDWR));
  for (const off_t at : {0, 8, 12, 16, 24, 39}) {
    char byte, flipped;
    ASSERT_EQ(::pread(file.get(), &byte, 1, at), 1);
    flipped = static_cast<char>(byte ^ 4);
    ASSERT_EQ(::pwrite(file.get(), &flipped, 1, at), 1);
    EXPECT_EQ(Region::open(path).status().code(), StatusCode::kDataLoss) << at;
    ASSERT_EQ(::pwrite(file.get(), &byte, 1, at), 1);
  }
  ASSERT_TRUE(Region::open(path).ok());
  ASSERT_EQ(::ftruncate(file.get(), kBytes), 0);
  EXPECT_EQ(Region::open(path).status().code(), StatusCode::kDataLoss) << "shorter than it says";
}

// RX3: what a peer is handed cannot be mapped for writing.
TEST(RegionFile, OfADescriptorForReadingIsMappedForReading) {
  Folder folder;
  const auto owner = make_region(folder / "region", 3);
  ::unlink((folder / "region").c_str());
  FileDescriptor file(
      ::open(("/proc/self/fd/" + std::to_string(owner->fd())).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  EXPECT_EQ(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0), MAP_FAILED);
  const auto peer = Region::map(std::move(file), "region");
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->access(), RegionAccess::kReadOnly);
  EXPECT_EQ(owner->access(), RegionAccess::kReadWrite);
  std::memcpy(owner->data(), "seen", 4);
  EXPECT_EQ(Bytes((*peer)->data(), 4), "seen");
  EXPECT_NE(::mprotect((*peer)->data(), 4096, PROT_READ | PROT_WRITE), 0);
  EXPECT_TRUE((*peer)->persist(0, kBytes).ok());
}

TEST(RegionRequests, OfAnyBytesDoNoHarm) {
  Folder folder;
  const auto region = make_region(folder / "region", 1);
  Rng rng(9);
  std::vector<RegionOperation> batch = {RegionOperation::put(8, "abc"),
                                        RegionOperation::fetch_add(16, 1),
                                        RegionOperation::compare_swap(24, 0, 1)};
  const std::string good = encode_operations(0, batch).substr(8);
  ASSERT_TRUE(run_encoded(good, *region, 1000).ok());
  for (int i = 0; i < 20'000; i++) {
    std::string bad = good;
    for (uint64_t n = 1 + rng.below(4); n > 0; n--)
      bad[rng.below(bad.size())] = static_cast<char>(rng.next());
    bad.resize(rng.below(bad.size() + 1));
    const auto reply = run_encoded(bad, *region, 1000);
    if (reply.ok()) {
      EXPECT_LE(reply->size(), 1000u);
    }
  }
  char large[800];
  batch = {RegionOperation::fetch_add(16, 1), RegionOperation::get(0, absl::MakeSpan(large)),
           RegionOperation::get(0, absl::MakeSpan(large))};
  const uint64_t before = load_u64(region->data() + 16);
  EXPECT_FALSE(run_encoded(Bytes(encode_operations(0, batch)).substr(8), *region, 1000).ok());
  EXPECT_EQ(load_u64(region->data() + 16), before) << "RX1";
}

// --- an owner that dies ------------------------------------------------------------------------

[[noreturn]] void own(const std::string& folder) {
  set_diag_sink([](Severity, std::string_view) {});
  IoNode node;
  RpcServer server(node.world(), secret_of('s'), {});
  RegionServer regions(&server);
  regions.expose("pool", make_region(folder + "/region", 1));
  if (!server.listen("unix:" + folder + "/socket").ok()) ::_exit(1);
  (void)!::write(1, "x", 1);
  for (;;) ::pause();
}

TEST(RegionOwner, MayBeKilledUnderAMapping) {
  Folder folder;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  std::string arguments[] = {"owner", folder / ""};
  char* argv[] = {arguments[0].data(), arguments[1].data(), nullptr};
  pid_t owner = 0;
  ASSERT_EQ(::posix_spawn(&owner, "/proc/self/exe", &actions, nullptr, argv, environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  char byte;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  ::close(ends[0]);
  const auto channel = std::make_shared<BlockingChannel>(
      secret_of('s'), "unix:" + (folder / "socket"), BlockingChannelOptions());
  const auto mapped = open_remote_region(channel, "pool", RegionPath::kMapped, soon());
  const auto called = open_remote_region(channel, "pool", RegionPath::kCalls, soon());
  ASSERT_TRUE(mapped.ok() && called.ok());
  ASSERT_TRUE((*called)->put(0, "alive", soon()).ok());
  ::kill(owner, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(owner, &status, 0), owner);
  EXPECT_FALSE((*called)->put(0, "dead!", soon()).ok());
  ASSERT_TRUE((*mapped)->put(5, " and dead", soon()).ok());
  ASSERT_TRUE((*mapped)->persist(0, 100, soon()).ok());
  const auto again = Region::open(folder / "region");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(Bytes((*again)->data(), 14), "alive and dead");
}

}  // namespace

void act_as_owner(const std::string& folder) { own(folder); }

}  // namespace strata::transport

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[0]) == "owner") strata::transport::act_as_owner(argv[1]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
