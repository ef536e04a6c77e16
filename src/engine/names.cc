// Names of tables between nodes (SchemaChanges): what this node knows of a table it knows under a
// lock on its name, and forgets before it gives that up (MW15).
#include "base/assert.h"
#include "base/clock.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {

// Without other nodes: the server's metadata locks keep statements on one table apart, but not one
// that makes a child from one on its parent (FK5).
Status KernelImpl::lock_name(Session::Impl* session, const std::string& key) {
  if (session->used_names.find(key) != session->used_names.end()) return ok_status();
  const uint64_t deadline_us = monotonic_us() + session->lock_wait_timeout_us;
  WaitInterrupt* const interrupt = session->session->wait_interrupt();
  CondVarSleep sleep(&tables_mutex, &names_changed);
  const WaitInterrupt::Asleep asleep(interrupt, &sleep);
  MutexLock lock(tables_mutex);
  while (ddl_names.find(key) != ddl_names.end()) {
    if (is_interrupted_now(interrupt)) return error_interrupted();
    const uint64_t now_us = monotonic_us();
    if (now_us >= deadline_us) return error_lock_wait_timeout();
    names_changed.wait_for_us(lock, deadline_us - now_us);
  }
  ddl_names.insert(key);
  session->used_names.emplace(key, true);
  return ok_status();
}

// Until the transaction ends. The table map tells the truth about the name from here on.
Status KernelImpl::use_name(Session::Impl* session, const std::string& key, bool exclusive) {
  if (seams.schema == nullptr) return exclusive ? lock_name(session, key) : ok_status();
  const auto used = session->used_names.find(key);
  const bool counted = used != session->used_names.end();
  if (counted && (used->second || !exclusive)) return ok_status();
  const NodeId node{options.node};
  const uint64_t deadline_us = monotonic_us() + session->lock_wait_timeout_us;
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
  Status status = exclusive ? seams.schema->lock(node, key, left_us, interrupt)
                            : seams.schema->use(node, key, left_us, interrupt);
  const bool locked = status.ok();
  TableRef table;
  bool known = false;
  if (locked) {
    {
      const MutexLock lock(tables_mutex);
      const auto it = names.find(key);
      known = it != names.end() && it->second.known;
    }
    if (!known) {
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
  MutexLock lock(tables_mutex);
  const auto it = names.find(name);
  if (it == names.end()) return ok_status();
  it->second.given_up = true;
  const bool unused =
      names_changed.wait_for_us(lock, timeout_us, [&] { return it->second.users == 0; });
  if (!unused) {
    it->second.given_up = false;
    lock.unlock();
    names_changed.notify_all();
    return error_lock_wait_timeout();
  }
  const auto table = tables.find(name);
  if (table != tables.end()) {
    table->second->stale_.store(true, std::memory_order_release);
    tables.erase(table);
  }
  names.erase(it);
  lock.unlock();
  names_changed.notify_all();
  return ok_status();
}

Status KernelImpl::leave_space(SpaceId space) {
  const Status left = spaces->drop(space);
  return is_not_found(left) ? ok_status() : left;  // it was never here
}

}  // namespace strata::engine
