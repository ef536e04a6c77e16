// Random transactions against an oracle. One thread plays several open transactions; a conflict
// shows as a time-out at once, and the oracle says when there has to be one.
//
// The table: clustered tree 0, pk -> (unique value, text, maybe an outside value); unique secondary
// tree 1, (unique value | pk) -> nothing. A statement that fails is rolled back to where it began,
// as the engine does. The oracle keeps every committed version with its commit number, each
// transaction's own changes, and who holds which row: in the record, until it is rolled back, or in
// the lock table, until the transaction ends.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "row/testing/mini_kernel.h"

namespace strata::testing {

struct ModelRow {
  uint32_t unique_value = 0;
  std::string text;
  std::string outside;  // kept in an overflow chain when not empty
  OverflowRef ref;      // of `outside`
  bool operator==(const ModelRow& o) const {
    return unique_value == o.unique_value && text == o.text && outside == o.outside;
  }
};
using Table = std::map<uint32_t, ModelRow>;
using Changes = std::map<uint32_t, std::optional<ModelRow>>;

inline std::string be32_key(uint32_t v) {
  std::string s(4, '\0');
  store_be32(s.data(), v);
  return s;
}

class RowModel {
 public:
  static constexpr uint32_t kPks = 150;
  static constexpr uint32_t kUniqueValues = 200;

  RowModel(uint64_t seed, uint32_t workers, const MiniOptions& options)
      : rng_(seed), disk_(make_sim_file_system()), options_(options), workers_(workers) {
    constexpr uint32_t kLimits[] = {0, 2, 1000};
    unwritten_locks_max_ = kLimits[rng_.below(3)];
  }

  void open() {
    if (kernel_ == nullptr) kernel_ = std::make_unique<MiniKernel>(disk_.get(), options_);
    const Status status = kernel_->open();
    ASSERT_TRUE(status.ok()) << status;
    rows()->unwritten_locks_max = unwritten_locks_max_;
  }

  // --- one step of a random worker ---
  void step() {
    Worker& w = workers_[rng_.below(workers_.size())];
    if (w.trx == nullptr) begin(&w);
    const uint64_t dice = rng_.below(100);
    if (dice < 20) return insert(&w);
    if (dice < 42) return update(&w);
    if (dice < 52) return erase(&w);
    if (dice < 58) return lock(&w);
    if (dice < 68) return read_one(&w);
    if (dice < 74) return scan(&w);
    if (dice < 77) return scan_latest(&w);
    if (dice < 81) return savepoint(&w);
    if (dice < 85) return rollback_to_savepoint(&w);
    if (dice < 88) return purge();
    if (dice < 96) return commit(&w);
    rollback(&w);
  }

  void end_all() {
    for (Worker& w : workers_) {
      if (w.trx != nullptr) rollback(&w);
    }
  }

  // Nobody is active: after a complete purge the trees hold the live rows and nothing else, and no
  // page is lost.
  void check_quiet() {
    const Status purged = kernel_->purge_all();
    ASSERT_TRUE(purged.ok()) << purged;
    ASSERT_TRUE(kernel_->spaces()->reclaim().ok());
    EXPECT_EQ(kernel_->trxs()->history_length(), 0u);
    const uint64_t records = kernel_->check(true);
    EXPECT_EQ(records, 2 * newest_.size());
    EXPECT_TRUE(stored_table() == newest_) << "the stored table differs from the oracle";
    check_pages();
    const Status settled = kernel_->settle_all([this] { return rng_.one_in(2); });
    EXPECT_TRUE(settled.ok()) << settled;
  }

  // --- crashes (row_crash_model_test.cc) ---
  static bool& crashed() {
    static bool flag = false;
    return flag;
  }
  SimFileSystem* disk() { return disk_.get(); }
  MiniKernel* kernel() { return kernel_.get(); }
  Rng* rng() { return &rng_; }

  // After a crash: everything in memory is gone; what was acknowledged must be there.
  void reopen() {
    for (Worker& w : workers_) w = Worker{};
    kernel_->close();
    crashed() = false;
    open();
    if (::testing::Test::HasFailure()) return;
    const Table stored = stored_table();
    if (maybe_.has_value() && stored == *maybe_) newest_ = *maybe_;  // the commit in flight made it
    maybe_.reset();
    EXPECT_TRUE(stored == newest_) << "acknowledged commits are missing, or others are there";
    const Table now = stored;  // refs as stored
    newest_ = now;
    history_.clear();
    for (const auto& [pk, row] : newest_) history_[pk].push_back({commits_, row});
  }

 private:
  struct Savepoint {
    UndoPtr undo;
    Changes changes;
    std::set<uint32_t> held;
    std::set<std::pair<uint32_t, uint32_t>> entries;
  };
  struct Worker {
    std::unique_ptr<Trx> trx;
    bool repeatable = false;
    bool has_view = false;
    uint64_t view = 0;  // sees commits up to this number
    Changes changes;
    std::set<uint32_t> held;                          // clustered rows owned
    std::set<uint32_t> in_memory;                     // those that no rollback gives back
    std::set<std::pair<uint32_t, uint32_t>> entries;  // secondary entries owned
    std::set<uint32_t> shared;
    std::vector<Savepoint> savepoints;
  };
  struct Committed {
    uint64_t number;
    std::optional<ModelRow> row;
  };

  RowContext* rows() { return kernel_->rows(); }
  TreeId clustered() const { return kernel_->tree(0); }
  TreeId secondary() const { return kernel_->tree(1); }
  static std::string entry_key(uint32_t unique_value, uint32_t pk) {
    return be32_key(unique_value) + be32_key(pk);
  }

  // --- the oracle's answers ---
  std::optional<ModelRow> newest_committed(uint32_t pk) const {
    const auto it = newest_.find(pk);
    return it == newest_.end() ? std::nullopt : std::optional<ModelRow>(it->second);
  }
  std::optional<ModelRow> latest_for(const Worker& w, uint32_t pk) const {
    const auto own = w.changes.find(pk);
    return own != w.changes.end() ? own->second : newest_committed(pk);
  }
  std::optional<ModelRow> seen_by(const Worker& w, uint32_t pk) const {
    const auto own = w.changes.find(pk);
    if (own != w.changes.end()) return own->second;
    const auto it = history_.find(pk);
    if (it == history_.end()) return std::nullopt;
    std::optional<ModelRow> row;
    for (const Committed& c : it->second) {
      if (c.number <= w.view) row = c.row;
    }
    return row;
  }
  Table table_seen_by(const Worker& w) const {
    Table table;
    for (uint32_t pk = 0; pk < kPks; ++pk) {
      if (auto row = seen_by(w, pk)) table[pk] = *row;
    }
    return table;
  }
  const Worker* owner_of(const Worker& self, uint32_t pk) const {
    for (const Worker& w : workers_) {
      if (&w != &self && w.trx != nullptr && w.held.count(pk) != 0) return &w;
    }
    return nullptr;
  }
  // Whether the owner's lock is the record itself.
  static bool stands_in_record(const Worker& owner, uint32_t pk) {
    return owner.in_memory.count(pk) == 0 || owner.changes.count(pk) != 0;
  }
  bool shared_by_other(const Worker& self, uint32_t pk) const {
    for (const Worker& w : workers_) {
      if (&w != &self && w.trx != nullptr && w.shared.count(pk) != 0) return true;
    }
    return false;
  }
  bool entry_owned_by_other(const Worker& self, uint32_t unique_value) const {
    for (const Worker& w : workers_) {
      if (&w == &self || w.trx == nullptr) continue;
      const auto it = w.entries.lower_bound({unique_value, 0});
      if (it != w.entries.end() && it->first == unique_value) return true;
    }
    return false;
  }
  bool unique_value_live(const Worker& w, uint32_t unique_value) const {
    for (uint32_t pk = 0; pk < kPks; ++pk) {
      const auto row = latest_for(w, pk);
      if (row.has_value() && row->unique_value == unique_value) return true;
    }
    return false;
  }

  // --- life of a transaction ---
  void begin(Worker* w) {
    *w = Worker{};
    w->trx = std::make_unique<Trx>();
    w->repeatable = rng_.one_in(2);
    kernel_->trxs()->begin(w->trx.get());
    w->trx->lock_wait_timeout_us = 0;
  }
  void take_view(Worker* w) {
    if (w->has_view && w->repeatable) return;
    if (w->has_view) kernel_->trxs()->close_view(w->trx.get());
    const Status status = kernel_->trxs()->open_view(w->trx.get());
    ASSERT_TRUE(status.ok() || crashed()) << status;
    w->has_view = true;
    w->view = commits_;
  }
  void commit(Worker* w) {
    Table after = newest_;
    for (const auto& [pk, row] : w->changes) {
      if (row.has_value()) {
        after[pk] = *row;
      } else {
        after.erase(pk);
      }
    }
    TrxSystem::PurgeItem own;
    const bool purges = rng_.one_in(2);
    const Status status = kernel_->trxs()->commit(w->trx.get(), purges ? &own : nullptr);
    purge_own(rows(), std::move(own));  // RW10
    if (!status.ok()) {
      ASSERT_TRUE(crashed()) << status;
      maybe_ = after;
      return;
    }
    ++commits_;
    for (const auto& [pk, row] : w->changes) history_[pk].push_back({commits_, row});
    newest_ = std::move(after);
    w->trx = nullptr;
  }
  void rollback(Worker* w) {
    const Status status = rollback_all(rows(), w->trx.get());
    if (crashed()) return;
    ASSERT_TRUE(status.ok()) << status;
    w->trx = nullptr;
  }
  void savepoint(Worker* w) {
    w->savepoints.push_back({w->trx->undo.last, w->changes, w->held, w->entries});
  }
  void restore(Worker* w, const Savepoint& to) {
    w->changes = to.changes;
    w->held = to.held;
    w->held.insert(w->in_memory.begin(), w->in_memory.end());
    w->entries = to.entries;
  }
  void rollback_to_savepoint(Worker* w) {
    if (w->savepoints.empty()) return;
    const size_t at = rng_.below(w->savepoints.size());
    const Savepoint to = w->savepoints[at];
    w->savepoints.resize(at + 1);
    undo_statement(w, to);
  }
  void undo_statement(Worker* w, const Savepoint& to) {
    const Status status = rollback_to(rows(), w->trx.get(), to.undo);
    if (crashed()) return;
    ASSERT_TRUE(status.ok()) << status;
    restore(w, to);
  }
  void purge() {
    const auto done = purge_some(rows(), 1 + rng_.below(20));
    ASSERT_TRUE(done.ok() || crashed()) << done.status();
  }

  // --- statements ---
  ModelRow random_row() {
    ModelRow row;
    row.unique_value = static_cast<uint32_t>(rng_.below(kUniqueValues));
    row.text.assign(rng_.one_in(4) ? rng_.below(1500) : rng_.below(60),
                    static_cast<char>('a' + rng_.below(26)));
    if (rng_.one_in(12)) {
      row.outside.assign(1 + rng_.below(60000), static_cast<char>('A' + rng_.below(26)));
      store_u32(row.outside.data(), static_cast<uint32_t>(rng_.next()) & 0xff);
    }
    return row;
  }
  std::string payload_of(const ModelRow& row) const {
    std::string inline_bytes;
    append_u32(&inline_bytes, row.unique_value);
    inline_bytes += row.text;
    std::vector<OverflowRef> refs;
    if (!row.outside.empty()) refs.push_back(row.ref);
    return encode_payload(refs, inline_bytes);
  }
  Status write_outside(Worker* w, ModelRow* row) {
    if (row->outside.empty()) return ok_status();
    STRATA_ASSIGN_OR_RETURN(row->ref,
                            write_overflow(rows(), w->trx.get(), MiniKernel::kSpace, row->outside));
    return ok_status();
  }
  // What inserting the entry may come to, by the oracle.
  void expect_entry_outcome(const Worker& w, uint32_t unique_value, const Status& status) {
    const bool timeout = entry_owned_by_other(w, unique_value);
    const bool duplicate = unique_value_live(w, unique_value);
    if (status.ok()) {
      EXPECT_FALSE(timeout) << "an undecided entry was not noticed";
      EXPECT_FALSE(duplicate) << "a duplicate was not noticed";
    } else if (is_lock_wait_timeout(status)) {
      EXPECT_TRUE(timeout) << "nobody holds an entry with this value";
    } else {
      EXPECT_TRUE(is_duplicate_key(status)) << status;
      EXPECT_TRUE(duplicate) << "no such value";
    }
  }
  // Inserts the secondary entry; the clustered row is not yet in w->changes.
  Status insert_entry(Worker* w, uint32_t unique_value, uint32_t pk) {
    const Status status = insert_record(rows(), w->trx.get(), secondary(),
                                        entry_key(unique_value, pk), encode_payload({}, ""), 4);
    if (!crashed()) expect_entry_outcome(*w, unique_value, status);
    if (status.ok()) w->entries.insert({unique_value, pk});
    return status;
  }
  Status delete_entry(Worker* w, uint32_t unique_value, uint32_t pk) {
    const Status status =
        delete_record(rows(), w->trx.get(), secondary(), entry_key(unique_value, pk));
    EXPECT_TRUE(status.ok() || crashed()) << "who owns the row owns its entry: " << status;
    if (status.ok()) w->entries.insert({unique_value, pk});
    return status;
  }

  void note_locked(Worker* w, uint32_t pk) {
    if (w->held.insert(pk).second && w->in_memory.size() < unwritten_locks_max_)
      w->in_memory.insert(pk);
  }
  // Outcome of taking the clustered row exclusively. *blocked: a conflict is certain.
  bool expect_row_outcome(const Worker& w, uint32_t pk, const Status& status) {
    if (owner_of(w, pk) != nullptr) {
      EXPECT_TRUE(is_lock_wait_timeout(status)) << "row owned by another: " << status;
      return false;
    }
    return true;
  }

  void insert(Worker* w) {
    const auto pk = static_cast<uint32_t>(rng_.below(kPks));
    const Savepoint before{w->trx->undo.last, w->changes, w->held, w->entries};
    ModelRow row = random_row();
    Status status = write_outside(w, &row);
    if (status.ok()) {
      status = insert_record(rows(), w->trx.get(), clustered(), be32_key(pk), payload_of(row), 0);
      if (crashed()) return;
      if (expect_row_outcome(*w, pk, status)) {
        if (latest_for(*w, pk).has_value()) {
          EXPECT_TRUE(is_duplicate_key(status)) << status;
        } else if (shared_by_other(*w, pk)) {
          EXPECT_TRUE(is_lock_wait_timeout(status)) << status;
        } else {
          EXPECT_TRUE(status.ok()) << status;
        }
      }
      w->held.insert(pk);
    }
    if (status.ok()) status = insert_entry(w, row.unique_value, pk);
    if (crashed()) return;
    if (!status.ok()) return undo_statement(w, before);
    w->changes[pk] = row;
  }

  void update(Worker* w) {
    const auto pk = static_cast<uint32_t>(rng_.below(kPks));
    const Savepoint before{w->trx->undo.last, w->changes, w->held, w->entries};
    std::string payload;
    Status status =
        lock_record(rows(), w->trx.get(), clustered(), be32_key(pk), RowLock::kExclusive, &payload);
    if (crashed()) return;
    expect_locked(*w, pk, status, payload);
    if (!status.ok()) return undo_statement(w, before);
    note_locked(w, pk);
    const ModelRow old = *latest_for(*w, pk);
    ModelRow row = random_row();
    if (rng_.one_in(2)) row.unique_value = old.unique_value;
    if (rng_.one_in(2)) {
      row.outside = old.outside;
      row.ref = old.ref;
    } else {
      status = write_outside(w, &row);
    }
    if (status.ok()) {
      status = update_record(rows(), w->trx.get(), clustered(), be32_key(pk), payload_of(row));
      EXPECT_TRUE(status.ok() || crashed()) << status;
    }
    if (status.ok() && row.unique_value != old.unique_value) {
      status = delete_entry(w, old.unique_value, pk);
      if (status.ok()) status = insert_entry(w, row.unique_value, pk);
    }
    if (crashed()) return;
    if (!status.ok()) return undo_statement(w, before);
    w->changes[pk] = row;
  }

  void erase(Worker* w) {
    const auto pk = static_cast<uint32_t>(rng_.below(kPks));
    const Savepoint before{w->trx->undo.last, w->changes, w->held, w->entries};
    std::string payload;
    Status status =
        lock_record(rows(), w->trx.get(), clustered(), be32_key(pk), RowLock::kExclusive, &payload);
    if (crashed()) return;
    expect_locked(*w, pk, status, payload);
    if (!status.ok()) return undo_statement(w, before);
    note_locked(w, pk);
    const ModelRow old = *latest_for(*w, pk);
    status = delete_record(rows(), w->trx.get(), clustered(), be32_key(pk));
    EXPECT_TRUE(status.ok() || crashed()) << status;
    if (status.ok()) status = delete_entry(w, old.unique_value, pk);
    if (crashed()) return;
    if (!status.ok()) return undo_statement(w, before);
    w->changes[pk] = std::nullopt;
  }

  void expect_locked(const Worker& w, uint32_t pk, const Status& status, Bytes payload) {
    if (!expect_row_outcome(w, pk, status)) return;
    const auto row = latest_for(w, pk);
    if (!row.has_value()) {
      EXPECT_TRUE(is_not_found(status)) << status;
    } else if (shared_by_other(w, pk)) {
      EXPECT_TRUE(is_lock_wait_timeout(status)) << status;
    } else {
      EXPECT_TRUE(status.ok()) << status;
      if (status.ok()) expect_payload(payload, *row);
    }
  }

  void lock(Worker* w) {
    const auto pk = static_cast<uint32_t>(rng_.below(kPks));
    const bool shared = rng_.one_in(2);
    const Savepoint before{w->trx->undo.last, w->changes, w->held, w->entries};
    std::string payload;
    const Status status = lock_record(rows(), w->trx.get(), clustered(), be32_key(pk),
                                      shared ? RowLock::kShared : RowLock::kExclusive, &payload);
    if (crashed()) return;
    if (!shared) {
      expect_locked(*w, pk, status, payload);
    } else if (expect_row_outcome(*w, pk, status)) {
      const auto row = latest_for(*w, pk);
      EXPECT_EQ(status.ok(), row.has_value()) << status;
      if (status.ok()) expect_payload(payload, *row);
    }
    if (!status.ok()) return undo_statement(w, before);
    if (shared) {
      w->shared.insert(pk);
    } else {
      note_locked(w, pk);
    }
  }

  // --- reads ---
  void expect_payload(Bytes payload, const ModelRow& row) {
    if (crashed()) return;
    ModelRow got;
    const Status status = parse(payload, &got);
    if (crashed()) return;
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(got == row) << "another version than the oracle's";
  }
  Status parse(Bytes payload, ModelRow* row) {
    std::vector<OverflowRef> refs;
    Bytes inline_bytes;
    STRATA_RETURN_IF_ERROR(decode_payload(payload, &refs, &inline_bytes));
    if (inline_bytes.size() < 4) return error_corruption("short row");
    row->unique_value = load_u32(inline_bytes.data());
    row->text.assign(inline_bytes.substr(4));
    if (refs.empty()) return ok_status();
    row->ref = refs[0];
    return read_overflow(rows(), MiniKernel::kSpace, refs[0], &row->outside);
  }

  void read_one(Worker* w) {
    take_view(w);
    if (crashed()) return;
    const auto pk = static_cast<uint32_t>(rng_.below(kPks));
    std::string payload;
    const Status status = read_record(rows(), w->trx.get(), clustered(), be32_key(pk), &payload);
    if (crashed()) return;
    const auto row = seen_by(*w, pk);
    if (!row.has_value()) {
      EXPECT_TRUE(is_not_found(status)) << "pk " << pk << ": " << status;
      return;
    }
    ASSERT_TRUE(status.ok()) << "pk " << pk << ": " << status;
    expect_payload(payload, *row);
  }

  // Part of the table or of the index, in either direction, with a turn now and then.
  void scan(Worker* w) {
    take_view(w);
    if (crashed()) return;
    const Table table = table_seen_by(*w);
    std::map<std::string, const ModelRow*> want;
    const bool by_entry = rng_.one_in(2);
    for (const auto& [pk, row] : table) {
      want[by_entry ? entry_key(row.unique_value, pk) : be32_key(pk)] = &row;
    }
    RowCursor cursor(rows(), by_entry ? secondary() : clustered());
    if (by_entry)
      cursor.set_base_row({clustered(), [](Bytes key, Bytes) { return key.substr(4); }});
    const std::string from = be32_key(static_cast<uint32_t>(rng_.below(kPks)));
    const auto kind = RowCursor::Read::kConsistent;
    auto at = want.lower_bound(from);
    Status status;
    if (rng_.one_in(2)) {
      status = cursor.seek(w->trx.get(), kind, from);
    } else {
      const bool infinite = rng_.one_in(3);
      status = cursor.seek_before(w->trx.get(), kind, from, infinite);
      if (infinite) at = want.end();
      if (at == want.begin()) {
        EXPECT_TRUE(crashed() || (status.ok() && !cursor.valid())) << status;
        return;
      }
      --at;
    }
    bool forward = rng_.one_in(2);
    for (int i = 0; i < 120; ++i) {
      if (crashed()) return;
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(cursor.valid(), at != want.end());
      if (at == want.end()) return;
      ASSERT_EQ(cursor.key(), at->first)
          << "step " << i << (forward ? " forward" : " backward") << ", by entry " << by_entry;
      if (!by_entry) expect_payload(cursor.payload(), *at->second);
      if (rng_.one_in(25)) forward = !forward;
      if (!forward && at == want.begin()) {
        status = cursor.prev();
        EXPECT_TRUE(crashed() || (status.ok() && !cursor.valid())) << status;
        return;
      }
      status = forward ? cursor.next() : cursor.prev();
      forward ? ++at : --at;
    }
  }

  // Newest versions with their flags.
  void scan_latest(Worker* w) {
    RowCursor cursor(rows(), clustered());
    Status status = cursor.seek(w->trx.get(), RowCursor::Read::kLatest, Bytes());
    for (uint32_t pk = 0; pk < kPks; ++pk) {
      if (crashed()) return;
      ASSERT_TRUE(status.ok()) << status;
      const Worker* owner = owner_of(*w, pk);
      const auto row = latest_for(owner != nullptr ? *owner : *w, pk);
      // What another deletes or has locked is shown; what it inserts and deleted again, too.
      const bool shown = cursor.valid() && cursor.key() == be32_key(pk);
      if (row.has_value()) {
        ASSERT_TRUE(shown) << "pk " << pk;
        EXPECT_EQ(cursor.undecided(), owner != nullptr && stands_in_record(*owner, pk));
        EXPECT_FALSE(cursor.deleted());
        expect_payload(cursor.payload(), *row);
      } else if (shown) {
        EXPECT_TRUE(owner != nullptr && cursor.undecided() && cursor.deleted()) << "pk " << pk;
      }
      if (shown) status = cursor.next();
    }
    EXPECT_TRUE(crashed() || !cursor.valid());
  }

  Table stored_table() {
    Table table;
    Trx trx;
    kernel_->trxs()->begin(&trx);
    EXPECT_TRUE(kernel_->trxs()->open_view(&trx).ok());
    RowCursor cursor(rows(), clustered());
    std::set<std::string> entries;
    Status status = cursor.seek(&trx, RowCursor::Read::kConsistent, Bytes());
    while (status.ok() && cursor.valid()) {
      ModelRow row;
      const Status parsed = parse(cursor.payload(), &row);
      EXPECT_TRUE(parsed.ok()) << parsed;
      const uint32_t pk = load_be32(cursor.key().data());
      entries.insert(entry_key(row.unique_value, pk));
      table[pk] = std::move(row);
      status = cursor.next();
    }
    EXPECT_TRUE(status.ok()) << status;
    RowCursor index(rows(), secondary());
    status = index.seek(&trx, RowCursor::Read::kConsistent, Bytes());
    size_t count = 0;
    while (status.ok() && index.valid()) {
      EXPECT_EQ(entries.count(std::string(index.key())), 1u) << "an entry without its row";
      ++count;
      status = index.next();
    }
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(count, entries.size()) << "a row without its entry";
    EXPECT_TRUE(kernel_->trxs()->commit(&trx).ok());
    return table;
  }

  void check_pages() {
    uint64_t pages = 2;  // header and map
    for (uint32_t i = 0; i < options_.trees; ++i) {
      TreeCheck tree;
      ASSERT_TRUE(check_tree(&rows()->tree, kernel_->tree(i), {}, &tree).ok());
      pages += tree.leaf_pages + tree.inner_pages;
    }
    for (const auto& [pk, row] : newest_) pages += (row.outside.size() + 16303) / 16304;
    EXPECT_EQ(*kernel_->spaces()->used_pages(MiniKernel::kSpace), pages) << "lost or shared pages";
  }

  Rng rng_;
  std::unique_ptr<SimFileSystem> disk_;
  const MiniOptions options_;
  std::unique_ptr<MiniKernel> kernel_;
  std::vector<Worker> workers_;
  uint32_t unwritten_locks_max_ = 0;
  uint64_t commits_ = 0;
  std::map<uint32_t, std::vector<Committed>> history_;
  Table newest_;
  std::optional<Table> maybe_;
};

inline uint64_t environment_number(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

}  // namespace strata::testing
