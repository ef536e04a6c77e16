// Recovers what servers that were killed have left, while the others go on: each server of several
// that write the same tables (fusion_node.h) has one. It becomes the dead one's next life for a
// moment, as that one's start would, without a server behind it; so whatever the dead one had
// exclusively (pages, row locks of its open transactions, names) is free again. Thread-safe.
//
//   A server is killed -> its lease at the memory node ends, it is fenced, its log is sealed
//     -> each survivor hears of it and looks at the registry: is the place settled (PLC4)?
//     -> the first one behind it becomes a member for it, takes its stream, recovers, leaves
//
//   ADP1  Only a place that nobody is a member for, and that is not settled, is adopted, and never
//         the own one. One adopter gets in at a time, since the memory node lets one in; the others
//         look again.
//   ADP2  An adopter is one life of the place among others: what it does counts as that place's, in
//         that place's log. If it ends in the middle, however that comes, it is fenced as the
//         server was, and whoever comes next begins anew.
//   ADP3  It leaves in order or not at all: the place is settled only after all that was unfinished
//         is undone, the kernel was shut down in order and the memory node has been told.
//         Transactions that are prepared stay so, as they do when a server with such ones is shut
//         down: their places on the status pages tell of them.
//   ADP4  The server whose place it is waits while an adopter is at it, and gets it then (CM9). If
//         it comes first the adopters stop.
//   ADP5  What fails is tried again, after pauses that grow, as long as the place is not settled
//         and nobody is there; why is said once.
//   ADP7  Places are recovered at the same time, and while the server's own kernel is being opened:
//         what one of them has to undo may lie on a page that another one had for writing. Redo
//         waits for nobody (FP3), so there is always one that goes on.
//   ADP6  stop() waits for no other node: what is under way is given up as if the process had been
//         killed (ADP2).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "base/status.h"
#include "base/stop_flag.h"
#include "base/wait_interrupt.h"
#include "clients/compute/fusion_node.h"

namespace strata::clients {

// Which of the survivors begins: how many of them (`there`, without the dead one) are nearer behind
// `dead` than `own`, by number and around.
[[nodiscard]] uint32_t rank_behind(NodeId dead, NodeId own, const std::set<uint8_t>& there);

struct PlaceAdopterOptions {
  // As the server's own; its place and its name are filled in for each adoption.
  FusionNodeOptions node;
  std::function<StatusOr<std::unique_ptr<registry::Registry>>()> connect;
  // Opens a kernel on that place, brings what is unfinished there to its end, shuts the kernel down
  // in order, and says in some words what there was to do. Ends soon after the flag is raised, with
  // an error. Called in a thread of its own for each place (ADP7), which is interrupted then, too.
  std::function<StatusOr<std::string>(FusionNode* place, StopFlag* stop)> recover;
  uint64_t settle_us = 200'000;  // for who leaves in order to write that down
  uint64_t rank_us = 1'000'000;  // after the survivor before
  uint64_t retry_us_min = 500'000, retry_us_max = 15'000'000;
  uint64_t join_us_max = 15'000'000;  // of one try, to be let in
  uint64_t call_timeout_us = 2'000'000;
};

// Relaxed, for people and tests.
struct PlaceAdopterCounters {
  std::atomic<uint64_t> begun{0}, done{0}, failed{0}, looks{0};
  std::atomic<uint64_t> last_us{0};  // how long the last one took
  std::atomic<uint64_t> now{0};      // under way
};

class PlaceAdopter {
 public:
  PlaceAdopter(const transport::Secret& secret, PlaceAdopterOptions options);
  ~PlaceAdopter();  // stop()
  PlaceAdopter(const PlaceAdopter&) = delete;
  PlaceAdopter& operator=(const PlaceAdopter&) = delete;

  // For FusionMemberOptions::members; before start(), too. Does not block.
  void heard(const std::vector<proto::FusionServer>& servers);
  // Once, when the server is a member, before its own kernel is opened (ADP7): its place, and its
  // holder's name (ComputeNode::holder()). Looks at once for what was left before.
  void start(NodeId own, std::string holder);
  // Before the server's own node goes. Blocks until nothing of it runs; ADP6. Again: nothing.
  void stop();

  [[nodiscard]] const PlaceAdopterCounters& counters() const noexcept { return counters_; }

 private:
  struct Wanted {
    uint64_t at_us = 0;  // not before
    uint64_t pause_us = 0;
    bool told = false;  // why it did not work
  };
  struct Attempt {
    uint64_t began_us = 0;
    StatusOr<std::string> result = std::string();  // its thread's, until has_ended
    std::atomic<bool> has_ended{false};
    WaitInterrupt interrupt;
    std::thread thread;
  };
  void work();
  void wait_until(uint64_t at_us);  // or until there is news
  [[nodiscard]] std::set<uint8_t> others() const;
  Status look();
  void note(const std::vector<cluster::KnownPlace>& unsettled);
  void adopt_due();
  void begin(NodeId place);
  void end_attempts(bool all);
  void ended(NodeId place, const Attempt& attempt);
  StatusOr<std::string> adopt(NodeId place);
  void try_again(NodeId place, Wanted* wanted, const Status& why);

  const transport::Secret secret_;
  const PlaceAdopterOptions options_;
  PlaceAdopterCounters counters_;
  NodeId own_;
  std::string holder_;

  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  std::set<uint8_t> there_ STRATA_GUARDED_BY(mutex_);
  bool news_ STRATA_GUARDED_BY(mutex_) = true;
  bool attempt_ended_ STRATA_GUARDED_BY(mutex_) = false;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;

  // The thread's.
  std::map<uint8_t, Wanted> wanted_;
  std::map<uint8_t, std::unique_ptr<Attempt>> attempts_;
  std::unique_ptr<registry::Registry> registry_;
  uint64_t look_at_us_ = 0;  // UINT64_MAX: when there is news
  uint64_t look_pause_us_ = 0;

  StopFlag stopping_;
  WaitInterrupt interrupt_;
  std::thread thread_;
};

}  // namespace strata::clients
