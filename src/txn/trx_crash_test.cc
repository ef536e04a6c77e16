// Goal: after a crash at any moment every transaction is what its session was told, or what its
// durable groups say: acknowledged commits are there with their cts, prepared ones wait with their
// xid, everything else is rolled back with exactly the undo records written; nothing leaks;
// sequences and timestamps go on. Method: a random single-threaded history of interleaved sessions
// on a simulated disk, crashes by seed (unsynced sectors survive at random), an oracle per
// transaction; many lives on one store.
#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "txn/testing/trx_store.h"

namespace strata {
namespace {

struct Expected {
  enum class Told { kActive, kPrepared, kOrdered, kCommitted, kRolledBack } told = Told::kActive;
  Cts cts;
  Lsn first_group_end;  // its first undo record
  Lsn prepare_end;
  Lsn commit_end;
  Lsn rollback_end;
  std::string xid;
  std::vector<std::pair<UndoPtr, Lsn>> live;  // undo records and the end of their groups
};
struct Session {
  std::unique_ptr<Trx> trx;
  TrxId id;
};

class CrashModel {
 public:
  explicit CrashModel(uint64_t seed) : rng_(seed) {}

  void life() {
    std::vector<Session> sessions(5);
    for (uint64_t steps = 20 + rng_.below(300); steps > 0; --steps) {
      if (::testing::Test::HasFatalFailure()) return;
      step(&sessions[rng_.below(sessions.size())]);
      if (rng_.one_in(40)) ASSERT_TRUE_(db_.store()->checkpoint().ok());
      if (rng_.one_in(10)) db_.purge_all();
      if (rng_.one_in(30)) ASSERT_TRUE_(db_.store()->persist_all().ok());
    }
    sessions.clear();
    crash();
  }
  [[nodiscard]] uint64_t checked() const { return checked_; }

 private:
  static void ASSERT_TRUE_(bool ok) { ASSERT_TRUE(ok); }
  TrxSystem* trxs() { return db_.trxs(); }

  void step(Session* s) {
    if (s->trx == nullptr) {
      s->trx = std::make_unique<Trx>();
      trxs()->begin(s->trx.get());
      s->id = TrxId{};
    }
    Trx* trx = s->trx.get();
    Expected* e = s->id.is_zero() ? nullptr : &expected_[s->id.value];
    const uint64_t dice = rng_.below(10);
    if (trx->state == TrxState::kCommitting) {
      ASSERT_TRUE(trxs()->commit_finish(trx).ok());
      e->told = Expected::Told::kCommitted;
      s->trx.reset();
    } else if (trx->state == TrxState::kPrepared && dice < 7) {
      return;  // stays so for a while
    } else if (dice < 6 && trx->state != TrxState::kPrepared) {
      const StatusOr<UndoPtr> ptr = db_.change(trx, std::string(rng_.below(300), 'k'));
      ASSERT_TRUE(ptr.ok()) << ptr.status();
      s->id = trx->id;
      e = &expected_[s->id.value];
      e->live.emplace_back(*ptr, db_.log()->next_lsn());
      if (e->first_group_end.is_zero()) e->first_group_end = db_.log()->next_lsn();
    } else if (e == nullptr) {
      ASSERT_TRUE(trxs()->commit(trx).ok());
      s->trx.reset();
    } else if (dice == 6 && trx->state == TrxState::kActive) {
      const size_t keep = rng_.below(e->live.size() + 1);
      ASSERT_TRUE(db_.rollback_to(trx, keep == 0 ? UndoPtr{} : e->live[keep - 1].first).ok());
      e->live.resize(keep);
      rewound_.insert_or_assign(s->id.value, true);
    } else if (dice == 7 && trx->state == TrxState::kActive) {
      e->xid = "xid" + std::to_string(s->id.value);
      ASSERT_TRUE(trxs()->prepare(trx, e->xid).ok());
      e->told = Expected::Told::kPrepared;
      e->prepare_end = db_.log()->durable_lsn();
    } else if (dice == 8) {
      ASSERT_TRUE(db_.rollback(trx).ok());
      e->told = Expected::Told::kRolledBack;
      e->rollback_end = db_.log()->next_lsn();
      s->trx.reset();
    } else {
      ASSERT_TRUE(trxs()->reserve_commit(trx).ok());
      ASSERT_TRUE(trxs()->commit_order(trx).ok());
      if (e->told != Expected::Told::kPrepared) e->told = Expected::Told::kOrdered;
      e->cts = trx->cts;
      e->commit_end = trx->commit_end;
      newest_cts_ = std::max(newest_cts_, e->cts);
    }
  }

  void crash() {
    const Lsn durable = db_.log()->durable_lsn();
    std::vector<std::unique_ptr<Trx>> active, prepared;
    const Status s = db_.crash_and_recover(rng_.next(), &active, &prepared);
    ASSERT_TRUE(s.ok()) << s;
    const Lsn end = db_.store()->recovered_end();
    ASSERT_GE(end, durable);
    std::map<uint64_t, Trx*> open;
    for (const auto& trx : active) open[trx->id.value] = trx.get();
    for (const auto& trx : prepared) open[trx->id.value] = trx.get();
    ASSERT_EQ(open.size(), active.size() + prepared.size());

    uint64_t largest = 0;
    for (auto& [id, e] : expected_) {
      SCOPED_TRACE("transaction " + std::to_string(sequence_of(TrxId{id})));
      largest = std::max(largest, sequence_of(TrxId{id}));
      ++checked_;
      const auto it = open.find(id);
      Trx* trx = it == open.end() ? nullptr : it->second;
      const StatusOr<TrxLookup> found = trxs()->lookup(TrxId{id});
      ASSERT_TRUE(found.ok()) << found.status();
      const bool committed = !e.commit_end.is_zero() && e.commit_end <= end;
      if (e.told == Expected::Told::kCommitted)
        ASSERT_TRUE_(committed);  // W: acknowledged = durable
      if (committed) {
        EXPECT_EQ(found->state, TrxState::kCommitted);
        if (found->cts != kOldestCts) {
          EXPECT_EQ(found->cts, e.cts);
        }
        EXPECT_EQ(trx, nullptr);
      } else if (!e.rollback_end.is_zero() && e.rollback_end <= end) {
        EXPECT_EQ(trx, nullptr);
        EXPECT_FALSE(*trxs()->is_undecided(TrxId{id}, TrxId{}));
      } else if (e.first_group_end.is_zero() || e.first_group_end > end) {
        EXPECT_EQ(trx, nullptr);
        EXPECT_EQ(found->state, TrxState::kNone);
      } else {
        ASSERT_NE(trx, nullptr);
        const bool was_prepared =  // T10: who was told of the rollback does not find it prepared
            !e.prepare_end.is_zero() && e.told != Expected::Told::kRolledBack;
        EXPECT_EQ(trx->state, was_prepared ? TrxState::kPrepared : TrxState::kActive);
        if (was_prepared) {
          EXPECT_EQ(trx->xid, e.xid);
        }
        EXPECT_TRUE(*trxs()->is_undecided(TrxId{id}, TrxId{}));
        if (rewound_.count(id) == 0) expect_chain(trx, e, end);
      }
    }
    EXPECT_GE(*db_.timestamps()->current(), newest_cts_);

    for (auto& trx : active) ASSERT_TRUE(db_.rollback(trx.get()).ok());
    for (auto& trx : prepared) {
      if (rng_.one_in(2)) {
        ASSERT_TRUE(trxs()->commit(trx.get()).ok());
      } else {
        ASSERT_TRUE(db_.rollback(trx.get()).ok());
      }
    }
    if (rng_.one_in(2)) {
      db_.purge_all();
      EXPECT_EQ(trxs()->history_length(), 0u);
      EXPECT_LE(db_.undo()->pages_in_use(), 65u);
    }
    Trx next;
    trxs()->begin(&next);
    ASSERT_TRUE(trxs()->ensure_id(&next).ok());
    EXPECT_GT(sequence_of(next.id), largest);  // T5
    ASSERT_TRUE(trxs()->commit(&next).ok());
    expected_.clear();
    rewound_.clear();
  }

  void expect_chain(Trx* trx, const Expected& e, Lsn end) {
    size_t n = e.live.size();
    while (n > 0 && e.live[n - 1].second > end) --n;
    UndoPtr at = trx->undo.last;
    UndoRecord record;
    for (; n > 0; --n) {
      ASSERT_EQ(at, e.live[n - 1].first);
      ASSERT_TRUE(read_undo(db_.pool(), at, trx->id, &record).ok());
      at = record.prev_in_trx;
    }
    EXPECT_TRUE(at.is_zero());
  }

  Rng rng_;
  testing::TrxStore db_{64, 512};
  std::map<uint64_t, Expected> expected_;
  std::map<uint64_t, bool> rewound_;
  Cts newest_cts_;
  uint64_t checked_ = 0;
};

TEST(TrxCrash, EveryTransactionIsWhatItWasSaidToBe) {
  constexpr uint64_t kSeeds = strata::testing::fewer_if_sanitized(12, 6);
  uint64_t checked = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CrashModel model(seed);
    for (int life = 0; life < 15; ++life) {
      SCOPED_TRACE("life " + std::to_string(life));
      model.life();
      if (::testing::Test::HasFailure()) return;
    }
    checked += model.checked();
  }
  printf("%lu transactions checked after %lu crashes\n", checked, kSeeds * 15);
}

}  // namespace
}  // namespace strata
