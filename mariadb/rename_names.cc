#include "mariadb/rename_names.h"

#include "mariadb/agent.h"
#include "mariadb/ddl.h"
#include "mariadb/path.h"
#include "mariadb/table_locks.h"

namespace strata::glue {
namespace {

// One table is two entries of the list: as it is and as it will be. A name may come again, as in
// RENAME TABLE a TO b, b TO a.
bool is_of_several_tables(THD* thd) {
  const TABLE_LIST* const first = thd->lex->query_tables;
  const TABLE_LIST* const second = first == nullptr ? nullptr : first->next_global;
  return second != nullptr && second->next_global != nullptr;
}

// By table_key().
std::map<std::string, TableName> names_of(THD* thd) {
  std::map<std::string, TableName> names;
  for (const TABLE_LIST* table = thd->lex->query_tables; table != nullptr;
       table = table->next_global) {
    TableName name = from_plain_names(table->db.str, table->table_name.str);
    if (name.internal()) continue;
    std::string key = table_key(name.schema, name.table);
    names.emplace(std::move(key), std::move(name));
  }
  return names;
}

Status lock_all(engine::Session* session, const std::map<std::string, TableName>& names) {
  GivesUpMeanwhile waits(names);
  for (const auto& [key, name] : names) {
    STRATA_RETURN_IF_ERROR(session->lock_name(name.schema, name.table));
    waits.has(key);
  }
  return ok_status();
}

}  // namespace

Status lock_names_of_rename(THD* thd, Connection* connection) {
  if (!kernel->shares_tables() || thd_sql_command(thd) != SQLCOM_RENAME_TABLE) return ok_status();
  if (connection->renames != nullptr) return ok_status();
  if (connection->renames_refused == thd->query_id) return error_not_found();  // RNM3
  if (!is_of_several_tables(thd)) return ok_status();
  const std::map<std::string, TableName> names = names_of(thd);
  // So that the server tells of the statement's end.
  trans_register_ha(thd, false, strata_hton, 0);
  auto session = kernel->new_session();
  prepare_ddl(thd, session.get());
  session->begin(engine::Isolation::kReadCommitted);
  {
    const KillReaches reaches(connection, session.get());
    const WaitShown shown(thd, "Waiting for other servers' use of a table");
    if (const Status locked = lock_all(session.get(), names); !locked.ok()) {
      session->rollback().IgnoreError();  // it has changed nothing
      connection->renames_refused = thd->query_id;
      return locked;
    }
  }
  connection->renames = std::move(session);
  return ok_status();
}

void unlock_names_of_rename(Connection* connection) {
  if (connection->renames == nullptr) return;
  connection->renames->rollback().IgnoreError();  // likewise
  connection->renames.reset();
}

}  // namespace strata::glue
