#include "mariadb/server_tables.h"

#include <array>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/latch.h"
#include "base/thread_name.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/event_role.h"
#include "mariadb/object_versions.h"
#include "mariadb/server_thread.h"
// After the other headers of the server.
#include "sp_cache.h"
#include "sql_acl.h"
#include "sql_servers.h"

namespace strata::glue {
namespace {

constexpr uint64_t kLookUs = 200'000;

struct ServerTable {
  std::string_view name;
  SharedKind kind;
};
constexpr ServerTable kTables[] = {
    {"global_priv", SharedKind::kAccounts},   {"db", SharedKind::kAccounts},
    {"tables_priv", SharedKind::kAccounts},   {"columns_priv", SharedKind::kAccounts},
    {"procs_priv", SharedKind::kAccounts},    {"proxies_priv", SharedKind::kAccounts},
    {"roles_mapping", SharedKind::kAccounts}, {"servers", SharedKind::kServers},
    {"proc", SharedKind::kRoutines},          {"event", SharedKind::kEvents},
};

std::optional<SharedKind> kind_of(const engine::TableSpec& table) {
  if (table.schema != "mysql") return std::nullopt;
  for (const ServerTable& known : kTables)
    if (table.name == known.name) return known.kind;
  return std::nullopt;
}

// ST2. Not foreign servers: their statements look into the server's memory, under its lock of that
// memory, before they open the table; whoever made them wait for it to be read again would hold up
// the reader.
bool is_taken_over_first(SharedKind kind) { return kind == SharedKind::kAccounts; }

uint32_t bit(SharedKind kind) { return 1u << static_cast<uint32_t>(kind); }

class ServerTables {
 public:
  void start() {
    if (const auto versions = all_versions(); versions.ok()) seen_ = *versions;
    {
      const MutexLock lock(mutex_);
      stopping_ = false;
    }
    prepare_event_role();
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

  // ST2. A statement that went on without would compare rows with what is remembered here.
  Status take_over(THD* thd) {
    MutexLock lock(mutex_);
    if (stopping_ || !mysqld_server_started) return ok_status();
    const uint64_t mine = ++wanted_;
    changed_.notify_all();
    return wait(&lock, thd, [this, mine] { return done_ >= mine; });
  }

  // ST7
  Status begin_to_change(THD* thd) {
    MutexLock lock(mutex_);
    STRATA_RETURN_IF_ERROR(wait(&lock, thd, [this] { return readers_ == 0; }));
    ++changers_;
    return ok_status();
  }
  void has_changed() {
    const MutexLock lock(mutex_);
    --changers_;
    changed_.notify_all();
  }
  Status begin_to_read(THD* thd) {
    MutexLock lock(mutex_);
    STRATA_RETURN_IF_ERROR(wait(&lock, thd, [this] { return changers_ == 0; }));
    ++readers_;
    return ok_status();
  }
  void has_read() {
    const MutexLock lock(mutex_);
    --readers_;
    changed_.notify_all();
  }

  void rolled_back(uint32_t kinds) {
    const MutexLock lock(mutex_);
    stale_ |= kinds;
  }

 private:
  // For as long as a statement waits for other servers. A server that stops waits for nothing.
  template <typename True>
  Status wait(MutexLock* lock, THD* thd, True true_now) {
    const uint64_t deadline_us = monotonic_us() + ddl_timeout_us(thd);
    while (!true_now() && !stopping_) {
      if (thd_kill_level(thd) != THD_IS_NOT_KILLED) return error_interrupted();
      const uint64_t now_us = monotonic_us();
      if (now_us >= deadline_us) return failed_.ok() ? error_lock_wait_timeout() : failed_;
      changed_.wait_for_us(*lock, std::min(kLookUs, deadline_us - now_us));
    }
    return ok_status();
  }

  void run() {
    name_this_thread("server-tables");
    for (;;) {
      uint64_t asked = 0;
      {
        MutexLock lock(mutex_);
        if (!stopping_ && (done_ == wanted_ || !failed_.ok())) changed_.wait_for_us(lock, kLookUs);
        if (stopping_) break;
        asked = wanted_;
      }
      if (mysqld_server_started) {
        Status looked = error_peer_down("out of memory");
        // What it throws is that.
        (void)guarded([&] {
          looked = look();
          return 0;
        });
        const MutexLock lock(mutex_);
        failed_ = looked;
        if (looked.ok()) done_ = asked;
      }
      changed_.notify_all();
      if (mysqld_server_started) {
        // Out of memory: it is looked at again in a moment.
        (void)guarded([&] {
          look_after_events(std::exchange(events_changed_, false));
          return 0;
        });
      }
    }
    // Out of memory: the role goes with the server.
    (void)guarded([&] {
      leave_event_role();
      return 0;
    });
  }

  // ST3. What fails is tried again the next time.
  Status look() {
    STRATA_ASSIGN_OR_RETURN(const auto versions, all_versions());
    uint32_t stale = 0;
    {
      const MutexLock lock(mutex_);
      stale = std::exchange(stale_, 0);
    }
    for (size_t i = 0; i < kSharedKinds; ++i) {
      if (versions[i] == seen_[i]) continue;
      // Its own it has in its memory, if what came before it had been taken over (ST2).
      if (!is_own_version(versions[i]) || !is_taken_over_first(static_cast<SharedKind>(i)))
        stale |= 1u << i;
      seen_[i] = versions[i];
    }
    Status status;
    for (size_t i = 0; i < kSharedKinds; ++i) {
      if ((stale & 1u << i) == 0 || read_again(static_cast<SharedKind>(i))) continue;
      status = error_peer_down(
          "the accounts, or foreign servers, that other servers have changed cannot be read; the "
          "server's log says why; to do: see that the tables of mysql are as they should be, then "
          "try again");
      const MutexLock lock(mutex_);
      stale_ |= 1u << i;
    }
    return status;
  }

  // False: it could not be read.
  bool read_again(SharedKind kind) {
    switch (kind) {
      case SharedKind::kAccounts:
        return opt_noacl || read_accounts();
      case SharedKind::kServers: {
        const ServerThread thread;
        const bool failed = servers_reload(thread.thd());
        thread.thd()->clear_error();
        return !failed;
      }
      case SharedKind::kRoutines:
        sp_cache_invalidate();
        return true;
      case SharedKind::kEvents:
        events_changed_ = true;
        return true;
      case SharedKind::kFiles:
        return true;  // object_files.h
    }
    return true;
  }

  // False also while they are changed here (ST7): the next look comes soon.
  bool read_accounts() {
    {
      MutexLock lock(mutex_);
      if (changers_ != 0) changed_.wait_for_us(lock, kLookUs);
      if (changers_ != 0) return false;
      ++readers_;
    }
    bool failed = true;
    // Out of memory: it has failed.
    (void)guarded([&] {
      const ServerThread thread;
      thread.thd()->set_time();
      failed = acl_reload(thread.thd()) || grant_reload(thread.thd());
      thread.thd()->clear_error();
      return 0;
    });
    has_read();
    return !failed;
  }

  Mutex mutex_{LatchRank::kServer};
  CondVar changed_;
  bool stopping_ = true;            // mutex_
  uint32_t readers_ = 0;            // mutex_: of accounts (ST7)
  uint32_t changers_ = 0;           // mutex_: transactions (ST7)
  uint64_t wanted_ = 0, done_ = 0;  // mutex_: looks
  Status failed_;                   // mutex_: the last one
  uint32_t stale_ = 0;              // mutex_: kinds
  // Of the thread:
  std::array<std::string, kSharedKinds> seen_;
  bool events_changed_ = false;
  std::thread thread_;
};

ServerTables tables;

}  // namespace

void start_server_tables() { tables.start(); }
void stop_server_tables() { tables.stop(); }

int use_server_table(Connection* connection, const engine::TableSpec& table, bool writes) {
  if (!kernel->shares_tables()) return 0;
  const std::optional<SharedKind> kind = kind_of(table);
  if (!kind.has_value()) return 0;
  THD* const thd = connection->thd;
  if (*kind == SharedKind::kEvents)
    if (const int error = refuse_if_events_run_elsewhere(thd)) return error;
  if (!writes || runs_events(thd)) return 0;  // when an event has last run is nobody else's matter
  if (const Status noted = note_change(connection->session.get(), *kind); !noted.ok()) {
    if (server_has_no_text(noted)) tell_client(noted);
    return handler_error(noted, thd);
  }
  connection->server_tables |= bit(*kind);
  // Once: nobody else changes them before this statement has ended.
  if (!is_taken_over_first(*kind) || connection->took_over == thd->query_id) return 0;
  if (const Status taken = tables.take_over(thd); !taken.ok()) {
    if (server_has_no_text(taken)) tell_client(taken);
    return handler_error(taken, thd);
  }
  connection->took_over = thd->query_id;
  if (connection->changes_accounts) return 0;
  if (const Status begun = tables.begin_to_change(thd); !begun.ok()) {
    if (server_has_no_text(begun)) tell_client(begun);
    return handler_error(begun, thd);
  }
  connection->changes_accounts = true;
  return 0;
}

int read_server_table_again(Connection* connection, const engine::TableSpec& table, bool* begun) {
  *begun = false;
  if (!kernel->shares_tables() || kind_of(table) != SharedKind::kAccounts) return 0;
  THD* const thd = connection->thd;
  if (thd_sql_command(thd) != SQLCOM_FLUSH || connection->changes_accounts) return 0;
  if (connection->accounts_read == 0) {
    if (const Status may = tables.begin_to_read(thd); !may.ok()) {
      if (server_has_no_text(may)) tell_client(may);
      return handler_error(may, thd);
    }
  }
  ++connection->accounts_read;
  *begun = true;
  return 0;
}

void server_table_was_read(Connection* connection) {
  if (--connection->accounts_read == 0) tables.has_read();
}

void server_tables_changed(Connection* connection) {
  if (std::exchange(connection->changes_accounts, false)) tables.has_changed();
}

bool is_server_table(const engine::TableSpec& table) { return kind_of(table).has_value(); }

void server_tables_rolled_back(uint32_t kinds) {
  if (kinds != 0) tables.rolled_back(kinds);
}

void tell_of_server_table(const Status& status) {
  if (status.ok() || current_thd == nullptr || current_thd->is_error()) return;
  if (is_duplicate_key(status) || is_not_found(status)) return;  // the server asks for these
  tell_client(status);
}

}  // namespace strata::glue
