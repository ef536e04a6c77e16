// Goal: pages that the node pulls from where compute has put them (STG1-STG3), pools on a
// persistent medium (PUS9, PSL9), pools and files that are nobody's or others' (PV4, PV5, PUS8,
// MF3). Method: real sockets and files.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "base/fault.h"
#include "base/testing/wait_until.h"
#include "io/token_file.h"
#include "memnode/service/testing/pool_service_fixture.h"

namespace strata::memnode {
namespace {

using strata::testing::wait_until;
using testing::Image;
using testing::kElsewhere;
using testing::kOther;
using testing::kPage;
using testing::page_of;
using PoolServiceTest = testing::PoolServiceFixture;

// --- pages that the node pulls ---

class StagedPuts : public PoolServiceTest {
 protected:
  // As the stream's user, with memory of its own to put pages into.
  void attach_staged(uint64_t number = 1) {
    user_ = {StreamId{1}, Epoch{1}, number, 0};
    const auto reply = attach({user_, false, 64, token_, 8});
    ASSERT_TRUE(reply.ok()) << reply.status();
    user_.incarnation = reply->incarnation;
    ASSERT_EQ(reply->places, 8u);
    staging_name_ = reply->staging;
    auto region = transport::open_remote_region(channel_, reply->staging,
                                                transport::RegionPath::kMapped, deadline());
    ASSERT_TRUE(region.ok()) << region.status();
    staging_ = *std::move(region);
    ASSERT_EQ(staging_->bytes(), 8 * kPageBytes);
  }
  void stage(uint32_t place, const std::string& page) const {
    std::memcpy(staging_->direct() + uint64_t{place} * kPageBytes, page.data(), page.size());
  }
  StatusOr<proto::PoolPutReply> put_staged(const std::vector<proto::PoolStagedImage>& images,
                                           uint64_t durable = 1'000'000) {
    STRATA_ASSIGN_OR_RETURN(const std::string reply,
                            call(proto::kPoolPutStaged, proto::encode(proto::PoolPutStagedRequest{
                                                            user_, Lsn{durable}, images})));
    return proto::decode_pool_put_reply(reply);
  }
  Status put_staged(PageId id, uint64_t llsn, uint32_t place, uint64_t durable = 1'000'000) {
    const auto reply = put_staged({{{id, true, Lsn{100}, Lsn{200}}, Llsn{llsn}, place}}, durable);
    return reply.ok() ? reply->taken.at(0).status : reply.status();
  }
  std::string staging_name_;
  std::unique_ptr<transport::RemoteRegion> staging_;
};

TEST_F(StagedPuts, PagesArePulledFromWhereComputeHasPutThem) {
  attach_staged();
  stage(3, page_of(kPage, 5));
  stage(7, page_of(kOther, 6));
  const auto reply = put_staged(
      {{{kPage, true, Lsn{100}, Lsn{200}}, Llsn{5}, 3}, {{kOther, false, {}, {}}, Llsn{6}, 7}});
  ASSERT_TRUE(reply.ok()) << reply.status();
  for (const auto& taken : reply->taken) EXPECT_TRUE(taken.status.ok()) << taken.status;
  EXPECT_EQ(counters().images_pulled, 2u);
  // What is done with the places afterwards is nobody's business.
  stage(3, page_of(kElsewhere, 9));
  EXPECT_EQ(lookup(kPage)->at.llsn, Llsn{5});
  EXPECT_TRUE(lookup(kPage)->at.dirty);
  EXPECT_FALSE(lookup(kOther)->at.dirty);
  EXPECT_EQ(lookup(kPage)->at.generation, reply->taken[0].generation);
  storage_nodes(1);
  EXPECT_EQ(write(targets())->pages.size(), 1u);
  EXPECT_EQ(storage_[0]->llsn_of(kPage), 5u) << "the bytes were whole";
  // The same once more costs no copy.
  EXPECT_TRUE(put_staged(kPage, 5, 3).ok());
  EXPECT_TRUE(is_conflict(put_staged(kPage, 4, 3)));
  EXPECT_EQ(counters().images_pulled, 2u);
}

// Goal: whatever is in the memory and whatever is said of it, what is published is that page, whole
// and with that llsn. Method: each kind of garbage by hand, then random changes under pulls.
TEST_F(StagedPuts, WhatIsNotThatPageIsNeverPublished) {  // STG3, PUS3
  attach_staged();
  std::string torn = page_of(kPage, 5);
  torn.replace(8192, 8192, page_of(kPage, 4).substr(8192));
  stage(0, torn);
  EXPECT_TRUE(is_invalid_argument(put_staged(kPage, 5, 0)));
  stage(0, page_of(kOther, 5));
  EXPECT_TRUE(is_invalid_argument(put_staged(kPage, 5, 0)));
  stage(0, page_of(kPage, 5));
  EXPECT_TRUE(is_invalid_argument(put_staged(kPage, 6, 0))) << "another llsn";
  stage(0, std::string(kPageBytes, '\0'));
  EXPECT_TRUE(is_invalid_argument(put_staged(kPage, 5, 0)));
  EXPECT_EQ(counters().images_rejected, 4u);
  stage(0, page_of(kPage, 5));
  EXPECT_TRUE(is_invalid_argument(put_staged(kPage, 5, 0, 199))) << "K9";
  EXPECT_TRUE(is_invalid_argument(put_staged(kPage, 5, 8))) << "there is no such place";
  EXPECT_TRUE(is_invalid_argument(put_staged(kPage, 5, UINT32_MAX)));
  EXPECT_EQ(counters().places_refused, 2u);
  EXPECT_FALSE(lookup(kPage)->there);
  EXPECT_EQ(pool_status().counts.filling, 0u);
  EXPECT_TRUE(put_staged(kPage, 5, 0).ok());
}

TEST_F(StagedPuts, APageThatChangesWhileItIsPulledIsWholeOrRefused) {  // STG3
  attach_staged();
  const std::string one = page_of(kPage, 5'000), other = page_of(kPage, 4'999);
  stage(0, one);
  std::atomic<bool> over{false};
  std::thread scribbler([&] {
    for (uint32_t n = 0; !over; ++n) {
      const std::string& page = n % 2 == 0 ? other : one;
      stage(0, page);
    }
  });
  for (uint64_t round = 0; round < 300; ++round) {
    const Status status = put_staged(kPage, 5'000, 0);
    EXPECT_TRUE(status.ok() || is_invalid_argument(status)) << status;
    if (!status.ok()) continue;
    EXPECT_EQ(lookup(kPage)->at.llsn, Llsn{5'000});
    ASSERT_TRUE(forget(kPage.space).ok());
  }
  over = true;
  scribbler.join();
  stage(0, one);
  EXPECT_TRUE(put_staged(kPage, 5'000, 0).ok());
  storage_nodes(1);
  ASSERT_TRUE(write(targets()).ok());
  EXPECT_EQ(storage_[0]->llsn_of(kPage), 5'000u);
}

TEST_F(StagedPuts, WhoWasTakenOverPutsNothing) {  // STG1, PUS1
  attach_staged();
  stage(0, page_of(kPage, 5));
  const proto::PoolUser before = user_;
  const std::string name_before = staging_name_;
  const std::unique_ptr<transport::RemoteRegion> old = std::move(staging_);
  attach_staged(2);
  EXPECT_NE(staging_name_, name_before);
  const proto::PoolUser now = std::exchange(user_, before);
  EXPECT_TRUE(is_fenced(put_staged(kPage, 5, 0)));
  user_ = now;
  // What is in the other's memory is nothing to this one.
  EXPECT_TRUE(is_invalid_argument(put_staged(kPage, 5, 0)));
  EXPECT_TRUE(is_not_found(transport::open_remote_region(channel_, name_before,
                                                         transport::RegionPath::kMapped, deadline())
                               .status()));
  // Nobody can shrink it under the node's hands.
  std::string open(1, '\1');
  transport::BlockingReply reply;
  transport::CallOptions options;
  options.method = transport::kRegionOpenMethod;
  options.deadline_us = deadline();
  ASSERT_TRUE(channel_->call(options, open + staging_name_, &reply).ok());
  ASSERT_TRUE(reply.attached.valid());
  EXPECT_NE(::ftruncate(reply.attached.get(), 4096), 0);
  // An attachment that wants none gets none, and carries its pages.
  attached(1, 3);
  EXPECT_TRUE(is_invalid_argument(put_staged(kPage, 5, 0)));
  EXPECT_TRUE(put_one({kPage, 5, 100, 200}).ok());
}

TEST_F(StagedPuts, AFailureInTheMiddleOfAPullLosesNothing) {
  attach_staged();
  stage(0, page_of(kPage, 5));
  ASSERT_TRUE(arm_fault("memnode_pull_half:1:error"));
  EXPECT_FALSE(put_staged(kPage, 5, 0).ok());
  EXPECT_FALSE(lookup(kPage)->there);
  EXPECT_EQ(pool_status().counts.filling, 0u);
  EXPECT_TRUE(put_staged(kPage, 5, 0).ok());
}

// --- a persistent medium ---

class PersistentPools : public PoolServiceTest {
 protected:
  void SetUp() override {
    persistent_ = true;
    start();
  }
};

TEST_F(PersistentPools, PagesArePutReplacedDroppedAndFound) {  // PUS9, PSL9
  const auto pool = attached();
  std::vector<Image> images;
  for (uint32_t i = 0; i < 30; ++i) images.push_back({{300, i}, 1, 100, 200});
  for (uint64_t llsn = 1; llsn < 8; ++llsn) {
    for (Image& image : images) image.llsn = llsn;
    const auto reply = put(images);
    ASSERT_TRUE(reply.ok()) << reply.status();
    for (uint32_t i = 0; i < 30; ++i) {
      ASSERT_TRUE(reply->taken[i].status.ok()) << reply->taken[i].status;
      const auto found = lookup({300, i});
      ASSERT_TRUE(found.ok() && found->there);
      EXPECT_EQ(found->at.slot, reply->taken[i].slot);
      EXPECT_EQ(found->at.generation, reply->taken[i].generation);
      EXPECT_EQ(read(pool, found->at), page_of({300, i}, llsn));
    }
  }
  // Twice in one call, an older one, a torn one: each has its own answer.
  const auto mixed =
      put({{{300, 1}, 9, 100, 200}, {{300, 1}, 10, 100, 200}, {{300, 2}, 3, 100, 200}});
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_TRUE(mixed->taken[1].status.ok());
  EXPECT_TRUE(is_conflict(mixed->taken[2].status));
  EXPECT_EQ(lookup({300, 1})->at.llsn, Llsn{10});
  storage_nodes(1);
  const auto written = write(targets());
  ASSERT_TRUE(written.ok() && !written->pages.empty()) << written.status();
  ASSERT_TRUE(synced(1).ok());
  EXPECT_TRUE(drop(written->pages[0].id).ok());
  EXPECT_FALSE(lookup(written->pages[0].id)->there);
  EXPECT_TRUE(forget(300).ok());
  EXPECT_TRUE(checkpoint(77).ok());
  ASSERT_TRUE(put_one({kPage, 99, 300, 400}).ok());
  stop();
  start();
  const auto again = attached(1, 2);
  EXPECT_EQ(again.incarnation, pool.incarnation);
  EXPECT_EQ(again.checkpoint, Lsn{77});
  EXPECT_TRUE(lookup(kPage)->at.dirty);
  EXPECT_FALSE(lookup({300, 3})->there);
  const auto fresh = attached(1, 3, /*fresh=*/true);
  EXPECT_NE(fresh.incarnation, pool.incarnation);
  EXPECT_FALSE(lookup(kPage)->there);
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
}

// --- what counts for nobody, and files of others ---

TEST_F(PoolServiceTest, APoolThatNobodyNamesOrUsesIsGivenBackWithItsMemory) {  // PV4, PUS8
  const auto pool = attached();
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  const auto region = transport::open_remote_region(channel_, pool.region,
                                                    transport::RegionPath::kMapped, deadline());
  ASSERT_TRUE(region.ok()) << region.status();
  const proto::PoolSlot at = lookup(kPage)->at;
  const auto there = [&] { return service_->status().pools.size(); };
  const std::string path = folder_ / "pool-1";
  // While it is named, while it is used, and while the registry does not answer it stays.
  name(pool.incarnation);
  service_->give_back_unused(0, 10);
  service_->give_back_unused(100, 10);
  name(0);
  EXPECT_TRUE(lookup(kPage)->there);
  service_->give_back_unused(200, 10);
  EXPECT_TRUE(lookup(kPage)->there);
  service_->give_back_unused(300, 10);
  registry_is(false);
  service_->give_back_unused(400, 10);
  registry_is(true);
  EXPECT_TRUE(lookup(kPage)->there);
  service_->give_back_unused(500, 10);
  service_->give_back_unused(505, 10);
  EXPECT_EQ(there(), 1u);
  EXPECT_GT(service_->status().tenants.at(0).used_bytes, 0u);
  service_->give_back_unused(510, 10);
  EXPECT_TRUE(wait_until([&] { return there() == 0; }));
  EXPECT_EQ(counters().unused, 1u);
  EXPECT_EQ(service_->status().tenants.at(0).used_bytes, 0u);
  struct stat info {};
  EXPECT_NE(::stat(path.c_str(), &info), 0);
  // Who sleeps with it mapped reads no generation that it knows, and holds no memory.
  uint64_t generation = 1;
  ASSERT_TRUE((*region)
                  ->get(pool.headers_at + uint64_t{at.slot} * sizeof(SlotHeader),
                        {reinterpret_cast<char*>(&generation), 8}, deadline())
                  .ok());
  EXPECT_EQ(generation, 0u);
  EXPECT_TRUE(is_not_found(lookup(kPage).status()));
  EXPECT_FALSE(transport::open_remote_region(channel_, pool.region, transport::RegionPath::kMapped,
                                             deadline())
                   .ok());
  EXPECT_TRUE(
      is_not_found(attach({{StreamId{1}, Epoch{1}, 2, pool.incarnation}, false, 64, {}}).status()));
  service_->give_back_unused(520, 10);
  const auto again = attached(1, 3);
  EXPECT_TRUE(again.made);
  EXPECT_NE(again.incarnation, pool.incarnation);
  EXPECT_TRUE(put_one({kPage, 6}).ok());
}

TEST_F(PoolServiceTest, APoolThatAnEarlierProcessLeftIsGivenBackToo) {  // PV4
  attached();
  ASSERT_TRUE(put_one({kPage, 5}).ok());
  stop();
  start();
  ASSERT_EQ(service_->status().pools.size(), 1u);
  service_->give_back_unused(0, 10);
  service_->give_back_unused(10, 10);
  EXPECT_TRUE(wait_until([&] { return service_->status().pools.empty(); }));
}

TEST_F(PoolServiceTest, AFileOfAnotherNodeIsPutAsideAndNeverServed) {  // PV5, MF3
  const auto pool = attached();
  ASSERT_TRUE(put_one({kPage, 5}).ok());
  stop();
  number_ = 78;
  start();
  EXPECT_TRUE(service_->status().pools.empty());
  EXPECT_EQ(counters().files_aside, 1u);
  EXPECT_TRUE(
      is_not_found(attach({{StreamId{1}, Epoch{2}, 1, pool.incarnation}, false, 64, {}}).status()));
  const auto own = attached(2, 2);
  EXPECT_TRUE(own.made);
  EXPECT_FALSE(lookup(kPage)->there);
  stop();
  start();
  EXPECT_EQ(counters().files_aside, 1u) << "it is told of at every start";
  EXPECT_EQ(service_->status().pools.at(0).incarnation, own.incarnation);
  stop();
  // It is whole: given its name back, and to its own node, it is what it was.
  ASSERT_EQ(::rename((folder_ / "aside-pool-1.1").c_str(), (folder_ / "pool-1").c_str()), 0);
  number_ = 77;
  start();
  EXPECT_EQ(service_->status().pools.at(0).incarnation, pool.incarnation);
  EXPECT_EQ(service_->status().pools.at(0).counts.clean, 1u);
}

TEST_F(PoolServiceTest, RefusalsAreCounted) {
  stop();
  tenant_options_ = {{"a", "the token of a.", 4u << 20}};
  start();
  token_ = "the token of a.";
  const auto pool = attached();
  const auto with = [&](const std::string& token) {
    return attach({{StreamId{1}, Epoch{1}, 9, 0}, false, 64, token}).status();
  };
  EXPECT_TRUE(is_invalid_argument(with("another token")));
  EXPECT_TRUE(is_invalid_argument(with("")));
  EXPECT_EQ(counters().tokens_refused, 2u);
  EXPECT_EQ(counters().attach_refused, 2u);
  // A client of ours checks bounds itself; of one that does not the node refuses it.
  std::string open(1, '\0');
  const auto opened = call_region(transport::kRegionOpenMethod, open + pool.region);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const uint64_t bytes = load_u64(opened->data());
  char target[8];
  const auto beyond = transport::RegionOperation::get(bytes - 4, absl::MakeSpan(target));
  const std::string run =
      transport::encode_operations(load_u64(opened->data() + 16), absl::MakeConstSpan(&beyond, 1));
  EXPECT_TRUE(is_out_of_range(call_region(transport::kRegionRunMethod, run).status()));
  EXPECT_EQ(regions_->out_of_bounds(), 1u);
  EXPECT_EQ(regions_->writes_refused(), 0u);
}

}  // namespace
}  // namespace strata::memnode
