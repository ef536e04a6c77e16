#include "mariadb/statement_names.h"

#include "mariadb/agent.h"
#include "mariadb/ddl.h"
#include "mariadb/metadata_lock.h"
#include "mariadb/path.h"
#include "mariadb/table_locks.h"

namespace strata::glue {
namespace {

// By table_key(). A name may come again, as in RENAME TABLE a TO b, b TO a.
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

// Until the statement ends.
Status keep_names(THD* thd, Connection* connection, const std::map<std::string, TableName>& names) {
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
      connection->names_refused = thd->query_id;
      return locked;
    }
  }
  connection->names = std::move(session);
  return ok_status();
}

bool makes_table(THD* thd) {
  const int command = thd_sql_command(thd);
  return (command == SQLCOM_CREATE_TABLE || command == SQLCOM_CREATE_SEQUENCE) &&
         !thd->lex->create_info.tmp_table() && thd->locked_tables_mode == LTM_NONE;
}

// The server has made sure that nobody of its own uses the table: of no other one has the statement
// such a lock.
bool is_about_to_make(THD* thd, const TableName& name) {
  if (!makes_table(thd) || name.internal()) return false;
  return thd->mdl_context.is_lock_owner(MDL_key::TABLE, plain_name(name.schema).c_str(),
                                        plain_name(name.table).c_str(), MDL_EXCLUSIVE);
}

}  // namespace

Status lock_names_of_rename(THD* thd) {
  if (!kernel->shares_tables() || thd == nullptr) return ok_status();
  if (thd_sql_command(thd) != SQLCOM_RENAME_TABLE) return ok_status();
  Connection* const connection = connection_of(thd);
  if (connection->names != nullptr) return ok_status();
  if (connection->names_refused == thd->query_id) return error_not_found();  // RNM3
  return keep_names(thd, connection, names_of(thd));
}

Status lock_name_of_create(THD* thd, const TableName& name) {
  if (!kernel->shares_tables() || thd == nullptr || !is_about_to_make(thd, name))
    return ok_status();
  Connection* const connection = connection_of(thd);
  if (connection->names != nullptr) {
    trans_register_ha(thd, false, strata_hton, 0);  // see statement_rolled_back()
    return ok_status();
  }
  return keep_names(thd, connection, {{table_key(name.schema, name.table), name}});
}

bool replaces_table(THD* thd, const TableName& name) {
  return kernel->shares_tables() && thd != nullptr && is_about_to_make(thd, name);
}

void statement_rolled_back(THD* thd, Connection* connection) {
  if (connection->names == nullptr) return;
  const bool goes_on = makes_table(thd) && thd->lex->create_info.or_replace() && !thd->is_error() &&
                       thd->killed == NOT_KILLED;
  if (!goes_on) unlock_names_of_statement(connection);
}

void unlock_names_of_statement(Connection* connection) {
  if (connection->names == nullptr) return;
  connection->names->rollback().IgnoreError();  // it has changed nothing
  connection->names.reset();
}

}  // namespace strata::glue
