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
  uint64_t outside_anonymous_bytes_max = 0;  // of it, what is no file's: code is, mostly
  uint64_t faults = 0, soft_hits = 0, zero_filled = 0, fetched = 0, prefetched = 0;
  uint64_t evicted_dirty = 0, evicted_clean = 0, evicted_zero = 0, discarded = 0, pinned = 0;
  uint64_t local_pages = 0, local_pages_max = 0;
  uint64_t cached_pages_max = 0;  // mode fuse: of them, as the kernel counts what it has
  uint64_t service_ns = 0;
  std::vector<uint64_t> service_histogram;

  [[nodiscard]] uint64_t bytes_in() const { return (fetched + prefetched) * kPageBytes; }
  [[nodiscard]] uint64_t bytes_out() const { return evicted_dirty * kPageBytes; }
};

// The run as a whole.
struct RunReport {
  std::string mode;  // as --mode takes it
  double seconds = 0;
  bool ended = false;
  int exit_code = 0;
  std::string memory_node;
  std::string policy;
  uint32_t prefetch = 0;
  uint64_t local_pages_cap = 0;
  uint64_t link_round_trip_ns = 0;
  uint64_t link_bytes_per_second = 0;
  std::vector<ProcessReport> processes;
  // Of --far-files.
  bool has_files = false;
  uint64_t file_pages_fetched = 0, file_pages_from_disk = 0, file_pages_stored = 0;
  uint64_t file_bytes_written = 0;
};

ProcessReport report_of(const ProcessCounters& counters);
std::string json_of(const RunReport& run);
// Whole or not at all, for whoever reads it meanwhile; says so when it cannot be.
void write_stats(const std::string& file, const RunReport& run);
std::string table_of(const std::vector<ProcessReport>& processes, double seconds);

}  // namespace strata::farmem
