// A request for a page, and its answer.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "storenode/versions/page_cache.h"

namespace strata::storenode {

constexpr Llsn kNewestState{UINT64_MAX};

// The page as it was at some llsn in [at_least, at_most]: the newest version at or below it.
//   GP1  The log is known here up to at_least, and up to the positions in `scanned_to`, before it
//        is answered (S3). With several streams the positions say it, at_least alone does not.
//   GP2  Every mode but `single` answers as of at_least, or as of the oldest state that is kept
//        when at_least is older.
//   GP3  kNewestState as at_least: the newest state that is known once the positions are, whatever
//        its llsn. So who cannot tell which llsn a page has misses no change below them, whichever
//        stream it is in. Mode `smart` only.
struct GetPageRequest {
  struct Position {
    StreamId stream;
    Lsn lsn;
  };
  PageId page;
  Llsn at_least;
  Llsn at_most{UINT64_MAX};
  std::vector<Position> scanned_to;
  uint64_t deadline_us = 0;  // by the page store's clock; one that has passed: does not wait
  bool from_peer = false;    // of a node that mends or copies: damage here is not mended for it
};

struct PageAnswer {
  PageRef page;  // sealed
  Llsn llsn;
};

// kNotFound: the page was never written at or below that llsn. kUnavailable: the log is not known,
// or not replayed, so far before the deadline. kOutOfRange: only newer states are kept. kDataLoss:
// page, log or stored version are damaged; names page and llsn, or stream and lsn.
// kInvalidArgument.
using GetPageDone = std::function<void(StatusOr<PageAnswer>)>;

}  // namespace strata::storenode
