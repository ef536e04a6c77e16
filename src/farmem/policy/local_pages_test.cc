// Goal: each policy gives up the pages it says, in the order it says, and never holds more than its
// frames (FM1-FM3); parsing refuses what is no policy. Method: a few pages by hand.
#include "farmem/policy/local_pages.h"

#include <gtest/gtest.h>

#include "farmem/policy/replay.h"

namespace strata::farmem {
namespace {

std::vector<uint64_t> pages_of(const std::vector<Framed>& list) {
  std::vector<uint64_t> pages;
  for (const Framed& framed : list) pages.push_back(framed.page);
  return pages;
}

PolicyOptions options_of(std::string_view policy, uint32_t frames, uint32_t prefetch = 0) {
  PolicyOptions options{.frames = frames, .prefetch = prefetch};
  EXPECT_TRUE(parse_policy(policy, &options).ok());
  return options;
}

TEST(PolicyOptions, ParsesAndNames) {
  for (const char* const text : {"fifo", "second-chance", "assoc:1", "assoc:8192"})
    EXPECT_EQ(policy_name(options_of(text, 64)), text);
  PolicyOptions options;
  for (const char* const text : {"", "lru", "assoc:", "assoc:0", "assoc:x", "assoc:2x", "fifo "})
    EXPECT_TRUE(is_invalid_argument(parse_policy(text, &options))) << text;
}

TEST(PolicyOptions, RefusesNumbersThatDoNotFit) {
  EXPECT_FALSE(check_policy(options_of("fifo", kFramesMin - 1)).ok());
  EXPECT_TRUE(check_policy(options_of("fifo", kFramesMin)).ok());
  EXPECT_FALSE(check_policy(options_of("assoc:256", 128)).ok());
  EXPECT_FALSE(check_policy(options_of("fifo", 64, kPrefetchMax + 1)).ok());
  EXPECT_FALSE(LocalPages::make(options_of("fifo", 64), 0).ok());
}

TEST(LocalPages, FifoGivesUpWhoCameFirst) {
  const auto local = *LocalPages::make(options_of("fifo", 32), 100);  // 28 mapped, 4 staged
  Moves moves;
  for (uint64_t page = 0; page < 28; page++) local->bring(page, &moves);
  EXPECT_TRUE(moves.stage.empty());
  for (uint64_t page = 28; page < 32; page++) {
    moves.clear();
    local->bring(page, &moves);
    EXPECT_EQ(pages_of(moves.stage), std::vector<uint64_t>{page - 28});
    EXPECT_TRUE(moves.evict.empty());
  }
  moves.clear();
  local->bring(32, &moves);
  EXPECT_EQ(pages_of(moves.evict), (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(pages_of(moves.stage), std::vector<uint64_t>{4});
  EXPECT_EQ(local->place(0), Place::kAway);
  EXPECT_EQ(local->place(2), Place::kStaged);
}

TEST(LocalPages, AStagedPageComesBackAsTheNewest) {
  const auto local = *LocalPages::make(options_of("second-chance", 32), 100);  // 24 + 8
  Moves moves;
  for (uint64_t page = 0; page < 25; page++) local->bring(page, &moves);
  ASSERT_EQ(local->place(0), Place::kStaged);
  moves.clear();
  local->bring(0, &moves);
  EXPECT_TRUE(moves.evict.empty());
  EXPECT_EQ(pages_of(moves.stage), std::vector<uint64_t>{1});
  for (uint64_t page = 25; page < 25 + 22; page++) local->bring(page, &moves);
  EXPECT_EQ(local->place(0), Place::kMapped);  // 2..24 went before it
  local->bring(50, &moves);
  local->bring(51, &moves);
  EXPECT_EQ(local->place(0), Place::kStaged);
}

TEST(LocalPages, TidyLeavesRoomForTheNextStagedPage) {
  const auto local = *LocalPages::make(options_of("fifo", 32), 100);  // 28 mapped, 4 staged
  Moves moves;
  for (uint64_t page = 0; page < 31; page++) local->bring(page, &moves);
  moves.clear();
  local->tidy(&moves);
  EXPECT_TRUE(moves.evict.empty());
  local->bring(31, &moves);
  moves.clear();
  local->tidy(&moves);
  EXPECT_EQ(pages_of(moves.evict), (std::vector<uint64_t>{0, 1}));
  moves.clear();
  local->bring(32, &moves);
  EXPECT_TRUE(moves.evict.empty());
}

TEST(LocalPages, AFrameIsOnePagesUntilItLeaves) {
  const auto local = *LocalPages::make(options_of("fifo", 32), 100);
  Moves moves;
  for (uint64_t page = 0; page < 28; page++) local->bring(page, &moves);
  const uint32_t frame = local->frame(0);
  local->bring(28, &moves);
  EXPECT_EQ(moves.stage, (std::vector<Framed>{{0, frame}}));
  EXPECT_EQ(local->frame(0), frame);
  moves.clear();
  local->bring(0, &moves);
  EXPECT_EQ(local->frame(0), frame);
}

TEST(LocalPages, OneWayPutsOutTheOtherPageOfItsPlace) {
  const auto local = *LocalPages::make(options_of("assoc:1", 32), 100);  // 28 sets
  Moves moves;
  local->bring(3, &moves);
  local->bring(4, &moves);
  local->bring(3 + 28, &moves);
  EXPECT_EQ(pages_of(moves.stage), std::vector<uint64_t>{3});
  EXPECT_EQ(local->place(4), Place::kMapped);
}

TEST(LocalPages, AForgottenPageLeavesItsFrame) {
  const auto local = *LocalPages::make(options_of("fifo", 32), 100);
  Moves moves;
  for (uint64_t page = 0; page < 30; page++) local->bring(page, &moves);
  local->forget(0);  // staged
  local->forget(20);
  local->forget(77);  // away
  EXPECT_EQ(local->mapped() + local->staged(), 28u);
  moves.clear();
  local->bring(40, &moves);
  EXPECT_TRUE(moves.stage.empty());
}

TEST(Replay, CleanPagesAreDroppedWithoutAWrite) {
  std::vector<Access> trace;
  for (uint64_t page = 0; page < 64; page++) trace.push_back({page, Change::kWritten});
  for (int round = 0; round < 3; round++)
    for (uint64_t page = 0; page < 64; page++) trace.push_back({page});
  const PageCounts counts = *replay(trace, options_of("fifo", 32), 64);
  EXPECT_EQ(counts.faults, 4u * 64);  // a sweep over more than there is room for never hits
  EXPECT_EQ(counts.zero_filled, 64u);
  EXPECT_EQ(counts.fetched, 3u * 64);
  EXPECT_EQ(counts.evicted_dirty, 64u);
  EXPECT_GT(counts.evicted_clean, 64u);
}

TEST(Replay, PrefetchTradesFaultsForPages) {
  std::vector<Access> trace;
  for (int round = 0; round < 2; round++)
    for (uint64_t page = 0; page < 640; page++)
      trace.push_back({page, round == 0 ? Change::kWritten : Change::kNone});
  const PageCounts alone = *replay(trace, options_of("fifo", 64), 640);
  const PageCounts along = *replay(trace, options_of("fifo", 64, 7), 640);
  EXPECT_EQ(alone.fetched, 640u);
  EXPECT_EQ(along.fetched, 80u);
  EXPECT_EQ(along.prefetched, 560u);
}

TEST(Replay, PagesOfZerosAndDiscardedOnesAreNew) {
  std::vector<Access> trace;
  for (uint64_t page = 0; page < 64; page++) trace.push_back({page, Change::kWritten});
  trace.push_back({.page = 0, .event = Event::kDiscard, .pages = 16});
  for (uint64_t page = 0; page < 64; page++)  // 16 new ones, then 48 from far memory
    trace.push_back({page, page < 32 ? Change::kCleared : Change::kNone});
  for (uint64_t page = 0; page < 64; page++) trace.push_back({page});
  const PageCounts counts = *replay(trace, options_of("fifo", 32), 64);
  EXPECT_EQ(counts.faults, 3u * 64);
  EXPECT_EQ(counts.zero_filled, 64u + 16 + 32);
  EXPECT_EQ(counts.fetched, 48u + 32);
  EXPECT_GE(counts.evicted_zero, 32u);
}

TEST(Replay, AChangeWithoutATouchCountsWhereThePageIs) {
  std::vector<Access> trace;
  for (uint64_t page = 0; page < 64; page++) trace.push_back({page, Change::kWritten});
  const PageCounts before = *replay(trace, options_of("fifo", 32), 64);
  trace.push_back({.page = 0, .change = Change::kWritten, .event = Event::kChange});  // is away
  trace.push_back({.page = 63, .change = Change::kCleared, .event = Event::kChange});
  EXPECT_EQ(*replay(trace, options_of("fifo", 32), 64), before);
  for (uint64_t page = 0; page < 60; page++) trace.push_back({page});
  EXPECT_EQ(replay(trace, options_of("fifo", 32), 64)->evicted_zero, 1u);
}

// The pager tidies up when nobody waits: what leaves then, and not a moment before, is counted.
TEST(Replay, PagesStayWhileThreadsWait) {
  std::vector<Access> trace;
  for (uint64_t page = 0; page < 32; page++)
    trace.push_back({.page = page, .change = Change::kWritten, .quiet = false});
  EXPECT_EQ(replay(trace, options_of("fifo", 32), 64)->evicted_dirty, 0u);
  trace.back().quiet = true;
  EXPECT_EQ(replay(trace, options_of("fifo", 32), 64)->evicted_dirty, 2u);
}

TEST(Replay, RefusesPagesThatAreNotThere) {
  const std::vector<Access> trace{{.page = 64}};
  EXPECT_TRUE(is_out_of_range(replay(trace, options_of("fifo", 32), 64).status()));
  const std::vector<Access> discard{{.page = 60, .event = Event::kDiscard, .pages = 5}};
  EXPECT_TRUE(is_out_of_range(replay(discard, options_of("fifo", 32), 64).status()));
}

}  // namespace
}  // namespace strata::farmem
