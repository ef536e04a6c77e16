// The server's own tables when they are kept in STRATA (docs/adr/2026-11-23-server-tables.md).
#pragma once

namespace strata::glue {

// Tables of the schema `mysql` that the database has take the place of this folder's files of the
// same name, which a new server folder always comes with: those are moved to the data folder's
// `replaced` folder. Before the server reads its first own table; blocks. What cannot be moved is
// reported, and the server then uses its local table.
void replace_local_system_tables();

}  // namespace strata::glue
