// The row locks of a server that is one of several (lock/lock_authority.h), over RowLockClient and
// the memory node's RowLocks. Thread-safe.
//
// Whoever runs the server's messages calls next_batch() and hands what it gets to the memory node,
// the reply to heard(); beside it calls that ask for events only (poll()) wait there until there
// are some.
//
//   FC17  A shared lock, a range and a question about them end only with the memory node's answer,
//         or with end() (MW6). A wait ends in time, or when its statement is interrupted, whoever
//         answers.
//   FC18  Each second a waiter looks whether whom it looked at last has ended. If it has, and a
//         second later nobody has said so, the memory node is asked: if that still takes it for the
//         holder a wake-up was lost, which is mended and counted (RowLockCounters::polls_found).
//   FC19  Once a transaction has added `whole_after` shared locks and ranges in an index it holds
//         all of it. Keys that it registered in vain are taken out again (L8).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/latch.h"
#include "base/status.h"
#include "clients/fusion/row_lock_client.h"
#include "clients/fusion/tit_reader.h"
#include "clients/fusion/tit_region.h"
#include "lock/lock_authority.h"
#include "lock/row_waits.h"

namespace strata::clients {

struct FusionLocksOptions {
  uint64_t poll_us = 1'000'000;  // FC18
  size_t whole_after = 1000;     // FC19
};

class FusionLocks final : public LockAuthority {
 public:
  // `others` and `own` outlive this; either may be null: the memory node tells then.
  FusionLocks(NodeId server, uint64_t life, TitReader* others, TitRegion* own,
              const FusionLocksOptions& options = {});
  ~FusionLocks() override;

  // --- messages ---
  void use(Epoch epoch);
  [[nodiscard]] bool joined() const;
  // Waits so long for something to be sent. One thread.
  std::optional<proto::LockBatch> next_batch(uint64_t wait_us);
  [[nodiscard]] proto::LockBatch poll() const;
  void heard(Epoch epoch, const proto::LockReply& reply);
  // It is fenced, or ends: whoever waits gets lease_lost, what cannot fail returns.
  void end();
  [[nodiscard]] bool ended() const;
  [[nodiscard]] RowLockClientCounters counters() const;

  // --- LockAuthority ---
  Status wait(TrxId waiter, TrxId holder, RowId row, uint64_t timeout_us, WaitInterrupt* interrupt,
              const std::function<bool()>& still_held) override;
  [[nodiscard]] bool has_waiters(RowId row) const noexcept override;
  void settled(TrxId waiter, RowId row, TrxId holder) override;
  void holder_ended(TrxId holder) override;
  void add_shared(TrxId holder, RowId row) override;
  [[nodiscard]] bool index_has_shared(IndexId index) const noexcept override;
  [[nodiscard]] TrxId shared_conflict(TrxId self, RowId row) const override;
  [[nodiscard]] bool holds_shared(TrxId holder, RowId row) const override;
  Status wait_for_shared(TrxId waiter, RowId row, uint64_t timeout_us,
                         WaitInterrupt* interrupt) override;
  void drop_shared(TrxId holder, RowId row) override;
  void release_shared(TrxId holder) override;
  bool add_range(TrxId holder, IndexId index, const KeyRange& range) override;
  void settle_range(TrxId holder, IndexId index, const KeyRange& range) override;
  [[nodiscard]] bool range_settled(TrxId holder, IndexId index,
                                   const KeyRange& range) const override;
  [[nodiscard]] bool protects(TrxId holder, RowId row) const override;
  void drop_range_key(TrxId holder, RowId row) override;
  // Nothing: the memory node fences, and knows (RowLocks::gone()).
  void node_gone(NodeId) override {}
  void on_deadlock(std::function<void(DeadlockReport* report)> add_owners,
                   std::function<void(const DeadlockReport& report)> call) override;
  [[nodiscard]] std::string describe(size_t limit) const override;

 private:
  class Sleeper;
  struct Wish {  // how long somebody waits
    uint64_t deadline_us = UINT64_MAX;
    WaitInterrupt* interrupt = nullptr;
    const std::function<bool()>* still_held = nullptr;  // of a row
  };
  Status sleep(Sleeper* call, const Wish& wish, MutexLock* lock) const STRATA_REQUIRES(mutex_);
  void look(Sleeper* call, const Wish& wish) const STRATA_REQUIRES(mutex_);
  void say() const STRATA_REQUIRES(mutex_);  // there may be something to be sent
  void add(TrxId holder, IndexId index, const KeyRange* range, Bytes key);

  const NodeId server_;
  TitReader* const others_;
  TitRegion* const own_;
  const FusionLocksOptions options_;
  // This server's own transactions' shared locks and ranges, and which of them are settled: nobody
  // else asks for that.
  RowWaits held_;
  mutable RowLockHints hints_;
  mutable Mutex mutex_{LatchRank::kLockTable};
  mutable CondVar to_send_;
  mutable RowLockClient client_ STRATA_GUARDED_BY(mutex_);
  // Constant while `telling_` threads use them.
  std::function<void(DeadlockReport*)> add_owners_;
  std::function<void(const DeadlockReport&)> deadlock_call_;
  uint32_t telling_ STRATA_GUARDED_BY(mutex_) = 0;
  CondVar told_;
};

}  // namespace strata::clients
