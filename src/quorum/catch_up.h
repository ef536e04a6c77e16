// Brings one replica to where an epoch stands, one step at a time. A state machine without clock,
// threads or sockets: the owner carries out step() and tells what came of it. Used by a recovery
// for every replica it reaches, and by a storage node for itself.
//
//   kBegin ──begun──> goal reached? ──yes──> kDone
//     ^  └─behind─> kFetch ─bytes─> kStore ─┬─more─> kFetch
//     └────────── at the epoch's start ─────┘
//   Any state ──fenced, or told that the log is wrong──> kFailed
//   CU1  Bytes before the epoch's start go as catch-up, those behind it as appends of the epoch,
//        and only after it was begun.
//   CU2  What a source says to be quorum-durable is passed on only as far as its bytes go: behind
//        them the target may hold other bytes, of this epoch, that nobody has acknowledged.
//   CU3  The target's log is made to begin later than the tenure says only if no source has what is
//        before any more, and never behind the goal: below that everything is quorum-durable under
//        this epoch, and below where a log begins nobody who writes it needs it.
#pragma once

#include <string>

#include "quorum/messages.h"

namespace strata::quorum {

class CatchUp {
 public:
  enum class State { kBegin, kFetch, kStore, kDone, kFailed };
  struct Options {
    Tenure tenure;
    Lsn voter_end;
    Lsn goal;  // at least tenure.start
    uint32_t bytes_max = 1u << 20;
    bool recovery = false;  // reads beyond quorum_durable, as the tenure's holder
  };

  explicit CatchUp(Options options) : options_(std::move(options)) {}

  [[nodiscard]] State state() const noexcept { return state_; }
  // Why, in kFailed.
  [[nodiscard]] const Status& failure() const noexcept { return failure_; }
  [[nodiscard]] const ReplicaState& target() const noexcept { return target_; }

  // kBegin: ask the target to begin.
  [[nodiscard]] BeginRequest begin_request() const;
  // kFetch: read from any source that has the tenure's log.
  [[nodiscard]] ReadRequest read_request() const;
  // kStore: give the bytes to the target: as append() once the epoch is begun there.
  [[nodiscard]] bool stores_as_append() const noexcept { return begun_; }
  [[nodiscard]] CatchUpRequest catch_up_request() const;
  [[nodiscard]] AppendRequest append_request() const;

  // True: something came of it. False: the step stands and is to be tried again, later or (a read)
  // elsewhere.
  bool on_target(const ChangeReply& reply);
  bool on_read(ReadReply reply);
  // kFetch: what the target needs next was cut off everywhere; the longest log begins at `base`.
  // False: it cannot begin there (CU3).
  bool raise_base(Lsn base);

 private:
  void go_on();
  Options options_;
  State state_ = State::kBegin;
  bool begun_ = false;
  Lsn position_;  // the target needs bytes from here on
  std::string bytes_;
  Lsn quorum_durable_;
  ReplicaState target_;
  Status failure_;
};

}  // namespace strata::quorum
