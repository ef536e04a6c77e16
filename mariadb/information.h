// Tables of information_schema: what runs in the engine at this moment. As InnoDB's, they are for
// users with the PROCESS privilege; others find them empty.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

// Of plugins of their own in the engine's library.
extern st_mysql_information_schema information_descriptor;
int init_strata_trx(void* schema_table);
int init_strata_lock_waits(void* schema_table);
int init_strata_pool(void* schema_table);
int init_strata_log(void* schema_table);

}  // namespace strata::glue
