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
  // Of nodes whose pages compute writes (written_messages.h).
  kBeginWrites = 32,
  kWritePages = 33,
  kSyncPages = 34,
  kCreateSpace = 35,
  kDeleteSpace = 36,
  kGrowSpace = 37,
  kListSpaceSizes = 38,
  kCopyPages = 39,
  // From one storage node to another (copy_messages.h).
  kCopyOffer = 48,
  kListPages = 49,
  kPeerPages = 50,  // as kGetPages, of a node that copies or mends
};

}  // namespace strata::proto
