// The one order in which latches may be taken (low first). Checked by Latch in debug builds. Page
// latches are ordered by tree position, not by this list: see btree/README.md (K4).
#pragma once

#include <cstdint>

namespace strata {

enum class LatchRank : uint16_t {
  kInterrupt = 0,    // not in the order: taken with anything held, but what its waker takes (BA8)
  kServer = 1,       // what the plugin keeps beside the server's own objects
  kSession = 2,      // whose transaction it is, against interrupt()
  kEngine = 10,      // engine open/close, DDL serialisation
  kDictionary = 20,  // dictionary cache
  kTrxSystem = 30,   // begin/commit bookkeeping, view list
  kPurge = 35,       // purge queue
  kLockTable = 40,   // row wait queues
  kLockShard = 41,   // a shard of the locks held: shared, ranges, runs of exclusive ones
  kCheckpoint = 50,
  kUndoTail = 55,     // free list of partly used undo pages
  kPage = 60,         // page latches (own order among themselves)
  kCommitOrder = 62,  // cts and commit group in one step (K12); taken under page latches
  kTimestamps = 63,   // raising the oracle's ceiling
  kSpaceCache = 65,   // in-memory allocation hints
  kPoolPartition = 70,
  kFreeList = 75,
  kDirtyList = 78,
  kLogReserve = 80,   // Lsn reservation; innermost of the write path
  kReplayQueue = 81,  // storage node's replay: pages to be replayed
  kReplay = 82,       // waiting requests, pages in work, positions
  kVersionMap = 83,   // a shard of its version map
  kCatchUp = 84,      // a replica fetching what it lacks from its peers
  kLogWrite = 85,     // group commit leader hand-over
  kLogStore = 86,     // storage node's log store: its queue and its table of streams
  kLogStream = 88,    // one stream of it: segments, ends, subscribers
  kFileTable = 90,    // open file handles
  kPeers = 95,        // channels to other nodes: making one posts to its executor
  kLeaf = 100,        // anything that takes nothing else
  // Stand-ins for a disk, called with whatever a caller of a real one holds.
  kDiskChange = 110,  // one change of a file, with its I/O
  kDisk = 111,        // what is known of files
  kFault = 120,       // fault points: anywhere
};

}  // namespace strata
