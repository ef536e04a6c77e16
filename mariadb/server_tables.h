// The server's own tables where several servers write and keep them in STRATA: accounts and rights,
// routines, events, foreign servers. The rows are everybody's like any others; what a server
// remembers of them is made anew when another one has changed them.
//
//   ST1  A statement that writes such a table notes the change first (object_versions.h), in its
//        transaction: the rows and the note are there together, or neither is. So these statements
//        come one after the other in the whole cluster.
//   ST2  Before it reads the first row of accounts this server has taken over what others had
//        changed: GRANT and the like compare rows with what the server remembers. What cannot be
//        taken over is tried again for as long as a statement waits for other servers; then the
//        statement fails. Statements for foreign servers compare before they open the table, and
//        nobody else comes to that memory meanwhile: they go on at once, what the server remembers
//        is read again after each of them, its own too, and of two that contradict each other the
//        later one fails with the first one's row.
//   ST3  Each server looks for notes of others each kLookUs, and has the server read the tables
//        again, as FLUSH PRIVILEGES does. What could not be read is tried again at the next look.
//   ST4  What a statement has changed in the server's memory, and was rolled back, is read again.
//   ST5  Events run on one server at a time (event_role.h).
//   ST6  Plain reads of these tables take no row locks, whatever the statement is, but under LOCK
//        TABLES. (Other engines keep them where there are none.)
//   ST7  What a server remembers of accounts is read again, by ST3 or FLUSH PRIVILEGES, while no
//        transaction of this server that changes them is under way: it would put what was there
//        before over what the statement has made of the server's memory. Readers wait for the end
//        of such a transaction, and it waits, before it changes anything, for the end of a reader.
//   ST8  The server passes over errors of its scans of these tables, as if there were a hole, and
//        what such a statement has changed so far would be committed. So whatever keeps a read from
//        going on (KILL, a wait that was too long, a node that is away) is reported at once: the
//        statement fails, and is rolled back.
#pragma once

#include "mariadb/connection.h"

namespace strata::glue {

// Once the kernel is open, before the server reads its tables.
void start_server_tables();
void stop_server_tables();  // while the server still has its own threads; again: nothing

// For external_lock() and start_stmt(): a statement is about to use `table`, and to change it if
// `writes`. 0 or an error of handlers, reported. Where one server writes: nothing.
int use_server_table(Connection* connection, const engine::TableSpec& table, bool writes);
bool is_server_table(const engine::TableSpec& table);
// ST7. For external_lock(): FLUSH PRIVILEGES is about to read `table`. `begun`: to be ended with
// server_table_was_read(). 0 or an error of handlers, reported.
int read_server_table_again(Connection* connection, const engine::TableSpec& table, bool* begun);
void server_table_was_read(Connection* connection);
// ST8. A call of the handler of such a table has failed.
void tell_of_server_table(const Status& status);
// ST7. The connection's transaction has ended, whatever its outcome.
void server_tables_changed(Connection* connection);
// ST4. `kinds`: Connection::server_tables.
void server_tables_rolled_back(uint32_t kinds);

}  // namespace strata::glue
