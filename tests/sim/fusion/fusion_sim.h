// Several servers and the memory nodes between them in one thread and virtual time: the production
// code of authority, oracle and horizon on one side, of leases, timestamps and other servers'
// transactions on the other. Clocks run at different speeds; messages and one-sided operations are
// slow, and their replies get lost; links are cut one way; memory nodes and servers are paused and
// killed, and memory nodes are succeeded while they live. Memory of a node that is dead can still
// be read and added to, as a mapping can. Everything follows from the seed.
//
// Stand-ins: the authority stream is a list that refuses appends of sealed epochs (the log itself
// is simulated by log_quorum_sim.h), a server's log is a delay and a seal.
//
//   FS1  No timestamp is given twice; each, and each snapshot, is larger than any that somebody had
//        before it was asked for, and no smaller in a snapshot's case.
//   FS2  Once anybody has answered under an epoch, nobody answers under an earlier one.
//   FS3  A view that gives its answer has a snapshot at or above every commit that was acknowledged
//        before it was asked for (real-time order).
//   FS4  A view changes its mind about no transaction: what it took for undecided or aborted never
//        commits within its snapshot, and what it saw is durable.
//   FS5  Nobody was told a horizon beyond the snapshot of a view that goes on to give an answer;
//        and no horizon that is read or told is older than one that was told before (MW2).
//   FS6  Once faults end, every server commits and reads, and the horizon moves.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/horizon_client.h"
#include "clients/fusion/timestamp_fetcher.h"
#include "clients/fusion/tit_reader.h"
#include "clients/fusion/tit_region.h"
#include "fusion/timestamps/time_service.h"

namespace strata::sim {

// A rule that is broken, to see that the checks notice.
enum class FusionMutation : uint8_t {
  kNone,
  kValueOfAnotherEpoch,   // FU5: any lease will do
  kMarkAfterFetch,        // T14
  kSuccessorWithoutWait,  // FU2
  kLeaseFromTheReply,     // FU2: counted from when the reply came
  kHorizonBeforeRecord,   // FT5
  kCeilingBeforeRecord,   // FT1
  kTablesStayOpen,        // FU4, FC8: fences are not heeded
  kScanBeforeClock        // FU12
};

class FusionSim {
 public:
  FusionSim(uint64_t seed, FusionMutation mutation);
  ~FusionSim();
  std::string run();  // empty, or what went wrong

  struct Counts {
    uint64_t commits = 0, views = 0, takeovers = 0, fences = 0, adopted = 0, pauses = 0, kills = 0;
    uint64_t fetches = 0, served = 0;
  };
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

 private:
  class MemoryNode;
  class Server;
  class TimesRegion;
  friend class MemoryNode;
  friend class Server;
  friend class TimesRegion;

  // --- time ---
  struct Event {
    uint64_t at, order;
    std::function<void()> action;
    bool operator<(const Event& other) const noexcept {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  void after(uint64_t us, std::function<void()> action) {
    queue_.push({now_ + us, ++last_event_, std::move(action)});
  }
  void run_until(uint64_t us);

  // --- the world ---
  [[nodiscard]] bool faulty() const noexcept { return now_ < kFaultsUntilUs; }
  [[nodiscard]] bool lost() { return faulty() && rng_.one_in(40); }
  uint64_t delay();
  void start_memory_node();
  [[nodiscard]] MemoryNode* serving();  // the newest that serves
  void next_fault();
  void one_fault();
  void heal();
  [[nodiscard]] std::string standstill() const;  // FS6; empty: all goes on
  void supervise();
  void restart(NodeId id);
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  // --- what was seen ---
  struct Transaction {
    enum class State : uint8_t { kActive, kPrepared, kCommitting, kCommitted, kAborted };
    State state = State::kActive;  // as its owner, or its adopter, knows it
    uint64_t cts = 0;
    uint64_t invisible_at = 0;  // the largest snapshot of a view that did not see it
  };
  void note_value(bool fresh, uint64_t value, uint64_t had_before);
  void note_answer(Epoch epoch);
  void note_horizon(uint64_t told);
  void note_durable(Transaction* trx);

  static constexpr uint64_t kFaultsUntilUs = 1'400'000;
  static constexpr uint64_t kEndUs = 2'400'000;
  // A takeover and a fence take their time: until then all goes on, unless something is stuck.
  static constexpr uint64_t kPatienceEndsUs = 12'000'000;
  Rng rng_;
  const FusionMutation mutation_;
  uint64_t now_ = 0, last_event_ = 0;
  std::priority_queue<Event> queue_;

  // The authority stream and the registry.
  Epoch sealed_;
  std::string last_record_;
  uint64_t last_epoch_ = 0;
  uint64_t last_life_ = 0;
  bool starting_ = false;  // a memory node is

  std::vector<std::unique_ptr<MemoryNode>> memory_nodes_;
  std::vector<std::unique_ptr<Server>> servers_;    // by number; the first is none
  std::vector<std::unique_ptr<Server>> graveyard_;  // earlier lives: their tables can still be read
  std::map<std::pair<uint8_t, uint64_t>, Transaction> transactions_;  // server, sequence
  std::set<uint64_t> used_;
  uint64_t largest_had_ = 0;  // fresh or snapshot
  uint64_t largest_fresh_ = 0;
  uint64_t largest_acknowledged_ = 0;
  uint64_t largest_horizon_ = 0;  // told
  uint64_t horizon_at_heal_ = 0;
  Epoch newest_answered_;
  std::string failure_;
  Counts counts_;
};

}  // namespace strata::sim
