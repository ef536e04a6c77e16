// What all handler objects of one table definition share: statistics of its indexes.
#pragma once

#include "mariadb/connection.h"

namespace strata::glue {

// How many rows share a value of the first n parts of an index.
struct IndexStatistics {
  std::vector<double> rows_per_prefix;
};

class StrataShare : public Handler_share {
 public:
  // Copy of the statistics, one per server key; empty when never sampled.
  std::vector<IndexStatistics> statistics();
  void set_statistics(std::vector<IndexStatistics> fresh, uint64_t rows);
  // Too old: never sampled, or the table has doubled or halved since.
  bool needs_sampling(uint64_t rows);

 private:
  std::mutex mutex_;
  std::vector<IndexStatistics> statistics_;
  uint64_t sampled_rows_ = 0;
  bool sampled_ = false;
};

}  // namespace strata::glue
