// Goal: operations on a peer's memory that nobody waits for keep their promises at exact times and
// over connections that break (RR2, RR5, RR6). Method: a region, exposed by one node of a simulated
// world, opened by another one.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/diag.h"
#include "transport/calls/testing/connections.h"
#include "transport/calls/testing/io_node.h"
#include "transport/regions/region_server.h"
#include "transport/regions/remote_region.h"
#include "transport/sim/sim_world.h"

namespace strata::transport {
namespace {

constexpr uint64_t kSecond = 1'000'000;  // us
constexpr uint64_t kBytes = 64u << 10;
constexpr SimFaults kCalm = {.delay_us_min = 100, .delay_us_max = 100, .short_write_one_in = 0};

class RegionsInSim : public ::testing::Test {
 protected:
  RegionsInSim() : world_(7, kCalm) {
    set_diag_sink([](Severity, std::string_view) {});
    world_.add_node();
    world_.add_node();
    server_ = std::make_unique<RpcServer>(world_.world(1), test::secret_of('s'), ServerOptions());
    regions_ = std::make_unique<RegionServer>(server_.get());
    auto made = Region::create(folder_ / "region", kBytes, 7);
    EXPECT_TRUE(made.ok()) << made.status();
    region_ = *std::move(made);
    regions_->expose("pool", region_);
    EXPECT_TRUE(server_->listen("sim:1:1").ok());
    channel_ = std::make_shared<Channel>(world_.world(0), test::secret_of('s'), "sim:1:1",
                                         ChannelOptions());
    start_open_region(channel_, world_.world(0).executor, "pool", world_.now_us() + kSecond,
                      [this](StatusOr<std::unique_ptr<RemoteRegion>> opened) {
                        ASSERT_TRUE(opened.ok()) << opened.status();
                        remote_ = *std::move(opened);
                      });
    EXPECT_EQ(remote_, nullptr) << "it does not wait";
    world_.run_for(kSecond / 10);
    EXPECT_EQ(remote_->bytes(), kBytes);
    EXPECT_EQ(remote_->epoch(), 7u);
  }
  ~RegionsInSim() override {
    remote_.reset();
    channel_.reset();
    server_.reset();  // before regions_
  }

  struct Batch {
    std::vector<RegionOperation> operations;
    std::string source;
    char got[8] = {};
    int ended = 0;
    Status status;
    uint64_t at_us = 0;
  };
  void start(Batch* batch, uint64_t timeout_us = kSecond) {
    remote_->start(absl::MakeSpan(batch->operations), world_.now_us() + timeout_us,
                   [this, batch](const Status& status) {
                     batch->ended++;
                     batch->status = status;
                     batch->at_us = world_.now_us();
                   });
  }
  static std::unique_ptr<Batch> get() {
    auto batch = std::make_unique<Batch>();
    batch->operations = {RegionOperation::get(0, absl::MakeSpan(batch->got))};
    return batch;
  }
  static std::unique_ptr<Batch> add(uint64_t offset = 8) {
    auto batch = std::make_unique<Batch>();
    batch->operations = {RegionOperation::fetch_add(offset, 1)};
    return batch;
  }

  test::Folder folder_;
  SimWorld world_;
  std::unique_ptr<RegionServer> regions_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<Region> region_;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<RemoteRegion> remote_;
};

TEST_F(RegionsInSim, ManyBatchesTakeOneRoundTrip) {
  std::vector<std::unique_ptr<Batch>> batches;
  const uint64_t begin_us = world_.now_us();
  for (int i = 0; i < 10; i++) {
    batches.push_back(add());
    start(batches.back().get());
    EXPECT_EQ(batches.back()->ended, 0);
  }
  world_.run_for(kSecond);
  for (uint64_t i = 0; i < batches.size(); i++) {
    EXPECT_EQ(batches[i]->ended, 1);
    EXPECT_TRUE(batches[i]->status.ok()) << batches[i]->status;
    EXPECT_EQ(batches[i]->operations[0].before, i);
    EXPECT_EQ(batches[i]->at_us, begin_us + 200);
  }
}

TEST_F(RegionsInSim, ABatchEndsAtItsDeadline) {
  world_.set_partitioned(0, 1, true);
  const auto lost = get(), unknown = add();
  const uint64_t begin_us = world_.now_us();
  start(lost.get(), 50'000);
  start(unknown.get(), 60'000);
  world_.run_for(kSecond);
  EXPECT_EQ(lost->at_us, begin_us + 50'000);
  EXPECT_TRUE(is_timed_out(lost->status)) << lost->status;
  EXPECT_EQ(unknown->at_us, begin_us + 60'000);
  EXPECT_TRUE(is_outcome_unknown(unknown->status)) << unknown->status;
}

// RR5
TEST_F(RegionsInSim, GetsAreDoneAgainAndNothingElseIs) {
  store_u64(region_->data(), 77);
  const auto read = get(), change = add();
  start(read.get());
  start(change.get());
  world_.run_for(50);  // they are on their way
  world_.cut_connections(0, 1);
  world_.run_for(kSecond);
  EXPECT_TRUE(read->status.ok()) << read->status;
  EXPECT_EQ(load_u64(read->got), 77u);
  EXPECT_EQ(read->ended, 1);
  EXPECT_TRUE(is_outcome_unknown(change->status)) << change->status;
}

TEST_F(RegionsInSim, AWithdrawnRegionEndsWhatIsBegun) {  // RR4
  regions_->withdraw("pool");
  const auto late = add();
  start(late.get());
  world_.run_for(kSecond);
  EXPECT_TRUE(is_withdrawn(late->status)) << late->status;
}

// Connections break at any byte: what ended well was done, once, and what did not may have been.
TEST_F(RegionsInSim, OverConnectionsThatBreakNothingIsDoneTwice) {
  SimFaults faults = kCalm;
  faults.cut_one_in = 20;
  faults.short_write_one_in = 4;
  world_.set_faults(faults);
  std::vector<std::unique_ptr<Batch>> batches;
  for (int i = 0; i < 500; i++) {
    batches.push_back(world_.rng().one_in(3) ? get() : add());
    start(batches.back().get());
    world_.run_for(world_.rng().below(3'000));
  }
  world_.run_for(5 * kSecond);
  uint64_t done = 0, unknown = 0;
  std::set<uint64_t> values;
  for (const auto& batch : batches) {
    ASSERT_EQ(batch->ended, 1);
    if (batch->operations[0].kind == RegionOperation::Kind::kGet) {
      EXPECT_TRUE(batch->status.ok() || may_pass(batch->status)) << batch->status;
      continue;
    }
    unknown += is_outcome_unknown(batch->status);
    if (!batch->status.ok()) continue;
    done++;
    EXPECT_TRUE(values.insert(batch->operations[0].before).second) << "RR3";
  }
  const uint64_t counted = load_u64(region_->data() + 8);
  EXPECT_GE(counted, done);
  EXPECT_LE(counted, done + unknown);
  EXPECT_GT(done, 50u);
  EXPECT_GT(unknown, 0u);
}

}  // namespace
}  // namespace strata::transport
