// Life of a transaction: id, undo, prepare, commit, rollback.
#include "txn/trx_system.h"

#include <iterator>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"
#include "redo/redo.h"
#include "txn/internal/trx_impl.h"

namespace strata {

using txn_internal::chunk_of;
using txn_internal::group_chunk_of;
using txn_internal::kSequencesPerGroup;
using txn_internal::StatusEntry;

namespace {

// What a client purges of its own: this many records at most, and one page of undo.
constexpr uint64_t kOwnWorkMax = 8;
constexpr uint64_t kChainWork = 1000;  // a chain outside the row has nobody knows how many pages

constexpr uint32_t kOnePageMtrBytes = Mtr::kGroupLogBytes + Mtr::kPageLogBytesMax;

bool needs_group(const Trx& trx) noexcept {
  return !trx.undo.first.is_zero() || !trx.drop_on_commit.empty();
}

// Back to the state before begin(), but for what the next transaction reuses and what a caller may
// want to read afterwards (state, cts, commit_end).
void reset(Trx* trx) {
  trx->id = TrxId{};
  trx->started = false;
  trx->view.own = TrxId{};
  trx->undo = UndoSpace::Writer{};
  trx->next_overflow_ordinal = 1;
  trx->must_rollback = false;
  trx->undo_failure = ok_status();
  trx->refuses_unseen = false;
  trx->frees_room = false;
  trx->recovered = false;
  trx->leaves_work = 0;
  trx->xid.clear();
  trx->drop_on_commit.clear();
  trx->drop_on_rollback.clear();
  trx->on_publish = nullptr;
  trx->status_page = kNoPage;
  trx->marked = false;
}

}  // namespace

TrxSystem::TrxSystem(const TrxSystemOptions& options, BufferPool* pool, Log* log,
                     SpaceManager* spaces, UndoSpace* undo, TimestampSource* timestamps,
                     RowWaits* waits)
    : impl_(std::make_unique<Impl>(options, pool, log, spaces, undo, timestamps, waits)) {}

TrxSystem::~TrxSystem() {
  if (impl_->told_others) impl_->others->leave(impl_->node);
  if (impl_->joined) impl_->horizon->leave(impl_->node);
}

Status TrxSystem::initialise() {
  STRATA_RETURN_IF_ERROR(impl_->join_horizon());
  STRATA_RETURN_IF_ERROR(impl_->status.initialise());
  return impl_->join_others();
}

void TrxSystem::begin(Trx* trx) {
  STRATA_ASSERT(!trx->started);
  reset(trx);
  trx->state = TrxState::kNone;
  trx->cts = Cts{};
  trx->commit_end = Lsn{};
  trx->started = true;
}

// --- sequences ---

// T4: the chunks of the next sequences get their pages. `lock` (ids) is released meanwhile.
Status TrxSystem::Impl::extend_chunks() {
  if (extending) {
    extended.wait(ids, [this]() STRATA_REQUIRES(ids) { return !extending; });
    return ok_status();
  }
  extending = true;
  const uint64_t first_chunk = group_chunk_of(end_sequence);
  ids.unlock();
  const Status made = status.make_group(first_chunk);
  ids.lock();
  extending = false;
  if (made.ok()) {
    if (log->durable_lsn() >= groups_made) lasting_sequences = end_sequence;
    groups_made = log->next_lsn();
    end_sequence += kSequencesPerGroup;
  }
  extended.notify_all();
  return made;
}

// T7: the bound moves over everything finished.
void TrxSystem::Impl::finish(uint64_t sequence) {
  const MutexLock lock(ids);
  uint64_t below = all_visible_below.load(std::memory_order_relaxed);
  STRATA_ASSERT(sequence >= below && sequence - below < finished.size());
  finished[sequence - below] = 1;
  while (!finished.empty() && finished.front() != 0) {
    finished.pop_front();
    ++below;
  }
  all_visible_below.store(below, std::memory_order_release);
}

Status TrxSystem::ensure_id(Trx* trx) {
  STRATA_ASSERT(trx->started);
  if (!trx->id.is_zero()) return ok_status();
  Impl& s = *impl_;
  uint64_t sequence = 0;
  {
    MutexLock lock(s.ids);
    for (uint32_t skipped = 0;; ++skipped) {
      while (s.next_sequence >= s.end_sequence) {
        STRATA_RETURN_IF_ERROR(s.extend_chunks());
      }
      if (!s.tit.busy(s.next_sequence)) break;
      if (skipped == s.tit.size()) return error_no_space("too many transactions at once");
      ++s.next_sequence;  // T3: a gap
      s.finished.push_back(1);
    }
    sequence = s.next_sequence++;
    s.tit.claim(sequence, TrxState::kActive, trx->owner);
    s.finished.push_back(0);
  }
  s.active.fetch_add(1, std::memory_order_relaxed);
  trx->id = make_trx_id(s.node, sequence);
  trx->state = TrxState::kActive;
  trx->view.own = trx->id;
  trx->undo.trx_id = trx->id;
  trx->status_page = s.status.page_of(chunk_of(sequence));
  return ok_status();
}

// --- changes ---

Status TrxSystem::prepare_change(Trx* trx, uint32_t undo_bytes) {
  STRATA_RETURN_IF_ERROR(ensure_id(trx));
  STRATA_RETURN_IF_ERROR(impl_->undo->prepare(&trx->undo, undo_bytes));
  if (!trx->undo.first.is_zero()) return ok_status();
  // The first change latches the status page: have it in memory by then.
  return impl_->pool->bring_in(impl_->status.page_id(trx->status_page));
}

StatusOr<UndoPtr> TrxSystem::add_undo(Mtr* mtr, Trx* trx, UndoRecord* record) {
  STRATA_ASSERT(trx->state == TrxState::kActive && !trx->id.is_zero());
  if ((record->previous.flags & kNextIsDelete) != 0) ++trx->leaves_work;
  if (!record->free_on_purge.empty()) trx->leaves_work += kChainWork;
  if (!trx->undo.first.is_zero()) return impl_->undo->append(mtr, &trx->undo, record);
  // Everything is latched before anything is changed (M1); undo, then status (SD2).
  STRATA_RETURN_IF_ERROR(impl_->undo->fix_tail(mtr, &trx->undo));
  const uint64_t sequence = sequence_of(trx->id);
  STRATA_ASSIGN_OR_RETURN(MtrPage * page, impl_->status.fix(mtr, trx->status_page, sequence));
  STRATA_ASSIGN_OR_RETURN(const UndoPtr ptr, impl_->undo->append(mtr, &trx->undo, record));
  txn_internal::write_entry(mtr, page, sequence, {TrxState::kActive, Cts{}, trx->undo.first});
  return ptr;
}

// --- prepare ---

Status TrxSystem::prepare(Trx* trx, Bytes xid) {
  STRATA_ASSERT(trx->started && !trx->must_rollback);
  if (xid.size() > kXidBytesMax) return error_invalid_argument("xid too long");
  Impl& s = *impl_;
  if (!trx->id.is_zero()) {
    STRATA_ASSERT(trx->state == TrxState::kActive);
    const uint64_t sequence = sequence_of(trx->id);
    STRATA_RETURN_IF_ERROR(
        s.undo->prepare(&trx->undo, UndoSpace::kUndoMarkBytes + static_cast<uint32_t>(xid.size())));
    Mtr mtr(s.pool, s.log);
    STRATA_RETURN_IF_ERROR(mtr.begin_write(Mtr::kDefaultLogBytes, true));
    STRATA_RETURN_IF_ERROR(s.undo->fix_tail(&mtr, &trx->undo));
    STRATA_ASSIGN_OR_RETURN(MtrPage * page, s.status.fix(&mtr, trx->status_page, sequence));
    STRATA_RETURN_IF_ERROR(s.undo->append_mark(&mtr, &trx->undo, UndoType::kPrepare, xid));
    txn_internal::write_entry(&mtr, page, sequence, {TrxState::kPrepared, Cts{}, trx->undo.first});
    if (!s.log->persist(mtr.publish()).ok())
      return error_outcome_unknown("prepare: the log failed");
    s.tit.set(sequence, TrxState::kPrepared, Cts{});
  }
  // Before anything else may fail: what the log says is what a rollback has to start from (T10).
  trx->state = TrxState::kPrepared;
  trx->xid.assign(xid);
  if (!trx->id.is_zero() && fault(FaultPoint::prepare_after_persist))
    return error_outcome_unknown("fault point prepare_after_persist");
  return ok_status();
}

// --- commit ---

// T14. The mark goes first. What is fetched for a commit that then fails is never used.
Status TrxSystem::Impl::mark(Trx* trx) {
  if (!timestamps->is_remote() || trx->marked) return ok_status();
  const uint64_t sequence = sequence_of(trx->id);
  trx->marked = true;
  tit.set(sequence, TrxState::kCommitting, Cts{});
  const StatusOr<Cts> cts = timestamps->next();
  if (!cts.ok()) {
    unmark(trx);
    return cts.status();
  }
  trx->cts = *cts;
  tit.set(sequence, TrxState::kCommitting, *cts);
  outcome_has_changed();
  return ok_status();
}

// The slot says again what it said before: a view that waited takes it for undecided, and if there
// is another commit, its cts is younger than that view.
void TrxSystem::Impl::unmark(Trx* trx) {
  if (!trx->marked) return;
  trx->marked = false;
  trx->cts = Cts{};
  tit.set(sequence_of(trx->id), trx->state, Cts{});
  outcome_has_changed();
}

void TrxSystem::Impl::outcome_has_changed() {
  // Pairs with wait_logged(): after this either it is counted, or it sees what was stored before.
  if (outcome_waiters.fetch_add(0, std::memory_order_acq_rel) == 0) return;
  const MutexLock lock(outcome_mutex);
  outcome_changed.notify_all();
}

Status TrxSystem::reserve_commit(Trx* trx) {
  STRATA_ASSERT(trx->started);
  if (trx->must_rollback) return error_deadlock();  // T13
  if (trx->id.is_zero() || !needs_group(*trx)) return ok_status();
  Impl& s = *impl_;
  STRATA_RETURN_IF_ERROR(s.timestamps->prepare_next());
  if (UndoSpace::needs_rewind_mark(trx->undo)) {  // U5
    STRATA_RETURN_IF_ERROR(s.undo->prepare(&trx->undo, UndoSpace::kUndoMarkBytes));
    Mtr mtr(s.pool, s.log);
    STRATA_RETURN_IF_ERROR(mtr.begin_write(2 * kOnePageMtrBytes, true));
    STRATA_RETURN_IF_ERROR(s.undo->append_mark(&mtr, &trx->undo, UndoType::kRewind, Bytes()));
    mtr.publish();
  }
  // Into memory, so that commit_order() does not read.
  STRATA_RETURN_IF_ERROR(s.pool->bring_in(s.status.page_id(trx->status_page)));
  uint32_t log_bytes = kOnePageMtrBytes;
  if (!trx->drop_on_commit.empty()) {
    STRATA_RETURN_IF_ERROR(s.pool->bring_in(kPendingDeletePage));
    log_bytes += Mtr::kPageLogBytesMax;
  }
  // Before log room is taken, which a slow oracle would keep from others.
  STRATA_RETURN_IF_ERROR(s.mark(trx));
  if (trx->commit_mtr == nullptr) trx->commit_mtr = std::make_unique<Mtr>(s.pool, s.log);
  const Status room = trx->commit_mtr->begin_write(log_bytes, true);
  if (!room.ok()) s.unmark(trx);
  return room;
}

Status TrxSystem::commit_order(Trx* trx) {
  STRATA_ASSERT(trx->started && !trx->must_rollback);
  if (trx->id.is_zero() || !needs_group(*trx)) return ok_status();
  if (trx->state == TrxState::kCommitting) return ok_status();
  STRATA_ASSERT(trx->commit_mtr != nullptr &&
                trx->commit_mtr->can_write());  // reserve_commit() first
  Impl& s = *impl_;
  Mtr* mtr = trx->commit_mtr.get();
  const uint64_t sequence = sequence_of(trx->id);
  // Leaves nothing latched or reserved behind; the transaction is as before.
  const auto failed = [&s, trx, mtr](const Status& status) {
    mtr->abandon();
    s.unmark(trx);
    return status;
  };
  if (fault(FaultPoint::commit_before_log))
    return failed(error_internal("fault point commit_before_log"));
  const StatusOr<MtrPage*> page = s.status.fix(mtr, trx->status_page, sequence);
  if (!page.ok()) return failed(page.status());
  MtrPage* system_page = nullptr;
  if (!trx->drop_on_commit.empty()) {
    const StatusOr<MtrPage*> fixed = mtr->fix(kPendingDeletePage, LatchMode::kExclusive);
    if (!fixed.ok()) return failed(fixed.status());
    system_page = *fixed;
    if (redo::read_pending_deletes(system_page->page()).size() + trx->drop_on_commit.size() >
        redo::kPendingDeletesMax)
      return failed(error_no_space("too many dropped tables wait for the deletion of their files"));
  }
  const auto publish = [&](Cts cts) {
    txn_internal::write_entry(mtr, *page, sequence, {TrxState::kCommitted, cts, trx->undo.first});
    for (const SpaceId space : trx->drop_on_commit) mtr->pending_delete_add(system_page, space);
    trx->commit_end = mtr->publish();
    trx->cts = cts;
    s.tit.set_commit_lsn(sequence, trx->commit_end);
  };
  if (trx->marked) {  // T14
    publish(trx->cts);
    trx->marked = false;
    s.outcome_has_changed();
  } else {
    // T1 (K12). The state goes first: whoever reads a clock that includes our cts finds us
    // committing.
    STRATA_ASSERT(!s.timestamps->is_remote());
    const MutexLock lock(s.commit_mutex);
    s.tit.set(sequence, TrxState::kCommitting, Cts{});
    const StatusOr<Cts> cts = s.timestamps->next();
    if (!cts.ok()) {
      s.tit.set(sequence, trx->state, Cts{});
      return failed(cts.status());
    }
    s.tit.set(sequence, TrxState::kCommitting, *cts);
    publish(*cts);
  }
  trx->state = TrxState::kCommitting;
  return ok_status();
}

void TrxSystem::Impl::release_locks(Trx* trx) {
  tit.forget_owner(sequence_of(trx->id));
  waits->release_exclusive(&trx->held);
  waits->release_shared(trx->id);
  waits->holder_ended(trx->id);
  active.fetch_sub(1, std::memory_order_relaxed);
}

// An id that no page carries, or none any more: nothing to commit or purge.
void TrxSystem::Impl::end_without_group(Trx* trx) {
  const uint64_t sequence = sequence_of(trx->id);
  tit.set(sequence, TrxState::kAborted, Cts{});
  release_locks(trx);
  undo->detach(&trx->undo);
  (void)undo->forget(trx->undo.pages);  // tried again with the next one
  if (trx->undo.first.is_zero()) {
    finish(sequence);
  } else {
    finish_when_unseen(sequence);
  }
}

// T7. Its records are restored; views opened from now on have a snapshot at or above the cts that
// is taken for it.
void TrxSystem::Impl::finish_when_unseen(uint64_t sequence) {
  {
    const MutexLock lock(purge_mutex);
    unstamped.push_back(sequence);
  }
  stamp_aborted();
  finish_unseen();
}

// Without a timestamp (an oracle far away does not answer, the ceiling cannot be raised) they wait
// for the next purge, and the bound with them: only slower.
void TrxSystem::Impl::stamp_aborted() {
  std::vector<uint64_t> todo;
  {
    const MutexLock lock(purge_mutex);
    todo.swap(unstamped);
  }
  if (todo.empty()) return;
  Status status = timestamps->prepare_next();
  StatusOr<Cts> now = Cts{};
  if (status.ok()) now = timestamps->next();  // perhaps of another node: no mutex
  if (status.ok()) status = now.status();
  const MutexLock lock(purge_mutex);
  if (!status.ok()) {
    unstamped.insert(unstamped.end(), todo.begin(), todo.end());
    diag(Severity::kWarning, "rollback: no timestamp yet: %s", status.ToString().c_str());
    return;
  }
  auto at = aborted.end();  // in the order of cts, which is nearly that of coming here
  while (at != aborted.begin() && std::prev(at)->first > *now) --at;
  for (const uint64_t sequence : todo) at = std::next(aborted.insert(at, {*now, sequence}));
}

void TrxSystem::Impl::finish_unseen() {
  for (;;) {
    uint64_t sequence = 0;
    {
      const MutexLock lock(purge_mutex);
      if (aborted.empty() || aborted.front().first > min_view()) return;
      sequence = aborted.front().second;
      aborted.pop_front();
    }
    finish(sequence);
  }
}

Status TrxSystem::commit_finish(Trx* trx, bool durable, PurgeItem* own) {
  STRATA_ASSERT(trx->started);
  Impl& s = *impl_;
  if (trx->view.open) close_view(trx);
  if (trx->state != TrxState::kCommitting) {
    STRATA_ASSERT(trx->id.is_zero() || !needs_group(*trx));
    if (!trx->id.is_zero()) s.end_without_group(trx);
    if (trx->on_publish) trx->on_publish();
    s.counters.read_only_commits.fetch_add(1, std::memory_order_relaxed);
    trx->state = TrxState::kCommitted;
    reset(trx);
    return ok_status();
  }
  Status known = fault(FaultPoint::commit_before_persist) ? error_internal() : ok_status();
  if (known.ok() && durable) known = s.log->persist(trx->commit_end);
  if (s.log->poisoned()) known = error_ended();
  if (fault(FaultPoint::commit_before_publish)) known = error_internal();
  if (!known.ok()) {
    // The slot stays kCommitting for ever: nobody may learn an outcome that we do not know (W5).
    trx->held.abandon();
    s.tit.forget_owner(sequence_of(trx->id));
    s.waits->let_reports_end();
    reset(trx);
    return error_outcome_unknown("commit: the log failed");
  }
  const TrxId id = trx->id;
  const uint64_t sequence = sequence_of(id);
  s.tit.set(sequence, TrxState::kCommitted, trx->cts,
            durable || s.log->durable_lsn() >= trx->commit_end);
  if (s.timestamps->is_remote()) s.outcome_has_changed();
  if (trx->on_publish) trx->on_publish();
  s.release_locks(trx);
  s.undo->detach(&trx->undo);
  s.counters.commits.fetch_add(1, std::memory_order_relaxed);
  if (trx->undo.first.is_zero()) {
    (void)s.undo->forget(trx->undo.pages);  // tried again with the next one
    s.finish(sequence);
  } else {
    PurgeItem left{id, trx->cts, trx->undo.first, std::move(trx->undo.pages),
                   trx->recovered || trx->leaves_work != 0};
    const bool is_small =
        !trx->recovered && trx->leaves_work <= kOwnWorkMax && left.undo_pages.size() == 1;
    if (own != nullptr && is_small && trx->cts <= min_view()) {  // T11
      *own = std::move(left);
    } else {
      s.push_committed(std::move(left));
    }
  }
  trx->state = TrxState::kCommitted;
  reset(trx);
  return ok_status();
}

Status TrxSystem::commit(Trx* trx, PurgeItem* own) {
  STRATA_RETURN_IF_ERROR(reserve_commit(trx));
  STRATA_RETURN_IF_ERROR(commit_order(trx));
  return commit_finish(trx, true, own);
}

// --- rollback ---

// T10: the log says so before the first undo record is applied, and durably: whoever has been told
// that it is rolled back must not find it prepared after a crash.
Status TrxSystem::begin_rollback(Trx* trx) {
  STRATA_ASSERT(trx->started && trx->state != TrxState::kCommitting);
  Impl& s = *impl_;
  s.unmark(trx);
  if (trx->state != TrxState::kPrepared) return ok_status();
  if (!trx->id.is_zero()) {
    const uint64_t sequence = sequence_of(trx->id);
    if (!trx->undo.first.is_zero()) {
      Mtr mtr(s.pool, s.log);
      STRATA_RETURN_IF_ERROR(mtr.begin_write(kOnePageMtrBytes, true));
      STRATA_ASSIGN_OR_RETURN(MtrPage * page, s.status.fix(&mtr, trx->status_page, sequence));
      txn_internal::write_entry(&mtr, page, sequence, {TrxState::kActive, Cts{}, trx->undo.first});
      STRATA_RETURN_IF_ERROR(s.log->persist(mtr.publish()));
    }
    s.tit.set(sequence, TrxState::kActive, Cts{});
  }
  trx->state = TrxState::kActive;
  return ok_status();
}

Status TrxSystem::finish_rollback(Trx* trx) {
  STRATA_ASSERT(trx->started && trx->state != TrxState::kCommitting);
  Impl& s = *impl_;
  s.unmark(trx);
  if (trx->commit_mtr != nullptr) trx->commit_mtr->abandon();
  if (!trx->id.is_zero()) {
    const uint64_t sequence = sequence_of(trx->id);
    if (!trx->undo.first.is_zero()) {
      Mtr mtr(s.pool, s.log);
      STRATA_RETURN_IF_ERROR(mtr.begin_write(kOnePageMtrBytes, true));
      STRATA_ASSIGN_OR_RETURN(MtrPage * page, s.status.fix(&mtr, trx->status_page, sequence));
      txn_internal::write_entry(&mtr, page, sequence, {TrxState::kAborted, Cts{}, UndoPtr{}});
      mtr.publish();
    }
    s.end_without_group(trx);
  }
  if (trx->view.open) close_view(trx);
  s.counters.rollbacks.fetch_add(1, std::memory_order_relaxed);
  trx->state = TrxState::kAborted;
  reset(trx);
  return ok_status();
}

void* TrxSystem::owner_of(TrxId id) const noexcept {
  if (node_of(id) != impl_->node) return nullptr;
  TrxLookup found;
  if (!impl_->tit.read(sequence_of(id), &found) || found.state == TrxState::kCommitting)
    return nullptr;
  return impl_->tit.owner(sequence_of(id));
}

void TrxSystem::disown(Trx* trx) noexcept {
  trx->owner = nullptr;
  if (trx->id.is_zero()) return;
  impl_->unmark(trx);
  impl_->tit.forget_owner(sequence_of(trx->id));
  impl_->waits->let_reports_end();
}

RowWaits* TrxSystem::waits() const noexcept { return impl_->waits; }
TrxCounters& TrxSystem::counters() noexcept { return impl_->counters; }
std::vector<TrxSystem::Undecided> TrxSystem::list_undecided() const {
  const Impl& s = *impl_;
  std::vector<Undecided> out;
  const uint64_t now_us = monotonic_us();
  s.waits->with_owners([&](WaitListener* listener) {
    for (uint32_t slot = 0; slot < s.tit.size(); ++slot) {
      const uint64_t sequence = s.tit.sequence_at(slot);
      TrxLookup found;
      if (sequence == 0 || !s.tit.read(sequence, &found) ||
          !txn_internal::is_undecided_state(found.state))
        continue;
      const uint64_t since_us = s.tit.since_us(sequence);
      Undecided& one = out.emplace_back(Undecided{make_trx_id(s.node, sequence),
                                                  found.state,
                                                  now_us > since_us ? now_us - since_us : 0,
                                                  {}});
      void* const owner = owner_of(one.id);
      if (listener != nullptr && owner != nullptr) one.owner = listener->describe(owner);
    }
  });
  return out;
}

uint64_t TrxSystem::active_count() const noexcept {
  return impl_->active.load(std::memory_order_relaxed);
}

}  // namespace strata
