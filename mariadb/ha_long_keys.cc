// Scans over keys that are cut (TL3): entries come in the order of the whole keys.
//
//   LK1  Entries that begin alike, up to where their keys are cut, are a group; the tree has the
//        groups in order, and within one the entries of equal keys side by side, a run. When a scan
//        meets a cut key it reads one row of each run of that group, makes the whole keys, sorts
//        the runs and walks them in that order. Memory: one whole key for each different value of
//        the group.
//   LK2  What a scan is limited by (prefix_, range_end_) are whole keys; it is compared with
//        whole_of() the entry. A search for one value looks for the key as it is stored, and
//        neither reads nor locks anything else of the group.
//   LK3  A search key longer than in_order_bytes() leads to where entries begin to be out of order;
//        from there the scan passes over what is on the wrong side of it.
// A locking scan locks a row of each value of a group that it meets, and the others as it comes to
// them.
#include "mariadb/ha_strata.h"

namespace strata::glue {

struct ha_strata::Group {
  struct Run {
    std::string whole;   // key; with the clustered key where that may be cut, too
    std::string stored;  // what its entries begin with
  };
  bool active = false;  // the cursor stands in the group
  std::string stored;   // what its entries begin with
  std::vector<Run> runs;
  size_t run = 0;
  std::string whole;      // of the entry under the cursor
  std::string low, high;  // LK3: forwards nothing below, backwards nothing from there on
  Buffer successor;
  Buffer key;
  std::vector<uchar> record;

  [[nodiscard]] bool wrong_side(bool forward, Bytes key_of_entry) const noexcept {
    return forward ? !low.empty() && key_of_entry < Bytes(low)
                   : !high.empty() && key_of_entry >= Bytes(high);
  }
};

ha_strata::ha_strata(handlerton* hton, TABLE_SHARE* share) : handler(hton, share) {}
ha_strata::~ha_strata() = default;

void ha_strata::leave_group() noexcept {
  if (group_ == nullptr) return;
  group_->active = false;
  group_->low.clear();
  group_->high.clear();
}

// LK3: all that comes behind the first entry of a scan is on its right side.
void ha_strata::forget_search_limits() noexcept {
  if (group_ == nullptr) return;
  group_->low.clear();
  group_->high.clear();
}

Bytes ha_strata::whole_of(const engine::TableCursor::Entry& entry) const {
  return group_ != nullptr && group_->active ? Bytes(group_->whole) : entry.whole;
}

bool ha_strata::scan_is_in_group() const noexcept { return group_ != nullptr && group_->active; }

// The cursor in front of the first entry whose whole key is not less than this one.
Status ha_strata::seek_at_least(Bytes key) {
  leave_group();
  const size_t in_order = layout_.in_order_bytes(cursor_index_);
  if (!in_order_ || key.size() <= in_order) return cursor_->seek(key);
  if (group_ == nullptr) group_ = std::make_unique<Group>();
  group_->low.assign(key);
  return cursor_->seek(key.substr(0, in_order));
}

// ... and behind the last one whose whole key is less.
Status ha_strata::seek_below(Bytes key, bool infinite) {
  leave_group();
  if (infinite) return cursor_->seek_before(Bytes());
  const size_t in_order = layout_.in_order_bytes(cursor_index_);
  if (!in_order_ || key.size() <= in_order) return cursor_->seek_before(key);
  if (group_ == nullptr) group_ = std::make_unique<Group>();
  group_->high.assign(key);
  return seek_behind(key.substr(0, in_order), Direction::kBackward);
}

// To the first entry behind all that start so, or to the last one before that place.
Status ha_strata::seek_behind(Bytes start, Direction direction) {
  if (group_ == nullptr) group_ = std::make_unique<Group>();
  Buffer* const successor = &group_->successor;
  successor->clear();
  successor->append(start.data(), start.size());
  bool infinite = false;
  make_successor(successor, &infinite);
  if (direction == Direction::kBackward)
    return cursor_->seek_before(infinite ? Bytes() : successor->bytes());
  static const std::string behind_all(engine::kMaxKeyLength, '\xff');
  return cursor_->seek(infinite ? Bytes(behind_all) : successor->bytes());
}

// The whole key, clustered key included, of the entry the cursor stands on. *gone: its row is.
int ha_strata::whole_key(std::string* whole, bool* gone) {
  *gone = false;
  const engine::TableCursor::Entry entry = cursor_->entry();
  if (!layout_.is_cut(cursor_index_, entry)) {
    whole->assign(entry.whole);
    return 0;
  }
  const bool look_only = semi_read_ == SemiRead::kTry && cursor_index_ == 0 && !unique_read_;
  Status status = look_only ? cursor_->fetch_unlocked(gone) : cursor_->fetch(gone);
  if (!status.ok()) return fail(status);
  if (*gone) return 0;
  at_ = cursor_.get();
  bitmap_clear_all(&known_);
  for (const size_t index : {size_t{0}, size_t{cursor_index_}}) {
    for (const uint16_t column : layout_.index(index).columns) bitmap_set_bit(&known_, column);
  }
  if (group_ == nullptr) group_ = std::make_unique<Group>();
  group_->record.resize(table->s->reclength);
  uchar* const record = group_->record.data();
  status = row_.decode(cursor_->row(), &known_, load_, record);
  *gone = is_not_found(status);  // changed under a dirty read
  if (*gone) return 0;
  if (!status.ok()) return fail(status);
  Buffer* const key = &group_->key;
  key->clear();
  bool has_null = false;
  layout_.index(cursor_index_).codec.append(record, key, &has_null);
  if (cursor_index_ != 0) {
    if (layout_.hidden_key()) {
      const Bytes clustered = cursor_->entry().clustered_key;
      key->append(clustered.data(), clustered.size());
    } else {
      layout_.index(0).codec.append(record, key, &has_null);
    }
  }
  whole->assign(key->bytes());
  return 0;
}

// Finds the runs of the group the cursor stands in, and goes to the first one in this direction.
int ha_strata::enter_group(Direction direction) {
  if (group_ == nullptr) group_ = std::make_unique<Group>();
  Group* const group = group_.get();
  // Where clustered keys may be cut, entries of equal keys need not be in order.
  const bool entry_is_run = cursor_index_ == 0 || layout_.clustered_may_be_cut();
  {
    const engine::TableCursor::Entry entry = cursor_->entry();
    const IndexLayout& index = layout_.index(cursor_index_);
    const size_t begin =
        index.is_cut(entry.key) ? index.most_key : entry.key.size() + layout_.index(0).most_key;
    group->stored.assign(entry.whole.substr(0, begin));
  }
  group->runs.clear();
  Status status = cursor_->seek(group->stored);
  while (status.ok() && cursor_->valid()) {
    if (thd_killed(ha_thd()) != 0) return HA_ERR_ABORTED_BY_USER;
    const engine::TableCursor::Entry entry = cursor_->entry();
    if (!entry.whole.starts_with(group->stored)) break;
    const size_t clustered_bytes = entry.clustered_key.size();
    Group::Run run;
    run.stored.assign(entry_is_run ? entry.whole : entry.key);
    bool gone = false;
    if (const int error = whole_key(&run.whole, &gone)) return error;
    if (gone || entry_is_run) {
      if (!gone) group->runs.push_back(std::move(run));
      status = cursor_->next();
      continue;
    }
    run.whole.resize(run.whole.size() - clustered_bytes);
    group->runs.push_back(std::move(run));
    status = seek_behind(group->runs.back().stored, Direction::kForward);
  }
  if (!status.ok()) return fail(status);
  std::sort(group->runs.begin(), group->runs.end(),
            [](const Group::Run& a, const Group::Run& b) { return a.whole < b.whole; });
  group->active = true;
  // In front of the first, behind the last.
  group->run = direction == Direction::kForward ? SIZE_MAX : group->runs.size();
  status = next_run(direction);
  return status.ok() ? 0 : fail(status);
}

Status ha_strata::next_run(Direction direction) {
  Group* const group = group_.get();
  const bool forward = direction == Direction::kForward;
  group->run += forward ? 1 : SIZE_MAX;
  if (group->run < group->runs.size()) {
    const std::string& stored = group->runs[group->run].stored;
    return forward ? cursor_->seek(stored) : seek_behind(stored, direction);
  }
  group->active = false;
  group->runs.clear();
  return forward ? seek_behind(group->stored, direction) : cursor_->seek_before(group->stored);
}

// Whether a cut key is outside of what the scan wants by the bytes that are in order: as it is
// stored it is so, too, and its group is left alone.
bool ha_strata::is_behind_limits(Bytes stored, bool forward) const {
  const size_t in_order = layout_.in_order_bytes(cursor_index_);
  const Bytes head = stored.substr(0, in_order);
  if (prefix_only_) {
    const size_t common = std::min(head.size(), prefix_.size());
    if (head.substr(0, common) != prefix_.bytes().substr(0, common)) return true;
  }
  if (!range_limited_ || !forward) return false;
  const Bytes end = range_end_.bytes();
  return end.size() <= in_order ? head >= end : head > end.substr(0, in_order);
}

// The cursor has moved in the tree; now it stands on the next entry in the order of whole keys.
int ha_strata::settle(Direction direction) {
  const bool forward = direction == Direction::kForward;
  for (;;) {
    if (!scan_is_in_group()) {
      if (!cursor_->valid()) return 0;
      const engine::TableCursor::Entry entry = cursor_->entry();
      if (layout_.is_cut(cursor_index_, entry)) {
        if (is_behind_limits(entry.whole, forward)) return 0;
        if (const int error = enter_group(direction)) return error;
        continue;
      }
      if (group_ == nullptr || !group_->wrong_side(forward, entry.whole)) return 0;
    } else {
      Group* const group = group_.get();
      const Group::Run& run = group->runs[group->run];
      if (!cursor_->valid() || !cursor_->entry().whole.starts_with(run.stored)) {
        const Status moved = next_run(direction);
        if (!moved.ok()) return fail(moved);
        continue;
      }
      const engine::TableCursor::Entry entry = cursor_->entry();
      group->whole = run.whole;
      group->whole.append(entry.whole.substr(run.stored.size()));
      if (!group->wrong_side(forward, group->whole)) return 0;
    }
    if (thd_killed(ha_thd()) != 0) return HA_ERR_ABORTED_BY_USER;
    const Status moved = forward ? cursor_->next() : cursor_->prev();
    if (!moved.ok()) return fail(moved);
  }
}

// One entry on from a cut one that the scan came to without its group: by a search for its value.
int ha_strata::step_into_group(Direction direction) {
  std::string whole;
  bool gone = false;
  if (const int error = whole_key(&whole, &gone)) return error;
  if (gone) {
    const Status moved = direction == Direction::kForward ? cursor_->next() : cursor_->prev();
    return moved.ok() ? 0 : fail(moved);
  }
  Group* const group = group_.get();
  if (direction == Direction::kForward) {
    group->low = std::move(whole);
    group->low.push_back('\0');
  } else {
    group->high = std::move(whole);
  }
  return enter_group(direction);
}

// prefix_ becomes the search key; as it is stored, where only entries of one key are wanted.
void ha_strata::make_search_key(const uchar* key, uint length, bool exact) {
  prefix_.clear();
  as_stored_ = false;
  IndexLayout& index = layout_.index(cursor_index_);
  size_t own = SIZE_MAX;
  if (length != 0) index.codec.append_server_key(key, length, &prefix_, &own);
  if (!exact || own == SIZE_MAX || own <= index.most_key || scan_is_in_group()) return;
  const bool runs_are_in_order =
      cursor_index_ == 0 || index.unique || !layout_.clustered_may_be_cut();
  if (!runs_are_in_order || layout_.index(0).is_cut(prefix_.bytes().substr(own))) return;
  search_key_.clear();
  search_key_.append(prefix_.data(), prefix_.size());
  index.cut(&prefix_, 0, own);
  as_stored_ = true;
}

}  // namespace strata::glue
