// Goal: what is different where timestamps come from another node and other nodes read this one's
// table (T8, T14, MW19, MW20): nothing is fetched under a mutex or twice, the mark is there before
// the fetch, and whoever meets it waits for what comes of it, and no longer.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fault.h"
#include "base/testing/wait_until.h"
#include "txn/testing/trx_store.h"
#include "txn/trx_system.h"

namespace strata {
namespace {

using testing::TrxStore;

class RemoteClock final : public TimestampSource {
 public:
  std::function<void()> on_next = [] {};
  Status failure;
  std::atomic<uint64_t> fetches{0};
  [[nodiscard]] bool is_remote() const noexcept override { return true; }
  StatusOr<Cts> next() override {
    fetches.fetch_add(1);
    if (!failure.ok()) return failure;
    on_next();
    return Cts{last_.fetch_add(1) + 1};
  }
  StatusOr<Cts> current() override {
    fetches.fetch_add(1);
    if (!failure.ok()) return failure;
    return Cts{last_.load()};
  }
  Status raise_to(Cts) override { return ok_status(); }

 private:
  std::atomic<uint64_t> last_{100};
};

struct FixedHorizon final : ViewHorizon {
  Cts heard{1};
  const OwnViews* own = nullptr;
  Status join(NodeId, const OwnViews* views) override {
    own = views;
    return ok_status();
  }
  void leave(NodeId) noexcept override {}
  [[nodiscard]] Cts known() const noexcept override { return heard; }
  StatusOr<Cts> newest() override { return heard; }
};

struct Shown final : PublishedSlots {
  std::vector<std::pair<uint64_t, std::string>> said;
  void claim(uint64_t sequence, TrxState) noexcept override {
    said.emplace_back(sequence, "claimed");
  }
  void set(uint64_t sequence, TrxState state, Cts cts) noexcept override {
    said.emplace_back(sequence,
                      std::to_string(static_cast<int>(state)) + (cts.is_zero() ? "" : " cts"));
  }
  void set_ended(uint64_t sequence, Cts) noexcept override { said.emplace_back(sequence, "ended"); }
  void made_durable(uint64_t sequence, Cts) noexcept override {
    said.emplace_back(sequence, "durable");
  }
};

struct Others final : TitSource {
  Shown shown;
  OwnTransactions* own = nullptr;
  Status join(NodeId, OwnTransactions* mine) override {
    own = mine;
    return ok_status();
  }
  void leave(NodeId) noexcept override {}
  StatusOr<TrxLookup> read(TrxId) override { return error_not_found(); }
  StatusOr<TrxLookup> wait_decided(TrxId) override { return error_not_found(); }
  [[nodiscard]] PublishedSlots* published() noexcept override { return &shown; }
};

struct RemoteClockTest : ::testing::Test {
  RemoteClock clock;
  FixedHorizon horizon;
  Others others;
  TrxStore db{8, 256, {&clock, &horizon, &others}};
  TrxSystem* trxs() { return db.trxs(); }
  void TearDown() override { disarm_faults(); }

  std::unique_ptr<Trx> begin() {
    auto trx = std::make_unique<Trx>();
    trxs()->begin(trx.get());
    return trx;
  }
  std::unique_ptr<Trx> begin_with_change() {
    auto trx = begin();
    EXPECT_TRUE(db.change(trx.get(), "key").ok());
    return trx;
  }
  std::unique_ptr<Trx> begin_with_view() {
    auto trx = begin();
    EXPECT_TRUE(trxs()->open_view(trx.get()).ok());
    return trx;
  }
  void end(Trx* trx) { EXPECT_TRUE(trxs()->commit(trx).ok()); }
  TrxLookup found(TrxId id) {
    TrxLookup out;
    EXPECT_TRUE(trxs()->lookup_fast(id, &out));
    return out;
  }
  static RecordHeader version_of(TrxId id) { return RecordHeader{id, Cts{}, UndoPtr{}, 0}; }
};

TEST_F(RemoteClockTest, AViewAndACommitCostOneFetchEach) {  // T8
  const uint64_t before = clock.fetches.load();
  auto reader = begin_with_view();
  EXPECT_EQ(clock.fetches.load(), before + 1);
  auto writer = begin_with_change();
  ASSERT_TRUE(trxs()->commit(writer.get()).ok());
  EXPECT_EQ(clock.fetches.load(), before + 2);
  EXPECT_EQ(horizon.own->oldest_own_view(), reader->view.snapshot);
  end(reader.get());
  auto idle = begin();
  end(idle.get());
  EXPECT_EQ(clock.fetches.load(), before + 3);  // the horizon's
}

TEST_F(RemoteClockTest, TheMarkIsThereBeforeTheFetchAndNothingIsHeldDuringIt) {  // T14, MW19
  auto early = begin_with_view();
  auto writer = begin_with_change();
  const TrxId id = writer->id;
  bool looked = false;
  clock.on_next = [&] {
    looked = true;
    EXPECT_EQ(found(id).state, TrxState::kCommitting);  // would wait for the commit mutex
    EXPECT_TRUE(found(id).cts.is_zero());
    EXPECT_EQ(others.shown.said.back().second, "3");
    EXPECT_TRUE(is_busy(trxs()->visible(early->view, version_of(id), false).status()));
  };
  ASSERT_TRUE(trxs()->reserve_commit(writer.get()).ok());
  EXPECT_TRUE(looked);
  EXPECT_EQ(found(id).cts, writer->cts);
  EXPECT_EQ(others.shown.said.back().second, "3 cts");
  // Now that its cts is known, nobody older waits for it.
  EXPECT_FALSE(*trxs()->visible(early->view, version_of(id), false));
  auto late = begin_with_view();
  EXPECT_TRUE(is_busy(trxs()->visible(late->view, version_of(id), false).status()));
  EXPECT_TRUE(*trxs()->is_undecided(id, TrxId{}));
  ASSERT_TRUE(trxs()->commit_order(writer.get()).ok());
  ASSERT_TRUE(trxs()->commit_finish(writer.get()).ok());
  EXPECT_TRUE(*trxs()->visible(late->view, version_of(id), false));
  EXPECT_FALSE(*trxs()->visible(early->view, version_of(id), false));
  end(early.get());
  end(late.get());
}

// A reader in a thread of its own that waits for what comes of a mark.
struct WaitingReader {
  WaitingReader(RemoteClockTest* test, Trx* reader, TrxId id)
      : thread([=, this] {
          const InterruptScope scope(&reader->interrupt);
          result = test->trxs()->visible(reader->view, RemoteClockTest::version_of(id), true);
        }) {
    EXPECT_TRUE(
        testing::wait_until([&] { return test->trxs()->counters().commit_waits.load() != 0; }));
  }
  StatusOr<bool> get() {
    thread.join();
    return result;
  }
  StatusOr<bool> result = false;
  std::thread thread;
};

TEST_F(RemoteClockTest, AReaderOfAMarkSeesTheCommitThatComesOfIt) {  // T14
  auto writer = begin_with_change();
  const TrxId id = writer->id;
  ASSERT_TRUE(trxs()->reserve_commit(writer.get()).ok());
  auto reader = begin_with_view();
  WaitingReader waiting(this, reader.get(), id);
  ASSERT_TRUE(trxs()->commit_order(writer.get()).ok());
  ASSERT_TRUE(trxs()->commit_finish(writer.get()).ok());
  EXPECT_TRUE(*waiting.get());
  end(reader.get());
}

TEST_F(RemoteClockTest, AReaderOfAMarkDoesNotSeeTheCommitThatIsGivenUp) {  // T14
  auto writer = begin_with_change();
  const TrxId id = writer->id;
  ASSERT_TRUE(trxs()->reserve_commit(writer.get()).ok());
  auto reader = begin_with_view();
  WaitingReader waiting(this, reader.get(), id);
  ASSERT_TRUE(trxs()->begin_rollback(writer.get()).ok());
  EXPECT_EQ(found(id).state, TrxState::kActive);
  EXPECT_FALSE(*waiting.get());
  ASSERT_TRUE(db.rollback_to(writer.get(), UndoPtr{}).ok());
  ASSERT_TRUE(trxs()->finish_rollback(writer.get()).ok());
  EXPECT_FALSE(*trxs()->visible(reader->view, version_of(id), true));
  end(reader.get());
}

TEST_F(RemoteClockTest, AWaitForAMarkEndsByTheLockWaitTimeoutAndByKill) {  // T14
  auto writer = begin_with_change();
  const TrxId id = writer->id;
  ASSERT_TRUE(trxs()->reserve_commit(writer.get()).ok());
  auto reader = begin();
  reader->lock_wait_timeout_us = 1000;
  ASSERT_TRUE(trxs()->open_view(reader.get()).ok());
  EXPECT_TRUE(is_lock_wait_timeout(trxs()->visible(reader->view, version_of(id), true).status()));
  end(reader.get());
  auto killed = begin_with_view();
  {
    const InterruptScope scope(&killed->interrupt);
    killed->interrupt.interrupt();
    EXPECT_TRUE(is_interrupted(trxs()->visible(killed->view, version_of(id), true).status()));
  }
  killed->interrupt.clear();
  end(killed.get());
  ASSERT_TRUE(trxs()->commit_order(writer.get()).ok());
  ASSERT_TRUE(trxs()->commit_finish(writer.get()).ok());
}

TEST_F(RemoteClockTest, WithoutATimestampATransactionIsAsBefore) {  // T14
  auto writer = begin_with_change();
  const TrxId id = writer->id;
  clock.failure = error_lease_lost();
  EXPECT_TRUE(is_lease_lost(trxs()->reserve_commit(writer.get())));
  EXPECT_EQ(found(id).state, TrxState::kActive);
  clock.failure = ok_status();
  ASSERT_TRUE(trxs()->reserve_commit(writer.get()).ok());
  arm_fault("commit_before_log:1:error");
  EXPECT_FALSE(trxs()->commit_order(writer.get()).ok());
  EXPECT_EQ(found(id).state, TrxState::kActive);
  disarm_faults();
  const Cts before = *clock.current();
  ASSERT_TRUE(trxs()->commit(writer.get()).ok());
  EXPECT_GT(writer->cts, before);  // not the one of the commit that was given up
}

// T7: what could not be stamped when it was rolled back holds the bound no longer than the clock is
// away.
TEST_F(RemoteClockTest, ARollbackThatGetsNoTimestampGetsOneLater) {
  auto writer = begin_with_change();
  const uint64_t sequence = sequence_of(writer->id);
  clock.failure = error_peer_down();
  ASSERT_TRUE(db.rollback(writer.get()).ok());
  horizon.heard = Cts{1000};
  db.purge_all();
  EXPECT_LE(trxs()->all_visible_below(), sequence);
  clock.failure = ok_status();
  db.purge_all();
  EXPECT_GT(trxs()->all_visible_below(), sequence);
}

TEST_F(RemoteClockTest, OthersAreShownACommitOnceItIsDurable) {  // MW20
  auto writer = begin_with_change();
  const uint64_t sequence = sequence_of(writer->id);
  ASSERT_TRUE(trxs()->reserve_commit(writer.get()).ok());
  ASSERT_TRUE(trxs()->commit_order(writer.get()).ok());
  ASSERT_TRUE(trxs()->commit_finish(writer.get(), false).ok());  // durable otherwise, or later
  EXPECT_EQ(others.shown.said.back(), std::pair(sequence, std::string("ended")));
  EXPECT_EQ(others.own->own_state(sequence)->state, TrxState::kCommitted);
  EXPECT_EQ(others.shown.said.back(), std::pair(sequence, std::string("durable")));
  auto next = begin_with_change();
  const uint64_t durable = sequence_of(next->id);
  end(next.get());
  EXPECT_EQ(others.shown.said.back(), std::pair(durable, std::string("4 cts")));
}

}  // namespace
}  // namespace strata
