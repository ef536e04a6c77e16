// Who holds which rows and ranges of keys shared, over all servers. Not thread-safe; a part of
// row_locks.h, which says what it is for.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"

namespace strata::fusion {

// Disjoint ranges [low, high) that do not touch.
class KeyRanges {
 public:
  void add(Bytes low, Bytes high, bool infinite);
  void remove(Bytes key);  // this key alone
  [[nodiscard]] bool contains(Bytes key) const;
  [[nodiscard]] bool empty() const noexcept { return ends_.empty(); }
  [[nodiscard]] size_t size() const noexcept { return ends_.size(); }

 private:
  struct End {
    std::string high;
    bool infinite = false;
  };
  std::map<std::string, End, std::less<>> ends_;  // by low
};

class SharedTable {
 public:
  void add_row(TrxId holder, IndexId index, Bytes key);
  void add_range(TrxId holder, IndexId index, Bytes low, Bytes high, bool infinite);
  void drop_row(TrxId holder, IndexId index, Bytes key);
  void drop_key(TrxId holder, IndexId index, Bytes key);  // out of its ranges
  // Returns the indexes it held something in.
  std::vector<IndexId> release(TrxId holder);

  // All but `self` that hold the key.
  [[nodiscard]] std::vector<TrxId> holders_of(IndexId index, Bytes key, TrxId self) const;
  [[nodiscard]] bool any_in(IndexId index) const { return indexes_.contains(index); }
  [[nodiscard]] std::vector<TrxId> holders_of_node(NodeId node) const;

 private:
  struct Held {
    std::set<std::string, std::less<>> rows;
    KeyRanges ranges;
  };
  void forget_if_empty(TrxId holder, IndexId index);
  std::map<IndexId, std::map<TrxId, Held>> indexes_;
  std::map<TrxId, std::set<IndexId>> holders_;
};

}  // namespace strata::fusion
