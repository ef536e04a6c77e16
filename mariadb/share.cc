#include "mariadb/share.h"

namespace strata::glue {

bool StrataShare::newer_statistics(uint64_t* number, std::vector<IndexStatistics>* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (*number == number_) return false;
  *number = number_;
  *out = statistics_;
  return true;
}

void StrataShare::set_statistics(std::vector<IndexStatistics> fresh, uint64_t rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  statistics_ = std::move(fresh);
  sampled_rows_ = rows;
  ++number_;
}

bool StrataShare::needs_sampling(uint64_t rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return number_ == 0 || rows > 2 * sampled_rows_ + 100 || rows < sampled_rows_ / 2;
}

}  // namespace strata::glue
