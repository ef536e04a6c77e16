// Reading rows: table scans, index scans, point reads, pushed conditions, MRR.
//
//   HC1  An entry is looked at in this order: prefix and range limits by memcmp of keys, pushed
//        condition from key and covering bytes, then the row (and its lock). Rows that do not
//        qualify are neither fetched nor locked.
//   HC2  An UPDATE at READ COMMITTED sees the latest committed version of a row first and gets the
//        row locked only if it qualifies: it asks for the same row again then. So it neither waits
//        for rows it does not want nor locks them.
#include "mariadb/ha_strata.h"

namespace strata::glue {

ScanTerms ha_strata::terms() const {
  const bool protects_gaps = checks_uniqueness();
  return {.session = session(),
          .table = &table_,
          .generation = connection_->generation,
          .lock = is_sequence() ? engine::LockMode::kNone : locks_.in_force,  // SEQ2
          .skip_locked = locks_.skip_locked,
          .reads_dirty = reads_what_is_there(),
          .protects_gaps = protects_gaps,
          .needs_limits = locks_.needs_limits || protects_gaps};
}

// --- one entry ---

// Whether there is a pushed index condition to look at. It needs the index's columns in record[0].
bool ha_strata::condition_applies(const uchar* buffer) const noexcept {
  return pushed_idx_cond != nullptr && active_index == pushed_idx_cond_keyno &&
         buffer == table->record[0] && scan_.index() != 0;
}

int ha_strata::evaluate_condition(bool* skip, bool* stop) {
  // The server's own look at the range's end would read columns of which the index has a prefix
  // only.
  key_range* const end = end_range;
  if (!in_range_check_pushed_down) end_range = nullptr;
  const check_result_t result = handler_index_cond_check(this);
  end_range = end;
  switch (result) {
    case CHECK_POS:
      return 0;
    case CHECK_NEG:
      *skip = true;
      return 0;
    case CHECK_OUT_OF_RANGE:
      *stop = true;
      return 0;
    case CHECK_ABORTED_BY_USER:
      return HA_ERR_ABORTED_BY_USER;
    case CHECK_ERROR:
      break;
  }
  return HA_ERR_INTERNAL_ERROR;
}

// HA_ERR_KEY_NOT_FOUND: at READ UNCOMMITTED the row can go before all of it was read.
int ha_strata::deliver(engine::TableCursor* cursor, uchar* buffer, const MY_BITMAP* columns) {
  scan_.stand_on(cursor);
  if (rows_.layout().hidden_key()) scan_.set_hidden_key(cursor->clustered_key());
  for (;;) {
    const Status status = rows_.decode(cursor, columns, buffer);
    if (status.ok()) {
      if (!locks_.to_change()) rows_.codec().reset_generated_nulls(columns, buffer);
      return 0;
    }
    if (!is_not_found(status)) return fail(status);
    bool gone = false;  // changed under a dirty read
    const Status again = cursor->fetch_again(&gone);
    if (!again.ok()) return fail(again);
    if (gone) return HA_ERR_KEY_NOT_FOUND;
  }
}

int ha_strata::deliver_entry(const engine::TableCursor::Entry& entry, uchar* buffer) {
  scan_.stand_on_no_row();
  if (rows_.layout().hidden_key()) scan_.set_hidden_key(entry.clustered_key);
  return rows_.decode_entry(scan_.index(), entry, buffer) ? 0 : HA_ERR_CRASHED;
}

// Whether the entry gives the server all it looks at. In the key-only reads of a multi-range read,
// which it does not count as such, it computes virtual columns again.
bool ha_strata::reads_key_only() {
  return keyread_ && scan_.index() != 0 && locks_.none() &&
         rows_.entry_is_enough(scan_.index(), !keyread_enabled());
}

// The row stands in for an entry that does not say enough; a pushed condition is evaluated on it
// then. HA_ERR_KEY_NOT_FOUND: it does not qualify, or is gone.
int ha_strata::deliver_for_entry(uchar* buffer, bool has_condition) {
  const MY_BITMAP* const columns = rows_.columns_of_entry(locks_.to_change(), scan_.index());
  if (const int error = deliver(scan_.cursor(), buffer, columns)) return error;
  if (!has_condition) return 0;
  bool skip = false;
  bool stop = false;
  if (const int error = evaluate_condition(&skip, &stop)) return error;
  if (!skip && !stop) return 0;
  if (const int error = give_back_row()) return error;
  return stop ? HA_ERR_END_OF_FILE : HA_ERR_KEY_NOT_FOUND;
}

// HC1.
int ha_strata::walk(uchar* buffer, Direction direction) {
  for (;;) {
    engine::TableCursor::Entry entry;
    bool stop = false;
    const Status arrived = scan_.arrive(direction, &entry, &stop);
    if (!arrived.ok()) return fail(arrived);
    if (stop) return HA_ERR_END_OF_FILE;
    const bool has_condition = condition_applies(buffer);
    const bool key_only = reads_key_only();
    const bool needs_row =
        (has_condition || key_only) && !rows_.layout().is_whole(scan_.index(), entry, buffer);
    bool skip = false;
    if (has_condition && !needs_row) {
      if (!rows_.decode_entry(scan_.index(), entry, buffer)) return HA_ERR_CRASHED;
      if (const int error = evaluate_condition(&skip, &stop)) return error;
      if (stop) return HA_ERR_END_OF_FILE;
    }
    if (!skip) {
      if (key_only && !needs_row) return deliver_entry(entry, buffer);
      bool gone = false;
      const Status fetched = scan_.fetch(&gone);
      if (!fetched.ok()) return fail(fetched);
      if (!gone) {
        const int error =
            needs_row ? deliver_for_entry(buffer, has_condition)
                      : deliver(scan_.cursor(), buffer, rows_.wanted_columns(locks_.to_change()));
        if (error != HA_ERR_KEY_NOT_FOUND) return error;
      }
    }
    const Status moved = scan_.move(direction);
    if (!moved.ok()) return fail(moved);
  }
}

int ha_strata::walk_from(const Status& sought, uchar* buffer, Direction direction) {
  return sought.ok() ? walk(buffer, direction) : fail(sought);
}

int ha_strata::step(uchar* buffer, Direction direction) {
  if (scan_.must_resume(connection_->generation)) {
    bool at_end = false;
    const Status resumed = scan_.resume(terms(), direction, &at_end);
    if (at_end) return HA_ERR_END_OF_FILE;
    return walk_from(resumed, buffer, direction);
  }
  if (!scan_.on_entry()) return HA_ERR_END_OF_FILE;
  if (scan_.did_semi_read()) {  // the row qualified: now with a lock
    bool gone = false;
    const Status status = scan_.fetch_again_locked(&gone);
    if (!status.ok()) return fail(status);
    if (!gone) return deliver(scan_.cursor(), buffer, rows_.wanted_columns(locks_.to_change()));
  }
  const Status moved = scan_.step(direction);
  return moved.ok() ? walk(buffer, direction) : fail(moved);
}

// The last moment to say of an UPDATE that it did not work.
int ha_strata::end_of_scan(int error) {
  if (error != HA_ERR_END_OF_FILE || !scan_.changes_later()) return error;
  const int failed = make_later_changes();
  return failed == 0 ? error : failed;
}

// --- table scan and positions ---

int ha_strata::rnd_init(bool scan) {
  scan_.begin_table(scan);
  if (!is_sequence()) return 0;
  return guarded([&] { return begin_on_table(); });  // SEQ3
}

int ha_strata::rnd_end() {
  scan_.end_table();
  return 0;
}

int ha_strata::rnd_next(uchar* buffer) {
  return guarded([&] {
    if (!scan_.starts_table()) return end_of_scan(step(buffer, Direction::kForward));
    return walk_from(scan_.start_table(terms()), buffer, Direction::kForward);
  });
}

int ha_strata::rnd_pos(uchar* buffer, uchar* position) {
  return guarded([&] {
    const Bytes key(reinterpret_cast<const char*>(position) + kRefLengthBytes, load_u16(position));
    engine::TableCursor* cursor = nullptr;
    bool gone = false;
    const Status status = scan_.read_row(terms(), key, &cursor, &gone);
    if (!status.ok()) return fail(status);
    return gone ? HA_ERR_KEY_NOT_FOUND
                : deliver(cursor, buffer, rows_.wanted_columns(locks_.to_change()));
  });
}

void ha_strata::position(const uchar* record) {
  (void)guarded([&] {
    Bytes key = scan_.hidden_key();
    if (!rows_.layout().hidden_key()) {
      // Not too long: it is in the table.
      rows_.clustered_key_of(record, &key).IgnoreError();
    }
    const size_t size = std::min<size_t>(key.size(), ref_length - kRefLengthBytes);
    store_u16(ref, static_cast<uint16_t>(size));
    std::memcpy(ref + kRefLengthBytes, key.data(), size);
    std::memset(ref + kRefLengthBytes + size, 0, ref_length - kRefLengthBytes - size);
    return 0;
  });
}

// --- index scan ---

int ha_strata::index_init(uint key, bool) {
  active_index = key;
  scan_.begin(rows_.layout().kernel_index(key));
  return 0;
}

int ha_strata::index_end() {
  active_index = MAX_KEY;
  scan_.end();
  return 0;
}

namespace {

std::optional<Search> search_of(ha_rkey_function mode) {
  switch (mode) {
    case HA_READ_PREFIX:  // the server reads its routines so, with whole key parts
    case HA_READ_KEY_EXACT:
      return Search::kExact;
    case HA_READ_KEY_OR_NEXT:
      return Search::kAtLeast;
    case HA_READ_AFTER_KEY:
      return Search::kAfter;
    case HA_READ_BEFORE_KEY:
      return Search::kBefore;
    case HA_READ_PREFIX_LAST:
      return Search::kLastExact;
    case HA_READ_KEY_OR_PREV:
    case HA_READ_PREFIX_LAST_OR_PREV:
      return Search::kLastAtMost;
    default:
      return std::nullopt;
  }
}

}  // namespace

int ha_strata::index_read_map(uchar* buffer, const uchar* key, key_part_map parts,
                              ha_rkey_function mode) {
  return guarded([&]() -> int {
    const std::optional<Search> wanted = search_of(mode);
    if (!wanted.has_value()) return HA_ERR_WRONG_COMMAND;
    const Search search = *wanted;
    const uint32_t index = rows_.layout().kernel_index(active_index);
    const ScanTerms terms = this->terms();
    const uint key_bytes = key == nullptr ? 0 : calculate_key_len(table, active_index, key, parts);
    Buffer* const search_key = scan_.start_search(terms, index);
    size_t own = SIZE_MAX;
    if (key_bytes != 0) rows_.append_search_key(index, key, key_bytes, search_key, &own);
    const bool one_row = search == Search::kExact && rows_.layout().index(index).unique &&
                         key != nullptr && key_bytes == table->key_info[active_index].key_length;
    const Status sought = scan_.search(terms, search, own, one_row);
    if (!sought.ok()) return fail(sought);
    const int error = walk(buffer, direction_of(search));
    const bool found_none = error == HA_ERR_END_OF_FILE;
    scan_.end_search(search, found_none);
    return found_none ? HA_ERR_KEY_NOT_FOUND : error;
  });
}

int ha_strata::index_read_last_map(uchar* buffer, const uchar* key, key_part_map parts) {
  return index_read_map(buffer, key, parts, HA_READ_PREFIX_LAST);
}

int ha_strata::index_next(uchar* buffer) {
  return guarded([&] {
    scan_.go_on(Direction::kForward, needs_limits());
    return end_of_scan(step(buffer, Direction::kForward));
  });
}

int ha_strata::index_prev(uchar* buffer) {
  return guarded([&] {
    scan_.go_on(Direction::kBackward, needs_limits());
    return step(buffer, Direction::kBackward);
  });
}

int ha_strata::index_next_same(uchar* buffer, const uchar* key, uint key_length) {
  return guarded([&] {
    size_t own = SIZE_MAX;
    Buffer* const wanted = scan_.start_key();
    if (key_length != 0) rows_.append_search_key(scan_.index(), key, key_length, wanted, &own);
    scan_.keep_to_key(own, needs_limits());
    const int error = step(buffer, Direction::kForward);
    scan_.leave_key();
    return end_of_scan(error);
  });
}

int ha_strata::index_first(uchar* buffer) {
  return guarded([&] {
    const uint32_t index = rows_.layout().kernel_index(active_index);
    return walk_from(scan_.seek_first(terms(), index), buffer, Direction::kForward);
  });
}

int ha_strata::index_last(uchar* buffer) {
  return guarded([&] {
    const uint32_t index = rows_.layout().kernel_index(active_index);
    return walk_from(scan_.seek_last(terms(), index), buffer, Direction::kBackward);
  });
}

// Passes the end of the range down (HC1); the rest is the server's own.
int ha_strata::read_range_first(const key_range* start, const key_range* end, bool equal,
                                bool sorted) {
  const int prepared = guarded([&] {
    Buffer* const range_end = scan_.start_range();
    if (end == nullptr || equal) return 0;
    size_t own = 0;
    rows_.append_search_key(rows_.layout().kernel_index(active_index), end->key, end->length,
                            range_end, &own);
    scan_.end_range(end->flag != HA_READ_BEFORE_KEY);
    return 0;
  });
  if (prepared != 0) return prepared;
  scan_.hold_range(true);
  const int error = handler::read_range_first(start, end, equal, sorted);
  scan_.hold_range(false);
  return error;
}

Item* ha_strata::idx_cond_push(uint key, Item* condition) {
  const uint32_t index = rows_.layout().kernel_index(key);
  const IndexLayout& layout = rows_.layout().index(index);
  if (index == 0 || layout.has_virtual) return condition;
  pushed_idx_cond = condition;
  pushed_idx_cond_keyno = key;
  in_range_check_pushed_down = !layout.codec.has_prefix();
  return nullptr;
}

// --- MRR: the server's implementation; it sorts row ids, so it may not be used when order of
// locking matters ---

int ha_strata::multi_range_read_init(RANGE_SEQ_IF* ranges, void* parameter, uint count, uint mode,
                                     HANDLER_BUFFER* buffer) {
  return ds_mrr_.dsmrr_init(this, ranges, parameter, count, mode, buffer);
}

int ha_strata::multi_range_read_next(range_id_t* range) { return ds_mrr_.dsmrr_next(range); }

ha_rows ha_strata::multi_range_read_info_const(uint key, RANGE_SEQ_IF* ranges, void* parameter,
                                               uint count, uint* buffer_size, uint* flags,
                                               Cost_estimate* cost) {
  ds_mrr_.init(this, table);
  if (!locks_.none()) *flags |= HA_MRR_USE_DEFAULT_IMPL;
  const ha_rows rows =
      ds_mrr_.dsmrr_info_const(key, ranges, parameter, count, buffer_size, flags, cost);
  if (rows != HA_POS_ERROR) cost->cpu_cost += look_up_cost(key, *flags, rows);
  return rows;
}

// What the server leaves out of a range's cost. It counts a row found through an entry as much as
// five rows of a scan; in memory it takes as long as six to twelve (TPC-H, o_date and l_ship), the
// most of it for the way down the tree. A tree of one page has none. Not where rows are locked: a
// scan would lock them all.
double ha_strata::look_up_cost(uint key, uint mrr_flags, ha_rows rows) const {
  constexpr double kPerRow = 1;
  const bool looks_up = key != table->s->primary_key && (mrr_flags & HA_MRR_INDEX_ONLY) == 0 &&
                        (mrr_flags & HA_MRR_USE_DEFAULT_IMPL) != 0 &&
                        stats.data_file_length > stats.block_size;
  if (!looks_up || !locks_.none()) return 0;
  return kPerRow * static_cast<double>(rows);
}

ha_rows ha_strata::multi_range_read_info(uint key, uint count, uint keys, uint key_parts,
                                         uint* buffer_size, uint* flags, Cost_estimate* cost) {
  ds_mrr_.init(this, table);
  return ds_mrr_.dsmrr_info(key, count, keys, key_parts, buffer_size, flags, cost);
}

int ha_strata::multi_range_read_explain_info(uint mode, char* text, size_t size) {
  return ds_mrr_.dsmrr_explain_info(mode, text, size);
}

}  // namespace strata::glue
