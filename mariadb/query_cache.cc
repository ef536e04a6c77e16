#include "mariadb/query_cache.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/latch.h"
#include "mariadb/cluster.h"
#include "mariadb/ha_strata.h"

namespace strata::glue {
namespace {

std::atomic<uint64_t> changes{0};
std::atomic<bool> nothing{false};

Mutex held_mutex{LatchRank::kServer};
Mutex tables_mutex{LatchRank::kServer};
// A table nobody holds goes; the next one of its name counts as changed.
std::map<std::string, std::weak_ptr<CachedTable>>& tables() STRATA_REQUIRES(tables_mutex) {
  static std::map<std::string, std::weak_ptr<CachedTable>> all;
  return all;
}

void forget(const std::string& name, const CachedTable* table) {
  {
    const MutexLock lock(tables_mutex);
    const auto place = tables().find(name);
    if (place != tables().end() && place->second.expired()) tables().erase(place);
  }
  delete table;
}

// The server asks when a statement begins to store its result, and when it has found one.
my_bool may_use_query_cache(THD* thd, const char* path, uint, ulonglong*) {
  bool allowed = false;
  (void)guarded([&] {
    if (isolation_of(thd) == engine::Isolation::kSerializable) return 0;
    Connection* const connection = connection_of(thd);
    const bool in_transaction = thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN);
    if (!in_transaction && connection->tables_in_use == 0) {
      // A result that is there: whatever has changed the table has thrown the older ones away.
      allowed = true;
      return 0;
    }
    if (const int error = begin_statement(connection)) return error;
    // What a transaction reads from the cache belongs to the view of all that it reads later.
    if (in_transaction && isolation_of(thd) >= engine::Isolation::kRepeatableRead)
      if (!connection->session->open_view().ok()) return 0;
    const TableName name = parse_path(path);
    allowed = may_cache(*cached_table(name.schema + "/" + name.table), connection->began);
    return 0;
  });
  return allowed ? 1 : 0;
}

}  // namespace

std::shared_ptr<CachedTable> cached_table(const std::string& name) {
  const MutexLock lock(tables_mutex);
  std::weak_ptr<CachedTable>& place = tables()[name];
  if (std::shared_ptr<CachedTable> there = place.lock()) return there;
  auto* const fresh = new CachedTable{.changed = ++changes};
  std::shared_ptr<CachedTable> made(fresh, [name](CachedTable* table) { forget(name, table); });
  place = made;
  return made;
}

uint64_t last_change() noexcept { return changes.load(); }

void CachedWrites::add(const std::shared_ptr<CachedTable>& table) {
  if (table == nullptr || std::find(tables_.begin(), tables_.end(), table) != tables_.end()) return;
  tables_.push_back(table);
  ++table->writers;
}

void CachedWrites::end() noexcept {
  if (tables_.empty()) return;
  const uint64_t number = ++changes;
  for (const std::shared_ptr<CachedTable>& table : tables_) {
    uint64_t before = table->changed.load();
    while (before < number && !table->changed.compare_exchange_weak(before, number)) {
    }
    --table->writers;
  }
  tables_.clear();
}

void CachedWrites::never_ends() {
  // What is held here counts its writer for as long as the server runs.
  static std::vector<std::shared_ptr<CachedTable>> held;
  const MutexLock lock(held_mutex);
  held.insert(held.end(), tables_.begin(), tables_.end());
  tables_.clear();
}

void cache_nothing() noexcept { nothing.store(true); }

bool may_cache(const CachedTable& table, uint64_t transaction_began) noexcept {
  return !nothing.load() && table.writers.load() == 0 && table.changed.load() <= transaction_began;
}

uint8 ha_strata::table_cache_type() {
  return cluster_identity() != 0 ? HA_CACHE_TBL_NOCACHE : HA_CACHE_TBL_ASKTRANSACT;  // QY3
}

my_bool ha_strata::register_query_cache_table(THD* thd, const char* path, uint length,
                                              qc_engine_callback* callback, ulonglong* data) {
  *data = 0;
  *callback = may_use_query_cache;
  return may_use_query_cache(thd, path, length, data);
}

}  // namespace strata::glue
