// What a database must hold: every state it had, and which of them was acknowledged last. Rows and
// tables are shared between states, so that remembering thousands of them is cheap.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/testing/test_database.h"

namespace strata::engine::testing {

using RowPtr = std::shared_ptr<const Row>;
using LedgerRows = std::map<uint64_t, RowPtr>;
using LedgerRowsPtr = std::shared_ptr<const LedgerRows>;

struct LedgerChange {
  uint64_t id = 0;
  RowPtr after;  // null: deleted
};
struct PreparedChanges {
  std::string table;
  std::vector<LedgerChange> changes;
};

struct LedgerState {
  std::map<std::string, LedgerRowsPtr> tables;
  std::map<std::string, PreparedChanges> prepared;  // by xid
  std::map<std::string, std::string> journal;

  void apply(const std::string& table, const std::vector<LedgerChange>& changes) {
    LedgerRows rows = *tables[table];
    for (const LedgerChange& change : changes) {
      if (change.after == nullptr) {
        rows.erase(change.id);
      } else {
        rows[change.id] = change.after;
      }
    }
    tables[table] = std::make_shared<const LedgerRows>(std::move(rows));
  }
};
using LedgerStatePtr = std::shared_ptr<const LedgerState>;

// One thread changes the database; any thread may ask which states are allowed.
class Ledger {
 public:
  Ledger() { states_.push_back(std::make_shared<const LedgerState>()); }

  [[nodiscard]] LedgerState copy() const { return *states_[acknowledged_]; }
  [[nodiscard]] const LedgerState& now() const { return *states_[acknowledged_]; }

  // From now on the database may be in this state; after acknowledge() it must be.
  void may_become(LedgerState next) {
    const std::lock_guard<std::mutex> lock(mutex_);
    states_.push_back(std::make_shared<const LedgerState>(std::move(next)));
  }
  void acknowledge() {
    const std::lock_guard<std::mutex> lock(mutex_);
    acknowledged_ = states_.size() - 1;
  }
  void did_not_happen() {
    const std::lock_guard<std::mutex> lock(mutex_);
    states_.resize(acknowledged_ + 1);
  }

  [[nodiscard]] size_t acknowledged() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return acknowledged_;
  }
  // Every state a disk may hold that was copied after acknowledged() returned `from`.
  [[nodiscard]] std::vector<LedgerStatePtr> allowed_from(size_t from) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {states_.begin() + static_cast<ptrdiff_t>(from), states_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::vector<LedgerStatePtr> states_;
  size_t acknowledged_ = 0;
};

inline bool same_rows(const Rows& found, const LedgerRows& wanted) {
  if (found.size() != wanted.size()) return false;
  auto it = wanted.begin();
  for (const auto& [id, row] : found) {
    if (it->first != id || !(*it->second == row)) return false;
    ++it;
  }
  return true;
}

inline std::string difference(const Rows& found, const LedgerRows& wanted) {
  std::string out = std::to_string(found.size()) + " rows, wanted " + std::to_string(wanted.size());
  int named = 0;
  for (const auto& [id, row] : wanted) {
    const auto it = found.find(id);
    if (it != found.end() && it->second == *row) continue;
    out += it == found.end() ? "; lost " : "; differs ";
    out += std::to_string(id);
    if (++named == 8) break;
  }
  for (const auto& [id, row] : found) {
    if (wanted.count(id) != 0) continue;
    out += "; invented " + std::to_string(id);
    if (++named >= 16) break;
  }
  return out;
}

// Everything a database serves.
struct Contents {
  std::map<std::string, Rows> tables;
  std::set<std::string> prepared;
  std::map<std::string, std::string> journal;
};

inline StatusOr<Contents> read_contents(Kernel* kernel) {
  Contents contents;
  std::vector<std::string> names;
  kernel->for_each_table(true, [&names](const TableSpec& spec) { names.push_back(spec.name); });
  for (const std::string& name : names) {
    auto session = kernel->new_session();
    session->begin(Isolation::kRepeatableRead);
    STRATA_ASSIGN_OR_RETURN(const TableRef table, session->open_table("test", name));
    STRATA_ASSIGN_OR_RETURN(contents.tables[name], scan(session.get(), table));
    STRATA_RETURN_IF_ERROR(session->rollback());
  }
  for (const PreparedTransaction& p : kernel->prepared_transactions())
    contents.prepared.insert(p.xid);
  STRATA_RETURN_IF_ERROR(kernel->for_each_journal([&contents](Bytes key, Bytes value) {
    contents.journal[std::string(key)] = std::string(value);
  }));
  return contents;
}

// Empty when equal.
inline std::string compare(const Contents& found, const LedgerState& wanted) {
  for (const auto& [name, rows] : wanted.tables)
    if (found.tables.count(name) == 0) return "table " + name + " is lost";
  for (const auto& [name, rows] : found.tables) {
    const auto it = wanted.tables.find(name);
    if (it == wanted.tables.end()) return "table " + name + " should not be there";
    if (!same_rows(rows, *it->second))
      return "table " + name + ": " + difference(rows, *it->second);
  }
  for (const auto& [xid, changes] : wanted.prepared)
    if (found.prepared.count(xid) == 0) return "prepared transaction " + xid + " is lost";
  for (const std::string& xid : found.prepared)
    if (wanted.prepared.count(xid) == 0) return "transaction " + xid + " should not be prepared";
  if (found.journal != wanted.journal) return "the DDL journal differs";
  return "";
}

// Secondary indexes read both ways, structure of every tree, entries against rows.
inline std::string check_indexes(Kernel* kernel, const Contents& contents) {
  for (const auto& [name, rows] : contents.tables) {
    auto session = kernel->new_session();
    session->begin(Isolation::kRepeatableRead);
    const auto table = session->open_table("test", name);
    if (!table.ok()) return table.status().ToString();
    const auto by_value = scan(session.get(), *table, 1);
    if (!by_value.ok()) return by_value.status().ToString();
    if (*by_value != rows) return "table " + name + ": index by_value disagrees";
    const auto by_group = scan(session.get(), *table, 2, true);
    if (!by_group.ok()) return by_group.status().ToString();
    if (*by_group != rows) return "table " + name + ": index by_group disagrees";
    for (uint32_t i = 3; i < (*table)->spec().indexes.size(); ++i) {
      const auto by_added = scan(session.get(), *table, i);
      if (!by_added.ok()) return by_added.status().ToString();
      if (*by_added != rows) return "table " + name + ": an added index disagrees";
    }
    CheckResult result;
    const Status checked =
        kernel->check_table(session.get(), *table, true, entries_of(*table), &result);
    if (!checked.ok()) return checked.ToString();
    if (!result.problems.empty()) return "table " + name + ": " + result.problems[0];
    if (!rows.empty() && (*table)->next_auto_increment() <= rows.rbegin()->first)
      return "table " + name + ": AUTO_INCREMENT went back";
    const Status ended = session->rollback();
    if (!ended.ok()) return ended.ToString();
  }
  return "";
}

}  // namespace strata::engine::testing
