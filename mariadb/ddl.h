// DDL against the dictionary, in step with the server's own DDL log.
//
// The server makes DDL crash-safe by writing each step ahead to its ddl_log and, after a crash,
// calling drop and rename again by name. It expects every step to be durable when the callback
// returns. So:
//
//   D1  Every callback is its own kernel transaction, durable on return, in a session of its own: a
//       failing statement undoes it by calling back, not by rolling back.
//   D2  The exception is the swap at the end of a copying ALTER: rename(t -> #sql-backup),
//       rename(#sql-alter -> t), drop(#sql-backup) are one transaction, committed with the last
//       call. Nobody ever sees, nor does a crash leave, t missing.
//   D3  create(#sql-alter-*) writes a journal row with it: the copy, the table it will replace and
//       that one's version. The row goes when the copy is renamed or dropped.
//   D4  During recovery the server replays a swap it believes half-done as drop(t) and
//       rename(#sql-alter -> t). A drop that matches a journal row whose copy still exists is
//       postponed; the rename does both at once. Both are idempotent. Nothing is dropped without
//       its replacement.
//   D5  After the server's recovery all tables with internal names are garbage and are collected.
//   D6  An ALTER whose swap was not committed, or may not have been, is never acknowledged. The
//       server makes a warning of what drop(#sql-backup) answers, so the statement's commit reports
//       it again. Outcome unknown, of this or any DDL: the connection is closed, as after any
//       commit.
//   D7  Where several servers change tables, others go on while this one is away, and the name of
//       what was being dropped or replaced may be another table's by now. What the server replays
//       then drops no table but those with internal names of its own, and a copy takes the place of
//       nothing but the table that it was made of. A DROP that a crash has interrupted is done, or
//       has not happened.
//   D8  There CREATE TABLE ... SELECT and CREATE SEQUENCE mark the table as half made when they
//       create it; what commits its rows takes the mark away. What a killed server has left with
//       its mark is dropped by whoever recovers its place (engine E32), not by the server's DDL
//       log (D7).
#pragma once

#include "mariadb/connection.h"
#include "mariadb/table_layout.h"

namespace strata::glue {

// Runs `body(session)` as a durable transaction of its own. KILL ends its waits, unless it cleans
// up after a statement: that may have been killed already.
enum class Killable : uint8_t { kNo, kYes };
Status run_ddl(Killable killable, const std::function<Status(engine::Session*)>& body);
Status run_ddl_in(engine::Kernel* home, Killable killable,
                  const std::function<Status(engine::Session*)>& body);
// The same in a transaction that has begun; it is committed, or rolled back.
Status run_ddl_in_transaction(engine::Session* session, Killable killable,
                              const std::function<Status(engine::Session*)>& body);
// How long a statement waits for other servers' use of a table: as long as for a row lock, or for a
// metadata lock if that is shorter.
uint64_t ddl_timeout_us(THD* thd);
// Another server has made it since this one has looked: the client is told so, and not only that
// the engine has failed. Returns the error of handlers.
int table_exists(const TableName& name);
// For a session that is about to change definitions for a statement of the THD, with the names that
// this has by LOCK TABLES (LKT4).
void prepare_ddl(THD* thd, engine::Session* session);
bool checks_foreign_keys(THD* thd);
StatusOr<engine::TableRef> find_table(const TableName& name);

bool is_sequence(const engine::TableSpec& spec);
// How the keys of a table are made.
KeyForm key_form(const engine::TableSpec& spec);

// An index of the definition `form`; what the kernel assigns is left out.
engine::IndexSpec describe_index(const TABLE* form, const IndexLayout& index);

// What a copying ALTER writes down with its new table (D3).
struct AlterJournal {
  TableName original;
  std::string original_version;
};
std::string journal_key(const TableName& copy);
std::string encode_journal(const AlterJournal& journal);

// D8. The statement has made the table, with its mark.
void begins_to_fill(Connection* connection, const TableName& name);
// In the transaction that is about to be prepared or committed; again: nothing.
Status ends_to_fill(Connection* connection);
// The statement is rolled back. Then it drops what it has made, and the mark with it.
void gives_up_filling(Connection* connection);

int drop_table_by_path(THD* thd, const char* path);
int rename_table_by_path(THD* thd, const char* from, const char* to);
// The end of an ALTER: commit or undo what its swap has done so far. finish_swap(): the error of a
// commit that drop() tried, too (D6).
int finish_swap(Connection* connection);
void abandon_swap(Connection* connection);

// hton callbacks.
int drop_table(handlerton*, const char* path);
void drop_database(handlerton*, char* path);
int signal_ddl_recovery_done(handlerton*);
int check_version(handlerton*, const char* path, const LEX_CUSTRING* version, ulonglong create_id);
int discover_table(handlerton*, THD* thd, TABLE_SHARE* share);
// In a cluster, of a table that is made in, or moved to, another engine.
void warn_of_local_table(THD* thd, const char* schema, const char* table, handlerton* engine);
int discover_table_existence(handlerton*, const char* schema, const char* table);
int discover_table_names(handlerton*, LEX_CSTRING* schema, MY_DIR* folder,
                         handlerton::discovered_list* result);

}  // namespace strata::glue
