#include "storenode/replay/sequential_replay.h"

#include <string>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"

namespace strata::storenode {

Status SequentialReplay::add_stream(StreamId stream, LogView* log, StreamMark from) {
  if (log_ != nullptr)
    return error_invalid_argument("replay with one sequential worker serves one stream only");
  stream_ = stream;
  log_ = log;
  reader_ = std::make_unique<GroupReader>(stream, log, parts_.log_cache, from.lsn);
  {
    const MutexLock lock(mutex_);
    scanned_ = replayed_ = from.lsn.value;
  }
  parts_.waits->publish_replayed(stream, from);
  return ok_status();
}

void SequentialReplay::scanned(StreamId, StreamMark, StreamMark to, const std::vector<PageId>&) {
  const MutexLock lock(mutex_);
  STRATA_ASSERT(to.lsn.value >= scanned_);
  scanned_ = to.lsn.value;
  changed_.notify_one();
}

bool SequentialReplay::wait_for_work() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) {
    return stop_ || (replayed_ < scanned_ && failure_.ok());
  });
  return !stop_;
}

void SequentialReplay::stop_waiting(bool stop) {
  const MutexLock lock(mutex_);
  stop_ = stop;
  changed_.notify_all();
}

StreamMark SequentialReplay::replayed_to(StreamId stream) const {
  return parts_.waits->replayed(stream);
}

StatusOr<StreamMarks> SequentialReplay::prepare_checkpoint() {
  StreamMarks marks;
  if (log_ != nullptr) marks.emplace_back(stream_, parts_.waits->replayed(stream_));
  return marks;
}

// --- the worker ---

// Nothing: the version is stored already, or collected.
StatusOr<std::optional<Version>> SequentialReplay::wanted(PageId page, Llsn llsn) {
  std::optional<Version> found;
  STRATA_RETURN_IF_ERROR(parts_.map->inspect(page, [&](VersionList list) {
    const ptrdiff_t at = newest_at(list, llsn);
    if (at >= 0 && list[at].llsn == llsn && !list[at].is(kMaterialized)) found = list[at];
  }));
  return found;
}

StatusOr<PageRef> SequentialReplay::make(const Version& version, const redo::SectionView& section) {
  if (section.restarts_chain()) return apply_to_copy(nullptr, section.page_id, version, section);
  StatusOr<PageRef> base = parts_.store->read(section.page_id, section.prev_llsn);
  if (is_not_found(base.status()))
    return error_corruption(
        name_of(section.page_id) + " at llsn " + std::to_string(version.llsn.value) + " (" +
        name_of(version.stream, version.lsn) + "): the version before it, llsn " +
        std::to_string(section.prev_llsn.value) + ", is missing");
  STRATA_RETURN_IF_ERROR(base.status());
  return apply_to_copy(base->get(), section.page_id, version, section);
}

// A page that is damaged does not keep the others from being replayed: its version stays without
// a page, which requests are told.
Status SequentialReplay::replay_section(const redo::GroupView& group,
                                        const redo::SectionView& section) {
  ReplayCounters& counters = *parts_.counters;
  STRATA_ASSIGN_OR_RETURN(const std::optional<Version> version,
                          wanted(section.page_id, Llsn{group.header.llsn}));
  if (!version.has_value()) {
    counters.sections_skipped.fetch_add(1, std::memory_order_relaxed);
    return ok_status();
  }
  StatusOr<PageRef> made = make(*version, section);
  if (is_corruption(made.status())) {
    counters.pages_broken.fetch_add(1, std::memory_order_relaxed);
    diag(Severity::kError, "replay: %s", std::string(made.status().message()).c_str());
    STRATA_RETURN_IF_ERROR(parts_.map->settle(section.page_id, version->llsn));
    if (parts_.damaged) parts_.damaged(section.page_id, version->llsn);
    return ok_status();
  }
  STRATA_RETURN_IF_ERROR(made.status());
  counters.sections_applied.fetch_add(1, std::memory_order_relaxed);
  counters.section_bytes.fetch_add(version->section_bytes, std::memory_order_relaxed);
  counters.pages_made.fetch_add(1, std::memory_order_relaxed);
  parts_.store->remember(section.page_id, version->llsn, *made);
  const VersionMap::MadeVersion one{version->llsn, *std::move(made)};
  return parts_.map->store(section.page_id, {&one, 1}, VersionMap::Trim::kWhenWorthwhile);
}

// Damage of the log stays until somebody mends it; anything else may pass.
Status SequentialReplay::stop_at(const Status& status) {
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

Status SequentialReplay::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

void SequentialReplay::retry() {
  const MutexLock lock(mutex_);
  failure_ = ok_status();
  changed_.notify_all();
}

// One group.
StatusOr<bool> SequentialReplay::step() {
  if (log_ == nullptr) return false;
  {
    const MutexLock lock(mutex_);
    if (replayed_ >= scanned_ || !failure_.ok()) return false;
  }
  redo::GroupView group;
  const StatusOr<bool> more = reader_->next(&group);
  Status status = more.status();
  if (status.ok()) {
    STRATA_ASSERT(*more);  // quick scan has read it
    status = redo::for_each_section(group, [this, &group](const redo::SectionView& section) {
      return replay_section(group, section);
    });
  }
  if (!status.ok()) {
    STRATA_RETURN_IF_ERROR(stop_at(status));
    return false;
  }
  parts_.counters->groups_replayed.fetch_add(1, std::memory_order_relaxed);
  const StreamMark end{reader_->position(), Llsn{group.header.llsn}};
  {
    const MutexLock lock(mutex_);
    STRATA_ASSERT(end.lsn.value > replayed_ && end.lsn.value <= scanned_);
    replayed_ = end.lsn.value;
  }
  parts_.waits->publish_replayed(stream_, end);
  return true;
}

// --- requests ---

// SQ3. Not stored: the worker does that when it gets there.
StatusOr<PageAnswer> SequentialReplay::make_for_peer(PageId page, const Version& version) const {
  std::string bytes;
  STRATA_RETURN_IF_ERROR(read_section(parts_, version, &bytes));
  STRATA_ASSIGN_OR_RETURN(const redo::SectionView section, redo::parse_section(bytes));
  STRATA_ASSIGN_OR_RETURN(PageRef made, apply_to_copy(nullptr, page, version, section));
  return PageAnswer{std::move(made), version.llsn};
}

// Once the log is scanned as far as the request says.
Verdict SequentialReplay::answer_when_replayed(const GetPageRequest& request) {
  for (;;) {
    const StatusOr<Version> version = find_version(parts_, request);
    if (!version.ok()) return version.status();
    if (version->is(kMaterialized)) {
      StatusOr<std::optional<PageAnswer>> answer = read_stored(parts_, request.page, *version);
      if (!answer.ok()) return answer.status();
      if (answer->has_value()) return **std::move(answer);
      continue;
    }
    if (!parts_.waits->is_replayed(request, version->llsn, /*positions=*/false)) {
      if (!request.from_peer || !version->is(kRestartsChain))
        return WaitCondition{WaitCondition::Kind::kReplayed, version->llsn, false};
      StatusOr<PageAnswer> made = make_for_peer(request.page, *version);
      if (!made.ok()) return made.status();
      return *std::move(made);
    }
    // It may have been stored since the map was looked at.
    const StatusOr<std::optional<Version>> still = wanted(request.page, version->llsn);
    if (!still.ok()) return still.status();
    if (still->has_value()) return not_replayed(request.page, *version);
  }
}

std::optional<PageAnswer> SequentialReplay::page_at_hand(const GetPageRequest& request) {
  const bool known = wait_ == SequentialWait::kEager
                         ? parts_.waits->is_replayed_at_hand(request, request.at_least, true)
                         : parts_.waits->is_scanned_at_hand(request);
  if (!known) return std::nullopt;
  return stored_at_hand(parts_, request);
}

Verdict SequentialReplay::attempt(Ticket* ticket) {
  const GetPageRequest& request = ticket->request;
  if (wait_ == SequentialWait::kEager) {
    if (!parts_.waits->is_replayed(request, request.at_least, /*positions=*/true))
      return WaitCondition{WaitCondition::Kind::kReplayed, request.at_least, true};
  } else if (!parts_.waits->is_scanned(request)) {
    return WaitCondition{WaitCondition::Kind::kScanned, {}, false};
  }
  return answer_when_replayed(request);
}

}  // namespace strata::storenode
