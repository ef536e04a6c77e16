// For tests: a peer that is a page store in this process, and a log that is another one's copy.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storenode/copy/peer.h"
#include "storenode/replay/testing/test_store.h"

namespace strata::storenode::testing {

class LocalPeer final : public CopyPeer {
 public:
  LocalPeer(TestStore* store, std::string name) : store_(store), name_(std::move(name)) {}
  [[nodiscard]] std::string name() const override { return name_; }
  StatusOr<CopyOffer> offer() override {
    if (!usable()) return error_peer_down("down");
    return store_->store().offer_copy();
  }
  StatusOr<PageListing> list(PageId from, uint32_t pages_max,
                             const std::vector<CopyMark>& marks) override {
    if (!usable()) return error_peer_down("down");
    return store_->store().list_pages(from, pages_max, marks);
  }
  StatusOr<std::vector<StatusOr<PageAnswer>>> get(const std::vector<PageId>& pages, Llsn at_least,
                                                  Llsn at_most) override {
    if (!usable()) return error_peer_down("down");
    std::vector<StatusOr<PageAnswer>> answers;
    for (const PageId page : pages) {
      std::optional<StatusOr<PageAnswer>> answer;
      GetPageRequest request;
      request.page = page;
      request.at_least = at_least;
      request.at_most = at_most;
      request.from_peer = true;
      store_->store().get_page(std::move(request),
                               [&](StatusOr<PageAnswer> got) { answer = std::move(got); });
      EXPECT_TRUE(answer.has_value());  // its deadline has passed
      answers.push_back(*std::move(answer));
      ++pages_given;
    }
    return answers;
  }
  bool down = false;
  uint64_t pages_given = 0;

 private:
  [[nodiscard]] bool usable() const { return !down && store_->is_open(); }
  TestStore* const store_;
  const std::string name_;
};

// Appends what `from` has and `to` lacks.
inline void mirror(MemoryLog* from, MemoryLog* to) {
  const Lsn have = to->end();
  const Lsn end = from->durable_lsn();
  if (have >= end) return;
  std::string bytes(end.value - have.value, '\0');
  ASSERT_TRUE(from->read(have, bytes.data(), bytes.size()).ok());
  to->append(bytes);
}

}  // namespace strata::storenode::testing
