// Several servers that use the same tables and change their definitions, drop spaces and use pages
// again, and the memory node between them, in one thread and virtual time: the production code of
// both halves of names (fusion/names, NameHolds), of dropped spaces, and of rounds of page reuse
// (fusion/reuse, ReuseMarks), with leases. Messages are slow, are lost, and come twice and in any
// order; servers are paused, cut off, killed and fenced while they live, in the middle of a change
// too, and their next life undoes that. All of it follows from the seed.
//
// Stand-ins: what a kernel remembers of a table, and when it forgets it, is written again here, as
// engine/names.cc has it; the dictionary is a number for each name, which a sealed server cannot
// change; the authority is a list of when each lease ends.
//
//   NY1  Whoever uses a table, and may answer for that, has its newest definition, and nobody else
//        is in the middle of changing it (MW15, MW16, NL1). That holds for what a server that was
//        killed has left half done, too: until its next life has undone it (NL4).
//   NY2  Nobody who may answer is at a space whose file is gone (MW17).
//   NY3  When a round has ended no operation of another server that may answer is under way that
//        was when the round began (MW13).
//   NY4  Once faults end every server uses and changes every table, drops spaces, ends rounds, and
//        uses and shares every right.
//   NY5  The memory node's names are in order at all times (Names::check()).
//   NY6  While a server shares a right nobody else who may answer uses it (NL1), also once that
//        server was killed, until its next life begins (NL4).
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
#include "fusion/names/dropped_spaces.h"
#include "fusion/names/names.h"
#include "fusion/reuse/reuse_rounds.h"

namespace strata::sim {

// A rule that is broken, to see that the checks notice.
enum class NamesMutation : uint8_t {
  kNone,
  kGivenUpBeforeForgotten,  // MW15, FC35
  kUnlockBeforePublish,     // MW16
  kUnnumberedGrant,         // FC34: a grant counts though the server has said "not held"
  kReleaseWithoutUndo,      // NL4: the next life lets the names go before it has undone the change
  kReleaseBeforeTheLease,   // NL4, NL6: of a fenced server
  kSaysLeftAtOnce,          // MW17, FC42
  kReportWithoutMark,       // MW13, FC43
  kMarkOfAnEarlierRound     // FC43: one mark stands for rounds that began after it
};

class NamesSim {
 public:
  NamesSim(uint64_t seed, NamesMutation mutation);
  ~NamesSim();
  std::string run();  // empty, or what went wrong

  struct Counts {
    uint64_t uses = 0, changes = 0, given_up = 0, not_held = 0, in_use = 0, timeouts = 0;
    uint64_t drops = 0, rounds = 0, fences = 0, undone = 0, dead = 0;
    uint64_t shares = 0, shared_beside = 0;
  };
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

 private:
  class Server;
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
  void send_outgoing();
  void check_users_of(size_t t);
  void deliver(NodeId to, uint64_t life, std::function<void(Server*)> what);
  void tick();
  void supervise();
  void next_fault();
  void fence(uint8_t id);
  void release(uint8_t id);
  void start(uint8_t id);
  [[nodiscard]] std::string missing() const;  // NY4; empty: nothing is missing
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = std::to_string(now_) + ": " + what;
  }

  // --- what is true ---
  struct Table {
    uint64_t version = 1;
    uint32_t space = 0;
    uint64_t changer = 0;  // the life that is in the middle of changing it
    uint8_t place = 0;     // of that life
  };

  // Of who shares it.
  struct Right {
    struct Sharer {
      uint8_t place = 0;
      uint32_t count = 0;
    };
    std::map<uint64_t, Sharer> sharers;  // by life
  };

  static constexpr uint8_t kServers = 3;
  static constexpr size_t kTables = 3, kRights = 2, kNames = kTables + kRights;  // in this order
  static constexpr uint64_t kFaultsUntilUs = 600'000;
  static constexpr uint64_t kCalmFromUs = 800'000;
  static constexpr uint64_t kEndUs = 1'100'000;
  // Actions are drawn: until then everybody has done everything, unless somebody is stuck.
  static constexpr uint64_t kPatienceEndsUs = 20'000'000;
  Rng rng_;
  const NamesMutation mutation_;
  const uint64_t patience_us_;  // of the seed: after which silence a server is fenced
  uint64_t now_ = 0, last_event_ = 0, last_life_ = 0;
  std::priority_queue<Event> queue_;
  std::optional<fusion::Names> names_;
  std::optional<fusion::DroppedSpaces> spaces_;
  std::optional<fusion::ReuseRounds> rounds_;
  std::array<Table, kTables> tables_;
  std::array<Right, kRights> rights_;
  uint32_t last_space_ = 1000;
  std::set<uint32_t> deleted_;
  std::map<uint8_t, std::set<uint32_t>> to_drop_;  // by place: what its log says
  struct Seen {
    uint64_t heard_us = 0, lease_ends_us = 0;
    bool fenced = false;
  };
  std::map<uint8_t, Seen> seen_;
  std::vector<std::shared_ptr<Server>> servers_;  // by number; the first is none
  std::vector<std::shared_ptr<Server>> graveyard_;
  std::string failure_;
  Counts counts_;
};

}  // namespace strata::sim
