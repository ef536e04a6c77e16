// Goal: RDR1-RDR4 (remote_directory.h) and SGP1-SGP3 (staged_pages.h). Method: single cases, then
// random operations against a map.
#include "clients/memory/remote_directory.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "clients/memory/staged_pages.h"
#include "clients/memory/testing/pages.h"

namespace strata::clients {
namespace {

using testing::llsn_of;
using testing::make_page;

proto::PoolSlot slot(uint32_t number, uint64_t generation, uint64_t llsn, bool dirty) {
  return {number, generation, Llsn{llsn}, dirty};
}

TEST(RemoteDirectory, AListDoesNotUndoWhatWasAnsweredLater) {  // RDR2
  RemoteDirectory directory;
  directory.reset(100, false);
  const PageId put{300, 1}, gone{301, 1}, listed{300, 2};
  directory.put(put, slot(7, 4, 20, true), false);
  directory.erase_space(SpaceId{301});
  const std::vector<proto::PoolListReply::Page> list = {
      {put, slot(3, 2, 10, false)}, {gone, slot(4, 2, 5, true)}, {listed, slot(5, 2, 6, true)}};
  directory.listed(list);
  EXPECT_EQ(directory.find(put), slot(7, 4, 20, true));
  EXPECT_FALSE(directory.find(gone).has_value());
  EXPECT_EQ(directory.find(listed), slot(5, 2, 6, true));
  EXPECT_EQ(directory.dirty(), 2u);
  EXPECT_FALSE(directory.complete());
  directory.whole_list();
  EXPECT_TRUE(directory.complete());
  directory.check();
}

TEST(RemoteDirectory, AnOldLookupChangesNothing) {
  RemoteDirectory directory;
  directory.reset(100, true);
  const PageId id{300, 1};
  const auto before = directory.find(id);
  directory.put(id, slot(7, 4, 20, true), false);
  directory.looked_up(id, before, {});
  EXPECT_EQ(directory.find(id), slot(7, 4, 20, true));
  directory.looked_up(id, directory.find(id), {true, slot(7, 4, 20, false)});
  EXPECT_EQ(directory.find(id), slot(7, 4, 20, false));
  EXPECT_EQ(directory.dirty(), 0u);
  directory.looked_up(id, directory.find(id), {});
  EXPECT_FALSE(directory.find(id).has_value());
}

TEST(RemoteDirectory, OnlyTheVersionThatIsThereBecomesClean) {  // RDR3
  RemoteDirectory directory;
  directory.reset(100, true);
  const PageId id{300, 1};
  directory.put(id, slot(7, 4, 20, true), false);
  directory.cleaned(id, Llsn{19});
  EXPECT_EQ(directory.dirty(), 1u);
  directory.put(id, slot(7, 4, 20, false), false);  // registered with an equal llsn
  EXPECT_EQ(directory.dirty(), 1u);
  directory.cleaned(id, Llsn{20});
  EXPECT_EQ(directory.dirty(), 0u);
}

TEST(RemoteDirectory, TheColdestAreThoseOutOfUseForLongest) {
  RemoteDirectory directory;
  directory.reset(1000, true);
  for (uint32_t i = 0; i < 300; ++i) directory.put({300, i}, slot(i, 2, 1, i % 3 == 0), false);
  EXPECT_TRUE(directory.coldest(64).clean.empty());
  for (uint32_t i = 0; i < 300; ++i) EXPECT_TRUE(directory.evicted({300, i}));
  EXPECT_FALSE(directory.evicted({300, 1000}));
  for (uint32_t i = 0; i < 20; ++i) directory.used({300, i});
  const RemoteDirectory::Cold cold = directory.coldest(64);
  EXPECT_TRUE(cold.dirty);
  EXPECT_GE(cold.clean.size(), 48u);
  for (const auto& victim : cold.clean) {
    EXPECT_GE(victim.id.number, 20u);
    EXPECT_NE(victim.id.number % 3, 0u);
    EXPECT_LT(victim.id.number, 240u) << "about the coldest";
  }
  directory.check();
}

TEST(RemoteDirectory, ManyRandomOperations) {
  Rng rng(7);
  RemoteDirectory directory;
  directory.reset(64, true);
  std::map<PageId, proto::PoolSlot> model;
  uint64_t generation = 2;
  for (int i = 0; i < 20'000; ++i) {
    const PageId id{300 + static_cast<uint32_t>(rng.below(3)),
                    static_cast<uint32_t>(rng.below(40))};
    const auto known = model.find(id);
    switch (rng.below(9)) {
      case 0:
      case 1:
      case 2: {
        const auto at =
            slot(static_cast<uint32_t>(rng.below(64)), generation += 2, i, rng.one_in(2));
        directory.put(id, at, rng.one_in(2));
        model[id] = at;
        break;
      }
      case 3:
        EXPECT_EQ(directory.evicted(id), known != model.end());
        break;
      case 4:
        directory.used(id);
        break;
      case 5:
        if (known == model.end()) break;
        directory.erase(id, slot(known->second.slot, known->second.generation - 2, 0, false));
        directory.erase(id, slot(known->second.slot + 1, known->second.generation, 0, false));
        ASSERT_TRUE(directory.find(id).has_value());
        directory.erase(id, known->second);
        model.erase(known);
        break;
      case 6:
        if (known == model.end()) break;
        directory.cleaned(id, known->second.llsn);
        known->second.dirty = false;
        break;
      case 7:
        if (known == model.end()) break;
        directory.dirtied(id, known->second);
        known->second.dirty = true;
        break;
      default:
        if (!rng.one_in(50)) break;
        directory.erase_space(SpaceId{id.space});
        std::erase_if(model, [&](const auto& of) { return of.first.space == id.space; });
    }
    const auto found = directory.find(id);
    const auto expected = model.find(id);
    ASSERT_EQ(found.has_value(), expected != model.end());
    if (found.has_value()) {
      ASSERT_EQ(*found, expected->second);
    }
    if (i % 500 == 0) directory.check();
  }
  EXPECT_EQ(directory.size(), model.size());
  directory.reset(10, false);
  EXPECT_EQ(directory.size() + directory.dirty(), 0u);
  directory.check();
}

TEST(StagedPages, AreTakenOldestFirstAndVoidOnceWritten) {  // SGP1, SGP2
  StagedPages staged(8);
  const AlignedBytes out(8 * size_t{kPageBytes});
  for (uint32_t i = 0; i < 5; ++i)
    EXPECT_TRUE(staged.add({300, i}, make_page({300, i}, Llsn{i + 1}).data(), i == 4));
  const PageId written{300, 1};
  staged.begin(&written, 1);
  const auto taken = staged.take(3, out.get());
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(taken[0].id, (PageId{300, 0}));
  EXPECT_EQ(taken[1].id, (PageId{300, 2}));
  EXPECT_EQ(header_of(out.get() + kPageBytes)->llsn, 3u);
  EXPECT_FALSE(staged.try_begin(taken[0].id));
  staged.end(&written, 1);
  for (const auto& one : taken) staged.end(&one.id, 1);
  const auto rest = staged.take(8, out.get());
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_TRUE(rest[0].out_of_use);
  EXPECT_TRUE(staged.empty());
}

TEST(StagedPages, KeepWhatHasRoom) {  // SGP3
  StagedPages staged(2);
  for (uint32_t i = 0; i < 4; ++i)
    EXPECT_EQ(staged.add({300, i}, make_page({300, i}, Llsn{1}).data(), false), i < 2);
  staged.clear();
  EXPECT_TRUE(staged.add({300, 9}, make_page({300, 9}, Llsn{1}).data(), false));
}

TEST(StagedPages, WhoWritesWaitsForWhoRegisters) {
  StagedPages staged(2);
  const PageId id{300, 1};
  ASSERT_TRUE(staged.try_begin(id));
  std::atomic<bool> begun{false};
  std::thread writer([&] {
    staged.begin(&id, 1);
    begun = true;
    staged.end(&id, 1);
  });
  std::thread dropper([&] { staged.clear_space(SpaceId{300}); });
  EXPECT_FALSE(begun);
  staged.end(&id, 1);
  writer.join();
  dropper.join();
  EXPECT_TRUE(begun);
}

}  // namespace
}  // namespace strata::clients
