// A session's transaction: begin, views, savepoints, commit, rollback, XA.
#include <ctime>

#include "engine/internal/kernel_impl.h"

namespace strata::engine {

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
  if (impl_->trx->started) (void)rollback();
}

void Session::begin(Isolation isolation) {
  Impl& s = *impl_;
  if (s.trx->started) return;
  s.isolation = isolation;
  s.ordered = false;
  s.reserved = false;
  s.kernel->trxs->begin(s.trx.get());
  s.trx->lock_wait_timeout_us = s.lock_wait_timeout_us;
}

bool Session::in_transaction() const noexcept { return impl_->trx->started; }
bool Session::has_changes() const noexcept { return !impl_->trx->id.is_zero(); }
bool Session::must_rollback() const noexcept { return impl_->trx->must_rollback; }
uint64_t Session::trx_id() const noexcept { return impl_->trx->id.value; }
void Session::set_isolation(Isolation isolation) noexcept { impl_->isolation = isolation; }

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

Savepoint Session::savepoint() const noexcept {
  impl_->merge_floor = impl_->row_deltas.size();
  impl_->trx->held.mark_savepoint();
  return Savepoint{impl_->trx->undo.last.value, impl_->row_deltas.size(), impl_->ddl.size()};
}

Status Session::rollback_to(const Savepoint& savepoint) {
  Impl& s = *impl_;
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
  return strata::rollback_to(&impl_->kernel->row, impl_->trx.get(), to);
}

void Session::Impl::note_rows(Table* table, int32_t delta) {
  if (row_deltas.size() > merge_floor && row_deltas.back().table.get() == table) {
    row_deltas.back().net += delta;
    ++row_deltas.back().changed;
  } else {
    row_deltas.push_back({table->shared_from_this(), delta, 1});
  }
}

void Session::Impl::apply_row_deltas() {
  if (row_deltas.empty()) return;
  const int64_t now = std::time(nullptr);
  for (const RowDelta& delta : row_deltas) {
    delta.table->rows_.fetch_add(delta.net, std::memory_order_relaxed);
    delta.table->modified_since_sample_.fetch_add(delta.changed, std::memory_order_relaxed);
    delta.table->updated_at_.store(now, std::memory_order_relaxed);
  }
}

void Session::Impl::ended() {
  row_deltas.clear();
  merge_floor = 0;
  ddl.clear();
  ordered = false;
  reserved = false;
}

Status Session::prepare(Bytes xid) {
  Impl& s = *impl_;
  if (s.trx->must_rollback) return error_deadlock();
  return s.kernel->trxs->prepare(s.trx.get(), xid);
}

Status Session::reserve_commit() {
  Impl& s = *impl_;
  if (s.trx->must_rollback) return error_deadlock();
  if (s.reserved) return ok_status();
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
  STRATA_RETURN_IF_ERROR(s.kernel->trxs->commit_order(s.trx.get()));
  s.ordered = true;
  return ok_status();
}

Status Session::commit(Durability durability) {
  Impl& s = *impl_;
  if (!s.trx->started) return ok_status();
  if (s.trx->must_rollback) {
    STRATA_RETURN_IF_ERROR(rollback());
    return error_deadlock();
  }
  if (s.trx->id.is_zero()) {
    const Status ended = s.kernel->trxs->commit(s.trx.get());
    s.ended();
    return ended;
  }
  if (!s.ordered) {
    Status ordered = reserve_commit();
    if (ordered.ok()) ordered = commit_ordered();
    if (!ordered.ok()) {
      // Nothing has reached the log buffer: the transaction can still be undone.
      (void)rollback();
      return ordered;
    }
  }
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

Status Session::rollback() {
  Impl& s = *impl_;
  if (!s.trx->started) return ok_status();
  const std::vector<SpaceId> created = s.trx->drop_on_rollback;
  const Status status = rollback_all(&s.kernel->row, s.trx.get());
  s.ended();
  STRATA_RETURN_IF_ERROR(status);
  for (const SpaceId space : created) s.kernel->discard_created(space);
  return ok_status();
}

void Session::detach_prepared() {
  Impl& s = *impl_;
  if (s.trx->state != TrxState::kPrepared) return;
  auto fresh = std::make_unique<Trx>();
  {
    const MutexLock lock(s.trx_mutex);
    s.trx.swap(fresh);
  }
  // Whether these rows come or go is decided without this session.
  for (const Impl::RowDelta& delta : s.row_deltas) {
    delta.table->rows_exact_.store(false);
    fresh->changed_spaces.emplace_back(delta.table->spec().space_id);
  }
  s.apply_row_deltas();
  s.ended();
  s.kernel->keep_prepared(std::move(fresh));
}

void Session::interrupt() noexcept {
  const MutexLock lock(impl_->trx_mutex);
  impl_->trx->interrupt.interrupt();
}

void Session::clear_interrupt() noexcept { impl_->trx->interrupt.clear(); }

WaitInterrupt* Session::wait_interrupt() noexcept { return &impl_->trx->interrupt; }

}  // namespace strata::engine
