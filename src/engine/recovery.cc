// Crash recovery: redo from the checkpoint, then rollback by undo (the shape of ARIES).
#include <algorithm>
#include <set>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/page_name.h"
#include "engine/internal/kernel_impl.h"
#include "redo/gone_spaces.h"
#include "redo/redo.h"
#include "wal/log_reader.h"

namespace strata::engine {
namespace {

std::string where(Lsn lsn, PageId id) {
  return "log position " + std::to_string(lsn.value) + ", " + name_of(id);
}

class RedoPass {
 public:
  RedoPass(KernelImpl* kernel, const std::set<uint32_t>* dropped) : k_(kernel), dropped_(dropped) {}

  Status apply_group(const redo::GroupView& group) {
    const Lsn start{group.header.lsn};
    const Lsn end{group.header.lsn + group.header.length};
    const Llsn llsn{group.header.llsn};
    return redo::for_each_section(group, [&](const redo::SectionView& section) {
      return apply_section(start, end, llsn, section);
    });
  }

  // The largest llsn that a page had before a section was applied to it.
  [[nodiscard]] Llsn newest() const noexcept { return newest_; }
  [[nodiscard]] PageId newest_page() const noexcept { return newest_page_; }

 private:
  Status apply_section(Lsn start, Lsn end, Llsn llsn, const redo::SectionView& section) {
    if (dropped_->count(section.page_id.space) != 0) {
      ++k_->recovery.sections_skipped;
      return ok_status();
    }
    if (k_->seams.page_lock != nullptr && !k_->seams.page_lock->needs_redo(section.page_id)) {
      ++k_->recovery.sections_skipped;
      return ok_status();
    }
    bool damaged = false;
    auto fixed = k_->pool->fix_for_redo(section.page_id, &damaged);
    if (!fixed.ok()) return fixed.status();
    PageGuard guard = std::move(fixed).value();
    if (const Llsn seen{header_of(guard.page())->llsn}; seen > newest_) {
      newest_ = seen;
      newest_page_ = section.page_id;
    }
    if (damaged && !section.restarts_chain()) {
      return error_corruption(
          "redo: " + where(start, section.page_id) +
          ": the stored page is damaged and no full image precedes its first change");
    }
    auto applied = redo::apply_section(guard.mutable_page(), llsn, section);
    if (!applied.ok()) {
      return error_corruption("redo: " + where(start, section.page_id) + ": " +
                              std::string(applied.status().message()));
    }
    if (*applied == redo::Applied::kGap) {
      return error_corruption("redo: " + where(start, section.page_id) +
                              ": the page misses an earlier change (gap in its chain)");
    }
    // A page that has the change already may be in the operating system's cache only (the last life
    // was killed before it synced), or only in the copy that was read, of several that the source
    // keeps: it counts as dirty, so that it is written again before the next checkpoint.
    if (*applied == redo::Applied::kAlreadyThere) {
      ++k_->recovery.sections_skipped;
    } else {
      ++k_->recovery.sections_applied;
    }
    k_->pool->note_modified(guard, start, end, section.restarts_chain());
    return ok_status();
  }

  KernelImpl* k_;
  const std::set<uint32_t>* dropped_;
  Llsn newest_;
  PageId newest_page_;
};

}  // namespace

// Finds the end of the log and every space whose drop it tells of (also one whose entry in the
// pending-delete list was removed again: its file is gone as well).
Status KernelImpl::scan_log(Lsn from, Lsn* end, uint64_t* bias, std::set<uint32_t>* gone) {
  LogReader reader(sink, from, *bias);
  const bool tell = source->replays_log() && source->wants_changes_in_log();
  redo::GroupView group;
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(const bool more, reader.next(&group));
    if (!more) break;
    ++recovery.groups;
    STRATA_RETURN_IF_ERROR(redo::for_each_section(group, [&](const redo::SectionView& section) {
      redo::for_each_gone_space(section, [&](SpaceId space) { gone->insert(space.value); });
      if (tell) source->changed_in_log(section.page_id, Llsn{group.header.llsn});
      return ok_status();
    }));
  }
  // Groups of the old life behind a torn one must not parse again once the log goes on from here.
  STRATA_RETURN_IF_ERROR(reader.erase_tail());
  STRATA_ASSERT(reader.end_lsn() >= from);
  *end = reader.end_lsn();
  *bias = reader.bias();
  recovery.log_bytes = end->value - from.value;
  return ok_status();
}

Status KernelImpl::apply_log(Lsn from, Lsn end, uint64_t bias, uint64_t bias_at_end,
                             const std::set<uint32_t>& gone) {
  RedoPass pass(this, &gone);
  LogReader reader(sink, from, bias);
  redo::GroupView group;
  uint64_t done = 0;
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(const bool more, reader.next(&group));
    if (!more) break;
    STRATA_RETURN_IF_ERROR(pass.apply_group(group));
    if (++done == recovery.groups / 2) fault(FaultPoint::recovery_half_redo);
  }
  // With one writer no page can be newer than its log.
  if (sole_writer() && pass.newest().value > end.value + bias_at_end)
    return error_corruption(name_of(pass.newest_page()) + " is newer (llsn " +
                            std::to_string(pass.newest().value) + ") than the log in " +
                            path("log") + ", which ends at " + std::to_string(end.value) +
                            ": its end was lost; restore the database from a backup");
  if (recovery.groups != 0) {
    diag(Severity::kInfo, "redo: %llu groups, %.1f MB of log from position %llu",
         static_cast<unsigned long long>(recovery.groups),
         static_cast<double>(recovery.log_bytes) / 1e6,
         static_cast<unsigned long long>(from.value));
  }
  return ok_status();
}

Status KernelImpl::redo(Lsn from, Lsn* end, uint64_t* bias, std::vector<SpaceId>* dropped) {
  if (from > sink->room_end())
    return error_corruption("the checkpoint is at log position " + std::to_string(from.value) +
                            ", but the log in " + path("log") + " ends before it, at " +
                            std::to_string(sink->room_end().value) +
                            ": a segment is missing; restore it");
  const uint64_t bias_before = *bias;
  std::set<uint32_t> gone;
  if (source->replays_log()) {
    STRATA_RETURN_IF_ERROR(scan_log(from, end, bias, &gone));
    source->begin_at(Llsn{end->value + *bias});
    const AlignedBytes page(kPageBytes);
    STRATA_RETURN_IF_ERROR(source->read(kPendingDeletePage, Llsn{}, page.get()));
    for (const SpaceId space : redo::read_pending_deletes(page.get())) gone.insert(space.value);
  } else {
    STRATA_RETURN_IF_ERROR(collect_pending_deletes(&gone));
    STRATA_RETURN_IF_ERROR(scan_log(from, end, bias, &gone));
    STRATA_RETURN_IF_ERROR(apply_log(from, *end, bias_before, *bias, gone));
  }
  dropped->clear();
  for (const uint32_t space : gone) dropped->push_back(SpaceId{space});
  return ok_status();
}

// As stored: the log tells what happened to it since.
Status KernelImpl::collect_pending_deletes(std::set<uint32_t>* gone) {
  bool damaged = false;
  STRATA_ASSIGN_OR_RETURN(const PageGuard guard, pool->fix_for_redo(kPendingDeletePage, &damaged));
  if (damaged) return ok_status();
  for (const SpaceId space : redo::read_pending_deletes(guard.page())) gone->insert(space.value);
  return ok_status();
}

namespace {

// Tables are served from the dictionary, so what it says must not change behind.
bool changed_dictionary(const Trx& trx) {
  const std::vector<SpaceId>& spaces = trx.changed_spaces;
  return std::find(spaces.begin(), spaces.end(), SpaceId{kSystemSpace}) != spaces.end();
}

}  // namespace

Status KernelImpl::roll_back_unfinished() {
  std::vector<std::unique_ptr<Trx>> active;
  std::vector<std::unique_ptr<Trx>> undecided;
  STRATA_RETURN_IF_ERROR(trxs->recover(&active, &undecided));
  const size_t waiting = undecided.size();
  for (auto& trx : undecided) keep_prepared(std::move(trx));
  for (auto& trx : active) {
    if (options.background && !changed_dictionary(*trx)) {
      finish_later({.trx = std::move(trx), .recovered = true});
      continue;
    }
    STRATA_RETURN_IF_ERROR(rollback_all(&row, trx.get()));
    ++recovery.rolled_back;
  }
  if (!active.empty() || waiting != 0) {
    size_t later = 0;
    {
      const MutexLock lock(unfinished_mutex);
      later = unfinished.size();
    }
    diag(Severity::kInfo,
         "recovery: %llu transactions rolled back, %zu to be rolled back while the engine serves, "
         "%zu prepared ones wait for a decision",
         static_cast<unsigned long long>(recovery.rolled_back.load()), later, waiting);
  }
  return ok_status();
}

}  // namespace strata::engine
