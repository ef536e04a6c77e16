// Takes power away after the fact: reads the journal a killed server left and undoes a seeded
// random part of what it had not synced. The server must be dead.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace strata {

struct PowerLossReport {
  uint64_t records = 0;           // in the journal
  uint64_t unsynced_changes = 0;  // changes of files no sync covered
  uint64_t reverted_sectors = 0;
  uint64_t unsynced_names = 0;  // creations, renames, removals no folder sync covered
  uint64_t reverted_names = 0;
  bool tail_cut = false;  // the last record was incomplete
};

// Afterwards the journal is empty: what is on disk now is durable. Blocks.
StatusOr<PowerLossReport> revert_unsynced(const std::string& journal_path, uint64_t seed);

}  // namespace strata
