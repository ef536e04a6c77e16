// What servers that write the same tables and their memory node say to each other about row locks:
// who waits for which row, whose turn it is, who holds shared locks and ranges.
//
//   FW3  Each direction is a numbered list of messages, of which every one arrives once and in its
//        order, for as long as the epoch of the memory node and the life of the server last: a
//        batch of requests is sent again until it is known to be accepted, an event is told again
//        until it is known to be heard. So whoever has said two things knows in which order the
//        other has heard them.
//   FW4  A wait has a number, which its server gives once in its life. A message that names a
//        number that is over means nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace strata::proto {

// A server to the memory node. What each kind uses beside `trx`, whose wait or lock it is:
enum class LockRequestKind : uint8_t {
  kWait = 1,    // number, row, holder (zero: whoever is before it), ticket (zero: a new place),
                // flag: it holds the row shared, and goes first; announced: its server will hear
                // of the holder's end
  kCancel,      // number, row: timeout, KILL; a turn that crosses this is handed back
  kGone,        // number, row, holder: it does not hold the row any more; flag: found by a poll
  kNote,        // number, row, holder: nobody could tell the holder's server by itself
  kNoted,       // holder: its server has been told, and will say when it ends
  kSettled,     // row; flag: it has taken the row, others wait for it. Otherwise it gives the turn
                // back
  kEnded,       // its outcome is published, or it has given rows back
  kWaitShared,  // number, row: until nobody else holds it shared
  kAddShared,   // number (zero: nobody waits for the answer), row
  kAddRange,    // number (as before), index, key and high, infinite
  kDropShared,  // row: registered in vain
  kDropRangeKey,   // row: registered in vain
  kReleaseShared,  // all shared locks and ranges of the transaction
  kConsultHeard,   // index, number: of the change
  kAskShared,      // number, row: who but `trx` holds it shared?
  kConfirmed,      // number: of the cycle; flag: all waits asked for are still on
  kDescribe,       // number, ticket: lines at most
  kHasTurn,        // of a report: number, row, ticket
  kHeldConsult,    // of a report: index
  kReported,       // the report is complete
};

struct LockRequest {
  LockRequestKind kind = LockRequestKind::kWait;
  uint64_t number = 0;
  TrxId trx = {};
  TrxId holder = {};
  IndexId index = {};
  std::string key = {};
  std::string high = {};  // of a range: behind its last key
  uint64_t ticket = 0;
  bool infinite = false;
  bool flag = false;
  bool announced = false;
};

// The memory node to a server.
enum class LockEventKind : uint8_t {
  kRegistered = 1,  // number, ticket: its place. flag: it is next in line: its server makes sure
                    // to hear of the end of `trx`, and looks then whether that has ended already
  kLook,            // number, trx: its server will hear; to look once more
  kGranted,         // number, ticket: of a row: the turn; of a wait for shared locks: none is left
  kVictim,          // number: of a deadlock
  kAdded,           // number: the shared lock or range counts
  kShared,          // number, trx: who holds it, or zero
  kWaitedFor,       // trx: somebody waits for it
  kConsult,         // index, number of the change, flag: writers ask for shared locks from now on
  kConfirm,         // number of the cycle, waits
  kRowQueued,       // row, flag: somebody waits for it
  kDescription,     // number, key: text
  kDeadlock,        // trx: the victim; key: all waits (encode(waits)). Comes before kVictim
};

struct LockEvent {
  LockEventKind kind = LockEventKind::kRegistered;
  uint64_t number = 0;
  TrxId trx = {};
  IndexId index = {};
  std::string key = {};
  uint64_t ticket = 0;
  bool flag = false;
  std::vector<uint64_t> waits = {};
};

// Of a deadlock: each transaction waits for the next one's, the last for the first one's.
struct DeadlockWait {
  TrxId trx = {};
  IndexId index = {};
  std::string key = {};  // of the row; its beginning, if it is longer than kDeadlockKeyBytesMax
};
constexpr size_t kDeadlockKeyBytesMax = 64;  // that is for people
constexpr size_t kDeadlockWaitsMax = 256;

// One call. Without requests it asks for events only, and its number does not count.
struct LockBatch {
  NodeId server = {};
  uint64_t life = 0;
  Epoch epoch = {};
  uint64_t number = 0;  // the first of an epoch is 1, and begins a report, which ends by kReported
  uint64_t heard = 0;   // events up to this one
  std::vector<LockRequest> requests = {};
};

struct LockReply {
  uint64_t accepted = 0;     // batches up to this one
  bool active = false;       // everybody has reported (FQ6), and `events` are all there are
  uint64_t first_event = 0;  // number of the first of `events`
  std::vector<LockEvent> events = {};
};

}  // namespace strata::proto
