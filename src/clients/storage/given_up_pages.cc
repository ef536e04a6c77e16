#include "clients/storage/given_up_pages.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "base/latch.h"

namespace strata::clients {

namespace {
constexpr size_t kShards = 64;
}  // namespace

// The oldest entries are forgotten first: for those the newest llsn forgotten stands.
struct GivenUpPages::Shard {
  mutable Mutex mutex{LatchRank::kLeaf};
  std::unordered_map<PageId, Llsn> given_up STRATA_GUARDED_BY(mutex);
  std::deque<PageId> order STRATA_GUARDED_BY(mutex);  // one entry per key of given_up
  Llsn forgotten STRATA_GUARDED_BY(mutex);
};

GivenUpPages::GivenUpPages(size_t pages_max) : pages_max_(pages_max), shards_(new Shard[kShards]) {}
GivenUpPages::~GivenUpPages() = default;

GivenUpPages::Shard& GivenUpPages::shard_of(PageId id) const {
  return shards_[std::hash<PageId>{}(id) % kShards];
}

void GivenUpPages::note(PageId id, Llsn llsn) {
  Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  const auto [it, is_new] = shard.given_up.try_emplace(id, llsn);
  it->second = std::max(it->second, llsn);
  if (!is_new) return;
  shard.order.push_back(id);
  if (shard.order.size() <= pages_max_ / kShards) return;
  const auto oldest = shard.given_up.find(shard.order.front());
  shard.forgotten = std::max(shard.forgotten, oldest->second);
  shard.given_up.erase(oldest);
  shard.order.pop_front();
}

GivenUpPages::Found GivenUpPages::find(PageId id) const {
  const Shard& shard = shard_of(id);
  const MutexLock lock(shard.mutex);
  const auto found = shard.given_up.find(id);
  if (found == shard.given_up.end()) return {false, shard.forgotten};
  return {true, found->second};
}

}  // namespace strata::clients
