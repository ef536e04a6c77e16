#include "lock/internal/range_locks.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::lock_internal {

// --- IntervalSet ---

IntervalSet::Map::const_iterator IntervalSet::last_at_or_below(Bytes key) const noexcept {
  const auto above = ends_.upper_bound(key);
  return above == ends_.begin() ? ends_.end() : std::prev(above);
}

bool IntervalSet::add(const KeyRange& range) {
  if (range.empty()) return false;
  const auto found = last_at_or_below(range.low);
  Map::iterator at;
  if (found != ends_.end() && found->second.reaches(range.low)) {
    at = ends_.erase(found, found);  // the iterator, not const any more
    if (at->second.infinite || (!range.infinite && at->second.reaches(range.high))) return false;
    at->second.high.assign(range.high);
    at->second.infinite = range.infinite;
  } else {
    at = ends_.emplace(std::string(range.low), End{std::string(range.high), range.infinite}).first;
  }
  // Swallow what it touches now.
  for (auto next = std::next(at); next != ends_.end() && at->second.reaches(next->first);
       next = ends_.erase(next)) {
    if (at->second.infinite) continue;
    if (next->second.infinite || next->second.passes(at->second.high))
      at->second = std::move(next->second);
  }
  return true;
}

void IntervalSet::remove(const KeyRange& range) {
  if (range.empty()) return;
  auto at = ends_.lower_bound(range.low);
  if (const auto before = last_at_or_below(range.low);
      before != ends_.end() && before->second.passes(range.low))
    at = ends_.erase(before, before);
  while (at != ends_.end() && (range.infinite || Bytes(at->first) < range.high)) {
    End end = std::move(at->second);
    if (Bytes(at->first) < range.low) {
      at->second = End{std::string(range.low), false};
      ++at;
    } else {
      at = ends_.erase(at);
    }
    if (!range.infinite && end.passes(range.high)) {
      ends_.emplace(std::string(range.high), std::move(end));
      return;
    }
  }
}

bool IntervalSet::contains(Bytes key) const noexcept {
  const auto at = last_at_or_below(key);
  return at != ends_.end() && at->second.passes(key);
}

bool IntervalSet::covers(const KeyRange& range) const noexcept {
  if (range.empty()) return true;
  const auto at = last_at_or_below(range.low);
  if (at == ends_.end()) return false;
  return range.infinite ? at->second.infinite : at->second.reaches(range.high);
}

// --- RangeLocks ---

const RangeLocks::Held* RangeLocks::find(const Shard& shard, TrxId holder, IndexId index) noexcept {
  const auto it = shard.by_index.find(index.value);
  if (it == shard.by_index.end()) return nullptr;
  for (const Held& held : it->second)
    if (held.holder == holder) return &held;
  return nullptr;
}

RangeLocks::Added RangeLocks::add(TrxId holder, IndexId index, const KeyRange& range) {
  if (range.empty()) return {};
  {
    Shard& shard = shard_of(index);
    MutexLock lock(shard.mutex);
    if (Held* held = find(shard, holder, index)) {
      return {.grew = held->registered.add(range), .first = false};
    }
    Held& held = shard.by_index[index.value].emplace_back();
    held.holder = holder;
    held.registered.add(range);
    total_.fetch_add(1, std::memory_order_acq_rel);
  }
  HolderShard& shard = holder_shard(holder);
  MutexLock lock(shard.mutex);
  shard.indexes[holder].push_back(index);
  return {.grew = true, .first = true};
}

void RangeLocks::settle(TrxId holder, IndexId index, const KeyRange& range) {
  if (range.empty()) return;
  Shard& shard = shard_of(index);
  MutexLock lock(shard.mutex);
  Held* held = find(shard, holder, index);
  STRATA_ASSERT(held != nullptr);
  STRATA_DASSERT(held->registered.covers(range));
  held->settled.add(range);
}

bool RangeLocks::settled(TrxId holder, IndexId index, Bytes key) const {
  if (none()) return false;
  const Shard& shard = shard_of(index);
  MutexLock lock(shard.mutex);
  const Held* held = find(shard, holder, index);
  return held != nullptr && held->settled.contains(key);
}

bool RangeLocks::settled(TrxId holder, IndexId index, const KeyRange& range) const {
  if (none()) return false;
  const Shard& shard = shard_of(index);
  MutexLock lock(shard.mutex);
  const Held* held = find(shard, holder, index);
  return held != nullptr && held->settled.covers(range);
}

void RangeLocks::drop_key(TrxId holder, IndexId index, Bytes key) {
  std::string behind(key);
  behind.push_back('\0');
  Shard& shard = shard_of(index);
  MutexLock lock(shard.mutex);
  Held* held = find(shard, holder, index);
  STRATA_ASSERT(held != nullptr);
  STRATA_DASSERT(!held->settled.contains(key));
  held->registered.remove(KeyRange{key, behind, false});
}

std::vector<IndexId> RangeLocks::release(TrxId holder) {
  std::vector<IndexId> indexes;
  if (none()) return indexes;
  {
    HolderShard& shard = holder_shard(holder);
    MutexLock lock(shard.mutex);
    const auto it = shard.indexes.find(holder);
    if (it == shard.indexes.end()) return indexes;
    indexes = std::move(it->second);
    shard.indexes.erase(it);
  }
  for (const IndexId index : indexes) {
    Shard& shard = shard_of(index);
    MutexLock lock(shard.mutex);
    const auto it = shard.by_index.find(index.value);
    STRATA_ASSERT(it != shard.by_index.end());
    std::erase_if(it->second, [holder](const Held& held) { return held.holder == holder; });
    if (it->second.empty()) shard.by_index.erase(it);
    total_.fetch_sub(1, std::memory_order_acq_rel);
  }
  return indexes;
}

TrxId RangeLocks::conflict(TrxId self, IndexId index, Bytes key) const {
  if (none()) return TrxId{};
  const Shard& shard = shard_of(index);
  MutexLock lock(shard.mutex);
  const auto it = shard.by_index.find(index.value);
  if (it == shard.by_index.end()) return TrxId{};
  for (const Held& held : it->second)
    if (held.holder != self && held.registered.contains(key)) return held.holder;
  return TrxId{};
}

void RangeLocks::holders_of(IndexId index, Bytes key, std::vector<TrxId>* out) const {
  if (none()) return;
  const Shard& shard = shard_of(index);
  MutexLock lock(shard.mutex);
  const auto it = shard.by_index.find(index.value);
  if (it == shard.by_index.end()) return;
  for (const Held& held : it->second)
    if (held.registered.contains(key)) out->push_back(held.holder);
}

}  // namespace strata::lock_internal
