#include "mariadb/share.h"

namespace strata::glue {

std::vector<IndexStatistics> StrataShare::statistics() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

void StrataShare::set_statistics(std::vector<IndexStatistics> fresh, uint64_t rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  statistics_ = std::move(fresh);
  sampled_rows_ = rows;
  sampled_ = true;
}

bool StrataShare::needs_sampling(uint64_t rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !sampled_ || rows > 2 * sampled_rows_ + 100 || rows < sampled_rows_ / 2;
}

}  // namespace strata::glue
