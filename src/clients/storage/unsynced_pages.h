// What storage nodes have acknowledged since their last sync, so that it can be said to them again
// when all of them were restarted and may have forgotten it (WN4 of write_sessions.h). Not
// thread-safe.
//   UP1  calls() brings whoever had everything that was synced to where all acknowledged calls had
//        brought it: each page as it was written last, of spaces that are still there; each space
//        as it was made, grown or deleted last. It may be said any number of times, also where a
//        call that was not acknowledged was carried out: a space that has pages is made first.
//   UP3  What somebody else has written for us only he can say again: calls() ends with one such
//        call, kElsewhere, as long as there is any. What was written here before of the same pages
//        is not said any more.
//   UP2  What a sync covers is forgotten only by forget(), up to the mark() of before that sync.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "page/page.h"
#include "proto/written_messages.h"

namespace strata::clients {

class UnsyncedPages {
 public:
  static constexpr uint16_t kElsewhere = 0;  // no method: UP3
  struct Call {
    uint16_t method;
    std::vector<PageId> ids;  // kWritePages: these
    std::string pages;
    proto::SpaceRequest space;  // others
    [[nodiscard]] std::string encode(const proto::Writer& writer) const;
  };

  // A call that was acknowledged. Methods that change nothing are ignored.
  void note(uint16_t method, Bytes request);
  // A call that somebody else made with these pages, and that was acknowledged.
  void note_elsewhere(const std::vector<PageId>& pages);
  [[nodiscard]] uint64_t mark() const noexcept { return last_; }
  void forget(uint64_t mark);
  // In an order that they can be said in: all of one after the other.
  [[nodiscard]] std::vector<Call> calls() const;
  [[nodiscard]] size_t bytes() const noexcept { return pages_.size() * size_t{kPageBytes}; }

 private:
  struct Page {
    uint64_t number;  // of the call
    std::string bytes;
  };
  // Numbers of the last calls; 0: none. A space is deleted first, then made, then grown.
  struct Space {
    uint64_t deleted = 0, made = 0, grown = 0;
    uint32_t pages = 0;  // grown to
  };
  std::map<PageId, Page> pages_;
  std::map<SpaceId, Space> spaces_;
  uint64_t last_ = 0;
  uint64_t elsewhere_ = 0;  // number of the last such call; 0: none
};

}  // namespace strata::clients
