// Seals the logs of servers: what a server that was fenced has under way becomes durable nowhere
// any more. Thread-safe.
//
//   LSE1  A log is sealed when so many storage nodes have promised a larger epoch of the stream
//         that no write quorum is left for an earlier one; that epoch comes from the registry.
//   LSE2  Whoever holds the stream then is fenced, whichever life it is: a server asks for its
//         stream only once it is a member, so it is the one that was fenced, or an earlier one.
//   LSE3  What is sealed is free in the registry: the server's next life, or who adopts its place,
//         need not wait for a lease to end.
//   LSE5  Whoever takes a stream here, to seal it, to redo it or to complete it, does so by a
//         placement that was read after the stream's epoch was given (PR1): a node that came before
//         would else let the epoch before go on.
//   LSE4  What cannot be done is tried again, until it is done or stop(). Nothing is begun in the
//         stream: it stays as it was found.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "base/latch.h"
#include "base/stop_flag.h"
#include "clients/storage/quorum_client.h"
#include "cluster/stream_epochs.h"
#include "registry/registry.h"
#include "transport/secret.h"
#include "transport/world.h"

namespace strata::memnode {

struct SealedLog {
  Epoch epoch;  // zero: nobody was ever given one, so nobody has ever written to it
  Lsn end;      // of what may be durable
};

class LogSealer {
 public:
  struct Parts {
    registry::Registry* registry = nullptr;  // outlives it
    cluster::ClusterKeys keys;
    transport::World world;
    transport::Secret secret;
    std::string holder;  // in the registry
    // What a stream is held under while it is sealed, as of now.
    std::function<std::shared_ptr<registry::Lease>()> lease;
    // The storage nodes of the placement as it was heard of last, and how they are asked, but for
    // the stream. For reading only.
    std::function<clients::QuorumClientOptions()> storage;
    // LSE5. The same of the placement as the registry has it now. Blocks. Errors: the registry's.
    std::function<StatusOr<clients::QuorumClientOptions>()> storage_now;
    uint64_t call_timeout_us = 2'000'000;
    uint64_t seal_timeout_us = 5'000'000;  // for enough storage nodes to answer
    uint64_t again_us = 200'000;           // after a try that failed
  };
  explicit LogSealer(Parts parts);
  ~LogSealer();  // stop()
  LogSealer(const LogSealer&) = delete;
  LogSealer& operator=(const LogSealer&) = delete;

  // Seals it in a thread of its own (LSE4). `done` runs once, there: OK, or why it was given up.
  // Does not block.
  using Done = absl::AnyInvocable<void(const Status&)>;
  void seal(StreamId stream, Done done);
  // One try. Blocks. Errors: peer_down, timed_out (registry or storage nodes do not answer),
  // in_use (somebody else came in between), kDataLoss (the log is damaged), interrupted (stop()).
  StatusOr<SealedLog> seal_now(StreamId stream);
  // What is under way is given up. Blocks. Not in a `done`.
  void stop();

  [[nodiscard]] uint64_t waiting() const;     // logs that are to be sealed
  [[nodiscard]] Status last_failure() const;  // of the last try, if it failed

 private:
  struct Wanted {
    StreamId stream;
    Done done;
  };
  struct Chosen;
  void work();
  StatusOr<cluster::EpochGrant> take(StreamId stream, bool* never_held);
  StatusOr<Lsn> ask_storage(const cluster::EpochGrant& grant, bool founding);
  [[nodiscard]] uint64_t deadline() const {
    return parts_.registry->now_us() + parts_.call_timeout_us;
  }

  const Parts parts_;
  StopFlag stopping_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  std::deque<Wanted> wanted_ STRATA_GUARDED_BY(mutex_);
  Status last_failure_ STRATA_GUARDED_BY(mutex_);
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace strata::memnode
