#include "storenode/replay/single_replay.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/diag.h"

namespace strata::storenode {

struct SingleReplay::Wake {
  Mutex mutex{LatchRank::kLeaf};
  CondVar changed;
  bool grown STRATA_GUARDED_BY(mutex) = false;
  bool asked STRATA_GUARDED_BY(mutex) = false;
  bool stop STRATA_GUARDED_BY(mutex) = false;
};

Status SingleReplay::open() {
  wake_ = std::make_shared<Wake>();
  STRATA_ASSIGN_OR_RETURN(const std::vector<BrokenPage> broken, parts_.db->read_broken());
  {
    const MutexLock lock(mutex_);
    for (const BrokenPage& page : broken) broken_.emplace(page.page_id, page);
  }
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> present, source_->list_spaces());
  for (const SpaceId space : present)
    if (parts_.map->is_reclaimed(space)) STRATA_RETURN_IF_ERROR(pages_.delete_space(space));
  return ok_status();
}

Status SingleReplay::add_stream(StreamId stream, LogView* log, StreamMark from) {
  if (log_ != nullptr)
    return error_invalid_argument("replay into page files serves one stream only");
  stream_ = stream;
  log_ = log;
  reader_ = std::make_unique<GroupReader>(stream, log, parts_.log_cache, from.lsn);
  if (const Lsn begin = log->begin_lsn(); begin > from.lsn) {
    const Status failure = error_corruption(
        "stream " + std::to_string(stream.value) + ": the log kept here begins at lsn " +
        std::to_string(begin.value) + ", but the pages have only what is below lsn " +
        std::to_string(from.lsn.value) + "; copy the pages from another storage node");
    diag(Severity::kError, "%s", std::string(failure.message()).c_str());
    const MutexLock lock(mutex_);
    failure_ = failure;
  }
  {
    const MutexLock lock(mutex_);  // what an earlier life passed over is below
    for (const auto& [page, mark] : broken_) passed_over_[page] = std::max(mark.llsn, from.llsn);
  }
  parts_.waits->publish_scanned(stream, from);
  parts_.waits->publish_replayed(stream, from);
  return ok_status();
}

bool SingleReplay::wait_for_work() {
  MutexLock lock(wake_->mutex);
  if (!wake_->stop && log_ != nullptr && !wake_->asked) {
    wake_->asked = true;
    lock.unlock();
    // Behind the last whole group there may be a part of one.
    log_->notify_beyond(looked_to_, [wake = wake_] {
      const MutexLock guard(wake->mutex);
      wake->asked = false;
      wake->grown = true;
      wake->changed.notify_all();
    });
    lock.lock();
  }
  wake_->changed.wait(
      lock, [this]() STRATA_REQUIRES(wake_->mutex) { return wake_->stop || wake_->grown; });
  wake_->grown = false;
  return !wake_->stop;
}

void SingleReplay::stop_waiting(bool stop) {
  const MutexLock lock(wake_->mutex);
  wake_->stop = stop;
  wake_->changed.notify_all();
}

StreamMark SingleReplay::replayed_to(StreamId stream) const {
  return parts_.waits->replayed(stream);
}

StatusOr<StreamMarks> SingleReplay::prepare_checkpoint() {
  StreamMarks marks;
  if (log_ == nullptr) return marks;
  marks.emplace_back(stream_, parts_.waits->replayed(stream_));
  STRATA_RETURN_IF_ERROR(pages_.checkpoint());
  return marks;
}

// --- the worker ---

std::optional<BrokenPage> SingleReplay::broken(PageId page) const {
  const MutexLock lock(mutex_);
  const auto it = broken_.find(page);
  return it == broken_.end() ? std::nullopt : std::optional<BrokenPage>(it->second);
}

Status SingleReplay::break_page(PageId page, Llsn llsn, Lsn lsn, const Status& reason) {
  const BrokenPage mark{page, llsn, stream_, lsn};
  if (const auto known = broken(page); known.has_value() && known->llsn <= llsn) return ok_status();
  VersionDb::Batch batch = parts_.db->new_batch();
  batch.put_broken(mark);
  STRATA_RETURN_IF_ERROR(parts_.db->write(&batch));
  parts_.counters->pages_broken.fetch_add(1, std::memory_order_relaxed);
  diag(Severity::kError, "replay: %s", std::string(reason.message()).c_str());
  {
    const MutexLock lock(mutex_);
    broken_.insert_or_assign(page, mark);
  }
  pass_over(page, llsn);
  if (parts_.damaged) parts_.damaged(page, llsn);
  return ok_status();
}

void SingleReplay::pass_over(PageId page, Llsn llsn) {
  const MutexLock lock(mutex_);
  Llsn& last = passed_over_[page];
  last = std::max(last, llsn);
}

// --- copies from peers (SR4) ---

Llsn SingleReplay::repair_from(PageId page, Llsn damaged) const {
  const Llsn replayed = parts_.waits->replayed(stream_).llsn;
  const MutexLock lock(mutex_);
  const auto it = passed_over_.find(page);
  return std::max({damaged, replayed, it == passed_over_.end() ? Llsn{} : it->second});
}

Status SingleReplay::repair(PageId page, Llsn as_of, PageRef copy) {
  {
    const MutexLock lock(mutex_);
    copies_.insert_or_assign(page, Copy{as_of, std::move(copy)});
  }
  look_again();
  return ok_status();
}

Status SingleReplay::put_copies() {
  for (;;) {
    std::pair<PageId, Copy> next;
    {
      const MutexLock lock(mutex_);
      if (copies_.empty()) return ok_status();
      next = *copies_.begin();
    }
    STRATA_RETURN_IF_ERROR(put_copy(next.first, next.second));
    const MutexLock lock(mutex_);
    const auto it = copies_.find(next.first);
    if (it != copies_.end() && it->second.page == next.second.page) copies_.erase(it);
  }
}

Status SingleReplay::put_copy(PageId page, const Copy& copy) {
  if (parts_.map->is_reclaimed(SpaceId{page.space})) return ok_status();
  const Llsn llsn{header_of(copy.page->bytes)->llsn};
  const Llsn as_of = std::max(copy.as_of, llsn);
  Llsn passed_over;
  {
    const MutexLock lock(mutex_);
    const auto it = passed_over_.find(page);
    if (it != passed_over_.end()) passed_over = it->second;
  }
  if (as_of < passed_over) {  // more of the log came meanwhile: another one is needed
    if (parts_.damaged) parts_.damaged(page, passed_over);
    return ok_status();
  }
  const StatusOr<PageRef> here = pages_.read(page);
  if (here.ok() && header_of((*here)->bytes)->llsn >= llsn.value && passed_over.is_zero())
    return ok_status();
  STRATA_RETURN_IF_ERROR(pages_.put(page, copy.page));
  return broken(page).has_value() ? mend_page(page) : ok_status();
}

Status SingleReplay::mend_page(PageId page) {
  VersionDb::Batch batch = parts_.db->new_batch();
  batch.remove_broken(page);
  STRATA_RETURN_IF_ERROR(parts_.db->write(&batch));
  const MutexLock lock(mutex_);
  broken_.erase(page);
  passed_over_.erase(page);
  return ok_status();
}

// What a broken mark of an earlier life says holds from its llsn on: sections below it are redone,
// its own is tried again, and a page that got past it is mended.
Status SingleReplay::replay_section(const redo::GroupView& group,
                                    const redo::SectionView& section) {
  ReplayCounters& counters = *parts_.counters;
  const PageId page = section.page_id;
  const Llsn llsn{group.header.llsn};
  const std::optional<BrokenPage> mark = broken(page);
  counters.sections_scanned.fetch_add(1, std::memory_order_relaxed);
  const bool is_lost = mark.has_value() && llsn > mark->llsn && !section.restarts_chain();
  const StatusOr<PageRef> base = pages_.read(page);
  const Llsn there{base.ok() ? header_of((*base)->bytes)->llsn : 0};
  if (mark.has_value() && there >= mark->llsn) STRATA_RETURN_IF_ERROR(mend_page(page));
  if (there >= llsn || (is_lost && there < mark->llsn)) {
    if (there < llsn) pass_over(page, llsn);
    counters.sections_skipped.fetch_add(1, std::memory_order_relaxed);
    return ok_status();
  }
  StatusOr<PageRef> made = make(group, section, base);
  if (is_corruption(made.status()))
    return break_page(page, llsn, Lsn{group.header.lsn}, made.status());
  STRATA_RETURN_IF_ERROR(made.status());
  STRATA_RETURN_IF_ERROR(pages_.put(page, *std::move(made)));
  if (mark.has_value() && llsn >= mark->llsn) STRATA_RETURN_IF_ERROR(mend_page(page));
  counters.sections_applied.fetch_add(1, std::memory_order_relaxed);
  counters.section_bytes.fetch_add(section_bytes(section).size(), std::memory_order_relaxed);
  counters.pages_made.fetch_add(1, std::memory_order_relaxed);
  return ok_status();
}

// A page that is damaged counts as absent: a section that restarts the chain needs none.
StatusOr<PageRef> SingleReplay::make(const redo::GroupView& group, const redo::SectionView& section,
                                     const StatusOr<PageRef>& base) const {
  const bool absent = is_not_found(base.status()) || section.restarts_chain();
  if (!base.ok() && !(absent && (is_not_found(base.status()) || is_corruption(base.status()))))
    return base.status();
  Version version;
  version.llsn = Llsn{group.header.llsn};
  version.prev_llsn = section.prev_llsn;
  version.lsn = Lsn{group.header.lsn};
  version.stream = stream_;
  return apply_to_copy(absent ? nullptr : base->get(), section.page_id, version, section);
}

Status SingleReplay::note_dropped(const redo::GroupView& group) {
  VersionDb::Batch batch = parts_.db->new_batch();
  STRATA_RETURN_IF_ERROR(redo::for_each_section(group, [&](const redo::SectionView& section) {
    redo::for_each_dropped_space(section, [&](SpaceId space) {
      batch.put_dropped(parts_.map->note_dropped(space, Llsn{group.header.llsn}));
    });
    return ok_status();
  }));
  return parts_.db->write(&batch);
}

// Damage of the log stays until somebody mends it; anything else may pass.
Status SingleReplay::stop_at(const Status& status) {
  reader_ = std::make_unique<GroupReader>(stream_, log_, parts_.log_cache,
                                          parts_.waits->replayed(stream_).lsn);
  if (!is_corruption(status) && !is_out_of_range(status)) return status;
  diag(Severity::kError, "replay stops: %s", std::string(status.message()).c_str());
  {
    const MutexLock lock(mutex_);
    failure_ = error_corruption(std::string(status.message()));
  }
  parts_.waits->wake_all();
  return ok_status();
}

Status SingleReplay::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

void SingleReplay::retry() {
  if (log_ != nullptr && log_->begin_lsn() <= parts_.waits->replayed(stream_).lsn) {
    const MutexLock lock(mutex_);
    failure_ = ok_status();
  }
  look_again();
}

void SingleReplay::look_again() {
  const MutexLock lock(wake_->mutex);
  wake_->grown = true;
  wake_->changed.notify_all();
}

StatusOr<bool> SingleReplay::step() {
  STRATA_RETURN_IF_ERROR(reclaim_spaces());
  STRATA_RETURN_IF_ERROR(put_copies());
  if (log_ == nullptr || !failure().ok()) return false;
  looked_to_ = log_->durable_lsn();
  redo::GroupView group;
  const StatusOr<bool> more = reader_->next(&group);
  Status status = more.status();
  if (status.ok() && !*more) return false;
  if (status.ok()) status = note_dropped(group);
  if (status.ok())
    status = redo::for_each_section(group, [this, &group](const redo::SectionView& section) {
      return parts_.map->is_reclaimed(SpaceId{section.page_id.space})
                 ? ok_status()
                 : replay_section(group, section);
    });
  if (!status.ok()) {
    STRATA_RETURN_IF_ERROR(stop_at(status));
    return false;
  }
  parts_.counters->groups_scanned.fetch_add(1, std::memory_order_relaxed);
  parts_.counters->groups_replayed.fetch_add(1, std::memory_order_relaxed);
  parts_.counters->bytes_scanned.fetch_add(group.header.length, std::memory_order_relaxed);
  const StreamMark end{reader_->position(), Llsn{group.header.llsn}};
  parts_.waits->publish_scanned(stream_, end);
  parts_.waits->publish_replayed(stream_, end);
  return true;
}

Status SingleReplay::reclaim_spaces() {
  for (const DroppedSpace& dropped : parts_.map->reclaimable()) {
    STRATA_RETURN_IF_ERROR(parts_.map->reclaim_space(dropped));
    STRATA_RETURN_IF_ERROR(parts_.db->flush());  // SR3
    STRATA_RETURN_IF_ERROR(pages_.delete_space(dropped.space));
  }
  return ok_status();
}

// --- requests ---

std::optional<PageAnswer> SingleReplay::page_at_hand(const GetPageRequest& request) {
  if (!parts_.waits->is_replayed_at_hand(request, request.at_least, /*positions=*/true))
    return std::nullopt;
  if (!parts_.map->is_surely_there(SpaceId{request.page.space})) return std::nullopt;
  {
    if (!mutex_.try_lock()) return std::nullopt;
    const MutexLock lock(mutex_, std::adopt_lock);
    if (broken_.count(request.page) != 0) return std::nullopt;
  }
  PageRef page = pages_.at_hand(request.page);
  if (page == nullptr) return std::nullopt;
  const Llsn llsn{header_of(page->bytes)->llsn};
  if (llsn > request.at_most) return std::nullopt;
  return PageAnswer{std::move(page), llsn};
}

Verdict SingleReplay::attempt(Ticket* ticket) {
  const GetPageRequest& request = ticket->request;
  const PageId page = request.page;
  if (!parts_.waits->is_replayed(request, request.at_least, /*positions=*/true))
    return WaitCondition{WaitCondition::Kind::kReplayed, request.at_least, true};
  if (const Llsn dropped = parts_.map->reclaimed_at(SpaceId{page.space}); !dropped.is_zero())
    return dropped_space(page, dropped, request);
  if (const auto mark = broken(page); mark.has_value() && mark->llsn <= request.at_least)
    return error_corruption(name_of(page) + " at llsn " + std::to_string(mark->llsn.value) + " (" +
                            name_of(mark->stream, mark->lsn) +
                            ") could not be made from the log: a section, or the page before it, "
                            "is damaged");
  StatusOr<PageRef> read = pages_.read(page);
  if (!read.ok()) return read.status();
  const Llsn llsn{header_of((*read)->bytes)->llsn};
  if (llsn > request.at_most)
    return error_out_of_range(name_of(page) + ": only its newest state is kept, of llsn " +
                              std::to_string(llsn.value) + "; llsn " +
                              std::to_string(request.at_most.value) + " was asked for");
  return PageAnswer{*std::move(read), llsn};
}

}  // namespace strata::storenode
