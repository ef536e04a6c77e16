// Databases (CREATE DATABASE) where several servers write: folders of each server, which MariaDB
// gives no engine to keep. The dictionary says which there are.
//
//   DB1  A row of the kernel's journal per database says that it is there, with the contents of its
//        db.opt, or that it was dropped. A folder that has come here becomes a row at once (the
//        system tells of it), a row makes a folder, and a dropped one removes it, if nothing is
//        left in it that is of this server alone: each server looks at the rows 20 times a second.
//   DB2  A table is made in a transaction that uses the database's name, DROP DATABASE locks it: no
//        table is left in a database that is gone.
//   DB3  A table that is found here has a folder from then on, whenever that is looked for next.
//   DB4  A folder that was here when its row was last seen, and whose row says dropped, goes; one
//        that was not is new. At a start all of them were here before.
#pragma once

#include <string>

#include "mariadb/server.h"

namespace strata::glue {

// Once the kernel is open, before clients; looks once, and has a thread that goes on.
void start_databases();
void stop_databases();

// DB2. In the transaction that makes a table; the error is "unknown database" (kNotFound).
Status use_database(engine::Session* session, const std::string& schema);
// DB2. The server has looked for files in the folder, and is about to remove it. Drops what is left
// of tables in it, and removes the files of what others have made meanwhile.
Status drop_database_for_all(const std::string& schema);
// DB3. True: the folder is there.
bool make_database_folder(const std::string& schema);

}  // namespace strata::glue
