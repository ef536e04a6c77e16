// For tests of transactions: a small store (simulated disk) with undo space, lock table, oracle and
// TrxSystem of node 1. crash() loses what was not synced, restart() recovers.
#pragma once

#include <memory>
#include <vector>

#include "lock/row_waits.h"
#include "space/testing/test_store.h"
#include "txn/trx_system.h"
#include "undo/undo_log.h"

namespace strata::testing {

class TrxStore {
 public:
  // What else a node that is one of several has; null: as with one writer. They outlive this.
  struct Seams {
    TimestampSource* timestamps = nullptr;
    ViewHorizon* horizon = nullptr;
    TitSource* others = nullptr;
  };
  explicit TrxStore(uint32_t tit_slots = 1u << 10, uint32_t frames = 256)
      : TrxStore(tit_slots, frames, Seams()) {}
  TrxStore(uint32_t tit_slots, uint32_t frames, const Seams& seams)
      : tit_slots_(tit_slots), seams_(seams), store_({.frames = frames}) {
    EXPECT_TRUE(spaces()->create(SpaceId{kSystemSpace}).ok());
    make_system_page();
    EXPECT_TRUE(spaces()->create(SpaceId{undo_space_of(NodeId{1})}).ok());
    wire();
    EXPECT_TRUE(trxs()->initialise().ok());
    EXPECT_TRUE(store_.persist_all().ok());
  }
  ~TrxStore() { unwire(); }

  void set_tit_slots(uint32_t slots) { tit_slots_ = slots; }  // from the next restart on
  TrxSystem* trxs() { return trxs_.get(); }
  UndoSpace* undo() { return undo_.get(); }
  RowWaits* waits() { return waits_.get(); }
  TimestampSource* timestamps() {
    return seams_.timestamps != nullptr ? seams_.timestamps : timestamps_.get();
  }
  BufferPool* pool() { return store_.pool(); }
  Log* log() { return store_.log(); }
  SpaceManager* spaces() { return store_.spaces(); }
  TestStore* store() { return &store_; }

  // Transactions that were open are lost: the caller drops its Trx objects first (reset_trx).
  Status crash_and_recover(uint64_t seed, std::vector<std::unique_ptr<Trx>>* active,
                           std::vector<std::unique_ptr<Trx>>* prepared) {
    unwire();
    store_.crash(seed);
    STRATA_RETURN_IF_ERROR(store_.recover());
    STRATA_RETURN_IF_ERROR(spaces()->open(SpaceId{kSystemSpace}, true));
    STRATA_RETURN_IF_ERROR(spaces()->open(SpaceId{undo_space_of(NodeId{1})}, true));
    wire();
    return trxs()->recover(active, prepared);
  }

  // A change of a row: one undo record.
  StatusOr<UndoPtr> change(Trx* trx, Bytes key) {
    STRATA_RETURN_IF_ERROR(trxs()->prepare_change(trx, undo_bytes_max(key.size(), 0, 0)));
    Mtr mtr(pool(), log());
    STRATA_RETURN_IF_ERROR(mtr.begin_write());
    UndoRecord record;
    record.type = UndoType::kInsert;
    record.index = IndexId{5};
    record.root = PageId{kFirstUserSpace, 2};
    record.key.assign(key);
    STRATA_ASSIGN_OR_RETURN(const UndoPtr ptr, trxs()->add_undo(&mtr, trx, &record));
    mtr.publish();
    return ptr;
  }
  // What the row layer does: undoes (here: nothing) from the newest record on, then ends.
  Status rollback(Trx* trx) {
    STRATA_RETURN_IF_ERROR(trxs()->begin_rollback(trx));
    STRATA_RETURN_IF_ERROR(rollback_to(trx, UndoPtr{}));
    return trxs()->finish_rollback(trx);
  }
  Status rollback_to(Trx* trx, UndoPtr to) {
    while (!trx->undo.last.is_zero() && trx->undo.last != to) {
      UndoRecord record;
      STRATA_RETURN_IF_ERROR(read_undo(pool(), trx->undo.last, trx->id, &record));
      undo()->rewind(&trx->undo, record.prev_in_trx);
    }
    return ok_status();
  }
  // Purges all it may; returns how many.
  uint64_t purge_all() {
    uint64_t done = 0;
    TrxSystem::PurgeItem item;
    while (trxs()->next_to_purge(&item)) {
      EXPECT_TRUE(for_each_undo(pool(), item.id, item.first_undo, [](UndoPtr, const UndoRecord&) {
                    return ok_status();
                  }).ok());
      EXPECT_TRUE(trxs()->purged(item).ok());
      ++done;
    }
    return done;
  }

 private:
  void make_system_page() {
    EXPECT_TRUE(spaces()->ensure_room(SpaceId{kSystemSpace}, 1).ok());
    Mtr mtr(pool(), log());
    EXPECT_TRUE(mtr.begin_write().ok());
    const StatusOr<uint32_t> number = spaces()->allocate(&mtr, SpaceId{kSystemSpace});
    EXPECT_EQ(*number, kPendingDeletePage.number);
    mtr.init_plain(*mtr.fix_new(kPendingDeletePage), PageType::kSystem, IndexId{}, 0);
    mtr.publish();
  }
  void wire() {
    undo_ = std::make_unique<UndoSpace>(pool(), log(), spaces(), NodeId{1});
    waits_ = std::make_unique<RowWaits>();
    timestamps_ = make_local_timestamp_source(pool(), log(), spaces());
    trxs_ = std::make_unique<TrxSystem>(
        TrxSystemOptions{NodeId{1}, tit_slots_, seams_.horizon, seams_.others}, pool(), log(),
        spaces(), undo_.get(), timestamps(), waits_.get());
  }
  void unwire() {
    trxs_.reset();
    timestamps_.reset();
    waits_.reset();
    undo_.reset();
  }

  uint32_t tit_slots_;
  const Seams seams_;
  TestStore store_;
  std::unique_ptr<UndoSpace> undo_;
  std::unique_ptr<RowWaits> waits_;
  std::unique_ptr<TimestampSource> timestamps_;
  std::unique_ptr<TrxSystem> trxs_;
};

}  // namespace strata::testing
