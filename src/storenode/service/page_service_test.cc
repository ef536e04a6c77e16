// Goal: the page service over real sockets: what is in memory is answered by the server's thread
// (PS3), everything else by another one, and in either way the same page comes. Method: a page
// store on a simulated disk, an offload that counts.
#include "storenode/service/page_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "daemon/worker_pool.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"
#include "proto/page_messages.h"
#include "storenode/replay/testing/test_store.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/testing/io_node.h"

namespace strata::storenode {
namespace {

using testing::same_but_checksum;
using testing::TestStore;
using transport::test::IoNode;
using transport::test::secret_of;

constexpr PageId kPage{300, 1};
constexpr PageId kOther{300, 3};

class PageServiceTest : public ::testing::TestWithParam<ReplayMode> {
 protected:
  PageServiceTest() : rng_(1), store_(GetParam()) {
    store_.options().now_us = monotonic_us;
    store_.open();
    for (int i = 0; i < 5; ++i) written_.push_back(store_.write(&rng_, {kPage, kOther}));
    store_.scan_all();
    store_.replay_all();
    EXPECT_TRUE(store_.store().checkpoint().ok());
    serve();
  }
  ~PageServiceTest() override { stop(); }

  void serve() {
    offloaded_ = 0;
    workers_ = std::make_unique<daemon::WorkerPool>(2, 100);
    const Offload offload = [this](daemon::WorkerPool::Task task) {
      ++offloaded_;
      return workers_->run(std::move(task));
    };
    logs_ = std::make_unique<LogService>(LogService::Parts{});
    service_ = std::make_unique<PageService>(&store_.store(), logs_.get(), offload, monotonic_us);
    node_ = std::make_unique<IoNode>();
    server_ = std::make_unique<transport::RpcServer>(node_->world(), secret_of('s'),
                                                     transport::ServerOptions());
    service_->register_on(server_.get());
    const auto address = server_->listen("tcp:127.0.0.1:0");
    ASSERT_TRUE(address.ok()) << address.status();
    channel_ = std::make_unique<transport::BlockingChannel>(secret_of('s'), *address,
                                                            transport::BlockingChannelOptions());
  }
  void stop() {
    channel_.reset();
    server_.reset();
    if (workers_ != nullptr) workers_->stop();
    service_.reset();
  }
  // The same store, and nothing of it in memory.
  void restart() {
    stop();
    store_.close();
    store_.open();
    serve();
  }

  StatusOr<proto::GetPagesReply> ask(const std::vector<PageId>& pages, Llsn at_least,
                                     Llsn at_most = Llsn{UINT64_MAX}) {
    proto::GetPagesRequest request;
    for (const PageId page : pages) request.pages.push_back({page, at_least, at_most});
    const auto options = proto::call_of(proto::kGetPages, monotonic_us() + 60'000'000);
    transport::BlockingReply reply;
    STRATA_RETURN_IF_ERROR(channel_->call(options, proto::encode(request), &reply));
    return proto::decode_get_pages_reply(reply.payload);
  }
  void expect_page(const proto::PageGot& got, PageId page, Llsn at) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    const std::string* const want = store_.writer().at(page, at);
    ASSERT_NE(want, nullptr);
    EXPECT_EQ(got.llsn.value, header_of(want->data())->llsn);
    EXPECT_TRUE(verify_page(got.bytes.data(), page).ok());
    EXPECT_TRUE(same_but_checksum(got.bytes.data(), want->data()));
  }

  Rng rng_;
  TestStore store_;
  std::vector<Llsn> written_;
  std::atomic<int> offloaded_{0};
  std::unique_ptr<daemon::WorkerPool> workers_;
  std::unique_ptr<LogService> logs_;
  std::unique_ptr<PageService> service_;
  std::unique_ptr<IoNode> node_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<transport::BlockingChannel> channel_;
};
INSTANTIATE_TEST_SUITE_P(Modes, PageServiceTest,
                         ::testing::Values(ReplayMode::kSingle, ReplayMode::kEager,
                                           ReplayMode::kFiltered, ReplayMode::kSmart));

TEST_P(PageServiceTest, APageInMemoryIsAnsweredAtOnceAndOneOnDiskByAnotherThread) {
  restart();
  auto first = ask({kPage}, written_.back());
  ASSERT_TRUE(first.ok()) << first.status();
  expect_page(first->pages[0], kPage, written_.back());
  EXPECT_EQ(offloaded_.load(), 1);
  for (int i = 0; i < 3; ++i) {
    const auto again = ask({kPage}, written_.back());
    ASSERT_TRUE(again.ok()) << again.status();
    expect_page(again->pages[0], kPage, written_.back());
    EXPECT_EQ(again->progress, first->progress);
  }
  EXPECT_EQ(offloaded_.load(), 1);
  EXPECT_EQ(store_.store().counters().at_hand.load(), 3u);
  EXPECT_EQ(service_->pages_sent(), 4u);
}

TEST_P(PageServiceTest, OldVersionsComeAsOfTheirLlsn) {
  if (GetParam() == ReplayMode::kSingle) return;  // has none
  for (int round = 0; round < 2; ++round) {
    for (const Llsn at : written_) {
      const auto reply = ask({kPage}, at, at);
      ASSERT_TRUE(reply.ok()) << reply.status();
      if (is_out_of_range(reply->pages[0].status)) continue;  // collected
      expect_page(reply->pages[0], kPage, at);
    }
  }
  EXPECT_GT(store_.store().counters().at_hand.load(), 0u);
}

TEST_P(PageServiceTest, WhatIsNotThereAndSeveralPagesTakeTheLongWay) {
  ASSERT_TRUE(ask({kPage}, written_.back()).ok());
  offloaded_ = 0;
  const auto missing = ask({{300, 99}}, written_.back());
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_TRUE(is_not_found(missing->pages[0].status)) << missing->pages[0].status;
  EXPECT_EQ(offloaded_.load(), 1);
  const auto beyond = ask({kPage}, Llsn{written_.back().value + 1});
  ASSERT_TRUE(beyond.ok()) << beyond.status();
  EXPECT_TRUE(is_peer_down(beyond->pages[0].status)) << beyond->pages[0].status;
  EXPECT_EQ(offloaded_.load(), 2);
  const auto both = ask({kPage, kOther}, written_.back());
  ASSERT_TRUE(both.ok()) << both.status();
  expect_page(both->pages[0], kPage, written_.back());
  expect_page(both->pages[1], kOther, written_.back());
  EXPECT_EQ(offloaded_.load(), 3);
}

TEST_P(PageServiceTest, ADamagedPageIsNeverAtHand) {
  stop();
  store_.close();
  for (const char* const folder : {"/node/versions", "/node/pages"}) {
    const auto names = store_.disk().list(folder);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const bool of_pages = std::string(folder) == "/node/pages";
      if (!of_pages && !name.ends_with(".blob")) continue;
      const uint64_t begin = of_pages ? kPage.number * kPageBytes + 100 : 100;
      const uint64_t end = of_pages ? begin + kPageBytes - 200 : 5 * kPageBytes;
      for (uint64_t byte = begin; byte < end; byte += 1000)
        store_.disk().flip_bit(std::string(folder) + "/" + name, byte * 8);
    }
  }
  store_.open();
  serve();
  for (int i = 0; i < 3; ++i) {
    const auto reply = ask({kPage}, written_.back());
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(is_corruption(reply->pages[0].status)) << reply->pages[0].status;
  }
  EXPECT_EQ(offloaded_.load(), 3);
  EXPECT_EQ(store_.store().counters().at_hand.load(), 0u);
}

}  // namespace
}  // namespace strata::storenode
