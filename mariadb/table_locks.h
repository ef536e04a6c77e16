// LOCK TABLES and FLUSH TABLES ... WITH READ LOCK where several servers write the same tables: the
// metadata locks that the server takes keep its own connections away, this keeps other servers
// away.
//
//   LKT1  With WRITE the statement has the table's name exclusively (SchemaChanges): other servers
//        have given the table up, and whoever comes there waits. With READ it shares the right to
//        change the table's rows (engine::right_to_change()), as other servers may: nobody changes
//        rows.
//   LKT2  All names of a statement are asked for at its first external_lock(), before any of them
//        is used: names first, then rights, each in their order. So two such statements on two
//        servers do not wait for each other in a circle. When one cannot be had in kRoundUs, a
//        circle may be why (somebody who waits for a name that is there has what is still wanted):
//        all are let go and asked for again, until lock_wait_timeout, or that of row locks,
//        whichever is shorter.
//   LKT3  While it waits for a name it gives up what others want of those that it has not got yet,
//        as DDL does (AG3). So it takes the exclusive metadata lock for that time.
//   LKT4  They last until the server unlocks the tables (UNLOCK TABLES, another LOCK TABLES, BEGIN,
//        the end of the connection); when the server is killed, until its place was taken over. DDL
//        under LOCK TABLES has the names by this (engine::Session::borrow_names()) and does not let
//        others in between.
//   LKT5  The server leaves LOCK TABLES also with the last table that is dropped, and when one
//        cannot be opened again. No handler hears of that: they end with the drop of the last table
//        of ours (has_dropped_table()), or with the next statement on one
//        (unlock_tables_that_are_gone()).
#pragma once

#include "mariadb/connection.h"

namespace strata::glue {

// Of such a statement, on its way to lock its tables, or of one under LOCK TABLES that has closed
// and opened some of them.
bool locks_tables(THD* thd);
// For external_lock(), before the table is used. 0 or an error of handlers, reported if it is
// HA_ERR_GENERIC; what the statement had got so far is let go if it was locking its first tables.
int lock_tables_for_all(THD* thd, Connection* connection);
// Also when nothing is locked.
void unlock_tables_for_all(Connection* connection) noexcept;
// LKT5. The first: before a statement uses a table; the second: once one was dropped, or could not
// be.
void unlock_tables_that_are_gone(THD* thd, Connection* connection) noexcept;
void has_dropped_table(THD* thd, Connection* connection) noexcept;

// What SHOW PROCESSLIST says while this lives.
class WaitShown {
 public:
  WaitShown(THD* thd, const char* what);
  ~WaitShown();
  WaitShown(const WaitShown&) = delete;

 private:
  THD* const thd_;
  const char* const before_;
};

}  // namespace strata::glue
