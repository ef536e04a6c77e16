#include "clients/storage/unsynced_pages.h"

#include <algorithm>

#include "base/assert.h"
#include "proto/methods.h"

namespace strata::clients {

std::string UnsyncedPages::Call::encode(const proto::Writer& writer) const {
  STRATA_ASSERT(method != kElsewhere);
  if (method == proto::kWritePages)
    return proto::encode(proto::WritePagesRequest{writer, ids, pages});
  return proto::encode(proto::SpaceRequest{writer, space.space, space.pages});
}

void UnsyncedPages::note(uint16_t method, Bytes request) {
  if (method == proto::kWritePages) {
    const auto write = proto::decode_write_pages(request);
    STRATA_ASSERT(write.ok());  // it is our own
    ++last_;
    for (size_t i = 0; i < write->ids.size(); ++i) {
      Page& page = pages_[write->ids[i]];
      page.number = last_;
      page.bytes.assign(write->pages.data() + i * size_t{kPageBytes}, kPageBytes);
    }
    return;
  }
  const bool about_space =
      method == proto::kCreateSpace || method == proto::kDeleteSpace || method == proto::kGrowSpace;
  if (!about_space) return;
  const auto call = proto::decode_space(request);
  STRATA_ASSERT(call.ok());
  const SpaceId id = call->space;
  Space& space = spaces_[id];
  ++last_;
  if (method == proto::kCreateSpace) {
    space.made = last_;
  } else if (method == proto::kGrowSpace) {
    space.grown = last_;
    space.pages = std::max(space.pages, call->pages);
  } else {
    space = {.deleted = last_};
    pages_.erase(pages_.lower_bound({id.value, 0}), pages_.upper_bound({id.value, UINT32_MAX}));
  }
}

void UnsyncedPages::note_elsewhere(const std::vector<PageId>& pages) {
  elsewhere_ = ++last_;
  for (const PageId id : pages) pages_.erase(id);
}

void UnsyncedPages::forget(uint64_t mark) {
  std::erase_if(pages_, [mark](const auto& page) { return page.second.number <= mark; });
  for (auto& [id, space] : spaces_) {
    if (space.deleted <= mark) space.deleted = 0;
    if (space.made <= mark) space.made = 0;
    if (space.grown <= mark) space.grown = space.pages = 0;
  }
  if (elsewhere_ <= mark) elsewhere_ = 0;
  std::erase_if(spaces_, [](const auto& of) {
    return of.second.deleted == 0 && of.second.made == 0 && of.second.grown == 0;
  });
}

std::vector<UnsyncedPages::Call> UnsyncedPages::calls() const {
  std::map<SpaceId, Space> spaces = spaces_;
  for (const auto& [id, page] : pages_)
    if (Space& space = spaces[SpaceId{id.space}]; space.made == 0) space.made = page.number;
  std::vector<Call> calls;
  const auto about = [&calls](uint16_t method, SpaceId space, uint32_t pages) {
    calls.push_back({method, {}, {}, {{}, space, pages}});
  };
  for (const auto& [id, space] : spaces) {
    if (space.deleted != 0) about(proto::kDeleteSpace, id, 0);
    if (space.made != 0) about(proto::kCreateSpace, id, 0);
    if (space.grown != 0) about(proto::kGrowSpace, id, space.pages);
  }
  for (const auto& [id, page] : pages_) {
    const bool full = calls.empty() || calls.back().method != proto::kWritePages ||
                      calls.back().ids.size() == proto::kWritePagesMax;
    if (full) calls.push_back({proto::kWritePages, {}, {}, {}});
    calls.back().ids.push_back(id);
    calls.back().pages += page.bytes;
  }
  if (elsewhere_ != 0) calls.push_back({kElsewhere, {}, {}, {}});
  return calls;
}

}  // namespace strata::clients
