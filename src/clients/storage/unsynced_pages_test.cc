// Goal: a storage node that forgot everything since the last sync is, once told again, where all
// acknowledged calls had brought it (UP1), what was synced is forgotten (UP2), and
// what somebody else wrote only he says again (UP3). Method: random
// calls, carried out on a node as a map, which loses a random part of what was not synced.
#include "clients/storage/unsynced_pages.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "proto/methods.h"

namespace strata::clients {
namespace {

const proto::Writer kWriter{StreamId{1}, Epoch{2}, 3};

std::string page_of(char fill) { return std::string(kPageBytes, fill); }

// Making and deleting spaces is durable at once, as on a real node; pages and sizes are not.
struct FakeNode {
  std::map<SpaceId, uint32_t> spaces;
  std::map<PageId, char> pages;
  bool carry_out(uint16_t method, const std::string& request) {
    if (method == proto::kWritePages) {
      const auto write = proto::decode_write_pages(request);
      for (size_t i = 0; i < write->ids.size(); ++i) {
        if (spaces.count(SpaceId{write->ids[i].space}) == 0) return false;
        pages[write->ids[i]] = write->pages[i * size_t{kPageBytes}];
      }
      return true;
    }
    const auto about = proto::decode_space(request);
    const SpaceId id = about->space;
    if (method == proto::kCreateSpace) spaces.emplace(id, 0);
    if (method == proto::kGrowSpace) {
      if (spaces.count(id) == 0) return false;
      spaces[id] = std::max(spaces[id], about->pages);
    }
    if (method == proto::kDeleteSpace) {
      spaces.erase(id);
      std::erase_if(pages, [id](const auto& page) { return page.first.space == id.value; });
    }
    return true;
  }
  bool operator==(const FakeNode&) const = default;
};

TEST(UnsyncedPages, BringANodeToWhereItWas) {
  Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    UnsyncedPages unsynced;
    FakeNode node, synced;
    const auto call = [&](uint16_t method, const std::string& request) {
      ASSERT_TRUE(node.carry_out(method, request));
      unsynced.note(method, request);
    };
    for (int step = 0; step < 40; ++step) {
      const SpaceId space{300 + static_cast<uint32_t>(rng.below(3))};
      const proto::SpaceRequest about{kWriter, space, 1 + static_cast<uint32_t>(rng.below(500))};
      const bool there = node.spaces.count(space) != 0;
      switch (rng.below(8)) {
        case 0:
          call(proto::kDeleteSpace, proto::encode(about));
          break;
        case 1:
          synced = node;
          unsynced.forget(unsynced.mark());
          EXPECT_TRUE(unsynced.calls().empty());
          break;
        case 2:
          if (there) call(proto::kGrowSpace, proto::encode(about));
          break;
        default: {
          if (!there) {
            call(proto::kCreateSpace, proto::encode(about));
            break;
          }
          const PageId id{space.value, static_cast<uint32_t>(rng.below(100))};
          const std::string page = page_of(static_cast<char>('a' + rng.below(26)));
          call(proto::kWritePages, proto::encode(proto::WritePagesRequest{kWriter, {id}, page}));
        }
      }
    }
    FakeNode again = synced;  // of what was not synced a part is there
    again.spaces = node.spaces;
    for (auto& [id, pages] : again.spaces) pages = synced.spaces.count(id) ? synced.spaces[id] : 0;
    std::erase_if(again.pages, [&](const auto& page) {
      return node.spaces.count(SpaceId{page.first.space}) == 0;
    });
    for (const auto& [id, fill] : node.pages)
      if (rng.one_in(2)) again.pages[id] = fill;
    if (rng.one_in(4)) again.spaces.erase(SpaceId{300 + static_cast<uint32_t>(rng.below(3))});
    const bool all_there = again.spaces.size() == node.spaces.size();
    for (int times = 0; times < 2; ++times)
      for (const UnsyncedPages::Call& one : unsynced.calls())
        ASSERT_TRUE(again.carry_out(one.method, one.encode(kWriter)) || !all_there);
    // A page of a space that was made anew under the same number since is written again, too.
    if (!all_there) continue;
    for (const auto& [id, fill] : node.pages) ASSERT_EQ(again.pages[id], fill) << round;
    ASSERT_EQ(again.spaces, node.spaces);
  }
}

TEST(UnsyncedPages, WhatCameDuringASyncIsKept) {  // UP2
  UnsyncedPages unsynced;
  const auto write = [&](uint32_t number, char fill) {
    unsynced.note(proto::kWritePages, proto::encode(proto::WritePagesRequest{
                                          kWriter, {PageId{300, number}}, page_of(fill)}));
  };
  write(1, 'a');
  write(2, 'a');
  const uint64_t mark = unsynced.mark();
  write(1, 'b');
  unsynced.forget(mark);
  EXPECT_EQ(unsynced.bytes(), size_t{kPageBytes});
  const auto calls = unsynced.calls();
  ASSERT_EQ(calls.size(), 2u) << "its space is made first";
  EXPECT_EQ(calls[0].method, proto::kCreateSpace);
  EXPECT_EQ(calls[1].ids, std::vector<PageId>{(PageId{300, 1})});
  EXPECT_EQ(calls[1].pages[0], 'b');
}

// A space that is made anew under its number after a sync keeps nothing of before, and one whose
// deletion was synced is not deleted again.
TEST(UnsyncedPages, ADeletionIsForgottenWithTheSyncBehindIt) {
  UnsyncedPages unsynced;
  const std::string about = proto::encode(proto::SpaceRequest{kWriter, SpaceId{300}, 64});
  unsynced.note(proto::kDeleteSpace, about);
  unsynced.note(proto::kCreateSpace, about);
  unsynced.forget(unsynced.mark());
  unsynced.note(proto::kGrowSpace, about);
  const auto calls = unsynced.calls();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].method, proto::kGrowSpace);
}

TEST(UnsyncedPages, WhatSomebodyElseWroteHeIsAskedForAndLast) {  // UP3
  UnsyncedPages unsynced;
  for (const uint32_t number : {1u, 2u})
    unsynced.note(proto::kWritePages, proto::encode(proto::WritePagesRequest{
                                          kWriter, {PageId{300, number}}, page_of('a')}));
  unsynced.note_elsewhere({PageId{300, 1}});
  auto calls = unsynced.calls();
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[1].ids, std::vector<PageId>{(PageId{300, 2})}) << "the other one is his";
  EXPECT_EQ(calls[2].method, UnsyncedPages::kElsewhere);
  const uint64_t mark = unsynced.mark();
  unsynced.note_elsewhere({PageId{300, 2}});
  unsynced.forget(mark);
  calls = unsynced.calls();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].method, UnsyncedPages::kElsewhere) << "written after the sync had begun";
  unsynced.forget(unsynced.mark());
  EXPECT_TRUE(unsynced.calls().empty());
}

}  // namespace
}  // namespace strata::clients
