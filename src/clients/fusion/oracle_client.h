// The timestamps of a server that is one of several: a TimestampSource over the memory node's
// clock. Thread-safe; blocks for a round trip, and while there is no lease or the ceiling is too
// low.
//
//   FC5  A call ends by wait_us_max and two fetches more; or when its statement is interrupted
//        (BA9), but no fetch is broken off for that, since others wait for it, too. Nothing is used
//        then of what may have been fetched.
//   FC48  current_at_once() waits for no lease: who renews the lease asks (FC30).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/latch.h"
#include "clients/fusion/timestamp_fetcher.h"
#include "txn/timestamp_source.h"

namespace strata::clients {

struct OracleClientOptions {
  uint64_t fetch_us_max = 500'000;
  uint64_t wait_us_max = 30'000'000;  // a memory node that is gone has a successor by then
  std::function<uint64_t()> now_us = monotonic_us;
};

class OracleClient final : public TimestampSource {
 public:
  explicit OracleClient(const LeaseCheck* lease, const OracleClientOptions& options = {});
  // Of a new memory node, or a new life of it; those who wait try at once.
  void use(std::shared_ptr<transport::RemoteRegion> times, Epoch epoch);
  // There is none any more for this server: who waits, and who asks, is told why (not OK).
  void end(const Status& why);

  [[nodiscard]] bool is_remote() const noexcept override { return true; }
  StatusOr<Cts> next() override { return get(true); }
  StatusOr<Cts> current() override { return get(false); }
  StatusOr<Cts> current_at_once() override { return ask(false); }
  // The clock is never behind what was committed: kDataLoss if it is, since then it is the clock of
  // another database, or its record was lost.
  Status raise_to(Cts at_least) override;
  [[nodiscard]] const FetchCounters& counters() const noexcept { return fetcher_.counters(); }

 private:
  StatusOr<Cts> get(bool fresh);
  StatusOr<Cts> ask(bool fresh);      // once
  Status wait_a_little(uint64_t us);  // not OK: interrupted, ended

  const OracleClientOptions options_;
  TimestampFetcher fetcher_;
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  Status ended_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::clients
