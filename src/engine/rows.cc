// Row changes: the clustered record, its outside values and its secondary entries, as one unit.
#include "base/assert.h"
#include "engine/internal/entry_payload.h"
#include "engine/internal/kernel_impl.h"

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

// The smallest key above all that start with this one; infinite when there is none.
void make_successor_of_prefix(std::string* key, bool* infinite) {
  while (!key->empty() && static_cast<uint8_t>(key->back()) == 0xff) key->pop_back();
  *infinite = key->empty();
  if (!*infinite) key->back() = static_cast<char>(static_cast<uint8_t>(key->back()) + 1);
}

class RowChange {
 public:
  RowChange(Session::Impl* session, Table* table)
      : s_(session), table_(table), row_(&session->kernel->row), trx_(session->trx.get()) {}

  Status insert_clustered(Bytes key, Bytes payload, uint64_t auto_increment) {
    const SlotRaise raise{SpaceId{table_->spec().space_id}, HeaderSlot::kAutoIncrement,
                          auto_increment};
    if (table_->has_noted(auto_increment)) auto_increment = 0;
    return insert(tree_of(*table_, 0), key, payload, 0, auto_increment != 0 ? &raise : nullptr);
  }

  Status insert_entries(const RowImage& row, uint32_t* duplicate_index) {
    for (uint32_t i = 0; i < row.entry_count; ++i) {
      const EntryImage& entry = row.entries[i];
      STRATA_ASSERT(entry.index != 0);
      s_->key.assign(entry.key);
      s_->key.append(row.key);
      make_entry_payload(row.key.size(), entry.covering, &scratch_, &s_->payload);
      const size_t unique_bytes = entry.check_unique ? entry.key.size() : SIZE_MAX;
      const Status inserted =
          insert(tree_of(*table_, entry.index), s_->key, s_->payload, unique_bytes, nullptr);
      if (is_duplicate_key(inserted)) *duplicate_index = entry.index;
      STRATA_RETURN_IF_ERROR(inserted);
    }
    return ok_status();
  }

  Status delete_entries(Bytes clustered_key, const EntryImage* entries, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
      STRATA_RETURN_IF_ERROR(
          s_->delete_entry(*table_, entries[i].index, entries[i].key, clustered_key));
    return ok_status();
  }

  // Whether there is a duplicate is something the transaction reads. At SERIALIZABLE the answer
  // must stay true, also after a rollback to a savepoint: "no" is protected now (others have waited
  // for the new record so far), "yes" counts only if it comes again under protection.
  Status insert(TreeId tree, Bytes key, Bytes payload, size_t unique_bytes,
                const SlotRaise* raise) {
    duplicate_tree_ = tree;
    const Status inserted =
        insert_record(row_, trx_, tree, key, payload, unique_bytes, raise, &duplicate_);
    if (s_->isolation != Isolation::kSerializable) return inserted;
    const bool whole = unique_bytes == 0 || unique_bytes >= key.size();
    const Bytes low = whole ? key : key.substr(0, unique_bytes);
    std::string high(low);
    bool infinite = false;
    if (whole) {
      high.push_back('\0');
    } else {
      make_successor_of_prefix(&high, &infinite);
    }
    if (inserted.ok()) {
      RowWaits* waits = row_->trxs->waits();
      waits->add_range(trx_->id, tree.index_id, {low, high, infinite});
      waits->settle_range(trx_->id, tree.index_id, {low, high, infinite});
    }
    if (!is_duplicate_key(inserted)) return inserted;
    RangeCursor range(row_, tree);
    range.set_bounds(low, high);
    STRATA_RETURN_IF_ERROR(range.seek(trx_, low));
    while (range.valid()) STRATA_RETURN_IF_ERROR(range.next());
    return insert_record(row_, trx_, tree, key, payload, unique_bytes, raise, &duplicate_);
  }

  // After kAlreadyExists, with the statement's own row undone: locks what is in the way, so that it
  // cannot vanish before the transaction ends. *again: it has vanished already, or was not the
  // statement's to lock yet; try the row anew. A statement that will change the duplicate gets the
  // row itself, whichever index has found it: with the entry locked first it would meet, head on,
  // everybody who goes from the row to its entries.
  Status lock_duplicate(bool exclusive, bool* again) {
    *again = false;
    if (duplicate_.own) return ok_status();
    const TreeId clustered = tree_of(*table_, 0);
    const bool is_entry = duplicate_tree_.index_id != clustered.index_id;
    if (!exclusive && s_->isolation == Isolation::kSerializable) return ok_status();  // insert()
    if (exclusive && is_entry) {
      const Bytes row_key = clustered_key_of(duplicate_.key, duplicate_.payload);
      if (locked_row_ == row_key && locked_entry_ == duplicate_.key) return ok_status();
      locked_row_.assign(row_key);
      locked_entry_ = duplicate_.key;
      *again = true;  // the row may have lost this entry before we got it
      const Status locked =
          lock_record(row_, trx_, clustered, locked_row_, RowLock::kExclusive, &s_->old_payload);
      if (is_not_found(locked)) locked_row_.clear();
      return is_not_found(locked) ? ok_status() : locked;
    }
    const Status locked =
        lock_record(row_, trx_, duplicate_tree_, duplicate_.key,
                    exclusive ? RowLock::kExclusive : RowLock::kShared, &s_->old_payload);
    *again = is_not_found(locked);
    return *again ? ok_status() : locked;
  }

  // The clustered record, and its outside values.
  Status update_clustered(Bytes old_key, const RowImage& row) {
    const TreeId clustered = tree_of(*table_, 0);
    if (old_key == row.key && row.external_count == 0) {
      s_->payload = encode_payload({}, row.inline_bytes);
      return update_record(row_, trx_, clustered, row.key, s_->payload);
    }
    std::vector<OverflowRef> old_refs;
    std::vector<OverflowRef> new_refs;
    Bytes old_inline;
    STRATA_RETURN_IF_ERROR(
        lock_record(row_, trx_, clustered, old_key, RowLock::kExclusive, &s_->old_payload));
    STRATA_RETURN_IF_ERROR(decode_payload(s_->old_payload, &old_refs, &old_inline));
    STRATA_RETURN_IF_ERROR(write_externals(row, old_refs, &new_refs));
    s_->payload = encode_payload(new_refs, row.inline_bytes);
    if (old_key == row.key) return update_record(row_, trx_, clustered, row.key, s_->payload);
    STRATA_RETURN_IF_ERROR(insert_clustered(row.key, s_->payload, row.auto_increment_used));
    return delete_record(row_, trx_, clustered, old_key, new_refs);
  }

  Status delete_clustered(Bytes key) { return delete_record(row_, trx_, tree_of(*table_, 0), key); }

  // Writes the outside values; unchanged ones take over the old chain.
  Status write_externals(const RowImage& row, const std::vector<OverflowRef>& old_refs,
                         std::vector<OverflowRef>* refs) {
    refs->clear();
    for (uint32_t i = 0; i < row.external_count; ++i) {
      const ExternalImage& external = row.externals[i];
      if (external.unchanged_from >= 0) {
        const auto from = static_cast<size_t>(external.unchanged_from);
        if (from >= old_refs.size())
          return error_invalid_argument("no such outside value in the old row");
        refs->push_back(old_refs[from]);
        continue;
      }
      STRATA_ASSIGN_OR_RETURN(
          const OverflowRef ref,
          write_overflow(row_, trx_, SpaceId{table_->spec().space_id}, external.value));
      refs->push_back(ref);
    }
    return ok_status();
  }

 private:
  Session::Impl* s_;
  Table* table_;
  RowContext* row_;
  Trx* trx_;
  std::string scratch_;
  TreeId duplicate_tree_{};  // of the last insert
  Duplicate duplicate_;      // valid if that failed with kAlreadyExists
  std::string locked_row_;   // by lock_duplicate(), for which entry
  std::string locked_entry_;
};

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
  RowChange change(&s, table);
  std::vector<OverflowRef> refs;
  for (;;) {
    Status status = row.external_count == 0 ? ok_status() : change.write_externals(row, {}, &refs);
    *duplicate_index = 0;
    if (status.ok()) {
      s.payload = encode_payload(refs, row.inline_bytes);
      status = change.insert_clustered(row.key, s.payload, row.auto_increment_used);
    }
    if (status.ok()) status = change.insert_entries(row, duplicate_index);
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
  RowChange change(&s, table);
  for (;;) {
    *duplicate_index = 0;
    Status status = change.update_clustered(old_key, row);
    if (status.ok()) status = change.delete_entries(old_key, entries_old, entries_old_count);
    if (status.ok()) status = change.insert_entries(row, duplicate_index);
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
  RowChange change(&s, table);
  Status status = change.delete_clustered(key);
  if (status.ok()) status = change.delete_entries(key, entries, entry_count);
  if (!status.ok()) return undo_row(before, status);
  STRATA_ASSERT(has_changes());
  s.forget_lock(*table, key);
  s.note_rows(table, -1);
  return ok_status();
}

}  // namespace strata::engine
