// When a memory node may take the authority over the cluster's servers: while another one has it,
// this one waits, and is told by the registry and by a connection when that is over. Thread-safe
// but for wait().
//
//   AUW1  It asks the registry for nothing while it waits: a watch tells of the authority stream's
//         holder. While the registry is away nothing is told, and nothing taken.
//   AUW2  A holder that was reached once, whose connection has ended, and at whose address nobody
//         listens any more is gone: it is the turn of whoever sees that, in place of that very
//         holder (SE3), whatever its lease says. What was never reached tells nothing: its address
//         may be one that only others can use.
//   AUW3  A lease that has ended does not say that its holder has: the registry may have been away.
//         One that still answers has patience_us to hold the stream again; one that does not, or
//         hangs, has none.
//   AUW4  That a turn is taken by somebody else, or cannot be taken, is found when it is tried: the
//         next one comes a moment later.
// All of this says when to try. Who has the authority is decided by the registry (one is given the
// epoch) and by storage nodes (which take no record of the one before any more).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/latch.h"
#include "base/status.h"
#include "base/wait_interrupt.h"
#include "cluster/node_addresses.h"
#include "cluster/stream_epochs.h"
#include "transport/secret.h"

namespace strata::memnode {

struct AuthorityWaitOptions {
  std::string name;                     // this node's
  uint64_t look_us = 200'000;           // between two looks at a holder that cannot be reached
  uint64_t patience_us = 5'000'000;     // AUW3
  uint64_t connect_us_max = 1'000'000;  // for a holder to answer
};

class AuthorityWait {
 public:
  // The registry outlives it. Watches from here on; does not block.
  AuthorityWait(AuthorityWaitOptions options, registry::Registry* registry,
                const cluster::ClusterKeys& keys, const transport::Secret& secret);
  ~AuthorityWait();  // stop(); blocks while a handler of the registry's runs
  AuthorityWait(const AuthorityWait&) = delete;
  AuthorityWait& operator=(const AuthorityWait&) = delete;

  // Whether this node could follow who has the authority now, as far as that can be seen: before it
  // is a member. Blocks for connect_us_max at most, and for the registry until the deadline. OK
  // also if nobody has it, or does not answer. Errors: wrong_secret.
  Status check(uint64_t deadline_us);

  // Blocks until it is this node's turn: nobody else has the authority, or who had it is gone. The
  // version of that one's key: to be named as in_place_of; 0: none. In one thread. `say` is told
  // why it waits, again and again: in_use (another one has the authority, and all is well),
  // peer_down (the registry has said nothing yet), wrong_secret, kDataLoss. Errors: interrupted
  // (stop()).
  using Say = std::function<void(const Status&)>;
  StatusOr<registry::Version> wait(const Say& say);
  // wait() returns soon, from now on at once.
  void stop();

  // Whether the end of the holder's process would be told at once (AUW2).
  [[nodiscard]] bool has_line() const;

 private:
  class Line;
  using Holder = std::optional<cluster::StreamHolder>;
  void learn(const StatusOr<Holder>& holder);
  StatusOr<std::optional<registry::Version>> look(uint64_t* next_us);
  std::optional<registry::Version> at_unheld(const cluster::StreamHolder& holder);
  Status reach(const std::string& address);
  void keep_line(const std::string& address);
  bool sleep(uint64_t us);
  void wake();

  const AuthorityWaitOptions options_;
  registry::Registry* const registry_;
  const cluster::ClusterKeys keys_;
  const transport::Secret secret_;
  const cluster::NodeAddresses addresses_;
  WaitInterrupt interrupt_;  // of connections that are made

  // The waiting thread's.
  std::string reached_;  // AUW2
  Status not_reached_;   // why there is no line
  Epoch unheld_;         // of this epoch the holder was seen without a lease, since then
  uint64_t unheld_since_us_ = 0;
  uint64_t turn_us_ = 0;  // the last one

  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  StatusOr<Holder> holder_ STRATA_GUARDED_BY(mutex_);
  bool woken_ STRATA_GUARDED_BY(mutex_) = false;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Line> line_ STRATA_GUARDED_BY(mutex_);
  std::unique_ptr<registry::Watch> watch_;  // last: it calls learn()
};

}  // namespace strata::memnode
