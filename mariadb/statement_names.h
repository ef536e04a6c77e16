// Names that a statement has from before its first step to its end, where several servers write:
// each of its steps is a transaction of its own, but other servers see all of it or nothing.
//
//   RNM1  Before the server asks whether there are the tables of a RENAME TABLE, it has the names
//         of all of them, as they are and as they will be, in a transaction of their own that lasts
//         until the statement has ended. So what it is told stays so, nobody finds a table under
//         neither name, or takes a name meanwhile, and what a statement that fails has renamed is
//         taken back without a wait.
//   RNM2  The names are locked in the order of their keys: two such statements do not wait for each
//         other.
//   RNM3  A statement that did not get the names has renamed nothing. If the server takes that back
//         all the same, they are not waited for once more.
//   RNM4  CREATE TABLE has the name once it has the exclusive metadata lock, before the server asks
//         whether there is such a table: what the answer is, it stays. CREATE OR REPLACE has it
//         before it drops the table that was there, and nobody makes another one in between. Not
//         under LOCK TABLES, which has the name already.
#pragma once

#include "mariadb/connection.h"
#include "mariadb/path.h"

namespace strata::glue {

// RNM1. The server is about to ask whether there is such a table, or to rename one. Nothing where
// one server writes, for other statements, and again. Waits as other DDL.
Status lock_names_of_rename(THD* thd);
// RNM4. Nothing where one server writes, and unless the statement is about to make that table.
Status lock_name_of_create(THD* thd, const TableName& name);
// RNM4. Of a table that is there no more: another server has dropped it while this statement waited
// for the name.
bool replaces_table(THD* thd, const TableName& name);
// A statement was rolled back: it has ended, or CREATE OR REPLACE is about to drop the table, and
// the server has ended the empty transaction in which it was opened.
void statement_rolled_back(THD* thd, Connection* connection);
// The statement has ended.
void unlock_names_of_statement(Connection* connection);

}  // namespace strata::glue
