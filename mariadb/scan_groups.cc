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
#include <algorithm>
#include <utility>

#include "mariadb/scan.h"

namespace strata::glue {

struct Scan::Group {
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

  [[nodiscard]] bool wrong_side(bool forward, Bytes key_of_entry) const noexcept {
    return forward ? !low.empty() && key_of_entry < Bytes(low)
                   : !high.empty() && key_of_entry >= Bytes(high);
  }
};

Scan::Scan() = default;
Scan::~Scan() = default;

Scan::Group* Scan::group() {
  if (group_ == nullptr) group_ = std::make_unique<Group>();
  return group_.get();
}

Bytes Scan::behind_all() {
  static const std::string key(engine::kMaxKeyLength, '\xff');
  return key;
}

void Scan::leave_group() noexcept {
  if (group_ == nullptr) return;
  group_->active = false;
  forget_search_limits();
}

// LK3: all that comes behind the first entry of a scan is on its right side.
void Scan::forget_search_limits() noexcept {
  group_->low.clear();
  group_->high.clear();
}

Bytes Scan::whole_in_group(const engine::TableCursor::Entry& entry) const noexcept {
  return group_->active ? Bytes(group_->whole) : entry.whole;
}

bool Scan::is_in_group() const noexcept { return group_ != nullptr && group_->active; }

// The cursor in front of the first entry whose whole key is not less than this one.
Status Scan::seek_at_least(Bytes key) {
  leave_group();
  const size_t in_order = keys().in_order_bytes();
  if (!in_order_ || key.size() <= in_order) return cursor_->seek(key);
  group()->low.assign(key);
  return cursor_->seek(key.substr(0, in_order));
}

// ... and behind the last one whose whole key is less.
Status Scan::seek_below(Bytes key, bool infinite) {
  leave_group();
  if (infinite) return cursor_->seek_before(Bytes());
  const size_t in_order = keys().in_order_bytes();
  if (!in_order_ || key.size() <= in_order) return cursor_->seek_before(key);
  group()->high.assign(key);
  return seek_behind(key.substr(0, in_order), Direction::kBackward);
}

// To the first entry behind all that start so, or to the last one before that place.
Status Scan::seek_behind(Bytes start, Direction direction) {
  Buffer* const successor = &group()->successor;
  successor->assign(start);
  bool infinite = false;
  make_successor(successor, &infinite);
  if (direction == Direction::kBackward)
    return cursor_->seek_before(infinite ? Bytes() : successor->bytes());
  return cursor_->seek(infinite ? behind_all() : successor->bytes());
}

// The whole key, clustered key included, of the entry the cursor stands on. *gone: its row is.
Status Scan::whole_key(std::string* whole, bool* gone) {
  *gone = false;
  const engine::TableCursor::Entry entry = cursor_->entry();
  if (!is_cut(entry)) {
    whole->assign(entry.whole);
    return ok_status();
  }
  STRATA_RETURN_IF_ERROR(looks_only() ? cursor_->fetch_unlocked(gone) : cursor_->fetch(gone));
  if (*gone) return ok_status();
  at_ = cursor_.get();
  return whole_keys_->whole_key(at_, index_, whole, gone);
}

// Finds the runs of the group the cursor stands in, and goes to the first one in this direction.
Status Scan::enter_group(Direction direction) {
  Group* const group = this->group();
  // Where clustered keys may be cut, entries of equal keys need not be in order.
  const bool entry_is_run = index_ == 0 || keys().clustered_may_be_cut;
  {
    const engine::TableCursor::Entry entry = cursor_->entry();
    const bool own_key_is_cut = entry.key.size() > keys().most_key;
    const size_t begin =
        own_key_is_cut ? keys().most_key : entry.key.size() + keys().most_clustered_key;
    group->stored.assign(entry.whole.substr(0, begin));
  }
  group->runs.clear();
  STRATA_RETURN_IF_ERROR(cursor_->seek(group->stored));
  while (cursor_->valid()) {
    if (whole_keys_->killed()) return error_interrupted();
    const engine::TableCursor::Entry entry = cursor_->entry();
    if (!entry.whole.starts_with(group->stored)) break;
    const size_t clustered_bytes = entry.clustered_key.size();
    Group::Run run;
    run.stored.assign(entry_is_run ? entry.whole : entry.key);
    bool gone = false;
    STRATA_RETURN_IF_ERROR(whole_key(&run.whole, &gone));
    if (gone || entry_is_run) {
      if (!gone) group->runs.push_back(std::move(run));
      STRATA_RETURN_IF_ERROR(cursor_->next());
      continue;
    }
    run.whole.resize(run.whole.size() - clustered_bytes);
    group->runs.push_back(std::move(run));
    STRATA_RETURN_IF_ERROR(seek_behind(group->runs.back().stored, Direction::kForward));
  }
  std::sort(group->runs.begin(), group->runs.end(),
            [](const Group::Run& a, const Group::Run& b) { return a.whole < b.whole; });
  group->active = true;
  // In front of the first, behind the last.
  group->run = direction == Direction::kForward ? SIZE_MAX : group->runs.size();
  return next_run(direction);
}

Status Scan::next_run(Direction direction) {
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
bool Scan::is_behind_limits(Bytes stored, bool forward) const {
  const size_t in_order = keys().in_order_bytes();
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
Status Scan::settle(Direction direction) {
  const bool forward = direction == Direction::kForward;
  for (;;) {
    if (!is_in_group()) {
      if (!cursor_->valid()) return ok_status();
      const engine::TableCursor::Entry entry = cursor_->entry();
      if (is_cut(entry)) {
        if (is_behind_limits(entry.whole, forward)) return ok_status();
        STRATA_RETURN_IF_ERROR(enter_group(direction));
        continue;
      }
      if (group_ == nullptr || !group_->wrong_side(forward, entry.whole)) return ok_status();
    } else {
      Group* const group = group_.get();
      const Group::Run& run = group->runs[group->run];
      if (!cursor_->valid() || !cursor_->entry().whole.starts_with(run.stored)) {
        STRATA_RETURN_IF_ERROR(next_run(direction));
        continue;
      }
      const engine::TableCursor::Entry entry = cursor_->entry();
      group->whole = run.whole;
      group->whole.append(entry.whole.substr(run.stored.size()));
      if (!group->wrong_side(forward, group->whole)) return ok_status();
    }
    if (whole_keys_->killed()) return error_interrupted();
    STRATA_RETURN_IF_ERROR(move(direction));
  }
}

Status Scan::step_in_order(Direction direction) {
  return !is_in_group() && is_cut(cursor_->entry()) ? step_into_group(direction) : move(direction);
}

// One entry on from a cut one that the scan came to without its group: by a search for its value.
Status Scan::step_into_group(Direction direction) {
  std::string whole;
  bool gone = false;
  STRATA_RETURN_IF_ERROR(whole_key(&whole, &gone));
  if (gone) return move(direction);
  Group* const group = this->group();
  if (direction == Direction::kForward) {
    group->low = std::move(whole);
    group->low.push_back('\0');
  } else {
    group->high = std::move(whole);
  }
  return enter_group(direction);
}

// prefix_ becomes the key as it is stored, where only entries of one key are wanted.
void Scan::choose_stored_key(size_t own_bytes) {
  const ScanIndex& index = keys();
  if (own_bytes == SIZE_MAX || own_bytes <= index.most_key || is_in_group()) return;
  const bool runs_are_in_order = index_ == 0 || index.unique || !index.clustered_may_be_cut;
  if (!runs_are_in_order || prefix_.size() - own_bytes > index.most_clustered_key) return;
  search_key_.assign(prefix_.bytes());
  whole_keys_->cut(index_, own_bytes, &prefix_);
  as_stored_ = true;
}

}  // namespace strata::glue
