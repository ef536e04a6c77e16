#include "fusion/locks/shared_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace strata::fusion {

void KeyRanges::add(Bytes low, Bytes high, bool infinite) {
  if (!infinite && high <= low) return;
  std::string first(low);
  std::string last(high);
  auto at = ends_.upper_bound(low);
  if (at != ends_.begin()) {
    const auto before = std::prev(at);
    if (before->second.infinite || Bytes(before->second.high) >= low) {
      first = before->first;
      at = before;
    }
  }
  while (at != ends_.end() && (infinite || at->first <= last)) {
    infinite |= at->second.infinite;
    last = std::max(last, at->second.high);
    at = ends_.erase(at);
  }
  ends_[first] = End{infinite ? std::string() : std::move(last), infinite};
}

void KeyRanges::remove(Bytes key) {
  auto at = ends_.upper_bound(key);
  if (at == ends_.begin()) return;
  --at;
  const End end = at->second;
  if (!end.infinite && Bytes(end.high) <= key) return;
  if (Bytes(at->first) == key) {
    ends_.erase(at);
  } else {
    at->second = End{std::string(key), false};
  }
  std::string behind(key);
  behind.push_back('\0');
  if (end.infinite || end.high > behind) ends_[behind] = end;
}

bool KeyRanges::contains(Bytes key) const {
  auto at = ends_.upper_bound(key);
  if (at == ends_.begin()) return false;
  --at;
  return at->second.infinite || Bytes(at->second.high) > key;
}

void SharedTable::add_row(TrxId holder, IndexId index, Bytes key) {
  indexes_[index][holder].rows.emplace(key);
  holders_[holder].insert(index);
}

void SharedTable::add_range(TrxId holder, IndexId index, Bytes low, Bytes high, bool infinite) {
  if (!infinite && high <= low) return;
  indexes_[index][holder].ranges.add(low, high, infinite);
  holders_[holder].insert(index);
}

void SharedTable::forget_if_empty(TrxId holder, IndexId index) {
  const auto in = indexes_.find(index);
  const auto held = in->second.find(holder);
  if (!held->second.rows.empty() || !held->second.ranges.empty()) return;
  in->second.erase(held);
  if (in->second.empty()) indexes_.erase(in);
  const auto of = holders_.find(holder);
  of->second.erase(index);
  if (of->second.empty()) holders_.erase(of);
}

void SharedTable::drop_row(TrxId holder, IndexId index, Bytes key) {
  const auto in = indexes_.find(index);
  if (in == indexes_.end()) return;
  const auto held = in->second.find(holder);
  if (held == in->second.end()) return;
  const auto row = held->second.rows.find(key);
  if (row == held->second.rows.end()) return;
  held->second.rows.erase(row);
  forget_if_empty(holder, index);
}

void SharedTable::drop_key(TrxId holder, IndexId index, Bytes key) {
  const auto in = indexes_.find(index);
  if (in == indexes_.end()) return;
  const auto held = in->second.find(holder);
  if (held == in->second.end()) return;
  held->second.ranges.remove(key);
  forget_if_empty(holder, index);
}

std::vector<IndexId> SharedTable::release(TrxId holder) {
  const auto of = holders_.find(holder);
  if (of == holders_.end()) return {};
  const std::vector<IndexId> released(of->second.begin(), of->second.end());
  for (const IndexId index : released) {
    const auto in = indexes_.find(index);
    in->second.erase(holder);
    if (in->second.empty()) indexes_.erase(in);
  }
  holders_.erase(of);
  return released;
}

std::vector<TrxId> SharedTable::holders_of(IndexId index, Bytes key, TrxId self) const {
  std::vector<TrxId> found;
  const auto in = indexes_.find(index);
  if (in == indexes_.end()) return found;
  for (const auto& [holder, held] : in->second)
    if (holder != self && (held.rows.contains(key) || held.ranges.contains(key)))
      found.push_back(holder);
  return found;
}

std::vector<TrxId> SharedTable::holders_of_node(NodeId node) const {
  std::vector<TrxId> found;
  for (const auto& [holder, indexes] : holders_)
    if (node_of(holder) == node) found.push_back(holder);
  return found;
}

}  // namespace strata::fusion
