// BACKUP STAGE, with which tools such as mariabackup tell the server that they copy its files.
#pragma once

namespace strata::glue {

// hton callback at BACKUP STAGE START. Such a tool copies files by a list of endings that has none
// of ours and then says that all went well: says loudly what is missing, or, as
// strata_refuse_backup_stages says, refuses.
void prepare_for_backup();

}  // namespace strata::glue
