// Pages with versions that are not stored yet, oldest first, and from where on the logs are still
// needed to make them. Thread-safe.
//   PP1  A page is listed from before the position of its oldest such version is published until a
//        worker has dealt with it.
//   PP3  A page is given to a worker once `lag_bytes` of log lie behind its oldest such version, or
//        at the second ripen() after its newest one came, or at the one `kRipensMax` after it was
//        listed: pages that change all the time are made and stored once for many of their
//        versions, those that have come to rest soon.
//   PP2  oldest(stream) is at or below the section of every version of a listed page.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "storenode/versions/version_db.h"

namespace strata::storenode {

class PendingPages {
 public:
  explicit PendingPages(uint64_t lag_bytes) : lag_bytes_(lag_bytes) {}
  void add_stream(StreamId stream, StreamMark from);
  // A stretch of a stream brought versions of these pages.
  void add(StreamId stream, StreamMark from, StreamMark to, const std::vector<PageId>& pages);
  // The page that has waited longest, among those `may` allows; it stays listed. Nothing: none.
  // `may` is called under the latch.
  template <typename May>
  std::optional<PageId> take(const May& may);
  // A worker has dealt with all versions that were in the map when it began, but for those of the
  // sections `left`.
  struct Section {
    StreamId stream;
    Lsn lsn;  // of its group
  };
  void done(PageId page, const std::vector<Section>& left = {});
  // It could not: the page waits until retry(), or until more is scanned if `for_scan`.
  void put_off(PageId page, bool for_scan);
  void retry();
  void ripen();               // PP3
  void ripen_all();           // whatever is listed now is given to a worker
  void hold_back(bool hold);  // nothing is given to a worker while it is true

  [[nodiscard]] StreamMark oldest(StreamId stream) const;
  // Without waiting for the latch.
  [[nodiscard]] std::optional<StreamMark> oldest_at_hand(StreamId stream) const;
  [[nodiscard]] size_t count() const;
  // Blocks until take() may find something (true), or stop.
  bool wait();
  void stop(bool stop);
  void wake();  // what take() was not allowed may be so now

 private:
  using Batch = uint64_t;
  enum class State : uint8_t { kQueued, kTaken, kPutOff, kWaitsForScan };
  struct Page {
    Batch first;      // oldest batch that may hold a version which is not stored
    Batch last;       // newest one that brought a version
    Batch again = 0;  // first batch that came while it was taken; 0: none
    State state = State::kQueued;
  };
  struct Stretch {
    Batch batch;
    StreamId stream;
    StreamMark from;
    StreamMark to;
  };
  using Place = std::pair<Batch, PageId>;
  static constexpr size_t kRipensMax = 6;
  void queue(PageId id, Page* page) STRATA_REQUIRES(mutex_);
  void announce_ripe() STRATA_REQUIRES(mutex_);
  [[nodiscard]] StreamMark oldest_locked(StreamId stream) const STRATA_REQUIRES(mutex_);
  [[nodiscard]] Batch oldest_batch(const std::vector<Section>& sections) const
      STRATA_REQUIRES(mutex_);
  void drop_first_stretch() STRATA_REQUIRES(mutex_);
  void raise_ripe(Batch batch) STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool has_ripe() const STRATA_REQUIRES(mutex_) {
    return !held_back_ && !ripe_pages_.empty();
  }

  const uint64_t lag_bytes_;

  mutable Mutex mutex_{LatchRank::kReplayQueue};
  CondVar changed_;
  std::unordered_map<PageId, Page> pages_ STRATA_GUARDED_BY(mutex_);
  std::set<Place> listed_ STRATA_GUARDED_BY(mutex_);  // all
  std::set<Place> queued_
      STRATA_GUARDED_BY(mutex_);  // of kQueued, those that are not given to a worker yet
  std::set<Place> ripe_pages_ STRATA_GUARDED_BY(mutex_);  // ... and those that are
  std::deque<Stretch> stretches_
      STRATA_GUARDED_BY(mutex_);  // oldest first; those before the oldest listed batch are gone
  std::map<StreamId, StreamMark> ends_ STRATA_GUARDED_BY(mutex_);
  std::map<StreamId, size_t> stretches_of_
      STRATA_GUARDED_BY(mutex_);  // how many; of those that have none nobody looks through all
  Batch last_batch_ STRATA_GUARDED_BY(mutex_) = 0;
  Batch ripe_ STRATA_GUARDED_BY(mutex_) = 0;  // pages listed up to it may be taken (PP3)
  std::deque<Batch> ripened_
      STRATA_GUARDED_BY(mutex_);  // the last batch at each of the last kRipensMax times
  bool held_back_ STRATA_GUARDED_BY(mutex_) = false;
  size_t waiting_for_scan_ STRATA_GUARDED_BY(mutex_) = 0;
  bool stalled_ STRATA_GUARDED_BY(mutex_) =
      false;  // what is queued is in other hands: wake() tells when that changes
  bool woken_ STRATA_GUARDED_BY(mutex_) = false;
  bool stop_ STRATA_GUARDED_BY(mutex_) = false;
};

template <typename May>
std::optional<PageId> PendingPages::take(const May& may) {
  const MutexLock lock(mutex_);
  if (held_back_) return std::nullopt;
  for (auto it = ripe_pages_.begin(); it != ripe_pages_.end(); ++it) {
    const PageId id = it->second;
    if (!may(id)) continue;
    ripe_pages_.erase(it);
    pages_.at(id).state = State::kTaken;
    return id;
  }
  stalled_ = has_ripe();
  return std::nullopt;
}

}  // namespace strata::storenode
