// Changes that a scan leaves for later, to be made leaf by leaf (E21).
#include "base/assert.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {
namespace {

// As many as a scan copies from a leaf at once, and no more memory than a few pages.
constexpr size_t kLaterRowsMax = 64;
constexpr size_t kLaterBytesMax = 64 * 1024;

}  // namespace

Status Session::update_row_later(Table* table, Bytes key, Bytes inline_bytes) {
  Impl& s = *impl_;
  s.payload = encode_payload({}, inline_bytes);
  const Impl::LaterRow row{.key_bytes = static_cast<uint32_t>(key.size()),
                           .payload_bytes = static_cast<uint32_t>(s.payload.size()),
                           .entry_count = 0,
                           .deletes = false};
  return s.add_later(table, row, key, s.payload, nullptr);
}

Status Session::delete_row_later(Table* table, Bytes key, const EntryImage* entries,
                                 uint32_t entry_count) {
  // What follows from it (FK2) is not to be left for later.
  if (table->references() != nullptr) return delete_row(table, key, entries, entry_count);
  const Impl::LaterRow row{.key_bytes = static_cast<uint32_t>(key.size()),
                           .payload_bytes = 0,
                           .entry_count = entry_count,
                           .deletes = true};
  return impl_->add_later(table, row, key, Bytes(), entries);
}

Status Session::Impl::add_later(Table* table, const LaterRow& row, Bytes key_of_row,
                                Bytes new_payload, const EntryImage* entries) {
  if (trx->must_rollback) return error_deadlock();
  if (!later.failed.ok() || (!later.rows.empty() && later.table.get() != table))
    STRATA_RETURN_IF_ERROR(session->make_later_changes());
  if (later.rows.empty()) later.table = table->shared_from_this();
  STRATA_ASSERT(later.failed.ok() && later.table.get() == table);
  STRATA_ASSERT(later.rows.size() < kLaterRowsMax && (row.deletes || row.entry_count == 0));
  later.bytes.append(key_of_row).append(new_payload);
  for (uint32_t i = 0; i < row.entry_count; ++i) {
    later.bytes.append(entries[i].key);
    later.entries.push_back({entries[i].index, static_cast<uint32_t>(entries[i].key.size())});
  }
  later.rows.push_back(row);
  const bool full = later.rows.size() >= kLaterRowsMax || later.bytes.size() >= kLaterBytesMax;
  return full ? session->make_later_changes() : ok_status();
}

void Session::Impl::drop_later() noexcept {
  later.rows.clear();
  later.entries.clear();
  later.bytes.clear();
  later.table.reset();
  later.failed = ok_status();
}

Status Session::make_later_changes() {
  Impl& s = *impl_;
  if (!s.later.failed.ok()) return s.later.failed;
  if (s.later.rows.empty()) return ok_status();
  Status made = s.trx->must_rollback ? error_deadlock() : s.apply_later();
  if (!made.ok()) {
    if (is_deadlock(made)) s.trx->must_rollback = true;
    if (is_no_space(made)) s.kernel->growth_refused.store(true, std::memory_order_relaxed);
    made = s.kernel->answer(made);
  }
  s.drop_later();
  s.later.failed = made;
  return made;
}

Status Session::Impl::apply_later() {
  STRATA_RETURN_IF_ERROR(wait_for_log_room());
  STRATA_ASSERT(trx->started && later.table != nullptr);
  Table* const table = later.table.get();
  const TreeId clustered = tree_of(*table, 0);
  later.changes.clear();
  const char* at = later.bytes.data();
  size_t entry = 0;
  for (const LaterRow& row : later.rows) {
    const Bytes row_key(at, row.key_bytes);
    const Bytes row_payload(at + row.key_bytes, row.payload_bytes);
    later.changes.push_back({row_key, row_payload, row.deletes});
    at += row.key_bytes + row.payload_bytes;
    for (uint32_t i = 0; i < row.entry_count; ++i) at += later.entries[entry++].key_bytes;
  }
  STRATA_ASSERT(at == later.bytes.data() + later.bytes.size() && entry == later.entries.size());
  STRATA_RETURN_IF_ERROR(change_held_records(&kernel->row, trx.get(), clustered,
                                             later.changes.data(), later.changes.size()));
  entry = 0;
  for (size_t i = 0; i < later.rows.size(); ++i) {
    const LaterRow& row = later.rows[i];
    const Bytes row_key = later.changes[i].key;
    const char* own = row_key.data() + row.key_bytes + row.payload_bytes;
    for (uint32_t n = 0; n < row.entry_count; ++n) {
      const LaterEntry& gone = later.entries[entry++];
      STRATA_RETURN_IF_ERROR(delete_entry(*table, gone.index, Bytes(own, gone.key_bytes), row_key));
      own += gone.key_bytes;
    }
    forget_lock(*table, row_key);
    note_rows(table, row.deletes ? -1 : 0);
  }
  return ok_status();
}

}  // namespace strata::engine
