// Temporary tables (CREATE TEMPORARY TABLE): those of one session, gone with it.
//
//   TT1  They are in a kernel of their own, which logs nothing and forgets everything when it ends
//        (engine E30). It opens with the first such table, in a folder beside the server's own
//        files, in a cluster as well. The first thing a start does with that folder is to remove
//        it.
//   TT2  The server has the definition in memory, under a path that no other table has
//        (is_temporary_path()). Nothing of them is in the database's dictionary, and nothing is
//        discovered.
//   TT3  A connection has a second session for them. Its transaction begins with the first
//        statement on such a table, follows the connection's own in statements, savepoints, commit
//        and rollback, and is never prepared: what could fail of its commit is done before the
//        connection's own is decided.
//   TT4  Nobody else comes to the rows. So plain reads are of what is there now (a snapshot could
//        be older than the table), and no lock of the server's or of the cluster's is asked for.
#pragma once

#include "mariadb/connection.h"

namespace strata::glue {

// TT2
bool is_temporary_path(const char* path);
// Opens it when it is not open. Thread-safe.
StatusOr<engine::Kernel*> temporary_kernel();
// Null: not open.
engine::Kernel* open_temporary_kernel() noexcept;
// What an earlier life of the server has left. Before the first use.
void remove_temporary_folder();
void close_temporary_kernel();

// As begin_statement(), for both sessions.
int begin_temporary_statement(Connection* connection);
int drop_temporary_table(Connection* connection, const TableName& name);

}  // namespace strata::glue
