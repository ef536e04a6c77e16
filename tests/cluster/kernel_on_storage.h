// A kernel on three storage nodes, random committed work, and what must come out again. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "page/page.h"
#include "storage_cluster.h"

namespace strata::testing {

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
  void open(const std::string& name = "compute-1", std::function<bool()> give_up_log = nullptr) {
    compute_ = std::make_unique<ComputeNode>(&around_, name, GetParam());
    compute_->give_up_log = std::move(give_up_log);
    compute_->log_late_after_us = log_late_after_us_;
    compute_->retain_bytes = retain_bytes_;
    compute_->news_delay_us = news_delay_us_;
    const Status opened = compute_->open();
    ASSERT_TRUE(opened.ok()) << opened;
    auto session = compute_->kernel()->new_session();
    if (!compute_->kernel()->table_exists("test", "t")) {
      session->begin(engine::Isolation::kRepeatableRead);
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

  // Where compute writes the pages: until a node that came back has all of them.
  void wait_in_sync() {
    if (compute_->written() == nullptr) return;
    EXPECT_TRUE(wait_until([&] {
      const auto states = compute_->written()->nodes()->states();
      return std::all_of(states.begin(), states.end(),
                         [](const auto& node) { return node.in_sync; });
    }));
  }

  // Pages of which not all nodes have the same version.
  size_t copies_that_differ() {
    size_t different = 0;
    const AlignedBytes page(kPageBytes, 4096);
    const auto llsn_of = [&](size_t node, PageId id) -> uint64_t {
      Status result;
      nodes_[node]->written()->read(&id, 1, page.get(), &result);
      return result.ok() ? header_of(page.get())->llsn : 0;
    };
    const auto spaces = nodes_[0]->written()->list_sizes();
    EXPECT_TRUE(spaces.ok());
    for (const proto::SpaceSize& space : *spaces)
      for (uint32_t number = 0; number < space.pages; ++number) {
        const PageId id{space.space.value, number};
        const uint64_t llsn = llsn_of(0, id);
        different += llsn_of(1, id) != llsn || llsn_of(2, id) != llsn ? 1 : 0;
      }
    return different;
  }

  // Random changes, each transaction committed or rolled back.
  Status work(int transactions) {
    auto session = compute_->kernel()->new_session();
    for (int i = 0; i < transactions; ++i) {
      engine::testing::Rows after = committed_;
      session->begin(engine::Isolation::kRepeatableRead);
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
  Status change(engine::Session* session, engine::testing::Rows* rows) {
    const uint64_t id = rng_.below(4000);
    const auto found = rows->find(id);
    if (found != rows->end() && rng_.one_in(4)) {
      STRATA_RETURN_IF_ERROR(engine::testing::remove(session, table_, id, found->second));
      rows->erase(found);
      return ok_status();
    }
    engine::testing::Row row;
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
    session->begin(engine::Isolation::kRepeatableRead);
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
  engine::TableRef table_;
  engine::testing::Rows committed_;
  uint64_t retain_bytes_ = quorum::QuorumOptions().retain_bytes;
  uint64_t log_late_after_us_ = 30'000'000;  // of the next compute node
  uint64_t news_delay_us_ = clients::QuorumClientOptions().news_delay_us;  // before open()
  Rng rng_{1};
};

}  // namespace strata::testing
