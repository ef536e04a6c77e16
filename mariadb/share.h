// What all handler objects of one table definition share: statistics of its indexes.
#pragma once

#include "base/latch.h"
#include "mariadb/connection.h"

namespace strata::glue {

// How many rows share a value of the first n parts of an index.
struct IndexStatistics {
  std::vector<double> rows_per_prefix;
};

// Of a sequence that several servers give numbers out of (SEQ4).
struct SequenceBlock {
  bool is_ours = false;
  longlong last = 0;  // kept for when the next one is taken
};

class StrataShare : public Handler_share {
 public:
  SequenceBlock block;  // under the sequence's own lock
  // Copies the statistics, one per server key, when they are not those of `*number`.
  bool newer_statistics(uint64_t* number, std::vector<IndexStatistics>* out);
  void set_statistics(std::vector<IndexStatistics> fresh, uint64_t rows);
  // Too old: never sampled, or the table has doubled or halved since.
  [[nodiscard]] bool needs_sampling(uint64_t rows) const noexcept;

 private:
  Mutex mutex_{LatchRank::kServer};
  std::vector<IndexStatistics> statistics_ STRATA_GUARDED_BY(mutex_);
  // Written under the mutex; every query looks at them without.
  std::atomic<uint64_t> sampled_rows_{0};
  std::atomic<uint64_t> number_{0};  // of the statistics; 0: never sampled
};

}  // namespace strata::glue
