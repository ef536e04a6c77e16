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
namespace {

bool starts_with(Bytes key, Bytes prefix) {
  return key.size() >= prefix.size() && std::memcmp(key.data(), prefix.data(), prefix.size()) == 0;
}

}  // namespace

// The first key behind all that start with this one; infinite when there is none.
void ha_strata::make_successor(Buffer* key, bool* infinite) {
  size_t size = key->size();
  while (size > 0 && key->data()[size - 1] == 0xff) --size;
  *infinite = size == 0;
  if (*infinite) return;
  key->shrink(size);
  ++key->data()[size - 1];
}

engine::TableCursor* ha_strata::make_cursor(std::unique_ptr<engine::TableCursor>* slot,
                                            uint32_t index) {
  const bool is_scan = slot == &cursor_;
  if (*slot == nullptr || (is_scan && cursor_index_ != index)) {
    if (at_ == slot->get()) at_ = nullptr;
    *slot = std::make_unique<engine::TableCursor>(session(), table_, index);
    if (is_scan) cursor_index_ = index;
  }
  (*slot)->use_in(session());  // the server hands tables from connection to connection
  (*slot)->set_lock_mode(statement_lock_);
  (*slot)->set_skip_locked(skip_locked_);
  (*slot)->set_protects_ranges(is_scan && checks_uniqueness());
  if (is_scan) cursor_generation_ = connection_->generation;
  return slot->get();
}

// What the scan is about to read, where the kernel protects that and no more (SERIALIZABLE). Whole
// keys become bounds that no group of cut ones lies across (LK1).
void ha_strata::limit_scan(Bytes low, Bytes high) {
  if (cursor_ == nullptr || !(protects_ranges_ || checks_uniqueness())) return;
  const size_t in_order = layout_.in_order_bytes(cursor_index_);
  if (as_stored_ || (low.size() <= in_order && high.size() <= in_order)) {
    cursor_->set_bounds(low, high);
    return;
  }
  Buffer end;
  end.append(high.data(), std::min(high.size(), in_order));
  bool infinite = high.empty();
  if (high.size() > in_order) make_successor(&end, &infinite);
  cursor_->set_bounds(low.substr(0, in_order), infinite ? Bytes() : end.bytes());
}

void ha_strata::limit_scan_to_prefix() {
  if (!protects_ranges_ && !checks_uniqueness()) return;
  prefix_end_.clear();
  prefix_end_.append(prefix_.data(), prefix_.size());
  bool infinite = false;
  make_successor(&prefix_end_, &infinite);
  limit_scan(prefix_.bytes(), infinite ? Bytes() : prefix_end_.bytes());
}

void ha_strata::limit_scan_to_range() {
  limit_scan(Bytes(), range_limited_ ? range_end_.bytes() : Bytes());
}

// --- one entry ---

bool ha_strata::decode_entry(const engine::TableCursor::Entry& entry, uchar* record) {
  const IndexLayout& index = layout_.index(cursor_index_);
  if (!index.codec.decode(entry.key, record)) return false;
  if (cursor_index_ == 0) return true;
  if (!layout_.hidden_key() && !layout_.index(0).codec.decode(entry.clustered_key, record))
    return false;
  return index.covering.empty() || index.decode_covering(entry.covering, record);
}

// Whether there is a pushed index condition to look at. It needs the index's columns in record[0].
bool ha_strata::condition_applies(const uchar* buffer) const noexcept {
  return pushed_idx_cond != nullptr && active_index == pushed_idx_cond_keyno &&
         buffer == table->record[0] && cursor_index_ != 0;
}

int ha_strata::check_condition(const engine::TableCursor::Entry& entry, uchar* buffer, bool* skip,
                               bool* stop) {
  return decode_entry(entry, buffer) ? evaluate_condition(skip, stop) : HA_ERR_CRASHED;
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

// The columns a row is fetched for. A column that is to be written counts although the server does
// not ask for it: the parameter value IGNORE lets it keep what stands in the record.
const MY_BITMAP* ha_strata::wanted_columns() {
  if (statement_lock_ != engine::LockMode::kExclusive ||
      bitmap_is_subset(table->write_set, table->read_set))
    return table->read_set;
  bitmap_copy(&known_, table->read_set);
  bitmap_union(&known_, table->write_set);
  return &known_;
}

// ... where the row stands in for its entry, too: also what the entry would give back.
const MY_BITMAP* ha_strata::columns_of_entry() {
  const MY_BITMAP* const wanted = wanted_columns();
  if (wanted != &known_) bitmap_copy(&known_, wanted);
  for (const size_t index : {size_t{0}, size_t{cursor_index_}}) {
    for (const uint16_t column : layout_.index(index).columns) bitmap_set_bit(&known_, column);
  }
  return &known_;
}

// HA_ERR_KEY_NOT_FOUND: at READ UNCOMMITTED the row can go before all of it was read.
int ha_strata::deliver(engine::TableCursor* cursor, uchar* buffer, const MY_BITMAP* columns) {
  at_ = cursor;
  if (layout_.hidden_key()) row_id_.assign(cursor->clustered_key());
  for (;;) {
    const Status status = row_.decode(cursor->row(), columns, load_, buffer);
    if (status.ok()) {
      if (statement_lock_ != engine::LockMode::kExclusive)
        row_.reset_generated_nulls(columns, buffer);
      return 0;
    }
    if (!is_not_found(status)) return fail(status);
    bool gone = false;  // changed under a dirty read
    const Status again = cursor->fetch_again(&gone);
    if (!again.ok()) return fail(again);
    if (gone) return HA_ERR_KEY_NOT_FOUND;
  }
}

// Whether the entry gives the server all it looks at: it compares columns with the range's end,
// and, in an index merge or to name the row, those of the primary key; an entry does not give back
// a column of which it has a prefix. In the key-only reads of a multi-range read, which it does not
// count as such, the server computes virtual columns again from columns of the row.
bool ha_strata::reads_key_only() {
  if (!keyread_ || cursor_index_ == 0 || statement_lock_ != engine::LockMode::kNone) return false;
  const IndexLayout& index = layout_.index(cursor_index_);
  if (index.codec.has_prefix()) return false;
  if (!layout_.hidden_key() && layout_.index(0).codec.has_prefix_of(table->read_set)) return false;
  return keyread_enabled() || !index.has_virtual;
}

int ha_strata::walk(uchar* buffer, Direction direction) {
  for (;;) {
    if (in_order_ && !as_stored_) {
      if (const int error = settle(direction)) return error;
    }
    if (!cursor_->valid()) {
      at_end_ = direction == Direction::kForward ? AtEnd::kBehind : AtEnd::kBefore;
      return HA_ERR_END_OF_FILE;
    }
    const engine::TableCursor::Entry entry = cursor_->entry();
    const Bytes whole = whole_of(entry);
    if (prefix_only_ && !starts_with(whole, prefix_.bytes())) return HA_ERR_END_OF_FILE;
    if (range_limited_ && direction == Direction::kForward && whole >= range_end_.bytes())
      return HA_ERR_END_OF_FILE;
    bool skip = false;
    bool stop = false;
    const bool has_condition = condition_applies(buffer);
    const bool key_only = reads_key_only();
    const bool needs_row =
        (has_condition || key_only) && !layout_.is_whole(cursor_index_, entry, buffer);
    if (has_condition && !needs_row) {
      if (const int error = check_condition(entry, buffer, &skip, &stop)) return error;
    }
    if (stop) return HA_ERR_END_OF_FILE;
    if (!skip) {
      if (key_only && !needs_row) {
        at_ = nullptr;
        if (layout_.hidden_key()) row_id_.assign(entry.clustered_key);
        return decode_entry(entry, buffer) ? 0 : HA_ERR_CRASHED;
      }
      const bool look_only =
          semi_read_ == SemiRead::kTry && cursor_index_ == 0 && !unique_read_;  // HC2
      bool gone = false;
      const Status status = look_only ? cursor_->fetch_unlocked(&gone) : cursor_->fetch(&gone);
      if (!status.ok()) return fail(status);
      if (!gone) {
        if (look_only) semi_read_ = SemiRead::kDid;
        int error =
            deliver(cursor_.get(), buffer, needs_row ? columns_of_entry() : wanted_columns());
        if (error == 0 && has_condition && needs_row) {
          error = evaluate_condition(&skip, &stop);
          if (error == 0 && (skip || stop)) error = give_back_row();
          if (error == 0 && stop) return HA_ERR_END_OF_FILE;
          if (error == 0 && skip) error = HA_ERR_KEY_NOT_FOUND;
        }
        if (error != HA_ERR_KEY_NOT_FOUND) return error;
      }
    }
    const Status moved = direction == Direction::kForward ? cursor_->next() : cursor_->prev();
    if (!moved.ok()) return fail(moved);
  }
}

// The transaction the cursor stood in has ended (HANDLER ... READ NEXT): a new one goes on behind
// the entry it was on.
int ha_strata::reposition(Direction direction) {
  cursor_.reset();
  at_ = nullptr;
  make_cursor(&cursor_, cursor_index_);
  limit_scan(Bytes(), Bytes());
  if (direction == Direction::kBackward) {
    const Status status = seek_below(saved_entry_, false);
    return status.ok() ? 0 : fail(status);
  }
  Buffer after;
  after.append(saved_entry_.data(), saved_entry_.size());
  after.append_byte(0);
  const Status status = seek_at_least(after.bytes());
  return status.ok() ? 0 : fail(status);
}

// Scans that stand behind the last entry or before the first turn round (HANDLER), also in another
// transaction.
int ha_strata::step_from_end(uchar* buffer, Direction direction) {
  const bool forward = direction == Direction::kForward;
  if (forward == (at_end_ == AtEnd::kBehind)) return HA_ERR_END_OF_FILE;
  at_end_ = AtEnd::kNo;
  cursor_.reset();
  at_ = nullptr;
  make_cursor(&cursor_, cursor_index_);
  limit_scan(Bytes(), Bytes());
  const Status status = forward ? seek_at_least(Bytes()) : seek_below(Bytes(), true);
  return status.ok() ? walk(buffer, direction) : fail(status);
}

void ha_strata::save_place() {
  saved_entry_.clear();
  if (inited == NONE || cursor_ == nullptr || !cursor_->valid()) return;
  const engine::TableCursor::Entry entry = cursor_->entry();
  saved_entry_.assign(whole_of(entry));
  if (!in_order_ || scan_is_in_group() || !layout_.is_cut(cursor_index_, entry)) return;
  std::string whole;
  bool gone = false;
  // Without the row the place is that of the key as it is stored.
  if (whole_key(&whole, &gone) == 0 && !gone) saved_entry_ = std::move(whole);
}

void ha_strata::forget_place() {
  saved_entry_.clear();
  at_end_ = AtEnd::kNo;
  in_order_ = as_stored_ = false;
  leave_group();
}

// The search found nothing: from where its key would be, in whatever transaction by now.
int ha_strata::step_from_miss(uchar* buffer, Direction direction) {
  missed_ = false;
  at_end_ = AtEnd::kNo;
  engine::TableCursor* const cursor = make_cursor(&cursor_, cursor_index_);
  if (prefix_only_) {
    limit_scan_to_prefix();
  } else if (direction == Direction::kForward) {
    limit_scan_to_range();
  } else {
    limit_scan(Bytes(), Bytes());
  }
  Status status;
  if (as_stored_) {
    status = cursor->seek(prefix_.bytes());
  } else if (direction == Direction::kForward) {
    status = seek_at_least(prefix_.bytes());
  } else {
    status = seek_below(prefix_.bytes(), false);
  }
  return status.ok() ? walk(buffer, direction) : fail(status);
}

int ha_strata::step(uchar* buffer, Direction direction) {
  if (missed_) return step_from_miss(buffer, direction);
  if (at_end_ != AtEnd::kNo) return step_from_end(buffer, direction);
  if (cursor_ == nullptr ||
      (cursor_generation_ != connection_->generation && !saved_entry_.empty())) {
    if (saved_entry_.empty()) return HA_ERR_END_OF_FILE;
    if (const int error = reposition(direction)) return error;
    return walk(buffer, direction);
  }
  if (!cursor_->valid()) return HA_ERR_END_OF_FILE;
  if (semi_read_ == SemiRead::kDid) {  // the row qualified: now with a lock
    semi_read_ = SemiRead::kTry;
    bool gone = false;
    const Status status = cursor_->fetch(&gone);
    if (!status.ok()) return fail(status);
    if (!gone) return deliver(cursor_.get(), buffer, wanted_columns());
  }
  forget_search_limits();
  if (in_order_ && !as_stored_ && !scan_is_in_group() &&
      layout_.is_cut(cursor_index_, cursor_->entry())) {
    const int error = step_into_group(direction);
    return error == 0 ? walk(buffer, direction) : error;
  }
  const Status moved = direction == Direction::kForward ? cursor_->next() : cursor_->prev();
  if (!moved.ok()) return fail(moved);
  return walk(buffer, direction);
}

// --- table scan and positions ---

int ha_strata::rnd_init(bool scan) {
  scan_starts_ = scan;
  prefix_only_ = range_limited_ = unique_read_ = missed_ = false;
  if (semi_read_ == SemiRead::kDid) semi_read_ = SemiRead::kTry;
  forget_place();
  in_order_ = layout_.index(0).may_be_cut;
  return 0;
}

int ha_strata::rnd_end() {
  scan_starts_ = false;
  return 0;
}

int ha_strata::rnd_next(uchar* buffer) {
  return guarded([&] {
    if (!scan_starts_) return at_end_of_scan(step(buffer, Direction::kForward));
    scan_starts_ = false;
    engine::TableCursor* const cursor = make_cursor(&cursor_, 0);
    limit_scan(Bytes(), Bytes());
    const Status status = cursor->seek(Bytes());
    return status.ok() ? walk(buffer, Direction::kForward) : fail(status);
  });
}

int ha_strata::read_point(uchar* buffer, Bytes key) {
  engine::TableCursor* const cursor = make_cursor(&point_, 0);
  bool gone = false;
  const Status status = cursor->get(key, &gone);
  if (!status.ok()) return fail(status);
  return gone ? HA_ERR_KEY_NOT_FOUND : deliver(cursor, buffer, wanted_columns());
}

int ha_strata::rnd_pos(uchar* buffer, uchar* position) {
  return guarded([&] {
    const size_t size = load_u16(position);
    return read_point(buffer,
                      Bytes(reinterpret_cast<const char*>(position) + kRefLengthBytes, size));
  });
}

void ha_strata::position(const uchar* record) {
  (void)guarded([&] {
    Bytes key = row_id_;
    if (!layout_.hidden_key()) {
      key_.clear();
      bool has_null = false;
      layout_.index(0).append_key(record, &key_, &has_null);
      key = key_.bytes();
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
  prefix_only_ = range_limited_ = unique_read_ = missed_ = false;
  if (semi_read_ == SemiRead::kDid) semi_read_ = SemiRead::kTry;
  forget_place();
  in_order_ = layout_.index(layout_.kernel_index(key)).may_be_cut;
  return 0;
}

int ha_strata::index_end() {
  active_index = MAX_KEY;
  prefix_only_ = range_limited_ = in_read_range_first_ = false;
  return 0;
}

int ha_strata::index_read_map(uchar* buffer, const uchar* key, key_part_map parts,
                              ha_rkey_function mode) {
  // The server reads its routines so, with whole key parts: that is an exact search.
  if (mode == HA_READ_PREFIX) mode = HA_READ_KEY_EXACT;
  return guarded([&]() -> int {
    if (!in_read_range_first_) range_limited_ = false;
    prefix_only_ = missed_ = false;
    at_end_ = AtEnd::kNo;
    leave_group();
    engine::TableCursor* const cursor = make_cursor(&cursor_, layout_.kernel_index(active_index));
    IndexLayout& index = layout_.index(cursor_index_);
    const uint key_bytes = key == nullptr ? 0 : calculate_key_len(table, active_index, key, parts);
    make_search_key(key, key_bytes, mode == HA_READ_KEY_EXACT || mode == HA_READ_PREFIX_LAST);
    if (semi_read_ == SemiRead::kDid) semi_read_ = SemiRead::kTry;
    Direction direction = Direction::kForward;
    bool infinite = false;
    bool exact = false;
    Status status;
    if (mode == HA_READ_KEY_EXACT || mode == HA_READ_PREFIX_LAST) {
      limit_scan_to_prefix();
    } else if (mode == HA_READ_KEY_OR_NEXT || mode == HA_READ_AFTER_KEY) {
      limit_scan_to_range();
    } else {
      limit_scan(Bytes(), Bytes());
    }
    unique_read_ = mode == HA_READ_KEY_EXACT && index.unique && key != nullptr &&
                   key_bytes == table->key_info[active_index].key_length;
    switch (mode) {
      case HA_READ_KEY_EXACT:
        exact = true;
        [[fallthrough]];
      case HA_READ_KEY_OR_NEXT:
        status = as_stored_ ? cursor->seek(prefix_.bytes()) : seek_at_least(prefix_.bytes());
        break;
      case HA_READ_AFTER_KEY:
        search_key_.clear();
        search_key_.append(prefix_.data(), prefix_.size());
        make_successor(&search_key_, &infinite);
        // No key follows; but a read that finds nothing takes its snapshot like any other.
        if (infinite) {
          static const std::string behind_all(engine::kMaxKeyLength, '\xff');
          status = cursor->seek(behind_all);
          break;
        }
        status = seek_at_least(search_key_.bytes());
        break;
      case HA_READ_BEFORE_KEY:
        direction = Direction::kBackward;
        if (prefix_.size() == 0) return HA_ERR_KEY_NOT_FOUND;
        status = seek_below(prefix_.bytes(), false);
        break;
      case HA_READ_PREFIX_LAST:
        exact = true;
        if (as_stored_) {
          direction = Direction::kBackward;
          status = seek_behind(prefix_.bytes(), direction);
          break;
        }
        [[fallthrough]];
      case HA_READ_KEY_OR_PREV:
      case HA_READ_PREFIX_LAST_OR_PREV:
        direction = Direction::kBackward;
        search_key_.clear();
        search_key_.append(prefix_.data(), prefix_.size());
        make_successor(&search_key_, &infinite);
        status = seek_below(search_key_.bytes(), infinite);
        break;
      default:
        return HA_ERR_WRONG_COMMAND;
    }
    if (!status.ok()) return fail(status);
    prefix_only_ = exact;
    const int error = walk(buffer, direction);
    // Later steps leave the prefix unless they are index_next_same().
    prefix_only_ = false;
    const bool was_stored = as_stored_;
    as_stored_ = false;
    if (error != HA_ERR_END_OF_FILE) return error;
    missed_ = exact;
    if (exact && was_stored) {  // a step from here goes by whole keys
      prefix_.clear();
      prefix_.append(search_key_.data(), search_key_.size());
    }
    return HA_ERR_KEY_NOT_FOUND;
  });
}

int ha_strata::index_read_last_map(uchar* buffer, const uchar* key, key_part_map parts) {
  return index_read_map(buffer, key, parts, HA_READ_PREFIX_LAST);
}

int ha_strata::index_next(uchar* buffer) {
  return guarded([&] {
    as_stored_ = false;
    limit_scan_to_range();
    return at_end_of_scan(step(buffer, Direction::kForward));
  });
}

int ha_strata::index_prev(uchar* buffer) {
  return guarded([&] {
    range_limited_ = as_stored_ = false;
    limit_scan(Bytes(), Bytes());
    return step(buffer, Direction::kBackward);
  });
}

int ha_strata::index_next_same(uchar* buffer, const uchar* key, uint key_length) {
  return guarded([&] {
    make_search_key(key, key_length, true);
    prefix_only_ = true;
    limit_scan_to_prefix();
    const int error = step(buffer, Direction::kForward);
    prefix_only_ = as_stored_ = false;
    return at_end_of_scan(error);
  });
}

int ha_strata::index_first(uchar* buffer) {
  return guarded([&] {
    if (!in_read_range_first_) range_limited_ = false;
    engine::TableCursor* const cursor = make_cursor(&cursor_, layout_.kernel_index(active_index));
    missed_ = as_stored_ = false;
    at_end_ = AtEnd::kNo;
    leave_group();
    limit_scan_to_range();
    const Status status = cursor->seek(Bytes());
    return status.ok() ? walk(buffer, Direction::kForward) : fail(status);
  });
}

int ha_strata::index_last(uchar* buffer) {
  return guarded([&] {
    range_limited_ = false;
    engine::TableCursor* const cursor = make_cursor(&cursor_, layout_.kernel_index(active_index));
    missed_ = as_stored_ = false;
    at_end_ = AtEnd::kNo;
    leave_group();
    limit_scan(Bytes(), Bytes());
    const Status status = cursor->seek_before(Bytes());
    return status.ok() ? walk(buffer, Direction::kBackward) : fail(status);
  });
}

// Passes the end of the range down (HC1); the rest is the server's own.
int ha_strata::read_range_first(const key_range* start, const key_range* end, bool equal,
                                bool sorted) {
  const int prepared = guarded([&] {
    range_limited_ = false;
    if (end == nullptr || equal) return 0;
    range_end_.clear();
    size_t own = 0;
    layout_.index(layout_.kernel_index(active_index))
        .codec.append_server_key(end->key, end->length, &range_end_, &own);
    bool infinite = false;
    if (end->flag != HA_READ_BEFORE_KEY) make_successor(&range_end_, &infinite);
    range_limited_ = !infinite;
    return 0;
  });
  if (prepared != 0) return prepared;
  in_read_range_first_ = true;
  const int error = handler::read_range_first(start, end, equal, sorted);
  in_read_range_first_ = false;
  return error;
}

Item* ha_strata::idx_cond_push(uint key, Item* condition) {
  if (layout_.kernel_index(key) == 0 || layout_.index(layout_.kernel_index(key)).has_virtual)
    return condition;
  pushed_idx_cond = condition;
  pushed_idx_cond_keyno = key;
  in_range_check_pushed_down = !layout_.index(layout_.kernel_index(key)).codec.has_prefix();
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
  if (statement_lock_ != engine::LockMode::kNone) *flags |= HA_MRR_USE_DEFAULT_IMPL;
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
  if (!looks_up || statement_lock_ != engine::LockMode::kNone) return 0;
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
