// The promises of the page store, one by one, and what tells each replay mode from the one below
// it.
#include "storenode/replay/page_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/testing/wait_until.h"
#include "storenode/replay/testing/test_store.h"

namespace strata::storenode {
namespace {

using strata::testing::wait_until;
using testing::kStream;
using testing::LogWriter;
using testing::MemoryLog;
using testing::TestStore;

constexpr PageId kPage{300, 1};
constexpr PageId kOther{300, 3};
constexpr Llsn kAny{UINT64_MAX};
constexpr ReplayMode kModes[] = {ReplayMode::kSingle, ReplayMode::kEager, ReplayMode::kFiltered,
                                 ReplayMode::kSmart};

class EveryMode : public ::testing::TestWithParam<ReplayMode> {
 protected:
  EveryMode() : rng_(1), test_(GetParam()) { test_.open(); }
  void catch_up() {
    test_.scan_all();
    test_.replay_all();
  }
  Rng rng_;
  TestStore test_;
};
INSTANTIATE_TEST_SUITE_P(Modes, EveryMode, ::testing::ValuesIn(kModes));

TEST_P(EveryMode, ServesTheNewestPageAndSaysWhichOneItIs) {
  Llsn last;
  for (int i = 0; i < 20; ++i) last = test_.write(&rng_, {kPage, kOther});
  catch_up();
  const auto answer = test_.get_now(kPage, last, kAny);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->llsn, last);
  EXPECT_TRUE(test_.is_right(answer, kPage, last));
  EXPECT_TRUE(is_not_found(test_.get_now({300, 99}, last, kAny).status()));
  EXPECT_TRUE(is_invalid_argument(test_.get_now(kPage, last, Llsn{1}).status()));
}

TEST_P(EveryMode, NothingBeyondTheDurableLsnIsServed) {  // RP1
  const Llsn durable = test_.write(&rng_, {kPage});
  const std::string ops = test_.writer().change_ops(&rng_, kPage);
  const Llsn later = test_.writer().write({{kPage, ops}});
  test_.log().make_durable(Lsn{test_.log().end().value - 1});  // all but its last byte
  catch_up();
  EXPECT_EQ(test_.get_now(kPage, durable, kAny)->llsn, durable);
  EXPECT_TRUE(is_peer_down(test_.get_now(kPage, later, kAny).status()));
  test_.log().make_durable(test_.log().end());
  catch_up();
  EXPECT_EQ(test_.get_now(kPage, later, kAny)->llsn, later);
}

TEST_P(EveryMode, ARequestWaitsForTheLogAndItsDeadlineEndsTheWait) {
  test_.write(&rng_, {kPage});
  catch_up();
  const std::string ops = test_.writer().change_ops(&rng_, kPage);
  const Llsn later = test_.writer().write({{kPage, ops}});
  const auto patient = test_.ask(kPage, later, kAny);
  const auto hurried = test_.ask(kPage, later, kAny, test_.now() + 100);
  EXPECT_FALSE(patient->has_value());
  EXPECT_FALSE(hurried->has_value());
  test_.pass_time(100);
  test_.store().expire_requests();
  ASSERT_TRUE(hurried->has_value());
  EXPECT_TRUE(is_peer_down((*hurried)->status()));
  EXPECT_FALSE(patient->has_value());
  test_.log().make_durable(test_.log().end());
  catch_up();
  test_.serve_all();
  ASSERT_TRUE(patient->has_value());
  EXPECT_TRUE(test_.is_right(**patient, kPage, later));
  EXPECT_EQ(test_.store().counters().timed_out.load(), 1u);
}

// A page in memory is answered by whoever asks; nothing else is: neither what is not known yet, nor
// what must be read, nor errors.
TEST_P(EveryMode, APageInMemoryIsAtHand) {
  const auto at_hand = [this](PageId page, Llsn at_least, Llsn at_most = kAny) {
    GetPageRequest request;
    request.page = page;
    request.at_least = at_least;
    request.at_most = at_most;
    return test_.store().page_at_hand(request);
  };
  Llsn last;
  for (int i = 0; i < 20; ++i) last = test_.write(&rng_, {kPage});
  EXPECT_FALSE(at_hand(kPage, last).has_value());  // not scanned
  catch_up();
  ASSERT_TRUE(test_.get_now(kPage, last, kAny).ok());  // brings it in
  const auto found = at_hand(kPage, last);
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(test_.is_right(found->page, kPage, last));
  EXPECT_EQ(found->progress.backlog_bytes, test_.store().backlog_bytes());
  EXPECT_EQ(found->progress.scan_lag_bytes, 0u);
  EXPECT_GT(found->progress.scanned_bytes, 0u);
  EXPECT_EQ(test_.store().counters().at_hand.load(), 1u);
  ASSERT_TRUE(test_.store().checkpoint().ok());
  EXPECT_FALSE(at_hand(kPage, Llsn{last.value + 1}).has_value());  // beyond the log
  EXPECT_FALSE(at_hand({300, 99}, last).has_value());              // never written
  EXPECT_FALSE(at_hand(kPage, last, Llsn{1}).has_value());         // an empty range
  test_.close();
  test_.open();
  catch_up();
  EXPECT_FALSE(at_hand(kPage, last).has_value());  // stored, and not in memory
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, last, kAny), kPage, last));
  EXPECT_TRUE(at_hand(kPage, last).has_value());
  EXPECT_EQ(test_.store().counters().at_hand.load(), 1u);  // of this life
}

TEST(VersionsAtHand, AreThoseAsOfTheLlsnAskedFor) {
  for (const ReplayMode mode : {ReplayMode::kEager, ReplayMode::kFiltered, ReplayMode::kSmart}) {
    Rng rng(2);
    TestStore test(mode, /*every=*/true);
    test.open();
    std::vector<Llsn> written;
    for (int i = 0; i < 8; ++i) written.push_back(test.write_next(&rng, {kPage}));
    test.scan_all();
    test.replay_all();
    for (const Llsn llsn : written) {
      ASSERT_TRUE(test.get_now(kPage, llsn).ok());
      GetPageRequest request;
      request.page = kPage;
      request.at_least = request.at_most = llsn;
      const auto found = test.store().page_at_hand(request);
      ASSERT_TRUE(found.has_value()) << llsn.value;
      EXPECT_TRUE(test.is_right(found->page, kPage, llsn));
    }
  }
}

TEST_P(EveryMode, GoesOnAtItsMarksAfterAPowerLoss) {  // RP3, RP4
  Llsn last;
  for (int i = 0; i < 30; ++i) last = test_.write(&rng_, {kPage});
  catch_up();
  ASSERT_TRUE(test_.store().checkpoint().ok());
  const Lsn needed = test_.store().needed_from(kStream);
  EXPECT_EQ(needed, test_.log().end());
  for (int i = 0; i < 30; ++i) last = test_.write(&rng_, {kPage, kOther});
  catch_up();
  EXPECT_EQ(test_.store().needed_from(kStream), needed);  // nothing of that is durable
  test_.log().cut_front(needed);
  test_.crash(3);
  test_.open();
  catch_up();
  EXPECT_EQ(test_.store().counters().groups_scanned.load(), 30u);
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, last, kAny), kPage, last));
  EXPECT_TRUE(test_.is_right(test_.get_now(kOther, last, kAny), kOther, last));
}

TEST_P(EveryMode, ALostFolderIsMadeAgainFromTheLog) {  // RP3
  Llsn last;
  for (int i = 0; i < 30; ++i) last = test_.write(&rng_, {kPage, kOther});
  catch_up();
  test_.close();
  test_.disk().crash(0);  // nothing was made durable, but the folder
  const auto names = test_.disk().list("/node/versions");
  ASSERT_TRUE(names.ok());
  for (const std::string& name : *names)
    ASSERT_TRUE(test_.disk().remove("/node/versions/" + name).ok());
  test_.open();
  catch_up();
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, last, kAny), kPage, last));
}

TEST_P(EveryMode, ALogThatLacksItsBeginningIsReported) {
  Llsn last;
  for (int i = 0; i < 10; ++i) last = test_.write(&rng_, {kPage});
  test_.close();
  test_.log().cut_front(test_.writer().groups()[5].begin);
  test_.open();
  catch_up();
  const Status failure = test_.store().status().failure;
  EXPECT_TRUE(is_corruption(failure)) << failure;
  EXPECT_NE(failure.message().find("stream 1"), std::string::npos) << failure;
  EXPECT_NE(failure.message().find(std::to_string(test_.writer().groups()[5].begin.value)),
            std::string::npos)
      << failure;
  const auto answer = test_.ask(kPage, last, kAny);
  ASSERT_TRUE(answer->has_value());  // it does not wait for what cannot come
  EXPECT_TRUE(is_corruption((*answer)->status())) << (*answer)->status();
}

TEST_P(EveryMode, ADamagedLogStopsThereNamesThePlaceAndGoesOnWhenMended) {
  Llsn before, last;
  for (int i = 0; i < 10; ++i) before = test_.write(&rng_, {kPage});
  for (int i = 0; i < 10; ++i) last = test_.write(&rng_, {kPage});
  const LogWriter::Group& damaged = test_.writer().groups()[10];
  test_.log().flip(Lsn{damaged.begin.value + 50});
  catch_up();
  const Status failure = test_.store().status().failure;
  EXPECT_TRUE(is_corruption(failure)) << failure;
  EXPECT_NE(failure.message().find("stream 1, lsn " + std::to_string(damaged.begin.value)),
            std::string::npos)
      << failure;
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, before, kAny), kPage, before));
  const auto answer = test_.ask(kPage, last, kAny);
  ASSERT_TRUE(answer->has_value());
  EXPECT_TRUE(is_corruption((*answer)->status())) << (*answer)->status();
  Llsn as_of;
  ASSERT_TRUE(test_.store().list_spaces(&as_of).ok());
  EXPECT_EQ(as_of, before);
  test_.log().flip(Lsn{damaged.begin.value + 50});
  test_.store().retry();
  catch_up();
  ASSERT_TRUE(test_.store().list_spaces(&as_of).ok());
  EXPECT_EQ(as_of, last);
  EXPECT_TRUE(test_.store().status().failure.ok());
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, last, kAny), kPage, last));
}

// A change that does not fit its page; its group is whole.
TEST_P(EveryMode, APageThatCannotBeReplayedIsReportedAndTheOthersAreServed) {
  const Llsn before = test_.write(&rng_, {kPage, kOther});
  std::string other = test_.writer().change_ops(&rng_, kOther);
  // The writer's own copy must take it, so the section is damaged behind his back.
  const std::string good = test_.writer().change_ops(&rng_, kPage);
  const Llsn bad = test_.writer().write({{kPage, good}, {kOther, other}});
  LogWriter::Group group = test_.writer().groups().back();
  std::string bytes(group.end.value - group.begin.value, '\0');
  test_.log().make_durable(test_.log().end());
  ASSERT_TRUE(test_.log().read(group.begin, bytes.data(), bytes.size()).ok());
  std::string damaged = bytes;
  damaged[sizeof(redo::GroupHeader) + redo::kSectionHeaderBytes] = 99;  // no such operation
  redo::seal_group(damaged.data());
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != damaged[i]) test_.log().set(Lsn{group.begin.value + i}, damaged[i]);
  const Llsn last = test_.write(&rng_, {kOther});
  catch_up();
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    EXPECT_TRUE(test_.is_right(test_.get_now(kOther, last, kAny), kOther, last));
    const auto answer = test_.get_now(kPage, last, kAny);
    EXPECT_TRUE(is_corruption(answer.status())) << answer.status();
    for (const std::string& part : {std::string("page 300:1"), "llsn " + std::to_string(bad.value),
                                    "stream 1, lsn " + std::to_string(group.begin.value)})
      EXPECT_NE(answer.status().message().find(part), std::string::npos) << answer.status();
    if (GetParam() != ReplayMode::kSingle) {
      EXPECT_TRUE(test_.is_right(test_.get_now(kPage, before), kPage, before));
    }
    ASSERT_TRUE(test_.store().checkpoint().ok());
    test_.crash(5);
    test_.open();
    catch_up();
  }
  // A restart of its chain mends it.
  std::string ops = LogWriter::begin_ops(&rng_, kPage);
  const Llsn mended = test_.writer().write({{kPage, ops}});
  test_.log().make_durable(test_.log().end());
  catch_up();
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, mended, kAny), kPage, mended));
}

TEST_P(EveryMode, DroppedSpacesAreReclaimedBelowTheHorizonOnly) {
  constexpr PageId kSystem{0, 1};
  test_.write(&rng_, {kPage, PageId{301, 1}});
  std::string ops;
  redo::encode_init_plain(&ops, kSystem, PageType::kSystem, IndexId{}, 0);
  redo::encode_pending_delete_add(&ops, SpaceId{300});
  const Llsn drop = test_.writer().write({{kSystem, ops}});
  test_.log().make_durable(test_.log().end());
  catch_up();
  auto spaces = test_.store().list_spaces();
  ASSERT_TRUE(spaces.ok());
  EXPECT_EQ(std::count(spaces->begin(), spaces->end(), SpaceId{300}), 0);
  ASSERT_TRUE(test_.store().checkpoint().ok());
  spaces = test_.store().list_spaces();
  EXPECT_EQ(std::count(spaces->begin(), spaces->end(), SpaceId{301}), 1);
  ASSERT_TRUE(test_.store().renew_lease(1, Llsn{drop.value - 1}, UINT64_MAX / 2).ok());
  ASSERT_TRUE(test_.store().raise_horizon().ok());
  catch_up();
  EXPECT_EQ(test_.store().status().spaces_reclaimed, 0u);
  EXPECT_TRUE(test_.get_now(kPage, drop, kAny).ok());
  test_.store().release_lease(1);
  ASSERT_TRUE(test_.store().raise_horizon().ok());
  catch_up();
  EXPECT_EQ(test_.store().status().spaces_reclaimed, 1u);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(is_not_found(test_.get_now(kPage, drop, kAny).status()));
    EXPECT_TRUE(test_.get_now({301, 1}, drop, kAny).ok());
    ASSERT_TRUE(test_.store().checkpoint().ok());
    test_.crash(1);
    test_.open();
    catch_up();
  }
}

TEST_P(EveryMode, BacklogIsTheLogThatIsDurableAndNotReplayed) {
  for (int i = 0; i < 10; ++i) test_.write(&rng_, {kPage});
  const uint64_t written = test_.log().end().value - MemoryLog::kBegin;
  EXPECT_EQ(test_.store().backlog_bytes(), written);
  test_.scan_all();
  EXPECT_EQ(test_.store().backlog_bytes(), written);
  test_.replay_all();
  EXPECT_EQ(test_.store().backlog_bytes(), 0u);
}

TEST_P(EveryMode, ThePageCacheHasASizeAndCountsItsHits) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1} << 20}) {
    test_.close();
    test_.options().page_cache_bytes = bytes;
    test_.open();
    const Llsn last = test_.write(&rng_, {kPage});
    catch_up();
    const uint64_t hits = test_.store().status().page_cache_hits;
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(test_.get_now(kPage, last, kAny).ok());
    // `single` always keeps what it is about to write.
    const bool none = bytes == 0 && GetParam() != ReplayMode::kSingle;
    EXPECT_EQ(test_.store().status().page_cache_hits - hits, none ? 0u : 10u);
  }
}

// --- what tells each mode from the one below it ---

bool serves_old_states(ReplayMode mode) {
  Rng rng(1);
  TestStore test(mode);
  test.open();
  const Llsn old = test.write(&rng, {kPage});
  for (int i = 0; i < 5; ++i) test.write(&rng, {kPage});
  test.scan_all();
  test.replay_all();
  const auto answer = test.get_now(kPage, old);
  EXPECT_TRUE(answer.ok() || is_out_of_range(answer.status())) << answer.status();
  return answer.ok() && test.is_right(answer, kPage, old);
}

TEST(Rungs, OldStatesAreServedFromEagerOn) {
  EXPECT_FALSE(serves_old_states(ReplayMode::kSingle));
  EXPECT_TRUE(serves_old_states(ReplayMode::kEager));
  EXPECT_TRUE(serves_old_states(ReplayMode::kFiltered));
  EXPECT_TRUE(serves_old_states(ReplayMode::kSmart));
}

struct Waited {
  uint64_t log_bytes;
  uint64_t sections;      // replayed by then
  uint64_t own_sections;  // of the page
  uint64_t own_bytes;
};

// The page's sections lie among those of others, most of them behind its last one.
Waited waited(ReplayMode mode) {
  Rng rng(1);
  TestStore test(mode);
  test.open();
  Waited result{};
  for (uint32_t i = 0; i < 100; ++i) {
    const bool own = i % 10 == 3 && i < 50;
    const PageId page = own ? kPage : PageId{300, 100 + i % 7};
    test.write_next(&rng, {page});
    if (!own) continue;
    ++result.own_sections;
    const LogWriter::Group& group = test.writer().groups().back();
    result.own_bytes += group.end.value - group.begin.value;
  }
  const Llsn last = test.writer().last();
  test.scan_all();
  const auto answer = test.ask(kPage, last, kAny);
  while (!answer->has_value()) {
    auto some = test.store().replay_step();
    EXPECT_TRUE(some.ok() && *some);
    test.serve_all();
  }
  EXPECT_TRUE(test.is_right(**answer, kPage, last));
  result.log_bytes = test.store().counters().waited_log_bytes.load();
  result.sections = test.store().counters().sections_applied.load();
  return result;
}

TEST(Rungs, FilteredWaitsForLessLogThanEager) {
  const Waited eager = waited(ReplayMode::kEager);
  const Waited filtered = waited(ReplayMode::kFiltered);
  EXPECT_EQ(eager.sections, 100u);
  EXPECT_EQ(filtered.sections, 44u);  // up to its own last one
  EXPECT_LT(filtered.log_bytes * 3, eager.log_bytes * 2);
  EXPECT_GT(filtered.log_bytes, 0u);
}

TEST(Rungs, SmartReplaysOnlyThePagesOwnSections) {
  const Waited filtered = waited(ReplayMode::kFiltered);
  const Waited smart = waited(ReplayMode::kSmart);
  EXPECT_EQ(smart.sections, smart.own_sections);
  EXPECT_LE(smart.log_bytes, smart.own_bytes);
  EXPECT_GT(smart.log_bytes, 0u);
  EXPECT_LT(smart.log_bytes * 4, filtered.log_bytes);
  EXPECT_GT(filtered.sections, filtered.own_sections);
}

// --- smart ---

class Smart : public ::testing::Test {
 protected:
  Smart() : rng_(1), test_(ReplayMode::kSmart) { test_.open(); }
  Rng rng_;
  TestStore test_;
};

TEST_F(Smart, StartsAtTheNearestStoredVersionOrRestart) {  // SMT2
  Llsn llsn;
  for (int i = 0; i < 10; ++i) llsn = test_.write_next(&rng_, {kPage});
  test_.scan_all();
  ASSERT_TRUE(test_.get_now(kPage, llsn).ok());
  EXPECT_EQ(test_.store().counters().sections_applied.load(), 10u);
  EXPECT_EQ(test_.store().status().versions_stored, 1u);  // SMT4
  for (int i = 0; i < 3; ++i) llsn = test_.write_next(&rng_, {kPage});
  test_.scan_all();
  ASSERT_TRUE(test_.get_now(kPage, llsn).ok());
  EXPECT_EQ(test_.store().counters().sections_applied.load(), 13u);
  std::string ops = LogWriter::begin_ops(&rng_, kPage);
  test_.write_next(&rng_, {kPage});
  test_.writer().write({{kPage, ops}});
  llsn = test_.write_next(&rng_, {kPage});
  test_.scan_all();
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, llsn), kPage, llsn));
  EXPECT_EQ(test_.store().counters().sections_applied.load(), 15u);
}

TEST_F(Smart, WhatTheHorizonLetsGoIsNotStored) {  // SMT4
  Llsn llsn;
  for (int i = 0; i < 50; ++i) llsn = test_.write(&rng_, {kPage});
  test_.scan_all();
  ASSERT_TRUE(test_.store().raise_horizon().ok());  // nobody holds a lease
  test_.replay_all();
  EXPECT_EQ(test_.store().status().versions_stored, 1u);
  EXPECT_EQ(test_.store().status().versions_collected, 49u);
  EXPECT_EQ(test_.store().status().map_entries_written, 1u);  // VM7
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, llsn), kPage, llsn));
  EXPECT_TRUE(is_out_of_range(test_.get_now(kPage, Llsn{llsn.value - 1}).status()));
  EXPECT_EQ(test_.get_now(kPage, Llsn{llsn.value - 1}, kAny)->llsn, llsn);  // GP2
}

// PP3
TEST(SmartLag, WorkersLeaveTheNewestLogAlone) {
  Rng rng(1);
  TestStore test(ReplayMode::kSmart);
  test.options().replay_lag_bytes = 100'000;
  test.open();
  Llsn llsn;
  for (int i = 0; i < 50; ++i) llsn = test.write_next(&rng, {kPage});
  test.scan_all();
  ASSERT_TRUE(test.store().raise_horizon().ok());
  test.replay_all();
  EXPECT_EQ(test.store().counters().background.load(), 0u);
  EXPECT_TRUE(test.is_right(test.get_now(kPage, llsn), kPage, llsn));  // made for the request
  EXPECT_EQ(test.store().counters().on_demand.load(), 1u);
  // Log behind it: its turn.
  const Lsn written = test.log().end();
  while (test.log().end().value - written.value < 500'000) test.write_next(&rng, {kOther});
  test.scan_all();
  test.replay_all();
  EXPECT_EQ(test.store().counters().background.load(), 1u);
  EXPECT_GT(test.store().backlog_bytes(), 100'000u);
  // Or the second checkpoint after its last change.
  ASSERT_TRUE(test.store().checkpoint().ok());
  test.replay_all();
  EXPECT_EQ(test.store().counters().background.load(), 1u);
  ASSERT_TRUE(test.store().checkpoint().ok());
  test.replay_all();
  EXPECT_EQ(test.store().counters().background.load(), 2u);
  EXPECT_EQ(test.store().backlog_bytes(), 0u);
  ASSERT_TRUE(test.store().checkpoint().ok());
  EXPECT_EQ(test.store().needed_from(kStream), test.log().end());
}

TEST(SmartLag, APageThatGoesOnChangingIsLeftAloneForSixCheckpoints) {  // PP3
  Rng rng(1);
  TestStore test(ReplayMode::kSmart);
  test.options().replay_lag_bytes = 100'000'000;
  test.open();
  const auto checkpoint = [&] {
    ASSERT_TRUE(test.store().raise_horizon().ok());
    ASSERT_TRUE(test.store().checkpoint().ok());
    test.replay_all();
  };
  test.write_next(&rng, {kOther});
  const auto made = [&] { return test.store().counters().background.load(); };
  for (int changes = 0; changes < 6; ++changes) {
    test.write_next(&rng, {kPage});
    test.scan_all();
    checkpoint();
    EXPECT_EQ(made(), changes == 0 ? 0u : 1u) << changes;  // kOther has come to rest
  }
  test.write_next(&rng, {kPage});
  test.scan_all();
  checkpoint();
  EXPECT_EQ(made(), 2u);
  EXPECT_EQ(test.store().backlog_bytes(), 0u);
}

TEST(SmartLag, WhoeverCopiesDoesNotWaitForPagesThatGoOnChanging) {  // CO1
  Rng rng(1);
  TestStore test(ReplayMode::kSmart);
  test.options().replay_lag_bytes = 100'000'000;
  test.open();
  const Llsn llsn = test.write_next(&rng, {kPage});
  test.scan_all();
  ASSERT_TRUE(test.store().raise_horizon().ok());
  const std::vector<CopyMark> marks{{kStream, {test.log().end(), llsn}}};
  test.replay_all();
  EXPECT_TRUE(is_peer_down(test.store().list_pages({}, 10, marks).status()));
  test.replay_all();
  const auto listing = test.store().list_pages({}, 10, marks);
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_EQ(listing->pages, std::vector<PageId>{kPage});
}

TEST(SmartScan, ARequestDoesNotWaitForLogThatIsLeftAlone) {  // IN5
  Rng rng(1);
  TestStore test(ReplayMode::kSmart);
  test.options().now_us = monotonic_us;
  test.options().scan_delay_us = 3'600'000'000;
  test.open();
  test.store().start();
  for (uint64_t scanned = 1; scanned <= 20; ++scanned) {
    test.write_next(&rng, {kOther});
    const Llsn llsn = test.write_next(&rng, {kPage});
    GetPageRequest request;
    request.page = kPage;
    request.at_least = llsn;
    request.deadline_us = monotonic_us() + 20'000'000;
    EXPECT_TRUE(test.is_right(test.store().get_page(request), kPage, llsn)) << scanned;
  }
  test.store().stop();
  EXPECT_EQ(test.store().counters().groups_scanned.load(), 40u);
}

TEST(SmartLag, WorkersLeaveWhatIsAboveTheHorizonForLater) {  // SMT4
  constexpr PageId kThird{300, 5};
  Rng rng(1);
  TestStore test(ReplayMode::kSmart);
  test.options().replay_lag_bytes = 300'000;
  test.open();
  const auto fill = [&](PageId page, uint64_t bytes) {
    const Lsn from = test.log().end();
    while (test.log().end().value - from.value < bytes) test.write_next(&rng, {page});
    test.scan_all();
  };
  fill(kPage, 3'000);
  fill(kOther, 300'000);
  ASSERT_TRUE(test.store().raise_horizon().ok());
  fill(kPage, 3'000);
  const Llsn newest = test.writer().newest(kPage);
  fill(kThird, 250'000);
  test.replay_all();
  EXPECT_EQ(test.store().counters().background.load(), 1u);  // kPage's first part
  EXPECT_EQ(test.store().counters().pages_made.load(), 1u);
  EXPECT_TRUE(test.is_right(test.get_now(kPage, newest), kPage, newest));
  // Its turn comes again.
  EXPECT_GT(test.store().backlog_bytes(), 500'000u);
  ASSERT_TRUE(test.store().raise_horizon().ok());
  ASSERT_TRUE(test.store().checkpoint().ok());
  ASSERT_TRUE(test.store().checkpoint().ok());
  test.replay_all();
  EXPECT_EQ(test.store().status().streams[0].replayed.lsn, test.log().end());
  EXPECT_EQ(test.store().status().versions_stored, 4u);  // the request's, and kThird
  EXPECT_EQ(test.store().status().map_entries_unwritten, 0u);
}

TEST(SmartLag, WorkersWaitUntilItIsKnownWhichStatesAreNeeded) {  // LE3
  Rng rng(1);
  TestStore test(ReplayMode::kSmart);
  test.options().leases.lease_us = 1000;
  test.open();
  Llsn llsn = test.write_next(&rng, {kPage});
  test.scan_all();
  ASSERT_TRUE(test.store().raise_horizon().ok());
  test.replay_all();
  EXPECT_EQ(test.store().counters().background.load(), 1u);  // a new store: nobody to wait for
  test.close();
  test.open();
  for (int i = 0; i < 50; ++i) llsn = test.write_next(&rng, {kPage});
  test.scan_all();
  ASSERT_TRUE(test.store().raise_horizon().ok());
  test.replay_all();
  EXPECT_EQ(test.store().counters().background.load(), 0u);
  test.pass_time(1000);
  ASSERT_TRUE(test.store().raise_horizon().ok());
  test.replay_all();
  EXPECT_EQ(test.store().counters().background.load(), 1u);
  EXPECT_EQ(test.store().counters().pages_made.load(), 1u);  // and not 50
  EXPECT_TRUE(test.is_right(test.get_now(kPage, llsn), kPage, llsn));
}

TEST_F(Smart, AReadersLeaseKeepsWhatHeMayAskFor) {
  std::vector<Llsn> llsns;
  for (int i = 0; i < 50; ++i) llsns.push_back(test_.write(&rng_, {kPage}));
  test_.scan_all();
  ASSERT_TRUE(test_.store().renew_lease(9, llsns[20], UINT64_MAX / 2).ok());
  ASSERT_TRUE(test_.store().raise_horizon().ok());
  test_.replay_all();
  test_.collect_all();
  EXPECT_TRUE(is_out_of_range(test_.get_now(kPage, llsns[19]).status()));
  for (int i = 20; i < 50; ++i)
    EXPECT_TRUE(test_.is_right(test_.get_now(kPage, llsns[i]), kPage, llsns[i])) << i;
  test_.store().release_lease(9);
  ASSERT_TRUE(test_.store().raise_horizon().ok());
  test_.collect_all();
  EXPECT_TRUE(is_out_of_range(test_.get_now(kPage, llsns[48]).status()));
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, llsns[49]), kPage, llsns[49]));
}

TEST_P(EveryMode, WhoeverCopiesDoesNotWaitForReplay) {  // CO1, SQ3
  Llsn copied_at;
  for (int i = 0; i < 10; ++i) copied_at = test_.write(&rng_, {kPage});
  catch_up();
  for (int i = 0; i < 100; ++i) test_.write(&rng_, {kPage});  // restarts its chain at times
  test_.scan_all();
  ASSERT_TRUE(test_.store().raise_horizon().ok());  // nobody holds a lease
  test_.collect_all();
  const StatusOr<PageAnswer> answer = test_.get_for_peer(kPage, copied_at);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_GE(answer->llsn, copied_at);
  EXPECT_TRUE(test_.is_right(answer, kPage, answer->llsn));
}

// The log is damaged after it was scanned.
TEST_F(Smart, ADamagedSectionIsReportedWithPageStreamAndLsn) {
  Llsn llsn;
  for (int i = 0; i < 10; ++i) llsn = test_.write_next(&rng_, {kPage, kOther});
  test_.scan_all();
  test_.store().forget_caches();
  const LogWriter::Group& group = test_.writer().groups()[5];
  const Lsn at{group.begin.value + sizeof(redo::GroupHeader) + redo::kSectionHeaderBytes + 2};
  test_.log().flip(at);
  const auto answer = test_.get_now(kPage, llsn);
  EXPECT_TRUE(is_corruption(answer.status())) << answer.status();
  for (const std::string& part :
       {std::string("page 300:1"), "stream 1, lsn " + std::to_string(group.begin.value)})
    EXPECT_NE(answer.status().message().find(part), std::string::npos) << answer.status();
  EXPECT_TRUE(test_.is_right(test_.get_now(kOther, llsn), kOther, llsn));
  test_.log().flip(at);
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, llsn), kPage, llsn));
}

TEST_F(Smart, ADamagedStoredVersionIsReportedAndMendedFromAPeer) {
  Llsn llsn;
  for (int i = 0; i < 5; ++i) llsn = test_.write(&rng_, {kPage});
  test_.scan_all();
  test_.replay_all();
  ASSERT_TRUE(test_.store().checkpoint().ok());
  const auto good = test_.get_now(kPage, llsn);
  ASSERT_TRUE(good.ok());
  const std::string peer(good->page->bytes, kPageBytes);
  test_.close();
  const auto names = test_.disk().list("/node/versions");
  for (const std::string& name : *names) {
    if (!name.ends_with(".blob")) continue;
    for (uint64_t byte = 100; byte < 5 * kPageBytes; byte += 1000)
      test_.disk().flip_bit("/node/versions/" + name, byte * 8);
  }
  test_.open();
  test_.scan_all();
  const auto answer = test_.get_now(kPage, llsn);
  EXPECT_TRUE(is_corruption(answer.status())) << answer.status();
  GetPageRequest request;
  request.page = kPage;
  request.at_least = request.at_most = llsn;
  EXPECT_FALSE(test_.store().page_at_hand(request).has_value());
  EXPECT_NE(answer.status().message().find("page 300:1 at llsn " + std::to_string(llsn.value)),
            std::string::npos)
      << answer.status();
  std::string wrong = peer;
  wrong[5000] ^= 1;
  EXPECT_TRUE(is_corruption(test_.store().repair_version(kPage, llsn, wrong.data())));
  ASSERT_TRUE(test_.store().repair_version(kPage, llsn, peer.data()).ok());
  EXPECT_TRUE(test_.is_right(test_.get_now(kPage, llsn), kPage, llsn));
}

TEST(Single, ADamagedPageInItsFileIsReportedUntilItsChainRestarts) {
  Rng rng(1);
  TestStore test(ReplayMode::kSingle);
  test.open();
  Llsn llsn = test.write(&rng, {kPage, kOther});
  test.scan_all();
  test.replay_all();
  ASSERT_TRUE(test.store().checkpoint().ok());
  test.close();
  const auto names = test.disk().list("/node/pages");
  ASSERT_TRUE(names.ok());
  for (const std::string& name : *names)
    test.disk().flip_bit("/node/pages/" + name, (kPage.number * kPageBytes + 5000) * 8);
  test.open();
  const auto damaged = [&] {
    const Status status = test.get_now(kPage, llsn, kAny).status();
    EXPECT_TRUE(is_corruption(status)) << status;
    EXPECT_NE(status.message().find("300:1"), std::string::npos) << status;
    GetPageRequest request;
    request.page = kPage;
    request.at_least = llsn;
    EXPECT_FALSE(test.store().page_at_hand(request).has_value());
  };
  damaged();
  EXPECT_TRUE(test.is_right(test.get_now(kOther, llsn, kAny), kOther, llsn));
  llsn = test.write_next(&rng, {kPage, kOther});
  test.replay_all();
  damaged();  // nothing can be made from it
  EXPECT_TRUE(test.is_right(test.get_now(kOther, llsn, kAny), kOther, llsn));
  llsn = test.writer().write({{kPage, LogWriter::begin_ops(&rng, kPage)}});
  test.log().make_durable(test.log().end());
  test.replay_all();
  EXPECT_TRUE(test.is_right(test.get_now(kPage, llsn, kAny), kPage, llsn));
}

// Page 300:1 is written by two streams in turns.
TEST_F(Smart, AGapThatAnotherStreamMayFillIsWaitedForAndOneThatNobodyFillsIsDamage) {  // K8
  TestStore two(ReplayMode::kSmart);
  two.add_log();
  two.open();
  const Llsn first = two.write(&rng_, {kPage});
  // The second stream changes it, then the first again.
  two.writer().write_to(&two.log(1), 2, {{kPage, two.writer().change_ops(&rng_, kPage)}});
  const Llsn last = two.writer().write({{kPage, two.writer().change_ops(&rng_, kPage)}});
  two.log().make_durable(two.log().end());
  two.scan_all();
  two.replay_all();
  EXPECT_TRUE(two.is_right(two.get_now(kPage, first), kPage, first));
  const auto waiting = two.ask(kPage, last, kAny);
  EXPECT_FALSE(waiting->has_value());
  EXPECT_GT(two.store().backlog_bytes(), 0u);
  two.log(1).make_durable(two.log(1).end());
  two.scan_all();
  two.replay_all();
  two.serve_all();
  ASSERT_TRUE(waiting->has_value());
  EXPECT_TRUE(two.is_right(**waiting, kPage, last)) << (*waiting)->status();
  EXPECT_EQ(two.store().backlog_bytes(), 0u);
}

// --- threads ---

TEST_P(EveryMode, AFullDiskIsReportedAndGotOver) {
  test_.close();
  test_.options().now_us = monotonic_us;
  test_.options().checkpoint_interval_us = 10'000;
  test_.open();
  test_.disk().set_capacity(256u << 10);
  test_.store().start();
  Llsn last;
  for (uint32_t i = 0; i < 100; ++i) last = test_.write(&rng_, {PageId{300, i}});
  EXPECT_TRUE(wait_until([&] { return !test_.store().status().trouble.ok(); }));
  const Status trouble = test_.store().status().trouble;
  EXPECT_TRUE(is_no_space(trouble)) << trouble;
  EXPECT_LT(test_.store().needed_from(kStream), test_.log().end());  // RP4
  test_.disk().set_capacity(1u << 30);
  EXPECT_TRUE(wait_until([&] { return test_.store().needed_from(kStream) == test_.log().end(); }));
  EXPECT_TRUE(wait_until([&] { return test_.store().status().trouble.ok(); }));
  for (uint32_t i = 0; i < 100; ++i)
    EXPECT_TRUE(test_.is_right(test_.get_now({300, i}, last, kAny), {300, i}, last)) << i;
}

TEST_P(EveryMode, ThreadsServeWhileTheLogGrows) {
  constexpr uint32_t kPages = 12;
  test_.close();
  test_.options().now_us = monotonic_us;
  test_.options().checkpoint_interval_us = 20'000;
  test_.options().collect_interval_us = 10'000;
  test_.options().page_cache_bytes = 1u << 20;
  // The whole log is written ahead, so that readers may look at the writer while it becomes
  // durable.
  for (int i = 0; i < 600; ++i) {
    std::vector<testing::WrittenSection> sections;
    const PageId page{300, static_cast<uint32_t>(rng_.below(kPages))};
    sections.push_back({page, test_.writer().change_ops(&rng_, page)});
    const PageId second{301, static_cast<uint32_t>(rng_.below(kPages))};
    sections.push_back({second, test_.writer().change_ops(&rng_, second)});
    test_.writer().write(sections);
  }
  test_.open();
  test_.store().start();
  const auto& groups = test_.writer().groups();
  std::atomic<size_t> durable{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  std::atomic<uint64_t> answered{0};
  for (uint64_t reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&, reader] {
      Rng rng(reader);
      while (!stop.load()) {
        const size_t known = durable.load();
        if (known == 0) continue;
        const LogWriter::Group& group = groups[known - 1 - rng.below(std::min<size_t>(known, 20))];
        GetPageRequest request;
        request.page = group.pages[rng.below(group.pages.size())];
        request.at_least = group.llsn;
        request.deadline_us = monotonic_us() + 20'000'000;
        const auto at_hand = test_.store().page_at_hand(request);
        const auto answer = at_hand.has_value() ? StatusOr<PageAnswer>(at_hand->page)
                                                : test_.store().get_page(request);
        ASSERT_TRUE(answer.ok()) << answer.status();
        ASSERT_GE(answer->llsn, group.llsn);
        ASSERT_TRUE(test_.is_right(answer, request.page, answer->llsn));
        answered.fetch_add(1);
      }
    });
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    test_.log().make_durable(groups[i].end);
    durable.store(i + 1);
    if (i % 100 == 0) {
      EXPECT_TRUE(wait_until([&] { return answered.load() > i / 10; }));
    }
  }
  EXPECT_TRUE(wait_until([&] { return test_.store().backlog_bytes() == 0; }));
  stop.store(true);
  for (std::thread& thread : readers) thread.join();
  test_.store().stop();
  EXPECT_EQ(test_.store().needed_from(kStream), test_.log().end());
}

}  // namespace
}  // namespace strata::storenode
