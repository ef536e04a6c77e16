// Takes a stream over under a new epoch (S2): seals, chooses, copies, begins. A state machine
// without clock, threads or sockets. Not thread-safe.
//
//   kSealing ──a recovery quorum of votes──> kChosen ──> kCopying ──a write quorum has begun──>
//   kDone
//       └──fenced, or acknowledged bytes are nowhere──> kFailed <──fenced──┘
//   RC1  A choice is made from the votes of a recovery quorum, all given under this epoch, and made
//        once: every replica that begins the epoch begins it on the same log at the same place.
//   RC2  Chosen is the vote with the highest (last epoch, end).
//   RC4  The epoch begins at the end of the chosen log, or, for an owner who looks at what is there
//        (wait_for_start), where he says: a torn end can be left behind. It must not be before the
//        end of anything that was appended at once and is there as a whole, since the holder before
//        may hear late that a write quorum has it (WR1).
//   RC3  Nobody is told that the epoch has begun before a write quorum has begun it durably.
// A recovery that does not get on (too few replicas answer) is dropped by its owner, who asks the
// registry for a higher epoch and starts another one. Two at a time are safe: only one can finish.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "quorum/catch_up.h"
#include "quorum/messages.h"

namespace strata::quorum {

class Recovery {
 public:
  enum class State { kSealing, kChosen, kCopying, kDone, kFailed };

  // `new_stream_start`: no recovery of this stream has ever finished (the registry knows; its owner
  // tells it before it acknowledges anything). The stream will start there.
  // `wait_for_start`: stays in kChosen until begin_at().
  Recovery(const QuorumOptions& options, Holder holder, std::optional<Lsn> new_stream_start,
           bool wait_for_start = false);

  struct Chosen {
    ReplicaIndex replica = 0;  // has all of it
    Lsn begin;
    Lsn quorum_durable;  // as far as the votes know; may lie inside of what was appended at once
    Lsn end;
    // By replica: up to where its log held the same bytes when it was sealed. Zero: not known.
    std::vector<Lsn> same_until;
  };
  // In kChosen. `start`: in [quorum_durable, end], see RC4.
  [[nodiscard]] const Chosen& chosen() const noexcept { return chosen_log_; }
  void begin_at(Lsn start);

  // What is to be sent now. Each call empties the list.
  std::vector<Outgoing> take_requests();
  void on_reply(uint64_t id, Reply reply);
  void on_lost(uint64_t id);  // no reply will come: deadline, connection lost
  void tick();                // time has passed: what failed is tried again

  [[nodiscard]] State state() const noexcept { return state_; }
  // In kFailed: fenced (by fenced_by()) or kDataLoss.
  [[nodiscard]] const Status& failure() const noexcept { return failure_; }
  [[nodiscard]] Epoch fenced_by() const noexcept { return fenced_by_; }
  // In kCopying and kDone.
  [[nodiscard]] const Tenure& tenure() const noexcept { return *tenure_; }
  [[nodiscard]] uint32_t votes() const noexcept;

 private:
  struct Replica {
    std::optional<SealReply> sealed;
    std::unique_ptr<CatchUp> catch_up;  // from the choice on
    bool resting = false;               // asked in vain; again at the next tick
    uint32_t source_tries = 0;
  };
  // What an id was for.
  struct Asked {
    ReplicaIndex target;
    ReplicaIndex replica;
  };

  void send(ReplicaIndex target, ReplicaIndex replica, decltype(Outgoing::body) body);
  void advance(ReplicaIndex target);
  void on_seal(ReplicaIndex index, SealReply reply);
  void on_step(ReplicaIndex target, bool got_on);
  void choose();
  void copy();
  [[nodiscard]] std::vector<Lsn> same_until() const;
  void fail(Status status, Epoch fenced_by);
  [[nodiscard]] std::vector<ReplicaIndex> sources() const;

  const QuorumOptions options_;
  const Holder holder_;
  const std::optional<Lsn> new_stream_start_;
  State state_ = State::kSealing;
  std::vector<Replica> replicas_;
  const bool wait_for_start_;
  ReplicaIndex chosen_ = 0;
  Chosen chosen_log_;
  std::optional<Tenure> tenure_;
  Status failure_;
  Epoch fenced_by_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Asked> asked_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace strata::quorum
