// Backups: our own, and BACKUP STAGE, with which tools such as mariabackup tell the server that
// they copy its files.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

// hton callback at BACKUP STAGE START. Such a tool copies files by a list of endings that has none
// of ours and then says that all went well: says loudly what is missing, or, as
// strata_refuse_backup_stages says, refuses. Silent for a session that makes a backup of ours,
// which holds the stages for the moment of its cut.
void prepare_for_backup();

// The session ends: what SET strata_backup began is given up.
void give_up_backup_of(THD* thd);

}  // namespace strata::glue
