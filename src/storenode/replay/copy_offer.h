// What a page store tells a peer that copies its pages. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "storenode/versions/version_db.h"

namespace strata::storenode {

struct CopyMark {
  StreamId stream;
  StreamMark replayed;
};

//   CO1  Every page with a section below these positions is listed by list_pages(), unless its
//        space is reclaimed, which is said then; and get_page() as of their llsn answers with it as
//        it was there or later, and waits for no replay. A store that has gone back behind them, by
//        a crash, lists nothing.
//   CO2  A store that is damaged, or lacks log, offers nothing: whoever takes an offer may remove
//        what it has, and of two such stores each may have what the other one lacks.
struct CopyOffer {
  std::vector<CopyMark> marks;
  Llsn newest;   // scanned
  Llsn horizon;  // llsn below which old states are not kept
  std::vector<DroppedSpace> dropped;
  uint64_t pages = 0;  // about
};

struct PageListing {
  std::vector<PageId> pages;  // in their order
  // Dropped behind the positions named, and reclaimed: their pages are not listed any more.
  std::vector<DroppedSpace> gone;
};

}  // namespace strata::storenode
