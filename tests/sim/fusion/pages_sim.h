// Several servers that change the same pages, and the memory node between them, in one thread and
// virtual time: the production code of the directory and its page locks, of leases and fences, on
// one side, of what a server holds and of versions in slots on the other. Messages are slow, are
// lost, and come twice and in any order; puts and gets go by halves; servers are paused, cut off,
// killed and fenced while they live, and their next life redoes what the log has. All of it follows
// from the seed.
//
// Stand-ins: a server's log is a list that becomes durable after a while unless it is sealed; pages
// are filled from their llsn; storage keeps the larger llsn of what is written to it (as under
// `remote-disk`), or makes pages from what it has scanned of the logs (as under `logdb-mv-sr`); the
// authority stream takes what it gets at once. Where storage replays nothing is redone: the next
// life of a server says where the log ended (FP7).
//
//   FY1  Whoever changes or reads a page, and may answer for that, has its newest version: no
//        change is lost or seen late.
//   FY2  A change that others have built on is durable: what a seal cuts off is the end of each
//        page's chain. So the logs, merged by llsn, have every page's chain without a gap or a
//        fork.
//   FY3  Who redoes a log finds each page as the first change that is missing wants it.
//   FY4  Below a stream's checkpoint there is no change that storage lacks.
//   FY5  What the memory node writes to storage is the version that it thinks.
//   FY6  Once faults end, every server reads and writes every page.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "base/rng.h"
#include "fusion/authority/authority.h"
#include "fusion/pages/pages.h"

namespace strata::sim {

// A rule that is broken, to see that the checks notice.
enum class PagesMutation : uint8_t {
  kNone,
  kGrantBeforePut,              // FU14: reported while the put is under way
  kPutBeforeLog,                // FU14, K9
  kConversion,                  // FU19: who reads a page asks to write it and goes on reading
  kUnnumberedGrant,             // FU13: a grant counts though the server has said "not held"
  kFloorWithoutPositions,       // FU16
  kSlotsFreeBeforeTheMapping,   // FU14: those of a fenced server, which may still put
  kLostPutSlotReused,           // FH4
  kReleaseWithoutRedo,          // FP3
  kReleaseWithoutEnd,           // FP7
  kReleaseBeforeTheLease,       // FU4
  kCheckpointWithoutDirectory,  // FU17
  kCheckpointWithoutReports     // FU17: what is given up counts as written once it is in a slot
};

class PagesSim {
 public:
  PagesSim(uint64_t seed, PagesMutation mutation, bool storage_replays);
  ~PagesSim();
  std::string run();  // empty, or what went wrong

  struct Counts {
    uint64_t reads = 0, changes = 0, given_up = 0, gets = 0, stored_reads = 0, fences = 0;
    uint64_t redone = 0, published = 0, crossings = 0, dropped = 0;
  };
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

 private:
  class Server;
  class Slots;
  friend class Server;
  friend class Slots;

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
  [[nodiscard]] bool lost() { return faulty() && rng_.one_in(30); }
  uint64_t delay();
  void send_outgoing();
  void tick();
  [[nodiscard]] bool may_put(NodeId server, uint64_t life) const;  // after its release
  void supervise();
  void next_fault();
  void one_fault();
  void write_some();
  void check_checkpoints();
  [[nodiscard]] std::string missing_use() const;  // FY6; empty: nothing is missing
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  // --- what is true ---
  struct Change {
    uint64_t llsn = 0, prev = 0;
    uint8_t server = 0;
    uint64_t start = 0, end = 0;  // in its server's stream
  };
  struct Stream {
    std::vector<std::pair<PageId, Change>> changes;
    uint64_t end = 1000;
    uint64_t durable = 1000;
    uint64_t scanned = 1000;  // by storage, where that replays
  };
  [[nodiscard]] uint64_t newest(PageId page) const;
  void seal(uint8_t server);
  [[nodiscard]] uint64_t made_by_storage(PageId page) const;

  static constexpr uint64_t kFaultsUntilUs = 1'200'000;
  static constexpr uint64_t kEndUs = 2'200'000;
  // Pages are drawn: until then everybody has come to each of them, unless somebody is stuck.
  static constexpr uint64_t kPatienceEndsUs = 12'000'000;
  Rng rng_;
  const PagesMutation mutation_;
  const bool storage_replays_;
  // Of the seed: how often the memory node writes back at most (while slots have what storage
  // lacks, it matters what is put into them), and after which silence a server is fenced (before
  // its lease has ended, too).
  const uint64_t write_back_us_;
  const uint64_t patience_us_;
  uint64_t now_ = 0, last_event_ = 0;
  std::priority_queue<Event> queue_;
  std::optional<fusion::Authority> authority_;
  std::optional<fusion::Pages> pages_;
  std::vector<char> pool_;
  std::map<PageId, std::vector<Change>> chains_;
  std::array<Stream, 8> streams_;  // by server
  std::map<PageId, uint64_t> stored_;
  uint64_t last_life_ = 0;
  std::vector<std::unique_ptr<Server>> servers_;  // by number; the first is none
  std::vector<std::unique_ptr<Server>> graveyard_;
  std::string failure_;
  Counts counts_;
};

}  // namespace strata::sim
