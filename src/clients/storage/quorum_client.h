// One replicated log as the holder of its epoch has it: takes the stream over, appends, and tells
// what became durable. Carries out what quorum's state machines (quorum/recovery.h, writer.h) want,
// over channels to the replicas. Everything happens in the executor's thread; all functions may be
// called from any thread and block for nothing, but the destructor.
//
//   kSealing ──> kChosen ──begin_at()──> kCopying ──> kWriting
//       └────────────┴──────────────────────┴────────────┴──> kEnded (fenced, or acknowledged bytes
//                                                              are nowhere)
//   QC1  Nothing is appended before a write quorum has begun the epoch (RC3), nor after kEnded
//        (WR2).
//   QC2  Events come in the executor's thread, in the order of what they tell, none after `ended`,
//        and none inside a call of this class but append().
//   QC3  While it takes the stream over its replicas stay who they were at the start: the votes and
//        the quorum that begins the epoch are of one placement. A later one is followed from
//        kWriting on.
//   QC4  A placement with fewer replicas is followed by the holder that made it, after a
//        prepare_leave(). A holder of a lower epoch ends when it hears of it: what its replicas
//        once said is not to be counted by a smaller quorum (PR6 of
//        docs/adr/2026-11-23-changing-storage-nodes.md).
//   QC5  A replica that somebody has to do something about, since it has another secret or refuses
//        calls as being of another build, is one that does not answer, and is known by its reason.
// Replicas that do not answer are asked again, for ever: who gives up destroys the client.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/ids.h"
#include "base/status.h"
#include "clients/storage/replica_set.h"
#include "quorum/messages.h"
#include "quorum/writer.h"
#include "transport/address.h"
#include "transport/calls/channel.h"
#include "transport/world.h"

namespace strata::clients {

struct QuorumClientOptions {
  quorum::QuorumOptions quorum;
  StreamId stream;
  std::vector<transport::Address> addresses;  // of the replicas, in the order of the placement
  std::vector<std::string> keys;              // theirs, for follow() (replica_set.h)
  uint64_t generation = 0;                    // of the placement they are from
  uint64_t call_timeout_us = 2'000'000;
  uint64_t tick_us = 50'000;  // after that long what failed is tried again
  // News of what is quorum-durable waits that long for an append that takes it along (WR8).
  uint64_t news_delay_us = 2'000;
  transport::ChannelOptions channel;
};

// What the recovery chose (kChosen). The epoch begins in [quorum_durable, end], behind everything
// in there that is whole (RC4 of quorum/recovery.h).
struct ChosenLog {
  quorum::ReplicaIndex replica = 0;  // has all of it
  Lsn begin;                         // first byte kept
  Lsn quorum_durable;  // as far as the replicas know; may lie inside of what was appended at once
  Lsn end;
  // By replica: up to where its log held the same bytes when it was sealed. Zero: not known.
  std::vector<Lsn> same_until;
};

struct QuorumEvents {
  absl::AnyInvocable<void(const ChosenLog&)> chosen;  // once; waits for begin_at()
  absl::AnyInvocable<void(Lsn start)> begun;          // once; from now on append() is allowed
  absl::AnyInvocable<void(Lsn)> durable;              // grows
  // Last. fenced: by `higher`. kDataLoss: see quorum/recovery.h.
  absl::AnyInvocable<void(const Status& why, Epoch higher)> ended;
};

class QuorumClient {
 public:
  // `new_stream_start`: nobody has ever begun an epoch of this stream; it will start there.
  QuorumClient(const transport::World& world, const transport::Secret& secret,
               QuorumClientOptions options, quorum::Holder holder,
               std::optional<Lsn> new_stream_start, QuorumEvents events);
  // No event comes after it. Blocks for the executor's thread, if it runs. Not inside an event.
  ~QuorumClient();
  QuorumClient(const QuorumClient&) = delete;
  QuorumClient& operator=(const QuorumClient&) = delete;

  // After `chosen`: the epoch begins at `start` (RC4); what the chosen log has behind it is
  // forgotten.
  void begin_at(Lsn start);
  // More of the log, after what was appended before; after `begun`. Bytes wait here while too much
  // is not yet quorum-durable. Where no latch is held that an event takes: the caller's thread may
  // be the executor's meanwhile (EX3 of transport/world.h).
  void append(std::string bytes);
  // Somebody waits for a replica to know what is quorum-durable: tells those that do not (WR8).
  // Cheap when there are none.
  void spread_news();
  // Nobody needs the log below `lsn` any more: tells the replicas, who cut when they can.
  void truncate_below(Lsn lsn);

  // The placement has changed (QC3). Sets of lower generations than one told before are ignored.
  void follow(ReplicaSet replicas);
  // WR7 of quorum/writer.h: the replica of that key is about to leave generation `generation`,
  // after which `write_quorum` of the others are a write quorum. True: it may, from now on until
  // cancel_leave(). False: ask again. Block for the executor's thread.
  bool prepare_leave(const std::string& key, uint64_t generation, uint32_t write_quorum);
  void cancel_leave();

  struct ReplicaStatus {
    std::string address;
    quorum::Writer::ReplicaStatus log;
    Status unusable;  // QC5
  };
  // Of a client that writes; else empty. Blocks for the executor's thread.
  [[nodiscard]] std::vector<ReplicaStatus> status() const;
  // QC5: those of which that is known, and why. Blocks as status().
  struct Unusable {
    std::string address;
    Status why;  // wrong_secret, unsupported
  };
  [[nodiscard]] std::vector<Unusable> unusable() const;

 private:
  class Core;
  transport::Executor* const executor_;
  std::shared_ptr<Core> core_;
};

}  // namespace strata::clients
