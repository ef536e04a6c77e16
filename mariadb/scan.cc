#include "mariadb/scan.h"

#include <utility>

#include "base/assert.h"

namespace strata::glue {

void make_successor(Buffer* key, bool* infinite) {
  size_t size = key->size();
  while (size > 0 && key->data()[size - 1] == 0xff) --size;
  *infinite = size == 0;
  if (*infinite) return;
  key->shrink(size);
  ++key->data()[size - 1];
}

void Scan::open(std::vector<ScanIndex> indexes, WholeKeys* whole_keys) {
  STRATA_ASSERT(!indexes.empty());
  STRATA_ASSERT(whole_keys != nullptr);
  indexes_ = std::move(indexes);
  whole_keys_ = whole_keys;
}

void Scan::drop_cursors() noexcept {
  at_ = nullptr;
  cursor_.reset();
  point_.reset();
}

void Scan::reset() noexcept {
  at_ = nullptr;
  if (cursor_ != nullptr) cursor_->reset();
  if (point_ != nullptr) point_->reset();
  changes_later_ = false;
  semi_read_ = SemiRead::kOff;
  prefix_only_ = range_limited_ = range_held_ = unique_read_ = missed_ = false;
  forget_place();
}

// --- beginning ---

void Scan::begin(uint32_t index) noexcept {
  STRATA_ASSERT(index < indexes_.size());
  prefix_only_ = range_limited_ = unique_read_ = missed_ = false;
  if (semi_read_ == SemiRead::kDid) semi_read_ = SemiRead::kTry;
  forget_place();
  in_order_ = indexes_[index].may_be_cut;
}

void Scan::begin_table(bool starts) noexcept {
  begin(0);
  starts_ = starts;
}

Status Scan::start_table(const ScanTerms& terms) {
  starts_ = false;
  engine::TableCursor* const cursor = make_cursor(terms, 0);
  if (terms.needs_limits) limit(Bytes(), Bytes());
  return cursor->seek(Bytes());
}

void Scan::end() noexcept { prefix_only_ = range_limited_ = range_held_ = false; }

engine::TableCursor* Scan::make_cursor(const ScanTerms& terms, uint32_t index) {
  if (cursor_ == nullptr || index_ != index) {
    if (at_ == cursor_.get()) at_ = nullptr;
    STRATA_ASSERT(index < indexes_.size());
    cursor_ = std::make_unique<engine::TableCursor>(terms.session, *terms.table, index);
    index_ = index;
  }
  cursor_->use_in(terms.session);  // the server hands tables from connection to connection
  cursor_->set_lock_mode(terms.lock);
  cursor_->set_skip_locked(terms.skip_locked);
  cursor_->set_protects_ranges(terms.protects_gaps);
  cursor_->set_reads_dirty(terms.reads_dirty);
  generation_ = terms.generation;
  return cursor_.get();
}

// With a cursor as new, in whatever transaction by now.
void Scan::restart(const ScanTerms& terms) {
  cursor_.reset();
  at_ = nullptr;
  make_cursor(terms, index_);
  if (terms.needs_limits) limit(Bytes(), Bytes());
}

void Scan::leave_place() noexcept {
  missed_ = as_stored_ = false;
  at_end_ = AtEnd::kNo;
  leave_group();
}

Status Scan::seek_first(const ScanTerms& terms, uint32_t index) {
  if (!range_held_) range_limited_ = false;
  engine::TableCursor* const cursor = make_cursor(terms, index);
  leave_place();
  if (terms.needs_limits) limit_to_range();
  return cursor->seek(Bytes());
}

Status Scan::seek_last(const ScanTerms& terms, uint32_t index) {
  range_limited_ = false;
  engine::TableCursor* const cursor = make_cursor(terms, index);
  leave_place();
  if (terms.needs_limits) limit(Bytes(), Bytes());
  return cursor->seek_before(Bytes());
}

Buffer* Scan::start_search(const ScanTerms& terms, uint32_t index) {
  if (!range_held_) range_limited_ = false;
  prefix_only_ = missed_ = false;
  at_end_ = AtEnd::kNo;
  leave_group();
  make_cursor(terms, index);
  return start_key();
}

Status Scan::search(const ScanTerms& terms, Search search, size_t own_bytes, bool one_row) {
  const bool exact = is_exact(search);
  if (exact) choose_stored_key(own_bytes);
  if (semi_read_ == SemiRead::kDid) semi_read_ = SemiRead::kTry;
  if (terms.needs_limits) {
    if (exact) {
      limit_to_prefix();
    } else if (direction_of(search) == Direction::kForward) {
      limit_to_range();
    } else {
      limit(Bytes(), Bytes());
    }
  }
  unique_read_ = one_row;
  bool infinite = false;
  Status status;
  switch (search) {
    case Search::kExact:
    case Search::kAtLeast:
      status = as_stored_ ? cursor_->seek(prefix_.bytes()) : seek_at_least(prefix_.bytes());
      break;
    case Search::kAfter:
      search_key_.assign(prefix_.bytes());
      make_successor(&search_key_, &infinite);
      // No key follows; but a read that finds nothing takes its snapshot like any other.
      status = infinite ? cursor_->seek(behind_all()) : seek_at_least(search_key_.bytes());
      break;
    case Search::kBefore:
      if (prefix_.size() == 0) return error_not_found();
      status = seek_below(prefix_.bytes(), false);
      break;
    case Search::kLastExact:
    case Search::kLastAtMost:
      if (as_stored_) {
        status = seek_behind(prefix_.bytes(), Direction::kBackward);
        break;
      }
      search_key_.assign(prefix_.bytes());
      make_successor(&search_key_, &infinite);
      status = seek_below(search_key_.bytes(), infinite);
      break;
  }
  STRATA_RETURN_IF_ERROR(status);
  prefix_only_ = exact;
  return ok_status();
}

// Later steps leave the prefix unless they keep to the key.
void Scan::end_search(Search search, bool found_none) {
  const bool was_stored = as_stored_;
  leave_key();
  if (!found_none) return;
  missed_ = is_exact(search);
  // A step from here goes by whole keys.
  if (missed_ && was_stored) prefix_.assign(search_key_.bytes());
}

// --- limits ---

Buffer* Scan::start_range() noexcept {
  range_limited_ = false;
  range_end_.clear();
  return &range_end_;
}

void Scan::end_range(bool inclusive) {
  bool infinite = false;
  if (inclusive) make_successor(&range_end_, &infinite);
  range_limited_ = !infinite;
}

Buffer* Scan::start_key() noexcept {
  prefix_.clear();
  as_stored_ = false;
  return &prefix_;
}

void Scan::keep_to_key(size_t own_bytes, bool needs_limits) {
  choose_stored_key(own_bytes);
  prefix_only_ = true;
  if (needs_limits) limit_to_prefix();
}

void Scan::go_on(Direction direction, bool needs_limits) {
  as_stored_ = false;
  if (direction == Direction::kBackward) range_limited_ = false;
  if (needs_limits) limit_to_range();
}

// SCN5. Whole keys become bounds that no group of cut ones lies across.
void Scan::limit(Bytes low, Bytes high) {
  if (cursor_ == nullptr) return;
  const size_t in_order = keys().in_order_bytes();
  if (as_stored_ || (low.size() <= in_order && high.size() <= in_order)) {
    cursor_->set_bounds(low, high);
    return;
  }
  Buffer end;
  end.assign(high.substr(0, in_order));
  bool infinite = high.empty();
  if (high.size() > in_order) make_successor(&end, &infinite);
  cursor_->set_bounds(low.substr(0, in_order), infinite ? Bytes() : end.bytes());
}

void Scan::limit_to_prefix() {
  prefix_end_.assign(prefix_.bytes());
  bool infinite = false;
  make_successor(&prefix_end_, &infinite);
  limit(prefix_.bytes(), infinite ? Bytes() : prefix_end_.bytes());
}

// --- entries ---

Status Scan::resume(const ScanTerms& terms, Direction direction, bool* at_end) {
  *at_end = false;
  if (missed_) return resume_at_miss(terms, direction);
  const bool forward = direction == Direction::kForward;
  if (at_end_ != AtEnd::kNo) {
    *at_end = forward == (at_end_ == AtEnd::kBehind);
    if (*at_end) return ok_status();
    at_end_ = AtEnd::kNo;
    restart(terms);
    return forward ? seek_at_least(Bytes()) : seek_below(Bytes(), true);
  }
  *at_end = saved_entry_.empty();
  return *at_end ? ok_status() : reposition(terms, direction);
}

// The transaction the cursor stood in has ended: a new one goes on behind the entry it was on.
Status Scan::reposition(const ScanTerms& terms, Direction direction) {
  restart(terms);
  if (direction == Direction::kBackward) return seek_below(saved_entry_, false);
  Buffer after;
  after.assign(saved_entry_);
  after.append_byte(0);
  return seek_at_least(after.bytes());
}

// The search found nothing: from where its key would be.
Status Scan::resume_at_miss(const ScanTerms& terms, Direction direction) {
  missed_ = false;
  at_end_ = AtEnd::kNo;
  engine::TableCursor* const cursor = make_cursor(terms, index_);
  if (terms.needs_limits) {
    if (prefix_only_) {
      limit_to_prefix();
    } else if (direction == Direction::kForward) {
      limit_to_range();
    } else {
      limit(Bytes(), Bytes());
    }
  }
  if (as_stored_) return cursor->seek(prefix_.bytes());
  return direction == Direction::kForward ? seek_at_least(prefix_.bytes())
                                          : seek_below(prefix_.bytes(), false);
}

// --- rows ---

Status Scan::give_back_row(bool releases) {
  if (semi_read_ == SemiRead::kDid) {
    semi_read_ = SemiRead::kTry;  // it was not locked
    return ok_status();
  }
  return releases && at_ != nullptr ? at_->unlock_row() : ok_status();
}

Status Scan::read_row(const ScanTerms& terms, Bytes clustered_key, engine::TableCursor** cursor,
                      bool* gone) {
  if (point_ == nullptr)
    point_ = std::make_unique<engine::TableCursor>(terms.session, *terms.table, 0);
  point_->use_in(terms.session);
  point_->set_lock_mode(terms.lock);
  point_->set_skip_locked(terms.skip_locked);
  point_->set_reads_dirty(terms.reads_dirty);
  *cursor = point_.get();
  return point_->get(clustered_key, gone);
}

// --- places ---

Status Scan::save_place(bool open) {
  saved_entry_.clear();
  if (!open || cursor_ == nullptr || !cursor_->valid()) return ok_status();
  const engine::TableCursor::Entry entry = cursor_->entry();
  saved_entry_.assign(whole_of(entry));
  if (!in_order_ || is_in_group() || !is_cut(entry)) return ok_status();
  std::string whole;
  bool gone = false;
  const Status status = whole_key(&whole, &gone);
  if (status.ok() && !gone) saved_entry_ = std::move(whole);
  return status;
}

void Scan::forget_place() noexcept {
  saved_entry_.clear();
  at_end_ = AtEnd::kNo;
  in_order_ = as_stored_ = false;
  leave_group();
}

}  // namespace strata::glue
