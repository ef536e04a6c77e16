#include "mariadb/collected_statistics.h"

#include <thread>

#include "base/latch.h"
#include "base/thread_name.h"
#include "mariadb/connection.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/server_thread.h"
#include "mariadb/shared_statistics.h"
// After the other headers of the server.
#include "sql_base.h"
#include "sql_statistics.h"
#include "transaction.h"

namespace strata::glue {
namespace {

constexpr uint64_t kLookUs = 1'000'000;
constexpr ulong kNameWaitS = 1;  // CK2: and no longer
constexpr std::array<std::string_view, 3> kTables = {"table_stats", "column_stats", "index_stats"};

using Versions = std::array<uint64_t, kTables.size()>;

// CK1. 0: nobody has told anything of that table.
Versions told_versions() {
  Versions versions{};
  for (size_t i = 0; i < kTables.size(); ++i) {
    const auto table = find_table({"mysql", std::string(kTables[i])});
    if (!table.ok() || *table == nullptr) continue;
    if (const auto record = read_statistics((*table)->spec())) versions[i] = record->counts.version;
  }
  return versions;
}

my_bool note_remembered(void* of, void* to) {
  TDC_element* const element = static_cast<TDC_element*>(of);
  auto* const names = static_cast<std::vector<TableName>*>(to);
  my_bool out_of_memory = 0;
  mysql_mutex_lock(&element->LOCK_table_share);
  const TABLE_SHARE* const share = element->share;
  if (share != nullptr && share->stats_cb != nullptr && share->db_type() == strata_hton) {
    out_of_memory =
        guarded([&] {
          names->push_back({std::string(share->db.str, share->db.length),
                            std::string(share->table_name.str, share->table_name.length)});
          return 0;
        }) != 0;
  }
  mysql_mutex_unlock(&element->LOCK_table_share);
  return out_of_memory;
}

// Definitions in use with which the server remembers something. Nothing: out of memory.
std::optional<std::vector<TableName>> remembered() {
  std::vector<TableName> names;
  if (tdc_iterate(nullptr, note_remembered, &names) != 0) return std::nullopt;
  return names;
}

// False: somebody has its name, or the three tables cannot be read now.
bool read_again(THD* thd, const TableName& name) {
  const LEX_CSTRING schema{name.schema.data(), name.schema.size()};
  const LEX_CSTRING table{name.table.data(), name.table.size()};
  TABLE_LIST one;
  one.init_one_table(&schema, &table, nullptr, TL_READ);
  thd->set_query_id(next_query_id());
  const bool opened =
      open_n_lock_single_table(thd, &one, TL_READ, MYSQL_OPEN_IGNORE_LOGGING_FORMAT) != nullptr;
  bool again = false;
  if (opened) {
    again = read_statistics_for_tables(thd, &one, true) != 0;
  } else if (thd->is_error()) {
    again = thd->get_stmt_da()->sql_errno() == ER_LOCK_WAIT_TIMEOUT;
  }
  thd->clear_error();
  trans_commit_stmt(thd);
  close_thread_tables(thd);
  thd->mdl_context.release_transactional_locks(thd);
  thd->get_stmt_da()->reset_diagnostics_area();
  return !again;
}

class CollectedStatistics {
 public:
  void start() {
    {
      const MutexLock lock(mutex_);
      stopping_ = false;
    }
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  bool stops(uint64_t wait_us) {
    MutexLock lock(mutex_);
    if (!stopping_ && wait_us != 0) changed_.wait_for_us(lock, wait_us);
    return stopping_;
  }

  void run() {
    name_this_thread("collected-stats");
    while (!stops(kLookUs)) {
      if (!mysqld_server_started) continue;
      const int looked = guarded([&] {
        look();
        return 0;
      });
      // Out of memory in the middle: the next look begins with all of them.
      if (looked != 0) seen_ = {};
    }
  }

  void look() {
    const Versions told = told_versions();
    if (told != seen_) {
      auto names = remembered();
      if (!names.has_value()) return;  // The next look finds the same.
      left_ = *std::move(names);
      seen_ = told;
    }
    if (left_.empty()) return;
    const ServerThread thread;
    thread.thd()->set_time();
    thread.thd()->variables.lock_wait_timeout = kNameWaitS;
    std::vector<TableName> later;
    for (const TableName& name : std::exchange(left_, {})) {
      if (stops(0)) return;
      if (!read_again(thread.thd(), name)) later.push_back(name);
    }
    left_ = std::move(later);
  }

  Mutex mutex_{LatchRank::kServer};
  CondVar changed_;
  bool stopping_ = true;  // mutex_
  // Of the thread:
  Versions seen_{};
  std::vector<TableName> left_;  // to be read again
  std::thread thread_;
};

CollectedStatistics collected;

}  // namespace

void start_collected_statistics() { collected.start(); }
void stop_collected_statistics() { collected.stop(); }

bool has_collected_statistics(const engine::TableSpec& table) {
  return table.schema == "mysql" &&
         std::find(kTables.begin(), kTables.end(), table.name) != kTables.end();
}

}  // namespace strata::glue
