// Goal: each rule of a memory node's calls (PV1-PV3, PUS1-PUS7, SWR1, TN1, TN2), and that whatever
// comes over the wire harms nobody. Method: real sockets, storage nodes that refuse or keep silent,
// a registry that is there or not.
#include "memnode/service/pool_service.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "base/fault.h"
#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "io/token_file.h"
#include "memnode/service/testing/memory_node_fixture.h"
#include "transport/regions/region_memory.h"
#include "transport/regions/remote_region.h"

namespace strata::memnode {
namespace {

using strata::testing::wait_until;
using testing::Image;
using testing::page_of;
using testing::StorageNode;

constexpr PageId kPage{300, 7};
constexpr PageId kOther{300, 8};
constexpr PageId kElsewhere{301, 7};

class PoolServiceTest : public testing::MemoryNodeFixture {
 protected:
  void storage_nodes(size_t count) {
    for (size_t i = 0; i < count; ++i) storage_.push_back(std::make_unique<StorageNode>());
  }
  // What a reader on this host finds there, or nothing if the slot changed under it.
  std::string read(const proto::PoolAttachReply& pool, const proto::PoolSlot& at) {
    auto region = transport::open_remote_region(channel_, pool.region,
                                                transport::RegionPath::kMapped, deadline());
    EXPECT_TRUE(region.ok()) << region.status();
    if (!region.ok()) return {};
    SlotHeader before, after;
    std::string page(kPageBytes, '\0');
    const uint64_t header_at = pool.headers_at + uint64_t{at.slot} * sizeof(SlotHeader);
    transport::RegionOperation batch[] = {
        transport::RegionOperation::get(header_at,
                                        {reinterpret_cast<char*>(&before), sizeof before}),
        transport::RegionOperation::get(pool.pages_at + uint64_t{at.slot} * kPageBytes,
                                        {page.data(), page.size()}),
        transport::RegionOperation::get(header_at,
                                        {reinterpret_cast<char*>(&after), sizeof after})};
    EXPECT_TRUE((*region)->run(batch, deadline()).ok());
    if (before.generation != at.generation || after.generation != at.generation) return {};
    return page;
  }
  static uint64_t deadline() { return monotonic_us() + 20'000'000; }
};

TEST_F(PoolServiceTest, PagesArePutFoundReadAndDropped) {
  const auto pool = attached();
  EXPECT_TRUE(pool.made);
  EXPECT_EQ(pool.slots, 64u);
  EXPECT_EQ(pool.checkpoint, Lsn{});
  const auto reply = put({{kPage, 5}, {kOther, 6, 100, 200}});
  ASSERT_TRUE(reply.ok()) << reply.status();
  for (const auto& taken : reply->taken) EXPECT_TRUE(taken.status.ok()) << taken.status;
  const auto found = lookup(kPage);
  ASSERT_TRUE(found.ok() && found->there) << found.status();
  EXPECT_EQ(found->at.slot, reply->taken[0].slot);
  EXPECT_EQ(found->at.generation, reply->taken[0].generation);
  EXPECT_EQ(found->at.llsn, Llsn{5});
  EXPECT_FALSE(found->at.dirty);
  EXPECT_EQ(read(pool, found->at), page_of(kPage, 5));
  const auto other = lookup(kOther);
  ASSERT_TRUE(other.ok() && other->there);
  EXPECT_TRUE(other->at.dirty);
  EXPECT_EQ(read(pool, other->at), page_of(kOther, 6));
  EXPECT_FALSE(lookup(kElsewhere)->there);
  EXPECT_TRUE(is_busy(drop(kOther)));
  EXPECT_TRUE(is_not_found(drop(kElsewhere)));
  EXPECT_TRUE(drop(kPage).ok());
  EXPECT_FALSE(lookup(kPage)->there);
  EXPECT_EQ(read(pool, found->at), "") << "who sleeps with an old address notices";
}

TEST_F(PoolServiceTest, NobodyWritesIntoAPool) {  // RX3
  const auto pool = attached();
  ASSERT_TRUE(put_one({kPage, 5}).ok());
  for (const auto path : {transport::RegionPath::kMapped, transport::RegionPath::kCalls}) {
    const auto region = transport::open_remote_region(channel_, pool.region, path, deadline());
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_TRUE(is_invalid_argument((*region)->put(pool.pages_at, "mine", deadline())));
    EXPECT_TRUE(is_invalid_argument((*region)->fetch_add(pool.headers_at, 2, deadline()).status()));
  }
  EXPECT_EQ(read(pool, lookup(kPage)->at), page_of(kPage, 5));
}

TEST_F(PoolServiceTest, ANewerImageTakesThePlaceAndAnOlderOneIsRefused) {
  const auto pool = attached();
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  const proto::PoolSlot before = lookup(kPage)->at;
  ASSERT_TRUE(put_one({kPage, 9, 300, 400}).ok());
  const proto::PoolSlot now = lookup(kPage)->at;
  EXPECT_EQ(now.llsn, Llsn{9});
  EXPECT_NE(now.slot, before.slot);
  EXPECT_EQ(read(pool, now), page_of(kPage, 9));
  EXPECT_EQ(read(pool, before), "");
  EXPECT_TRUE(is_conflict(put_one({kPage, 5, 100, 200})));
  const auto same = put({{kPage, 9, 250, 400}});
  ASSERT_TRUE(same.ok());
  EXPECT_TRUE(same->taken[0].status.ok());
  EXPECT_EQ(same->taken[0].slot, now.slot);
  EXPECT_EQ(same->taken[0].generation, now.generation);
  EXPECT_EQ(pool_status().oldest_dirty, Lsn{100});
  EXPECT_EQ(counters().images_older, 1u);
}

TEST_F(PoolServiceTest, WhatIsNotWholeOrNotThatPageOrNotDurableIsRefusedAlone) {  // PUS3
  attached();
  std::string torn = page_of(kPage, 5);
  torn[9000] ^= 1;
  EXPECT_TRUE(is_invalid_argument(put_one({kPage, 5}, 1'000, torn)));
  EXPECT_TRUE(is_invalid_argument(put_one({kPage, 5}, 1'000, page_of(kOther, 5))));
  EXPECT_TRUE(is_invalid_argument(put_one({kPage, 0}, 1'000, page_of(kPage, 0))));
  EXPECT_TRUE(is_invalid_argument(put_one({kPage, 5}, 1'000, std::string(kPageBytes, '\0'))));
  EXPECT_TRUE(is_invalid_argument(put_one({kPage, 5, 900, 1'001}, 1'000))) << "K9";
  EXPECT_TRUE(is_invalid_argument(put_one({kPage, 5, 900, 899}, 1'000)));
  EXPECT_TRUE(is_invalid_argument(put_one({kPage, 5, 1ull << 48, 1ull << 48}, 1ull << 50)));
  EXPECT_EQ(counters().images_rejected, 7u);
  EXPECT_FALSE(lookup(kPage)->there);
  const auto mixed = put({{kPage, 5, 900, 1'001}, {kOther, 5, 900, 1'000}}, 1'000);
  ASSERT_TRUE(mixed.ok());
  EXPECT_TRUE(is_invalid_argument(mixed->taken[0].status));
  EXPECT_TRUE(mixed->taken[1].status.ok());
  EXPECT_TRUE(lookup(kOther)->there);
}

TEST_F(PoolServiceTest, AFullPoolSaysSoAndStillTakesNewerImages) {
  attached();
  uint32_t taken = 0;
  Status last;
  for (uint32_t i = 0; i < 100 && last.ok(); ++i) {
    last = put_one({{300, i}, 1, 100, 200});
    if (last.ok()) ++taken;
  }
  EXPECT_TRUE(is_no_space(last)) << last;
  EXPECT_GT(taken, 32u);
  EXPECT_LT(taken, 64u);
  EXPECT_TRUE(put_one({{300, 0}, 2, 300, 400}).ok());
  EXPECT_EQ(counters().images_no_slot, 1u);
}

TEST_F(PoolServiceTest, OnePutAfterTheOtherOfOneChannel) {  // PV3
  attached();
  transport::test::IoNode client;
  std::atomic<int> answered{0}, refused{0};
  {
    transport::Channel channel(client.world(), transport::test::secret_of('s'), address_, {});
    for (uint64_t llsn = 1; llsn <= 200; ++llsn) {
      transport::CallOptions options;
      options.method = proto::kPoolPut;
      options.deadline_us = client.world().executor->now_us() + 20'000'000;
      std::string pages;
      channel.call(options, put_request(user_, {{kPage, llsn, 100, 200}}, 1'000, &pages),
                   [&](const transport::Reply& reply) {
                     const auto put = proto::decode_pool_put_reply(reply.payload);
                     if (!put.ok() || !put->taken.at(0).status.ok()) refused++;
                     answered++;
                   });
    }
    EXPECT_TRUE(wait_until([&] { return answered == 200; }));
  }
  EXPECT_EQ(refused, 0) << "one would have come before an older one";
  EXPECT_EQ(lookup(kPage)->at.llsn, Llsn{200});
}

// --- who may ---

TEST_F(PoolServiceTest, OnlyTheLastUserGetsAnswers) {  // PUS1
  const auto first = attached(4, 2);
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  const proto::PoolUser old_user = user_;
  for (const auto& [epoch, number] : {std::pair<uint64_t, uint64_t>{4, 2}, {4, 1}, {3, 7}}) {
    const auto late = attach({{StreamId{1}, Epoch{epoch}, number, 0}, false, 64, ""});
    EXPECT_TRUE(is_fenced(late.status())) << late.status();
  }
  EXPECT_TRUE(lookup(kPage).ok()) << "whoever was refused has ended nobody";
  const auto second = attached(4, 3);
  EXPECT_FALSE(second.made);
  EXPECT_EQ(second.incarnation, first.incarnation);
  EXPECT_TRUE(lookup(kPage)->there);
  const proto::PoolUser user = std::exchange(user_, old_user);
  EXPECT_TRUE(is_fenced(lookup(kPage).status()));
  EXPECT_TRUE(is_fenced(put_one({kPage, 9, 300, 400})));
  EXPECT_TRUE(is_fenced(drop(kPage)));
  EXPECT_TRUE(is_fenced(forget(300)));
  EXPECT_TRUE(is_fenced(synced(0).status()));
  EXPECT_TRUE(is_fenced(checkpoint(100)));
  storage_nodes(1);
  EXPECT_TRUE(is_fenced(write(targets()).status()));
  EXPECT_TRUE(is_fenced(write_again(0, targets().front()).status()));
  EXPECT_TRUE(is_fenced(
      call(proto::kPoolList, proto::encode(proto::PoolListRequest{user_, 0, 64})).status()));
  user_ = user;
  EXPECT_EQ(lookup(kPage)->at.llsn, Llsn{5});
  EXPECT_EQ(counters().stale_calls, 9u);
}

TEST_F(PoolServiceTest, WhoIsNotAttachedIsToldSo) {  // PV1, PV2
  user_ = {StreamId{1}, Epoch{4}, 1, 77};
  EXPECT_TRUE(is_not_found(lookup(kPage).status()));
  attached(4, 1);
  const proto::PoolUser user = user_;
  user_.incarnation ^= 1;
  EXPECT_TRUE(is_not_found(lookup(kPage).status()));
  user_ = user;
  user_.stream = StreamId{2};
  EXPECT_TRUE(is_not_found(lookup(kPage).status()));
  user_ = user;
  user_.epoch = Epoch{5};  // has not come yet
  EXPECT_TRUE(is_not_found(lookup(kPage).status()));
  EXPECT_EQ(counters().stale_calls, 4u);
  const auto lost = attach({{StreamId{1}, Epoch{5}, 1, user.incarnation ^ 1}, false, 64, ""});
  EXPECT_TRUE(is_not_found(lost.status()));
  const auto other = attach({{StreamId{2}, Epoch{5}, 1, 78}, false, 64, ""});
  EXPECT_TRUE(is_not_found(other.status()));
  user_ = user;
  EXPECT_TRUE(lookup(kPage).ok()) << "none of this was anybody's end";
}

TEST_F(PoolServiceTest, NobodyIsAttachedWithoutTheRegistryOrAgainstIt) {  // MY3
  attached(4, 1);
  registry_is(false);
  EXPECT_EQ(attach({{StreamId{1}, Epoch{4}, 2, 0}, false, 64, ""}).status().code(),
            StatusCode::kUnavailable);
  EXPECT_TRUE(put_one({kPage, 5}).ok()) << "who is attached stays so";
  registry_is(true);
  last_epoch_is(6);
  EXPECT_TRUE(is_fenced(attach({{StreamId{1}, Epoch{5}, 1, 0}, false, 64, ""}).status()));
  EXPECT_TRUE(lookup(kPage)->there);
  EXPECT_TRUE(attach({{StreamId{1}, Epoch{6}, 1, 0}, false, 64, ""}).ok());
  EXPECT_EQ(counters().attach_refused, 2u);
}

TEST_F(PoolServiceTest, AFreshContentHasNothingOfTheOldOne) {  // PUS6
  const auto first = attached(4, 1);
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  ASSERT_TRUE(checkpoint(90, 3).ok());
  const proto::PoolSlot at = lookup(kPage)->at;
  const auto second = attached(4, 2, true);
  EXPECT_TRUE(second.made);
  EXPECT_NE(second.incarnation, first.incarnation);
  EXPECT_EQ(second.checkpoint, Lsn{});
  EXPECT_EQ(second.region, first.region) << "the same memory";
  EXPECT_FALSE(lookup(kPage)->there);
  EXPECT_EQ(pool_status().oldest_dirty, kNeverChanged);
  EXPECT_EQ(read(second, at), "");
  ASSERT_TRUE(put_one({kPage, 5}).ok());
  EXPECT_NE(lookup(kPage)->at.generation, at.generation) << "PSL2, over contents, too";
}

TEST_F(PoolServiceTest, WhatWasWrittenIsDoubtedForTheNextUser) {  // PUS2
  storage_nodes(2);
  attached(4, 1);
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  storage_[0]->will(StorageNode::Does::kIsSilent);
  std::thread writing([&] {
    const auto reply = write(targets());
    EXPECT_TRUE(reply.ok()) << reply.status();
  });
  EXPECT_TRUE(wait_until([&] { return storage_[0]->held() == 1; }));
  std::thread newcomer([&] {
    const auto reply = attach({{StreamId{1}, Epoch{5}, 1, 0}, false, 64, ""});
    EXPECT_TRUE(reply.ok()) << reply.status();
  });
  EXPECT_TRUE(wait_until([&] { return pool_status().epoch == Epoch{5}; }));
  EXPECT_FALSE(pool_status().attached) << "he waits for the write that is under way";
  EXPECT_EQ(pool_status().writes_under_way, 1u);
  storage_[0]->release();
  newcomer.join();
  writing.join();
  EXPECT_TRUE(pool_status().attached);
  EXPECT_EQ(pool_status().counts.dirty, 1u);
  EXPECT_EQ(pool_status().counts.written, 0u);
  user_ = {StreamId{1}, Epoch{5}, 1, pool_status().incarnation};
  const auto after = synced(pool_status().last_report);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->dirty, 1u);
  EXPECT_EQ(after->oldest, Lsn{100});
}

TEST_F(PoolServiceTest, OfTwoWhoWaitTheLaterOneGetsIt) {
  storage_nodes(1);
  attached(4, 1);
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  storage_[0]->will(StorageNode::Does::kIsSilent);
  std::thread writing([&] { EXPECT_TRUE(write(targets()).ok()); });
  EXPECT_TRUE(wait_until([&] { return storage_[0]->held() == 1; }));
  std::thread first([&] {
    EXPECT_TRUE(is_fenced(attach({{StreamId{1}, Epoch{5}, 1, 0}, false, 64, ""}).status()));
  });
  EXPECT_TRUE(wait_until([&] { return pool_status().epoch == Epoch{5}; }));
  std::thread second([&] {
    EXPECT_TRUE(attach({{StreamId{1}, Epoch{6}, 1, 0}, false, 64, ""}).ok());
  });
  first.join();
  storage_[0]->release();
  second.join();
  writing.join();
  EXPECT_EQ(pool_status().epoch, Epoch{6});
}

// --- to storage ---

TEST_F(PoolServiceTest, WritesOldestFirstAndCleansWhatIsSynced) {  // PUS5, PSL5
  storage_nodes(3);
  attached(4, 1);
  ASSERT_TRUE(put({{kPage, 5, 300, 400}, {kOther, 6, 100, 200}, {kElsewhere, 7}}).ok());
  const auto first = write(targets(), UINT64_MAX, 1);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->pages.size(), 1u);
  EXPECT_EQ(first->pages[0], (proto::PoolWriteReply::Page{kOther, Llsn{6}}));
  ASSERT_EQ(first->answers.size(), 3u);
  for (const auto& answer : first->answers) EXPECT_TRUE(answer.answered && answer.status.ok());
  EXPECT_EQ(first->oldest, Lsn{100}) << "not synced yet";
  EXPECT_EQ(first->dirty, 2u);
  for (const auto& node : storage_) {
    EXPECT_EQ(node->llsn_of(kOther), 6u);
    EXPECT_EQ(node->llsn_of(kPage), 0u);
    EXPECT_EQ(node->writers().at(0), (proto::Writer{StreamId{1}, Epoch{4}, 9}));
  }
  const auto none = write(targets(), 300);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->pages.empty() && none->answers.empty());
  EXPECT_EQ(none->report, first->report);
  const auto second = write(targets());
  ASSERT_TRUE(second.ok());
  EXPECT_GT(second->report, first->report);
  EXPECT_EQ(storage_[2]->llsn_of(kPage), 5u);
  EXPECT_EQ(storage_[2]->llsn_of(kElsewhere), 0u) << "it is clean";
  const auto half = synced(first->report);
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(*half, (proto::PoolSyncedReply{Lsn{300}, 1}));
  EXPECT_TRUE(is_invalid_argument(synced(second->report + 1).status()));
  const auto all = synced(second->report);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(*all, (proto::PoolSyncedReply{kNeverChanged, 0}));
  EXPECT_TRUE(synced(first->report).ok()) << "once more, late";
  EXPECT_TRUE(drop(kPage).ok());
}

TEST_F(PoolServiceTest, APageStaysChangedUntilAllSayOk) {  // PUS5
  storage_nodes(3);
  attached(4, 1);
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  storage_[1]->will(StorageNode::Does::kRefuses);
  const auto refused = write(targets());
  ASSERT_TRUE(refused.ok()) << refused.status();
  ASSERT_EQ(refused->pages.size(), 1u);
  EXPECT_TRUE(refused->answers[0].answered && refused->answers[0].status.ok());
  EXPECT_TRUE(refused->answers[1].answered && is_no_session(refused->answers[1].status));
  EXPECT_TRUE(refused->answers[2].answered && refused->answers[2].status.ok());
  EXPECT_EQ(refused->report, 0u);
  EXPECT_EQ(refused->dirty, 1u);
  EXPECT_EQ(pool_status().counts.dirty, 1u);
  EXPECT_EQ(counters().writes_failed, 1u);
  storage_[1]->will(StorageNode::Does::kTakes);
  auto to = targets();
  to[2].address = "unix:" + (folder_ / "nobody");
  const auto away = write(to);
  ASSERT_TRUE(away.ok()) << away.status();
  EXPECT_FALSE(away->answers[2].answered);
  EXPECT_FALSE(away->answers[2].status.ok());
  EXPECT_EQ(away->report, 0u);
  const auto well = write(targets());
  ASSERT_TRUE(well.ok());
  EXPECT_EQ(well->report, 1u);
}

TEST_F(PoolServiceTest, WhoKeepsSilentHoldsNobodyForLong) {  // SWR1
  stop();
  writer_options_.timeout_us = 200'000;
  start();
  storage_nodes(2);
  attached(4, 1);
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  storage_[0]->will(StorageNode::Does::kIsSilent);
  const auto reply = write(targets());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_FALSE(reply->answers[0].answered);
  EXPECT_TRUE(is_outcome_unknown(reply->answers[0].status)) << reply->answers[0].status;
  EXPECT_TRUE(reply->answers[1].answered && reply->answers[1].status.ok());
  EXPECT_EQ(reply->dirty, 1u);
  storage_[0]->release();
}

TEST_F(PoolServiceTest, WhoLosesTheReplyWritesOnInNewSessions) {  // SWR2
  storage_nodes(1);
  attached(4, 1);
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  storage_[0]->will(StorageNode::Does::kIsSilent);
  EXPECT_FALSE(write(targets(9), UINT64_MAX, 64, 300'000).ok());
  EXPECT_EQ(pool_status().writes_under_way, 1u);
  storage_[0]->will(StorageNode::Does::kTakes);
  const auto while_under_way = write(targets(10));
  ASSERT_TRUE(while_under_way.ok());
  EXPECT_TRUE(while_under_way->pages.empty()) << "PSL7: that page is being written";
  EXPECT_EQ(while_under_way->dirty, 1u);
  storage_[0]->release();
  EXPECT_TRUE(wait_until([&] { return pool_status().counts.written == 1; }));
  // The report of that write was never received, so no sync speaks of it: it is written again.
  const auto again = write_again(0, targets(10).front());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->next, 64u);
  EXPECT_TRUE(again->answer.answered && again->answer.status.ok());
  EXPECT_EQ(storage_[0]->writers().back().session, 10u);
  EXPECT_EQ(counters().pages_written_again, 1u);
}

TEST_F(PoolServiceTest, WhatOneStorageNodeMayHaveForgottenIsWrittenAgain) {
  storage_nodes(2);
  attached(4, 1);
  ASSERT_TRUE(put({{kPage, 5, 100, 200}, {kOther, 6, 300, 400}}).ok());
  const auto written = write(targets(), 300);
  ASSERT_TRUE(written.ok());
  ASSERT_EQ(written->pages.size(), 1u);
  const proto::PoolTarget restarted{storage_[1]->address(), 11};
  const auto again = write_again(0, restarted);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->next, 64u);
  EXPECT_EQ(storage_[0]->writers().size(), 1u);
  ASSERT_EQ(storage_[1]->writers().size(), 2u);
  EXPECT_EQ(storage_[1]->writers()[1].session, 11u);
  EXPECT_EQ(storage_[1]->llsn_of(kOther), 0u) << "it was never written";
  storage_[1]->will(StorageNode::Does::kRefuses);
  const auto refused = write_again(0, restarted);
  ASSERT_TRUE(refused.ok());
  EXPECT_TRUE(refused->answer.answered && is_no_session(refused->answer.status));
  ASSERT_TRUE(synced(written->report).ok());
  const auto nothing = write_again(0, restarted);
  ASSERT_TRUE(nothing.ok());
  EXPECT_TRUE(nothing->answer.answered && nothing->answer.status.ok());
  EXPECT_EQ(storage_[1]->writers().size(), 3u) << "nobody was asked";
}

TEST_F(PoolServiceTest, ForgettingWaitsForWritesOfTheSpace) {  // PUS4
  storage_nodes(1);
  attached(4, 1);
  ASSERT_TRUE(put({{kPage, 5, 100, 200}, {kElsewhere, 6}}).ok());
  storage_[0]->will(StorageNode::Does::kIsSilent);
  std::thread writing([&] { EXPECT_TRUE(write(targets()).ok()); });
  EXPECT_TRUE(wait_until([&] { return storage_[0]->held() == 1; }));
  std::atomic<bool> forgotten{false};
  std::thread forgetting([&] {
    const Status status = forget(kPage.space);
    EXPECT_TRUE(status.ok()) << status;
    forgotten = true;
  });
  EXPECT_TRUE(wait_until([&] { return !lookup(kPage)->there; }));
  EXPECT_TRUE(forget(kElsewhere.space).ok()) << "another space waits for nothing";
  EXPECT_FALSE(forgotten);
  storage_[0]->release();
  forgetting.join();
  writing.join();
  EXPECT_FALSE(lookup(kPage)->there);
  EXPECT_FALSE(lookup(kElsewhere)->there);
  EXPECT_EQ(pool_status().counts.free, 64u);
  EXPECT_EQ(pool_status().oldest_dirty, kNeverChanged);
}

TEST_F(PoolServiceTest, AChangedPageThatIsDamagedIsReportedAndNotWritten) {
  storage_nodes(1);
  const auto pool = attached(4, 1);
  ASSERT_TRUE(put_one({kPage, 5, 100, 200}).ok());
  EXPECT_TRUE(service_->trouble().ok());
  {
    auto region = transport::Region::open(folder_ / "pool-1");
    ASSERT_TRUE(region.ok()) << region.status();
    (*region)->data()[pool.pages_at + uint64_t{lookup(kPage)->at.slot} * kPageBytes + 99] ^= 1;
  }
  const auto reply = write(targets());
  EXPECT_TRUE(is_corruption(reply.status())) << reply.status();
  EXPECT_TRUE(storage_[0]->writers().empty());
  EXPECT_EQ(pool_status().counts.dirty, 1u);
  EXPECT_TRUE(is_corruption(service_->trouble()));
  ASSERT_TRUE(put_one({kPage, 6, 300, 400}).ok());
  EXPECT_TRUE(write(targets()).ok());
  EXPECT_TRUE(service_->trouble().ok());
}

// --- the rest ---

TEST_F(PoolServiceTest, EveryPageIsListedOnce) {
  attached(4, 1);
  for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(put_one({{300, i}, i + 1, 100 + i, 900}).ok());
  ASSERT_TRUE(put_one({{300, 3}, 100, 500, 900}).ok());
  std::map<uint64_t, proto::PoolSlot> listed;
  uint32_t from = 0;
  while (from < 64) {
    const auto bytes =
        call(proto::kPoolList, proto::encode(proto::PoolListRequest{user_, from, 7}));
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const auto reply = proto::decode_pool_list_reply(*bytes);
    ASSERT_TRUE(reply.ok());
    ASSERT_GT(reply->next, from);
    from = reply->next;
    for (const auto& page : reply->pages)
      EXPECT_TRUE(listed.emplace(page.id.packed(), page.at).second);
  }
  EXPECT_EQ(listed.size(), 20u);
  for (const auto& [id, at] : listed) EXPECT_EQ(lookup(PageId::unpack(id))->at, at);
  const auto beyond =
      call(proto::kPoolList, proto::encode(proto::PoolListRequest{user_, UINT32_MAX, 7}));
  ASSERT_TRUE(beyond.ok());
  EXPECT_EQ(proto::decode_pool_list_reply(*beyond)->next, 64u);
}

TEST_F(PoolServiceTest, TheCheckpointNeverGoesBack) {  // PUS6
  attached(4, 1);
  EXPECT_TRUE(is_invalid_argument(checkpoint(0)));
  ASSERT_TRUE(checkpoint(500, 3).ok());
  ASSERT_TRUE(checkpoint(500, 3).ok()) << "the same, once more";
  EXPECT_TRUE(is_conflict(checkpoint(499)));
  ASSERT_TRUE(checkpoint(800, 5).ok());
  auto again = attached(4, 2);
  EXPECT_EQ(again.checkpoint_epoch, Epoch{4});
  EXPECT_EQ(again.checkpoint, Lsn{800});
  EXPECT_EQ(again.bias, 5u);
  again = attached(5, 1);
  EXPECT_EQ(again.checkpoint, Lsn{800});
  ASSERT_TRUE(checkpoint(700, 6).ok()) << "a later holder's log may be shorter";
  stop();
  start();
  again = attached(5, 2);
  EXPECT_EQ(again.checkpoint_epoch, Epoch{5});
  EXPECT_EQ(again.checkpoint, Lsn{700});
  EXPECT_EQ(again.bias, 6u);
}

TEST_F(PoolServiceTest, APoolOutlivesItsProcessAndItsUserDoesNot) {  // PUS7, MF2
  const auto before = attached(4, 5);
  ASSERT_TRUE(put({{kPage, 5, 100, 200}, {kOther, 6}}).ok());
  stop();
  start();
  EXPECT_TRUE(is_not_found(lookup(kPage).status()));
  EXPECT_TRUE(is_fenced(attach({{StreamId{1}, Epoch{4}, 5, 0}, false, 64, ""}).status()));
  const auto after = attached(4, 6);
  EXPECT_EQ(after.incarnation, before.incarnation);
  EXPECT_FALSE(after.made);
  EXPECT_NE(after.region, before.region);
  const auto page = lookup(kPage);
  ASSERT_TRUE(page.ok() && page->there);
  EXPECT_TRUE(page->at.dirty);
  EXPECT_EQ(read(after, page->at), page_of(kPage, 5));
  EXPECT_FALSE(lookup(kOther)->at.dirty);
  EXPECT_EQ(pool_status().oldest_dirty, Lsn{100});
  EXPECT_EQ(service_->status().tenants.at(0).used_bytes, pool_status().bytes);
}

TEST_F(PoolServiceTest, ADamagedPoolIsAnotherContent) {  // MF2
  const auto before = attached(4, 5);
  ASSERT_TRUE(put({{kPage, 5, 100, 200}, {kOther, 6}}).ok());
  ASSERT_TRUE(checkpoint(90).ok());
  const uint32_t slot = lookup(kOther)->at.slot;
  stop();
  {
    auto region = transport::Region::open(folder_ / "pool-1");
    ASSERT_TRUE(region.ok()) << region.status();
    (*region)->data()[before.pages_at + uint64_t{slot} * kPageBytes + 5000] ^= 1;
  }
  start();
  const proto::PoolUser named{StreamId{1}, Epoch{4}, 6, before.incarnation};
  EXPECT_TRUE(is_not_found(attach({named, false, 64, ""}).status()));
  const auto after = attached(4, 7);
  EXPECT_NE(after.incarnation, before.incarnation);
  EXPECT_TRUE(after.made);
  EXPECT_EQ(after.checkpoint, Lsn{});
  EXPECT_FALSE(lookup(kPage)->there);
  EXPECT_EQ(counters().damaged, 1u);
}

TEST_F(PoolServiceTest, AFileThatIsNoPoolIsMadeAnew) {
  stop();
  std::ofstream(folder_ / "pool-1") << "nothing of ours";
  std::ofstream(folder_ / "pool-x") << "somebody's";
  start();
  EXPECT_TRUE(attached(4, 1).made);
  EXPECT_TRUE(put_one({kPage, 5}).ok());
  EXPECT_EQ(::access((folder_ / "pool-x").c_str(), F_OK), 0);
}

TEST_F(PoolServiceTest, FailuresInTheMiddleLoseNothing) {
  storage_nodes(1);
  attached(4, 1);
  ASSERT_TRUE(arm_fault("memnode_put_half:1:error"));
  EXPECT_TRUE(is_io_error(put_one({kPage, 5, 100, 200})));
  EXPECT_FALSE(lookup(kPage)->there);
  EXPECT_EQ(pool_status().counts.free, 64u);
  ASSERT_TRUE(arm_fault("memnode_before_reply:1:error"));
  EXPECT_TRUE(is_outcome_unknown(put_one({kPage, 5, 100, 200})));
  EXPECT_TRUE(lookup(kPage)->there);
  ASSERT_TRUE(arm_fault("memnode_write_sent:1:error"));
  EXPECT_TRUE(is_outcome_unknown(write(targets()).status()));
  EXPECT_EQ(pool_status().counts.dirty, 1u);
  disarm_faults();
  EXPECT_TRUE(write(targets()).ok());
}

// --- tenants ---

class PoolTenants : public PoolServiceTest {
 protected:
  void SetUp() override {
    tenant_options_ = {{"one", "the token of one", 2u << 20},
                       {"two", "the token of two", 4u << 20}};
    memory_bytes_ = 5u << 20;
    start();
  }
  StatusOr<proto::PoolAttachReply> pool_of(uint32_t stream, const std::string& token,
                                           uint32_t slots = UINT32_MAX) {
    return attach({{StreamId{stream}, Epoch{1}, ++number_, 0}, false, slots, token});
  }
  uint64_t number_ = 0;
};

TEST_F(PoolTenants, HaveTheirTokensAndQuotas) {  // TN1, TN2
  for (const char* token : {"", "the token of", "the token of three", "the token of onf"})
    EXPECT_TRUE(is_invalid_argument(pool_of(1, token).status())) << token;
  const auto first = pool_of(1, "the token of one");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT(first->slots, 120u) << "as much as there is: 2 MiB";
  EXPECT_LE(first->slots, 127u);
  EXPECT_TRUE(is_no_space(pool_of(2, "the token of one").status()));
  const auto second = pool_of(2, "the token of two", 64);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->slots, 64u);
  const auto third = pool_of(3, "the token of two");
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_LT(third->slots, 128u) << "the node has less than the quota";
  const auto uses = service_->status().tenants;
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_LE(uses[0].used_bytes, 2u << 20);
  EXPECT_LE(uses[0].used_bytes + uses[1].used_bytes, 5u << 20);
  EXPECT_EQ(::access((folder_ / "pool-one-1").c_str(), F_OK), 0);
  // The same stream of another one is another pool.
  EXPECT_TRUE(is_no_space(pool_of(1, "the token of two").status()));
  stop();
  start();
  EXPECT_EQ(service_->status().pools.size(), 3u);
  EXPECT_EQ(service_->status().tenants[0].used_bytes, uses[0].used_bytes);
  const auto again = pool_of(1, "the token of one");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->incarnation, first->incarnation);
}

TEST(Token, IsOneLineThatOnlyItsOwnerReads) {
  const transport::test::Folder folder;
  const std::string path = folder / "token";
  EXPECT_TRUE(is_not_found(read_token(path).status()));
  const auto write = [&](const std::string& text, mode_t mode) {
    ::unlink(path.c_str());
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return read_token(path);
  };
  EXPECT_EQ(*write("0123456789abcdef\n", 0600), "0123456789abcdef");
  EXPECT_EQ(*write("0123456789abcdef", 0400), "0123456789abcdef");
  EXPECT_EQ(write(std::string(256, 'x'), 0600)->size(), 256u);
  for (const std::string& text : {std::string(), std::string("\n"), std::string("short\n"),
                                  std::string(257, 'x'), std::string("0123456789abcdef\nmore\n")})
    EXPECT_TRUE(is_invalid_argument(write(text, 0600).status())) << text;
  EXPECT_TRUE(is_invalid_argument(write("0123456789abcdef\n", 0640).status()));
  EXPECT_TRUE(is_invalid_argument(read_token(folder / "").status()));
}

TEST(TenantsTest, SettingsThatCannotBeAreRefused) {
  const auto check = [](const std::vector<TenantOptions>& tenants) {
    return Tenants::check(tenants, 1000);
  };
  EXPECT_TRUE(check({}).ok());
  EXPECT_TRUE(check({{"a", "x", 1000}, {"b", "y", 1000}}).ok());
  EXPECT_TRUE(is_invalid_argument(check({{"a", "x", 1001}})));
  EXPECT_TRUE(is_invalid_argument(check({{"a", "x", 0}})));
  EXPECT_TRUE(is_invalid_argument(check({{"a", "", 1}})));
  EXPECT_TRUE(is_invalid_argument(check({{"", "x", 1}})));
  EXPECT_TRUE(is_invalid_argument(check({{"a", "x", 1}, {"a", "y", 1}})));
  EXPECT_TRUE(is_invalid_argument(check({{"a", "x", 1}, {"b", "x", 1}})));
}

TEST_F(PoolServiceTest, WhatAnotherMemoryNodeHasWrittenIsCleanOnceStorageHasIt) {  // PSL5
  attached(4, 1);
  ASSERT_TRUE(put({{kPage, 5, 100, 200}, {kOther, 6, 300, 400}}).ok());
  const std::string stored =
      proto::encode(proto::PoolStoredRequest{user_, {{kPage, Llsn{5}}, {kOther, Llsn{5}}}});
  EXPECT_TRUE(is_busy(drop(kPage)));
  ASSERT_TRUE(call(proto::kPoolStored, stored).ok());
  EXPECT_TRUE(drop(kPage).ok());
  EXPECT_TRUE(is_busy(drop(kOther))) << "of an older version";
  attached(4, 2);
  EXPECT_TRUE(is_fenced(call(proto::kPoolStored, stored).status()));
}

// --- garbage ---

// Goal: bytes that are no request, or one that was changed on its way, are refused and counted, and
// nothing in the pool is another one afterwards. Method: whole requests of every method, cut off,
// with bits flipped, or made of random bytes.
TEST_F(PoolServiceTest, GarbageChangesNothing) {  // PV2
  storage_nodes(1);
  attached(4, 1);
  ASSERT_TRUE(put({{kPage, 5, 100, 200}, {kOther, 6}}).ok());
  std::string pages;
  const std::vector<std::pair<uint16_t, std::string>> sound = {
      {proto::kPoolAttach, proto::encode(proto::PoolAttachRequest{user_, false, 64, "token"})},
      {proto::kPoolList, proto::encode(proto::PoolListRequest{user_, 0, 64})},
      {proto::kPoolPut, put_request(user_, {{kElsewhere, 5, 100, 200}}, 1'000, &pages)},
      {proto::kPoolPutStaged, proto::encode(proto::PoolPutStagedRequest{
                                  user_, Lsn{1'000}, {{{kPage, false, {}, {}}, Llsn{7}, 0}}})},
      {proto::kPoolLookup, proto::encode(proto::PoolPagesRequest{user_, {kPage}})},
      {proto::kPoolDrop, proto::encode(proto::PoolPagesRequest{user_, {kElsewhere}})},
      {proto::kPoolForget, proto::encode(proto::PoolForgetRequest{user_, SpaceId{900}})},
      {proto::kPoolWrite, proto::encode(proto::PoolWriteRequest{user_, Lsn{1}, 64, targets()})},
      {proto::kPoolWriteAgain,
       proto::encode(proto::PoolWriteAgainRequest{user_, 0, targets().front()})},
      {proto::kPoolSynced, proto::encode(proto::PoolSyncedRequest{user_, 0})},
      {proto::kPoolStored, proto::encode(proto::PoolStoredRequest{user_, {{kPage, Llsn{5}}}})},
      {proto::kPoolCheckpoint, proto::encode(proto::PoolCheckpointRequest{user_, Lsn{90}, 0})}};
  Rng rng(1);
  for (int round = 0; round < 2000; ++round) {
    const auto& [method, bytes] = sound[rng.below(sound.size())];
    std::string garbage = bytes;
    switch (rng.below(3)) {
      case 0:
        garbage.resize(rng.below(garbage.size()));
        break;
      case 1:  // of who calls: it is somebody else then
        garbage[rng.below(28)] ^= static_cast<char>(1 << rng.below(8));
        break;
      default:
        garbage.resize(rng.below(200));
        for (char& byte : garbage) byte = static_cast<char>(rng.below(256));
    }
    if (method == proto::kPoolAttach) {  // whose words would count
      const auto decoded = proto::decode_pool_attach(garbage);
      if (decoded.ok() && !(decoded->user.epoch <= Epoch{4} && decoded->user.number <= 1)) continue;
    }
    const auto answered = call(method, garbage);
    EXPECT_FALSE(answered.ok()) << method << " " << round;
  }
  EXPECT_GT(counters().bad_requests, 500u);
  EXPECT_GT(counters().stale_calls, 100u);
  EXPECT_EQ(service_->status().pools.size(), 1u);
  const PoolStatus status = pool_status();
  EXPECT_EQ(status.counts.dirty, 1u);
  EXPECT_EQ(status.counts.clean, 1u);
  EXPECT_EQ(status.counts.free, 62u);
  EXPECT_EQ(status.checkpoint, Lsn{});
  EXPECT_EQ(lookup(kPage)->at.llsn, Llsn{5});
  EXPECT_TRUE(storage_[0]->writers().empty());
}

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
  const auto opened = call(transport::kRegionOpenMethod, open + pool.region);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const uint64_t bytes = load_u64(opened->data());
  char target[8];
  const auto beyond = transport::RegionOperation::get(bytes - 4, absl::MakeSpan(target));
  const std::string run =
      transport::encode_operations(load_u64(opened->data() + 16), absl::MakeConstSpan(&beyond, 1));
  EXPECT_TRUE(is_out_of_range(call(transport::kRegionRunMethod, run).status()));
  EXPECT_EQ(regions_->out_of_bounds(), 1u);
  EXPECT_EQ(regions_->writes_refused(), 0u);
}

}  // namespace
}  // namespace strata::memnode
