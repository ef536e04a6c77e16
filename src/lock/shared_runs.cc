#include "lock/internal/shared_runs.h"

#include <memory>

#include "base/assert.h"

namespace strata::lock_internal {

SharedRuns::~SharedRuns() {
  for (Shard& shard : shards_)
    for (auto& [index, holders] : shard.indexes)
      for (auto& [holder, runs] : holders)
        for (auto& [low, run] : runs) delete run;
}

HeldRun* SharedRuns::at_or_before(const ByLow& runs, Bytes key) noexcept {
  auto it = runs.upper_bound(key);
  return it == runs.begin() ? nullptr : std::prev(it)->second;
}

bool SharedRuns::holds(const ByLow& runs, Bytes key) noexcept {
  const HeldRun* const run = at_or_before(runs, key);
  return run != nullptr && key <= Bytes(run->high);
}

const SharedRuns::ByHolder* SharedRuns::find(const Shard& shard, IndexId index) noexcept {
  const auto it = shard.indexes.find(index.value);
  return it == shard.indexes.end() ? nullptr : &it->second;
}

HeldRun* SharedRuns::add(HeldRows* held, TrxId holder, IndexId index, Bytes low, Bytes high,
                         bool* had) {
  STRATA_ASSERT(low <= high);
  *had = false;
  auto fresh = std::make_unique<HeldRun>();
  fresh->holder = holder;
  fresh->index = index;
  fresh->shared = true;
  fresh->low.assign(low);
  fresh->high.assign(high);
  held->shared_runs_.reserve(held->shared_runs_.size() + 1);  // before what cannot be undone
  Shard& shard = shard_of(index);
  const MutexLock lock(shard.mutex);
  ByLow& runs = shard.indexes[index.value][holder];
  if (HeldRun* const before = at_or_before(runs, high);
      before != nullptr && Bytes(before->high) >= low) {
    *had = Bytes(before->low) <= low && high <= Bytes(before->high);
    return nullptr;
  }
  HeldRun* const run = fresh.release();
  runs.emplace(run->low, run);
  held->shared_runs_.push_back(run);
  shard.runs_here.fetch_add(1, std::memory_order_seq_cst);
  return run;
}

bool SharedRuns::extend(HeldRun* run, Bytes high) {
  Shard& shard = shard_of(run->index);
  const MutexLock lock(shard.mutex);
  STRATA_ASSERT(Bytes(run->high) <= high);
  if (at_or_before(shard.indexes[run->index.value][run->holder], high) != run) return false;
  run->high.assign(high);
  return true;
}

void SharedRuns::trim(HeldRun* run, Bytes high) {
  const MutexLock lock(shard_of(run->index).mutex);
  STRATA_ASSERT(Bytes(run->low) <= high && high <= Bytes(run->high));
  run->high.assign(high);
}

bool SharedRuns::holds(TrxId holder, RowId row) const {
  const Shard& shard = shard_of(row.index);
  const MutexLock lock(shard.mutex);
  const ByHolder* const holders = find(shard, row.index);
  if (holders == nullptr) return false;
  const auto runs = holders->find(holder);
  return runs != holders->end() && holds(runs->second, row.key);
}

TrxId SharedRuns::conflict(TrxId self, RowId row) const {
  const Shard& shard = shard_of(row.index);
  const MutexLock lock(shard.mutex);
  const ByHolder* const holders = find(shard, row.index);
  if (holders == nullptr) return TrxId{};
  for (const auto& [holder, runs] : *holders)
    if (holder != self && holds(runs, row.key)) return holder;
  return TrxId{};
}

void SharedRuns::holders_of(RowId row, std::vector<TrxId>* out) const {
  const Shard& shard = shard_of(row.index);
  const MutexLock lock(shard.mutex);
  const ByHolder* const holders = find(shard, row.index);
  if (holders == nullptr) return;
  for (const auto& [holder, runs] : *holders)
    if (holds(runs, row.key)) out->push_back(holder);
}

void SharedRuns::remove(HeldRun* run) {
  const std::unique_ptr<HeldRun> gone(run);
  Shard& shard = shard_of(run->index);
  const MutexLock lock(shard.mutex);
  const auto holders = shard.indexes.find(run->index.value);
  STRATA_ASSERT(holders != shard.indexes.end());
  const auto runs = holders->second.find(run->holder);
  STRATA_ASSERT(runs != holders->second.end());
  runs->second.erase(run->low);
  if (runs->second.empty()) holders->second.erase(runs);
  if (holders->second.empty()) shard.indexes.erase(holders);
  shard.runs_here.fetch_sub(1, std::memory_order_seq_cst);
}

void SharedRuns::drop(HeldRows* held, HeldRun* run) {
  std::erase(held->shared_runs_, run);
  remove(run);
}

void SharedRuns::release(HeldRows* held, const std::function<void(IndexId)>& forget) {
  for (HeldRun* const run : held->shared_runs_) {
    const IndexId index = run->index;
    remove(run);
    forget(index);
  }
  held->shared_runs_.clear();
}

}  // namespace strata::lock_internal
