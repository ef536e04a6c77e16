// What ANALYZE TABLE ... PERSISTENT has collected, where several servers write: the server keeps it
// in mysql.table_stats, column_stats and index_stats, which are everybody's tables, and remembers
// it with each table's definition that is in use. Say server 2 collects. Server 1, which has the
// definition in use and plans with what it remembers of it, reads it again some seconds later.
//
//   CK1  That the three tables have changed is seen by their own statistics records
//        (shared_statistics.h): no statement writes anything for it, and a change is noticed within
//        the few seconds in which rows are told.
//   CK2  What is remembered is read again by a thread, for each definition in use of which the
//        server remembers any. It waits a second for a name that somebody has; then that table's
//        turn comes again later.
//   CK3  Plain reads of the three tables take no row locks, whatever the statement is: the server
//        reads them in the middle of any statement.
//   CK4  An error costs no statement anything: plans go on with what is remembered. What could
//        not be read, for whatever reason, is read at one of the next looks.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

// Once the kernel is open; where one server writes: nothing.
void start_collected_statistics();
void stop_collected_statistics();  // while the server still has its own threads; again: nothing

// Is it one of the three?
bool has_collected_statistics(const engine::TableSpec& table);

}  // namespace strata::glue
