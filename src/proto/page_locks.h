// What several servers that write the same tables and the memory node say to each other about page
// locks, and about the versions of pages in the memory node's slots. The codecs are in
// fusion_messages.h.
//
//   FW5  Nothing relies on the order in which these arrive, nor on their arriving once: each names
//        what it answers (the number of an ask, of a grant), and may be said again.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace strata::proto {

enum class PageMode : uint8_t { kShared = 1, kExclusive = 2 };

constexpr uint32_t kNoPageSlot = UINT32_MAX;

// In front of whatever a server says.
struct PageCaller {
  NodeId server = {};
  uint64_t life = 0;
  Epoch epoch = {};  // of the memory node, as the server knows it
};

// Server: this server wants the page, and does not have it.
struct PageAsk {
  PageId page = {};
  PageMode mode = PageMode::kShared;
  uint64_t ask = 0;   // the server's own; grows
  bool redo = false;  // to redo the log of the dead server whose place this one adopts
};

struct StreamPosition {
  StreamId stream = {};
  Lsn lsn = {};
  bool operator==(const StreamPosition&) const noexcept = default;
};

// What is known of pages that are not known one by one: no change of any of them lies beyond these
// places in the logs, nor has a larger llsn, but for those of servers that have ended (FP7 of
// fusion/pages). Of a page that is known: where the logs have its newest version.
struct PageFloor {
  Llsn llsn = {};
  std::vector<StreamPosition> scanned_to = {};
};

// Memory node: the server has the page.
struct PageGrant {
  PageId page = {};
  uint64_t ask = 0;
  uint64_t number = 0;  // of this grant; grows
  PageMode mode = PageMode::kShared;
  bool known = false;  // llsn is the page's newest version; else `floor` says what is known
  Llsn llsn = {};
  uint32_t slot = kNoPageSlot;  // where that version is
  PageFloor floor = {};
};

// Memory node: others want the page.
struct PageGiveUp {
  PageId page = {};
  uint64_t number = 0;  // of the grant
};

// Server: what has become of a grant.
struct PageReport {
  PageId page = {};
  uint64_t number = 0;
  bool gives_up = false;  // the server does not have it any more, or never heard of it
  bool changed = false;   // there is a newer version:
  Llsn llsn = {};
  uint32_t slot = kNoPageSlot;  // where it has been put; of the server's own
  // The log's changes that the version before it lacks: which stream they are in, the first of
  // them, and the end of the last group that touched the page; durable (K9).
  StreamId stream = {};
  Lsn first = {};
  Lsn end = {};
};

}  // namespace strata::proto
