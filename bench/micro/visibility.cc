// May this view see that version? And what opening a view costs.
#include "micro.h"
#include "txn/testing/trx_store.h"
#include "txn/trx_system.h"

namespace strata::micro {
namespace {

using testing::TrxStore;

// A committed transaction that is not yet below the bound, as a version's writer.
TrxId commit_one(TrxStore* db) {
  Trx trx;
  db->trxs()->begin(&trx);
  must(db->change(&trx, "key").status());
  const TrxId id = trx.id;
  must(db->trxs()->commit(&trx));
  return id;
}

void check(benchmark::State& state, TrxStore* db, const RecordHeader& header, const char* limit) {
  Trx reader;
  db->trxs()->begin(&reader);
  must(db->trxs()->open_view(&reader));
  for (auto _ : state) {
    const StatusOr<bool> seen = db->trxs()->visible(reader.view, header, false);
    STRATA_ASSERT(seen.ok() && *seen);
  }
  db->trxs()->close_view(&reader);
  must(db->trxs()->commit(&reader));
  state.SetLabel(limit);
}

void recent(benchmark::State& state) {
  TrxStore db;
  const TrxId id = commit_one(&db);
  check(state, &db, RecordHeader{id, Cts{}, UndoPtr{}, 0}, "limit: load_16k x2");
}
BENCHMARK(recent)->Name("visibility/writer_in_table");

void old(benchmark::State& state) {
  TrxStore db;
  const TrxId id = commit_one(&db);
  db.purge_all();
  check(state, &db, RecordHeader{id, Cts{}, UndoPtr{}, 0}, "limit: load_16k");
}
BENCHMARK(old)->Name("visibility/writer_below_bound");

void view(benchmark::State& state) {
  TrxStore db;
  Trx reader;
  db.trxs()->begin(&reader);
  for (auto _ : state) {
    must(db.trxs()->open_view(&reader));
    db.trxs()->close_view(&reader);
  }
  must(db.trxs()->commit(&reader));
  state.SetLabel("limit: atomic_add x4");
}
BENCHMARK(view)->Name("visibility/open_and_close_view");

}  // namespace
}  // namespace strata::micro
