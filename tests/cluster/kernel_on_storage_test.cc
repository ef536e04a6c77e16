// Goal: a kernel whose log, pages and control data are on storage nodes is the same database
// wherever it is opened, and loses nothing when computes or a storage node stop. Method: whole
// nodes in one process over sockets and real files, every replay mode; what was committed is
// compared after each change of places.
#include "kernel_on_storage.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "base/testing/wait_until.h"
#include "clients/compute/start_again.h"

namespace strata::testing {
namespace {

using engine::Isolation;
using engine::TableRef;
using engine::testing::Row;

TEST_P(KernelOnStorage, IsTheSameDatabaseInEveryEmptyFolder) {
  open();
  for (int life = 0; life < 3; ++life) {
    const Status done = work(60);
    ASSERT_TRUE(done.ok()) << done;
    verify();
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_NO_FATAL_FAILURE(move());
    verify();
  }
  EXPECT_GT(compute_->pages_read(), 0u) << "pages came from storage nodes";
  EXPECT_EQ(compute_->bad_pages(), 0u);
}

// SPS6. Storage nodes that wait for the next append, or for a minute, to learn what is durable.
TEST_P(KernelOnStorage, WhoNeedsAPageDoesNotWaitForNewsOfTheLog) {
  news_delay_us_ = 60'000'000;
  open();
  for (int life = 0; life < 3; ++life) {
    ASSERT_TRUE(work(60).ok());
    const uint64_t begin_us = monotonic_us();
    ASSERT_NO_FATAL_FAILURE(move());
    verify();
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_LT(monotonic_us() - begin_us, 20'000'000u);
  }
}

TEST_P(KernelOnStorage, OneStorageNodeMayStopAndComeBack) {
  open();
  ASSERT_TRUE(work(50).ok());
  nodes_[0]->stop();
  const Status without = work(50);
  ASSERT_TRUE(without.ok()) << without;
  ASSERT_NO_FATAL_FAILURE(move());
  verify();
  nodes_[0]->start();
  ASSERT_TRUE(work(20).ok());
  // It has caught up once it alone, with one other, is a write quorum.
  EXPECT_TRUE(wait_until([&] {
    const auto state = nodes_[0]->logs()->status(kStream);
    return state.ok() && state->state.end >= compute_->sink()->durable_lsn();
  }));
  wait_in_sync();
  nodes_[1]->stop();
  const Status again = work(20);
  EXPECT_TRUE(again.ok()) << again;
  verify();
}

// The log is chosen, and the only node that is known to have all of it goes before it is read.
TEST_P(KernelOnStorage, AStartBeginsAgainWhenTheNodeWhoseLogItReadsDies) {
  open();
  nodes_[2]->stop();
  ASSERT_TRUE(work(20).ok());
  table_.reset();
  compute_->die();
  // Of two equal logs the first is chosen.
  const auto end_of = [this](size_t node) {
    return nodes_[node]->logs()->status(kStream)->state.end;
  };
  const size_t chosen = end_of(1) > end_of(0) ? 1 : 0;
  int starts = 0;
  compute_ = std::make_unique<ComputeNode>(&around_, "compute-2", GetParam());
  compute_->before_kernel = [&] {
    nodes_[2]->start();
    nodes_[chosen]->stop();
  };
  const auto opened = clients::start_again(60'000'000, [&]() -> StatusOr<bool> {
    ++starts;
    const Status status = compute_->open();
    if (status.ok()) return true;
    EXPECT_NE(status.message().find("went away"), std::string_view::npos) << status;
    compute_->die();
    return status;
  });
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(starts, 2);
  table_ = *compute_->kernel()->new_session()->open_table("test", "t");
  verify();
  ASSERT_TRUE(work(20).ok());
  nodes_[chosen]->start();
  verify();
}

TEST_P(KernelOnStorage, WithoutAWriteQuorumNothingIsAcknowledged) {
  std::atomic<bool> give_up{false};
  open("compute-1", [&] { return give_up.load(); });
  ASSERT_TRUE(work(30).ok());
  nodes_[0]->stop();
  nodes_[2]->stop();
  Row row;
  row.unique_value = 99'000'000;
  {
    auto session = compute_->kernel()->new_session();
    session->begin(Isolation::kRepeatableRead);
    Status done = engine::testing::insert(session.get(), table_, 99'000, row);
    give_up = true;
    if (done.ok()) done = session->commit();
    EXPECT_FALSE(done.ok()) << "one of three is no quorum";
  }
  table_.reset();
  compute_->die();
  nodes_[0]->start();
  nodes_[2]->start();
  ASSERT_NO_FATAL_FAILURE(open());
  // What became of it was unknown; it is there as a whole, or not at all.
  auto session = compute_->kernel()->new_session();
  session->begin(Isolation::kRepeatableRead);
  const auto rows = engine::testing::scan(session.get(), table_);
  ASSERT_TRUE(rows.ok()) << rows.status();
  if (rows->size() == committed_.size() + 1) committed_[99'000] = row;
  EXPECT_TRUE(session->rollback().ok());
  session.reset();
  verify();
}

// However long the outage: a commit that waits for the quorum is acknowledged when there is one
// again; changes are refused meanwhile with an error that says why, rows are read, and afterwards
// all goes on without a restart (QL2, W8).
TEST_P(KernelOnStorage, WorkGoesOnWhenTheQuorumComesBack) {
  log_late_after_us_ = 300'000;
  open();
  ASSERT_TRUE(work(30).ok());
  const auto insert = [&](uint64_t id, engine::Session* session) {
    Row row;
    row.unique_value = id * 1000;
    session->begin(Isolation::kRepeatableRead);
    Status done = engine::testing::insert(session, table_, id, row);
    if (done.ok()) done = session->commit();
    if (done.ok()) committed_[id] = row;
    return done;
  };
  for (uint64_t outage = 0; outage < 2; ++outage) {
    nodes_[0]->stop();
    nodes_[2]->stop();
    Status waited = error_internal("not done");
    std::thread waiter([&] {
      auto session = compute_->kernel()->new_session();
      waited = insert(99'000 + outage, session.get());
    });
    ASSERT_TRUE(wait_until([&] { return !compute_->sink()->late().ok(); }));
    const Status late = compute_->sink()->late();
    EXPECT_TRUE(is_peer_down(late)) << late;
    EXPECT_NE(late.message().find("no write quorum"), std::string::npos) << late;
    auto session = compute_->kernel()->new_session();
    session->begin(Isolation::kReadCommitted);
    Row row;
    row.unique_value = 98'000'000;
    const Status refused = engine::testing::insert(session.get(), table_, 98'000, row);
    EXPECT_EQ(refused.message(), late.message()) << refused;
    const Status undone = session->rollback();
    EXPECT_TRUE(undone.ok()) << undone;
    nodes_[0]->start();
    nodes_[2]->start();
    waiter.join();
    EXPECT_TRUE(waited.ok()) << waited;
    ASSERT_TRUE(wait_until([&] { return compute_->sink()->late().ok(); }));
    EXPECT_TRUE(insert(97'000 + outage, session.get()).ok());
    session.reset();
    ASSERT_TRUE(work(10).ok());
    verify();
  }
}

// A batch of the group commit that is larger than all that the quorum's writer retains (QL5).
TEST_P(KernelOnStorage, ALargeBatchIsWritten) {
  log_late_after_us_ = 2'000'000;
  retain_bytes_ = 4096;
  open();
  ASSERT_TRUE(work(100).ok());
  EXPECT_TRUE(compute_->sink()->late().ok());
  verify();
}

TEST_P(KernelOnStorage, ASecondComputeFencesTheFirst) {
  open();
  ASSERT_TRUE(work(50).ok());
  auto first = std::move(compute_);
  const TableRef first_table = table_;
  ASSERT_NO_FATAL_FAILURE(open("compute-2"));
  verify();
  // The first one notices with its next change, at the latest.
  auto session = first->kernel()->new_session();
  session->begin(Isolation::kRepeatableRead);
  Row row;
  row.unique_value = 99'000'000;
  Status changed = engine::testing::insert(session.get(), first_table, 99'000, row);
  if (changed.ok()) changed = session->commit();
  EXPECT_FALSE(changed.ok());
  EXPECT_FALSE(first->sink()->state().ok());
  ASSERT_TRUE(work(50).ok());
  verify();
  session.reset();
  first->die();
}

// Pages that a life wrote to one node only: the next one reads the newer copy, finds nothing to
// redo, and has to write it to the others all the same.
TEST_P(KernelOnStorage, CopiesThatDifferAreAlikeAfterRecovery) {  // WP3
  if (std::string_view(GetParam()) != "remote-disk") return;
  open();
  ASSERT_TRUE(work(60).ok());
  ASSERT_TRUE(compute_->kernel()->checkpoint().ok());
  ASSERT_TRUE(work(60).ok());
  for (const size_t node : {1, 2}) {  // they take the log, but no pages
    proto::Writer other = nodes_[node]->written()->session();
    other.session += 1000;
    ASSERT_TRUE(nodes_[node]->written()->begin(other, 0).ok());
  }
  EXPECT_FALSE(compute_->kernel()->checkpoint().ok()) << "one of three is no quorum";
  table_.reset();
  compute_->die();
  EXPECT_GT(copies_that_differ(), 0u) << "else this shows nothing";
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(compute_->kernel()->checkpoint().ok());
  EXPECT_EQ(compute_->written()->nodes()->states()[0].why, "");
  EXPECT_EQ(copies_that_differ(), 0u);
  verify();
}

// What tells one rung of the ladder from the next: who writes pages.
TEST_P(KernelOnStorage, PagesAreWrittenByComputeOnRemoteDiskOnly) {
  open();
  ASSERT_TRUE(work(50).ok());
  ASSERT_TRUE(compute_->kernel()->checkpoint().ok());
  uint64_t written = 0;
  for (const auto& node : nodes_)
    for (const auto& value : node->status().values)
      if (std::string_view(value.name) == "pages_written_total") written += value.value;
  if (std::string_view(GetParam()) == "remote-disk") {
    EXPECT_GT(written, 0u);
    EXPECT_EQ(written, 3 * compute_->written()->counters().pages_written);
  } else {
    EXPECT_EQ(written, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Profiles, KernelOnStorage,
                         ::testing::Values("remote-disk", "logdb", "logdb-mv", "logdb-mv-fr",
                                           "logdb-mv-sr"),
                         [](const auto& profile) {
                           std::string name = profile.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace strata::testing
