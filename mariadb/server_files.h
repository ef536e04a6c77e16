// Views, triggers and the options of databases are small files of a server's folder, which MariaDB
// gives no engine to keep. Under the profiles whose servers keep nothing, copies of them are kept
// in the database (docs/adr/2026-11-23-server-tables.md).
//
//   SF1  A server in the folder that was the last to have the database goes on with its files: what
//        differs from the copies is copied. Any other folder is given the copies; files of these
//        kinds that it had of its own are moved to the data folder's `replaced`. After a power loss
//        also the old folder is given what it lacks: a file may be gone that was not synced.
//   SF3  A copy is removed only when its file is known to be gone: what cannot be read, or could
//        not be given to a folder, leaves the copies as they are. A folder becomes the last one
//        only once everything given to it is durable.
//   SF2  A change is copied as soon as the file system tells of it, in the background: a server
//        that is killed in the moment of a CREATE VIEW and never started again in its folder may
//        lose it.
#pragma once

#include <cstdint>

namespace strata::glue {

// At the server's start, before it looks into its folders; blocks. `folder`: what tells this data
// folder from others. Starts the thread that watches.
void start_server_files(uint64_t folder);
// Before the kernel stops. Copies what is left; blocks.
void stop_server_files();

}  // namespace strata::glue
