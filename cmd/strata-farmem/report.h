// What the processes of a run have done, as JSON and as a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "farmem/pager/shared_setup.h"
#include "farmem/policy/policy_options.h"

namespace strata::farmem {

// One process, at one moment.
struct ProcessReport {
  uint64_t pid = 0;
  bool runs = false;
  std::string lost;        // why it ended itself; empty: it did not
  uint64_t far_bytes = 0;  // allocated now
  uint64_t far_bytes_refused = 0;
  uint64_t outside_bytes_max = 0;  // resident beyond the pages of far memory, at most so far
  uint64_t faults = 0, soft_hits = 0, zero_filled = 0, fetched = 0, prefetched = 0;
  uint64_t evicted_dirty = 0, evicted_clean = 0, evicted_zero = 0, discarded = 0, pinned = 0;
  uint64_t local_pages = 0, local_pages_max = 0;
  uint64_t service_ns = 0;
  std::vector<uint64_t> service_histogram;

  [[nodiscard]] uint64_t bytes_in() const { return (fetched + prefetched) * kPageBytes; }
  [[nodiscard]] uint64_t bytes_out() const { return evicted_dirty * kPageBytes; }
};

ProcessReport report_of(const ProcessCounters& counters);
std::string json_of(const std::vector<ProcessReport>& processes, const SharedSetup& setup,
                    double seconds, int exit_code, bool ended);
std::string table_of(const std::vector<ProcessReport>& processes, double seconds);

}  // namespace strata::farmem
