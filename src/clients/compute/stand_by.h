// When a compute node that stands by may have the log stream of the one that writes: as soon as
// that one is gone, and never because the registry is slow or this node was cut off from it. It
// waits and looks; taking the stream is then join()'s (compute_node.h), which changes one key only
// if it is still as it was seen here: of several that stand by one gets it.
//   SB1  A stream that is held is offered only when its holder's process has certainly ended: this
//        one had the lock of that very folder (ID1, ID2) while it read who holds the stream.
//   SB2  A stream that nobody holds any more is offered only if the registry has answered this node
//        without a pause for as long as a writer needs to get a lost lease back. So a registry that
//        stood still, or a network that was gone, and with it every lease, gives the writer time to
//        go on.
//   SB3  A node that had the stream last itself (its own older self) is offered it at once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/latch.h"
#include "base/status.h"
#include "clients/compute/node_identity.h"
#include "cluster/stream_epochs.h"
#include "registry/registry.h"

namespace strata::clients {

// SB2, from what a node's looks at the registry have told. Not thread-safe.
class RegistryPatience {
 public:
  // A lease's time, in which a writer can get another one; the pause in answers from which on the
  // registry counts as having been away.
  RegistryPatience(uint64_t lease_us, uint64_t pause_us_max)
      : lease_us_(lease_us), pause_us_max_(pause_us_max) {}

  // A look was sent, and answered; one that was not answered tells nothing, it only leaves a pause.
  void answered(uint64_t sent_us, uint64_t now_us) noexcept;
  // Whether a stream without a holder is one whose holder is gone.
  [[nodiscard]] bool enough(uint64_t now_us) const noexcept {
    return answers_ && now_us - since_us_ >= lease_us_ && now_us - last_us_ <= pause_us_max_;
  }

 private:
  const uint64_t lease_us_, pause_us_max_;
  bool answers_ = false;
  uint64_t since_us_ = 0;  // answers without a pause
  uint64_t last_us_ = 0;   // the newest one was sent
};

struct StandByOptions {
  StreamId stream{1};
  std::string directory;                // of this node: its data folder
  std::vector<std::string> neighbours;  // data folders of others on this machine
  uint32_t lease_seconds = 10;          // as the writer's
  std::function<bool()> stop;           // asked often; null: never
};

class StandBy {
 public:
  struct Turn {
    // What to name to take the stream from (EpochRequest); 0: nobody holds it.
    registry::Version in_place_of;
    std::string holder;  // who had it last; empty: nobody ever
    std::string why;     // for people
  };
  StandBy(registry::Registry* registry, const cluster::ClusterKeys& keys, StandByOptions options);

  // Blocks as long as it takes. A registry that does not answer is waited for. Errors: kDataLoss,
  // those of HeldIdentity::of(); interrupted: `stop` said so.
  StatusOr<Turn> wait();

 private:
  using Holder = std::optional<cluster::StreamHolder>;  // nothing: there was never one
  StatusOr<std::optional<Turn>> look();
  StatusOr<std::optional<Turn>> after_the_dead();
  StatusOr<Holder> current();
  void tell(const Holder& holder);
  void tell_silence(const Status& why);
  bool pause();  // false: told to stop

  registry::Registry* const registry_;
  const StandByOptions options_;
  const uint64_t lease_us_, look_us_;
  cluster::StreamEpochs epochs_;
  RegistryPatience patience_;
  std::string own_suffix_;     // of this folder's name as a holder
  Holder seen_;                // by the last look that was answered
  std::string told_;           // the last holder that was logged
  bool told_silence_ = false;  // likewise that the registry does not answer
  uint64_t next_look_us_ = 0;
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool woken_ STRATA_GUARDED_BY(mutex_) = false;  // the writer's key is another one
  std::unique_ptr<registry::Watch> watch_;
};

}  // namespace strata::clients
