// Goal: a storage node that lost its folder after the log was cut off makes itself whole from its
// peers while a kernel writes, and what is damaged on one node is mended. Method: whole nodes in
// one process over sockets and real files, every replay mode; all pages of all nodes are compared
// byte for byte, and the rows when only the new node and one other are left.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/wait_until.h"
#include "kernel_on_storage.h"

namespace strata::testing {
namespace {

class PageCopy : public KernelOnStorage {
 protected:
  PageCopy() {
    for (const auto& node : nodes_) {
      node->stop();
      node->options().pages.checkpoint_interval_us = 100'000;
      node->options().pages.leases.lease_us = 100'000;
      node->options().pages.replay_lag_bytes = 0;
      node->options().log.segment_bytes = 64u << 10;
      node->options().log.spare_segments_max = 0;
      node->start();
    }
  }
  Lsn log_begin(size_t node) { return nodes_[node]->logs()->status(kStream)->state.start; }
  // So much that every node has cut off its log.
  void work_until_cut() {
    const bool cut = wait_until([&] {
      EXPECT_TRUE(work(5).ok());
      return log_begin(0) > kFirstLsn && log_begin(1) > kFirstLsn && log_begin(2) > kFirstLsn;
    });
    ASSERT_TRUE(cut);
  }
  // Healthy, and with all of the log.
  bool is_whole(size_t node) {
    const auto log = nodes_[node]->logs()->status(kStream);
    return log.ok() && log->state.voting && log->state.end >= compute_->sink()->durable_lsn() &&
           nodes_[node]->health().ok() && nodes_[node]->pages()->backlog_bytes() == 0;
  }
  void expect_equal_pages() {
    std::string difference;
    size_t compared = 0;
    // What the kernel does in the background ends soon.
    const bool equal = wait_until([&] {
      for (size_t i = 0; i < 3; ++i)
        if (!is_whole(i)) {
          difference = "node " + std::to_string(i) + " lags";
          return false;
        }
      difference = different_pages({nodes_[0].get(), nodes_[1].get(), nodes_[2].get()}, &compared);
      return difference.empty();
    });
    EXPECT_TRUE(equal) << difference;
    EXPECT_GT(compared, 20u);
  }
};

TEST_P(PageCopy, ANodeThatLostItsFolderIsWholeAgainAndTheOthersMayGo) {
  open();
  ASSERT_NO_FATAL_FAILURE(work_until_cut());
  nodes_[0]->stop();
  nodes_[0]->wipe();
  ASSERT_TRUE(work(20).ok());
  nodes_[0]->start();
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_TRUE(wait_until([&] {
    EXPECT_TRUE(work(1).ok());  // commits go on
    return nodes_[0]->value("copies_total") == 1;
  })) << nodes_[0]->health();
  EXPECT_TRUE(wait_until([&] { return is_whole(0); })) << nodes_[0]->health();
  EXPECT_GT(nodes_[0]->value("pages_copied"), 0u);
  ASSERT_NO_FATAL_FAILURE(expect_equal_pages());
  // With one other at a time, under a kernel that has nothing in memory.
  nodes_[1]->stop();
  ASSERT_TRUE(work(20).ok());
  ASSERT_NO_FATAL_FAILURE(move());
  verify();
  nodes_[1]->start();
  EXPECT_TRUE(wait_until([&] { return is_whole(1); }));
  nodes_[2]->stop();
  ASSERT_TRUE(work(20).ok());
  ASSERT_NO_FATAL_FAILURE(move());
  verify();
}

class PageMending : public PageCopy {};

TEST_P(PageMending, WhatIsDamagedOnOneNodeIsMended) {
  open();
  ASSERT_NO_FATAL_FAILURE(work_until_cut());
  ASSERT_TRUE(work(20).ok());
  EXPECT_TRUE(wait_until([&] { return is_whole(0); }));
  const std::filesystem::path folder = nodes_[0]->options().directory;
  nodes_[0]->stop();
  // A byte in the middle of each of the log's files, and of what holds pages; one file of the log
  // is gone.
  std::vector<std::filesystem::path> segments;
  uint64_t flipped = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("log-")) segments.push_back(entry.path());
    const bool holds_pages = name.ends_with(".blob") || name.starts_with("space-0000");
    if (!name.starts_with("log-") && !holds_pages) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(holds_pages ? 3 * kPageBytes / 2 : 5000);
    if (entry.file_size() <= static_cast<uint64_t>(at)) continue;
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 0x10));
    ++flipped;
  }
  ASSERT_GT(flipped, 0u);
  std::sort(segments.begin(), segments.end());
  if (segments.size() > 2) std::filesystem::remove(segments[segments.size() / 2]);
  std::filesystem::remove(folder / "pages" / "pages" / "double-write.pages");
  nodes_[0]->start();
  ASSERT_TRUE(work(20).ok());
  (void)nodes_[0]->logs()->verify(kStream);
  EXPECT_TRUE(wait_until([&] { return is_whole(0); })) << nodes_[0]->health();
  // Reading everything there mends what it meets.
  const auto listing = nodes_[1]->pages()->list_pages({}, 100'000, {});
  ASSERT_TRUE(listing.ok());
  const auto offer = nodes_[1]->pages()->offer_copy();
  ASSERT_TRUE(offer.ok());
  for (const PageId page : listing->pages) {
    storenode::GetPageRequest request;
    request.page = page;
    request.at_least = offer->newest;
    request.deadline_us = monotonic_us() + 10'000'000;
    const auto got = nodes_[0]->pages()->get_page(request);
    EXPECT_TRUE(got.ok() || is_not_found(got.status())) << got.status();
  }
  ASSERT_NO_FATAL_FAILURE(expect_equal_pages());
  verify();
}

// The log that is chosen is damaged on its node: the start reads that part from the other one.
TEST_P(PageMending, AStartReadsAroundADamagedLog) {
  open();
  nodes_[2]->stop();
  ASSERT_TRUE(work(60).ok());
  table_.reset();
  compute_->die();
  const std::filesystem::path folder = nodes_[0]->options().directory;
  nodes_[0]->stop();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    constexpr std::streamoff kAt = 5000;
    if (!entry.path().filename().string().starts_with("log-") || entry.file_size() <= kAt) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(kAt);
    const int byte = file.get();
    file.seekp(kAt);
    file.put(static_cast<char>(byte ^ 0x10));
  }
  nodes_[0]->start();
  ASSERT_NO_FATAL_FAILURE(open());
  verify();
  nodes_[2]->start();
  ASSERT_TRUE(work(5).ok());
  const auto is_mended = [&] {
    const auto log = nodes_[0]->logs()->status(kStream);
    return log.ok() && log->damages.empty();
  };
  EXPECT_TRUE(wait_until(is_mended));
  EXPECT_GT(nodes_[0]->value("log_mended_total"), 0u);
}

constexpr auto kName = [](const auto& profile) {
  std::string name = profile.param;
  std::erase(name, '-');
  return name;
};
// The modes between them differ in what storenode/copy's own tests cover.
INSTANTIATE_TEST_SUITE_P(Profiles, PageCopy, ::testing::Values("logdb", "logdb-mv-sr"), kName);
INSTANTIATE_TEST_SUITE_P(Profiles, PageMending, ::testing::Values("logdb", "logdb-mv-sr"), kName);

}  // namespace
}  // namespace strata::testing
