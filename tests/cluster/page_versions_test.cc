// Goal: pages come as of an older llsn, exactly so or not at all (SPS8), and what a reader holds is
// not collected. Method: the client of storage nodes against their real page service and page
// store, over sockets; the store's time and collection are driven by the test.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/clock.h"
#include "base/testing/wait_until.h"
#include "clients/storage/storage_page_source.h"
#include "daemon/worker_pool.h"
#include "storenode/replay/testing/test_store.h"
#include "storenode/service/page_service.h"
#include "transport/calls/rpc_server.h"
#include "transport/calls/testing/connections.h"
#include "transport/calls/testing/io_node.h"

namespace strata::testing {
namespace {

using daemon::WorkerPool;
using storenode::LogService;
using storenode::PageService;
using storenode::ReplayMode;
using storenode::testing::same_but_checksum;
using storenode::testing::TestStore;
using transport::test::secret_of;

constexpr PageId kPage{300, 1};
constexpr PageId kOther{300, 3};
constexpr uint64_t kReader = 77;

class PageVersions : public ::testing::TestWithParam<ReplayMode> {
 protected:
  PageVersions() : store_(GetParam()) {
    store_.options().now_us = monotonic_us;
    store_.options().leases.lease_us = 600'000'000;
    store_.open();
    for (int i = 0; i < 5; ++i) write();
    catch_up();
    service_ = std::make_unique<PageService>(
        &store_.store(), &logs_,
        [this](WorkerPool::Task task) { return workers_.run(std::move(task)); }, monotonic_us);
    server_ = std::make_unique<transport::RpcServer>(io_.world(), secret_of('s'),
                                                     transport::ServerOptions());
    service_->register_on(server_.get());
    EXPECT_TRUE(server_->listen(address_).ok());
    source_ = source_that_waits(20'000'000);  // longer than any pause of a busy machine
  }
  ~PageVersions() override {
    store_.store().stop();  // answers those that wait
    source_.reset();
    server_.reset();
    workers_.stop();
    service_.reset();
  }
  std::unique_ptr<clients::StoragePageSource> source_that_waits(uint64_t read_timeout_us) {
    clients::StoragePagesOptions options;  // of no stream: a reader
    options.addresses = {address_};
    options.read_timeout_us = read_timeout_us;
    options.wait_us = 20'000;
    return std::make_unique<clients::StoragePageSource>(secret_of('s'), options);
  }
  void write() { written_.push_back(store_.write_next(&rng_, {kPage, kOther})); }
  void catch_up() {
    store_.scan_all();
    store_.replay_all();
  }
  // Everything that nobody holds goes.
  void collect() {
    catch_up();
    ASSERT_TRUE(store_.store().raise_horizon().ok());
    ASSERT_TRUE(store_.store().checkpoint().ok());
    store_.collect_all();
  }
  Status read(PageId page, Llsn at_least, Llsn at_most) {
    return source_->read_version(page, at_least, at_most, page_.get());
  }
  void expect_exactly(PageId page, Llsn at) {
    const Status done = read(page, {}, at);
    ASSERT_TRUE(done.ok()) << at.value << ": " << done;
    const std::string* const want = store_.writer().at(page, at);
    ASSERT_NE(want, nullptr);
    EXPECT_EQ(header_of(page_.get())->llsn, header_of(want->data())->llsn);
    EXPECT_TRUE(same_but_checksum(page_.get(), want->data()));
  }
  [[nodiscard]] bool keeps_versions() const { return GetParam() != ReplayMode::kSingle; }

  Rng rng_{1};
  TestStore store_;
  std::vector<Llsn> written_;
  transport::test::Folder folder_;
  const std::string address_ = "unix:" + (folder_ / "socket");
  transport::test::IoNode io_;
  WorkerPool workers_{2, 100};
  LogService logs_{LogService::Parts{}};
  std::unique_ptr<PageService> service_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<clients::StoragePageSource> source_;
  const AlignedBytes page_{kPageBytes, 4096};
};
INSTANTIATE_TEST_SUITE_P(Modes, PageVersions,
                         ::testing::Values(ReplayMode::kSingle, ReplayMode::kEager,
                                           ReplayMode::kFiltered, ReplayMode::kSmart));

TEST_P(PageVersions, EveryStateThatIsKeptComesExactly) {
  for (const Llsn at : written_) {
    if (keeps_versions() || at == written_.back()) {
      expect_exactly(kPage, at);
      expect_exactly(kOther, at);
    } else {
      EXPECT_TRUE(is_out_of_range(read(kPage, {}, at))) << "never a newer one in its place";
    }
  }
  EXPECT_TRUE(is_not_found(read({300, 99}, {}, written_.back())));
  EXPECT_EQ(source_->counters().bad_pages, 0u);
}

TEST_P(PageVersions, TheUpperBoundIsNotBelowTheLowerOne) {
  const Status status = read(kPage, written_[3], written_[2]);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(read(kPage, written_[3], Llsn{UINT64_MAX}).ok()) << "no upper bound: as read()";
  EXPECT_GE(header_of(page_.get())->llsn, written_[3].value);
}

// Whether there is something between is not known before the log is.
TEST_P(PageVersions, AStateWhoseLogHasNotComeIsWaitedFor) {
  store_.store().start();
  const Status early = source_that_waits(100'000)->read_version(
      kPage, {}, Llsn{written_.back().value + 1}, page_.get());
  EXPECT_FALSE(early.ok() || is_out_of_range(early) || is_not_found(early)) << early;
  write();
  store_.store().retry();
  EXPECT_TRUE(wait_until([&] { return read(kPage, {}, written_.back()).ok(); }));
  expect_exactly(kPage, written_.back());
}

TEST_P(PageVersions, WhatAReaderHoldsIsNotCollectedAndTheRestSaysThatItIsGone) {
  if (!keeps_versions()) return;
  ASSERT_TRUE(source_->hold_versions(kReader, written_[2]).ok());
  for (int i = 0; i < 3; ++i) write();
  collect();
  for (size_t i = 2; i < written_.size(); ++i) expect_exactly(kPage, written_[i]);
  EXPECT_TRUE(is_out_of_range(read(kPage, {}, written_[1])));
  EXPECT_TRUE(is_out_of_range(source_->hold_versions(kReader + 1, written_[1])))
      << "nobody gets what is gone";
  ASSERT_TRUE(source_->hold_versions(kReader, written_[5]).ok()) << "it moves forward";
  collect();
  EXPECT_TRUE(is_out_of_range(read(kPage, {}, written_[4])));
  expect_exactly(kPage, written_[5]);
  source_->release_versions(kReader);
  collect();
  EXPECT_TRUE(is_out_of_range(read(kPage, {}, written_[5])));
  expect_exactly(kPage, written_.back());
}

}  // namespace
}  // namespace strata::testing
