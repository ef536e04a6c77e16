// Goal: several kernels that work on the same database do exactly what one would, step by step.
// Method: one thread and a seed. Sessions on two or three kernels take turns, a statement at a
// time, and nobody waits (a row that is locked is refused at once), so an oracle can say of every
// statement what must come of it: the rows that a view, a locking read or a scan returns, whether a
// row is free, whether a table is there. In between nodes purge, hear of the horizon or do not,
// take checkpoints, evict (the pools are small), and crash in the middle of their transactions and
// come back. At the end all nodes hold the oracle's rows, nothing that was deleted is left over,
// and the merged logs rebuild every page. STRATA_SEED and STRATA_ROUNDS choose seeds.
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "engine/testing/cluster.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

constexpr uint64_t kAskUs = 30'000'000;  // for a table's name: other nodes may have to be asked
constexpr uint64_t kIds = 24;
constexpr uint64_t kSteps = 70;
constexpr uint64_t kPoolBytes = 96 * kPageBytes;

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : rng_(seed),
        cluster_(static_cast<uint8_t>(2 + seed % 2), {"t"}, false, kPoolBytes),
        workers_(2 * cluster_.nodes()) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      workers_[i].node = static_cast<uint8_t>(1 + i % cluster_.nodes());
      open(&workers_[i]);
    }
  }

  void run() {
    for (uint64_t i = 0; i < kSteps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      step();
    }
    if (!::testing::Test::HasFailure()) check();
  }

 private:
  struct Worker {
    uint8_t node = 0;
    std::unique_ptr<Session> session;
    TableRef table;
    bool started = false;
    std::optional<Rows> view;                        // what its snapshot holds
    std::map<uint64_t, std::optional<Row>> changes;  // its own; nullopt: deleted
    std::set<uint64_t> exclusive, shared;
  };

  void open(Worker* w) {
    w->session = cluster_.kernel(w->node)->new_session();
    w->session->set_lock_wait_timeout_us(0);
  }
  void ask_for_table(Worker* w) {
    w->session->set_lock_wait_timeout_us(kAskUs);
    w->table = cluster_.table(w->session.get());
    w->session->set_lock_wait_timeout_us(0);
    ASSERT_NE(w->table, nullptr);
  }
  Worker& any_worker() { return workers_[rng_.below(workers_.size())]; }
  uint8_t any_node() { return static_cast<uint8_t>(1 + rng_.below(cluster_.nodes())); }

  void step() {
    switch (rng_.below(20)) {
      case 0:
        if (rng_.one_in(2)) cluster_.hear(any_node());
        EXPECT_TRUE(cluster_.kernel(any_node())->run_purge(1000).ok());
        if (rng_.one_in(2)) purge_under_views_of_others();
        break;
      case 1:
        EXPECT_TRUE(cluster_.impl(any_node())->checkpointer->run_once().ok());
        break;
      case 2:
        if (rng_.one_in(3)) crash(any_node());
        break;
      case 3:
      case 4:
        change_tables();
        break;
      default:
        statement(&any_worker());
    }
  }

  // --- transactions ---

  void begin(Worker* w) {
    w->started = true;
    w->session->begin(rng_.one_in(4) ? Isolation::kReadCommitted : Isolation::kRepeatableRead);
    ask_for_table(w);
    if (!rng_.one_in(2)) return;
    ASSERT_TRUE(w->session->open_view().ok());
    w->view = committed_;
  }
  void ended(Worker* w) {
    w->started = false;
    w->view.reset();
    w->changes.clear();
    w->exclusive.clear();
    w->shared.clear();
  }

  void statement(Worker* w) {
    if (!w->started) return begin(w);
    switch (rng_.below(9)) {
      case 0:
        return commit(w);
      case 1:
        if (!rng_.one_in(2)) return;
        ASSERT_TRUE(w->session->rollback().ok());
        return ended(w);
      case 2:
      case 3:
        return look(w);
      case 4:
        return lock(w, LockMode::kShared, 1 + rng_.below(kIds));
      case 5:
        return lock(w, LockMode::kExclusive, 1 + rng_.below(kIds));
      case 6:
        return add(w, 1 + rng_.below(kIds));
      default:
        return change(w, 1 + rng_.below(kIds));
    }
  }

  void commit(Worker* w) {
    const Status status = w->session->commit();
    ASSERT_TRUE(status.ok()) << status;
    for (const auto& [id, row] : w->changes) {
      committed_.erase(id);
      if (row.has_value()) committed_[id] = *row;
    }
    ended(w);
  }

  // A node without a view of its own changes rows and purges at once: only what it knows of the
  // other nodes' views keeps it from removing what they see.
  void purge_under_views_of_others() {
    std::set<uint8_t> views;
    for (const Worker& w : workers_)
      if (w.view.has_value()) views.insert(w.node);
    const uint8_t node = any_node();
    if (views.empty() || views.contains(node)) return;
    if (rng_.one_in(2)) cluster_.hear(node);
    Worker own;
    own.node = node;
    open(&own);
    own.session->begin(Isolation::kReadCommitted);
    ask_for_table(&own);
    for (int i = 0; i < 3; ++i) change(&own, 1 + rng_.below(kIds));
    commit(&own);
    EXPECT_TRUE(cluster_.kernel(node)->run_purge(1000).ok());
    for (Worker& w : workers_) look(&w);
  }

  static std::string differences(const Rows& seen, const Rows& expected) {
    std::string text;
    for (uint64_t id = 1; id <= kIds; ++id) {
      const auto got = seen.find(id);
      const auto want = expected.find(id);
      if (got == seen.end() && want != expected.end()) text += " lacks " + std::to_string(id);
      if (got != seen.end() && want == expected.end()) text += " has " + std::to_string(id);
      if (got != seen.end() && want != expected.end() && !(got->second == want->second))
        text += " has another " + std::to_string(id);
    }
    return text;
  }

  // A scan of what the view holds, with the transaction's own changes on it.
  void look(Worker* w) {
    if (!w->view.has_value()) return;
    Rows expected = *w->view;
    for (const auto& [id, row] : w->changes) {
      expected.erase(id);
      if (row.has_value()) expected[id] = *row;
    }
    const auto index = static_cast<uint32_t>(rng_.below(3));
    const auto seen = scan(w->session.get(), w->table, index, rng_.one_in(2));
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_TRUE(*seen == expected)
        << "node " << int{w->node} << ", index " << index << ":" << differences(*seen, expected);
  }

  bool others_have(const Worker& w, uint64_t id, bool shared_too) const {
    for (const Worker& other : workers_) {
      if (&other == &w || !other.started) continue;
      if (other.exclusive.contains(id) || (shared_too && other.shared.contains(id))) return true;
    }
    return false;
  }
  std::optional<Row> newest(const Worker& w, uint64_t id) const {
    if (const auto own = w.changes.find(id); own != w.changes.end()) return own->second;
    const auto it = committed_.find(id);
    return it == committed_.end() ? std::nullopt : std::optional<Row>(it->second);
  }
  // Whether the statement came to `status` as it should have: refused, if another has the row.
  bool went_well(Worker* w, const Savepoint& before, const Status& status, bool refused,
                 const char* what, uint64_t id) {
    if (refused) {
      EXPECT_TRUE(is_lock_wait_timeout(status)) << what << " " << id << ": " << status;
      EXPECT_TRUE(w->session->rollback_to(before).ok());
      return false;
    }
    EXPECT_TRUE(status.ok()) << what << " " << id << " on node " << int{w->node} << ": " << status;
    return status.ok();
  }

  void lock(Worker* w, LockMode mode, uint64_t id) {
    const Savepoint before = w->session->savepoint();
    const bool exclusive = mode == LockMode::kExclusive;
    const auto row = get_row(w->session.get(), w->table, id, mode);
    const std::optional<Row> expected = newest(*w, id);
    const bool refused = others_have(*w, id, exclusive && expected.has_value());
    if (!refused && !expected.has_value()) {
      EXPECT_TRUE(is_not_found(row.status())) << id << ": " << row.status();
      return;
    }
    if (!went_well(w, before, row.status(), refused, exclusive ? "lock" : "share", id)) return;
    EXPECT_TRUE(*row == *expected) << "row " << id << " on node " << int{w->node};
    (exclusive ? w->exclusive : w->shared).insert(id);
  }

  Row random_row(uint64_t id) {
    Row row{id, static_cast<uint32_t>(rng_.below(9)), std::string(rng_.below(900), 'x'), ""};
    if (rng_.one_in(20)) row.blob.assign(20000, 'b');
    return row;
  }
  void add(Worker* w, uint64_t id) {
    const Savepoint before = w->session->savepoint();
    const Row row = random_row(id);
    const Status status = insert(w->session.get(), w->table, id, row);
    // A shared lock keeps a row from being changed, not a duplicate from being found.
    const bool refused = others_have(*w, id, false);
    if (!refused && newest(*w, id).has_value()) {
      EXPECT_TRUE(is_duplicate_key(status)) << id << ": " << status;
      w->shared.insert(id);  // the duplicate must not vanish while the statement relies on it
      return;
    }
    if (!went_well(w, before, status, refused, "insert", id)) return;
    w->changes[id] = row;
    w->exclusive.insert(id);
  }
  void change(Worker* w, uint64_t id) {
    lock(w, LockMode::kExclusive, id);
    const std::optional<Row> row = newest(*w, id);
    if (!w->exclusive.contains(id) || !row.has_value()) return;
    const bool removes = rng_.one_in(3);
    const Row next = random_row(id);
    const Status status = removes ? remove(w->session.get(), w->table, id, *row)
                                  : update(w->session.get(), w->table, id, *row, id, next);
    ASSERT_TRUE(status.ok()) << status;
    w->changes[id] = removes ? std::nullopt : std::optional<Row>(next);
  }

  // --- definitions ---

  // One transaction of a node, at once: nobody else uses these tables meanwhile.
  void change_tables() {
    const std::string name = "d" + std::to_string(rng_.below(2));
    auto session = cluster_.kernel(any_node())->new_session();
    session->set_lock_wait_timeout_us(kAskUs);
    session->begin(Isolation::kRepeatableRead);
    const auto it = tables_.find(name);
    const bool there = it != tables_.end();
    const bool gives_up = rng_.one_in(5);
    switch (rng_.below(5)) {
      case 0: {
        const Status status = session->create_table(table_spec(name), nullptr);
        EXPECT_EQ(status.ok(), !there) << status;
        if (status.ok() && !gives_up) tables_[name] = {};
        break;
      }
      case 1: {
        const Status status = session->drop_table("test", name);
        EXPECT_EQ(status.ok(), there) << status;
        if (status.ok() && !gives_up) tables_.erase(name);
        break;
      }
      case 2: {
        TableRef fresh;
        const Status status = session->truncate_table("test", name, &fresh);
        EXPECT_EQ(status.ok(), there) << status;
        if (status.ok() && !gives_up) it->second.clear();
        break;
      }
      default: {
        const auto table = session->open_table("test", name);
        EXPECT_EQ(table.ok(), there) << table.status();
        if (!table.ok()) break;
        std::set<uint64_t> ids = it->second;
        const uint64_t count = 1 + rng_.below(3);
        const uint64_t first = (*table)->reserve_auto_increment(1, 1, count, UINT64_MAX).value();
        for (uint64_t id = first; id < first + count; ++id) {
          ASSERT_TRUE(insert(session.get(), *table, id, Row{id, 1, "x", ""}).ok()) << id;
          ASSERT_TRUE(ids.insert(id).second);
        }
        const auto seen = scan(session.get(), *table, static_cast<uint32_t>(rng_.below(3)));
        ASSERT_TRUE(seen.ok()) << seen.status();
        EXPECT_EQ(seen->size(), ids.size());
        if (!gives_up) it->second = std::move(ids);
      }
    }
    ASSERT_TRUE((gives_up ? session->rollback() : session->commit()).ok());
  }

  // --- crashes ---

  void crash(uint8_t node) {
    for (Worker& w : workers_) {
      if (w.node != node) continue;
      w.table = nullptr;
      bury(std::move(w.session));
      ended(&w);
    }
    cluster_.crash(node);
    cluster_.start(node);
    for (Worker& w : workers_)
      if (w.node == node) open(&w);
  }

  void check() {
    for (Worker& w : workers_) {
      EXPECT_TRUE(w.session->rollback().ok());
      w.table = nullptr;
      w.session.reset();
    }
    for (int i = 0; i < 2; ++i) cluster_.purge();
    for (uint8_t node = 1; node <= cluster_.nodes(); ++node) {
      auto session = cluster_.kernel(node)->new_session();
      session->begin(Isolation::kRepeatableRead);
      session->set_lock_wait_timeout_us(kAskUs);
      const TableRef table = cluster_.table(session.get());
      ASSERT_NE(table, nullptr);
      for (const uint32_t index : {0u, 1u, 2u}) {
        const auto seen = scan(session.get(), table, index);
        ASSERT_TRUE(seen.ok()) << seen.status();
        EXPECT_TRUE(*seen == committed_) << "node " << int{node} << ", index " << index;
        EXPECT_EQ(records(node, *table, index), committed_.size())
            << "node " << int{node} << ", index " << index << ": a deleted record is left over";
      }
      for (const auto& [name, ids] : tables_)
        EXPECT_EQ(scan(session.get(), cluster_.table(session.get(), name))->size(), ids.size());
      ASSERT_TRUE(session->commit().ok());
      if (node == 1) expect_consistent(cluster_.kernel(node), table);
    }
    expect_merged_logs_make_pages(&cluster_);
  }
  uint64_t records(uint8_t node, const Table& table, uint32_t index) {
    KernelImpl* const k = cluster_.impl(node);
    uint64_t count = 0;
    Mtr mtr(k->pool.get(), k->log.get());
    TreeCursor cursor(&k->row.tree, tree_of(table, index), &mtr);
    EXPECT_TRUE(cursor.seek(Bytes(), LatchMode::kShared).ok());
    EXPECT_TRUE(cursor.settle().ok());
    for (; !cursor.at_end(); ++count) EXPECT_TRUE(cursor.next().ok());
    return count;
  }

  Rng rng_;
  Cluster cluster_;
  std::vector<Worker> workers_;
  Rows committed_;
  std::map<std::string, std::set<uint64_t>> tables_;  // beside "t": their rows
};

TEST(SeveralKernelsSim, EveryStatementDoesWhatItWouldOnOneNode) {
  const uint64_t first = environment("STRATA_SEED", 1);
  // Clients of a memory node take longer.
  const uint64_t most = cluster_services ? strata::testing::fewer_if_sanitized(150, 15)
                                         : strata::testing::fewer_if_sanitized(1000, 60);
  const uint64_t rounds = environment("STRATA_ROUNDS", most);
  set_diag_sink([](Severity, std::string_view) {});  // each crash tells of its recovery
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    Simulation(seed).run();
  }
  set_diag_sink(nullptr);
}

}  // namespace
}  // namespace strata::engine
