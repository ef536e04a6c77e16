// Which of several servers runs events (CREATE EVENT), whose rows all of them share.
//
//   EV1  The role is an exclusive lock on a name that no table has (dict/schema_changes.h), held by
//        the server for as long as it lives and wants it: with event_scheduler=ON, and without
//        read_only, with which most events would only fail. When it is killed the lock is free once
//        its place is recovered, and another one has it.
//   EV2  Only who has the role runs its scheduler, and an event is not read for running by anybody
//        else: a scheduler that is switched on elsewhere runs nothing until it is stopped.
//   EV3  When an event last ran stands in its row, written before it runs. Whoever takes the role
//        reads the rows first: an event runs once for each time it is due, or, if its server is
//        killed in that moment, not at all.
//   EV4  After every change of a definition, on whatever server, the scheduler's queue is made anew
//        from the rows while it stands still: nothing is in it twice, and nothing that is gone.
//   EV5  A server that ends runs no scheduler: it would wait for it for ever.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

// Before the server starts its scheduler: it does not, until this server has the role.
void prepare_event_role();
// By one thread, often; `changed`: rows of events have changed. Waits for a moment at most.
void look_after_events(bool changed);
void leave_event_role();

bool runs_events(THD* thd);
// EV2. For a thread that runs events, about to use the table of events. 0 or an error, reported.
int refuse_if_events_run_elsewhere(THD* thd);

}  // namespace strata::glue
