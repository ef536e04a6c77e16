#include "mariadb/ddl.h"

#include <optional>
#include <utility>

#include "base/fault.h"
#include "mariadb/connection.h"
#include "mariadb/databases.h"
#include "mariadb/definition_files.h"
#include "mariadb/error_map.h"
#include "mariadb/foreign_keys.h"
#include "mariadb/freeze.h"
#include "mariadb/ha_strata.h"
#include "mariadb/metadata_lock.h"
#include "mariadb/object_files.h"
#include "mariadb/statement_names.h"
#include "mariadb/table_locks.h"
#include "mariadb/temporary.h"

namespace strata::glue {
namespace {

constexpr std::string_view kJournalPrefix = "alter";

bool decode_journal_key(Bytes key, TableName* copy) {
  if (key.substr(0, kJournalPrefix.size()) != kJournalPrefix) return false;
  ByteReader reader(key.substr(kJournalPrefix.size()));
  copy->schema = std::string(reader.bytes32());
  copy->table = std::string(reader.bytes32());
  return reader.ok();
}

bool decode_journal(Bytes value, AlterJournal* journal) {
  ByteReader reader(value);
  journal->original.schema = std::string(reader.bytes32());
  journal->original.table = std::string(reader.bytes32());
  journal->original_version = std::string(reader.bytes32());
  return reader.ok();
}

struct JournalRow {
  TableName copy;
  AlterJournal alter;
};

StatusOr<std::vector<JournalRow>> read_journal() {
  std::vector<JournalRow> rows;
  STRATA_RETURN_IF_ERROR(kernel->for_each_journal([&](Bytes key, Bytes value) {
    JournalRow row;
    if (decode_journal_key(key, &row.copy) && decode_journal(value, &row.alter) &&
        row.copy.is_ours())
      rows.push_back(std::move(row));
  }));
  return rows;
}

bool has_version(const TableName& name, const std::string& version) {
  const StatusOr<engine::TableRef> table = find_table(name);
  return table.ok() && (*table)->spec().version == version;
}

int ddl_error(const Status& status) {
  if (is_not_found(status)) return HA_ERR_NO_SUCH_TABLE;
  if (is_duplicate_key(status)) return HA_ERR_TABLE_EXIST;
  // Some statements (RENAME) say nothing but the number of these.
  if (current_thd != nullptr && !current_thd->is_error()) {
    if (is_lock_wait_timeout(status)) my_error(ER_LOCK_WAIT_TIMEOUT, MYF(0));
    if (is_interrupted(status)) current_thd->send_kill_message();
  }
  return handler_error(status, nullptr);
}

// The server says "error on rename" and the number of whatever has kept the engine from it.
int rename_error(const Status& status) {
  if (current_thd != nullptr && !current_thd->is_error() && server_has_no_text(status))
    tell_client(status);
  return ddl_error(status);
}

// In the transaction that has locked the table's name, if this statement has one (CX5).
Status run_ddl_on(const TableName& name, Killable killable,
                  const std::function<Status(engine::Session*)>& body) {
  THD* const thd = current_thd;
  Connection* const connection = thd == nullptr ? nullptr : existing_connection(thd);
  const std::unique_ptr<engine::Session> held =
      connection == nullptr ? nullptr : take_alter_hold(connection, name);
  return held == nullptr ? run_ddl(killable, body)
                         : run_ddl_in_transaction(held.get(), killable, body);
}

// Of a CREATE that has failed, or was killed, in the middle: what it has made must go all the same.
bool takes_back_create(THD* thd) {
  if (thd == nullptr) return false;
  const int command = thd_sql_command(thd);
  if (command != SQLCOM_CREATE_TABLE && command != SQLCOM_CREATE_SEQUENCE) return false;
  return thd->is_error() || (thd->killed != NOT_KILLED && !thd->lex->create_info.or_replace());
}

Status drop_now(const TableName& name) {
  const Killable killable =
      name.internal() || takes_back_create(current_thd) ? Killable::kNo : Killable::kYes;
  return run_ddl_on(name, killable, [&](engine::Session* session) {
    const bool whole_schema =
        current_thd != nullptr && thd_sql_command(current_thd) == SQLCOM_DROP_DB;
    const Status dropped = session->drop_table(name.schema, name.table, whole_schema);
    if (is_row_is_referenced(dropped)) forget_foreign_key_error();  // the server names none here
    STRATA_RETURN_IF_ERROR(dropped);
    if (name.internal()) return session->journal_erase(journal_key(name));
    return kernel->shares_tables() ? erase_triggers(session, name) : ok_status();
  });
}

Status rename_in(engine::Session* session, const TableName& from, const TableName& to) {
  if (kernel->shares_tables() && !to.internal() && from.schema != to.schema)
    STRATA_RETURN_IF_ERROR(use_database(session, to.schema));
  STRATA_RETURN_IF_ERROR(session->rename_table(from.schema, from.table, to.schema, to.table));
  return from.internal() ? session->journal_erase(journal_key(from)) : ok_status();
}

// A copy of this table in our own dictionary waits to take its place; without one the ALTER moves
// the table to another engine.
StatusOr<bool> has_copy(const TableName& original) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<JournalRow> journal, read_journal());
  return std::any_of(journal.begin(), journal.end(), [&](const JournalRow& row) {
    return row.alter.original == original && kernel->table_exists(row.copy.schema, row.copy.table);
  });
}

// D4: the server believes this ALTER has copied everything and drops the original before it
// renames. A journal that cannot be read is no permission to drop.
StatusOr<bool> must_postpone_drop(const TableName& name) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<JournalRow> journal, read_journal());
  for (const JournalRow& row : journal) {
    if (row.alter.original == name && kernel->table_exists(row.copy.schema, row.copy.table) &&
        has_version(name, row.alter.original_version))
      return true;
  }
  return false;
}

// In the transaction that renames it. The server renames the files of a table's triggers after the
// table: published at the end of the statement (OF4), also when it takes back what it has renamed.
Status note_renamed(Connection* connection, engine::Session* session, const TableName& from,
                    const TableName& to) {
  if (!kernel->shares_tables() || from.internal() || to.internal() || from == to)
    return ok_status();
  std::vector<TableName>& renamed = connection->renamed;
  const auto is_noted = [&renamed](const TableName& name) {
    return std::find(renamed.begin(), renamed.end(), name) != renamed.end();
  };
  // What a table of that name had that another server has dropped. Not what is coming back.
  if (!is_noted(to)) STRATA_RETURN_IF_ERROR(fetch_triggers(to));
  STRATA_ASSIGN_OR_RETURN(const bool has, has_triggers(from));
  if (!has && !is_noted(from)) return ok_status();
  for (const TableName& name : {from, to})
    if (!is_noted(name)) renamed.push_back(name);
  register_with_server(connection);
  // If this server is killed now, no new table gets them; they are found where they are (OF1).
  return erase_triggers(session, from);
}

// D4: the copy takes the original's place, whatever of the two steps had been done.
int recover_rename(const TableName& from, const TableName& to) {
  const StatusOr<std::vector<JournalRow>> read = read_journal();
  if (!read.ok()) return ddl_error(read.status());
  const std::vector<JournalRow>& journal = *read;
  const auto row = std::find_if(journal.begin(), journal.end(),
                                [&](const JournalRow& r) { return r.copy == from; });
  return ddl_error(run_ddl(Killable::kNo, [&](engine::Session* session) -> Status {
    if (row != journal.end() && kernel->table_exists(from.schema, from.table)) {
      const TableName& original = row->alter.original;
      if (has_version(original, row->alter.original_version))
        STRATA_RETURN_IF_ERROR(session->drop_table(original.schema, original.table));
      else if (kernel->shares_tables())
        return error_not_found();  // D7
    }
    return rename_in(session, from, to);
  }));
}

// For what goes with the next start otherwise (D5): a failure is no reason to fail the statement.
void drop_garbage(const TableName& name) {
  const Status status = drop_now(name);
  if (status.ok() || is_not_found(status)) return;
  sql_print_warning(
      "STRATA: %s/%s, left by a statement that failed, stays until the next start: %.*s",
      name.schema.c_str(), name.table.c_str(), static_cast<int>(status.message().size()),
      status.message().data());
}

void undo_swap(const AlterSwap& swap) {
  // At once or in the background (engine E18); other sessions never saw it.
  swap.session->rollback().IgnoreError();
  // The ALTER has failed: its copy, dropped inside the transaction just undone or not, is garbage.
  if (!swap.copy.table.empty()) drop_garbage(swap.copy);
  restore_definition_file(swap.target);  // the server may have put the copy's in its place
}

// What becomes of the ALTER is decided here, and only here (D2, D6).
int commit_swap(Connection* connection) {
  const std::unique_ptr<AlterSwap> swap = std::move(connection->swap);
  const Status status = fault(FaultPoint::alter_swap_commit)
                            ? error_no_space("fault point alter_swap_commit")
                            : swap->session->commit(engine::Durability::kSync);
  close_if_outcome_unknown(status, connection->thd);
  // Outcome unknown: a copy that is left is garbage (D5).
  if (!status.ok() && !is_outcome_unknown(status)) undo_swap(*swap);
  return handler_error(status, connection->thd);
}

// What the server would have refused had it found the definition file (DF2).
bool is_sequence_statement_on_table(THD* thd, const TableName& name) {
  if (thd == nullptr || thd_sql_command(thd) != SQLCOM_DROP_SEQUENCE) return false;
  const StatusOr<engine::TableRef> table = find_table(name);
  if (!table.ok() || is_sequence((*table)->spec())) return false;
  (void)write_definition_file((*table)->spec());  // DF2
  my_error(ER_NOT_SEQUENCE2, MYF(0), (name.schema + "." + name.table).c_str());
  return true;
}

// As with InnoDB: DROP of a definition without a table removes the file and says so.
void warn_of_lost_table(THD* thd, const char* path, const TableName& name) {
  if (thd == nullptr || thd_sql_command(thd) != SQLCOM_DROP_TABLE || !has_definition_file(name))
    return;
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_NO_SUCH_TABLE_IN_ENGINE,
                      ER_THD(thd, ER_NO_SUCH_TABLE_IN_ENGINE), name.schema.c_str(),
                      name.table.c_str());
  sql_print_warning("STRATA: DROP of %s, of which only the definition file was there", path);
}

}  // namespace

// Not in what is replayed after a crash: it was allowed before.
bool checks_foreign_keys(THD* thd) {
  return thd != nullptr && ddl_recovery_done.load() &&
         !thd_test_options(thd, OPTION_NO_FOREIGN_KEY_CHECKS);
}

Status run_ddl(Killable killable, const std::function<Status(engine::Session*)>& body) {
  return run_ddl_in(kernel, killable, body);
}

Status run_ddl_in(engine::Kernel* home, Killable killable,
                  const std::function<Status(engine::Session*)>& body) {
  if (current_thd != nullptr && home == kernel)
    STRATA_RETURN_IF_ERROR(wait_for_leave_to_change(current_thd));
  const std::unique_ptr<engine::Session> session = home->new_session();
  if (current_thd != nullptr) prepare_ddl(current_thd, session.get());
  session->begin(engine::Isolation::kReadCommitted);
  return run_ddl_in_transaction(session.get(), killable, body);
}

int table_exists(const TableName& name) {
  if (kernel->shares_tables() && !name.internal() && current_thd != nullptr &&
      !current_thd->is_error())
    my_error(ER_TABLE_EXISTS_ERROR, MYF(0), plain_name(name.table).c_str());
  return HA_ERR_TABLE_EXIST;
}

// By another server, while the statement waited: the server knows no word for that.
static int table_is_gone(const TableName& name) {
  if (kernel->shares_tables() && !name.internal() && !current_thd->is_error())
    my_error(ER_NO_SUCH_TABLE, MYF(0), plain_name(name.schema).c_str(),
             plain_name(name.table).c_str());
  return HA_ERR_NO_SUCH_TABLE;
}

uint64_t ddl_timeout_us(THD* thd) {
  const uint64_t metadata_us = uint64_t{thd->variables.lock_wait_timeout} * 1'000'000;
  return std::min(lock_wait_timeout_us(thd), metadata_us);
}

void prepare_ddl(THD* thd, engine::Session* session) {
  session->set_lock_wait_timeout_us(ddl_timeout_us(thd));
  if (const Connection* const connection = existing_connection(thd); connection != nullptr)
    session->borrow_names(connection->names != nullptr ? connection->names.get()
                                                       : connection->table_locks.get());
}

Status run_ddl_in_transaction(engine::Session* session, Killable killable,
                              const std::function<Status(engine::Session*)>& body) {
  THD* const thd = current_thd;
  session->set_foreign_key_checks(checks_foreign_keys(thd));
  Status status;
  {
    std::optional<KillReaches> reaches;
    if (thd != nullptr && killable == Killable::kYes) reaches.emplace(connection_of(thd), session);
    status = body(session);
  }
  if (!status.ok()) {
    session->rollback().IgnoreError();  // at once or in the background (engine E18)
    return status;
  }
  status = session->commit(engine::Durability::kSync);
  close_if_outcome_unknown(status, current_thd);  // D6
  return status;
}

StatusOr<engine::TableRef> find_table(const TableName& name) {
  const std::unique_ptr<engine::Session> session = kernel->new_session();
  THD* const thd = current_thd;
  if (!kernel->shares_tables() || thd == nullptr)
    return session->open_table(name.schema, name.table);
  // Another server's DDL may have to be waited for.
  prepare_ddl(thd, session.get());
  const KillReaches reaches(connection_of(thd), session.get());
  return session->open_table(name.schema, name.table);
}

std::string journal_key(const TableName& copy) {
  std::string key(kJournalPrefix);
  append_bytes32(&key, copy.schema);
  append_bytes32(&key, copy.table);
  return key;
}

std::string encode_journal(const AlterJournal& journal) {
  std::string value;
  append_bytes32(&value, journal.original.schema);
  append_bytes32(&value, journal.original.table);
  append_bytes32(&value, journal.original_version);
  return value;
}

void begins_to_fill(Connection* connection, const TableName& name) {
  connection->half_made = name;
  connection->fills = true;
  trans_register_ha(connection->thd, false, strata_hton, 0);  // though nothing is selected
}

Status ends_to_fill(Connection* connection) {
  if (!std::exchange(connection->fills, false)) return ok_status();
  engine::Session* const session = connection->session.get();
  if (!session->in_transaction()) session->begin(engine::Isolation::kReadCommitted);
  const TableName& name = connection->half_made;
  return session->end_making(name.schema, name.table);
}

void gives_up_filling(Connection* connection) {
  // CREATE OR REPLACE comes here as well, in its middle (RNM4), and goes on.
  const THD* const thd = connection->thd;
  if (thd->is_error() || thd->killed != NOT_KILLED) connection->fills = false;
}

int finish_swap(Connection* connection) {
  const int error = connection->swap == nullptr ? 0 : commit_swap(connection);
  const int earlier = std::exchange(connection->swap_error, 0);
  return earlier != 0 ? earlier : error;
}

void abandon_swap(Connection* connection) {
  connection->swap_error = 0;
  if (connection->swap == nullptr) return;
  const std::unique_ptr<AlterSwap> swap = std::move(connection->swap);
  undo_swap(*swap);
}

int drop_table_by_path(THD* thd, const char* path) {
  const TableName name = parse_path(path);
  if (is_temporary_path(path))
    return drop_temporary_table(thd == nullptr ? nullptr : existing_connection(thd), name);
  if (!ddl_recovery_done.load()) {
    const StatusOr<bool> postpone = must_postpone_drop(name);
    if (!postpone.ok()) return handler_error(postpone.status(), nullptr);
    if (*postpone) {
      sql_print_information("STRATA: DDL recovery: %s stays until its copy takes its place", path);
      return 0;
    }
    if (kernel->shares_tables() && !name.internal()) {
      sql_print_information("STRATA: DDL recovery: %s is not dropped: it may be another server's",
                            path);
      return 0;  // D7
    }
    return ddl_error(drop_now(name));
  }
  if (is_sequence_statement_on_table(thd, name)) return HA_ERR_GENERIC;
  Connection* const connection = thd == nullptr ? nullptr : existing_connection(thd);
  if (connection == nullptr || connection->swap == nullptr) {
    const Status locked =  // CREATE OR REPLACE
        takes_back_create(thd) ? ok_status() : lock_name_of_create(thd, name);
    if (!locked.ok()) return ddl_error(locked);
    const int error = ddl_error(drop_now(name));
    if (error == HA_ERR_NO_SUCH_TABLE && replaces_table(thd, name)) return 0;
    if (error == HA_ERR_NO_SUCH_TABLE) warn_of_lost_table(thd, path, name);
    return error;
  }
  AlterSwap& swap = *connection->swap;
  if (name.is_alter_backup()) {
    const Status status = swap.session->drop_table(name.schema, name.table);
    if (status.ok()) return connection->swap_error = commit_swap(connection);
    abandon_swap(connection);
    return connection->swap_error = ddl_error(status);
  }
  if (name.is_alter_copy()) {  // the second rename has failed; the first will be taken back
    swap.copy = name;
    return 0;
  }
  return ddl_error(drop_now(name));
}

// D2: one of three.
static int begin_swap(Connection* connection, const TableName& from, const TableName& to) {
  auto swap = std::make_unique<AlterSwap>();
  swap->session = take_alter_hold(connection, from);
  if (swap->session == nullptr) {
    swap->session = kernel->new_session();
    swap->session->begin(engine::Isolation::kReadCommitted);
  }
  swap->session->set_foreign_key_checks(checks_foreign_keys(connection->thd));
  swap->target = from;
  const Status status = rename_in(swap->session.get(), from, to);
  if (!status.ok()) return rename_error(status);
  connection->swap = std::move(swap);
  register_with_server(connection);
  return 0;
}

int rename_table_by_path(THD* thd, const char* from_path, const char* to_path) {
  const TableName from = parse_path(from_path);
  const TableName to = parse_path(to_path);
  if (!ddl_recovery_done.load() || thd == nullptr) return recover_rename(from, to);
  if (!fits_a_file_name(to)) return ENAMETOOLONG;
  Connection* const connection = connection_of(thd);
  if (const Status locked = lock_names_of_rename(thd); !locked.ok()) return rename_error(locked);
  if (to.is_alter_backup() && connection->swap == nullptr) {
    const StatusOr<bool> copied = has_copy(from);
    if (!copied.ok()) return rename_error(copied.status());
    if (*copied) return begin_swap(connection, from, to);
    warn_of_local_table(thd, from.schema.c_str(), from.table.c_str(),
                        thd->lex->create_info.db_type);
  }
  if (from.is_alter_backup() && connection->swap != nullptr) {  // taking the first one back
    abandon_swap(connection);
    return 0;
  }
  if (connection->swap != nullptr) {
    if (from.is_alter_copy()) connection->swap->copy = from;
    Status status = rename_in(connection->swap->session.get(), from, to);
    if (status.ok())
      status =
          note_renamed(connection, connection->swap->session.get(), connection->swap->target, to);
    return rename_error(status);
  }
  const Status status = run_ddl_on(from, Killable::kNo, [&](engine::Session* session) {
    STRATA_RETURN_IF_ERROR(rename_in(session, from, to));
    return note_renamed(connection, session, from, to);
  });
  if (is_not_found(status)) return table_is_gone(from);
  return is_duplicate_key(status) ? table_exists(to) : rename_error(status);
}

// --- hton callbacks ---

int drop_table(handlerton*, const char* path) {
  return guarded([&] {
    THD* const thd = current_thd;
    const int error = drop_table_by_path(thd, path);
    Connection* const connection = thd == nullptr ? nullptr : existing_connection(thd);
    if (connection != nullptr && !is_temporary_path(path)) has_dropped_table(thd, connection);
    return error;
  });
}

void drop_database(handlerton*, char* path) {
  // The server has dropped the tables it knows of; what is left has internal names.
  (void)guarded([&] {
    const std::string schema = schema_of_folder(path);
    std::vector<TableName> left;
    kernel->for_each_table(true, [&](const engine::TableSpec& spec) {
      const TableName name{spec.schema, spec.name};
      if (spec.schema == schema && name.is_ours()) left.push_back(name);
    });
    for (const TableName& name : left)
      if (name.internal() || !kernel->shares_tables()) drop_garbage(name);
    if (!kernel->shares_tables() || !ddl_recovery_done.load()) return 0;
    const Status dropped = drop_database_for_all(schema);
    if (!dropped.ok())  // nobody asks: the folder goes, and comes again
      sql_print_warning("STRATA: database %s stays on other servers: %.*s", schema.c_str(),
                        static_cast<int>(dropped.message().size()), dropped.message().data());
    return 0;
  });
}

int signal_ddl_recovery_done(handlerton*) {
  return guarded([&] {
    if (ddl_recovery_done.exchange(true)) return 0;
    std::vector<TableName> garbage;
    kernel->for_each_table(true, [&](const engine::TableSpec& spec) {
      const TableName name{spec.schema, spec.name};
      if (spec.internal_name && name.is_ours()) garbage.push_back(name);
    });
    for (const TableName& name : garbage) {
      const Status status = drop_now(name);
      sql_print_information("STRATA: collected %s/%s, left by an interrupted statement%s",
                            name.schema.c_str(), name.table.c_str(),
                            status.ok() ? "" : ": failed, will be tried again at the next start");
    }
    // D8. What stays keeps its mark, and no server from starting.
    if (const Status dropped = kernel->drop_half_made(); !dropped.ok())
      sql_print_warning(
          "STRATA: tables of statements that were killed stay until the next start: %s",
          std::string(dropped.message()).c_str());
    restore_all_definition_files();
    const StatusOr<std::vector<JournalRow>> journal = read_journal();
    if (!journal.ok()) return handler_error(journal.status(), nullptr);
    for (const JournalRow& row : *journal) {
      if (kernel->table_exists(row.copy.schema, row.copy.table)) continue;
      // A row that stays says nothing once its copy is gone; the next start tries again.
      run_ddl(Killable::kNo, [&](engine::Session* session) {
        return session->journal_erase(journal_key(row.copy));
      }).IgnoreError();
    }
    return 0;
  });
}

int check_version(handlerton*, const char* path, const LEX_CUSTRING* version, ulonglong) {
  return guarded([&] {
    const Bytes wanted(reinterpret_cast<const char*>(version->str), version->length);
    const StatusOr<engine::TableRef> table = find_table(parse_path(path));
    return table.ok() && (*table)->spec().version == wanted ? 0 : 1;
  });
}

// --- handler methods ---

int ha_strata::delete_table(const char* name) {
  return guarded([&] { return drop_table_by_path(current_thd, name); });
}

int ha_strata::rename_table(const char* from, const char* to) {
  return guarded([&] { return rename_table_by_path(current_thd, from, to); });
}

}  // namespace strata::glue
