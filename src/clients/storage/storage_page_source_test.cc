// Goal: a page is never older than it was when it was given up (SPS1), never a bad one (SPS2), and
// a read ends (SPS4). Method: storage nodes that answer what the test says, over sockets.
#include "clients/storage/storage_page_source.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "base/aligned.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "page/page.h"
#include "pagefile/testing/test_pages.h"
#include "proto/calls/calls.h"
#include "proto/calls/testing/other_build.h"
#include "proto/methods.h"
#include "transport/calls/rpc_server.h"
#include "transport/calls/testing/connections.h"
#include "transport/calls/testing/io_node.h"

namespace strata::clients {
namespace {

using proto::PageGot;
using proto::PageWanted;
using transport::test::secret_of;

constexpr PageId kPage{300, 7};

std::string page_bytes(PageId id, uint64_t llsn) {
  std::string bytes(kPageBytes, '\0');
  strata::testing::fill_page(bytes.data(), id, llsn, {});
  seal_page(bytes.data());
  return bytes;
}

class StoragePages : public ::testing::Test {
 protected:
  using Answer = std::function<PageGot(const PageWanted&)>;

  // `list_as_of`: of its list of spaces.
  void add_node(Answer answer, uint64_t list_as_of = 1'000'000, uint32_t space = 7) {
    const std::string address = "unix:" + (folder_ / std::to_string(servers_.size()));
    servers_.push_back(std::make_unique<transport::RpcServer>(io_.world(), secret_of('s'),
                                                              transport::ServerOptions{}));
    proto::serve(servers_.back().get(), proto::kGetPages,
                 [this, answer = std::move(answer)](const transport::Request& call,
                                                    transport::Responder responder) {
                   ++calls_;
                   const auto request = proto::decode_get_pages(call.payload);
                   ASSERT_TRUE(request.ok());
                   EXPECT_EQ(request->epoch, Epoch{4});
                   places_ = request->scanned_to;
                   proto::GetPagesReply reply{{}, {backlog_, 0, scanned_}};
                   for (const PageWanted& wanted : request->pages) {
                     last_ = wanted;
                     reply.pages.push_back(answer(wanted));
                   }
                   responder.reply(proto::encode(reply));
                 });
    proto::serve(
        servers_.back().get(), proto::kListSpaces,
        [this, list_as_of, space](const transport::Request& call, transport::Responder responder) {
          ++lists_;
          const auto request = proto::decode_list_spaces(call.payload);
          ASSERT_TRUE(request.ok());
          if (spaces_) return responder.reply(proto::encode(spaces_(*request)));
          if (space == 0) return responder.fail(error_peer_down("its logs are not scanned so far"));
          responder.reply(
              proto::encode(proto::ListSpacesReply{{SpaceId{space}}, Llsn{list_as_of}, 0, {}}));
        });
    ASSERT_TRUE(servers_.back()->listen(address).ok());
    options_.addresses.push_back(address);
  }
  void add_node_of_another_build() {
    const std::string address = "unix:" + (folder_ / std::to_string(servers_.size()));
    servers_.push_back(std::make_unique<transport::RpcServer>(io_.world(), secret_of('s'),
                                                              transport::ServerOptions{}));
    for (const uint16_t method : {proto::kGetPages, proto::kListSpaces})
      proto::testing::serve_as_other_build(
          servers_.back().get(), method,
          [](const transport::Request&, const transport::Responder&) { ADD_FAILURE(); });
    ASSERT_TRUE(servers_.back()->listen(address).ok());
    options_.addresses.push_back(address);
  }
  StoragePageSource& source() {
    if (source_ == nullptr) {
      options_.stream = StreamId{1};
      options_.epoch = Epoch{4};
      source_ = std::make_unique<StoragePageSource>(secret_of('s'), options_);
    }
    return *source_;
  }
  Status read(PageId id = kPage) { return source().read(id, Llsn{}, page_.get()); }
  static Answer good(uint64_t llsn) {
    return [llsn](const PageWanted& wanted) {
      return PageGot{ok_status(), Llsn{llsn}, page_bytes(wanted.page, llsn)};
    };
  }
  static Answer failing(const Status& error) {
    return [error](const PageWanted&) { return PageGot{error, {}, {}}; };
  }

  transport::test::Folder folder_;
  transport::test::IoNode io_;
  StoragePagesOptions options_;
  std::vector<std::unique_ptr<transport::RpcServer>> servers_;
  std::unique_ptr<StoragePageSource> source_;
  const AlignedBytes page_{kPageBytes, 4096};
  std::atomic<int> calls_{0};
  std::atomic<int> lists_{0};
  std::atomic<uint64_t> backlog_{5};  // what replies say
  std::atomic<uint64_t> scanned_{0};  // likewise
  // Instead of what add_node() says.
  std::function<proto::ListSpacesReply(const proto::ListSpacesRequest&)> spaces_;
  PageWanted last_;                      // the IO thread's, until a call has ended
  std::vector<proto::Position> places_;  // likewise
};

TEST_F(StoragePages, BehindPlacesInSeveralLogsTheNewestStateIsAskedFor) {  // SPS10
  options_.write_quorum = 1;
  add_node(good(70));
  source().begin_at(Llsn{1'000});  // what this node knows of its own log says nothing
  ASSERT_TRUE(source().write(kPage, page_bytes(kPage, 900).data()).ok());
  const LogPosition places[] = {{StreamId{1}, Lsn{500}}, {StreamId{3}, Lsn{40}}};
  ASSERT_TRUE(source().read_behind(kPage, Llsn{}, places, page_.get()).ok());
  EXPECT_EQ(last_.at_least, Llsn{UINT64_MAX});
  EXPECT_EQ(last_.at_most, Llsn{UINT64_MAX});
  EXPECT_EQ(places_,
            (std::vector<proto::Position>{{StreamId{1}, Lsn{500}}, {StreamId{3}, Lsn{40}}}));
  EXPECT_TRUE(source().read_behind(kPage, Llsn{70}, {}, page_.get()).ok());
}

TEST_F(StoragePages, AnAnswerThatIsOlderThanWhatIsKnownIsNone) {  // SPS10
  options_.read_timeout_us = 200'000;
  add_node(good(60));
  add_node(failing(error_not_found("never written")));
  EXPECT_TRUE(is_peer_down(source().read_behind(kPage, Llsn{70}, {}, page_.get())));
  EXPECT_GE(calls_.load(), 2);
  EXPECT_TRUE(source().read_behind(kPage, Llsn{}, {}, page_.get()).ok());
}

TEST_F(StoragePages, TheSpacesAreThoseThatEnoughNodesHave) {  // SPS10
  options_.write_quorum = 2;
  options_.read_timeout_us = 300'000;
  add_node(good(60), 0, 7);
  add_node(good(60), 0, 0);  // cannot say
  add_node(good(60), 0, 8);
  const auto spaces = source().list_spaces();
  ASSERT_TRUE(spaces.ok()) << spaces.status();
  EXPECT_EQ(*spaces, (std::vector<SpaceId>{SpaceId{7}, SpaceId{8}}));
  servers_[0].reset();
  EXPECT_TRUE(is_peer_down(source().list_spaces().status()));
}

TEST_F(StoragePages, AsksForWhatItGaveUp) {  // SPS1
  options_.given_up_max = 64 * 2;            // two for each part of the map
  add_node(good(1'000'000));
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(last_.at_least, Llsn{0});
  source().begin_at(Llsn{50});
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(last_.at_least, Llsn{50});
  ASSERT_TRUE(source().write(kPage, page_bytes(kPage, 40).data()).ok());
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(last_.at_least, Llsn{40}) << "exactly known, though it is older than this life";
  ASSERT_TRUE(source().write(kPage, page_bytes(kPage, 90).data()).ok());
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(last_.at_least, Llsn{90});
  // So many others that it is forgotten: the newest of those that were stands in for it.
  for (uint32_t n = 0; n < 2000; ++n) {
    const PageId other{301, n};
    ASSERT_TRUE(source().write(other, page_bytes(other, 100 + n).data()).ok());
  }
  ASSERT_TRUE(read().ok());
  EXPECT_GE(last_.at_least, Llsn{90});
  EXPECT_LT(last_.at_least, Llsn{2100});
}

// Roughly one position of the log for all pages, as in the OpenAurora paper, for experiments.
TEST_F(StoragePages, WithoutExactVersionsAsksForTheNewestOfItsPart) {  // SPS1
  options_.given_up_max = 0;
  add_node(good(1'000'000));
  ASSERT_TRUE(source().write(kPage, page_bytes(kPage, 40).data()).ok());
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(last_.at_least, Llsn{40});
  for (uint32_t n = 0; n < 2000; ++n) {
    const PageId other{301, n};
    ASSERT_TRUE(source().write(other, page_bytes(other, 100 + n).data()).ok());
  }
  ASSERT_TRUE(read().ok());
  EXPECT_GT(last_.at_least, Llsn{100}) << "its own version is 40";
}

TEST_F(StoragePages, TheLogsWriterHearsBeforeANodeIsAsked) {  // SPS6
  std::atomic<int> told{0};
  options_.spread_news = [&told] { ++told; };
  std::atomic<int> told_when_asked{0};
  add_node([&](const PageWanted& wanted) {
    told_when_asked = told.load();
    return PageGot{ok_status(), Llsn{9}, page_bytes(wanted.page, 9)};
  });
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(told_when_asked, 1);
  const PageId ids[] = {kPage, {300, 8}};
  const AlignedBytes pages(2 * kPageBytes, 4096);
  Status results[2];
  source().read_batch(ids, 2, pages.get(), results);
  EXPECT_TRUE(results[1].ok());
  EXPECT_EQ(told_when_asked, 2);
}

TEST_F(StoragePages, PassesOverABadPage) {  // SPS2
  int which = 0;
  add_node([&which](const PageWanted& wanted) {
    PageGot got{ok_status(), Llsn{9}, page_bytes(wanted.page, 9)};
    if (which == 0) got.bytes[5000] ^= 1;
    if (which == 1) got.bytes = page_bytes(PageId{300, 8}, 9);
    if (which == 2) got.bytes = page_bytes(wanted.page, 10);
    return got;
  });
  add_node(good(12));
  for (which = 0; which < 3; ++which) {
    source_.reset();
    const Status done = read();
    ASSERT_TRUE(done.ok()) << done;
    EXPECT_EQ(header_of(page_.get())->llsn, 12u);
    EXPECT_EQ(source().counters().bad_pages, 1u);
  }
}

TEST_F(StoragePages, SaysWhichNodeHasABadPageWhenNoneHasAGoodOne) {
  add_node([](const PageWanted& wanted) {
    return PageGot{ok_status(), Llsn{9}, page_bytes(PageId{1, wanted.page.number}, 9)};
  });
  add_node(failing(error_corruption("stored badly")));
  const Status done = read();
  EXPECT_TRUE(is_corruption(done)) << done;
  EXPECT_EQ(calls_, 2) << "asking again does not mend it";
}

TEST_F(StoragePages, NeverWrittenAndFencedAreAnswers) {
  add_node(failing(error_not_found("never written")));
  add_node(good(3));
  EXPECT_TRUE(is_not_found(read()));
  EXPECT_EQ(calls_, 1);
  source_.reset();
  servers_.clear();
  options_.addresses.clear();
  add_node(failing(error_fenced("taken over")));
  add_node(good(3));
  EXPECT_TRUE(is_fenced(read()));
}

TEST_F(StoragePages, AsksAgainWhatMayPass) {
  int left = 5;
  add_node([&left](const PageWanted& wanted) {
    return left-- > 0 ? PageGot{error_peer_down("behind"), {}, {}} : good(8)(wanted);
  });
  const Status done = read();
  EXPECT_TRUE(done.ok()) << done;
  EXPECT_EQ(calls_, 6);
}

// ER3, ER7. Also a node whose own writing has ended says nothing about this one.
TEST_F(StoragePages, EveryErrorThatMayPassIsAskedAgain) {
  std::vector<Status> errors = {error_busy("queue"), error_timed_out("late"),
                                error_lease_lost("lease"), error_peer_down("down"),
                                error_ended("its disk failed")};
  size_t next = 0;
  add_node([&](const PageWanted& wanted) {
    return next < errors.size() ? PageGot{errors[next++], {}, {}} : good(8)(wanted);
  });
  const Status done = read();
  EXPECT_TRUE(done.ok()) << done;
  EXPECT_EQ(next, errors.size());
}

TEST_F(StoragePages, WhatNoNodeWillDoBetterIsNotAskedAgain) {  // ER3
  for (const Status& error :
       {error_conflict("x"), error_unsupported("x"), error_io_error("x"), error_internal("x")}) {
    source_.reset();
    servers_.clear();
    options_.addresses.clear();
    calls_ = 0;
    add_node(failing(error));
    add_node(failing(error));
    const Status done = read();
    EXPECT_EQ(error_of(done), error_of(error)) << done;
    EXPECT_EQ(calls_, 2) << done;
  }
}

TEST_F(StoragePages, ANodeOfAnotherBuildIsPassedOverAndNamedOnce) {  // SPS11
  static std::atomic<int> told{0};
  told = 0;
  set_diag_sink([](Severity, std::string_view text) {
    if (text.find("cannot be used for pages") != std::string_view::npos) ++told;
  });
  add_node_of_another_build();
  options_.read_timeout_us = 10'000'000;
  const Status alone = read();
  EXPECT_TRUE(is_unsupported(alone)) << alone;
  EXPECT_NE(alone.message().find("get_pages"), std::string::npos) << alone;
  EXPECT_EQ(told, 1);
  source_.reset();
  add_node(good(8));
  told = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(read().ok());
    EXPECT_TRUE(source().list_spaces().ok());
  }
  EXPECT_EQ(told, 1);
  set_diag_sink(nullptr);
}

TEST_F(StoragePages, ANodeThatIsStuckIsAskedForTheSpacesOnce) {
  std::atomic<int> asked{0};
  add_node([&asked](const PageWanted&) {
    ++asked;
    return PageGot{error_peer_down("its log is not replayed so far"), {}, {}};
  });
  add_node(good(3));
  for (int i = 0; i < 3; ++i) {
    const auto spaces = source().list_spaces();
    ASSERT_TRUE(spaces.ok()) << spaces.status();
    EXPECT_EQ(*spaces, std::vector<SpaceId>{SpaceId{7}});
  }
  EXPECT_EQ(asked, 1);
}

// A node whose log is damaged has the page from a peer, and a list without the newest spaces.
TEST_F(StoragePages, AnOldListOfSpacesIsNotTaken) {  // SPS7
  add_node(good(60), 49);
  add_node(good(60), 50);
  source().begin_at(Llsn{50});
  const auto spaces = source().list_spaces();
  ASSERT_TRUE(spaces.ok()) << spaces.status();
  EXPECT_EQ(lists_, 2);
  EXPECT_TRUE(source().space_exists(SpaceId{7}).value_or(false));
  EXPECT_EQ(lists_, 3) << "the node that had it is asked first";
}

TEST_F(StoragePages, NoListIsBetterThanAnOldOne) {  // SPS7
  options_.read_timeout_us = 100'000;
  add_node(good(60), 49);
  source().begin_at(Llsn{50});
  const Status status = source().list_spaces().status();
  EXPECT_TRUE(is_peer_down(status));
  EXPECT_NE(status.message().find("knows the spaces as of llsn 49"), std::string_view::npos)
      << status;
}

TEST_F(StoragePages, OneCallBringsABatch) {
  add_node([](const PageWanted& wanted) {
    if (wanted.page.number == 2) return PageGot{error_not_found("never written"), {}, {}};
    if (wanted.page.number == 5) return PageGot{ok_status(), Llsn{9}, page_bytes(kPage, 9)};
    return PageGot{ok_status(), wanted.at_least, page_bytes(wanted.page, wanted.at_least.value)};
  });
  source().begin_at(Llsn{50});
  const PageId changed{300, 3};
  ASSERT_TRUE(source().write(changed, page_bytes(changed, 70).data()).ok());
  std::vector<PageId> ids;
  for (uint32_t n = 0; n < kReadBatchPages; ++n) ids.push_back({300, n});
  const AlignedBytes pages(kReadBatchPages * kPageBytes, 4096);
  std::vector<Status> results(ids.size());
  source().read_batch(ids.data(), kReadBatchPages, pages.get(), results.data());
  EXPECT_EQ(calls_, 1);
  for (const PageId id : ids) {
    const Status& result = results[id.number];
    if (id.number == 2) {
      EXPECT_TRUE(is_not_found(result));
    } else if (id.number == 5) {
      EXPECT_TRUE(is_corruption(result)) << result;  // SPS2: another page's bytes
    } else {
      ASSERT_TRUE(result.ok()) << result;
      const char* page = pages.get() + id.number * kPageBytes;
      EXPECT_TRUE(verify_page(page, id).ok());
      EXPECT_EQ(header_of(page)->llsn, id == changed ? 70u : 50u);  // SPS1
    }
  }
  EXPECT_EQ(source().counters().read_ahead, kReadBatchPages);
}

TEST_F(StoragePages, ABatchThatFailsIsLeftToWhoNeedsIt) {
  add_node(failing(error_peer_down("behind")));
  add_node(good(3));
  const PageId ids[] = {{300, 1}, {300, 2}};
  const AlignedBytes pages(2 * kPageBytes, 4096);
  Status results[2];
  source().read_batch(ids, 2, pages.get(), results);
  EXPECT_TRUE(is_peer_down(results[0]) && is_peer_down(results[1]));
  EXPECT_EQ(calls_, 1) << "nobody waits for it";
  EXPECT_TRUE(read(ids[1]).ok());
}

// A node that answers when the test says so.
class HeldBack : public StoragePages {
 protected:
  HeldBack() {
    options_.world = io_.world();
    add_node(good(9));
    servers_.clear();  // the address stays
    server_ = std::make_unique<transport::RpcServer>(io_.world(), secret_of('s'),
                                                     transport::ServerOptions{});
    proto::serve(server_.get(), proto::kGetPages,
                 [this](const transport::Request& call, transport::Responder responder) {
                   const MutexLock lock(mutex_);
                   held_.emplace_back(*proto::decode_get_pages(call.payload), std::move(responder));
                 });
    EXPECT_TRUE(server_->listen(options_.addresses[0].now()).ok());
  }
  struct Batch {
    explicit Batch(uint32_t first) : ids{{300, first}, {300, first + 1}} {}
    PageId ids[2];
    AlignedBytes pages{2 * kPageBytes, 4096};
    Status results[2];
    std::atomic<int> ended{0};
  };
  void begin(Batch* batch) {
    source().start_read_batch(batch->ids, 2, batch->pages.get(), batch->results,
                              [batch] { ++batch->ended; });
  }
  [[nodiscard]] size_t held() {
    const MutexLock lock(mutex_);
    return held_.size();
  }
  // The first page of those that are asked for has an error, if there is one.
  void answer(size_t n, const Status& error = ok_status()) {
    std::optional<transport::Responder> responder;
    proto::GetPagesReply reply;
    {
      const MutexLock lock(mutex_);
      for (const PageWanted& wanted : held_[n].first.pages)
        reply.pages.push_back(reply.pages.empty() && !error.ok() ? PageGot{error, {}, {}}
                                                                 : good(9)(wanted));
      responder = std::move(held_[n].second);
    }
    responder->reply(proto::encode(reply));
  }

  std::unique_ptr<transport::RpcServer> server_;
  Mutex mutex_{LatchRank::kLeaf};
  std::vector<std::pair<proto::GetPagesRequest, transport::Responder>> held_
      STRATA_GUARDED_BY(mutex_);
};

TEST_F(HeldBack, BatchesEndFromTheirRepliesInAnyOrder) {  // SPS9
  Batch first(10), second(20), third(30);
  for (Batch* batch : {&first, &second, &third}) begin(batch);  // by one thread
  ASSERT_TRUE(strata::testing::wait_until([this] { return held() == 3; }));
  EXPECT_EQ(first.ended + second.ended + third.ended, 0);
  answer(2);
  ASSERT_TRUE(strata::testing::wait_until([&] { return third.ended == 1; }));
  answer(0, error_not_found("never written"));
  answer(1);
  ASSERT_TRUE(strata::testing::wait_until([&] { return first.ended + second.ended == 2; }));
  EXPECT_TRUE(is_not_found(first.results[0])) << first.results[0];
  for (const Status& status :
       {first.results[1], second.results[0], second.results[1], third.results[0], third.results[1]})
    EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(verify_page(second.pages.get() + kPageBytes, second.ids[1]).ok());
  EXPECT_EQ(source().counters().read_ahead, 6u);
}

// SPS9: nobody answers any more, the node has lost its place, or the time is over.
TEST_F(HeldBack, ABatchEndsWhateverBecomesOfItsNode) {
  options_.keys = {"s1"};
  options_.read_ahead_wait_us = 1000;
  Batch lost(10), late(20);
  begin(&lost);
  begin(&late);
  ASSERT_TRUE(strata::testing::wait_until([this] { return held() == 2; }));
  source().follow(ReplicaSet{2, 1, {{"s2", options_.addresses[0]}}});
  answer(0);
  ASSERT_TRUE(strata::testing::wait_until([&] { return lost.ended == 1; }));
  EXPECT_TRUE(lost.results[0].ok()) << "it was asked in time";
  ASSERT_TRUE(strata::testing::wait_until([&] { return late.ended == 1; }));
  EXPECT_TRUE(may_pass(late.results[0])) << late.results[0];
  server_.reset();
  Batch nobody(30);
  begin(&nobody);
  ASSERT_TRUE(strata::testing::wait_until([&] { return nobody.ended == 1; }));
  EXPECT_TRUE(may_pass(nobody.results[1])) << nobody.results[1];
}

TEST_F(StoragePages, RepliesTellTheGateHowFarNodesAreBehind) {
  options_.gate = std::make_shared<BacklogGate>(2, 1, 5);  // the replies here say 5
  add_node(good(3));
  add_node(good(3));
  ASSERT_TRUE(read().ok());
  EXPECT_FALSE(options_.gate->closed()) << "of the other node nothing is known";
  source().ask_backlogs();
  EXPECT_TRUE(options_.gate->closed());
}

TEST_F(StoragePages, EndsByItsTimeout) {  // SPS4
  options_.read_timeout_us = 200'000;
  add_node(failing(error_peer_down("behind")));
  options_.addresses.push_back("unix:" + (folder_ / "nobody"));
  const uint64_t begin = monotonic_us();
  EXPECT_TRUE(is_peer_down(read()));
  EXPECT_GE(monotonic_us() - begin, 200'000u);
  EXPECT_LT(calls_, 50) << "with pauses";
  EXPECT_TRUE(is_peer_down(source().list_spaces().status()));
}

TEST_F(StoragePages, ANodeThatGetsOnIsWaitedForBeyondTheTimeout) {  // SPS4
  options_.read_timeout_us = 100'000;
  backlog_ = 1000;
  std::atomic<uint64_t> began_us{0};
  add_node([&](const PageWanted& wanted) {
    if (began_us == 0) began_us = monotonic_us();
    if (monotonic_us() - began_us > 400'000) return good(8)(wanted);
    --backlog_;
    return PageGot{error_peer_down("behind"), {}, {}};
  });
  const Status done = read();
  EXPECT_TRUE(done.ok()) << done;
}

TEST_F(StoragePages, OfSeveralServersOneThatGoesOnScanningIsWaitedForForAWhile) {  // SPS4
  options_.read_timeout_us = 100'000;
  options_.write_quorum = 1;
  std::atomic<uint64_t> began_us{0};
  std::atomic<bool> scans{true}, comes{true};
  add_node([&](const PageWanted& wanted) {
    if (began_us == 0) began_us = monotonic_us();
    if (comes && monotonic_us() - began_us > 250'000) return good(8)(wanted);
    ++backlog_;  // others go on writing
    if (scans) ++scanned_;
    return PageGot{error_peer_down("behind"), {}, {}};
  });
  const Status done = read();
  EXPECT_TRUE(done.ok()) << done;
  comes = false;
  uint64_t begin_us = monotonic_us();
  EXPECT_TRUE(is_peer_down(read())) << "for ever";
  EXPECT_GE(monotonic_us() - begin_us, 300'000u);
  scans = false;
  begin_us = monotonic_us();
  EXPECT_TRUE(is_peer_down(read()));
  EXPECT_GE(monotonic_us() - begin_us, 100'000u);
}

TEST_F(StoragePages, OneThatIsNotSoFarIsAskedAgainForNoMore) {  // SPS10
  options_.write_quorum = 1;
  int asked = 0;
  spaces_ = [&](const proto::ListSpacesRequest& request) {
    EXPECT_EQ(request.scanned_to.size(), ++asked > 1 ? 1u : 0u);
    proto::ListSpacesReply reply;
    reply.scanned_bytes = static_cast<uint64_t>(asked);
    if (asked < 4) {
      reply.waits_for = {{StreamId{1}, Lsn{500}}};
    } else {
      EXPECT_EQ(request.scanned_to[0], (proto::Position{StreamId{1}, Lsn{500}}));
      reply.spaces = {SpaceId{9}};
    }
    return reply;
  };
  add_node(good(3));
  const auto spaces = source().list_spaces();
  ASSERT_TRUE(spaces.ok()) << spaces.status();
  EXPECT_EQ(*spaces, std::vector<SpaceId>{SpaceId{9}});
  EXPECT_EQ(asked, 4);
}

TEST_F(StoragePages, EndsWhenStopped) {  // SPS4
  options_.read_timeout_us = 600'000'000;
  add_node(failing(error_peer_down("behind")));
  StoragePageSource& pages = source();  // made before the threads share it
  std::thread reader([this] { EXPECT_TRUE(is_peer_down(read())); });
  pages.stop();
  reader.join();
}

TEST_F(StoragePages, EndsWhenInterrupted) {
  options_.read_timeout_us = 600'000'000;
  add_node(failing(error_peer_down("behind")));
  StoragePageSource& pages = source();
  WaitInterrupt interrupt;
  std::thread reader([&] {
    const InterruptScope scope(&interrupt);
    EXPECT_TRUE(is_interrupted(read()));
    EXPECT_TRUE(is_interrupted(pages.list_spaces().status()));
  });
  EXPECT_TRUE(strata::testing::wait_until([this] { return calls_ > 3; }));
  interrupt.interrupt();
  reader.join();
}

TEST_F(StoragePages, FollowsThePlacement) {  // SPS5
  std::atomic<int> old_asked{0};
  add_node([&](const PageWanted& wanted) {
    ++old_asked;
    return good(1)(wanted);
  });
  add_node(good(2));
  add_node(good(3));
  const std::vector<transport::Address> all = std::exchange(options_.addresses, {});
  options_.addresses = {all[0], all[1]};
  options_.keys = {"s1", "s2"};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(old_asked, 1);
  ReplicaSet next{2, 2, {{"s4", all[2]}, {"s2", all[1]}}};
  source().follow(next);
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(header_of(page_.get())->llsn, 2u) << "a new node is not asked first";
  next = {1, 2, {{"s1", all[0]}, {"s2", all[1]}}};  // an older one
  source().follow(next);
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(old_asked, 1);
  next = {3, 2, {{"s4", all[2]}, {"s2", all[1]}, {"s5", all[0]}}};
  source().follow(next);
  source().ask_backlogs();
  EXPECT_EQ(old_asked, 2);
}

// SPS5: the one that is preferred is taken out.
TEST_F(StoragePages, ANodeThatWasTakenOutIsNotAsked) {
  std::atomic<int> gone_asked{0};
  add_node([&](const PageWanted& wanted) {
    ++gone_asked;
    return good(1)(wanted);
  });
  add_node(good(2));
  add_node(good(3));
  options_.keys = {"s1", "s2", "s3"};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(gone_asked, 1);
  const ReplicaSet next{2, 2, {{"s2", options_.addresses[1]}, {"s3", options_.addresses[2]}}};
  source().follow(next);
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(header_of(page_.get())->llsn, 2u);
  source().ask_backlogs();
  EXPECT_EQ(gone_asked, 1);
}

}  // namespace
}  // namespace strata::clients
