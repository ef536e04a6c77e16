// Random work on a database that touches every part of the kernel's storage: splits, merges, purge,
// large values, large transactions, savepoints, DDL, XA, checkpoints, restarts. It keeps a ledger.
// One thread, so that a seed gives the same work.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/internal/kernel_impl.h"
#include "engine/testing/ledger.h"

namespace strata::engine::testing {

inline KernelOptions small_options(FileSystem* fs) {
  KernelOptions options = options_on(fs);
  options.log_segment_bytes = 256u << 10;
  options.log_buffer_bytes = 512u << 10;
  options.log_checkpoint_bytes = 1u << 20;
  return options;
}

class Workload {
 public:
  Workload(SimFileSystem* disk, uint64_t seed, Ledger* ledger)
      : disk_(disk), files_(disk), rng_(seed), ledger_(ledger) {}
  // What the kernel uses instead of the disk itself. Before start().
  void set_file_system(FileSystem* files) { files_ = files; }
  ~Workload() { forget_sessions(); }

  // Each returns the first failure; the database is open when start() returned OK.
  Status start() {
    STRATA_ASSIGN_OR_RETURN(kernel_, Kernel::open(small_options(files_)));
    session_ = kernel_->new_session();
    long_session_ = kernel_->new_session();
    session_->set_lock_wait_timeout_us(0);
    long_session_->set_lock_wait_timeout_us(0);
    return ok_status();
  }
  Status run(int steps) {
    for (int i = 0; i < steps; ++i) STRATA_RETURN_IF_ERROR(step());
    return ok_status();
  }
  // Without `may_restart` the kernel lives on.
  Status step(bool may_restart = true);
  // Ends the transaction left open by the long session.
  Status end_long();
  Status shutdown() {
    STRATA_RETURN_IF_ERROR(end_long());
    forget_sessions();
    STRATA_RETURN_IF_ERROR(kernel_->shutdown());
    kernel_.reset();
    return ok_status();
  }
  Status restart(bool clean, uint64_t crash_seed) {
    if (clean) {
      STRATA_RETURN_IF_ERROR(shutdown());
    } else {
      disk_->crash(crash_seed);
      forget_sessions();
      kernel_.reset();
      long_changes_.clear();
      long_table_.clear();
    }
    return start();
  }
  Kernel* kernel() { return kernel_.get(); }

 private:
  void forget_sessions() {
    session_.reset();
    long_session_.reset();
  }
  // Rows of the table as the current transaction sees them, and what it changed.
  struct Changing {
    std::string name;
    TableRef table;
    LedgerRows rows;
    std::vector<LedgerChange> changes;
  };
  // The long session owns every eighth row, prepared transactions own what they changed.
  bool may_touch(const std::string& table, uint64_t id, bool long_one) const {
    if ((id % 8 == 7) != long_one) return false;
    for (const auto& [xid, prepared] : ledger_->now().prepared) {
      if (prepared.table != table) continue;
      for (const LedgerChange& change : prepared.changes)
        if (change.id == id) return false;
    }
    return true;
  }
  bool may_redefine(const std::string& table) const {
    if (long_table_ == table) return false;
    for (const auto& [xid, prepared] : ledger_->now().prepared)
      if (prepared.table == table) return false;
    return true;
  }
  std::string some_table() {
    const auto& tables = ledger_->now().tables;
    if (tables.empty()) return "";
    return std::next(tables.begin(), static_cast<ptrdiff_t>(rng_.below(tables.size())))->first;
  }
  RowPtr make_row(uint64_t id, bool wide, bool blob) {
    auto row = std::make_shared<Row>();
    row->unique_value = id * 10 + rng_.below(3);
    row->group = static_cast<uint32_t>(rng_.below(20));
    row->text = std::string(rng_.below(wide ? 1500 : 60), static_cast<char>('a' + rng_.below(26)));
    if (blob) {
      row->blob.resize(1 + rng_.below(rng_.one_in(6) ? 120000 : 30000));
      const uint64_t start = rng_.next();
      for (size_t i = 0; i < row->blob.size(); ++i)
        row->blob[i] = static_cast<char>(start + i * 7 + i / 251);
    }
    return row;
  }
  StatusOr<Changing> change_table(Session* session, const std::string& name) {
    Changing c;
    c.name = name;
    c.rows = *ledger_->now().tables.at(name);
    STRATA_ASSIGN_OR_RETURN(c.table, session->open_table("test", name));
    return c;
  }
  static void note(Changing* c, uint64_t id, RowPtr after) {
    if (after == nullptr) {
      c->rows.erase(id);
    } else {
      c->rows[id] = after;
    }
    c->changes.push_back({id, std::move(after)});
  }
  Status change_one(Session* session, Changing* c, uint64_t id, bool wide, bool blob, bool erase);
  Status begin(const std::string& name, Changing* c);
  Status commit(Changing* c);
  Status commit_ddl(LedgerState next);
  Status small_transaction();
  Status large_transaction();
  Status mass_delete();
  Status ddl();
  Status xa();
  Status long_step();

  static constexpr uint64_t kIds = 400;
  SimFileSystem* disk_;
  FileSystem* files_;
  Rng rng_;
  Ledger* ledger_;
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Session> long_session_;
  std::string long_table_;
  std::vector<LedgerChange> long_changes_;
  uint64_t names_ = 0;
};

inline Status Workload::change_one(Session* session, Changing* c, uint64_t id, bool wide, bool blob,
                                   bool erase) {
  const auto it = c->rows.find(id);
  if (it == c->rows.end()) {
    if (erase) return ok_status();
    RowPtr after = make_row(id, wide, blob);
    STRATA_RETURN_IF_ERROR(insert(session, c->table, id, *after));
    note(c, id, std::move(after));
    return ok_status();
  }
  const RowPtr before = it->second;
  if (erase) {
    STRATA_RETURN_IF_ERROR(remove(session, c->table, id, *before));
    note(c, id, nullptr);
    return ok_status();
  }
  uint64_t new_id = id;
  const bool may_move = session == session_.get();
  if (may_move && rng_.one_in(10)) {
    const uint64_t other = 1 + rng_.below(kIds);
    if (c->rows.count(other) == 0 && may_touch(c->name, other, false)) new_id = other;
  }
  RowPtr after = make_row(new_id, wide, blob);
  const bool keep_blob = !before->blob.empty() && rng_.one_in(2);
  if (keep_blob) {
    auto kept = std::make_shared<Row>(*after);
    kept->blob = before->blob;
    after = std::move(kept);
  }
  const OwnedImage old_image(id, *before, c->table->spec());
  OwnedImage new_image(new_id, *after, c->table->spec());
  if (keep_blob) new_image.external.unchanged_from = 0;
  uint32_t duplicate = 0;
  STRATA_RETURN_IF_ERROR(session->update_row(c->table.get(), old_image.key, new_image.image,
                                             old_image.entries.data(), old_image.image.entry_count,
                                             &duplicate));
  if (new_id != id) note(c, id, nullptr);
  note(c, new_id, std::move(after));
  return ok_status();
}

inline Status Workload::begin(const std::string& name, Changing* c) {
  session_->begin(rng_.one_in(2) ? Isolation::kRepeatableRead : Isolation::kReadCommitted);
  STRATA_ASSIGN_OR_RETURN(*c, change_table(session_.get(), name));
  return ok_status();
}

inline Status Workload::commit(Changing* c) {
  LedgerState next = ledger_->copy();
  next.apply(c->name, c->changes);
  ledger_->may_become(std::move(next));
  STRATA_RETURN_IF_ERROR(session_->commit());
  ledger_->acknowledge();
  return ok_status();
}

inline Status Workload::small_transaction() {
  const std::string name = some_table();
  if (name.empty()) return ok_status();
  Changing c;
  STRATA_RETURN_IF_ERROR(begin(name, &c));
  for (uint64_t n = 1 + rng_.below(4); n > 0; --n) {
    const uint64_t id = 1 + rng_.below(kIds);
    if (!may_touch(name, id, false)) continue;
    STRATA_RETURN_IF_ERROR(
        change_one(session_.get(), &c, id, rng_.one_in(3), rng_.one_in(12), rng_.one_in(4)));
  }
  if (rng_.one_in(6)) return session_->rollback();
  return commit(&c);
}

inline Status Workload::large_transaction() {
  const std::string name = some_table();
  if (name.empty()) return ok_status();
  Changing c;
  STRATA_RETURN_IF_ERROR(begin(name, &c));
  const uint64_t first = 1 + rng_.below(kIds);
  for (uint64_t n = 0; n < 60; ++n) {
    if (n == 40 && rng_.one_in(3)) {  // this much was a mistake
      const Savepoint mark = session_->savepoint();
      Changing wrong = c;
      for (uint64_t id = 1; id < 40; ++id)
        if (may_touch(name, id, false))
          STRATA_RETURN_IF_ERROR(change_one(session_.get(), &wrong, id, true, false, false));
      STRATA_RETURN_IF_ERROR(session_->rollback_to(mark));
    }
    const uint64_t id = 1 + (first + n) % kIds;
    if (!may_touch(name, id, false)) continue;
    STRATA_RETURN_IF_ERROR(change_one(session_.get(), &c, id, true, rng_.one_in(30), false));
  }
  if (rng_.one_in(4)) return session_->rollback();
  return commit(&c);
}

inline Status Workload::mass_delete() {
  const std::string name = some_table();
  if (name.empty()) return ok_status();
  Changing c;
  STRATA_RETURN_IF_ERROR(begin(name, &c));
  const uint64_t first = rng_.below(kIds);
  for (uint64_t id = first; id < first + 120 && id <= kIds; ++id)
    if (may_touch(name, id, false))
      STRATA_RETURN_IF_ERROR(change_one(session_.get(), &c, id, false, false, true));
  STRATA_RETURN_IF_ERROR(commit(&c));
  return kernel_->run_purge(1000);
}

inline Status Workload::commit_ddl(LedgerState next) {
  ledger_->may_become(std::move(next));
  STRATA_RETURN_IF_ERROR(session_->commit());
  ledger_->acknowledge();
  return ok_status();
}

inline Status Workload::ddl() {
  LedgerState next = ledger_->copy();
  const std::string name = some_table();
  session_->begin(Isolation::kRepeatableRead);
  const uint64_t choice = rng_.below(9);
  if (choice <= 1 || name.empty()) {
    if (next.tables.size() >= 4) return session_->rollback();
    const std::string fresh = "t" + std::to_string(++names_);
    STRATA_RETURN_IF_ERROR(session_->create_table(table_spec(fresh), nullptr));
    if (rng_.one_in(4)) return session_->rollback();
    next.tables[fresh] = std::make_shared<const LedgerRows>();
    return commit_ddl(std::move(next));
  }
  if (!may_redefine(name)) return session_->rollback();
  if (choice == 2) {
    STRATA_RETURN_IF_ERROR(session_->drop_table("test", name));
    next.tables.erase(name);
  } else if (choice == 3) {
    STRATA_RETURN_IF_ERROR(session_->truncate_table("test", name, nullptr));
    next.tables[name] = std::make_shared<const LedgerRows>();
  } else if (choice == 4) {
    const std::string fresh = "r" + std::to_string(++names_);
    STRATA_RETURN_IF_ERROR(session_->rename_table("test", name, "test", fresh));
    next.tables[fresh] = next.tables[name];
    next.tables.erase(name);
  } else if (choice == 5) {
    STRATA_ASSIGN_OR_RETURN(const TableRef table, session_->open_table("test", name));
    TableSpec spec = table->spec();
    spec.definition = std::string(1000 + rng_.below(60000), 'd');
    spec.version = std::string(16, 'w');
    STRATA_RETURN_IF_ERROR(session_->alter_table(spec));
  } else if (choice >= 7) {
    STRATA_ASSIGN_OR_RETURN(const TableRef table, session_->open_table("test", name));
    const size_t indexes = table->spec().indexes.size();
    const bool drop = indexes > 3 && (indexes > 5 || rng_.one_in(3));
    const size_t position = drop ? 3 + rng_.below(indexes - 3) : 0;
    // TRUNCATE has put it into the table's own space, where it stays.
    if (drop && table->spec().indexes[position].own_space_id == 0) return session_->rollback();
    STRATA_RETURN_IF_ERROR(drop ? drop_index(session_.get(), name, position)
                                : add_index(session_.get(), name, rng_.one_in(2)));
  } else {
    const std::string key = "key" + std::to_string(rng_.below(3));
    if (next.journal.count(key) != 0) {
      STRATA_RETURN_IF_ERROR(session_->journal_erase(key));
      next.journal.erase(key);
    } else {
      next.journal[key] = std::string(1 + rng_.below(500), 'j');
      STRATA_RETURN_IF_ERROR(session_->journal_put(key, next.journal[key]));
    }
  }
  if (rng_.one_in(4)) return session_->rollback();
  return commit_ddl(std::move(next));
}

inline Status Workload::xa() {
  LedgerState next = ledger_->copy();
  if (!next.prepared.empty() && (next.prepared.size() >= 3 || rng_.one_in(2))) {
    const auto [xid, work] = *next.prepared.begin();
    next.prepared.erase(xid);
    const bool commits = rng_.one_in(2);
    if (commits) next.apply(work.table, work.changes);
    ledger_->may_become(std::move(next));
    STRATA_RETURN_IF_ERROR(commits ? kernel_->commit_by_xid(xid) : kernel_->rollback_by_xid(xid));
    // A rollback by xid is not durable when it returns: until it is, the transaction is prepared.
    if (!commits) STRATA_RETURN_IF_ERROR(kernel_->persist_log());
    ledger_->acknowledge();
    return ok_status();
  }
  const std::string name = some_table();
  if (name.empty()) return ok_status();
  Changing c;
  STRATA_RETURN_IF_ERROR(begin(name, &c));
  for (uint64_t n = 1 + rng_.below(12); n > 0; --n) {
    const uint64_t id = 1 + rng_.below(kIds);
    if (!may_touch(name, id, false)) continue;
    STRATA_RETURN_IF_ERROR(
        change_one(session_.get(), &c, id, rng_.one_in(2), rng_.one_in(10), rng_.one_in(4)));
  }
  if (c.changes.empty()) return session_->rollback();
  const std::string xid = "xid-" + std::to_string(++names_);
  next.prepared[xid] = {name, c.changes};
  ledger_->may_become(std::move(next));
  STRATA_RETURN_IF_ERROR(session_->prepare(xid));
  ledger_->acknowledge();
  session_->detach_prepared();
  return ok_status();
}

inline Status Workload::end_long() {
  if (long_table_.empty()) return ok_status();
  const bool undo = rng_.one_in(3);
  if (!undo) {
    LedgerState next = ledger_->copy();
    next.apply(long_table_, long_changes_);
    ledger_->may_become(std::move(next));
  }
  long_table_.clear();
  long_changes_.clear();
  if (undo) return long_session_->rollback();
  STRATA_RETURN_IF_ERROR(long_session_->commit());
  ledger_->acknowledge();
  return ok_status();
}

inline Status Workload::long_step() {
  if (!long_table_.empty() && rng_.one_in(6)) return end_long();
  if (long_table_.empty()) {
    const std::string name = some_table();
    if (name.empty()) return ok_status();
    long_table_ = name;
    long_session_->begin(Isolation::kRepeatableRead);
  }
  STRATA_ASSIGN_OR_RETURN(Changing c, change_table(long_session_.get(), long_table_));
  for (const LedgerChange& change : long_changes_) note(&c, change.id, change.after);
  for (int n = 0; n < 5; ++n) {
    const uint64_t id = 1 + rng_.below(kIds);
    if (!may_touch(long_table_, id, true)) continue;
    STRATA_RETURN_IF_ERROR(
        change_one(long_session_.get(), &c, id, rng_.one_in(2), rng_.one_in(6), rng_.one_in(3)));
  }
  long_changes_ = std::move(c.changes);
  return ok_status();
}

inline Status Workload::step(bool may_restart) {
  const uint64_t choice = rng_.below(100);
  if (ledger_->now().tables.empty() || choice < 6) return ddl();
  if (choice < 50) return small_transaction();
  if (choice < 58) return large_transaction();
  if (choice < 63) return mass_delete();
  if (choice < 71) return xa();
  if (choice < 81) return long_step();
  if (choice < 89) return kernel_->run_purge(1 + rng_.below(60));
  if (choice < 92) return kernel_->checkpoint();
  if (choice < 96) {  // part of the dirty pages reach the disk, without a checkpoint
    KernelImpl* k = kernel_->impl();
    const Lsn oldest = k->pool->oldest_dirty_lsn();
    const Lsn end = k->log->next_lsn();
    if (oldest.value >= end.value) return ok_status();
    return k->pool->write_back_below(
        Lsn{oldest.value + (end.value - oldest.value) * rng_.below(100) / 100});
  }
  if (choice < 99) return kernel_->impl()->reap_dropped();
  if (!may_restart) return kernel_->checkpoint();
  return restart(rng_.one_in(2), rng_.next());
}

}  // namespace strata::engine::testing
