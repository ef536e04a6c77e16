// RENAME TABLE of several tables where several servers write: each of them is a transaction of its
// own, but other servers see all of it or nothing.
//
//   RNM1  Before the first one is renamed the statement has the names of all its tables, as they
//         are and as they will be, in a transaction of their own that lasts until the statement has
//         ended. So nobody finds a table under neither name, or takes a name meanwhile, and what a
//         statement that fails has renamed is taken back without a wait.
//   RNM2  The names are locked in the order of their keys: two such statements do not wait for each
//         other.
//   RNM3  A statement that did not get the names has renamed nothing. When the server takes that
//         back all the same, there is nothing of the new name: it is not waited for once more.
#pragma once

#include "mariadb/connection.h"

namespace strata::glue {

// RNM1. For a rename that a statement is about to do; again: nothing. Where one server writes, and
// for one table: nothing. Waits as other DDL.
Status lock_names_of_rename(THD* thd, Connection* connection);
// The statement has ended.
void unlock_names_of_rename(Connection* connection);

}  // namespace strata::glue
