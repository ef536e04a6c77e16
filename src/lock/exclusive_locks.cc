#include "lock/internal/exclusive_locks.h"

#include <utility>

#include "base/assert.h"

namespace strata::lock_internal {

ExclusiveLocks::~ExclusiveLocks() {
  for (Shard& shard : shards_)
    for (HeldRow* row : shard.chains)
      while (row != nullptr) delete std::exchange(row, row->next);
}

HeldRow* ExclusiveLocks::find(const Shard& shard, RowId row, uint64_t hash) noexcept {
  for (HeldRow* at = shard.chains[chain_of(hash)]; at != nullptr; at = at->next)
    if (at->hash == hash && at->index == row.index && Bytes(at->key) == row.key) return at;
  return nullptr;
}

std::unique_ptr<HeldRow> ExclusiveLocks::take_spare(HeldRows* held) {
  if (held->spare_.empty()) return std::make_unique<HeldRow>();
  std::unique_ptr<HeldRow> row = std::move(held->spare_.back());
  held->spare_.pop_back();
  return row;
}

TrxId ExclusiveLocks::add(HeldRows* held, TrxId holder, RowId row, uint64_t hash) {
  std::unique_ptr<HeldRow> fresh = take_spare(held);
  fresh->hash = hash;
  fresh->holder = holder;
  fresh->savepoints = held->savepoints_;
  fresh->index = row.index;
  fresh->key.assign(row.key);
  held->rows_.push_back(nullptr);  // before anything that cannot be undone
  Shard& shard = shard_of(hash);
  {
    const MutexLock lock(shard.mutex);
    if (const HeldRow* before = find(shard, row, hash); before != nullptr) {
      held->rows_.pop_back();
      return before->holder;
    }
    HeldRow*& chain = shard.chains[chain_of(hash)];
    fresh->next = chain;
    chain = fresh.get();
  }
  held->rows_.back() = fresh.release();
  // Whoever registers a range or a shared lock and then looks here comes before this, or we see it
  // when we look there next (L7).
  counter(row.index).fetch_add(1, std::memory_order_seq_cst);
  return TrxId{};
}

TrxId ExclusiveLocks::holder_of(RowId row, uint64_t hash) const {
  const Shard& shard = shard_of(hash);
  const MutexLock lock(shard.mutex);
  const HeldRow* at = find(shard, row, hash);
  return at == nullptr ? TrxId{} : at->holder;
}

void ExclusiveLocks::unlink(HeldRow* row) noexcept {
  Shard& shard = shard_of(row->hash);
  {
    const MutexLock lock(shard.mutex);
    HeldRow** link = &shard.chains[chain_of(row->hash)];
    while (*link != row) link = &(*link)->next;
    *link = row->next;
  }
  counter(row->index).fetch_sub(1, std::memory_order_seq_cst);
}

void ExclusiveLocks::drop_at(HeldRows* held, size_t position) {
  std::unique_ptr<HeldRow> row(held->rows_[position]);
  held->rows_.erase(held->rows_.begin() + static_cast<std::ptrdiff_t>(position));
  unlink(row.get());
  if (held->spare_.size() < kSparesMax) held->spare_.push_back(std::move(row));
}

bool ExclusiveLocks::drop(HeldRows* held, RowId row, uint64_t hash) {
  for (size_t i = held->rows_.size(); i-- > 0;) {
    const HeldRow& at = *held->rows_[i];
    if (at.hash != hash || at.index != row.index || Bytes(at.key) != row.key) continue;
    drop_at(held, i);
    return true;
  }
  return false;
}

void ExclusiveLocks::drop_last(HeldRows* held, RowId row, uint64_t hash) {
  if (held->rows_.empty()) return;
  const HeldRow& last = *held->rows_.back();
  if (last.savepoints != held->savepoints_ || last.hash != hash || last.index != row.index ||
      Bytes(last.key) != row.key)
    return;
  drop_at(held, held->rows_.size() - 1);
}

void ExclusiveLocks::release(HeldRows* held) {
  while (!held->rows_.empty()) drop_at(held, held->rows_.size() - 1);
}

}  // namespace strata::lock_internal
