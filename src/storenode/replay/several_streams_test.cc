// What a page store promises whose pages are changed by several servers, each in a stream of its
// own: streams that come while it serves, requests of those who do not know which llsn a page has,
// changes that another stream still has to bring.
#include <gtest/gtest.h>

#include "storenode/replay/testing/test_store.h"

namespace strata::storenode {
namespace {

using testing::TestStore;

constexpr PageId kPage{300, 2};
constexpr uint64_t kLate = 20'000'000;

class SeveralStreams : public ::testing::Test {
 protected:
  SeveralStreams() : rng_(1), test_(ReplayMode::kSmart) {
    test_.let_streams_come_late();
    test_.add_log();
    test_.add_log();
    test_.open();
    test_.add_stream(0);
  }
  // Server `at` changes the page after whoever changed it last. Durable.
  Llsn change(size_t at, PageId page = kPage) {
    testing::MemoryLog& log = test_.log(at);
    const Llsn llsn = test_.writer().write_to(&log, static_cast<uint8_t>(at + 1),
                                              {{page, test_.writer().next_ops(&rng_, page)}});
    log.make_durable(log.end());
    return llsn;
  }
  GetPageRequest::Position end_of(size_t at) {
    return {StreamId{static_cast<uint32_t>(at) + 1}, test_.log(at).end()};
  }
  TestStore::Answer ask_newest(std::vector<GetPageRequest::Position> positions,
                               uint64_t deadline_us = UINT64_MAX) {
    return test_.ask(kPage, kNewestState, kNewestState, deadline_us, std::move(positions));
  }
  void scan_and_serve() {
    test_.scan_all();
    test_.serve_all();
  }
  Rng rng_;
  TestStore test_;
};

TEST_F(SeveralStreams, TheNewestStateIsThatAfterAllPositionsNamed) {  // GP3
  change(0);
  test_.scan_all();
  const Llsn second = change(1);
  const auto answer = ask_newest({end_of(0), end_of(1)});
  EXPECT_FALSE(answer->has_value());  // the second stream is not even known
  test_.add_stream(1);
  EXPECT_FALSE(answer->has_value());
  scan_and_serve();
  ASSERT_TRUE(answer->has_value());
  EXPECT_TRUE(test_.is_right(**answer, kPage, second)) << (*answer)->status();
}

TEST_F(SeveralStreams, WhoNamesNoPositionsGetsWhatIsKnown) {
  const auto none = ask_newest({});
  ASSERT_TRUE(none->has_value());
  EXPECT_TRUE(is_not_found((*none)->status())) << (*none)->status();
  const Llsn first = change(0);
  test_.scan_all();
  const auto answer = ask_newest({});
  ASSERT_TRUE(answer->has_value());
  EXPECT_TRUE(test_.is_right(**answer, kPage, first)) << (*answer)->status();
}

// As many times as streams could be mistaken for another, and over a restart in between.
TEST_F(SeveralStreams, AChangeIsWaitedForWhoseStreamIsNotKnownYet) {  // K8
  change(0);
  change(2);
  const Llsn last = change(0);
  test_.scan_all();
  test_.replay_all();
  const auto early = ask_newest({end_of(0)}, 0);
  ASSERT_TRUE(early->has_value());
  EXPECT_TRUE(is_peer_down((*early)->status())) << (*early)->status();
  EXPECT_EQ(test_.store().counters().pages_broken.load(), 0u);
  ASSERT_TRUE(test_.store().checkpoint().ok());
  test_.crash(1);
  test_.open();  // with the third stream, whose log is there
  ASSERT_TRUE(test_.has_stream(2));
  test_.scan_all();
  test_.replay_all();
  const auto answer = ask_newest({end_of(0)}, 0);
  ASSERT_TRUE(answer->has_value());
  EXPECT_TRUE(test_.is_right(**answer, kPage, last)) << (*answer)->status();
  EXPECT_EQ(test_.store().backlog_bytes(), 0u);
}

TEST_F(SeveralStreams, NothingOfAStreamIsCutOffBeforeItIsKnown) {  // RP4
  change(0);
  change(1);
  test_.scan_all();
  test_.replay_all();
  ASSERT_TRUE(test_.store().checkpoint().ok());
  EXPECT_EQ(test_.store().needed_from(StreamId{1}), test_.log(0).end());
  EXPECT_EQ(test_.store().needed_from(StreamId{2}), Lsn{});
  test_.add_stream(1);
  EXPECT_EQ(test_.store().needed_from(StreamId{2}), Lsn{testing::MemoryLog::kBegin});
  test_.scan_all();
  test_.replay_all();
  ASSERT_TRUE(test_.store().checkpoint().ok());
  EXPECT_EQ(test_.store().needed_from(StreamId{2}), test_.log(1).end());
}

TEST_F(SeveralStreams, StreamsThatWereReplayedAreKnownAfterARestart) {
  change(0);
  change(1);
  test_.add_stream(1);
  test_.scan_all();
  test_.replay_all();
  ASSERT_TRUE(test_.store().checkpoint().ok());
  test_.close();
  test_.open();
  const auto known = test_.store().known_streams();
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(*known, (std::vector<StreamId>{StreamId{1}, StreamId{2}}));
}

// A peer may know less of the streams than this node does.
TEST_F(SeveralStreams, OfADamagedPageAPeersOlderVersionIsNoAnswer) {  // RP6
  const Llsn old = change(0);
  test_.scan_all();
  const auto older = test_.get_now(kPage, old);
  ASSERT_TRUE(older.ok()) << older.status();
  const Lsn damaged = test_.log(0).end();
  const Llsn llsn = change(0);
  std::vector<GetPageRequest> asked;
  std::optional<PageAnswer> peers = *older;
  test_.close();
  test_.options().ask_peers = [&](const GetPageRequest& request, GetPageDone done) {
    asked.push_back(request);
    done(*peers);
  };
  test_.options().log_cache_bytes = 0;
  test_.open();
  test_.scan_all();
  test_.log(0).make_unreadable(damaged, test_.log(0).end());
  test_.store().forget_caches();
  const auto refused = ask_newest({end_of(0)}, 0);
  ASSERT_TRUE(refused->has_value());
  EXPECT_TRUE(is_corruption((*refused)->status())) << (*refused)->status();
  ASSERT_FALSE(asked.empty());
  for (const GetPageRequest& request : asked) EXPECT_EQ(request.at_least, llsn);
  auto good = std::make_shared<PageBuffer>();
  std::memcpy(good->bytes, test_.writer().at(kPage, llsn)->data(), kPageBytes);
  seal_page(good->bytes);
  peers = PageAnswer{good, llsn};
  const auto answer = ask_newest({end_of(0)}, 0);
  ASSERT_TRUE(answer->has_value());
  EXPECT_TRUE(test_.is_right(**answer, kPage, llsn)) << (*answer)->status();
}

TEST_F(SeveralStreams, AStreamComesWhileThreadsServe) {
  test_.close();
  test_.options().now_us = monotonic_us;
  test_.options().scan_delay_us = 10'000'000;  // who waits for a scan has it at once
  test_.open();
  test_.store().start();
  for (int i = 0; i < 50; ++i) {
    const size_t at = static_cast<size_t>(i) % 3;
    const Llsn llsn = change(at);
    if (i >= 6) test_.add_stream(at);
    if (i < 9) continue;
    GetPageRequest request;
    request.page = kPage;
    request.at_least = kNewestState;
    request.scanned_to = {end_of(0), end_of(1), end_of(2)};
    request.deadline_us = monotonic_us() + kLate;
    const auto answer = test_.store().get_page(request);
    ASSERT_TRUE(test_.is_right(answer, kPage, llsn)) << answer.status();
  }
  test_.store().stop();
}

}  // namespace
}  // namespace strata::storenode
