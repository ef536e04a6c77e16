// What keeps row locks for several nodes, in one process: one table of waits, shared locks and
// ranges for all of them, called directly. Thread-safe.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lock/lock_authority.h"
#include "lock/row_waits.h"

namespace strata::testing {

class SharedLocks : public LockAuthority {
 public:
  Status wait(TrxId waiter, TrxId holder, RowId row, uint64_t timeout_us, WaitInterrupt* interrupt,
              const std::function<bool()>& still_held) override {
    return table_.wait(waiter, holder, row, timeout_us, interrupt, still_held);
  }
  [[nodiscard]] bool has_waiters(RowId row) const noexcept override {
    return table_.has_waiters(row);
  }
  void settled(TrxId waiter, RowId row, TrxId holder) override {
    table_.settled(waiter, row, holder);
  }
  void holder_ended(TrxId holder) override { table_.holder_ended(holder); }
  void add_shared(TrxId holder, RowId row) override {
    note(holder);
    table_.add_shared(holder, row);
  }
  [[nodiscard]] bool index_has_shared(IndexId index) const noexcept override {
    return table_.index_has_shared(index);
  }
  [[nodiscard]] TrxId shared_conflict(TrxId self, RowId row) const override {
    return table_.shared_conflict(self, row);
  }
  [[nodiscard]] bool holds_shared(TrxId holder, RowId row) const override {
    return table_.holds_shared(holder, row);
  }
  Status wait_for_shared(TrxId waiter, RowId row, uint64_t timeout_us,
                         WaitInterrupt* interrupt) override {
    return table_.wait_for_shared(waiter, row, timeout_us, interrupt);
  }
  void drop_shared(TrxId holder, RowId row) override { table_.drop_shared(holder, row); }
  void release_shared(TrxId holder) override {
    table_.release_shared(holder);
    const std::lock_guard lock(mutex_);
    sharers_.erase(holder);
  }
  bool add_range(TrxId holder, IndexId index, const KeyRange& range) override {
    note(holder);
    return table_.add_range(holder, index, range);
  }
  void settle_range(TrxId holder, IndexId index, const KeyRange& range) override {
    table_.settle_range(holder, index, range);
  }
  [[nodiscard]] bool range_settled(TrxId holder, IndexId index,
                                   const KeyRange& range) const override {
    return table_.range_settled(holder, index, range);
  }
  [[nodiscard]] bool protects(TrxId holder, RowId row) const override {
    return table_.protects(holder, row);
  }
  void drop_range_key(TrxId holder, RowId row) override { table_.drop_range_key(holder, row); }
  void node_gone(NodeId node) override {
    std::vector<TrxId> gone;
    {
      const std::lock_guard lock(mutex_);
      for (const TrxId holder : sharers_)
        if (node_of(holder) == node) gone.push_back(holder);
      for (const TrxId holder : gone) sharers_.erase(holder);
    }
    for (const TrxId holder : gone) {
      table_.release_shared(holder);
      table_.holder_ended(holder);  // who waits for it looks again, and may find its mark
    }
  }
  void on_deadlock(std::function<void(DeadlockReport* report)>,
                   std::function<void(const DeadlockReport& report)>) override {}  // nobody is told
  [[nodiscard]] std::string describe(size_t limit) const override { return table_.describe(limit); }

 private:
  void note(TrxId holder) {
    const std::lock_guard lock(mutex_);
    sharers_.insert(holder);
  }
  RowWaits table_;
  std::mutex mutex_;
  std::set<TrxId> sharers_;
};

}  // namespace strata::testing
