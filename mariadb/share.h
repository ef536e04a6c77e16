// What all handler objects of one table definition share: statistics of its indexes.
#pragma once

#include "base/latch.h"
#include "mariadb/connection.h"
#include "mariadb/statistics_record.h"

namespace strata::glue {

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

  // TS4, where several servers share statistics. True: the caller is the one who looks.
  [[nodiscard]] bool is_look_due(uint64_t now_us) noexcept {
    return is_due(&looked_us_, now_us, kLookUs);
  }
  // TS5
  [[nodiscard]] bool is_sample_due(uint64_t now_us) noexcept {
    return is_due(&verified_us_, now_us, kVerifyUs);
  }
  // Whether this version was not looked at before, and whether its samples of indexes were not.
  [[nodiscard]] bool is_news(uint64_t version) noexcept {
    return shared_version_.exchange(version) != version;
  }
  [[nodiscard]] bool has_newer_indexes(uint64_t number) noexcept {
    return shared_number_.exchange(number) != number;
  }
  // Another table has this definition: it was truncated.
  void forget_shared() noexcept;

 private:
  static constexpr uint64_t kLookUs = 1'000'000, kVerifyUs = 300'000'000;
  static bool is_due(std::atomic<uint64_t>* last_us, uint64_t now_us, uint64_t every_us) noexcept;
  Mutex mutex_{LatchRank::kServer};
  std::vector<IndexStatistics> statistics_ STRATA_GUARDED_BY(mutex_);
  // Written under the mutex; every query looks at them without.
  std::atomic<uint64_t> sampled_rows_{0};
  std::atomic<uint64_t> number_{0};  // of the statistics; 0: never sampled
  std::atomic<uint64_t> looked_us_{0}, verified_us_{0};
  std::atomic<uint64_t> shared_version_{0}, shared_number_{0};
};

}  // namespace strata::glue
