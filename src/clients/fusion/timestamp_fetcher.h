// Fetches timestamps from the memory node's clock for many who want one, with one fetch under way.
// Thread-safe. Nobody blocks in it: who asks is called back.
//
//   FU6  A fetch serves every request that came before it *began*, and none that came later: so a
//        snapshot is no older than the moment it was asked for. Any number of readers cost one
//        fetch per round trip; those who commit meanwhile get theirs by the same one.
//   FU5  What is fetched counts only if the lease of the epoch that it was fetched under is valid
//        afterwards, and only up to the ceiling read after it. A commit above that gets busy and
//        asks again; a snapshot above is taken at the ceiling: no acknowledged commit is younger.
//   FC3  Numbers that were fetched for nobody (a lost reply, the ceiling, the lease) are never
//        used.
//   FC4  A request is told to lead at most once, before it is answered; whoever is told calls
//        lead() soon: the others wait for that.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "clients/fusion/fusion_lease.h"
#include "transport/regions/remote_region.h"

namespace strata::clients {

struct FetchCounters {
  std::atomic<uint64_t> fetches{
      0};  // round trips; how many a read costs: fetches / (views + commits)
  std::atomic<uint64_t> views{0}, commits{0};  // requests served
  std::atomic<uint64_t> above_ceiling{0}, without_lease{0}, failed{0};
};

class TimestampFetcher {
 public:
  class Request {
   public:
    explicit Request(bool fresh) noexcept : fresh(fresh) {}
    virtual ~Request() = default;
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;
    // Value and status are there; the request may be gone when this returns.
    virtual void answered() noexcept = 0;
    virtual void lead() noexcept = 0;  // FC4

    const bool fresh;  // a commit's: nobody else gets it. Otherwise a snapshot
    Cts value;
    Status status;

   private:
    friend class TimestampFetcher;
    Request* next_ = nullptr;
  };

  // `now_us`: the clock of deadlines, base/clock.h's or the region's executor's.
  TimestampFetcher(const LeaseCheck* lease, std::function<uint64_t()> now_us, uint64_t fetch_us_max)
      : lease_(lease), now_us_(std::move(now_us)), fetch_us_max_(fetch_us_max) {}

  // From the next fetch on. Null: there is none at the moment.
  void use(std::shared_ptr<transport::RemoteRegion> times, Epoch epoch);
  // Errors a request may end with: lease_lost, peer_down (no region), busy (FU5), kDataLoss, and
  // the region's.
  void ask(Request* request);
  void lead();
  [[nodiscard]] const FetchCounters& counters() const noexcept { return counters_; }

 private:
  // Of the fetch under way; the leader's until it has ended.
  struct Fetch {
    Request* first = nullptr;
    uint64_t fresh = 0;
    Epoch epoch;
    std::shared_ptr<transport::RemoteRegion> times;
    transport::RegionOperation operations[2];
    alignas(8) char clock[8] = {};
    alignas(8) char ceiling[8] = {};
  };
  void begin(Fetch* fetch);
  void ended(const Status& status);
  Status judge(Fetch* fetch, const Status& status);

  const LeaseCheck* const lease_;
  const std::function<uint64_t()> now_us_;
  const uint64_t fetch_us_max_;
  Mutex mutex_{LatchRank::kLeaf};
  std::shared_ptr<transport::RemoteRegion> times_ STRATA_GUARDED_BY(mutex_);
  Epoch epoch_ STRATA_GUARDED_BY(mutex_);
  Request* waiting_ STRATA_GUARDED_BY(mutex_) = nullptr;  // in the order of their coming
  Request** waiting_end_ STRATA_GUARDED_BY(mutex_) = &waiting_;
  bool busy_ STRATA_GUARDED_BY(mutex_) = false;  // somebody leads, or was told to
  Fetch fetch_;                                  // the leader's
  FetchCounters counters_;
};

}  // namespace strata::clients
