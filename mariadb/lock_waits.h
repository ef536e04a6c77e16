// What the server wants to know about waits for row locks. A replica whose workers apply
// transactions side by side must commit them in the order of the primary: it rolls back a later one
// for which an earlier one waits. And a group commit that waits for company
// (binlog_commit_wait_count) goes ahead when somebody waits for a transaction in it.
#pragma once

#include "engine/kernel.h"

namespace strata::glue {

// The owner of a session is its THD.
engine::WaitListener* wait_listener();

}  // namespace strata::glue
