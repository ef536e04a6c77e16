// A session's transaction: begin, views, savepoints, commit, rollback, XA.
#include <algorithm>
#include <ctime>

#include "base/assert.h"
#include "engine/internal/kernel_impl.h"
#include "engine/internal/references.h"

namespace strata::engine {

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
  rollback().IgnoreError();  // what cannot be undone now is no longer this session's (E18)
}

void Session::set_owner(void* owner) noexcept { impl_->trx->owner = owner; }

void Session::begin(Isolation isolation) {
  Impl& s = *impl_;
  if (s.trx->started) return;
  s.isolation = isolation;
  s.ordered = false;
  s.reserved = false;
  STRATA_ASSERT(s.ddl.empty() && s.row_deltas.empty() && s.later.rows.empty());
  s.kernel->trxs->begin(s.trx.get());
  STRATA_ASSERT(s.trx->started && s.trx->id.is_zero());
  s.trx->lock_wait_timeout_us = s.lock_wait_timeout_us;
}

bool Session::in_transaction() const noexcept { return impl_->trx->started; }
bool Session::has_changes() const noexcept { return !impl_->trx->id.is_zero(); }
bool Session::must_rollback() const noexcept { return impl_->trx->must_rollback; }
uint64_t Session::trx_id() const noexcept { return impl_->trx->id.value; }
void Session::set_isolation(Isolation isolation) noexcept { impl_->isolation = isolation; }

void Session::set_refuses_unseen(bool refuses) noexcept {
  impl_->trx->refuses_unseen = refuses && impl_->isolation == Isolation::kRepeatableRead;
}

void Session::set_lock_wait_timeout_us(uint64_t timeout_us) noexcept {
  impl_->lock_wait_timeout_us = timeout_us;
  impl_->trx->lock_wait_timeout_us = timeout_us;
}

Status Session::open_view() {
  if (impl_->trx->view.open) return ok_status();
  return impl_->kernel->trxs->open_view(impl_->trx.get());
}

void Session::close_view() noexcept {
  if (impl_->trx->view.open) impl_->kernel->trxs->close_view(impl_->trx.get());
}

// What cannot be made now would not be part of what a rollback to here leaves: then there is no
// such place, and no way but back.
Savepoint Session::savepoint() {
  if (const Status made = impl_->make_later(); !made.ok()) {
    impl_->trx->must_rollback = true;
    impl_->trx->undo_failure = made;
  }
  impl_->merge_floor = impl_->row_deltas.size();
  impl_->trx->held.mark_savepoint();
  return Savepoint{impl_->trx->undo.last.value, impl_->row_deltas.size(), impl_->ddl.size()};
}

Status Session::undo_failure() const { return impl_->trx->undo_failure; }

namespace {

// E18: only rollback() is left.
Status half_undone(const Status& why) {
  return error_deadlock(
      "the whole transaction has to be rolled back, since undoing a part of it failed: " +
      text_of(why));
}

}  // namespace

Status Session::rollback_to(const Savepoint& savepoint) {
  Impl& s = *impl_;
  if (s.trx->must_rollback)
    return s.trx->undo_failure.ok() ? error_deadlock() : half_undone(s.trx->undo_failure);
  s.drop_later();  // all of it came after the savepoint
  if (savepoint.row_deltas < s.row_deltas.size()) s.row_deltas.resize(savepoint.row_deltas);
  if (s.trx->undo.last.value != savepoint.undo) {
    STRATA_RETURN_IF_ERROR(rollback_to_position(UndoPtr{savepoint.undo}));
  }
  // DDL made after the savepoint went with its dictionary rows; its spaces go too.
  while (s.ddl.size() > savepoint.ddl_changes) {
    const std::vector<SpaceId> created = std::move(s.ddl.back().created_spaces);
    s.ddl.pop_back();
    for (const SpaceId space : created) {
      std::erase(s.trx->drop_on_rollback, space);
      s.kernel->discard_created(space);
    }
  }
  return ok_status();
}

Status Session::rollback_to_position(UndoPtr to) {
  KernelImpl* const k = impl_->kernel;
  Status status = strata::rollback_to(&k->row, impl_->trx.get(), to);
  while (is_no_space(status) && k->free_log_room())
    status = strata::rollback_to(&k->row, impl_->trx.get(), to);
  return status.ok() ? status : half_undone(status);
}

void Session::Impl::note_rows(Table* table, int32_t delta) {
  if (row_deltas.size() > merge_floor && row_deltas.back().table.get() == table) {
    STRATA_ASSERT(row_deltas.back().changed != 0);
    row_deltas.back().net += delta;
    ++row_deltas.back().changed;
  } else {
    row_deltas.push_back({table->shared_from_this(), delta, 1});
  }
}

// Entries from here on go into earlier ones of their tables, if those are near.
void Session::Impl::merge_row_deltas(size_t from) {
  constexpr size_t kNear = 8;
  size_t kept = from;
  for (size_t i = from; i < row_deltas.size(); ++i) {
    size_t at = std::max(merge_floor, kept - std::min(kept, kNear));
    while (at < kept && row_deltas[at].table != row_deltas[i].table) ++at;
    if (at < kept) {
      row_deltas[at].net += row_deltas[i].net;
      row_deltas[at].changed += row_deltas[i].changed;
    } else {
      if (kept != i) row_deltas[kept] = std::move(row_deltas[i]);
      ++kept;
    }
  }
  row_deltas.erase(row_deltas.begin() + static_cast<ptrdiff_t>(kept), row_deltas.end());
}

void Session::Impl::apply_row_deltas() {
  if (row_deltas.empty()) return;
  const int64_t now = std::time(nullptr);
  for (const RowDelta& delta : row_deltas) {
    delta.table->rows_.fetch_add(delta.net, std::memory_order_relaxed);
    delta.table->modified_since_sample_.fetch_add(delta.changed, std::memory_order_relaxed);
    delta.table->updated_at_.store(now, std::memory_order_relaxed);
    if (!kernel->shares_tables()) continue;
    delta.table->committed_net_.fetch_add(delta.net, std::memory_order_relaxed);
    delta.table->committed_changed_.fetch_add(delta.changed, std::memory_order_relaxed);
  }
}

void Session::Impl::ended() {
  drop_later();
  row_deltas.clear();
  merge_floor = 0;
  ddl.clear();
  kernel->release_names(this);
  if (references != nullptr) references->transaction_ended();
  ordered = false;
  reserved = false;
}

Status Session::prepare(Bytes xid) {
  Impl& s = *impl_;
  if (s.trx->must_rollback) return error_deadlock();
  STRATA_RETURN_IF_ERROR(s.make_later());
  return s.kernel->trxs->prepare(s.trx.get(), xid);
}

Status Session::reserve_commit() {
  Impl& s = *impl_;
  if (s.trx->must_rollback) return error_deadlock();
  if (s.reserved) return ok_status();
  STRATA_ASSERT(!s.ordered);
  STRATA_RETURN_IF_ERROR(s.make_later());
  s.trx->drop_on_commit.clear();
  for (const DdlChange& change : s.ddl) {
    s.trx->drop_on_commit.insert(s.trx->drop_on_commit.end(), change.dropped_spaces.begin(),
                                 change.dropped_spaces.end());
  }
  STRATA_RETURN_IF_ERROR(s.kernel->trxs->reserve_commit(s.trx.get()));
  s.reserved = true;
  return ok_status();
}

Status Session::commit_ordered() {
  Impl& s = *impl_;
  if (s.ordered || s.trx->id.is_zero()) return ok_status();
  if (!s.reserved) STRATA_RETURN_IF_ERROR(reserve_commit());
  STRATA_ASSERT(s.reserved && s.later.rows.empty());
  s.reserved = false;  // used up, whatever comes
  STRATA_RETURN_IF_ERROR(s.kernel->trxs->commit_order(s.trx.get()));
  s.ordered = true;
  return ok_status();
}

Status Session::Impl::order_commit() {
  STRATA_RETURN_IF_ERROR(make_later());  // E21: tried once
  for (;;) {
    Status status = session->reserve_commit();
    if (status.ok()) status = session->commit_ordered();
    if (!is_no_space(status) || !kernel->free_log_room()) return status;
  }
}

// E19. Whoever decided (a binary log, another coordinator) has it in writing, so there is no way
// back: tried until it works, or until nothing can work in this life or nobody waits any more.
Status Session::Impl::order_decided_commit() {
  constexpr uint64_t kRetryUs = 10'000;
  constexpr uint64_t kRetryUsMax = 1'000'000;
  for (uint64_t retry_us = kRetryUs;; retry_us = std::min(retry_us * 2, kRetryUsMax)) {
    const Status status = order_commit();
    if (status.ok() || kernel->log->poisoned()) return status;
    if (retry_us != kRetryUs && !kernel->options.background) return status;
    if (trx->interrupt.interrupted() || kernel->stopping.load()) return status;
    MutexLock lock(kernel->unfinished_mutex);
    kernel->unfinished_changed.wait_for_us(lock, retry_us);
  }
}

// The transaction goes on without this session, which gets another one.
std::unique_ptr<Trx> Session::Impl::give_up_trx() {
  STRATA_ASSERT(trx->started && later.rows.empty());
  auto other = std::make_unique<Trx>();
  if (trx->interrupt.interrupted()) other->interrupt.interrupt();
  other->owner = trx->owner;
  kernel->trxs->disown(trx.get());
  {
    const MutexLock lock(trx_mutex);
    trx.swap(other);
  }
  if (other->view.open) kernel->trxs->close_view(other.get());
  if (other->commit_mtr != nullptr) other->commit_mtr->abandon();
  other->on_publish = nullptr;
  STRATA_ASSERT(other->owner == nullptr && !trx->started);
  return other;
}

// Of changes that are committed, or not, without this session.
void Session::Impl::count_unseen() {
  for (const RowDelta& delta : row_deltas) delta.table->rows_exact_.store(false);
  apply_row_deltas();
}

Status Session::commit(Durability durability) {
  Impl& s = *impl_;
  if (!s.trx->started) return ok_status();
  if (s.trx->must_rollback) {
    const Status why = s.trx->undo_failure;
    STRATA_RETURN_IF_ERROR(rollback());
    return why.ok() ? error_deadlock() : half_undone(why);
  }
  if (s.trx->id.is_zero()) {
    const Status ended = s.kernel->trxs->commit(s.trx.get());
    s.ended();
    return ended;
  }
  if (!s.ordered) {
    const bool decided = s.trx->state == TrxState::kPrepared;
    const Status ordered = decided ? s.order_decided_commit() : s.order_commit();
    if (!ordered.ok() && decided) return commit_later(ordered);
    if (!ordered.ok()) {
      // Nothing has reached the log buffer: the transaction can still be undone, at once or in the
      // background (E18). The caller is told why it was not committed.
      rollback().IgnoreError();
      return ordered;
    }
  }
  STRATA_ASSERT(s.ordered);
  // Spaces of DDL that failed half-way inside this transaction belong to nothing.
  std::vector<SpaceId> unused = std::move(s.trx->drop_on_rollback);
  for (const DdlChange& change : s.ddl)
    for (const SpaceId space : change.created_spaces) std::erase(unused, space);
  if (!s.ddl.empty()) {
    s.trx->on_publish = [this] { impl_->publish_ddl(); };
  }
  s.apply_row_deltas();
  TrxSystem::PurgeItem own;
  const Status finished =
      s.kernel->trxs->commit_finish(s.trx.get(), durability == Durability::kSync || !s.ddl.empty(),
                                    s.kernel->options.background ? &own : nullptr);
  s.ended();
  purge_own(&s.kernel->row, std::move(own));
  for (const SpaceId space : unused) s.kernel->discard_created(space);
  return finished;
}

// E19
Status Session::commit_later(const Status& why) {
  Impl& s = *impl_;
  STRATA_ASSERT(s.ddl.empty());  // DDL has no first half
  STRATA_ASSERT(s.trx->state == TrxState::kPrepared);
  std::vector<SpaceId> spaces;
  for (const Impl::RowDelta& delta : s.row_deltas)
    spaces.emplace_back(delta.table->spec().space_id);
  s.count_unseen();
  s.ended();
  s.kernel->commit_later(s.give_up_trx(), std::move(spaces), why);
  return error_outcome_unknown("a decided commit could not be finished; it is tried again: " +
                               text_of(why));
}

Status Session::rollback() {
  Impl& s = *impl_;
  if (!s.trx->started) return ok_status();
  std::vector<SpaceId> created = s.trx->drop_on_rollback;
  const Status status = s.kernel->roll_back(s.trx.get());
  s.ended();
  if (!status.ok()) {  // E18
    std::string why = text_of(status);
    s.kernel->finish_later(
        {.trx = s.give_up_trx(), .created_spaces = std::move(created), .why = why});
    return error_deadlock(
        "the transaction is rolled back in the background; what it has changed stays "
        "locked until that is done: " +
        why);
  }
  for (const SpaceId space : created) s.kernel->discard_created(space);
  return ok_status();
}

void Session::detach_prepared() {
  Impl& s = *impl_;
  if (s.trx->state != TrxState::kPrepared) return;
  // Whether these rows come or go is decided without this session.
  for (const Impl::RowDelta& delta : s.row_deltas)
    s.trx->changed_spaces.emplace_back(delta.table->spec().space_id);
  s.count_unseen();
  s.kernel->keep_prepared(s.give_up_trx());  // before the names it uses are given back (E14, FK9)
  s.ended();
}

void Session::interrupt() noexcept {
  const MutexLock lock(impl_->trx_mutex);
  impl_->trx->interrupt.interrupt();
}

void Session::clear_interrupt() noexcept { impl_->trx->interrupt.clear(); }

WaitInterrupt* Session::wait_interrupt() noexcept { return &impl_->trx->interrupt; }

}  // namespace strata::engine
