// Goal: a kernel whose log, pages and control data are on storage nodes is the same database
// wherever it is opened, and loses nothing when computes or a storage node stop. Method: whole
// nodes in one process over sockets and real files, every replay mode; what was committed is
// compared after each change of places.
#include <gtest/gtest.h>

#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "storage_cluster.h"

namespace strata::testing {
namespace {

using engine::Isolation;
using engine::Session;
using engine::TableRef;
using engine::testing::Row;
using engine::testing::Rows;

class KernelOnStorage : public ::testing::TestWithParam<const char*> {
 protected:
  KernelOnStorage() {
    set_diag_sink([](Severity, std::string_view) {});
    for (int i = 0; i < 3; ++i)
      around_.addresses.push_back("unix:" + (folder_ / ("socket-" + std::to_string(i))));
    for (size_t i = 0; i < 3; ++i)
      nodes_.push_back(std::make_unique<StorageNode>(
          &around_, i, folder_ / ("node-" + std::to_string(i)), GetParam()));
  }
  ~KernelOnStorage() override { compute_.reset(); }

  // Another process, another folder.
  void open(const std::string& name = "compute-1", uint64_t sync_timeout_us = 20'000'000) {
    compute_ = std::make_unique<ComputeNode>(&around_, name, GetParam());
    compute_->sync_timeout_us = sync_timeout_us;
    const Status opened = compute_->open();
    ASSERT_TRUE(opened.ok()) << opened;
    auto session = compute_->kernel()->new_session();
    if (!compute_->kernel()->table_exists("test", "t")) {
      session->begin(Isolation::kRepeatableRead);
      ASSERT_TRUE(session->create_table(engine::testing::table_spec("t"), nullptr).ok());
      ASSERT_TRUE(session->commit().ok());
    }
    table_ = *session->open_table("test", "t");
  }
  void move() {
    table_.reset();
    compute_->die();
    open();
  }

  // Random changes, each transaction committed or rolled back.
  Status work(int transactions) {
    auto session = compute_->kernel()->new_session();
    for (int i = 0; i < transactions; ++i) {
      Rows after = committed_;
      session->begin(Isolation::kRepeatableRead);
      for (uint64_t n = 1 + rng_.below(20); n > 0; --n) {
        STRATA_RETURN_IF_ERROR(change(session.get(), &after));
      }
      if (rng_.one_in(5)) {
        STRATA_RETURN_IF_ERROR(session->rollback());
      } else {
        STRATA_RETURN_IF_ERROR(session->commit());
        committed_ = std::move(after);
      }
    }
    return ok_status();
  }
  Status change(Session* session, Rows* rows) {
    const uint64_t id = rng_.below(4000);
    const auto found = rows->find(id);
    if (found != rows->end() && rng_.one_in(4)) {
      STRATA_RETURN_IF_ERROR(engine::testing::remove(session, table_, id, found->second));
      rows->erase(found);
      return ok_status();
    }
    Row row;
    row.unique_value = id * 1000 + rng_.below(1000);
    row.group = static_cast<uint32_t>(rng_.below(50));
    row.text = std::string(rng_.below(rng_.one_in(20) ? 4000 : 400),
                           'a' + static_cast<char>(rng_.below(26)));
    STRATA_RETURN_IF_ERROR(found == rows->end() ? engine::testing::insert(session, table_, id, row)
                                                : engine::testing::update(session, table_, id,
                                                                          found->second, id, row));
    (*rows)[id] = row;
    return ok_status();
  }

  void verify() {
    auto session = compute_->kernel()->new_session();
    session->begin(Isolation::kRepeatableRead);
    for (const uint32_t index : {0u, 1u, 2u}) {
      const auto rows = engine::testing::scan(session.get(), table_, index);
      ASSERT_TRUE(rows.ok()) << rows.status();
      EXPECT_EQ(rows->size(), committed_.size());
      EXPECT_TRUE(*rows == committed_) << "through index " << index;
    }
    EXPECT_TRUE(session->rollback().ok());
    engine::testing::expect_consistent(compute_->kernel(), table_);
  }

  transport::test::Folder folder_;
  Surroundings around_;
  std::vector<std::unique_ptr<StorageNode>> nodes_;
  std::unique_ptr<ComputeNode> compute_;
  TableRef table_;
  Rows committed_;
  Rng rng_{1};
};

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
  EXPECT_GT(compute_->source()->counters().pages, 0u) << "pages came from storage nodes";
  EXPECT_EQ(compute_->source()->counters().bad_pages, 0u);
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
  nodes_[1]->stop();
  const Status again = work(20);
  EXPECT_TRUE(again.ok()) << again;
  verify();
}

TEST_P(KernelOnStorage, WithoutAWriteQuorumNothingIsAcknowledged) {
  open("compute-1", /*sync_timeout_us=*/500'000);
  ASSERT_TRUE(work(30).ok());
  nodes_[0]->stop();
  nodes_[2]->stop();
  Row row;
  row.unique_value = 99'000'000;
  {
    auto session = compute_->kernel()->new_session();
    session->begin(Isolation::kRepeatableRead);
    Status done = engine::testing::insert(session.get(), table_, 99'000, row);
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

INSTANTIATE_TEST_SUITE_P(Profiles, KernelOnStorage,
                         ::testing::Values("logdb", "logdb-mv", "logdb-mv-fr", "logdb-mv-sr"),
                         [](const auto& profile) {
                           std::string name = profile.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace strata::testing
