// The steps of one row's change: its clustered record, its outside values and its secondary
// entries.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/assert.h"
#include "engine/internal/entry_payload.h"
#include "engine/internal/kernel_impl.h"
#include "engine/internal/references.h"

namespace strata::engine {

// The smallest key above all that start with this one; infinite when there is none.
inline void make_successor_of_prefix(std::string* key, bool* infinite) {
  while (!key->empty() && static_cast<uint8_t>(key->back()) == 0xff) key->pop_back();
  *infinite = key->empty();
  if (!*infinite) key->back() = static_cast<char>(static_cast<uint8_t>(key->back()) + 1);
}

class RowChange {
 public:
  // `references` is asked at each of the row's keys (FK10).
  RowChange(Session::Impl* session, Table* table, const RowReferences* references)
      : s_(session),
        table_(table),
        row_(&session->kernel->row),
        trx_(session->trx.get()),
        references_(references) {}

  // All of a row's change but what needs its own answer: insert_row().
  Status update(Bytes old_key, const RowImage& row, const EntryImage* old_entries,
                uint32_t old_count, uint32_t* duplicate_index) {
    STRATA_RETURN_IF_ERROR(update_clustered(old_key, row));
    uint32_t o = 0;
    uint32_t n = 0;
    while (o < old_count || n < row.entry_count) {
      const uint32_t index = std::min(o < old_count ? old_entries[o].index : UINT32_MAX,
                                      n < row.entry_count ? row.entries[n].index : UINT32_MAX);
      if (o < old_count && old_entries[o].index == index)
        STRATA_RETURN_IF_ERROR(delete_entry(old_key, old_entries[o++]));
      if (n < row.entry_count && row.entries[n].index == index)
        STRATA_RETURN_IF_ERROR(insert_entry(row.key, row.entries[n++], duplicate_index));
    }
    return ok_status();
  }

  Status remove(Bytes key, const EntryImage* entries, uint32_t count) {
    STRATA_RETURN_IF_ERROR(delete_record(row_, trx_, tree_of(*table_, 0), key));
    STRATA_RETURN_IF_ERROR(references_->after(0));
    for (uint32_t i = 0; i < count; ++i) STRATA_RETURN_IF_ERROR(delete_entry(key, entries[i]));
    return ok_status();
  }

  Status insert_clustered(Bytes key, Bytes payload, uint64_t auto_increment) {
    const SlotRaise raise{SpaceId{table_->spec().space_id}, HeaderSlot::kAutoIncrement,
                          auto_increment};
    STRATA_RETURN_IF_ERROR(references_->before(0, key));
    if (table_->has_noted(auto_increment)) auto_increment = 0;
    return insert(tree_of(*table_, 0), key, payload, 0, auto_increment != 0 ? &raise : nullptr);
  }

  Status insert_entries(const RowImage& row, uint32_t* duplicate_index) {
    for (uint32_t i = 0; i < row.entry_count; ++i)
      STRATA_RETURN_IF_ERROR(insert_entry(row.key, row.entries[i], duplicate_index));
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
    moved_.swap(s_->payload);  // which those that follow use, too
    STRATA_RETURN_IF_ERROR(delete_record(row_, trx_, clustered, old_key, new_refs));
    STRATA_RETURN_IF_ERROR(references_->after(0, moved_));
    return insert_clustered(row.key, moved_, row.auto_increment_used);
  }

  Status insert_entry(Bytes row_key, const EntryImage& entry, uint32_t* duplicate_index) {
    STRATA_ASSERT(entry.index != 0);
    STRATA_RETURN_IF_ERROR(references_->before(entry.index, entry.key));
    s_->key.assign(entry.key);
    s_->key.append(row_key);
    make_entry_payload(row_key.size(), entry.covering, &scratch_, &s_->payload);
    const size_t unique_bytes = entry.check_unique ? entry.key.size() : SIZE_MAX;
    const Status inserted =
        insert(tree_of(*table_, entry.index), s_->key, s_->payload, unique_bytes, nullptr);
    if (is_duplicate_key(inserted)) *duplicate_index = entry.index;
    return inserted;
  }

  Status delete_entry(Bytes row_key, const EntryImage& entry) {
    STRATA_RETURN_IF_ERROR(s_->delete_entry(*table_, entry.index, entry.key, row_key));
    return references_->after(entry.index);
  }

  Session::Impl* s_;
  Table* table_;
  RowContext* row_;
  Trx* trx_;
  const RowReferences* references_;
  std::string scratch_;
  std::string moved_;        // payload of a row that gets another clustered key
  TreeId duplicate_tree_{};  // of the last insert
  Duplicate duplicate_;      // valid if that failed with kAlreadyExists
  std::string locked_row_;   // by lock_duplicate(), for which entry
  std::string locked_entry_;
};

}  // namespace strata::engine
