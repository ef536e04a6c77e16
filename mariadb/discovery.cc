// Table discovery: the dictionary is the only truth about which tables exist and how they look. A
// server that may not answer (K13) says so, and not that there is no such table.
#include <utility>
#include <vector>

#include "mariadb/cluster.h"
#include "mariadb/databases.h"
#include "mariadb/ddl.h"
#include "mariadb/definition_files.h"
#include "mariadb/error_map.h"
#include "mariadb/metadata_lock.h"
#include "mariadb/object_files.h"
#include "mariadb/statement_names.h"

namespace strata::glue {
namespace {

// Schemas that never hold tables of ours.
bool is_server_schema(const char* schema) {
  for (const char* const name : {"sys", "performance_schema", "information_schema"}) {
    if (my_strcasecmp(system_charset_info, schema, name) == 0) return true;
  }
  return false;
}

// Of the table that a statement is about to make; null where it is not known yet.
handlerton* engine_to_be(THD* thd) {
  // What is enforced is taken, or the statement is refused.
  if (const plugin_ref enforced = thd->variables.enforced_table_plugin)
    return plugin_hton(enforced);
  const LEX* const lex = thd->lex;
  if (lex->create_info.db_type != nullptr) return lex->create_info.db_type;
  if (!lex->create_info.like()) return ha_default_handlerton(thd);
  const TABLE_LIST* const source =
      lex->query_tables == nullptr ? nullptr : lex->query_tables->next_global;
  return source == nullptr || source->table == nullptr ? nullptr : source->table->file->ht;
}

// The server asks whether a name is free before it makes a table in whatever engine: the one moment
// at which we hear of others' tables.
void warn_if_it_becomes_local(THD* thd, const char* schema, const char* table) {
  if (thd == nullptr || cluster_identity() == 0 || thd->lex->create_info.tmp_table()) return;
  const int command = thd_sql_command(thd);
  if (command != SQLCOM_CREATE_TABLE && command != SQLCOM_CREATE_SEQUENCE) return;
  if (my_strcasecmp(system_charset_info, schema, "mysql") == 0) return;
  handlerton* const engine = engine_to_be(thd);
  if (engine == nullptr || engine == strata_hton) return;
  static thread_local query_id_t warned = 0;  // the server asks more than once
  if (std::exchange(warned, thd->query_id) != thd->query_id)
    warn_of_local_table(thd, schema, table, engine);
}

// RNM1, RNM4. Other engines' tables are this server's own.
Status lock_name_to_be(THD* thd, const TableName& name) {
  if (thd == nullptr || !kernel->shares_tables()) return ok_status();
  const int command = thd_sql_command(thd);
  if (command == SQLCOM_RENAME_TABLE) return lock_names_of_rename(thd);
  if (command != SQLCOM_CREATE_TABLE && command != SQLCOM_CREATE_SEQUENCE) return ok_status();
  const handlerton* const engine = engine_to_be(thd);
  if (engine != nullptr && engine != strata_hton) return ok_status();
  return lock_name_of_create(thd, name);
}

// DF5. CREATE OR REPLACE VIEW reads the file of what is there, to tell whether it is a view.
void show_what_is_replaced(THD* thd, const char* schema, const char* table, const TableName& name) {
  if (thd == nullptr || !kernel->shares_tables()) return;
  if (thd_sql_command(thd) != SQLCOM_CREATE_VIEW) return;
  if (!thd->mdl_context.is_lock_owner(MDL_key::TABLE, schema, table, MDL_EXCLUSIVE)) return;
  if (const StatusOr<engine::TableRef> found = find_table(name); found.ok())
    (void)write_definition_file((*found)->spec());  // DF2
}

// DF5. SHOW FULL TABLES takes a sequence without a file for a table. So is one shown that is being
// changed: a list does not wait for statements of this server.
void show_as_sequences(THD* thd, const std::vector<TableName>& sequences) {
  for (const TableName& name : sequences) {
    if (has_definition_file(name)) continue;
    const MetadataLock lock(thd, MDL_SHARED_HIGH_PRIO, MDL_key::TABLE,
                            plain_name(name.schema).c_str(), plain_name(name.table).c_str(), 0);
    if (!lock.has_it()) continue;
    if (const StatusOr<engine::TableRef> found = find_table(name); found.ok())
      (void)write_definition_file((*found)->spec());  // DF2
  }
}

// Reports why nothing can be told. Nothing is what the server takes for "go on with other engines".
bool must_be_silent(const Status& status) {
  if (status.ok() || is_not_found(status)) return false;
  tell_client(status);
  return true;
}

}  // namespace

void warn_of_local_table(THD* thd, const char* schema, const char* table, handlerton* engine) {
  if (cluster_identity() == 0) return;
  constexpr const char* kText =
      "STRATA: `%s`.`%s` is kept in engine %s by this server alone: it will be missing when "
      "another "
      "server of the cluster serves the database";
  const char* const name = engine == nullptr ? "?" : hton_name(engine)->str;
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_UNKNOWN_ERROR, kText, schema, table,
                      name);
  sql_print_warning(kText, schema, table, name);
}

int discover_table(handlerton*, THD* thd, TABLE_SHARE* share) {
  return guarded([&]() -> int {
    const StatusOr<engine::TableRef> table =
        find_table(from_plain_names(share->db.str, share->table_name.str));
    if (must_be_silent(table.ok() ? may_answer() : table.status()))
      return HA_ERR_GENERIC;  // the server adds nothing to what was reported
    if (!table.ok()) return HA_ERR_NO_SUCH_TABLE;
    const std::string& definition = (*table)->spec().definition;
    const int error = share->init_from_binary_frm_image(
        thd, false, reinterpret_cast<const uchar*>(definition.data()), definition.size());
    // The caller's metadata lock keeps every change of the definition away.
    if (error == 0 && kernel->shares_tables()) {
      // DB3. It logs why it cannot; then the triggers below have no place, if there are any.
      (void)make_database_folder((*table)->spec().schema);
      // The server reads those next; without them nobody may use the table.
      if (const Status fetched = fetch_triggers({(*table)->spec().schema, (*table)->spec().name});
          !fetched.ok()) {
        tell_client(fetched);
        return HA_ERR_GENERIC;
      }
    }
    // DF2: without that copy the table is found all the same.
    if (error == 0) (void)write_definition_file((*table)->spec());
    return error;
  });
}

int discover_table_existence(handlerton*, const char* schema, const char* table) {
  bool exists = false;
  const int failed = guarded([&] {
    if (is_server_schema(schema)) return 0;
    const TableName name = from_plain_names(schema, table);
    // There is no third answer: with the error reported the statement fails in either case.
    if (must_be_silent(lock_name_to_be(current_thd, name))) {
      exists = true;
      return 0;
    }
    exists = kernel->table_exists(name.schema, name.table);
    if (must_be_silent(may_answer())) exists = true;
    if (!exists) warn_if_it_becomes_local(current_thd, schema, table);
    if (exists) show_what_is_replaced(current_thd, schema, table, name);
    return 0;
  });
  if (failed != 0) {  // out of memory: "no" would be a lie
    exists = true;
    if (current_thd != nullptr && !current_thd->is_error()) my_error(ER_OUT_OF_RESOURCES, MYF(0));
  }
  return exists ? 1 : 0;
}

int discover_table_names(handlerton*, LEX_CSTRING* schema, MY_DIR*,
                         handlerton::discovered_list* result) {
  return guarded([&] {
    if (is_server_schema(schema->str)) return 0;
    char encoded[FN_REFLEN];
    tablename_to_filename(schema->str, encoded, sizeof encoded);
    const std::string_view wanted(encoded);
    THD* const thd = current_thd;
    const bool kinds = thd != nullptr && kernel->shares_tables() &&
                       thd_sql_command(thd) == SQLCOM_SHOW_TABLES && thd->lex->verbose;
    std::vector<TableName> sequences;
    bool failed = false;
    kernel->for_each_table(false, [&](const engine::TableSpec& spec) {
      if (failed || spec.schema != wanted) return;
      failed = result->add_file(spec.name.c_str());
      if (kinds && is_sequence(spec)) sequences.push_back({spec.schema, spec.name});
    });
    show_as_sequences(thd, sequences);
    return failed || must_be_silent(may_answer()) ? 1 : 0;
  });
}

}  // namespace strata::glue
