#include "lock/internal/exclusive_runs.h"

#include <algorithm>
#include <memory>

#include "base/assert.h"

namespace strata::lock_internal {

ExclusiveRuns::~ExclusiveRuns() {
  for (Shard& shard : shards_)
    for (auto& [index, runs] : shard.indexes)
      for (auto& [low, run] : runs) delete run;
}

HeldRun* ExclusiveRuns::at_or_before(const ByLow& runs, Bytes key) noexcept {
  auto it = runs.upper_bound(key);
  return it == runs.begin() ? nullptr : std::prev(it)->second;
}

HeldRun* ExclusiveRuns::add(HeldRows* held, TrxId holder, IndexId index, Bytes low, Bytes high,
                            Cts now, bool* had) {
  STRATA_ASSERT(low <= high);
  *had = false;
  auto fresh = std::make_unique<HeldRun>();
  fresh->holder = holder;
  fresh->index = index;
  fresh->low.assign(low);
  fresh->high.assign(high);
  fresh->taken = now;
  held->runs_.reserve(held->runs_.size() + 1);  // before anything that cannot be undone
  Shard& shard = shard_of(index);
  const MutexLock lock(shard.mutex);
  ByLow& runs = shard.indexes[index.value];
  if (HeldRun* const before = at_or_before(runs, high); before != nullptr && before->high >= low) {
    *had = before->holder == holder && before->low <= low && high <= before->high;
    // What has come into it since: whoever has entered such a row is asked first.
    if (*had) before->taken = std::max(before->taken, now);
    return nullptr;
  }
  HeldRun* const run = fresh.release();
  runs.emplace(run->low, run);
  held->runs_.push_back(run);
  shard.runs_here.fetch_add(1, std::memory_order_seq_cst);
  return run;
}

bool ExclusiveRuns::extend(HeldRun* run, Bytes high, Cts now) {
  Shard& shard = shard_of(run->index);
  const MutexLock lock(shard.mutex);
  STRATA_ASSERT(run->high <= high);
  if (at_or_before(shard.indexes[run->index.value], high) != run) return false;
  run->high.assign(high);
  run->taken = std::max(run->taken, now);
  return true;
}

void ExclusiveRuns::trim(HeldRun* run, Bytes high) {
  const MutexLock lock(shard_of(run->index).mutex);
  STRATA_ASSERT(run->low <= high && high <= run->high);
  run->high.assign(high);
}

TrxId ExclusiveRuns::holder_of(RowId row, Cts written) const {
  const Shard& shard = shard_of(row.index);
  const MutexLock lock(shard.mutex);
  const auto runs = shard.indexes.find(row.index.value);
  if (runs == shard.indexes.end()) return TrxId{};
  const HeldRun* const run = at_or_before(runs->second, row.key);
  const bool holds = run != nullptr && row.key <= run->high && written <= run->taken;
  return holds ? run->holder : TrxId{};
}

void ExclusiveRuns::remove(HeldRun* run) {
  const std::unique_ptr<HeldRun> gone(run);
  Shard& shard = shard_of(run->index);
  const MutexLock lock(shard.mutex);
  const auto runs = shard.indexes.find(run->index.value);
  STRATA_ASSERT(runs != shard.indexes.end());
  runs->second.erase(run->low);
  if (runs->second.empty()) shard.indexes.erase(runs);
  shard.runs_here.fetch_sub(1, std::memory_order_seq_cst);
}

void ExclusiveRuns::drop(HeldRows* held, HeldRun* run) {
  std::erase(held->runs_, run);
  remove(run);
}

void ExclusiveRuns::release(HeldRows* held) {
  for (HeldRun* const run : held->runs_) remove(run);
  held->runs_.clear();
}

}  // namespace strata::lock_internal
