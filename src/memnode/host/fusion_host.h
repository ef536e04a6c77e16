// What makes a memory node one that several servers share: becomes the authority of its cluster,
// serves them for as long as it is, and begins anew with another epoch when it is no more
// (FusionTerm). Thread-safe.
//
//   FHO1  One memory node of a cluster serves at a time. One that finds another there stands by,
//         and says so, until that one has left, is gone, or its lease in the registry has ended
//         (authority_wait.h). Meanwhile it has none of the memory that servers share.
//   FHO2  Who calls while this does not serve hears that (peer_down), and tries again.
//   FHO3  Whatever fails (registry, storage nodes, memory) is tried again with another epoch; the
//         process lives on, and status() says what is the matter.
//   FHO4  stop() lets another memory node have the stream at once. What the pool has is gone with
//         it: servers go on at the next one as if this one had died (FHO5). So they do if this one
//         was only silent for too long: it finds out, ends its term, and stands by.
//   FHO5  Servers of a term before, whichever node had it, go on at this one: it prepares while
//         they say what they have and their logs are redone (FTM6), and grants nothing meanwhile.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/latch.h"
#include "base/stop_flag.h"
#include "base/wait_interrupt.h"
#include "daemon/worker_pool.h"
#include "memnode/host/authority_wait.h"
#include "memnode/host/fusion_term.h"

namespace strata::memnode {

enum class FusionPhase : uint8_t {
  kWaits,     // for the registry or storage nodes; or it was refused
  kStandsBy,  // another memory node serves
  kPrepares,  // has the authority; storage may lack what earlier servers have logged
  kServes,
  kStopped
};
[[nodiscard]] const char* name_of(FusionPhase phase) noexcept;

struct FusionHostStatus {
  FusionPhase phase = FusionPhase::kWaits;
  Status why;             // it does not serve, or what is the matter though it does
  uint64_t terms = 0;     // begun so far
  Epoch epoch;            // of the last one
  bool has_line = false;  // it stands by, and hears at once if who serves is gone (AUW2)
  // Of the term that serves, or served last; null: none yet. For its status and counters.
  std::shared_ptr<const FusionService> service;
};

class FusionHost {
 public:
  FusionHost(FusionHostOptions options, FusionHostParts parts);
  ~FusionHost();  // stop(); after the server that it was registered on
  FusionHost(const FusionHost&) = delete;
  FusionHost& operator=(const FusionHost&) = delete;

  // Once, before the server listens.
  void register_on(transport::RpcServer* server) { door_.register_on(server); }
  // Before this node is a member: whether it could follow the one that serves (AuthorityWait).
  Status check(uint64_t deadline_us) { return wait_.check(deadline_us); }
  // Once, when servers could reach this node. Does not block.
  void start();
  // FHO4. Blocks for what is under way. While offload still runs what it was given.
  void stop();

  [[nodiscard]] FusionHostStatus status() const;
  // Not OK: it neither serves nor stands by, or something else is the matter.
  [[nodiscard]] Status health() const;
  // For tests: runs `look` with the term of now, if there is one, and keeps it that long. Not in
  // the host's threads.
  void with_term(const std::function<void(FusionTerm*)>& look);

 private:
  void run();
  Status run_term(registry::Version in_place_of);
  Status wait_ready(FusionTerm* term);
  Status wait_recovered(FusionTerm* term);
  void serve_until_it_ends(FusionTerm* term, Status* ended);
  void note(FusionPhase phase, const Status& why);
  bool pause(uint64_t us);  // false: it stops
  void wake();

  const FusionHostOptions options_;
  const FusionHostParts parts_;
  AuthorityWait wait_;
  FusionDoor door_;
  daemon::WorkerPool blocking_;
  Mutex term_mutex_{LatchRank::kServer};  // over what a test does with it
  FusionTerm* term_ STRATA_GUARDED_BY(term_mutex_) = nullptr;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  bool woken_ STRATA_GUARDED_BY(mutex_) = false;
  FusionHostStatus status_ STRATA_GUARDED_BY(mutex_);
  WaitInterrupt interrupt_;  // of what takes long before it serves
  std::thread thread_;
};

}  // namespace strata::memnode
