// Row changes: the clustered record, its outside values and its secondary entries, as one unit.
#include "base/assert.h"
#include "engine/internal/kernel_impl.h"
#include "engine/internal/references.h"
#include "engine/internal/row_change.h"

namespace strata::engine {
namespace {

// What a page takes, less the record's header and the count of outside values.
static_assert(kMaxRowBytes == kMaxRecordBytes - kRecordHeaderBytes - 1);
static_assert(kExternalBytes == kOverflowRefBytes);

Status check_sizes(const RowImage& row) {
  if (row.key.size() > kMaxKeyLength)
    return error_invalid_argument("the clustered key is too long");
  const size_t refs = size_t{row.external_count} * kExternalBytes;
  if (row.key.size() + row.inline_bytes.size() + refs > kMaxRowBytes) {
    return error_invalid_argument("the part of the row kept in the page is too large");
  }
  for (uint32_t i = 0; i < row.entry_count; ++i) {
    if (row.entries[i].key.size() + row.key.size() > kMaxKeyLength) {
      return error_invalid_argument("an index key with the primary key appended is too long");
    }
  }
  return ok_status();
}

}  // namespace

// A row that fails half-way is undone completely, whatever the statement does next (INSERT IGNORE,
// REPLACE).
Status Session::undo_row(const Savepoint& before, const Status& failure) {
  if (impl_->trx->must_rollback || is_deadlock(failure)) {
    impl_->trx->must_rollback = true;
    return failure;
  }
  if (is_no_space(failure)) impl_->kernel->growth_refused.store(true, std::memory_order_relaxed);
  STRATA_RETURN_IF_ERROR(rollback_to(before));
  return impl_->kernel->answer(failure);
}

Status Session::Impl::wait_for_log_room() {
  STRATA_RETURN_IF_ERROR(kernel->sink->wait_for_readers(&trx->interrupt));
  return kernel->checkpointer->wait_for_log_room(&trx->interrupt);
}

Status Session::Impl::delete_entry(const Table& table, uint32_t index, Bytes own_key,
                                   Bytes clustered_key) {
  STRATA_ASSERT(index != 0);
  key.assign(own_key);
  key.append(clustered_key);
  Status deleted = delete_record(&kernel->row, trx.get(), tree_of(table, index), key);
  if (!is_not_found(deleted)) return deleted;
  return error_corruption("table " + table.spec().schema + "." + table.spec().name + ", index " +
                          table.spec().indexes[index].name +
                          ": a row has no entry here; run CHECK TABLE and rebuild the table");
}

// The record itself is the lock now; statements that change many rows keep no list of them.
void Session::Impl::forget_lock(const Table& table, Bytes key) {
  kernel->waits->forget_changed(&trx->held, RowId{tree_of(table, 0).index_id, key});
}

Status Session::insert_row(Table* table, const RowImage& row, uint32_t* duplicate_index) {
  Impl& s = *impl_;
  if (s.trx->must_rollback) return error_deadlock();
  STRATA_RETURN_IF_ERROR(s.make_later());
  STRATA_RETURN_IF_ERROR(s.wait_for_log_room());
  *duplicate_index = 0;
  STRATA_RETURN_IF_ERROR(check_sizes(row));
  const Savepoint before{s.trx->undo.last.value, s.row_deltas.size(), s.ddl.size()};
  const RowKeys keys{.new_key = row.key, .new_entries = row.entries, .new_count = row.entry_count};
  STRATA_ASSIGN_OR_RETURN(const References::LinksRef links, s.links_to_check(table));
  const bool refers = links != nullptr && !links->parents.empty();
  const RowReferences asked(&s, table, &keys, refers ? links.get() : nullptr);
  RowChange change(&s, table, &asked);
  std::vector<OverflowRef> refs;
  for (;;) {
    Status status = row.external_count == 0 ? ok_status() : change.write_externals(row, {}, &refs);
    *duplicate_index = 0;
    if (status.ok()) {
      s.payload = encode_payload(refs, row.inline_bytes);
      status = change.insert_clustered(row.key, s.payload, row.auto_increment_used);
    }
    if (status.ok()) status = change.insert_entries(row, duplicate_index);
    if (status.ok() && refers) status = s.references->confirm_parents(links, keys, nullptr);
    if (status.ok()) break;
    const Status told = undo_row(before, status);
    if (!is_duplicate_key(told)) return told;
    bool again = false;
    STRATA_RETURN_IF_ERROR(change.lock_duplicate(row.changes_duplicates, &again));
    if (!again) return s.kernel->answer(told);
  }
  STRATA_ASSERT(has_changes());
  s.note_rows(table, 1);
  return ok_status();
}

Status Session::update_row(Table* table, Bytes old_key, const RowImage& row,
                           const EntryImage* entries_old, uint32_t entries_old_count,
                           uint32_t* duplicate_index) {
  Impl& s = *impl_;
  if (s.trx->must_rollback) return error_deadlock();
  STRATA_RETURN_IF_ERROR(s.make_later());
  STRATA_RETURN_IF_ERROR(s.wait_for_log_room());
  *duplicate_index = 0;
  STRATA_RETURN_IF_ERROR(check_sizes(row));
  const Savepoint before{s.trx->undo.last.value, s.row_deltas.size(), s.ddl.size()};
  const RowKeys keys{.old_key = old_key,
                     .old_entries = entries_old,
                     .old_count = entries_old_count,
                     .new_key = row.key,
                     .new_entries = row.entries,
                     .new_count = row.entry_count};
  STRATA_ASSIGN_OR_RETURN(const References::LinksRef links, s.links_to_check(table));
  const bool refers = links != nullptr && !links->parents.empty();
  const RowReferences asked(&s, table, &keys, refers ? links.get() : nullptr);
  RowChange change(&s, table, &asked);
  for (;;) {
    *duplicate_index = 0;
    Status status = change.update(old_key, row, entries_old, entries_old_count, duplicate_index);
    if (status.ok() && refers) status = s.references->confirm_parents(links, keys, nullptr);
    if (status.ok()) break;
    const Status told = undo_row(before, status);
    if (!is_duplicate_key(told)) return told;
    bool again = false;
    STRATA_RETURN_IF_ERROR(change.lock_duplicate(row.changes_duplicates, &again));
    if (!again) return s.kernel->answer(told);
  }
  STRATA_ASSERT(has_changes());
  s.forget_lock(*table, old_key);
  s.note_rows(table, 0);
  return ok_status();
}

Status Session::delete_row(Table* table, Bytes key, const EntryImage* entries,
                           uint32_t entry_count) {
  Impl& s = *impl_;
  if (s.trx->must_rollback) return error_deadlock();
  STRATA_RETURN_IF_ERROR(s.make_later());
  STRATA_RETURN_IF_ERROR(s.wait_for_log_room());
  const Savepoint before{s.trx->undo.last.value, s.row_deltas.size(), s.ddl.size()};
  const RowKeys keys{.old_key = key, .old_entries = entries, .old_count = entry_count};
  const RowReferences asked(&s, table, &keys, nullptr);
  RowChange change(&s, table, &asked);
  const Status status = change.remove(key, entries, entry_count);
  if (!status.ok()) return undo_row(before, status);
  STRATA_ASSERT(has_changes());
  s.forget_lock(*table, key);
  s.note_rows(table, -1);
  return ok_status();
}

}  // namespace strata::engine
