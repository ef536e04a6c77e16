// What the holder of an epoch and the replicas of one stream say to each other. Plain values: the
// RPC layer encodes them, the log store answers them, the state machines of this folder make and
// read them. Every reply that is not from a stranger says where the replica stands.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "quorum/history.h"

namespace strata::quorum {

// Who asks. The registry gives an epoch to one holder only; the token (random, one per attempt)
// tells two apart should it ever fail to.
struct Holder {
  Epoch epoch;
  uint64_t token = 0;
  bool operator==(const Holder&) const noexcept = default;
};

// What an epoch stands on, chosen once by its recovery: all bytes of the chosen log before `start`.
struct Tenure {
  Holder holder;
  Lsn start;
  Lsn base;         // nothing below is needed any more; a replica without it starts here. Behind
                    // `start` only in a begin, where the peers' logs begin there by now (CU3)
  History history;  // of the bytes before `start`; older epochs only
};

// Where a replica stands.
struct ReplicaState {
  Epoch promised;    // lower epochs are refused
  Epoch last_epoch;  // the last one begun in this log; 0: none
  Lsn start;         // first byte kept
  Lsn end;           // one past the last durable byte
  Lsn quorum_durable;
  // False: what this replica says about the end of its log proves nothing, because it is new or has
  // lost something it had acknowledged. It may keep bytes, it does not count.
  bool voting = false;
};

// What the registry says about a stream when a replica of it is made: asked by the node itself,
// after it found that it has none. A node that lost its disk has forgotten promises; none was made
// to a later epoch than the last one given.
struct StreamOrigin {
  Epoch last_given;          // lower epochs are refused from the start; 0: none was ever given
  bool never_begun = false;  // no recovery has ever finished, so nothing was ever acknowledged
};

struct SealRequest {
  Holder holder;
};
// fenced: by `state.promised`.
struct SealReply {
  Status status;
  ReplicaState state;
  History history;
};

struct BeginRequest {
  Tenure tenure;
  // The replica votes once it holds the log up to here: tenure.start in a recovery; for one that
  // joins later, whatever its predecessor may have acknowledged.
  Lsn voter_end;
};

// Bytes of the tenure's log before its start, for a replica that lacks them.
struct CatchUpRequest {
  Tenure tenure;
  Lsn at;
  std::string bytes;
  Lsn quorum_durable;
};

// Bytes written under the epoch, or nothing but news of quorum_durable.
struct AppendRequest {
  Epoch epoch;
  Lsn at;
  std::string bytes;
  Lsn quorum_durable;
};

// Answer to begin, catch-up and append. OK: everything up to `state.end` is durable.
//   fenced: state.promised is higher;  conflict: the epoch was not begun here
//   kOutOfRange          bytes from `next` on are needed first; nothing was written
//   kDataLoss            what is here is damaged or contradicts the request; nothing was written
//   kResourceExhausted   the disk is full;  busy  the queue is; try again later
//   kInvalidArgument     the request makes no sense;  kInternal  the disk failed
struct ChangeReply {
  Status status;
  ReplicaState state;
  Lsn next;
};

// `recovery`: by the holder of the promised epoch, up to the end; else up to quorum_durable (S1).
struct ReadRequest {
  Lsn from;
  uint32_t bytes_max = 0;
  bool recovery = false;
  Epoch epoch;  // of the reader when `recovery`
};
// kOutOfRange: below the start (truncated) or above what may be read.
struct ReadReply {
  Status status;
  Lsn from;
  std::string bytes;
  Lsn quorum_durable;
  Lsn start = {};     // first byte kept there; zero: not known
  bool votes = true;  // the replica does, in recoveries of the stream
};

// To a replica that is too far behind for the writer: fetch what the others have, begin the epoch,
// and go on to `until`. No reply; the writer asks again how far it got.
struct CatchUpOrder {
  Tenure tenure;
  Lsn voter_end;
  Lsn until;                      // quorum-durable
  std::vector<uint32_t> sources;  // replicas that have it
};

using ReplicaIndex = uint32_t;  // place in the stream's list of replicas

// What a state machine wants sent, and to whom. The reply, or the news that none will come, is
// given back with the id.
struct Outgoing {
  ReplicaIndex replica = 0;
  uint64_t id = 0;
  std::variant<SealRequest, BeginRequest, CatchUpRequest, AppendRequest, ReadRequest, CatchUpOrder>
      body;
};
using Reply = std::variant<SealReply, ChangeReply, ReadReply>;

struct QuorumOptions {
  uint32_t replicas = 3;
  uint32_t write_quorum = 2;  // more than half
  uint32_t request_bytes_max = 1u << 20;
  uint64_t window_bytes = 8u << 20;   // sent to a replica and not answered
  uint64_t retain_bytes = 64u << 20;  // kept in memory for slow replicas
  // Kept on the disks of all for a replica that is away or behind (WR5). One that lacks more cannot
  // come back by itself.
  uint64_t keep_bytes_max = uint64_t{8} << 30;
  // Every set of so many replicas has one in common with every write quorum.
  [[nodiscard]] uint32_t recovery_quorum() const noexcept { return replicas - write_quorum + 1; }
};

}  // namespace strata::quorum
