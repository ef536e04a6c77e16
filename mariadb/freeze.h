// FLUSH TABLES WITH READ LOCK where several servers write the same tables: it is taken on one
// server, and no server commits or changes anything before it is let go.
//
// The server tells engines nothing of that statement. But it takes two metadata locks one after the
// other, and waits for each until nobody has one that it is not granted beside: first for
// statements that change something, then for commits. A thread of ours always has one of either
// kind, a guard, and so it sees that somebody waits, and that waiting begins with it.
//
//   FZ1  A server lets statements change something only while it uses the name "#freeze", and
//        commits only while it uses "#freeze-commits" (no database has these names). It uses both
//        before its first client comes.
//   FZ2  When somebody here waits for a guard, this server asks for its name exclusively, and gives
//        the guard back once it has it: then the statement goes on. When it can have the guard
//        again, nobody here has the global read lock any more, and it lets the name go. So all
//        servers have ended their statements before any of them keeps commits waiting: a statement
//        that waits for a row of another server's transaction goes on with the end of that one.
//        SET GLOBAL read_only = 1 waits likewise, BACKUP STAGE BLOCK_COMMIT for commits only.
//   FZ3  To give a name up a server takes the same lock itself, waits for its own statements, or
//        commits, and keeps it until it uses the name again. It is given up for nobody else
//        meanwhile: two servers on which the statement runs have it one after the other.
//   FZ4  Whoever does not wait any more (timeout, KILL, end of the connection) is not waited for:
//        what was taken for it is given back once nobody has asked for kAskedForUs.
//   FZ5  When the server that has the names is killed, they are free once its place was taken over.
//   FZ6  A server that starts needs those locks itself: it takes them for others once it has
//        started. If another server has a name meanwhile, it starts all the same, and then whatever
//        changes something here waits for the name instead of a metadata lock. That statement has
//        a metadata lock itself, which giving the second name up would wait for: so the second is
//        not asked for before this server uses the first, and a statement of FZ2 not served before
//        it uses both.
#pragma once

#include <optional>

#include "base/bytes.h"
#include "engine/kernel_seams.h"

namespace strata::glue {

// FZ1, FZ6. Blocks for a moment. stop_freezing(): once no client is left, or again: nothing.
void start_freezing();
void stop_freezing();
// For TableUsers::give_up(). Nothing: it is none of these names. Before start and after stop
// nothing is in the way.
std::optional<Status> stand_still_for_others(Bytes name, uint64_t timeout_us,
                                             const engine::TableUsers::Forget& forget);

// FZ6. Before a statement changes something, or a transaction of an earlier life commits. Waits,
// for lock_wait_timeout at most. kDeadlineExceeded, kCancelled.
Status wait_for_leave_to_change(THD* thd);

}  // namespace strata::glue
