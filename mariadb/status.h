// SHOW ENGINE STRATA STATUS and the status variables strata_*.
#pragma once

#include "mariadb/connection.h"

namespace strata::glue {

extern st_mysql_show_var status_variables[];
bool show_engine_status(handlerton*, THD* thd, stat_print_fn* print, ha_stat_type type);

}  // namespace strata::glue
