#include "mariadb/share.h"

namespace strata::glue {

bool StrataShare::newer_statistics(uint64_t* number, std::vector<IndexStatistics>* out) {
  if (*number == number_.load(std::memory_order_relaxed)) return false;
  const MutexLock lock(mutex_);
  *number = number_;
  *out = statistics_;
  return true;
}

void StrataShare::set_statistics(std::vector<IndexStatistics> fresh, uint64_t rows) {
  const MutexLock lock(mutex_);
  statistics_ = std::move(fresh);
  sampled_rows_ = rows;
  ++number_;
}

bool StrataShare::needs_sampling(uint64_t rows) const noexcept {
  const uint64_t sampled = sampled_rows_.load(std::memory_order_relaxed);
  return number_.load(std::memory_order_relaxed) == 0 || rows > 2 * sampled + 100 ||
         rows < sampled / 2;
}

bool StrataShare::is_due(std::atomic<uint64_t>* last_us, uint64_t now_us,
                         uint64_t every_us) noexcept {
  uint64_t last = last_us->load(std::memory_order_relaxed);
  if (last != 0 && now_us - last < every_us) return false;
  return last_us->compare_exchange_strong(last, now_us);
}

void StrataShare::forget_shared() noexcept {
  looked_us_ = verified_us_ = 0;
  shared_version_ = shared_number_ = 0;
}

}  // namespace strata::glue
