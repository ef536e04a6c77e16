// Two-phase commit and XA.
#include "mariadb/connection.h"
#include "mariadb/coordinator.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/freeze.h"

namespace strata::glue {
namespace {

// The error codes of the XA interface (X/Open), not of handlers.
constexpr int kXaOk = 0;
constexpr int kXaResourceManagerError = -3;
constexpr int kXaUnknownXid = -4;
constexpr int kXaUnavailable = -7;

int xa_error(const Status& status) {
  if (status.ok()) return kXaOk;
  if (is_not_found(status)) return kXaUnknownXid;
  (void)handler_error(status, nullptr);
  // The server looks at what was reported, not at what is returned: without this XA COMMIT would
  // say that it has worked, and forget the transaction.
  if (THD* const thd = current_thd; thd != nullptr && mysqld_server_started && !thd->is_error()) {
    tell_client(status);
    if (!thd->is_error()) my_error(ER_XAER_RMERR, MYF(0));
  }
  return kXaUnavailable;
}

// Whether the server writes the transaction to its binary log between prepare() and commit().
bool in_binary_log(THD* thd, bool all) {
  const THD_TRANS& parts = all ? thd->transaction->all : thd->transaction->stmt;
  for (Ha_trx_info* part = parts.ha_list; part != nullptr; part = part->next())
    if (part->ht() == binlog_hton && part->is_trx_read_write()) return true;
  return false;
}

Status decide(const XID& given, Status (engine::Kernel::*how)(Bytes xid)) {
  const std::string xid = stored_xid_of(given);
  const Status decided = (kernel->*how)(xid);
  if (!is_not_found(decided)) return decided;
  STRATA_RETURN_IF_ERROR(wait_until_let_go(xid));  // XP1
  return (kernel->*how)(xid);
}

// recover() is called again and again until it returns less than it could.
size_t recovered_so_far = 0;

}  // namespace

int prepare(handlerton*, THD* thd, bool all) {
  return guarded([&] {
    Connection* const connection = existing_connection(thd);
    if (connection == nullptr) return 0;
    engine::Session* const session = connection->session.get();
    if (!session->in_transaction()) return 0;
    if (!ends_transaction(thd, all)) {
      connection->statement = session->savepoint();
      return 0;
    }
    if (const Status filled = ends_to_fill(connection); !filled.ok())
      return handler_error(filled, thd);
    const bool user_xa = thd->transaction->xid_state.is_explicit_XA();
    if (!session->has_changes()) {
      connection->xa_prepared = user_xa;
      return 0;
    }
    MYSQL_XID server_xid;
    thd_get_xid(thd, &server_xid);
    const XID& given = *reinterpret_cast<const XID*>(&server_xid);
    connection->in_binary_log = !user_xa && in_binary_log(thd, all);
    const std::string xid =
        user_xa ? user_xid_to_store(given) : server_xid_to_store(given, connection->in_binary_log);
    Status status = reserve_temporary_commit(connection);
    if (status.ok()) status = session->prepare(xid);
    // A user's XA COMMIT comes who knows when and does both halves at once.
    if (status.ok() && !user_xa) status = session->reserve_commit();
    if (!status.ok()) return handler_error(status, thd);
    connection->prepared = !user_xa;
    connection->xa_prepared = user_xa;
    if (user_xa) connection->prepared_here.emplace(xid);
    return 0;
  });
}

int recover(handlerton*, XID* list, uint length) {
  int found = 0;
  (void)guarded([&] {
    const std::vector<engine::PreparedTransaction> all = kernel->prepared_transactions();
    if (!all.empty()) cache_nothing();  // QY2
    uint filled = 0;
    for (; recovered_so_far < all.size() && filled < length; ++recovered_so_far)
      if (xid_to_recover(all[recovered_so_far].xid, &list[filled])) ++filled;
    if (filled < length) recovered_so_far = 0;
    found = static_cast<int>(filled);
    return 0;
  });
  return found;
}

int commit_by_xid(handlerton*, XID* xid) {
  int result = kXaResourceManagerError;
  (void)guarded([&] {
    if (THD* const thd = current_thd; thd != nullptr)
      if (const Status may = wait_for_leave_to_change(thd); !may.ok()) {
        result = xa_error(may);
        return 0;
      }
    result = xa_error(decide(*xid, &engine::Kernel::commit_by_xid));
    return 0;
  });
  return result;
}

int rollback_by_xid(handlerton*, XID* xid) {
  int result = kXaResourceManagerError;
  (void)guarded([&] {
    result = xa_error(decide(*xid, &engine::Kernel::rollback_by_xid));
    return 0;
  });
  return result;
}

bool flush_logs(handlerton*) {
  return guarded([&] { return handler_error(kernel->persist_log(), nullptr); }) != 0;
}

void commit_checkpoint_request(void* cookie) {
  (void)guarded([&] {  // out of memory: as if it were never durable
    request_checkpoint(cookie);
    return 0;
  });
}

}  // namespace strata::glue
