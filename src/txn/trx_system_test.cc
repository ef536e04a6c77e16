// Goal: each rule T1-T8 by itself, on a small store with a simulated disk. One thread unless said.
#include "txn/trx_system.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "base/clock.h"
#include "base/fault.h"
#include "redo/redo.h"
#include "txn/internal/status_pages.h"
#include "txn/testing/trx_store.h"

namespace strata {
namespace {

using testing::TrxStore;

struct TrxTest : ::testing::Test {
  TrxStore db{8};  // a small table: slots are reused soon
  TrxSystem* trxs() { return db.trxs(); }
  void TearDown() override { disarm_faults(); }

  std::unique_ptr<Trx> begin() {
    auto trx = std::make_unique<Trx>();
    trxs()->begin(trx.get());
    return trx;
  }
  std::unique_ptr<Trx> begin_with_change() {
    auto trx = begin();
    EXPECT_TRUE(db.change(trx.get(), "key").ok());
    return trx;
  }
  // The id of a transaction that has committed.
  TrxId commit_one(Cts* cts = nullptr) {
    auto trx = begin_with_change();
    const TrxId id = trx->id;
    EXPECT_TRUE(trxs()->commit(trx.get()).ok());
    if (cts != nullptr) *cts = trx->cts;
    return id;
  }
  static RecordHeader version_of(TrxId id) { return RecordHeader{id, Cts{}, UndoPtr{}, 0}; }
  TrxState state_of(TrxId id) {
    const StatusOr<TrxLookup> found = trxs()->lookup(id);
    EXPECT_TRUE(found.ok()) << found.status();
    return found->state;
  }
};

TEST_F(TrxTest, CommitMakesVersionsVisibleToLaterViewsOnly) {
  auto early = begin();
  ASSERT_TRUE(trxs()->open_view(early.get()).ok());
  auto writer = begin_with_change();
  const TrxId id = writer->id;
  ASSERT_TRUE(trxs()->open_view(writer.get()).ok());
  EXPECT_TRUE(*trxs()->visible(writer->view, version_of(id), true));
  EXPECT_FALSE(*trxs()->visible(early->view, version_of(id), true));
  EXPECT_TRUE(*trxs()->is_undecided(id, TrxId{}));
  EXPECT_FALSE(*trxs()->is_undecided(id, id));
  ASSERT_TRUE(trxs()->commit(writer.get()).ok());
  EXPECT_FALSE(*trxs()->visible(early->view, version_of(id), true));
  EXPECT_FALSE(*trxs()->is_undecided(id, TrxId{}));
  auto late = begin();
  ASSERT_TRUE(trxs()->open_view(late.get()).ok());
  EXPECT_TRUE(*trxs()->visible(late->view, version_of(id), true));
  EXPECT_TRUE(*trxs()->visible(late->view, version_of(TrxId{}), true));
  EXPECT_TRUE(trxs()->commit(late.get()).ok());
  EXPECT_TRUE(trxs()->commit(early.get()).ok());
  EXPECT_EQ(trxs()->counters().commits, 1u);
  EXPECT_EQ(trxs()->counters().read_only_commits, 2u);
  EXPECT_EQ(trxs()->active_count(), 0u);
}

TEST_F(TrxTest, AReaderThatWaitsForACommitCanBeInterrupted) {  // T2
  auto writer = begin_with_change();
  ASSERT_TRUE(trxs()->reserve_commit(writer.get()).ok());
  ASSERT_TRUE(trxs()->commit_order(writer.get()).ok());
  auto reader = begin();
  ASSERT_TRUE(trxs()->open_view(reader.get()).ok());
  const RecordHeader version = version_of(writer->id);
  {
    const InterruptScope scope(&reader->interrupt);
    reader->interrupt.interrupt();  // before the wait begins
    EXPECT_TRUE(is_interrupted(trxs()->visible(reader->view, version, true).status()));
    reader->interrupt.clear();
    EXPECT_TRUE(*trxs()->visible(reader->view, version, true)) << "with nobody else to persist it";
  }
  // A commit is not: its outcome would be unknown.
  writer->interrupt.interrupt();
  EXPECT_TRUE(trxs()->commit_finish(writer.get()).ok());
  EXPECT_TRUE(trxs()->commit(reader.get()).ok());
}

TEST_F(TrxTest, StampedVersionsNeedNoLookUp) {
  auto trx = begin();
  ASSERT_TRUE(trxs()->open_view(trx.get()).ok());
  const Cts now = trx->view.snapshot;
  EXPECT_TRUE(*trxs()->visible(trx->view, RecordHeader{TrxId{77}, now, {}, 0}, false));
  EXPECT_FALSE(
      *trxs()->visible(trx->view, RecordHeader{TrxId{77}, Cts{now.value + 1}, {}, 0}, false));
  ASSERT_TRUE(trxs()->commit(trx.get()).ok());
}

TEST_F(TrxTest, RolledBackChangesAreNeverVisible) {
  auto writer = begin_with_change();
  const TrxId id = writer->id;
  ASSERT_TRUE(db.rollback(writer.get()).ok());
  EXPECT_EQ(writer->state, TrxState::kAborted);
  auto reader = begin();
  ASSERT_TRUE(trxs()->open_view(reader.get()).ok());
  EXPECT_FALSE(*trxs()->is_undecided(id, TrxId{}));
  EXPECT_NE(state_of(id), TrxState::kActive);
  EXPECT_EQ(trxs()->history_length(), 0u);
  EXPECT_EQ(trxs()->all_visible_below(), sequence_of(id) + 1);
  ASSERT_TRUE(trxs()->commit(reader.get()).ok());
}

TEST_F(TrxTest, CommitterInTheLogIsNeitherVisibleNorForgottenBeforeItIsDurable) {  // T1, T2
  auto writer = begin_with_change();
  const TrxId id = writer->id;
  ASSERT_TRUE(trxs()->reserve_commit(writer.get()).ok());
  auto early = begin();
  ASSERT_TRUE(trxs()->open_view(early.get()).ok());
  ASSERT_TRUE(trxs()->commit_order(writer.get()).ok());
  ASSERT_TRUE(trxs()->commit_order(writer.get()).ok());  // again: nothing more to do
  auto late = begin();
  ASSERT_TRUE(trxs()->open_view(late.get()).ok());
  ASSERT_LT(db.log()->durable_lsn(), writer->commit_end);

  TrxLookup found;
  ASSERT_TRUE(trxs()->lookup_fast(id, &found));
  EXPECT_EQ(found.state, TrxState::kCommitting);
  EXPECT_EQ(found.commit_lsn, writer->commit_end);
  EXPECT_EQ(found.cts, writer->cts);
  EXPECT_TRUE(*trxs()->is_undecided(id, TrxId{}));
  EXPECT_FALSE(*trxs()->visible(early->view, version_of(id), false));  // too new: no need to wait
  EXPECT_TRUE(is_busy(trxs()->visible(late->view, version_of(id), false).status()));
  // Whoever must know makes it durable itself.
  EXPECT_TRUE(*trxs()->visible(late->view, version_of(id), true));
  EXPECT_GE(db.log()->durable_lsn(), writer->commit_end);
  EXPECT_TRUE(*trxs()->visible(late->view, version_of(id), false));
  EXPECT_EQ(trxs()->counters().commit_waits, 1u);
  EXPECT_TRUE(*trxs()->is_undecided(id, TrxId{}));  // the row lock goes with the publication
  ASSERT_TRUE(trxs()->commit_finish(writer.get()).ok());
  EXPECT_FALSE(*trxs()->is_undecided(id, TrxId{}));
  EXPECT_TRUE(*trxs()->visible(late->view, version_of(id), false));
  EXPECT_FALSE(*trxs()->visible(early->view, version_of(id), false));
  ASSERT_TRUE(trxs()->commit(early.get()).ok());
  ASSERT_TRUE(trxs()->commit(late.get()).ok());
}

TEST_F(TrxTest, CtsOrderIsLogOrder) {  // T1
  Cts last_cts;
  Lsn last_end;
  for (int i = 0; i < 50; ++i) {
    auto trx = begin_with_change();
    ASSERT_TRUE(trxs()->commit(trx.get()).ok());
    EXPECT_GT(trx->cts, last_cts);
    EXPECT_GT(trx->commit_end, last_end);
    last_cts = trx->cts;
    last_end = trx->commit_end;
  }
}

TEST_F(TrxTest, BusySlotsAreSkipped) {  // T3
  auto old = begin_with_change();
  const TrxId old_id = old->id;
  std::vector<TrxId> ids;
  for (int i = 0; i < 60; ++i) ids.push_back(commit_one());
  for (TrxId id : ids) EXPECT_NE(sequence_of(id) % 8, sequence_of(old_id) % 8);
  // Their slots are long reused: the status pages answer.
  auto reader = begin();
  ASSERT_TRUE(trxs()->open_view(reader.get()).ok());
  TrxLookup found;
  EXPECT_FALSE(trxs()->lookup_fast(ids[3], &found));
  EXPECT_TRUE(is_busy(trxs()->visible(reader->view, version_of(ids[3]), false).status()));
  EXPECT_TRUE(*trxs()->visible(reader->view, version_of(ids[3]), true));
  EXPECT_EQ(trxs()->counters().status_page_reads, 1u);
  EXPECT_TRUE(trxs()->lookup_fast(ids[3], &found));  // remembered
  EXPECT_TRUE(*trxs()->is_undecided(old_id, TrxId{}));
  EXPECT_FALSE(*trxs()->visible(reader->view, version_of(old_id), true));
  // Eight at once fill the table; one more is refused, not waited for.
  std::vector<std::unique_ptr<Trx>> all;
  for (int i = 0; i < 7; ++i) all.push_back(begin_with_change());
  auto one_more = begin();
  EXPECT_TRUE(is_no_space(trxs()->ensure_id(one_more.get())));
  for (auto& trx : all) ASSERT_TRUE(db.rollback(trx.get()).ok());
  ASSERT_TRUE(trxs()->ensure_id(one_more.get()).ok());
  ASSERT_TRUE(trxs()->commit(one_more.get()).ok());
  ASSERT_TRUE(trxs()->commit(old.get()).ok());
  ASSERT_TRUE(trxs()->commit(reader.get()).ok());
}

TEST_F(TrxTest, AnIdWithoutChangesLeavesNothing) {
  auto trx = begin();
  ASSERT_TRUE(trxs()->ensure_id(trx.get()).ok());
  const TrxId id = trx->id;
  const RowId row{IndexId{1}, "r"};
  db.waits()->add_shared(id, row);
  ASSERT_TRUE(trxs()->commit(trx.get()).ok());
  EXPECT_FALSE(*trxs()->is_undecided(id, TrxId{}));
  EXPECT_FALSE(db.waits()->index_has_shared(row.index));
  EXPECT_EQ(trxs()->history_length(), 0u);
  EXPECT_EQ(trxs()->all_visible_below(), sequence_of(id) + 1);
  EXPECT_EQ(trxs()->active_count(), 0u);
}

TEST_F(TrxTest, WaitersWakeOnlyAfterPublication) {  // T1
  auto writer = begin_with_change();
  const TrxId id = writer->id;
  std::atomic<bool> woken{false};
  std::thread waiter([&] {
    const RowId row{IndexId{1}, "r"};
    EXPECT_TRUE(trxs()
                    ->waits()
                    ->wait(TrxId{999}, id, row, 20000000, nullptr,
                           [&] { return *trxs()->is_undecided(id, TrxId{}); })
                    .ok());
    EXPECT_FALSE(*trxs()->is_undecided(id, TrxId{}));
    EXPECT_GE(db.log()->durable_lsn(), writer->commit_end);
    woken = true;
    trxs()->waits()->settled(TrxId{999}, row, TrxId{});
  });
  while (trxs()->waits()->counters().waits.load() == 0) std::this_thread::yield();
  bool published = false;
  writer->on_publish = [&] {
    published = true;
    EXPECT_FALSE(woken);
    EXPECT_FALSE(*trxs()->is_undecided(id, TrxId{}));
  };
  ASSERT_TRUE(trxs()->reserve_commit(writer.get()).ok());
  ASSERT_TRUE(trxs()->commit_order(writer.get()).ok());
  EXPECT_FALSE(woken);
  ASSERT_TRUE(trxs()->commit_finish(writer.get()).ok());
  waiter.join();
  EXPECT_TRUE(published);
}

TEST_F(TrxTest, DropsGoToThePendingListInTheCommitGroup) {
  auto trx = begin_with_change();
  trx->drop_on_commit = {SpaceId{300}, SpaceId{301}};
  ASSERT_TRUE(trxs()->commit(trx.get()).ok());
  Mtr mtr(db.pool(), db.log());
  MtrPage* page = *mtr.fix(kPendingDeletePage, LatchMode::kShared);
  EXPECT_EQ(redo::read_pending_deletes(page->page()),
            (std::vector<SpaceId>{SpaceId{300}, SpaceId{301}}));
}

TEST_F(TrxTest, AFailedOrderLeavesTheTransactionActive) {
  auto trx = begin_with_change();
  const TrxId id = trx->id;
  ASSERT_TRUE(trxs()->reserve_commit(trx.get()).ok());
  arm_fault("commit_before_log:1:error");
  EXPECT_FALSE(trxs()->commit_order(trx.get()).ok());
  EXPECT_EQ(state_of(id), TrxState::kActive);
  ASSERT_TRUE(db.rollback(trx.get()).ok());
  EXPECT_FALSE(*trxs()->is_undecided(id, TrxId{}));
}

TEST_F(TrxTest, AnUnknownOutcomeIsNeverPublished) {
  auto trx = begin_with_change();
  const TrxId id = trx->id;
  const Cts before = *db.timestamps()->current();
  ASSERT_TRUE(trxs()->reserve_commit(trx.get()).ok());
  ASSERT_TRUE(trxs()->commit_order(trx.get()).ok());
  db.store()->fs()->crash(1);  // the disk goes away under the log
  EXPECT_TRUE(is_outcome_unknown(trxs()->commit_finish(trx.get())));
  EXPECT_FALSE(trx->started);
  EXPECT_TRUE(*trxs()->is_undecided(id, TrxId{}));
  ReadView view;
  view.snapshot = Cts{before.value + 10};
  EXPECT_FALSE(trxs()->visible(view, version_of(id), true).ok());
}

// --- views and purge ---

TEST_F(TrxTest, MinViewIsTheOldestOpenViewOrNow) {  // T8
  commit_one();
  EXPECT_EQ(trxs()->min_view(), *db.timestamps()->current());
  auto a = begin();
  ASSERT_TRUE(trxs()->open_view(a.get()).ok());
  commit_one();
  auto b = begin();
  ASSERT_TRUE(trxs()->open_view(b.get()).ok());
  EXPECT_LT(a->view.snapshot, b->view.snapshot);
  EXPECT_EQ(trxs()->min_view(), a->view.snapshot);
  trxs()->close_view(a.get());
  EXPECT_EQ(trxs()->min_view(), b->view.snapshot);
  ASSERT_TRUE(trxs()->open_view(a.get()).ok());  // READ COMMITTED: one view after the other
  EXPECT_EQ(trxs()->min_view(), b->view.snapshot);
  ASSERT_TRUE(trxs()->commit(a.get()).ok());
  ASSERT_TRUE(trxs()->commit(b.get()).ok());
}

TEST_F(TrxTest, PurgeTakesTheOldestFirstAndNothingAViewNeeds) {
  std::vector<Cts> cts(3);
  commit_one(&cts[0]);
  auto view = begin();
  ASSERT_TRUE(trxs()->open_view(view.get()).ok());
  const TrxId second = commit_one(&cts[1]);
  commit_one(&cts[2]);
  EXPECT_EQ(trxs()->history_length(), 3u);
  TrxSystem::PurgeItem item;
  ASSERT_TRUE(trxs()->next_to_purge(&item));
  EXPECT_EQ(item.cts, cts[0]);
  ASSERT_TRUE(trxs()->purged(item).ok());
  EXPECT_FALSE(trxs()->next_to_purge(&item));
  EXPECT_EQ(trxs()->all_visible_below(), sequence_of(second));
  EXPECT_FALSE(*trxs()->visible(view->view, version_of(second), true));
  ASSERT_TRUE(trxs()->commit(view.get()).ok());
  EXPECT_EQ(db.purge_all(), 2u);
  EXPECT_EQ(trxs()->all_visible_below(), sequence_of(second) + 2);  // T7
  EXPECT_LE(db.undo()->pages_in_use(), 2u);
}

TEST_F(TrxTest, WhoCommitsGetsWhatNobodyNeedsAnyMore) {  // T11
  TrxSystem::PurgeItem own;
  auto trx = begin_with_change();
  const TrxId id = trx->id;
  ASSERT_TRUE(trxs()->commit(trx.get(), &own).ok());
  EXPECT_EQ(own.id, id);
  EXPECT_EQ(own.cts, trx->cts);
  EXPECT_FALSE(own.has_work);
  EXPECT_EQ(trxs()->history_length(), 0u);
  EXPECT_EQ(trxs()->all_visible_below(), sequence_of(id));
  ASSERT_TRUE(trxs()->purged_own(own).ok());
  EXPECT_EQ(trxs()->all_visible_below(), sequence_of(id) + 1);
  EXPECT_LE(db.undo()->pages_in_use(), 1u);

  trx = begin_with_change();
  ASSERT_TRUE(trxs()->commit(trx.get(), &own).ok());
  trxs()->purge_later(std::move(own));
  EXPECT_EQ(db.purge_all(), 1u);
  EXPECT_EQ(trxs()->all_visible_below(), sequence_of(id) + 2);
}

TEST_F(TrxTest, WhatAViewMayNeedOrIsMuchIsLeftToThePurgeThreads) {  // T11
  TrxSystem::PurgeItem own;
  auto view = begin();
  ASSERT_TRUE(trxs()->open_view(view.get()).ok());
  auto trx = begin_with_change();
  ASSERT_TRUE(trxs()->commit(trx.get(), &own).ok());
  EXPECT_TRUE(own.id.is_zero());
  EXPECT_EQ(trxs()->history_length(), 1u);
  ASSERT_TRUE(trxs()->commit(view.get()).ok());
  EXPECT_EQ(db.purge_all(), 1u);

  trx = begin_with_change();
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(db.change(trx.get(), std::string(20, 'k')).ok());
  ASSERT_TRUE(trxs()->commit(trx.get(), &own).ok());
  EXPECT_TRUE(own.id.is_zero()) << "several pages of undo";
  EXPECT_EQ(db.purge_all(), 1u);

  trx = begin_with_change();
  trx->leaves_work = 9;
  ASSERT_TRUE(trxs()->commit(trx.get(), &own).ok());
  EXPECT_TRUE(own.id.is_zero()) << "many deletes, or a chain";
  EXPECT_EQ(db.purge_all(), 1u);
}

// Their marks are a purge thread's work; it is woken once there are many.
TEST_F(TrxTest, MarksOfWhatClientsPurgeAreWrittenByThePurgeThread) {
  const uint64_t groups = 3;
  for (uint64_t i = 0; i < groups * txn_internal::kSequencesPerGroup; ++i) {
    TrxSystem::PurgeItem own;
    auto trx = begin_with_change();
    ASSERT_TRUE(trxs()->commit(trx.get(), &own).ok());
    ASSERT_TRUE(trxs()->purged_own(own).ok());
  }
  const uint64_t before = *db.spaces()->used_pages(SpaceId{1});
  const uint64_t start = monotonic_us();
  trxs()->wait_for_purge_work(60000000);
  EXPECT_LT(monotonic_us() - start, 30000000u);
  EXPECT_EQ(db.purge_all(), 0u);
  EXPECT_LT(*db.spaces()->used_pages(SpaceId{1}), before) << "status pages below the bound go";
}

TEST_F(TrxTest, StatusPagesAreTruncatedBelowTheBound) {
  const uint64_t before = *db.spaces()->used_pages(SpaceId{1});
  std::vector<TrxId> ids;
  for (uint32_t i = 0; i < 3 * txn_internal::kSequencesPerGroup; ++i) {
    ids.push_back(commit_one());
    if (i % 100 == 0) db.purge_all();
  }
  db.purge_all();
  const uint64_t end = *db.spaces()->used_pages(SpaceId{1});
  EXPECT_LE(end, before + 4 + 2 * txn_internal::kStripes);  // directory leaf, two groups, tails
  // Another node finds no entry, and the bound that says why.
  ASSERT_TRUE(db.spaces()->create(SpaceId{undo_space_of(NodeId{2})}).ok());
  UndoSpace undo2(db.pool(), db.log(), db.spaces(), NodeId{2});
  RowWaits waits2;
  TrxSystem node2({.node = NodeId{2}, .tit_slots = 8}, db.pool(), db.log(), db.spaces(), &undo2,
                  db.timestamps(), &waits2);
  ASSERT_TRUE(node2.initialise().ok());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(node2.lookup(ids[10])->state, TrxState::kCommitted);
  // An id of long ago, met in a record that was never stamped.
  auto reader = begin();
  ASSERT_TRUE(trxs()->open_view(reader.get()).ok());
  EXPECT_TRUE(*trxs()->visible(reader->view, version_of(ids[10]), true));
  EXPECT_EQ(state_of(ids[10]), TrxState::kCommitted);
  ASSERT_TRUE(trxs()->commit(reader.get()).ok());
  db.store()->expect_replay_is_identical();
}

TEST(StatusPages, NeighboursAreOnDifferentPagesAndEverySequenceHasAnEntry) {  // SD4
  using namespace txn_internal;
  for (uint64_t sequence = 0; sequence < 3 * kSequencesPerGroup; ++sequence) {
    ASSERT_EQ(sequence_at(chunk_of(sequence), entry_of(sequence)), sequence);
    ASSERT_LT(entry_of(sequence), kEntriesPerPage);
    ASSERT_EQ(group_chunk_of(sequence), chunk_of(sequence) / kStripes * kStripes);
    for (uint64_t other = sequence + 1; other < sequence + kStripes; ++other)
      ASSERT_NE(chunk_of(sequence), chunk_of(other));
  }
}

TEST_F(TrxTest, AGroupOfStatusPagesThatAFullDiskLeftHalfMadeIsMadeWhole) {  // SD4
  using namespace txn_internal;
  const NodeId node{2};
  ASSERT_TRUE(db.spaces()->create(SpaceId{undo_space_of(node)}).ok());
  StatusPages pages(db.pool(), db.log(), db.spaces(), node);
  ASSERT_TRUE(pages.initialise().ok());
  ASSERT_TRUE(db.store()->persist_all().ok());
  db.store()->fs()->set_capacity(0);  // nothing grows
  uint64_t group = 0;
  Status made;
  while ((made = pages.make_group(group)).ok()) group += kStripes;
  EXPECT_EQ(made.code(), StatusCode::kResourceExhausted) << made;
  StatusPages again(db.pool(), db.log(), db.spaces(), node);  // as after a restart
  uint64_t end = 0;
  ASSERT_TRUE(again.open(0, &end).ok());
  EXPECT_GT(end, group) << "no half-made group: the test shows nothing";
  EXPECT_LT(end, group + kStripes);
  db.store()->fs()->set_capacity(~uint64_t{0});
  ASSERT_TRUE(again.make_group(group).ok());
  ASSERT_TRUE(again.make_group(group + kStripes).ok());
  std::set<uint32_t> numbers;
  for (uint64_t chunk = 0; chunk < group + 2 * kStripes; ++chunk)
    numbers.insert(again.page_of(chunk));
  EXPECT_EQ(numbers.size(), group + 2 * kStripes);
  EXPECT_EQ(numbers.count(kNoPage), 0u);
  db.store()->expect_replay_is_identical();
}

TEST_F(TrxTest, WaitingForPurgeWorkEndsByWorkWakeOrTime) {
  const uint64_t start = monotonic_us();
  trxs()->wait_for_purge_work(30000);
  EXPECT_GE(monotonic_us() - start, 29000u);
  trxs()->wake_purge();
  trxs()->wait_for_purge_work(60000000);  // a wake-up before the wait is not lost
  while (monotonic_us() - start > 50000000) FAIL();
  for (int i = 0; i < 64; ++i) trxs()->wait_for_purge_work(0);  // uses up what wake_purge() left
  std::thread worker([&] { trxs()->wait_for_purge_work(60000000); });
  commit_one();
  worker.join();
  EXPECT_LT(monotonic_us() - start, 30000000u);
}

TEST_F(TrxTest, ASavepointRolledBackBeforeCommitIsNotPurged) {
  auto trx = begin();
  const UndoPtr first = *db.change(trx.get(), "one");
  ASSERT_TRUE(db.change(trx.get(), "two").ok());
  ASSERT_TRUE(db.rollback_to(trx.get(), first).ok());
  ASSERT_TRUE(trxs()->commit(trx.get()).ok());
  TrxSystem::PurgeItem item;
  ASSERT_TRUE(trxs()->next_to_purge(&item));
  std::vector<std::string> keys;
  ASSERT_TRUE(for_each_undo(db.pool(), item.id, item.first_undo, [&](UndoPtr, const UndoRecord& r) {
                keys.push_back(r.key);
                return ok_status();
              }).ok());
  EXPECT_EQ(keys, std::vector<std::string>{"one"});
  ASSERT_TRUE(trxs()->purged(item).ok());
}

TEST_F(TrxTest, AReaderWithACopyOfARolledBackVersionDoesNotTakeItForOld) {  // T7
  auto reader = begin();
  ASSERT_TRUE(trxs()->open_view(reader.get()).ok());
  auto writer = begin_with_change();
  const RecordHeader copy = version_of(writer->id);
  EXPECT_FALSE(*trxs()->visible(reader->view, copy, true));
  ASSERT_TRUE(db.rollback(writer.get()).ok());
  EXPECT_FALSE(*trxs()->visible(reader->view, copy, true));
  for (int i = 0; i < 40; ++i) commit_one();  // its slot is reused
  db.purge_all();
  EXPECT_FALSE(*trxs()->visible(reader->view, copy, true));
  EXPECT_EQ(trxs()->all_visible_below(), sequence_of(copy.trx_id));
  ASSERT_TRUE(trxs()->commit(reader.get()).ok());
  db.purge_all();
  EXPECT_GT(trxs()->all_visible_below(), sequence_of(copy.trx_id));
}

// --- restart ---

TEST_F(TrxTest, PreparedTransactionsSurviveARestart) {
  auto trx = begin_with_change();
  const TrxId id = trx->id;
  ASSERT_TRUE(trxs()->prepare(trx.get(), "the xid").ok());
  EXPECT_EQ(state_of(id), TrxState::kPrepared);
  auto other = begin_with_change();
  ASSERT_TRUE(trxs()->prepare(other.get(), "other").ok());
  const TrxId other_id = other->id;
  trx.reset();
  other.reset();
  std::vector<std::unique_ptr<Trx>> active, prepared;
  ASSERT_TRUE(db.crash_and_recover(3, &active, &prepared).ok());
  ASSERT_EQ(active.size(), 0u);
  ASSERT_EQ(prepared.size(), 2u);
  EXPECT_EQ(prepared[0]->xid, "the xid");
  EXPECT_EQ(prepared[0]->id, id);
  EXPECT_TRUE(*trxs()->is_undecided(id, TrxId{}));
  ASSERT_TRUE(trxs()->commit(prepared[0].get()).ok());
  ASSERT_TRUE(db.rollback(prepared[1].get()).ok());
  EXPECT_EQ(state_of(id), TrxState::kCommitted);
  EXPECT_FALSE(*trxs()->is_undecided(other_id, TrxId{}));
  EXPECT_EQ(db.purge_all(), 1u);
}

TEST_F(TrxTest, SequencesAndTimestampsGoOnBehindEverything) {  // T5, T6
  Cts cts;
  TrxId id;
  for (int i = 0; i < 20; ++i) {
    const TrxId last_id = id;
    const Cts last_cts = cts;
    id = commit_one(&cts);
    EXPECT_GT(id, last_id);
    EXPECT_GT(cts, last_cts);
    if (i % 3 == 0) db.purge_all();
    std::vector<std::unique_ptr<Trx>> active, prepared;
    ASSERT_TRUE(db.crash_and_recover(static_cast<uint64_t>(i), &active, &prepared).ok());
    EXPECT_GE(db.timestamps()->current()->value, cts.value);
    EXPECT_EQ(state_of(id), TrxState::kCommitted);
  }
}

TEST_F(TrxTest, TheOracleStaysBelowItsCeilingWithoutHelp) {  // T6
  for (int i = 0; i < 2500000; ++i) ASSERT_TRUE(db.timestamps()->next().ok());
  const Cts last = *db.timestamps()->current();
  std::vector<std::unique_ptr<Trx>> active, prepared;
  ASSERT_TRUE(db.crash_and_recover(9, &active, &prepared).ok());
  EXPECT_GE(*db.timestamps()->current(), last);
  ASSERT_TRUE(db.timestamps()->raise_to(Cts{last.value + 5000000}).ok());
  EXPECT_GT(*db.timestamps()->next(), Cts{last.value + 5000000});
}

TEST_F(TrxTest, ASmallerTableAtRestartGrows) {  // T3
  std::vector<std::unique_ptr<Trx>> open;
  for (int i = 0; i < 8; ++i) {
    open.push_back(begin_with_change());
    if (i != 7) commit_one();
  }
  ASSERT_TRUE(db.store()->persist_all().ok());
  open.clear();
  db.set_tit_slots(2);
  std::vector<std::unique_ptr<Trx>> active, prepared;
  ASSERT_TRUE(db.crash_and_recover(9, &active, &prepared).ok());
  EXPECT_EQ(active.size(), 8u);
  for (auto& trx : active) EXPECT_TRUE(*trxs()->is_undecided(trx->id, TrxId{}));
  for (auto& trx : active) ASSERT_TRUE(db.rollback(trx.get()).ok());
}

// --- another node ---

TEST_F(TrxTest, AnotherNodeReadsTheStatusPages) {
  ASSERT_TRUE(db.spaces()->create(SpaceId{undo_space_of(NodeId{2})}).ok());
  UndoSpace undo2(db.pool(), db.log(), db.spaces(), NodeId{2});
  RowWaits waits2;
  TrxSystem node2({.node = NodeId{2}, .tit_slots = 8}, db.pool(), db.log(), db.spaces(), &undo2,
                  db.timestamps(), &waits2);
  ASSERT_TRUE(node2.initialise().ok());
  Cts cts;
  const TrxId id = commit_one(&cts);
  auto writer = begin_with_change();
  EXPECT_EQ(node2.lookup(id)->state, TrxState::kCommitted);
  EXPECT_EQ(node2.lookup(id)->cts, cts);
  EXPECT_TRUE(*node2.is_undecided(writer->id, TrxId{}));
  const TrxId writer_id = writer->id;
  ASSERT_TRUE(trxs()->commit(writer.get()).ok());
  EXPECT_FALSE(*node2.is_undecided(writer_id, TrxId{}));
  // An entry that was never made and never freed: damage, not "long ago, visible to all".
  const TrxId unknown = make_trx_id(NodeId{1}, 50 * txn_internal::kSequencesPerGroup);
  EXPECT_TRUE(is_corruption(node2.lookup(unknown).status()));
  // Node 3 has no undo space: an error, not an answer.
  EXPECT_FALSE(node2.lookup(make_trx_id(NodeId{3}, 5)).ok());
  Trx reader;
  node2.begin(&reader);
  ASSERT_TRUE(node2.open_view(&reader).ok());
  EXPECT_TRUE(*node2.visible(reader.view, version_of(writer_id), true));
  ASSERT_TRUE(node2.commit(&reader).ok());
}

}  // namespace
}  // namespace strata
