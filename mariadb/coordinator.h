// The server's transaction coordinator (its binary log, or tc.log) and what the engine owes it:
// which prepared transactions it decides, and when its checkpoints may pass.
//
//   BL1  A transaction the server prepares for itself is stored with the identity of the log that
//        decides it: 16 bytes, kept in a file beside the binary log, zero for tc.log. They are part
//        of the stored xid, so they are as durable as the prepare and go where the database goes.
//   BL2  The server is told of such a transaction only where that very binary log will be
//        recovered. Elsewhere the engine decides. In a cluster it rolls back: commit() has waited
//        for its own commit group there, so nothing that is only prepared has been acknowledged. On
//        one machine commit() has relied on the binary log, and the engine does not start without
//        it.
//   BL3  A checkpoint is notified after a persist_log() that began after the request and succeeded,
//        and never otherwise: the server forgets the binary log's part of recovery then.
//   BL4  A server whose log has failed does not close its binary log, but ends as by a crash:
//        closed, it would not be recovered, and the outcomes in it would be lost.
//   BL5  For the same reason a server whose binary log has to be recovered does not start without
//        the engine, when that is asked for and cannot start.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

using LogIdentity = std::array<uint8_t, 16>;

// After the kernel is open and before the server recovers. Decides what is ours to decide (BL2) and
// starts the thread that answers requests for checkpoints. Nothing has been changed when it fails.
Status start_coordination();
void stop_coordination();
// Of an engine that cannot start: ends the server in the case of BL5.
void end_rather_than_recover_without_engine();

// An xid as the kernel keeps it: format 8 | gtrid length 1 | bqual length 1 | data, and for those
// the server made BL1.
std::string user_xid_to_store(const XID& xid);
std::string server_xid_to_store(const XID& xid, bool in_binary_log);
// What recover() shows the server. False: unreadable, or not for the server to decide.
bool xid_to_recover(Bytes stored, XID* xid);
// The stored form of an xid the server has got from recover() or from a user.
std::string stored_xid_of(const XID& xid);

// BL3. Does not block.
void request_checkpoint(void* cookie);
// hton callback: all connections are gone, the binary log is still open (BL4).
void pre_shutdown();

}  // namespace strata::glue
