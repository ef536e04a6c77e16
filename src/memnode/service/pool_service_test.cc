// Goal: each rule of a memory node's calls (PV1-PV3, PUS1-PUS7, SWR1). Method: real sockets,
// storage nodes that refuse or keep silent, a registry that is there or not. Tenants and garbage:
// pool_service_strangers_test.cc; pages that are pulled, files: pool_service_media_test.cc.
#include "memnode/service/pool_service.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "base/fault.h"
#include "base/testing/wait_until.h"
#include "memnode/service/testing/pool_service_fixture.h"
#include "proto/calls/calls.h"

namespace strata::memnode {
namespace {

using strata::testing::wait_until;
using testing::kElsewhere;
using testing::kOther;
using testing::kPage;
using testing::page_of;
using testing::StorageNode;
using PoolServiceTest = testing::PoolServiceFixture;

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
      const auto options =
          proto::call_of(proto::kPoolPut, client.world().executor->now_us() + 20'000'000);
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

}  // namespace
}  // namespace strata::memnode
