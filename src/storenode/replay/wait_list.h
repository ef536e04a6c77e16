// How far the logs are scanned and replayed, which pages somebody is working on, and who waits for
// that. Thread-safe.
//
//   WL1  No wake-up is lost: park() looks at the condition under the latch under which it is
//        made true.
//   WL2  A request is in one place at a time: in the hands of the thread that serves it, parked,
//        or ready. So it is answered once.
//   WL3  A page is in the hands of one worker at a time (try_begin, end).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "storenode/replay/request.h"
#include "storenode/versions/version_db.h"

namespace strata::storenode {

// A request under way.
struct Ticket {
  GetPageRequest request;
  GetPageDone done;
  bool waited = false;
  bool shared = false;          // waited for a page in somebody else's hands
  bool asked_peers = false;     // its page is damaged here
  Lsn replayed_at_arrival;      // sequential modes
  uint64_t waited_bytes = 0;    // of log
  std::function<void()> after;  // what is left to do once it is answered
};
using TicketPtr = std::unique_ptr<Ticket>;

struct WaitCondition {
  enum class Kind : uint8_t {
    kScanned,      // the log is scanned as far as the request says
    kMoreScanned,  // ... further than it was when `seen` was taken
    kReplayed,     // the log is replayed up to `llsn`
    kPage,         // nobody works on the page
  };
  Kind kind = Kind::kScanned;
  Llsn llsn;
  bool positions = false;  // kReplayed: the request's positions are replayed, too
};

class WaitList {
 public:
  // What had happened when somebody began to look.
  struct Seen {
    uint64_t scans = 0;
    uint64_t wake_ups = 0;
  };
  // `streams_come`: there may be streams that nobody has told of yet.
  explicit WaitList(bool streams_come = false) : streams_come_(streams_come) {}
  WaitList(const WaitList&) = delete;
  WaitList& operator=(const WaitList&) = delete;

  // --- positions; they only grow ---
  void publish_scanned(StreamId stream, StreamMark end);
  void publish_replayed(StreamId stream, StreamMark end);
  [[nodiscard]] StreamMark scanned(StreamId stream) const;
  [[nodiscard]] StreamMark replayed(StreamId stream) const;
  // Of all streams.
  [[nodiscard]] Llsn newest_scanned() const;
  // The replayed position of the one stream of the sequential modes; none yet: zero.
  [[nodiscard]] StreamMark replayed() const;
  [[nodiscard]] bool is_scanned(const GetPageRequest& request) const;
  [[nodiscard]] bool is_replayed(const GetPageRequest& request, Llsn llsn, bool positions) const;
  // The same without waiting for the latch: false, or nothing, also if somebody has it.
  [[nodiscard]] bool is_scanned_at_hand(const GetPageRequest& request) const;
  [[nodiscard]] bool is_replayed_at_hand(const GetPageRequest& request, Llsn llsn,
                                         bool positions) const;
  [[nodiscard]] std::optional<StreamMark> replayed_at_hand(StreamId stream) const;
  // Whether some stream, scanned further, or not known yet, may still bring a version with that
  // llsn.
  [[nodiscard]] bool may_come(Llsn llsn) const;
  // Everybody who waits, or is about to, looks again: something failed.
  void wake_all();
  [[nodiscard]] Seen seen() const;

  // --- pages in work ---
  [[nodiscard]] bool try_begin(PageId page);
  void end(PageId page);

  // --- requests ---
  enum class Park { kParked, kHolds, kTimeIsUp };
  // Takes the ticket, unless the condition holds already or its time is up.
  Park park(TicketPtr* ticket, const WaitCondition& condition, Seen seen, uint64_t now_us);
  // Somebody shall go on with it.
  void make_ready(TicketPtr ticket);
  TicketPtr take_ready();  // null: none
  TicketPtr wait_ready();  // blocks; null: close() was called
  std::vector<TicketPtr> take_expired(uint64_t now_us);
  std::vector<TicketPtr> take_all();
  // The earliest deadline; UINT64_MAX: nobody waits.
  [[nodiscard]] uint64_t next_deadline_us() const;
  void close();
  void reopen();
  // Called, with no latch held, when a parked request has the earliest deadline of all.
  void set_deadline_hook(std::function<void()> hook);

 private:
  struct Parked {
    TicketPtr ticket;
    WaitCondition condition;
    Seen seen;
  };
  [[nodiscard]] bool holds(const Ticket& ticket, const WaitCondition& condition, Seen seen) const
      STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool scanned_as_asked(const GetPageRequest& request) const STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool replayed_as_asked(const GetPageRequest& request, Llsn llsn,
                                       bool positions) const STRATA_REQUIRES(mutex_);
  void wake_those_that_may() STRATA_REQUIRES(mutex_);
  void wake(Parked* parked) STRATA_REQUIRES(mutex_);
  [[nodiscard]] uint64_t earliest() const STRATA_REQUIRES(mutex_);

  const bool streams_come_;
  mutable Mutex mutex_{LatchRank::kReplay};
  CondVar ready_changed_;
  std::map<StreamId, StreamMark> scanned_ STRATA_GUARDED_BY(mutex_);
  std::map<StreamId, StreamMark> replayed_ STRATA_GUARDED_BY(mutex_);
  Seen seen_ STRATA_GUARDED_BY(mutex_);
  std::set<PageId> busy_ STRATA_GUARDED_BY(mutex_);
  std::list<Parked> parked_ STRATA_GUARDED_BY(mutex_);
  std::deque<TicketPtr> ready_ STRATA_GUARDED_BY(mutex_);
  bool closed_ STRATA_GUARDED_BY(mutex_) = false;
  std::function<void()> deadline_hook_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::storenode
