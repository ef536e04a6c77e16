// Row locks of several servers in one thread and virtual time: the production code of the memory
// node's half (fusion/locks) and of the servers' (RowLockClient, TitRegion), over messages that are
// slow and get lost, with servers that are paused and killed, whose transactions another one or a
// new life of theirs ends, and memory nodes that are succeeded. Everything follows from the seed.
//
// Stand-ins: rows are a list of marks that everybody reads and writes in one step, as page locks
// have it; what has become of a transaction is known to whoever asks; fences are heard by every
// other server before anything of a dead one is released (the simulation beside this one has
// those).
//
//   FS7  Whoever has marked a row and asked is alone: nobody else has read it under a shared lock
//        that still holds.
//   FS8  No wake-up is lost: once faults have ended no poll finds anything, and every wait ends.
//   FS9  Of each deadlock that is broken there was a moment at which all its waits were on.
//   FS10  Once faults end, every server commits.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "clients/fusion/row_lock_client.h"
#include "clients/fusion/tit_region.h"
#include "fusion/locks/row_locks.h"

namespace strata::sim {

// A rule that is broken, to see that the checks notice.
enum class RowLocksMutation : uint8_t {
  kNone,
  kLookBeforeRegistering,  // FU26
  kWordBeforeOutcome,      // FU26, FC15: the owner looks for waiters, then publishes
  kNobodyIsAsked,          // FQ4: cycles are taken for what they seem
  kLockBeforeAnswers,      // FQ5: a shared lock counts before all writers ask
  kAdoptersAreNotTold,     // FQ3
  kNoReport                // FC13, FQ6: a new memory node is not told of shared locks
};

class RowLocksSim {
 public:
  RowLocksSim(uint64_t seed, RowLocksMutation mutation);
  ~RowLocksSim();
  std::string run();  // empty, or what went wrong

  struct Counts {
    uint64_t commits = 0, aborts = 0, waits = 0, turns = 0, deadlocks = 0, unconfirmed = 0;
    uint64_t kills = 0, adopted = 0, takeovers = 0, pauses = 0, timeouts = 0, shared = 0;
    uint64_t notes = 0, overtaken = 0;
  };
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

 private:
  class Server;
  struct Trx;
  class Waiting;
  friend class Server;

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
  [[nodiscard]] bool faulty() const noexcept { return now_ < kFaultsUntilUs; }
  [[nodiscard]] bool calm() const noexcept { return now_ >= kCalmFromUs; }
  [[nodiscard]] bool lost() { return faulty() && rng_.one_in(30); }
  uint64_t delay();
  void next_fault();
  void new_memory_node();
  void kill(uint8_t id);
  void release(uint8_t id);  // of a dead one: everybody has heard
  void end_transactions(uint8_t place, uint8_t by);
  void start_again(uint8_t id);
  void end_old(uint8_t id, Server* server);
  void publish(TrxId trx);
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }
  [[nodiscard]] bool undecided(TrxId trx) const {
    const auto it = undecided_.find(trx);
    return it != undecided_.end();
  }
  void check_deadlock();
  void collect(const fusion::RowLocks& locks);

  static constexpr uint8_t kServers = 3;
  static constexpr uint64_t kRows = 6;
  static constexpr uint64_t kFaultsUntilUs = 500'000;
  static constexpr uint64_t kCalmFromUs = 700'000;
  static constexpr uint64_t kEndUs = 1'500'000;
  static constexpr uint64_t kPatienceEndsUs = 8'000'000;  // FS10: until then chance has let all on
  Rng rng_;
  const RowLocksMutation mutation_;
  uint64_t now_ = 0, last_event_ = 0, last_life_ = 0;
  std::priority_queue<Event> queue_;

  uint64_t epoch_ = 0;
  std::unique_ptr<fusion::RowLocks> locks_;
  uint64_t deadlocks_seen_ = 0;
  std::set<uint8_t> members_;
  std::map<uint8_t, uint8_t> adopters_;  // of places whose server has not come back

  std::array<TrxId, kRows> marks_{};
  std::array<std::set<TrxId>, kRows> shared_;      // who has read it under a lock
  std::map<TrxId, std::set<uint64_t>> undecided_;  // with the rows marked
  struct Interval {
    uint64_t begin = 0, end = UINT64_MAX;
  };
  std::map<std::pair<TrxId, uint64_t>, Interval> intervals_;  // of waits: trx, number of the wait
  std::vector<std::unique_ptr<Server>> servers_;              // by number; the first is none
  std::vector<std::unique_ptr<Server>> graveyard_;
  std::map<uint8_t, uint64_t> next_sequence_;
  std::string failure_;
  Counts counts_;
};

}  // namespace strata::sim
