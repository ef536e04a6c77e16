#include "mariadb/temporary.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/paths_of_server.h"
#include "mariadb/settings.h"

namespace strata::glue {
namespace {

// build_tmptable_filename() of the server.
constexpr std::string_view kPathBegins = "#sql-temptable-";
// No checkpoint for the log's sake: there is nothing to redo.
constexpr uint64_t kNeverCheckpointBytes = 1ULL << 50;
constexpr uint64_t kNeverCheckpointUs = 1ULL << 50;
constexpr uint32_t kLogBufferBytes = 8U << 20;

Mutex mutex{LatchRank::kServer};
std::unique_ptr<engine::Kernel> owned STRATA_GUARDED_BY(mutex);
std::atomic<engine::Kernel*> opened{nullptr};

std::string folder() { return data_folder() + "/temporary"; }

engine::KernelOptions options() {
  engine::KernelOptions made;
  made.directory = folder();
  made.unlogged = true;
  made.buffer_pool_bytes = setting_temporary_pool_size;
  made.log_checkpoint_bytes = kNeverCheckpointBytes;
  made.checkpoint_interval_us = kNeverCheckpointUs;
  made.log_buffer_bytes = kLogBufferBytes;
  made.direct_io = false;
  return made;
}

}  // namespace

bool is_temporary_path(const char* path) {
  const char* const slash = std::strrchr(path, FN_LIBCHAR);
  const std::string_view name(slash == nullptr ? path : slash + 1);
  return name.substr(0, kPathBegins.size()) == kPathBegins;
}

engine::Kernel* open_temporary_kernel() noexcept { return opened.load(std::memory_order_acquire); }

StatusOr<engine::Kernel*> temporary_kernel() {
  if (engine::Kernel* const there = open_temporary_kernel()) return there;
  const MutexLock lock(mutex);
  if (owned == nullptr) {
    StatusOr<std::unique_ptr<engine::Kernel>> made = engine::Kernel::open(options());
    if (!made.ok())
      return with_message(made.status(), "the folder for temporary tables, " + folder() +
                                             ", cannot be used: " + cause_of(made.status()));
    owned = std::move(made).value();
    opened.store(owned.get(), std::memory_order_release);
  }
  return owned.get();
}

void remove_temporary_folder() {
  std::error_code error;
  std::filesystem::remove_all(folder(), error);
  if (error)
    sql_print_warning("STRATA: cannot remove %s, which holds nothing that is needed: %s",
                      folder().c_str(), error.message().c_str());
}

void close_temporary_kernel() {
  std::unique_ptr<engine::Kernel> last;
  {
    const MutexLock lock(mutex);
    opened.store(nullptr, std::memory_order_release);
    last = std::move(owned);
  }
  if (last == nullptr) return;
  last.reset();
  remove_temporary_folder();
}

int begin_temporary_statement(Connection* connection) {
  if (const int error = begin_statement(connection)) return error;
  if (connection->temporary == nullptr) {
    const StatusOr<engine::Kernel*> home = temporary_kernel();
    if (!home.ok()) return handler_error(home.status(), connection->thd);
    connection->temporary = (*home)->new_session();
    const MutexLock lock(connection->ddl_mutex);
    connection->interrupted_too = connection->temporary.get();
  }
  engine::Session* const session = connection->temporary.get();
  if (session->must_rollback()) return HA_ERR_ROLLBACK;
  if (!session->in_transaction()) {
    session->begin(engine::Isolation::kRepeatableRead);
    connection->temporary_statement = session->savepoint();
  }
  renew_interrupt(connection->thd, session);
  return 0;
}

// The transaction may have changed it: there is nothing to undo in what is gone.
int drop_temporary_table(Connection* connection, const TableName& name) {
  engine::Kernel* const home = open_temporary_kernel();
  if (home == nullptr) return HA_ERR_NO_SUCH_TABLE;
  if (connection != nullptr && connection->temporary != nullptr)
    connection->temporary->make_later_changes().IgnoreError();  // it says so again when it ends
  const Status status = run_ddl_in(home, Killable::kNo, [&](engine::Session* session) {
    return session->drop_table(name.schema, name.table);
  });
  return is_not_found(status) ? HA_ERR_NO_SUCH_TABLE : handler_error(status, nullptr);
}

}  // namespace strata::glue
