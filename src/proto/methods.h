// The calls that compute, memory and storage nodes make to a storage node. Numbers never change
// their meaning; a new meaning gets a new number.
#pragma once

#include <cstdint>

namespace strata::proto {

enum Method : uint16_t {
  // Log service, per stream (log_messages.h).
  kLogSeal = 1,
  kLogBegin = 2,
  kLogCatchUp = 3,
  kLogAppend = 4,
  kLogOrder = 5,  // to catch up by itself
  kLogRead = 6,
  kLogTruncate = 7,
  // Page service (page_messages.h).
  kGetPages = 16,
  kListSpaces = 17,
  kReaderLease = 18,
};

}  // namespace strata::proto
