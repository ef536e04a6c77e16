#include "clients/fusion/timestamp_fetcher.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/bytes.h"
#include "proto/fusion.h"

namespace strata::clients {

using transport::RegionOperation;

void TimestampFetcher::use(std::shared_ptr<transport::RemoteRegion> times, Epoch epoch) {
  const MutexLock lock(mutex_);
  if (epoch < epoch_) return;
  times_.swap(times);  // the old one may go with the last fetch over it
  epoch_ = epoch;
}

void TimestampFetcher::ask(Request* request) {
  {
    const MutexLock lock(mutex_);
    *waiting_end_ = request;
    waiting_end_ = &request->next_;
    if (busy_) return;
    busy_ = true;
  }
  lead();
}

void TimestampFetcher::lead() {
  {
    const MutexLock lock(mutex_);
    STRATA_ASSERT(busy_ && waiting_ != nullptr);
    fetch_.first = std::exchange(waiting_, nullptr);
    waiting_end_ = &waiting_;
    fetch_.times = times_;
    fetch_.epoch = epoch_;
  }
  begin(&fetch_);
}

void TimestampFetcher::begin(Fetch* fetch) {
  fetch->fresh = 0;
  for (const Request* r = fetch->first; r != nullptr; r = r->next_)
    fetch->fresh += r->fresh ? 1 : 0;
  if (fetch->times == nullptr)
    return ended(error_peer_down("there is no memory node at the moment"));
  counters_.fetches.fetch_add(1, std::memory_order_relaxed);
  // The ceiling is read last: what was acknowledged before is at or below it.
  fetch->operations[0] = fetch->fresh != 0
                             ? RegionOperation::fetch_add(proto::kClockOffset, fetch->fresh)
                             : RegionOperation::get(proto::kClockOffset, fetch->clock);
  fetch->operations[1] = RegionOperation::get(proto::kCeilingOffset, fetch->ceiling);
  fetch->times->start(absl::MakeSpan(fetch->operations), now_us_() + fetch_us_max_,
                      [this](const Status& status) { ended(status); });
}

// Values for all of them, or why there are none.
Status TimestampFetcher::judge(Fetch* fetch, const Status& status) {
  if (!status.ok()) {
    counters_.failed.fetch_add(1, std::memory_order_relaxed);
    return status;
  }
  if (!lease_->valid(fetch->epoch)) {  // FU5
    counters_.without_lease.fetch_add(1, std::memory_order_relaxed);
    return error_lease_lost("this server has no lease from the memory node at the moment");
  }
  const uint64_t ceiling = load_u64(fetch->ceiling);
  uint64_t last = fetch->fresh != 0 ? fetch->operations[0].before : load_u64(fetch->clock);
  if (last == 0 || ceiling == 0 || last + fetch->fresh > proto::kCtsMax)
    return error_corruption("the memory node's clock stands at " + std::to_string(last) +
                            " and its ceiling at " + std::to_string(ceiling));
  const Cts snapshot{std::min(last + fetch->fresh, ceiling)};
  for (Request* r = fetch->first; r != nullptr; r = r->next_) {
    (r->fresh ? counters_.commits : counters_.views).fetch_add(1, std::memory_order_relaxed);
    r->value = r->fresh ? Cts{++last} : snapshot;
    r->status = ok_status();
    if (r->value.value <= ceiling) continue;
    counters_.above_ceiling.fetch_add(1, std::memory_order_relaxed);
    r->status = error_busy("the memory node has not raised the ceiling of timestamps yet");
  }
  return ok_status();
}

void TimestampFetcher::ended(const Status& status) {
  const Status judged = judge(&fetch_, status);
  Request* request = std::exchange(fetch_.first, nullptr);
  fetch_.times.reset();
  Request* leader = nullptr;
  {
    const MutexLock lock(mutex_);
    leader = waiting_;
    if (leader == nullptr) busy_ = false;
  }
  while (request != nullptr) {  // may be gone once it is answered
    Request* const next = request->next_;
    if (!judged.ok()) request->status = judged;
    request->answered();
    request = next;
  }
  // Waits, and so is there still.
  if (leader != nullptr) leader->lead();
}

}  // namespace strata::clients
