// Goal: each promise of a copy (PC1-PC4, RP5) and of mending single pages (RP6), in every mode.
// Method: page stores on simulated disks, driven step by step; peers in the same process.
#include "storenode/copy/store_copier.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/testing/sanitized.h"
#include "base/testing/wait_until.h"
#include "storenode/copy/page_asker.h"
#include "storenode/copy/testing/local_peer.h"
#include "storenode/versions/testing/raw_store.h"
#include "storenode/versions/testing/refusing_file_system.h"

namespace strata::storenode {
namespace {

using strata::testing::wait_until;
using testing::kStream;
using testing::LocalPeer;
using testing::LogWriter;
using testing::MemoryLog;
using testing::TestStore;

constexpr Llsn kAny{UINT64_MAX};
constexpr PageId kPage{300, 1};
constexpr PageId kSystem{0, 1};

class Copying : public ::testing::TestWithParam<ReplayMode> {
 protected:
  Copying() : source_(GetParam()), second_(GetParam()), target_(GetParam()) {
    source_.open();
    second_.open();
    set_up_copier({first_peer_, second_peer_});
  }
  void set_up_copier(CopyPeers peers) {
    StoreCopierOptions options;
    options.peers = std::move(peers);
    options.pages_at_once = 3;
    options.pages_listed = 7;
    copier_ = std::make_unique<StoreCopier>(&target(), options);
  }
  // Opens the target, whose log begins where the source's ends now, if `cut`.
  PageStore& target() {
    if (!target_.is_open()) {
      mirror_to(&target_, source_.log().durable_lsn());
      target_.log().cut_front(source_.log().durable_lsn());
      target_.open();
    }
    return target_.store();
  }
  void mirror_to(TestStore* node, Lsn durable) {
    testing::mirror(&source_.log(), &node->log());
    node->log().make_durable(durable);
  }
  void catch_up(TestStore* node) {
    node->scan_all();
    node->replay_all();
    node->serve_all();
  }
  // Everything written is known everywhere, and replayed by the sources.
  void spread() {
    mirror_to(&second_, source_.log().durable_lsn());
    if (target_.is_open()) mirror_to(&target_, source_.log().durable_lsn());
    for (TestStore* node : {&source_, &second_}) {
      catch_up(node);
      ASSERT_TRUE(node->store().checkpoint().ok());
      ASSERT_TRUE(node->store().checkpoint().ok());
      node->replay_all();
    }
  }
  Llsn write_some(int groups) {
    Llsn last;
    for (int i = 0; i < groups; ++i)
      last = source_.write(&rng_, {PageId{300 + static_cast<uint32_t>(rng_.below(2)),
                                          static_cast<uint32_t>(rng_.below(20))}});
    return last;
  }
  // Until there is nothing to be done; `failures_max` of them may fail.
  void copy(int failures_max = 0) {
    for (int steps = 0; steps < 10'000; ++steps) {
      const StatusOr<bool> some = copier_->step();
      if (!some.ok()) {
        ASSERT_GT(failures_max--, 0) << some.status();
      } else if (!*some) {
        return;
      }
    }
    FAIL() << "it does not come to an end";
  }
  void expect_same(Llsn at) {
    for (const auto& [page, versions] : source_.writer().pages()) {
      const auto answer = target_.get_now(page, at, kAny);
      EXPECT_TRUE(source_.is_right(answer, page, at))
          << page.space << ":" << page.number << ": " << answer.status();
    }
  }

  Rng rng_{7};
  TestStore source_, second_, target_;
  std::shared_ptr<LocalPeer> first_peer_ = std::make_shared<LocalPeer>(&source_, "first");
  std::shared_ptr<LocalPeer> second_peer_ = std::make_shared<LocalPeer>(&second_, "second");
  std::unique_ptr<StoreCopier> copier_;
};

TEST_P(Copying, IsNotNeededAsLongAsTheLogIsThere) {
  write_some(20);
  EXPECT_FALSE(target().needs_copy());  // the log was never cut off: nothing was written before
}

class CopyingLate : public Copying {
 protected:
  // The source has written and cut off its log before the target was there.
  void begin_late() {
    target_.close();
    write_some(60);
    spread();
    mirror_to(&target_, source_.log().durable_lsn());
    target_.log().cut_front(source_.log().durable_lsn());
    target_.open();
    set_up_copier({first_peer_, second_peer_});
    ASSERT_TRUE(target().needs_copy());
  }
  void open_damaged_and_copy() {
    target_.options().copy_when_damaged = true;
    target_.open();
    EXPECT_TRUE(target().needs_copy());
    set_up_copier({first_peer_});
    const Llsn last = write_some(10);
    spread();
    copy();
    catch_up(&target_);
    expect_same(last);
  }
};

TEST_P(CopyingLate, BringsEveryPageAndGoesOnWithTheLog) {
  begin_late();
  EXPECT_FALSE(target().status().failure.ok());
  write_some(20);
  spread();
  copy();
  EXPECT_FALSE(target().needs_copy());
  EXPECT_TRUE(target().status().failure.ok()) << target().status().failure;
  EXPECT_EQ(copier_->completed(), 1u);
  const Llsn last = write_some(30);
  spread();
  catch_up(&target_);
  expect_same(last);
  // It is durable, and nothing of the old log is needed any more.
  ASSERT_TRUE(target().checkpoint().ok());
  target_.crash(3);
  target_.open();
  catch_up(&target_);
  expect_same(last);
  EXPECT_FALSE(target().needs_copy());
}

TEST_P(CopyingLate, NothingIsServedBeforeItIsWhole) {  // RP5
  begin_late();
  const Llsn last = source_.writer().last();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(copier_->step().ok());
  EXPECT_TRUE(target().status().copying);
  EXPECT_TRUE(is_peer_down(target().status().failure));
  EXPECT_TRUE(is_peer_down(target_.get_now(kPage, last, kAny).status()));
  EXPECT_TRUE(is_peer_down(target_.get_now(kPage, Llsn{}, kAny).status()));
  EXPECT_TRUE(is_peer_down(target().list_spaces().status()));
  EXPECT_TRUE(is_peer_down(target().offer_copy().status()));
  EXPECT_TRUE(is_peer_down(target().list_pages({}, 10, {}).status()));
  EXPECT_EQ(target().needed_from(kStream), Lsn{});
  // Nor after a crash, which begins it again.
  target_.crash(5);
  target_.open();
  EXPECT_TRUE(target().needs_copy());
  EXPECT_TRUE(is_peer_down(target_.get_now(kPage, last, kAny).status()));
  set_up_copier({first_peer_});
  copy();
  expect_same(last);
}

TEST_P(CopyingLate, AnotherPeerGoesOnWhenOneFails) {  // PC4
  begin_late();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(copier_->step().ok());
  first_peer_->down = true;
  const uint64_t given = first_peer_->pages_given;
  EXPECT_GT(given, 0u);
  copy(/*failures_max=*/1);
  EXPECT_EQ(first_peer_->pages_given, given);
  EXPECT_GT(second_peer_->pages_given, 0u);
  expect_same(source_.writer().last());
}

TEST_P(CopyingLate, APeerThatHasNotReplayedSoFarIsOfNoUse) {  // PC1, PC3
  begin_late();
  const Llsn last = write_some(10);
  mirror_to(&target_, source_.log().durable_lsn());
  target_.log().cut_front(source_.log().durable_lsn());  // and nobody has replayed what is before
  EXPECT_FALSE(copier_->step().ok());
  EXPECT_FALSE(copier_->step().ok());
  EXPECT_FALSE(target().status().copying);
  spread();
  copy();
  expect_same(last);
}

TEST_P(CopyingLate, ASpaceThatGoesMeanwhileIsGoneHereToo) {  // PC2
  begin_late();
  ASSERT_TRUE(copier_->step().ok());  // M is chosen
  std::string ops;
  redo::encode_init_plain(&ops, kSystem, PageType::kSystem, IndexId{}, 0);
  redo::encode_pending_delete_add(&ops, SpaceId{300});
  source_.write_next(&rng_, {kPage});
  const Llsn drop = source_.writer().write({{kSystem, ops}});
  source_.log().make_durable(source_.log().end());
  spread();
  source_.pass_time(1);
  ASSERT_TRUE(source_.store().raise_horizon().ok());
  catch_up(&source_);
  ASSERT_EQ(source_.store().status().spaces_reclaimed, 1u);
  copy();
  mirror_to(&target_, source_.log().durable_lsn());
  catch_up(&target_);
  EXPECT_EQ(target().counters().pages_broken, 0u);
  EXPECT_TRUE(is_not_found(target_.get_now(kPage, drop, kAny).status()));
  const auto spaces = target().list_spaces();
  ASSERT_TRUE(spaces.ok());
  EXPECT_EQ(std::count(spaces->begin(), spaces->end(), SpaceId{300}), 0);
  EXPECT_EQ(std::count(spaces->begin(), spaces->end(), SpaceId{301}), 1);
}

TEST_P(CopyingLate, AStoreThatCannotBeOpenedIsCopiedAnew) {
  begin_late();
  copy();
  ASSERT_TRUE(target().checkpoint().ok());
  target_.close();
  target_.disk().flip_bit("/node/versions/CURRENT", 3);
  EXPECT_FALSE(PageStore::open(target_.options()).ok());
  open_damaged_and_copy();
}

TEST_P(CopyingLate, AStoreWhoseMarksAreDamagedIsCopiedAnew) {
  begin_late();
  copy();
  ASSERT_TRUE(target().checkpoint().ok());
  target_.close();
  ASSERT_NO_FATAL_FAILURE(
      testing::write_raw(&target_.disk(), "/node/versions", [](const testing::PutRaw& put) {
        put("default", std::string("replayed/\0\0\0\1", 13), "not a mark");  // of kStream
      }));
  {
    const auto damaged = PageStore::open(target_.options());
    ASSERT_TRUE(damaged.ok()) << damaged.status();
    const Status added = (*damaged)->add_stream(kStream, &target_.log(), Lsn{MemoryLog::kBegin});
    EXPECT_TRUE(is_corruption(added)) << added;
  }
  open_damaged_and_copy();
}

// VD7: a place of the disk says EIO each time. It is tried again a few times, then the store is
// given up and a peer's takes its place.
TEST_P(CopyingLate, AStoreWhoseDiskGoesOnRefusingIsCopiedAnew) {
  begin_late();
  copy();
  ASSERT_TRUE(target().checkpoint().ok());
  target_.close();
  testing::RefusingFileSystem refusing(&target_.disk());
  target_.options().files = &refusing;
  target_.options().device_errors_us = 0;
  target_.options().copy_when_damaged = true;
  target_.options().checkpoint_interval_us = 1000;
  target_.options().now_us = monotonic_us;
  target_.open();
  target().start();
  EXPECT_FALSE(target().needs_copy());
  refusing.writes_of = GetParam() == ReplayMode::kSingle ? ".pages" : ".blob";
  const Llsn last = write_some(10);
  spread();
  EXPECT_TRUE(wait_until([&] { return target().needs_copy(); }));
  EXPECT_TRUE(is_corruption(target().status().trouble)) << target().status().trouble;
  EXPECT_NE(target().status().trouble.message().find("copied from a peer"), std::string::npos);
  refusing.writes_of = "";
  set_up_copier({first_peer_});
  copy();
  EXPECT_FALSE(target().needs_copy());
  EXPECT_TRUE(wait_until([&] { return target().status().streams.front().replayed.llsn >= last; }));
  expect_same(last);
  target_.close();
  target_.options().files = &target_.disk();
}

TEST_P(CopyingLate, ALogThatIsLostInTheMiddleIsPassedBy) {
  begin_late();
  copy();
  write_some(10);
  spread();
  const Lsn lost = source_.log().durable_lsn();
  target().note_lost(kStream, lost);
  EXPECT_TRUE(target().needs_copy());
  const Llsn last = write_some(10);
  mirror_to(&target_, source_.log().durable_lsn());
  target_.log().make_unreadable(Lsn{MemoryLog::kBegin}, lost);
  set_up_copier({first_peer_});
  copy();
  EXPECT_FALSE(target().needs_copy());
  catch_up(&target_);
  expect_same(last);
}

TEST_P(CopyingLate, AFullDiskIsReportedAndGotOver) {
  begin_late();
  target_.disk().set_capacity(64u << 10);
  bool failed = false;
  for (int i = 0; i < 200 && !failed; ++i) failed = !copier_->step().ok();
  EXPECT_TRUE(failed);
  EXPECT_FALSE(copier_->doing().empty());
  EXPECT_TRUE(target().status().copying);
  target_.disk().set_capacity(1u << 30);
  copy(/*failures_max=*/20);
  expect_same(source_.writer().last());
}

TEST_P(CopyingLate, AThreadDoesItByItself) {
  begin_late();
  StoreCopierOptions options;
  options.peers = {first_peer_};
  options.look_interval_us = 1000;
  StoreCopier copier(&target(), options);
  copier.start();
  EXPECT_TRUE(wait_until([&] { return copier.completed() == 1; }));
  copier.stop();
  expect_same(source_.writer().last());
}

// --- mending ---

// Damages what is stored of a page, wherever it lies.
TEST_P(CopyingLate, ADamagedPageIsAnsweredAndMendedFromAPeer) {  // RP6
  target_.close();
  Llsn last = write_some(60);
  spread();
  mirror_to(&target_, source_.log().durable_lsn());
  PageAsker asker({first_peer_});
  target_.options().ask_peers = [&asker](const GetPageRequest& request, GetPageDone done) {
    asker.ask(request, std::move(done));
  };
  target_.options().page_cache_bytes = 0;
  target_.open();
  catch_up(&target_);
  ASSERT_TRUE(target().checkpoint().ok());
  ASSERT_TRUE(target().checkpoint().ok());
  catch_up(&target_);
  ASSERT_TRUE(target().checkpoint().ok());
  target_.close();
  // What repairs torn pages would mend some by itself.
  ASSERT_TRUE(target_.disk().remove("/node/pages/double-write.pages").ok());
  const auto names =
      target_.disk().list(GetParam() == ReplayMode::kSingle ? "/node/pages" : "/node/versions");
  ASSERT_TRUE(names.ok());
  uint64_t flipped = 0;
  for (const std::string& name : *names) {
    const bool holds_pages = name.ends_with(".blob") || name.starts_with("space-");
    if (!holds_pages) continue;
    const std::string path =
        (GetParam() == ReplayMode::kSingle ? "/node/pages/" : "/node/versions/") + name;
    const auto file = target_.disk().open(path, {});
    ASSERT_TRUE(file.ok());
    const auto size = (*file)->size();
    ASSERT_TRUE(size.ok());
    for (uint64_t at = 3 * kPageBytes / 2; at < *size; at += 2 * kPageBytes, ++flipped)
      target_.disk().flip_bit(path, at * 8 + 3);
  }
  ASSERT_GT(flipped, 0u);
  target_.open();
  target().retry();
  asker.start();
  const auto ask_all = [&] {
    for (const auto& [page, versions] : source_.writer().pages()) {
      GetPageRequest request;
      request.page = page;
      request.at_least = last;
      const auto answer = target().get_page(request);  // from the asker's thread, if damaged
      EXPECT_TRUE(source_.is_right(answer, page, last)) << answer.status();
    }
  };
  ask_all();
  EXPECT_TRUE(wait_until([&] { return target().counters().pages_repaired > 0; }));
  asker.stop();
  target_.replay_all();
  // Now they are whole here, but for those of which only older versions are damaged.
  first_peer_->down = true;
  const uint64_t given = first_peer_->pages_given;
  ask_all();
  EXPECT_EQ(first_peer_->pages_given, given);
  // And the log goes on from them.
  last = write_some(40);
  mirror_to(&target_, source_.log().durable_lsn());
  catch_up(&target_);
  ask_all();
}

// --- damage of the version store, in the modes that keep pages there ---

class CopyingVersions : public CopyingLate {
 protected:
  static constexpr uint32_t kPages = 300;  // in space 300: their map has several blocks
  static constexpr uint32_t kFar = 150;    // behind the first one

  // All nodes have these pages.
  void begin_with_many_pages() {
    target_.close();
    for (uint32_t number = 0; number < kPages; ++number)
      source_.write(&rng_, {PageId{300, number}});
    begin_late();
    copy();
  }
  void damage_map(TestStore* node) {
    node->options().copy_when_damaged = true;
    node->close();
    EXPECT_GT(testing::damage_map(&node->disk(), "/node/versions"), 0u);
    node->open();
    EXPECT_FALSE(node->store().needs_copy());
  }
  // Of pages that lie behind the first block of the map. The target has scanned it, but has no mark
  // that says so: its next life looks all of it up.
  void write_far() {
    for (uint32_t number = kFar; number < kFar + 20; ++number)
      source_.write_next(&rng_, {PageId{300, number}});
    spread();
    catch_up(&target_);
  }
};

TEST_P(CopyingVersions, AStoreWhoseMapIsDamagedIsCopiedAnew) {
  begin_with_many_pages();
  write_far();
  damage_map(&target_);
  const auto scanned = target().scan_step();
  EXPECT_TRUE(is_corruption(scanned.status())) << scanned.status();
  EXPECT_TRUE(target().needs_copy());
  EXPECT_TRUE(is_corruption(target().status().trouble));
  set_up_copier({first_peer_});
  const Llsn last = write_some(10);
  mirror_to(&target_, source_.log().durable_lsn());
  catch_up(&source_);
  copy();
  EXPECT_FALSE(target().needs_copy());
  EXPECT_TRUE(target().status().trouble.ok()) << target().status().trouble;
  catch_up(&target_);
  expect_same(last);
}

TEST_P(CopyingVersions, WhatADamagedStoreStillHasStaysUntilAPeerOffersACopy) {  // PC5, CO2
  begin_with_many_pages();
  write_far();
  damage_map(&target_);
  EXPECT_TRUE(is_corruption(target().scan_step().status()));
  damage_map(&second_);
  EXPECT_TRUE(is_corruption(second_.store().list_pages({}, kPages, {}).status()));
  ASSERT_TRUE(target().needs_copy());
  ASSERT_TRUE(second_.store().needs_copy());
  // Each has the other one only.
  first_peer_->down = true;
  set_up_copier({first_peer_, second_peer_});
  StoreCopierOptions options;
  options.peers = {first_peer_, std::make_shared<LocalPeer>(&target_, "target")};
  StoreCopier second_copier(&second_.store(), options);
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(copier_->step().ok());
    EXPECT_FALSE(second_copier.step().ok());
  }
  for (TestStore* const node : {&target_, &second_}) {
    EXPECT_FALSE(node->store().status().copying);
    const Llsn known = node->store().status().streams.front().replayed.llsn;
    const auto answer = node->get_now(PageId{300, 0}, known);
    EXPECT_TRUE(source_.is_right(answer, PageId{300, 0}, known)) << answer.status();
  }
  first_peer_->down = false;
  copy(/*failures_max=*/1);
  catch_up(&target_);
  expect_same(source_.writer().last());
}

TEST_P(CopyingVersions, PagesOfAFileThatIsGoneAreMendedFromAPeer) {  // RP6
  begin_late();
  copy();
  ASSERT_TRUE(target().checkpoint().ok());
  PageAsker asker({first_peer_});
  target_.options().ask_peers = [&asker](const GetPageRequest& request, GetPageDone done) {
    asker.ask(request, std::move(done));
  };
  target_.options().page_cache_bytes = 0;
  target_.options().copy_when_damaged = true;
  target_.close();
  testing::lose_pages(&target_.disk(), "/node/versions");
  target_.open();
  // Whoever replays these needs what is gone.
  for (uint32_t number = 0; number < 20; ++number) source_.write_next(&rng_, {PageId{300, number}});
  const Llsn last = source_.writer().last();
  spread();
  asker.start();
  catch_up(&target_);
  EXPECT_GT(target().counters().pages_broken, 0u);
  EXPECT_TRUE(wait_until([&] {
    target_.replay_all();
    return target().counters().pages_repaired >= target().counters().pages_broken;
  }));
  for (const auto& [page, versions] : source_.writer().pages()) {
    GetPageRequest request;
    request.page = page;
    request.at_least = last;
    const auto answer = target().get_page(request);  // from the asker's thread, if damaged
    EXPECT_TRUE(source_.is_right(answer, page, last)) << answer.status();
  }
  asker.stop();
  EXPECT_FALSE(target().needs_copy());  // one by one was enough
}

constexpr auto kName = [](const auto& info) {
  constexpr const char* kNames[] = {"single", "eager", "filtered", "smart"};
  return std::string(kNames[static_cast<size_t>(info.param)]);
};
// Under TSan: the two modes with the most threads, of the two kinds of page store.
std::vector<ReplayMode> modes() {
  if (strata::testing::kThreadSanitizer) return {ReplayMode::kSingle, ReplayMode::kSmart};
  return {ReplayMode::kSingle, ReplayMode::kEager, ReplayMode::kFiltered, ReplayMode::kSmart};
}
INSTANTIATE_TEST_SUITE_P(Modes, Copying, ::testing::ValuesIn(modes()), kName);
INSTANTIATE_TEST_SUITE_P(Modes, CopyingLate, ::testing::ValuesIn(modes()), kName);
std::vector<ReplayMode> modes_with_versions() {
  std::vector<ReplayMode> all = modes();
  std::erase(all, ReplayMode::kSingle);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Modes, CopyingVersions, ::testing::ValuesIn(modes_with_versions()), kName);

}  // namespace
}  // namespace strata::storenode
