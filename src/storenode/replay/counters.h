// What replay has done, for status and for tests that tell the modes apart.
#pragma once

#include <atomic>
#include <cstdint>

namespace strata::storenode {

struct ReplayCounters {
  using Counter = std::atomic<uint64_t>;
  // Requests.
  Counter get_pages{0};         // all
  Counter at_hand{0};           // of them, those answered by the thread that took them in
  Counter waited{0};            // of them, those that could not be answered at once
  Counter waited_log_bytes{0};  // log that had to be replayed first (paper: waited LSNs)
  Counter shared{0};            // waited for a page that somebody else was replaying
  Counter not_found{0};
  Counter too_old{0};  // asked for what is collected, or not kept at all
  Counter timed_out{0};
  Counter failed{0};
  // Quick scan.
  Counter groups_scanned{0};
  Counter sections_scanned{0};
  Counter bytes_scanned{0};
  Counter sections_known{0};  // scanned again after a restart
  // Replay.
  Counter groups_replayed{0};
  Counter sections_applied{0};
  Counter section_bytes{0};     // of sections applied
  Counter sections_skipped{0};  // need not be applied: stored already, or collectable
  Counter pages_made{0};        // handed to the store
  Counter pages_broken{0};      // damage met, page by page
  Counter pages_repaired{0};    // with a peer's copy
  Counter on_demand{0};         // pages replayed for a request
  Counter on_demand_sections{0};
  Counter on_demand_bytes{0};
  Counter background{0};  // pages replayed by workers
};

}  // namespace strata::storenode
