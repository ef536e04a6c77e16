// What people are told of transactions that wait for rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "lock/wait_listener.h"

namespace strata {

// One that waits.
struct RowWait {
  TrxId waiter;
  TrxId holder;  // zero: not known
  IndexId index;
  std::string key;
  uint64_t waited_us = 0;
  WaitOwner waiter_owner;
  WaitOwner holder_owner;
};
struct DeadlockReport {
  std::vector<RowWait> waits;  // each for the next one, the last for the first
  TrxId victim;
};

}  // namespace strata
