#include "storenode/replay/ingest.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/diag.h"

namespace strata::storenode {
namespace {
// How far the scanned mark is ahead: that much log is looked up in vain after a crash.
constexpr uint64_t kMarkAheadBytes = 4u << 20;
}  // namespace

Status Ingest::check_begin(const Stream& stream) const {
  const Lsn begin = stream.log->begin_lsn();
  if (begin <= stream.end.lsn) return ok_status();
  return error_corruption(
      "stream " + std::to_string(stream.id.value) + ": the log kept here begins at lsn " +
      std::to_string(begin.value) + ", but the page store has only what is below lsn " +
      std::to_string(stream.end.lsn.value) +
      "; what is between cannot be replayed here: copy the page store from another storage node");
}

Status Ingest::add_stream(StreamId id, LogView* log, Lsn begin) {
  auto stream = std::make_unique<Stream>();
  stream->id = id;
  stream->log = log;
  STRATA_ASSIGN_OR_RETURN(const auto scanned, parts_.db->read_mark(Mark::kScanned, id));
  STRATA_ASSIGN_OR_RETURN(const auto replayed, parts_.db->read_mark(Mark::kReplayed, id));
  stream->end = replayed.value_or(StreamMark{begin, Llsn{}});
  stream->known_to = stream->marked_to = scanned.value_or(stream->end).lsn;
  stream->reader = std::make_unique<GroupReader>(id, log, parts_.log_cache, stream->end.lsn);
  stream->failure = check_begin(*stream);
  if (!stream->failure.ok())
    diag(Severity::kError, "%s", std::string(stream->failure.message()).c_str());
  // First: whoever finds the stream among the others finds out how far it is replayed.
  STRATA_RETURN_IF_ERROR(replay_->add_stream(id, log, stream->end));
  parts_.streams->add({id, log});
  parts_.waits->publish_scanned(id, stream->end);
  const MutexLock lock(mutex_);
  streams_.push_back(std::move(stream));
  return ok_status();
}

void Ingest::fail(Stream* stream, const Status& status) {
  diag(Severity::kError, "replay stops: %s", std::string(status.message()).c_str());
  {
    const MutexLock lock(mutex_);
    stream->failure = status;
  }
  parts_.waits->wake_all();
}

Status Ingest::failure() const {
  const MutexLock lock(mutex_);
  for (const auto& stream : streams_)
    if (!stream->failure.ok()) return stream->failure;
  return ok_status();
}

void Ingest::retry() {
  std::vector<Stream*> stopped;
  {
    const MutexLock lock(mutex_);
    for (const auto& stream : streams_)
      if (!stream->failure.ok()) stopped.push_back(stream.get());
  }
  // The log store has mutexes of its own; a stream that has stopped does not move meanwhile.
  for (Stream* const stream : stopped) {
    const Status status = check_begin(*stream);
    const MutexLock lock(mutex_);
    stream->failure = status;
  }
}

size_t Ingest::stream_count() const {
  const MutexLock lock(mutex_);
  return streams_.size();
}

// They take turns. Null: its turn is over, since it has stopped.
Ingest::Stream* Ingest::next_stream() {
  const MutexLock lock(mutex_);
  Stream* const stream = streams_[next_++ % streams_.size()].get();
  return stream->failure.ok() ? stream : nullptr;
}

StatusOr<bool> Ingest::step(uint64_t bytes) {
  STRATA_RETURN_IF_ERROR(reclaim_spaces());
  for (size_t left = stream_count(); left != 0; --left) {
    Stream* const stream = next_stream();
    if (stream == nullptr) continue;
    STRATA_ASSIGN_OR_RETURN(const bool some, scan(stream, bytes));
    if (some) return true;
  }
  return false;
}

// IN3. *pending: it is in the map and not stored yet.
StatusOr<bool> Ingest::is_known(PageId page, Llsn llsn, bool* pending) {
  bool known = false;
  STRATA_RETURN_IF_ERROR(parts_.map->inspect(page, [&](VersionList list) {
    const ptrdiff_t at = newest_at(list, llsn);
    if (at >= 0 && list[at].llsn == llsn) {
      known = true;
      *pending = !list[at].is(kMaterialized);
    } else if (at < 0 && !list.empty() && list.front().is(kOldestKept)) {
      known = true;
    }
  }));
  return known;
}

Status Ingest::add_section(Stream* stream, const redo::GroupView& group,
                           const redo::SectionView& section, Found* found) {
  const PageId page = section.page_id;
  ++found->sections;
  if (parts_.map->is_reclaimed(SpaceId{page.space})) return ok_status();
  Version version;
  version.llsn = Llsn{group.header.llsn};
  version.prev_llsn = section.prev_llsn;
  version.lsn = Lsn{group.header.lsn};
  version.stream = stream->id;
  version.section_offset = section_offset(group, section);
  const Bytes bytes = section_bytes(section);
  version.section_bytes = static_cast<uint32_t>(bytes.size());
  version.section_crc32c = crc32c(bytes.data(), bytes.size());
  if (section.restarts_chain()) version.flags |= kRestartsChain;
  if (version.lsn < stream->known_to) {
    bool pending = false;
    STRATA_ASSIGN_OR_RETURN(const bool known, is_known(page, version.llsn, &pending));
    if (known) parts_.counters->sections_known.fetch_add(1, std::memory_order_relaxed);
    if (known && !pending) return ok_status();
    if (known) {
      found->pending.push_back(page);
      return ok_status();
    }
  }
  found->added.push_back({page, version});
  return ok_status();
}

Status Ingest::collect_group(Stream* stream, const redo::GroupView& group, Found* found) {
  STRATA_RETURN_IF_ERROR(
      redo::for_each_section(group, [&](const redo::SectionView& section) -> Status {
        redo::for_each_dropped_space(section, [&](SpaceId space) {
          found->marks.put_dropped(parts_.map->note_dropped(space, Llsn{group.header.llsn}));
        });
        return add_section(stream, group, section, found);
      }));
  ++found->groups;
  found->end = {Lsn{group.header.lsn + group.header.length}, Llsn{group.header.llsn}};
  return ok_status();
}

// What was read since the last position published is read again.
Status Ingest::start_over(Stream* stream, const Status& status) const {
  stream->reader =
      std::make_unique<GroupReader>(stream->id, stream->log, parts_.log_cache, stream->end.lsn);
  return status;
}

Status Ingest::publish(Stream* stream, Found* found) {
  Lsn marked_to = stream->marked_to;
  if (found->end.lsn > marked_to) {
    marked_to = Lsn{found->end.lsn.value + kMarkAheadBytes};
    found->marks.put_mark(Mark::kScanned, stream->id, {marked_to, found->end.llsn});
  }
  STRATA_RETURN_IF_ERROR(parts_.db->write(&found->marks));
  STRATA_ASSERT(found->groups != 0 && found->end.lsn > stream->end.lsn);
  STRATA_ASSERT(marked_to >= found->end.lsn);
  stream->marked_to = marked_to;
  const bool known_ones = !found->pending.empty();
  STRATA_RETURN_IF_ERROR(parts_.map->add(found->added, &found->pending));
  if (known_ones) {  // a page may be there many times
    std::sort(found->pending.begin(), found->pending.end());
    found->pending.erase(std::unique(found->pending.begin(), found->pending.end()),
                         found->pending.end());
  }
  const StreamMark from = std::exchange(stream->end, found->end);
  replay_->scanned(stream->id, from, stream->end, found->pending);
  parts_.waits->publish_scanned(stream->id, stream->end);
  ReplayCounters& counters = *parts_.counters;
  counters.groups_scanned.fetch_add(found->groups, std::memory_order_relaxed);
  counters.sections_scanned.fetch_add(found->sections, std::memory_order_relaxed);
  counters.bytes_scanned.fetch_add(stream->end.lsn.value - from.lsn.value,
                                   std::memory_order_relaxed);
  return ok_status();
}

StatusOr<bool> Ingest::scan(Stream* stream, uint64_t bytes) {
  Found found;
  found.end = stream->end;
  found.marks = parts_.db->new_batch();
  Status damage;
  while (found.end.lsn.value - stream->end.lsn.value < bytes) {
    redo::GroupView group;
    const StatusOr<bool> more = stream->reader->next(&group);
    if (!more.ok()) damage = more.status();
    if (!more.ok() || !*more) break;
    if (Status status = collect_group(stream, group, &found); !status.ok())
      return start_over(stream, status);
  }
  if (found.groups != 0) {
    if (Status status = publish(stream, &found); !status.ok()) return start_over(stream, status);
  }
  if (damage.ok()) return found.groups != 0;
  if (!is_corruption(damage) && !is_out_of_range(damage)) return damage;
  fail(stream, error_corruption(std::string(damage.message())));
  return true;
}

Status Ingest::reclaim_spaces() {
  for (const DroppedSpace& dropped : parts_.map->reclaimable())
    STRATA_RETURN_IF_ERROR(parts_.map->reclaim_space(dropped));
  return ok_status();
}

}  // namespace strata::storenode
