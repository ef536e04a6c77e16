// The kernel's surroundings: all in this process (monolithic), or log and pages on storage nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/kernel.h"

namespace strata::glue {

// Opens the kernel as the settings say, after joining the cluster if there is one. Blocks, up to
// strata_start_timeout for a cluster. Errors say what, where and what to do.
StatusOr<std::unique_ptr<engine::Kernel>> open_kernel(const engine::KernelOptions& options);
// Before the kernel goes: nothing is recovered any more of what others have left.
void stop_adopting();
// After the kernel is gone: others may have its place at once. `in_order`: it was shut down, and
// that was OK.
void leave_cluster(bool in_order);

// Whether what is known here of tables may be told (K13): asked after it was looked up. The error
// says why not. Cheap when it may.
Status may_answer();
// What keeps this server from answering or writing, for people. OK: nothing in the cluster does.
Status cluster_trouble();

// The place of this server among several that write the same tables; zero: it writes alone.
NodeId place_among_several();

// What tells this server's folder from others of the cluster; 0: there is no cluster.
uint64_t cluster_identity();

// Numbers about the cluster, for SHOW STATUS; none when there is no cluster.
std::vector<engine::Kernel::Counter> cluster_counters();

}  // namespace strata::glue
