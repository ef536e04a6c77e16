#include "memnode/host/log_redo.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/page_name.h"
#include "base/wait_interrupt.h"
#include "page/page.h"
#include "redo/gone_spaces.h"

namespace strata::memnode {

LogRedo::LogRedo(PageSource* storage, std::vector<LogToRedo> logs, Options options)
    : storage_(storage),
      options_(options),
      logs_(std::move(logs)),
      batch_(kWriteBatchPages * size_t{kPageBytes}) {}

Status LogRedo::damage(const LogToRedo& log, const redo::GroupHeader& header, PageId page,
                       const std::string& what) const {
  return error_corruption("redo of the log of server " + std::to_string(log.stream.value) +
                          ", position " + std::to_string(header.lsn) + ", " + name_of(page) + ": " +
                          std::string(what) + "; nothing is served before that is repaired");
}

// --- reading ---

// As the kernel's recovery does: what the stored list says, and what any log says since.
Status LogRedo::find_gone_spaces() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> all, storage_->list_spaces());
  present_.insert(all.begin(), all.end());
  const AlignedBytes page(kPageBytes);
  const Status read = storage_->read(kPendingDeletesPage, Llsn{}, page.get());
  if (is_not_found(read) || is_corruption(read)) return ok_status();  // a log makes it, or nobody
  STRATA_RETURN_IF_ERROR(read);
  for (const SpaceId space : redo::read_pending_deletes(page.get())) gone_.insert(space);
  return ok_status();
}

Status LogRedo::read_log(LogToRedo* log) {
  LogReader reader(log->sink, log->from, log->bias);
  redo::GroupView group;
  for (;;) {
    if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
    STRATA_ASSIGN_OR_RETURN(const bool more, reader.next(&group));
    if (!more) break;
    STRATA_RETURN_IF_ERROR(redo::for_each_section(group, [&](const redo::SectionView& section) {
      redo::for_each_gone_space(section, [&](SpaceId space) { gone_.insert(space); });
      return ok_status();
    }));
  }
  STRATA_RETURN_IF_ERROR(reader.erase_tail());  // LRD2
  log->end = reader.end_lsn();
  log->bias_at_end = reader.bias();
  counters_.groups += reader.group_count();
  counters_.log_bytes += log->end.value - log->from.value;
  return ok_status();
}

Status LogRedo::read() {
  for (LogToRedo& log : logs_) STRATA_RETURN_IF_ERROR(read_log(&log));
  return find_gone_spaces();  // LRD6
}

// LRD4
bool LogRedo::is_gone(SpaceId space) const {
  return gone_.contains(space) || !present_.contains(space);
}

// --- applying ---

// The next group of a log that has one.
struct LogRedo::Head {
  const LogToRedo* log;
  LogReader reader;
  redo::GroupView group;
  bool more = false;

  Status next() {
    STRATA_ASSIGN_OR_RETURN(more, reader.next(&group));
    if (more || reader.end_lsn() == log->end) return ok_status();
    return error_corruption("the log of server " + std::to_string(log->stream.value) +
                            " ended at position " + std::to_string(log->end.value) +
                            " and was read anew up to " + std::to_string(reader.end_lsn().value));
  }
};

// LRD1. The llsns of one log only grow (LR4), so the smallest of the heads is the smallest of all.
Status LogRedo::apply() {
  std::vector<std::unique_ptr<Head>> heads;
  for (const LogToRedo& log : logs_) {
    heads.push_back(std::make_unique<Head>(Head{&log, {log.sink, log.from, log.bias}, {}, false}));
    STRATA_RETURN_IF_ERROR(heads.back()->next());
  }
  for (;;) {
    Head* least = nullptr;
    for (const auto& head : heads)
      if (head->more && (least == nullptr || head->group.header.llsn < least->group.header.llsn))
        least = head.get();
    if (least == nullptr) return write_all();
    if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
    STRATA_RETURN_IF_ERROR(apply_group(*least->log, least->group));
    STRATA_RETURN_IF_ERROR(least->next());
  }
}

Status LogRedo::apply_group(const LogToRedo& log, const redo::GroupView& group) {
  return redo::for_each_section(group, [&](const redo::SectionView& section) {
    return apply_section(log, group.header, section);
  });
}

Status LogRedo::apply_section(const LogToRedo& log, const redo::GroupHeader& header,
                              const redo::SectionView& section) {
  if (is_gone(SpaceId{section.page_id.space})) {
    ++counters_.skipped;
    return ok_status();
  }
  STRATA_ASSIGN_OR_RETURN(Page* const page, fetch(section.page_id));
  if (page->damaged && !section.restarts_chain())
    return damage(log, header, section.page_id,
                  "the stored page is damaged and no full image precedes its first change");
  const auto applied = redo::apply_section(page->bytes.get(), Llsn{header.llsn}, section);
  if (!applied.ok())
    return damage(log, header, section.page_id, std::string(applied.status().message()));
  switch (*applied) {
    case redo::Applied::kApplied:
      page->damaged = false;
      ++counters_.applied;
      return ok_status();
    case redo::Applied::kAlreadyThere:
      ++counters_.already_there;
      return ok_status();
    case redo::Applied::kGap:
      break;
  }
  return damage(log, header, section.page_id,
                "the page has llsn " + std::to_string(header_of(page->bytes.get())->llsn) +
                    ", the change is one of llsn " + std::to_string(section.prev_llsn.value) +
                    ": a change in between is missing");
}

// LRD3: once it is here it is written.
StatusOr<LogRedo::Page*> LogRedo::fetch(PageId id) {
  const auto found = pages_.find(id);
  if (found != pages_.end()) return &found->second;
  if (pages_.size() >= options_.dirty_pages_max) STRATA_RETURN_IF_ERROR(write_all());  // LRD5
  Page page;
  const Status read = storage_->read(id, Llsn{}, page.bytes.get());
  page.damaged = is_corruption(read);
  if (!page.damaged && !is_not_found(read)) STRATA_RETURN_IF_ERROR(read);
  if (!read.ok()) std::memset(page.bytes.get(), 0, kPageBytes);  // RD4
  ++counters_.pages_read;
  return &pages_.emplace(id, std::move(page)).first->second;
}

// In the order of pages.
Status LogRedo::write_all() {
  if (pages_.empty()) return ok_status();
  std::array<PageId, kWriteBatchPages> ids;
  std::array<bool, kWriteBatchPages> ok{};
  uint32_t count = 0;
  const auto write = [&]() -> Status {
    if (count != 0)
      STRATA_RETURN_IF_ERROR(storage_->write_batch(ids.data(), count, batch_.get(), ok.data()));
    counters_.pages_written += count;
    count = 0;
    return ok_status();
  };
  for (auto& [id, page] : pages_) {
    if (header_of(page.bytes.get())->llsn == 0) continue;  // nothing was ever applied to it
    seal_page(page.bytes.get());
    ids[count] = id;
    std::memcpy(batch_.get() + count * size_t{kPageBytes}, page.bytes.get(), kPageBytes);
    if (++count == kWriteBatchPages) STRATA_RETURN_IF_ERROR(write());
  }
  STRATA_RETURN_IF_ERROR(write());
  STRATA_RETURN_IF_ERROR(storage_->sync());
  pages_.clear();
  return ok_status();
}

}  // namespace strata::memnode
