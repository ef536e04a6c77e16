// Names of tables between nodes (SchemaChanges): what this node knows of a table it knows under a
// lock on its name, and forgets before it gives that up (MW15).
//   MW22  A node changes rows of a table only while it uses the name that is the right to do so
//         (right_to_change()). Before it gives that up its transactions that have changed the table
//         have ended: whoever shares the name has all rows as they are committed.
#include <algorithm>

#include "base/assert.h"
#include "base/clock.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {

// Up to the lock wait timeout. The caller has said before it took the mutex that it may sleep here.
template <typename Free>
Status KernelImpl::wait_for_names(Session::Impl* session, const Free& is_free) {
  const uint64_t deadline_us = monotonic_us() + session->lock_wait_timeout_us;
  while (!is_free()) {
    if (is_interrupted_now(session->session->wait_interrupt())) return error_interrupted();
    const uint64_t now_us = monotonic_us();
    if (now_us >= deadline_us) return error_lock_wait_timeout();
    names_changed.wait_for_us(tables_mutex, deadline_us - now_us);
  }
  return ok_status();
}

// Without other nodes: the server's metadata locks keep statements on one table apart, but not one
// that makes a child from one on its parent (FK5).
Status KernelImpl::lock_name(Session::Impl* session, const std::string& key) {
  if (session->used_names.find(key) != session->used_names.end()) return ok_status();
  CondVarSleep sleep(&tables_mutex, &names_changed);
  const WaitInterrupt::Asleep asleep(session->session->wait_interrupt(), &sleep);
  const MutexLock lock(tables_mutex);
  STRATA_RETURN_IF_ERROR(wait_for_names(session, [&]() STRATA_REQUIRES(tables_mutex) {
    return ddl_names.find(key) == ddl_names.end();
  }));
  ddl_names.insert(key);
  session->used_names.emplace(key, true);
  return ok_status();
}

// Likewise, where several nodes change tables, no other one keeps its rows still (MW22).
// FK9: until the transaction ends nobody replaces the table, or begins to copy it.
Status KernelImpl::use_for_cascade(Session::Impl* session, const std::string& key) {
  if (seams.schema != nullptr)
    STRATA_RETURN_IF_ERROR(use_name(session, right_to_change(key), false));
  CondVarSleep sleep(&tables_mutex, &names_changed);
  const WaitInterrupt::Asleep asleep(session->session->wait_interrupt(), &sleep);
  const MutexLock lock(tables_mutex);
  STRATA_RETURN_IF_ERROR(wait_for_names(session, [&]() STRATA_REQUIRES(tables_mutex) {
    const auto it = cascades.find(key);
    return it == cascades.end() || it->second.kept_still == 0;
  }));
  if (session->cascaded_to.insert(key).second) ++cascades[key].users;
  return ok_status();
}

// FK9: waits for cascades that have changed the table, and keeps others away until the transaction
// ends. Where one of those waits for other DDL, and that for somebody who waits for this, the lock
// wait timeout ends it.
Status KernelImpl::keep_still(Session::Impl* session, const std::string& key) {
  std::vector<std::string>& kept = session->kept_still;
  if (std::find(kept.begin(), kept.end(), key) != kept.end()) return ok_status();
  CondVarSleep sleep(&tables_mutex, &names_changed);
  const WaitInterrupt::Asleep asleep(session->session->wait_interrupt(), &sleep);
  const MutexLock lock(tables_mutex);
  ++cascades[key].kept_still;
  const uint32_t own = session->cascaded_to.find(key) == session->cascaded_to.end() ? 0 : 1;
  const Status waited = wait_for_names(
      session, [&]() STRATA_REQUIRES(tables_mutex) { return cascades[key].users == own; });
  if (waited.ok()) {
    kept.push_back(key);
  } else {
    let_go({key});
    names_changed.notify_all();
  }
  return waited;
}

void KernelImpl::let_go(const std::vector<std::string>& kept) {
  for (const std::string& key : kept) {
    const auto it = cascades.find(key);
    STRATA_ASSERT(it != cascades.end() && it->second.kept_still != 0);
    if (--it->second.kept_still == 0 && it->second.users == 0) cascades.erase(it);
  }
}

// The copy of an ALTER that has failed is about to go. If it cannot, it keeps nobody away all the
// same: nothing takes the original's place any more.
void KernelImpl::give_up_copy(Table* copy) {
  {
    const MutexLock lock(tables_mutex);
    let_go(copy->keeps_still_);
    copy->keeps_still_.clear();
  }
  names_changed.notify_all();
}

// Who has a name that nobody uses there gives it up within a round trip or two, which is no wait
// for anybody's work: shorter timeouts than this (NOWAIT) mean others' work only (MW15).
constexpr uint64_t kAskOthersUs = 1'000'000;

// One NUL would be the end of a schema's name before a table that is called so.
constexpr std::string_view kRightToChange("\0\0rows", 6);

std::string right_to_change(const std::string& table_key) {
  return table_key + std::string(kRightToChange);
}

Bytes table_of_right(Bytes key) {
  return key.ends_with(kRightToChange) ? key.substr(0, key.size() - kRightToChange.size())
                                       : Bytes();
}

// Blocks.
Status KernelImpl::ask_for_name(const std::string& key, bool exclusive, uint64_t left_us,
                                WaitInterrupt* interrupt) {
  const NodeId node{options.node};
  if (!exclusive) return seams.schema->use(node, key, left_us, interrupt);
  if (seams.above != nullptr) seams.above->begins_to_wait(key);
  const Status status = seams.schema->lock(node, key, left_us, interrupt);
  if (seams.above != nullptr) seams.above->has_waited(key);
  return status;
}

// Until the transaction ends. The table map tells the truth about the name from here on.
Status KernelImpl::use_name(Session::Impl* session, const std::string& key, bool exclusive) {
  if (seams.schema == nullptr) return exclusive ? lock_name(session, key) : ok_status();
  const auto used = session->used_names.find(key);
  const bool counted = used != session->used_names.end();
  if (counted && (used->second || !exclusive)) return ok_status();
  if (const Session::Impl* const lender = session->lender; exclusive && lender != nullptr) {
    const auto lent = lender->used_names.find(key);
    if (lent != lender->used_names.end() && lent->second) {
      if (counted) return ok_status();
      exclusive = false;  // it has it beside
    }
  }
  const NodeId node{options.node};
  const uint64_t deadline_us =
      monotonic_us() + std::max(session->lock_wait_timeout_us, kAskOthersUs);
  WaitInterrupt* const interrupt = session->session->wait_interrupt();
  {
    CondVarSleep sleep(&tables_mutex, &names_changed);
    const WaitInterrupt::Asleep asleep(interrupt, &sleep);
    MutexLock lock(tables_mutex);
    for (;;) {
      const auto it = names.find(key);
      if (it == names.end() || (!it->second.loading && !it->second.given_up)) break;
      if (is_interrupted_now(interrupt)) return error_interrupted();
      const uint64_t now_us = monotonic_us();
      if (now_us >= deadline_us) return error_lock_wait_timeout();
      names_changed.wait_for_us(lock, deadline_us - now_us);
    }
    if (!exclusive) {
      Name& name = names[key];
      const bool known = name.known;
      ++name.users;  // from before the lock is there: it is not given up before we are done
      session->used_names.emplace(key, false);
      if (known) return ok_status();
      name.loading = true;
    }
  }
  const uint64_t now_us = monotonic_us();
  const uint64_t left_us = now_us < deadline_us ? deadline_us - now_us : 0;
  Status status = ask_for_name(key, exclusive, left_us, interrupt);
  const bool locked = status.ok();
  TableRef table;
  bool known = false;
  if (locked) {
    {
      const MutexLock lock(tables_mutex);
      const auto it = names.find(key);
      known = it != names.end() && it->second.known;
    }
    if (!known && table_of_right(key).empty()) {
      StatusOr<TableRef> loaded = load_table(key);
      if (loaded.ok())
        table = *std::move(loaded);
      else if (!is_not_found(loaded.status()))
        status = loaded.status();
    }
  }
  {
    const MutexLock lock(tables_mutex);
    if (status.ok()) {
      Name& name = names[key];
      name.loading = false;
      name.known = true;
      if (table != nullptr) tables[key] = table;
      if (exclusive && !counted) ++name.users;
      session->used_names[key] = exclusive;
    } else if (!exclusive) {  // the lock, if we have got it, is of a name without a use: anybody's
      Name& name = names[key];
      name.loading = false;
      session->used_names.erase(key);
      STRATA_ASSERT(name.users != 0);
      if (--name.users == 0) names.erase(key);
    }
  }
  names_changed.notify_all();
  if (!status.ok() && locked && exclusive) seams.schema->unlock(node, key);
  return status;
}

void KernelImpl::release_names(Session::Impl* session) noexcept {
  if (!session->cascaded_to.empty() || !session->kept_still.empty()) {
    {
      const MutexLock lock(tables_mutex);
      for (const std::string& key : session->cascaded_to) {
        const auto it = cascades.find(key);
        STRATA_ASSERT(it != cascades.end() && it->second.users != 0);
        if (--it->second.users == 0 && it->second.kept_still == 0) cascades.erase(it);
      }
      let_go(session->kept_still);
    }
    session->cascaded_to.clear();
    session->kept_still.clear();
    names_changed.notify_all();
  }
  if (session->used_names.empty()) return;
  if (seams.schema == nullptr) {
    {
      const MutexLock lock(tables_mutex);
      for (const auto& [key, exclusive] : session->used_names) ddl_names.erase(key);
    }
    session->used_names.clear();
    names_changed.notify_all();
    return;
  }
  for (const auto& [key, exclusive] : session->used_names)
    if (exclusive) seams.schema->unlock(NodeId{options.node}, key);
  {
    const MutexLock lock(tables_mutex);
    for (const auto& [key, exclusive] : session->used_names) {
      if (exclusive && !table_of_right(key).empty()) continue;  // nothing is known by it
      Name& name = names[key];
      STRATA_ASSERT(name.users != 0 && name.known);
      --name.users;
    }
  }
  session->used_names.clear();
  names_changed.notify_all();
}

// As the dictionary has it. Views from before its last change do not read it (E6, K14).
StatusOr<TableRef> KernelImpl::load_table(const std::string& key) {
  const size_t end = key.find('\0');
  Cts changed_at;
  STRATA_ASSIGN_OR_RETURN(
      TableSpec spec,
      dictionary->read_table(Bytes(key).substr(0, end), Bytes(key).substr(end + 1), &changed_at));
  for (const uint32_t space : spaces_of(spec))
    if (!spaces->is_live(SpaceId{space}))
      STRATA_RETURN_IF_ERROR(spaces->open(SpaceId{space}, false));
  TableRef table = make_table(std::move(spec));
  STRATA_RETURN_IF_ERROR(load_counters(table.get()));
  table->rebuilt_at_.store(changed_at.value);
  return table;
}

Status KernelImpl::give_up(Bytes name, uint64_t timeout_us) {
  if (seams.above == nullptr) return forget(name, timeout_us);
  return seams.above->give_up(name, timeout_us,
                              [&](uint64_t left_us) { return forget(name, left_us); });
}

// Names come and go while it waits: a table that could not be loaded is not remembered.
Status KernelImpl::forget(Bytes name, uint64_t timeout_us) {
  const uint64_t deadline_us = monotonic_us() + timeout_us;
  MutexLock lock(tables_mutex);
  const auto mark = [&](bool given_up) STRATA_REQUIRES(tables_mutex) {
    const auto it = names.find(name);
    if (it != names.end()) it->second.given_up = given_up;
  };
  mark(true);
  bool unused = names_changed.wait_for_us(lock, timeout_us, [&]() STRATA_REQUIRES(tables_mutex) {
    const auto it = names.find(name);
    return it == names.end() || it->second.users == 0;
  });
  const Bytes of_right = table_of_right(name);  // of this table
  const auto found = tables.find(of_right.empty() ? name : of_right);
  const TableRef table = found == tables.end() ? nullptr : found->second;
  if (unused && table != nullptr) {
    lock.unlock();  // nobody begins to use it
    unused = wait_until_decided(SpaceId{table->spec().space_id}, deadline_us);
    lock.lock();
  }
  if (!unused) {
    mark(false);
    lock.unlock();
    names_changed.notify_all();
    return error_lock_wait_timeout();
  }
  if (!of_right.empty()) {
    no_more_changes(of_right);
  } else if (table != nullptr) {
    table->stale_.store(true, std::memory_order_release);
    const auto still = tables.find(name);
    if (still != tables.end() && still->second == table) tables.erase(still);
  }
  const auto it = names.find(name);
  if (it != names.end() && it->second.users == 0) names.erase(it);
  lock.unlock();
  names_changed.notify_all();
  return ok_status();
}

// Of the table as it is now: another one may have taken its place meanwhile.
void KernelImpl::no_more_changes(Bytes key) {
  const auto found = tables.find(key);
  if (found != tables.end()) found->second->may_change_.store(false, std::memory_order_release);
}

void Session::borrow_names(const Session* lender) noexcept {
  impl_->lender = lender == nullptr ? nullptr : lender->impl_.get();
}

Status Session::may_change(const TableRef& table) {
  KernelImpl* const kernel = impl_->kernel;
  if (kernel->seams.schema == nullptr || table->may_change_.load(std::memory_order_acquire))
    return ok_status();
  const std::string key = table_key(table->spec().schema, table->spec().name);
  STRATA_RETURN_IF_ERROR(kernel->use_name(impl_.get(), right_to_change(key), false));
  // Without anybody above each transaction counts by itself.
  if (kernel->seams.above != nullptr) table->may_change_.store(true, std::memory_order_release);
  return ok_status();
}

Status Session::keep_rows_still(Bytes schema, Bytes name) {
  STRATA_ASSERT(impl_->trx->started);
  KernelImpl* const kernel = impl_->kernel;
  if (!kernel->shares_tables()) return ok_status();
  const std::string right = right_to_change(table_key(schema, name));
  if (impl_->used_names.find(right) != impl_->used_names.end()) return ok_status();
  STRATA_RETURN_IF_ERROR(kernel->seams.schema->share(
      NodeId{kernel->options.node}, right, std::max(impl_->lock_wait_timeout_us, kAskOthersUs),
      wait_interrupt()));
  impl_->used_names.emplace(right, true);
  return ok_status();
}

Status KernelImpl::leave_space(SpaceId space) {
  const Status left = spaces->drop(space);
  return is_not_found(left) ? ok_status() : left;  // it was never here
}

}  // namespace strata::engine
