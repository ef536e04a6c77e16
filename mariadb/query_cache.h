// The server's query cache for our tables: when may a result be kept, and when may it be given out.
//
// The server throws the results of a table away at the end of each statement that writes to it,
// which is before the commit. In between another statement would still read the old rows, and keep
// them.
//
//   QY1  A result is kept, or given to a transaction, only while no transaction has written to the
//        table without having ended, and if none has changed it since the asking one began: any
//        view of that one shows then what is committed now.
//   QY2  A transaction counts as a writer from external_lock() until after its end has become
//        visible. One whose end nobody here will see (detached, or recovered after a crash) counts
//        until the server stops.
//   QY3  In a cluster nothing is cached: a result would be given out without asking for the lease
//        (MA8).
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace strata::glue {

struct CachedTable {
  std::atomic<uint64_t> writers{0};
  std::atomic<uint64_t> changed;  // the number of the last change
};

// The one of that name. Thread-safe.
std::shared_ptr<CachedTable> cached_table(const std::string& name);
// The number of the last change of any table.
uint64_t last_change() noexcept;

// What a transaction has written to. Used by its connection's thread.
class CachedWrites {
 public:
  CachedWrites() = default;
  ~CachedWrites() { end(); }
  CachedWrites(const CachedWrites&) = delete;
  CachedWrites& operator=(const CachedWrites&) = delete;

  void add(const std::shared_ptr<CachedTable>& table);
  void end() noexcept;  // it has ended, for all to see
  void never_ends();    // QY2

 private:
  std::vector<std::shared_ptr<CachedTable>> tables_;
};

// QY2: transactions of an earlier life are there, nobody knows of which tables.
void cache_nothing() noexcept;
bool may_cache(const CachedTable& table, uint64_t transaction_began) noexcept;

}  // namespace strata::glue
