#include "storenode/versions/collector.h"

#include "base/assert.h"

namespace strata::storenode {

bool Collector::may_begin() const {
  const Llsn horizon = map_->horizon();
  if (horizon.is_zero()) return false;
  return horizon > horizon_ || (incomplete_ && came() != came_);
}

// Entries that a sweep meets and did not before.
uint64_t Collector::came() const {
  return map_->counters().stored.load() + map_->counters().settled.load();
}

StatusOr<bool> Collector::step(uint32_t pages_max) {
  STRATA_ASSERT(pages_max != 0 && horizon_ <= map_->horizon());  // it only grows
  if (!sweeping_) {
    if (!may_begin()) return false;
    sweeping_ = true;
    next_ = PageId{};
    horizon_ = map_->horizon();
    came_ = came();
    incomplete_ = map_->unwritten() != 0;  // these are not met
  }
  STRATA_ASSIGN_OR_RETURN(
      const std::optional<PageId> next,
      db_->scan(next_, pages_max, [this](PageId page, const std::vector<Version>& versions) {
        ++pages_seen_;
        const size_t gone = collectable(versions, horizon_);
        STRATA_ASSERT(gone == 0 || gone < versions.size());  // one stays
        if (newest_at(versions, horizon_) > static_cast<ptrdiff_t>(gone)) incomplete_ = true;
        return gone == 0 ? ok_status() : map_->trim(page);
      }));
  sweeping_ = next.has_value();
  if (sweeping_) next_ = *next;
  return sweeping_ || may_begin();
}

}  // namespace strata::storenode
