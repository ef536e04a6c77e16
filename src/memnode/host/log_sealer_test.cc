// Goal: LSE1-LSE5 and ERL1-ERL3: once a log is sealed nothing that its writer has under way becomes
// durable, whoever comes next gets the stream at once, and what fails (registry, storage nodes, the
// lease) is tried again; whether storage has all of a log is known from where it ends. Method:
// storage nodes in memory (clients/storage/testing/fake_log_node.h), the registry in memory.
#include "memnode/host/log_sealer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/testing/wait_until.h"
#include "memnode/host/earlier_logs.h"
#include "memnode/host/testing/servers_log.h"

namespace strata::memnode {
namespace {

using strata::testing::wait_until;
using testing::kServer;
using testing::kStream;

class LogSealerTest : public testing::ServersLogTest {
 protected:
  std::unique_ptr<LogSealer> sealer() { return std::make_unique<LogSealer>(parts()); }
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

// Else a node that came meanwhile, and promised nothing, would go on for the epoch before.
TEST_F(LogSealerTest, ThePlacementIsReadAfterTheEpochWasGiven) {  // LSE5
  const auto servers_lease = grant_lease();
  const auto grant = acquire("server-7", *servers_lease);
  const auto log = open_log(grant, true);
  ASSERT_NE(log, nullptr);
  const auto sealing = sealer();
  placement_failure_ = error_timed_out("the registry does not answer");
  EXPECT_TRUE(is_timed_out(sealing->seal_now(kStream).status()));
  EXPECT_GT(epoch_when_read_, grant.epoch);
  EXPECT_TRUE(write(log.get()).ok()) << "nobody was asked by an older placement";
  placement_failure_ = ok_status();
  const auto sealed = sealing->seal_now(kStream);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(epoch_when_read_, sealed->epoch);
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
