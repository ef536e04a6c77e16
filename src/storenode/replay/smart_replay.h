// Replay page by page: a request replays the sections its page still misses, and workers replay
// pages in parallel, oldest first.
//   SMT1  A page is replayed by one thread at a time; whoever else wants it waits for that (WL3)
//         and then finds it stored, or goes on from there.
//   SMT2  A request applies sections of its own page only, from the nearest version that is stored,
//         or from the nearest section that restarts the chain.
//   SMT3  A worker is done with a version when it is stored, collected, or cannot be made because
//         of damage; then its entry is written (VM7). The page stays listed for those it left.
//   SMT4  With kNeeded, versions that the horizon lets go are not stored, and not even made if a
//         restart of the chain or a stored version lies behind them. A worker stores the newest one
//         at or below the horizon and leaves those above alone for the time being: the horizon lets
//         most of them go, too. A request stores what it asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "storenode/replay/pending_pages.h"
#include "storenode/replay/replay.h"

namespace strata::storenode {

enum class Keep : uint8_t {
  kEvery,   // a page is stored for every section
  kNeeded,  // for those that somebody may still ask for
};

class SmartReplay final : public Replay {
 public:
  // `lag_bytes`: of log that workers leave alone (PP3).
  SmartReplay(const ReplayParts& parts, uint32_t workers, Keep keep, uint64_t lag_bytes)
      : parts_(parts), workers_(workers), keep_(keep), pending_(lag_bytes) {}

  Status add_stream(StreamId stream, LogView* log, StreamMark from) override;
  void scanned(StreamId stream, StreamMark from, StreamMark to,
               const std::vector<PageId>& pages) override;
  Verdict attempt(Ticket* ticket) override;
  std::optional<PageAnswer> page_at_hand(const GetPageRequest& request) override;
  // One page.
  StatusOr<bool> step() override;
  [[nodiscard]] uint32_t workers_max() const override { return workers_; }
  bool wait_for_work() override { return pending_.wait(); }
  void stop_waiting(bool stop) override { pending_.stop(stop); }
  [[nodiscard]] StreamMark replayed_to(StreamId stream) const override;
  [[nodiscard]] std::optional<StreamMark> replayed_to_at_hand(StreamId stream) const override {
    return pending_.oldest_at_hand(stream);
  }
  StatusOr<StreamMarks> prepare_checkpoint() override;
  [[nodiscard]] Status failure() const override { return ok_status(); }
  void retry() override { pending_.retry(); }
  void ripen() override { pending_.ripen(); }
  void ripen_all() override { pending_.ripen_all(); }
  void hold_back(bool hold) override { pending_.hold_back(hold); }
  Status repair(PageId page, Llsn, PageRef copy) override {
    const Llsn llsn{header_of(copy->bytes)->llsn};
    return parts_.map->replace(page, {llsn, std::move(copy)});
  }
  [[nodiscard]] Llsn repair_from(PageId, Llsn damaged) const override { return damaged; }
  [[nodiscard]] size_t pending_pages() const { return pending_.count(); }

 private:
  // What is to be done to a page: versions in order, and where to start from. Its last step is
  // always stored.
  struct Plan {
    std::vector<Version> steps;               // the first restarts the chain or follows `base`
    Llsn base;                                // a stored version; zero: none
    Llsn store_from;                          // versions below are not stored
    uint64_t skipped = 0;                     // versions that are neither made nor needed
    std::vector<PendingPages::Section> left;  // of each stream the first that is left for later
  };
  struct Result {
    PageRef newest;  // made last
    Llsn newest_llsn;
    std::vector<VersionMap::MadeVersion> made;  // and not stored yet
    uint64_t sections = 0;                      // applied
    uint64_t bytes = 0;
    Status damage;  // of the first version that could not be made; kUnavailable: it may come
    Llsn damaged;   // the last one
    std::vector<PendingPages::Section> left;
  };
  class Maker;
  StatusOr<Plan> plan_request(PageId page, Llsn target);
  enum class Above { kLater, kNow };  // what is above the horizon
  StatusOr<Plan> plan_worker(PageId page, Above above);
  Status run(PageId page, const Plan& plan, bool stop_at_damage, Result* result);
  Status store(PageId page, Result* result);
  StatusOr<bool> follow(PageId page, const Plan& plan, Result* result);
  Status replay_page(PageId page, Result* result);
  Verdict replay_for(Ticket* ticket, const Version& version);
  void count(const Result& result);

  const ReplayParts parts_;
  const uint32_t workers_;
  const Keep keep_;
  PendingPages pending_;
};

}  // namespace strata::storenode
