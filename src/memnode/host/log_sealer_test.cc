// Goal: LSE1-LSE4 and ERL1-ERL3: once a log is sealed nothing that its writer has under way becomes
// durable, whoever comes next gets the stream at once, and what fails (registry, storage nodes, the
// lease) is tried again; whether storage has all of a log is known from where it ends. Method:
// storage nodes in memory (clients/storage/testing/fake_log_node.h), the registry in memory.
#include "memnode/host/log_sealer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/data_format.h"
#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "clients/storage/quorum_log_sink.h"
#include "clients/storage/registry_control.h"
#include "clients/storage/testing/fake_log_node.h"
#include "memnode/host/earlier_logs.h"
#include "registry/sim/testing/sim_thread.h"
#include "transport/calls/testing/io_node.h"

namespace strata::memnode {
namespace {

using clients::testing::FakeLogNode;
using strata::testing::wait_until;
using transport::test::secret_of;

constexpr NodeId kServer{7};
constexpr StreamId kStream = cluster::log_stream_of(kServer);

class LogSealerTest : public ::testing::Test {
 protected:
  LogSealerTest() {
    set_diag_sink([](Severity, std::string_view) {});
    for (int i = 0; i < 3; ++i) {
      const std::string address = "unix:" + (folder_ / std::to_string(i));
      nodes_.push_back(std::make_unique<FakeLogNode>(io_.world(), address));
      addresses_.push_back(address);
    }
    lease_ = grant_lease();
  }
  ~LogSealerTest() override { set_diag_sink(nullptr); }

  clients::QuorumClientOptions storage() const {
    clients::QuorumClientOptions options;
    options.addresses = {addresses_.begin(), addresses_.end()};
    options.keys = addresses_;
    options.call_timeout_us = 100'000;
    options.tick_us = 10'000;
    return options;
  }
  std::unique_ptr<LogSealer> sealer() {
    return std::make_unique<LogSealer>(
        LogSealer::Parts{.registry = registry_.get(),
                         .keys = keys_,
                         .world = io_.world(),
                         .secret = secret_of('s'),
                         .holder = "memory-1",
                         .lease = [this]() -> std::shared_ptr<registry::Lease> {
                           return lease_is_lost_ ? nullptr : lease_;
                         },
                         .storage = [this] { return storage(); },
                         .call_timeout_us = 500'000,
                         .seal_timeout_us = seal_timeout_us_,
                         .again_us = 10'000});
  }
  std::shared_ptr<registry::Lease> grant_lease() {
    auto lease = registry_->grant_lease(
        600, [](registry::LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    return *std::move(lease);
  }
  uint64_t deadline() const { return registry_->now_us() + 5'000'000; }
  cluster::EpochGrant acquire(const std::string& holder, const registry::Lease& lease) {
    const auto grant = cluster::StreamEpochs(registry_.get(), keys_)
                           .acquire({kStream, holder, Epoch{}, {}}, lease, deadline());
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? *grant : cluster::EpochGrant{};
  }
  // The server's log, written under that epoch.
  std::unique_ptr<clients::QuorumLogSink> open_log(const cluster::EpochGrant& grant,
                                                   bool founding) {
    clients::QuorumLogOptions options;
    options.client = storage();
    options.client.stream = kStream;
    options.holder = {grant.epoch, grant.epoch.value};
    options.founding = founding;
    auto log = clients::QuorumLogSink::open(io_.world(), secret_of('s'), options);
    EXPECT_TRUE(log.ok()) << log.status();
    if (!log.ok()) return nullptr;
    at_ = founding ? (*log)->begin_lsn() : (*log)->room_end();
    EXPECT_TRUE((*log)->cut_at(at_).ok());
    EXPECT_TRUE((*log)->prepare_room(Lsn{1 << 30}).ok());
    return *std::move(log);
  }
  Status write(clients::QuorumLogSink* log) {
    STRATA_RETURN_IF_ERROR(log->append_whole(at_, std::string(64, 'w')));
    at_.value += 64;
    return log->sync();
  }
  // The stream's writer says from where on redo would begin.
  void publish(const cluster::EpochGrant& grant, Lsn checkpoint) {
    auto control = clients::RegistryControl::open(registry_.get(), keys_, grant, 5'000'000);
    ASSERT_TRUE(control.ok()) << control.status();
    ControlData data = (*control)->data();
    data.database_id = 1;
    data.profile = "remote-disk";
    data.checkpoint_lsn = checkpoint;
    const Status published = (*control)->publish(data);
    ASSERT_TRUE(published.ok()) << published;
  }
  Epoch last_epoch() {
    const auto now = cluster::StreamEpochs(registry_.get(), keys_).current(kStream, deadline());
    return now.ok() && now->has_value() ? (*now)->epoch : Epoch{};
  }
  void set_mute(bool mute) {
    for (const auto& node : nodes_) node->set_mute(mute);
  }

  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("main");
  transport::test::Folder folder_;
  transport::test::IoNode io_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<FakeLogNode>> nodes_;
  registry::testing::SimThread sim_;
  std::unique_ptr<registry::SimRegistry> registry_ = sim_.store().connect();
  std::shared_ptr<registry::Lease> lease_;
  std::atomic<bool> lease_is_lost_{false};
  uint64_t seal_timeout_us_ = 10'000'000;
  Lsn at_;
};

TEST_F(LogSealerTest, AStreamThatNobodyEverHadNeedsNoSeal) {
  const auto sealed = sealer()->seal_now(kStream);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_TRUE(sealed->epoch.is_zero());
  EXPECT_TRUE(last_epoch().is_zero()) << "no epoch was used up";
}

TEST_F(LogSealerTest, NothingOfAFencedServerBecomesDurable) {  // LSE1, LSE2
  const auto servers_lease = grant_lease();
  const auto grant = acquire("server-7", *servers_lease);
  const auto log = open_log(grant, true);
  ASSERT_NE(log, nullptr);
  ASSERT_TRUE(write(log.get()).ok());
  publish(grant, kFirstLsn);
  const auto sealed = sealer()->seal_now(kStream);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_GT(sealed->epoch, grant.epoch);
  EXPECT_EQ(sealed->end, at_);
  EXPECT_TRUE(is_fenced(write(log.get())));
  // LSE3, LSE4: the next life goes on where it ended.
  const auto next = acquire("server-7", *servers_lease);
  EXPECT_GT(next.epoch, sealed->epoch);
  const Lsn end = sealed->end;
  const auto again = open_log(next, false);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(at_, end);
  EXPECT_TRUE(write(again.get()).ok());
}

TEST_F(LogSealerTest, ALogThatWasOnlyBegunToBeFoundedIsSealed) {
  const auto grant = acquire("server-7", *lease_);
  const auto sealed = sealer()->seal_now(kStream);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_GT(sealed->epoch, grant.epoch);
}

TEST_F(LogSealerTest, SilentStorageIsAskedAgain) {  // LSE4
  const auto servers_lease = grant_lease();
  const auto log = open_log(acquire("server-7", *servers_lease), true);
  ASSERT_NE(log, nullptr);
  seal_timeout_us_ = 50'000;
  const auto sealing = sealer();
  set_mute(true);
  EXPECT_TRUE(is_peer_down(sealing->seal_now(kStream).status()));
  std::atomic<int> told{0};
  Status outcome;
  sealing->seal(kStream, [&](const Status& status) {
    outcome = status;
    ++told;
  });
  EXPECT_TRUE(wait_until([&] { return !sealing->last_failure().ok(); }));
  EXPECT_EQ(told, 0);
  set_mute(false);
  EXPECT_TRUE(wait_until([&] { return told == 1; }));
  EXPECT_TRUE(outcome.ok()) << outcome;
  EXPECT_TRUE(sealing->last_failure().ok());
  EXPECT_TRUE(is_fenced(write(log.get())));
}

TEST_F(LogSealerTest, TheRegistryIsAskedAgain) {  // LSE4
  const auto servers_lease = grant_lease();
  const auto log = open_log(acquire("server-7", *servers_lease), true);
  ASSERT_NE(log, nullptr);
  const auto sealing = sealer();
  lease_is_lost_ = true;
  std::atomic<int> told{0};
  sealing->seal(kStream, [&](const Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    ++told;
  });
  EXPECT_TRUE(wait_until([&] { return is_lease_lost(sealing->last_failure()); }));
  EXPECT_TRUE(write(log.get()).ok()) << "nothing was sealed yet";
  EXPECT_EQ(told, 0);
  lease_is_lost_ = false;
  EXPECT_TRUE(wait_until([&] { return told == 1; }));
  EXPECT_TRUE(is_fenced(write(log.get())));
}

TEST_F(LogSealerTest, AStopEndsWhatWaits) {
  const auto servers_lease = grant_lease();
  ASSERT_NE(open_log(acquire("server-7", *servers_lease), true), nullptr);
  const auto sealing = sealer();
  set_mute(true);
  std::atomic<int> interrupted{0};
  for (int i = 0; i < 3; ++i)
    sealing->seal(kStream, [&](const Status& status) {
      EXPECT_TRUE(is_interrupted(status)) << status;
      ++interrupted;
    });
  sealing->stop();
  EXPECT_EQ(interrupted, 3);
  sealing->seal(kStream, [&](const Status& status) {
    EXPECT_TRUE(is_interrupted(status));
    ++interrupted;
  });
  EXPECT_EQ(interrupted, 4);
}

// --- whether storage has all of it ---

fusion::AuthorityRecord record_with(bool member, bool fenced) {
  fusion::AuthorityRecord record;
  record.epoch = Epoch{1};
  record.fences = 1;
  if (member) record.members.push_back({kServer, 1, 0});
  if (fenced) record.fenced.push_back({kServer, 1});
  return record;
}

class EarlierLogsTest : public LogSealerTest {
 protected:
  EarlierLogs logs(const fusion::AuthorityRecord& record) {
    return {record, sealer_.get(), registry_.get(), keys_, 5'000'000};
  }
  static bool lacks_nothing(EarlierLogs* earlier) {
    const auto lacking = earlier->lacking();
    return lacking.ok() && lacking->empty();
  }
  std::unique_ptr<LogSealer> sealer_ = sealer();
};

TEST_F(EarlierLogsTest, WhoWasNeverAMemberIsNotLookedAt) {  // ERL1
  const auto log = open_log(acquire("server-7", *lease_), true);
  ASSERT_NE(log, nullptr);
  ASSERT_TRUE(write(log.get()).ok());
  EarlierLogs earlier = logs(record_with(false, false));
  EXPECT_EQ(earlier.servers(), 0u);
  EXPECT_TRUE(lacks_nothing(&earlier));
  EXPECT_TRUE(write(log.get()).ok());
}

TEST_F(EarlierLogsTest, AMemberThatNeverHadALogHoldsNothing) {
  EarlierLogs earlier = logs(record_with(true, true));
  EXPECT_TRUE(lacks_nothing(&earlier));
}

TEST_F(EarlierLogsTest, ALogThatGoesOnBehindItsCheckpointIsWaitedFor) {  // ERL2, ERL3
  for (const bool member : {true, false}) {
    SCOPED_TRACE(member);
    const auto servers_lease = grant_lease();
    const auto grant = acquire("server-7", *servers_lease);
    const auto log = open_log(grant, member);  // the first time it is founded
    ASSERT_NE(log, nullptr);
    ASSERT_TRUE(write(log.get()).ok());
    publish(grant, Lsn{at_.value - 64});
    EarlierLogs earlier = logs(record_with(member, !member));
    EXPECT_EQ(earlier.servers(), 1u);
    const auto lacking = earlier.lacking();
    ASSERT_TRUE(lacking.ok()) << lacking.status();
    EXPECT_EQ(*lacking, std::vector<StreamId>{kStream});
    const Lsn end = at_;
    EXPECT_TRUE(is_fenced(write(log.get()))) << "it is sealed";
    at_ = end;  // whether or not it was appended before it was refused
    // Whoever redoes it moves the checkpoint.
    const auto redoer = acquire("adopter", *servers_lease);
    publish(redoer, at_);
    EXPECT_TRUE(lacks_nothing(&earlier));
    EXPECT_TRUE(cluster::StreamEpochs(registry_.get(), keys_).release(redoer, deadline()).ok());
  }
}

TEST_F(EarlierLogsTest, ADatabaseThatWasNotFoundedIsNone) {  // ERL3
  const auto log = open_log(acquire("server-7", *lease_), true);
  ASSERT_NE(log, nullptr);
  ASSERT_TRUE(write(log.get()).ok());
  EarlierLogs earlier = logs(record_with(true, false));
  EXPECT_TRUE(lacks_nothing(&earlier));
}

TEST_F(EarlierLogsTest, StorageThatDoesNotAnswerIsNoAnswer) {
  const auto grant = acquire("server-7", *lease_);
  ASSERT_NE(open_log(grant, true), nullptr);
  publish(grant, at_);
  sealer_.reset();
  seal_timeout_us_ = 50'000;
  sealer_ = sealer();
  set_mute(true);
  EarlierLogs earlier = logs(record_with(true, false));
  EXPECT_TRUE(is_peer_down(earlier.lacking().status()));
  set_mute(false);
  EXPECT_TRUE(wait_until([&] { return lacks_nothing(&earlier); }));
}

}  // namespace
}  // namespace strata::memnode
