// Which pages this server has, who of its threads uses them, and what it has to say to the memory
// node about that (proto/page_locks.h). Thread-safe. Nobody blocks in it, and it does no I/O: who
// asks is called back; whoever owns it sends what take_...() returns and says what became of it.
//
//              acquire()          granted()           refs 0 and wanted back, take_ready()
//   (none) -------------> asked -----------> held --------------------------> giving up
//      ^                                      ^  `--- give_up_failed() ---------'   |
//      `------------------------------------------------------ given_up() ----------'
//
//   FU18  A page stays with the server until somebody wants it. A thread's reference runs from when
//         acquire() is answered to its release(); while there is one, the page is not given up.
//         Those who wait when a grant comes have references at once: it is used before it is taken
//         back.
//   FU19  No conversion: who wants to write what the server has for reading waits until the last
//         reference has gone and the page is given up, and then for a grant like anybody else. So a
//         thread that has a reference must not ask for the page again.
//   FH7  A page that is wanted back is used by nobody but those who have references, which are at
//        most cohort_max who waited when it was granted, those who came before it was wanted, and
//        at most late_max who came afterwards and before take_ready() took it: a statement that
//        locks a row and then changes it has the page for both, and whoever wants it waits no
//        longer than for so many more. Before it serves it gives nothing up, and so keeps using
//        what it has: a log is redone.
//   FH1  A grant counts if it answers the ask that is under way, and is newer than what the server
//        has said it did not have; any other is answered "not held", but for one that is there
//        already. So no grant is used that the memory node thinks was given up (FU13).
//   FH2  A version that was put is reported until that is answered, before another one of the page
//        is put: else nobody would know whose its slot is.
//   FH11  A memory node in the place of one that is gone is told what there is (renew()): all pages
//         that are held, with their numbers, but for those that the server has let go of already.
//         What was put into slots of the old pool, and is in storage by its log, is in none from
//         then on, and is not reported; whoever puts under the old epoch hears that it is over. Who
//         had asked asks again, by another number: no grant of the old memory node answers that.
//   FH3  Nobody gets a page once end() was called; nothing is taken to be sent from then on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "proto/page_locks.h"
#include "proto/resume_messages.h"

namespace strata::clients {

struct PageHoldsOptions {
  uint32_t cohort_max = 16;
  uint32_t late_max = 16;
  uint64_t ask_again_us = 500'000;  // when neither grant nor anything else has come
};

struct PageHoldsCounters {
  std::atomic<uint64_t> held{0};  // at once: nobody was asked
  std::atomic<uint64_t> late{0};  // of these, when it was wanted back (FH7)
  std::atomic<uint64_t> asks{0}, grants{0}, not_held{0}, asked_back{0}, given_up{0}, upgrades{0};
};

class PageHolds {
 public:
  class Request {
   public:
    Request(PageId page, proto::PageMode mode) noexcept : page(page), mode(mode) {}
    virtual ~Request() = default;
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;
    // The status is there; the request may be gone when this returns. Called without any mutex.
    virtual void answered() noexcept = 0;

    const PageId page;
    const proto::PageMode mode;
    Status status;

   private:
    friend class PageHolds;
    Request* next_ = nullptr;
  };
  // Where the newest version of a page is that the server has.
  struct Version {
    bool known = false;
    Llsn llsn;
    uint32_t slot = proto::kNoPageSlot;
    // If it is not known; and, where storage makes pages from the log, where the logs have it.
    proto::PageFloor floor;
  };
  struct Ready {
    PageId page;
    uint64_t number = 0;
    proto::PageMode mode = proto::PageMode::kShared;
  };

  // `work`: something is to be taken; called without any mutex of this, perhaps with others.
  PageHolds(const PageHoldsOptions& options, std::function<void()> work, Epoch epoch = Epoch{});

  // --- threads of the server ---
  // True: it is answered already (status). A reference, if that is OK.
  bool acquire(Request* request, uint64_t now_us);
  // A reference, if that takes nobody's doing.
  bool try_acquire(PageId page, proto::PageMode mode);
  // True: it was not answered, and will not be.
  bool cancel(Request* request);
  void release(PageId page);
  // Nothing of the page is in memory any more: it may be given up. Ignored before serve(true).
  void forget(PageId page);
  [[nodiscard]] bool seems_held(PageId page, proto::PageMode mode) const;
  // Of a page that the caller has a reference to, or is giving up.
  [[nodiscard]] Version version(PageId page) const;

  // --- from the memory node ---
  void granted(const proto::PageGrant& grant) { granted(grant, epoch()); }
  // What was heard under that epoch: once it is over that is nobody's, and nothing is said of it
  // (FH11).
  void granted(const proto::PageGrant& grant, Epoch heard_under);
  void asked_back(const proto::PageGiveUp& give_up);

  // --- to the memory node ---
  std::vector<proto::PageAsk> take_asks();
  // "Not held"; needs no answer.
  std::vector<proto::PageReport> take_not_held();
  // Pages to give up: they are nobody's from here on. Nothing before serve(true).
  std::vector<Ready> take_ready(uint32_t pages_max);
  [[nodiscard]] bool is_giving_up(PageId page) const;
  // FH2. The version is put; its number is filled in. False: it was put into a slot of another
  // epoch's (FH11), and nothing is noted.
  [[nodiscard]] bool put(proto::PageReport version, Epoch epoch);
  // The one that was put last, if no report of it has been answered.
  [[nodiscard]] std::optional<proto::PageReport> unreported(PageId page) const;
  [[nodiscard]] std::vector<proto::PageReport> all_unreported() const;
  void reported(const proto::PageReport& report);
  // With that version, if there is one.
  [[nodiscard]] proto::PageReport last_report(PageId page) const;
  void given_up(PageId page, uint64_t now_us);  // the last report was answered
  void give_up_failed(PageId page);             // it still is the server's; it is ready again
  // FH11. The server goes on under that epoch. Nobody is giving pages up at the moment, but for
  // those that nothing is left of here: they are let go of. Returns what the server has.
  std::vector<proto::HeldPage> renew(Epoch epoch, uint64_t now_us);
  [[nodiscard]] Epoch epoch() const noexcept { return Epoch{epoch_.load()}; }
  // OK, or what end() said.
  [[nodiscard]] Status ended() const;
  // The largest of a grant that was ever heard of.
  [[nodiscard]] uint64_t last_number() const noexcept { return last_number_.load(); }
  void serve(bool on);
  // Asks that nobody has answered for long.
  void repeat(uint64_t now_us);
  // FH3. Who waits gets the status.
  void end(const Status& status);
  // Pages that are asked for are asked for to redo a dead server's log (FP3).
  void redo(bool on) { redo_.store(on); }

  [[nodiscard]] const PageHoldsCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] uint64_t holds() const;
  // For people.
  [[nodiscard]] std::string describe(PageId page) const;
  // Of the grant that the server has or is giving up; 0: it has none.
  [[nodiscard]] uint64_t number(PageId page) const;

 private:
  enum class State : uint8_t { kAsked, kHeld, kGivingUp };
  struct Hold {
    State state = State::kAsked;
    proto::PageMode mode = proto::PageMode::kShared;  // asked for, or held
    bool wanted_back = false;
    bool ready = false;  // listed
    uint32_t refs = 0;
    uint32_t late = 0;  // references that were given since it was wanted back
    uint64_t ask = 0, asked_us = 0;
    uint64_t number = 0;   // of the grant
    uint64_t refused = 0;  // what was said not to be held; numbers above count
    Request* waiting = nullptr;
    Request** waiting_end = &waiting;
    Version version;
    std::optional<proto::PageReport> unreported;
  };
  struct Shard {
    // A page's hold stays where it is as long as it is there.
    mutable Mutex mutex{LatchRank::kPeers};  // taken under the pool's
    std::unordered_map<PageId, Hold> holds STRATA_GUARDED_BY(mutex);
  };
  static constexpr size_t kShards = 64;
  Shard& shard_of(PageId page) const noexcept {
    return shards_[mix64(page.packed()) / 7 % kShards];
  }
  [[nodiscard]] bool is_free(const Hold& hold) const noexcept {  // FH7
    return !hold.wanted_back || !serving_.load();
  }
  // FH7. Whether somebody who comes now may use what is held.
  [[nodiscard]] bool may_come(const Hold& hold) const noexcept {
    return is_free(hold) || hold.late < options_.late_max;
  }
  void come(Hold* hold) noexcept;
  void ask(const Shard& shard, PageId page, Hold* hold, uint64_t now_us)
      STRATA_REQUIRES(shard.mutex);
  static void push(Hold* hold, Request* request) noexcept;
  Request* admit(const Shard& shard, Hold* hold) STRATA_REQUIRES(shard.mutex);
  bool list_if_ready(const Shard& shard, PageId page, Hold* hold) STRATA_REQUIRES(shard.mutex);
  void say_not_held(const Shard& shard, PageId page, uint64_t number, uint64_t ask, Hold* hold)
      STRATA_REQUIRES(shard.mutex);
  static void answer(Request* first) noexcept;
  void note_number(uint64_t number) noexcept;

  const PageHoldsOptions options_;
  const std::function<void()> work_;
  mutable std::array<Shard, kShards> shards_;
  std::atomic<uint64_t> epoch_;
  std::atomic<uint64_t> last_number_{0};
  std::atomic<uint64_t> last_ask_{0};
  std::atomic<bool> redo_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> serving_{false};
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::vector<proto::PageAsk> asks_ STRATA_GUARDED_BY(mutex_);
  std::vector<proto::PageReport> not_held_ STRATA_GUARDED_BY(mutex_);
  std::deque<PageId> ready_ STRATA_GUARDED_BY(mutex_);
  Status end_ STRATA_GUARDED_BY(mutex_);
  PageHoldsCounters counters_;
};

}  // namespace strata::clients
