// Goal: two and three kernels in one process work on the same tables at the same time, over the
// services of testing/cluster.h, and nobody can tell them from one. Every promise a client has of
// one server holds over all of them: a view keeps its mind while other nodes change, purge and
// truncate; what one node has committed the next view of any node sees; no row is lost. Afterwards
// the merged logs rebuild every page byte by byte, and tables and indexes agree.
// STRATA_SEED chooses the work, STRATA_SECONDS how long the threads go on, STRATA_COMMITS how many
// commits a view outlives.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <set>
#include <shared_mutex>
#include <thread>

#include "base/clock.h"
#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "engine/testing/cluster.h"
#include "undo/undo_log.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

#ifdef __SANITIZE_THREAD__
constexpr uint64_t kSeconds = 10;
#else
constexpr uint64_t kSeconds = 1;
#endif

Row row_of(uint64_t id, uint32_t group, size_t text_bytes) {
  return Row{id, group, std::string(text_bytes, 'x'), ""};
}

// MW1: a view that is open on one node holds back what another node purges and truncates.
TEST(SeveralKernels, ViewOfAnotherNodeKeepsItsMindOverPurgeAndTruncation) {
  Cluster cluster(2, {"t"}, false);
  auto writer = cluster.kernel(1)->new_session();
  auto reader = cluster.kernel(2)->new_session();
  const TableRef at_writer = cluster.table(writer.get());
  const TableRef at_reader = cluster.table(reader.get());
  Rows rows;
  writer->begin(Isolation::kRepeatableRead);
  for (uint64_t id = 1; id <= 60; ++id) {
    rows[id] = row_of(id, 1, 100);
    ASSERT_TRUE(insert(writer.get(), at_writer, id, rows[id]).ok());
  }
  ASSERT_TRUE(writer->commit().ok());
  const Rows before = rows;

  reader->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(reader->open_view().ok());
  ASSERT_TRUE(*scan(reader.get(), at_reader) == before);

  // More transactions than a group of status pages holds.
  TrxSystem* const trxs = cluster.impl(1)->trxs.get();
  const char* const commits = std::getenv("STRATA_COMMITS");
  const uint64_t many = commits != nullptr ? std::strtoull(commits, nullptr, 10) : 18000;
  Rng rng(7);
  for (uint64_t i = 0; i < many; ++i) {
    const uint64_t id = 1 + rng.below(80);
    writer->begin(Isolation::kRepeatableRead);
    Status status;
    if (rows.count(id) == 0) {
      rows[id] = row_of(id, static_cast<uint32_t>(i), 100);
      status = insert(writer.get(), at_writer, id, rows[id]);
    } else if (rng.one_in(3)) {
      status = remove(writer.get(), at_writer, id, rows[id]);
      rows.erase(id);
    } else {
      const Row next = row_of(id, static_cast<uint32_t>(i), 100);
      status = update(writer.get(), at_writer, id, rows[id], id, next);
      rows[id] = next;
    }
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(writer->commit(Durability::kNoSync).ok());
    if (i % 1000 == 0) cluster.purge();
    if (i % std::max<uint64_t>(3000, many / 100) == 0) {
      const auto seen = scan(reader.get(), at_reader, static_cast<uint32_t>(i / 3000 % 3));
      ASSERT_TRUE(seen.ok()) << seen.status();
      ASSERT_TRUE(*seen == before);
    }
  }
  cluster.purge();
  EXPECT_LT(trxs->all_visible_below(), many / 2);
  const auto seen = scan(reader.get(), at_reader);
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_TRUE(*seen == before);
  ASSERT_TRUE(reader->commit().ok());

  cluster.purge();
  EXPECT_GT(trxs->all_visible_below(), many);
  EXPECT_EQ(trxs->history_length(), 0u);
  // Entries of status pages that are gone now count as visible, on both nodes.
  reader->begin(Isolation::kRepeatableRead);
  for (const uint32_t index : {0u, 1u, 2u})
    EXPECT_TRUE(*scan(reader.get(), at_reader, index) == rows) << index;
  ASSERT_TRUE(reader->commit().ok());
  expect_consistent(cluster.kernel(2), at_reader);
  expect_merged_logs_make_pages(&cluster);
}

// T7, of a node that is away: nobody can be asked about transactions whose entries are gone, and
// its space is not open here. The bound is in its header all the same.
TEST(SeveralKernels, WhoStartsWhileAnotherNodeIsAwayKnowsItsTruncatedTransactions) {
  Cluster cluster(2, {"t"}, false);
  constexpr uint64_t kRows = 20;
  {
    auto writer = cluster.kernel(1)->new_session();
    const TableRef table = cluster.table(writer.get());
    writer->begin(Isolation::kRepeatableRead);
    for (uint64_t id = 1; id <= kRows; ++id)
      ASSERT_TRUE(insert(writer.get(), table, id, row_of(id, 0, 100)).ok());
    ASSERT_TRUE(writer->commit().ok());
    // More transactions than a group of status pages holds; the other rows stay as they are.
    for (uint32_t i = 1; i <= 17000; ++i) {
      writer->begin(Isolation::kRepeatableRead);
      ASSERT_TRUE(update(writer.get(), table, 1, row_of(1, i - 1, 100), 1, row_of(1, i, 100)).ok());
      ASSERT_TRUE(writer->commit(Durability::kNoSync).ok());
      if (i % 1000 == 0) cluster.purge();
    }
    cluster.purge();
    EXPECT_GT(cluster.impl(1)->trxs->all_visible_below(), 17000u);
  }
  cluster.stop(1);
  cluster.stop(2);
  cluster.start(2);
  if (HasFatalFailure()) return;
  auto reader = cluster.kernel(2)->new_session();
  const TableRef table = cluster.table(reader.get());
  ASSERT_NE(table, nullptr);
  reader->begin(Isolation::kRepeatableRead);
  const auto seen = scan(reader.get(), table);
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(seen->size(), kRows);
  ASSERT_TRUE(reader->commit().ok());
}

uint64_t records_of(KernelImpl* k, const Table& table, uint32_t index) {
  uint64_t count = 0;
  Mtr mtr(k->pool.get(), k->log.get());
  TreeCursor cursor(&k->row.tree, tree_of(table, index), &mtr);
  EXPECT_TRUE(cursor.seek(Bytes(), LatchMode::kShared).ok());
  EXPECT_TRUE(cursor.settle().ok());
  while (!cursor.at_end()) {
    ++count;
    EXPECT_TRUE(cursor.next().ok());
  }
  return count;
}

// MW2: a purge on one node has passed by a deleted record because another node's change lay on top.
// When that change is rolled back the record goes with it, however little that node has heard.
TEST(SeveralKernels, RollbackTakesADeletedRecordAwayThatAnotherNodesPurgeHasPassed) {
  Cluster cluster(2, {"t"}, false);
  auto deleter = cluster.kernel(1)->new_session();
  auto inserter = cluster.kernel(2)->new_session();
  const TableRef at_deleter = cluster.table(deleter.get());
  const TableRef at_inserter = cluster.table(inserter.get());
  for (const bool deletes : {false, true}) {
    deleter->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE((deletes ? remove(deleter.get(), at_deleter, 1, row_of(1, 1, 10))
                         : insert(deleter.get(), at_deleter, 1, row_of(1, 1, 10)))
                    .ok());
    ASSERT_TRUE(deleter->commit().ok());
  }
  inserter->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(inserter.get(), at_inserter, 1, row_of(1, 2, 10)).ok());
  cluster.hear(1);  // and node 2 hears nothing
  ASSERT_TRUE(cluster.kernel(1)->run_purge(1000).ok());
  EXPECT_EQ(cluster.impl(1)->trxs->history_length(), 0u);
  ASSERT_TRUE(inserter->rollback().ok());
  for (const uint32_t index : {0u, 1u})
    EXPECT_EQ(records_of(cluster.impl(2), *at_inserter, index), 0u);
}

// Writers that share pages but no rows, readers on every node. A writer's two marks change in one
// transaction: whoever sees one sees the other, and never an older pair than one it was told of.
class Snapshots {
 public:
  Snapshots(Cluster* cluster, uint64_t seed) : cluster_(cluster), seed_(seed) {}

  void run(uint64_t milliseconds) {
    std::vector<std::thread> threads;
    const uint64_t stop_us = monotonic_us() + milliseconds * 1000;
    for (uint8_t node = 1; node <= cluster_->nodes(); ++node) {
      for (uint64_t i = 0; i < kWritersPerNode; ++i)
        threads.emplace_back([=, this] { write(node, (node - 1) * kWritersPerNode + i, stop_us); });
      threads.emplace_back([=, this] { read(node, stop_us); });
    }
    threads.emplace_back([=, this] {
      for (uint8_t node = 0; monotonic_us() < stop_us; node = (node + 1) % cluster_->nodes()) {
        cluster_->hear(node + 1);
        std::this_thread::yield();
      }
    });
    for (std::thread& thread : threads) thread.join();
  }
  [[nodiscard]] uint64_t commits() const { return commits_.load(); }

  // Everybody has ended: all nodes see what the writers have committed.
  void expect_all() {
    Rows all;
    for (const Rows& rows : committed_rows_) all.insert(rows.begin(), rows.end());
    for (uint8_t node = 1; node <= cluster_->nodes(); ++node) {
      auto session = cluster_->kernel(node)->new_session();
      const TableRef table = cluster_->table(session.get());
      session->begin(Isolation::kRepeatableRead);
      for (const uint32_t index : {0u, 1u, 2u}) {
        const auto seen = scan(session.get(), table, index);
        ASSERT_TRUE(seen.ok()) << seen.status();
        EXPECT_TRUE(*seen == all) << "node " << int{node} << ", index " << index;
      }
      ASSERT_TRUE(session->commit().ok());
      expect_consistent(cluster_->kernel(node), table);
    }
  }

 private:
  static constexpr uint64_t kWritersPerNode = 2;
  static constexpr uint64_t kWritersMax = kWritersPerNode * kNodesMax;
  static constexpr uint64_t kIdsPerWriter = 120;

  [[nodiscard]] uint64_t writers() const { return kWritersPerNode * cluster_->nodes(); }
  // Of all writers in turns, so that their rows lie in the same leaves.
  [[nodiscard]] uint64_t id_of(uint64_t writer, uint64_t i) const {
    return 1 + i * writers() + writer;
  }

  void write(uint8_t node, uint64_t writer, uint64_t stop_us) {
    Rng rng(seed_ * 1000 + writer);
    auto session = cluster_->kernel(node)->new_session();
    const TableRef table = cluster_->table(session.get());
    Rows& rows = committed_rows_[writer];
    uint32_t mark = 0;
    while (monotonic_us() < stop_us && !::testing::Test::HasFailure()) {
      session->begin(Isolation::kRepeatableRead);
      Rows after = rows;
      ++mark;
      const auto change = [&](uint64_t id, uint32_t group, bool may_remove) -> Status {
        Row next = row_of(id, group, rng.below(400));
        if (rng.one_in(40)) next.blob.assign(rng.below(30000), 'b');
        const auto it = after.find(id);
        if (it == after.end()) {
          STRATA_RETURN_IF_ERROR(insert(session.get(), table, id, next));
        } else if (may_remove && rng.one_in(2)) {
          STRATA_RETURN_IF_ERROR(remove(session.get(), table, id, it->second));
          after.erase(it);
          return ok_status();
        } else {
          STRATA_RETURN_IF_ERROR(update(session.get(), table, id, it->second, id, next));
        }
        after[id] = next;
        return ok_status();
      };
      Status status = change(id_of(writer, 0), mark, false);
      for (uint64_t i = rng.below(6); i > 0 && status.ok(); --i)
        status = change(id_of(writer, 2 + rng.below(kIdsPerWriter - 2)), mark, true);
      if (status.ok()) status = change(id_of(writer, 1), mark, false);
      ASSERT_TRUE(status.ok()) << status;
      if (rng.one_in(6)) {
        ASSERT_TRUE(session->rollback().ok());
        --mark;
        continue;
      }
      ASSERT_TRUE(session->commit().ok());
      rows = std::move(after);
      marks_[writer].store(mark);
      commits_.fetch_add(1);
    }
  }

  void read(uint8_t node, uint64_t stop_us) {
    Rng rng(seed_ * 1000 + 500 + node);
    auto session = cluster_->kernel(node)->new_session();
    const TableRef table = cluster_->table(session.get());
    while (monotonic_us() < stop_us && !::testing::Test::HasFailure()) {
      std::array<uint32_t, kWritersMax> told{};
      for (uint64_t w = 0; w < writers(); ++w) told[w] = marks_[w].load();
      session->begin(Isolation::kRepeatableRead);
      ASSERT_TRUE(session->open_view().ok());
      Rows first;
      for (uint64_t look = 0, looks = 1 + rng.below(4); look < looks; ++look) {
        const auto seen =
            scan(session.get(), table, static_cast<uint32_t>(rng.below(3)), rng.one_in(3));
        ASSERT_TRUE(seen.ok()) << seen.status();
        if (look == 0) first = *seen;
        ASSERT_TRUE(*seen == first) << "a view has changed its mind";
      }
      for (uint64_t w = 0; w < writers(); ++w) {
        const auto a = first.find(id_of(w, 0));
        const auto b = first.find(id_of(w, 1));
        ASSERT_EQ(a == first.end(), b == first.end());
        const uint32_t mark = a == first.end() ? 0 : a->second.group;
        ASSERT_EQ(mark, b == first.end() ? 0 : b->second.group);
        ASSERT_GE(mark, told[w]) << "a commit that was told of is not seen";
      }
      ASSERT_TRUE(session->commit().ok());
    }
  }

  Cluster* const cluster_;
  const uint64_t seed_;
  std::array<std::atomic<uint32_t>, kWritersMax> marks_{};
  std::array<Rows, kWritersMax> committed_rows_;
  std::atomic<uint64_t> commits_{0};
};

TEST(SeveralKernels, SnapshotsAreTheSameOnEveryNodeWhileAllWrite) {
  const uint64_t seed = environment("STRATA_SEED", 42);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  const uint64_t milliseconds = environment("STRATA_SECONDS", kSeconds) * 1000;
  for (const uint8_t nodes : {2, 3}) {
    Cluster cluster(nodes);
    Snapshots work(&cluster, seed + nodes);
    work.run(milliseconds / 2);
    if (HasFailure()) return;
    EXPECT_GT(work.commits(), 0u);
    cluster.purge();
    work.expect_all();
    expect_merged_logs_make_pages(&cluster);
    std::printf("%d nodes: %llu commits, %llu pages taken\n", nodes,
                static_cast<unsigned long long>(work.commits()),
                static_cast<unsigned long long>(cluster.page_transfers()));
  }
}

// Adds to the row's group what it is given, under an exclusive lock.
Status add_to(Session* session, const TableRef& table, uint64_t id, uint32_t amount) {
  STRATA_ASSIGN_OR_RETURN(const Row before, get_row(session, table, id, LockMode::kExclusive));
  Row after = before;
  after.group += amount;
  return update(session, table, id, before, id, after);
}

void fill(Cluster* cluster, uint64_t rows) {
  auto session = cluster->kernel(1)->new_session();
  const TableRef table = cluster->table(session.get());
  session->begin(Isolation::kRepeatableRead);
  for (uint64_t id = 1; id <= rows; ++id)
    ASSERT_TRUE(insert(session.get(), table, id, row_of(id, 0, 200)).ok());
  ASSERT_TRUE(session->commit().ok());
}

// MW4: who waits for a transaction of another node wakes when that one ends, and then finds what it
// has written; at once, not after a while.
TEST(SeveralKernels, WaiterOnAnotherNodeIsWokenByTheEndOfTheHolder) {
  Cluster cluster(2);
  fill(&cluster, 10);
  auto holder = cluster.kernel(1)->new_session();
  auto waiter = cluster.kernel(2)->new_session();
  const TableRef at_holder = cluster.table(holder.get());
  const TableRef at_waiter = cluster.table(waiter.get());
  for (const bool commits : {true, false}) {
    holder->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(add_to(holder.get(), at_holder, 5, 1).ok());
    std::thread waiting([&] {
      waiter->begin(Isolation::kRepeatableRead);
      EXPECT_TRUE(add_to(waiter.get(), at_waiter, 5, 10).ok());
      EXPECT_TRUE(waiter->commit().ok());
    });
    ASSERT_TRUE(wait_until([&] { return !cluster.row_locks()->describe(1).empty(); }));
    ASSERT_TRUE((commits ? holder->commit() : holder->rollback()).ok());
    waiting.join();
    holder->begin(Isolation::kReadCommitted);
    const auto row = get_row(holder.get(), at_holder, 5, LockMode::kNone);
    ASSERT_TRUE(row.ok()) << row.status();
    EXPECT_EQ(row->group, commits ? 11u : 21u);
    ASSERT_TRUE(holder->commit().ok());
  }
  EXPECT_GT(cluster.reads_of_others(2), 0u);
}

// RW22 over nodes: what another node has committed since the view is neither changed nor locked,
// also when its page is read again only then.
TEST(SeveralKernels, SnapshotIsolationRefusesWhatAnotherNodeHasChanged) {
  Cluster cluster(2);
  fill(&cluster, 10);
  auto other = cluster.kernel(1)->new_session();
  auto reader = cluster.kernel(2)->new_session();
  const TableRef at_other = cluster.table(other.get());
  const TableRef at_reader = cluster.table(reader.get());
  const auto refused = [&](const std::function<Status()>& touch) {
    reader->begin(Isolation::kRepeatableRead);
    reader->set_refuses_unseen(true);
    ASSERT_TRUE(reader->open_view().ok());
    other->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(add_to(other.get(), at_other, 4, 1).ok());
    ASSERT_TRUE(other->commit().ok());
    EXPECT_TRUE(add_to(reader.get(), at_reader, 5, 1).ok());
    const Status status = touch();
    EXPECT_TRUE(is_row_changed(status)) << status;
    EXPECT_TRUE(reader->must_rollback());
    ASSERT_TRUE(reader->rollback().ok());
  };
  refused([&] { return add_to(reader.get(), at_reader, 4, 10); });
  for (const LockMode mode : {LockMode::kShared, LockMode::kExclusive})
    refused([&] { return get_row(reader.get(), at_reader, 4, mode).status(); });
  reader->begin(Isolation::kRepeatableRead);
  reader->set_refuses_unseen(true);
  ASSERT_TRUE(reader->open_view().ok());
  EXPECT_TRUE(add_to(reader.get(), at_reader, 4, 10).ok());
  ASSERT_TRUE(reader->commit().ok());
}

// A shared lock on one node keeps a writer of another out until it ends; NOWAIT tells at once.
TEST(SeveralKernels, SharedLockKeepsWritersOfOtherNodesOut) {
  Cluster cluster(2);
  fill(&cluster, 10);
  auto reader = cluster.kernel(1)->new_session();
  auto writer = cluster.kernel(2)->new_session();
  const TableRef at_reader = cluster.table(reader.get());
  const TableRef at_writer = cluster.table(writer.get());
  reader->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(get_row(reader.get(), at_reader, 3, LockMode::kShared).ok());
  writer->set_lock_wait_timeout_us(0);
  writer->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(is_lock_wait_timeout(add_to(writer.get(), at_writer, 3, 1)));
  ASSERT_TRUE(writer->rollback().ok());
  ASSERT_TRUE(reader->commit().ok());
  writer->set_lock_wait_timeout_us(10'000'000);  // that it is released may still be on its way
  writer->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(add_to(writer.get(), at_writer, 3, 1).ok());
  ASSERT_TRUE(writer->commit().ok());
}

// L3 over nodes: of two that wait for each other one is told so at once, and the other goes on.
// A scan that locks would hold the rows of a leaf as one run, which only its own node knows.
TEST(SeveralKernels, WhatAScanHoldsOtherNodesDoNotChange) {
  constexpr uint64_t kRows = 60;
  Cluster cluster(2);
  fill(&cluster, kRows);
  for (const LockMode mode : {LockMode::kExclusive, LockMode::kShared}) {
    auto reader = cluster.kernel(1)->new_session();
    auto writer = cluster.kernel(2)->new_session();
    const TableRef at_writer = cluster.table(writer.get());
    reader->begin(Isolation::kRepeatableRead);
    TableCursor cursor(reader.get(), cluster.table(reader.get()), 0);
    cursor.set_lock_mode(mode);
    uint64_t seen = 0;
    ASSERT_TRUE(cursor.seek({}).ok());
    while (cursor.valid()) {
      bool gone = false;
      ASSERT_TRUE(cursor.fetch(&gone).ok());
      seen += gone ? 0 : 1;
      ASSERT_TRUE(cursor.next().ok());
    }
    ASSERT_EQ(seen, kRows);
    writer->set_lock_wait_timeout_us(0);
    for (uint64_t id = 1; id <= kRows; ++id) {
      writer->begin(Isolation::kRepeatableRead);
      EXPECT_TRUE(is_lock_wait_timeout(add_to(writer.get(), at_writer, id, 1))) << id;
      ASSERT_TRUE(writer->rollback().ok());
    }
    ASSERT_TRUE(reader->commit().ok());
    writer->set_lock_wait_timeout_us(10'000'000);
    writer->begin(Isolation::kRepeatableRead);
    EXPECT_TRUE(add_to(writer.get(), at_writer, 7, 1).ok());
    ASSERT_TRUE(writer->commit().ok());
  }
}

TEST(SeveralKernels, DeadlockOverTwoNodesHasOneVictim) {
  Cluster cluster(2);
  fill(&cluster, 10);
  std::unique_ptr<Session> sessions[2];
  TableRef tables[2];
  for (uint8_t i = 0; i < 2; ++i) {
    sessions[i] = cluster.kernel(i + 1)->new_session();
    tables[i] = cluster.table(sessions[i].get());
    sessions[i]->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(add_to(sessions[i].get(), tables[i], 1 + i, 1).ok());
  }
  std::atomic<int> victims{0};
  const uint64_t start_us = monotonic_us();
  const auto cross = [&](uint8_t i) {
    const Status status = add_to(sessions[i].get(), tables[i], 2 - i, 1);
    if (is_deadlock(status)) {
      ++victims;
      EXPECT_TRUE(sessions[i]->rollback().ok());
    } else {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(sessions[i]->commit().ok());
    }
  };
  std::thread first([&] { cross(0); });
  std::thread second([&] { cross(1); });
  first.join();
  second.join();
  EXPECT_EQ(victims.load(), 1);
  EXPECT_LT(monotonic_us() - start_us, 20'000'000u);  // not by the timeout
}

// Everybody adds to the same few rows in any order, on every node; a node may crash and come back
// meanwhile. What was committed is there, exactly once; what was under way when a node crashed is
// not.
class Counters {
 public:
  static constexpr uint64_t kRows = 24;
  static constexpr uint64_t kThreadsPerNode = 2;

  Counters(Cluster* cluster, uint64_t seed) : cluster_(cluster), seed_(seed) {}

  void run(uint64_t milliseconds, bool crashes) {
    const uint64_t stop_us = monotonic_us() + milliseconds * 1000;
    std::vector<std::thread> keepers;
    std::atomic<bool> ended{false};
    for (uint8_t node = 1; node <= cluster_->nodes(); ++node)
      keepers.emplace_back([=, this] { keep(node, stop_us, crashes && node != 1); });
    std::thread heartbeat([&] {
      for (uint8_t node = 0; !ended.load(); node = (node + 1) % cluster_->nodes()) {
        cluster_->hear(node + 1);
        std::this_thread::yield();
      }
    });
    for (std::thread& keeper : keepers) keeper.join();
    ended.store(true);
    heartbeat.join();
  }
  void expect_all() {
    for (uint8_t node = 1; node <= cluster_->nodes(); ++node) {
      auto session = cluster_->kernel(node)->new_session();
      const TableRef table = cluster_->table(session.get());
      session->begin(Isolation::kRepeatableRead);
      for (uint64_t id = 1; id <= kRows; ++id) {
        const auto row = get_row(session.get(), table, id, LockMode::kNone);
        ASSERT_TRUE(row.ok()) << row.status();
        EXPECT_EQ(row->group, added_[id].load()) << "node " << int{node} << ", row " << id;
      }
      ASSERT_TRUE(session->commit().ok());
      expect_consistent(cluster_->kernel(node), table);
    }
  }
  std::atomic<uint64_t> commits{0}, deadlocks{0}, crashes{0}, cut_off{0};

 private:
  // One node's life: threads that work, and now and then a crash and another life.
  void keep(uint8_t node, uint64_t stop_us, bool may_crash) {
    Rng rng(seed_ * 100 + node);
    for (uint64_t life = 0; monotonic_us() < stop_us && !::testing::Test::HasFailure(); ++life) {
      const uint64_t end_us =
          may_crash ? std::min(stop_us, monotonic_us() + 20'000 + rng.below(200'000)) : stop_us;
      const bool crash = end_us < stop_us;
      std::vector<std::thread> threads;
      for (uint64_t i = 0; i < kThreadsPerNode; ++i)
        threads.emplace_back(
            [=, this] { work(node, seed_ * 1000 + life * 64 + node * 8 + i, end_us, crash); });
      for (std::thread& thread : threads) thread.join();
      if (!crash) continue;
      cluster_->crash(node);
      ++crashes;
      cluster_->start(node);
    }
  }
  void work(uint8_t node, uint64_t seed, uint64_t end_us, bool crash) {
    Rng rng(seed);
    auto session = cluster_->kernel(node)->new_session();
    const TableRef table = cluster_->table(session.get());
    session->set_lock_wait_timeout_us(5'000'000);
    while (!::testing::Test::HasFailure()) {
      session->begin(rng.one_in(4) ? Isolation::kSerializable : Isolation::kRepeatableRead);
      std::map<uint64_t, uint32_t> added;
      Status status;
      bool over = false;
      for (uint64_t i = 1 + rng.below(4); i > 0 && status.ok() && !over; --i) {
        const uint64_t id = 1 + rng.below(kRows);
        if (rng.one_in(5)) {
          status = get_row(session.get(), table, id, LockMode::kShared).status();
        } else {
          const auto amount = static_cast<uint32_t>(1 + rng.below(9));
          status = add_to(session.get(), table, id, amount);
          added[id] += amount;
        }
        over = monotonic_us() >= end_us;
      }
      if (over && crash) {  // the transaction is under way for ever
        ++cut_off;
        bury(std::move(session));
        return;
      }
      if (!status.ok()) {
        ASSERT_TRUE(is_deadlock(status) || is_lock_wait_timeout(status)) << status;
        ++deadlocks;
        ASSERT_TRUE(session->rollback().ok());
      } else if (rng.one_in(8)) {
        ASSERT_TRUE(session->rollback().ok());
      } else {
        status = session->commit();
        ASSERT_TRUE(status.ok()) << status;
        for (const auto& [id, amount] : added) added_[id].fetch_add(amount);
        ++commits;
      }
      if (over) return;
    }
  }
  Cluster* const cluster_;
  const uint64_t seed_;
  std::array<std::atomic<uint32_t>, kRows + 1> added_{};
};

void count_on(uint8_t nodes, bool crashes, uint64_t milliseconds, uint64_t seed) {
  Cluster cluster(nodes);
  fill(&cluster, Counters::kRows);
  Counters work(&cluster, seed);
  work.run(milliseconds, crashes);
  if (::testing::Test::HasFailure()) return;
  EXPECT_GT(work.commits.load(), 0u);
  cluster.purge();
  work.expect_all();
  expect_merged_logs_make_pages(&cluster);
  std::printf("%d nodes: %llu commits, %llu victims and timeouts, %llu crashes, %llu cut off\n",
              nodes, static_cast<unsigned long long>(work.commits.load()),
              static_cast<unsigned long long>(work.deadlocks.load()),
              static_cast<unsigned long long>(work.crashes.load()),
              static_cast<unsigned long long>(work.cut_off.load()));
}

TEST(SeveralKernels, NothingIsLostWhenAllNodesChangeTheSameRows) {
  const uint64_t seed = environment("STRATA_SEED", 42);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  const uint64_t milliseconds = environment("STRATA_SECONDS", kSeconds) * 1000;
  for (const uint8_t nodes : {2, 3}) {
    count_on(nodes, false, milliseconds / 2, seed + nodes);
    if (HasFailure()) return;
  }
}

TEST(SeveralKernels, CrashOfOneNodeLosesNothingAndStopsTheOthersOnlyForItsRows) {
  const uint64_t seed = environment("STRATA_SEED", 42);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  count_on(3, true, environment("STRATA_SECONDS", kSeconds) * 1000, seed);
}

// MW11, MW12: values and hidden row ids are given out once, whichever node does and whoever
// crashes.
TEST(SeveralKernels, NumbersAreGivenOutOnceOverAllNodesAndCrashes) {
  Cluster cluster(3, {"t"}, false);
  std::set<uint64_t> values;
  std::set<uint64_t> row_ids;
  uint64_t explicit_value = 0;
  for (int life = 0; life < 3; ++life) {
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (uint8_t node = 1; node <= 3; ++node) {
      threads.emplace_back([&, node] {
        auto session = cluster.kernel(node)->new_session();
        const TableRef table = cluster.table(session.get());
        ASSERT_EQ(table->next_row_id() >> 56, node);
        Rng rng(node + static_cast<uint64_t>(life) * 10);
        for (int i = 0; i < 300; ++i) {
          const uint64_t step = 1 + rng.below(3);
          const uint64_t count = 1 + rng.below(5);
          const uint64_t first =
              table->reserve_auto_increment(1 + rng.below(step), step, count, UINT64_MAX).value();
          ASSERT_NE(first, UINT64_MAX);
          ASSERT_GT(first, explicit_value);
          const uint64_t row_id = table->next_row_id();
          session->begin(Isolation::kRepeatableRead);
          for (uint64_t k = 0; k < count; ++k)
            ASSERT_TRUE(
                insert(session.get(), table, first + k * step, row_of(first + k * step, 1, 10))
                    .ok());
          const Row hidden_row = row_of(row_id, 2, 10);
          OwnedImage hidden(row_id, hidden_row, table->spec());
          hidden.image.auto_increment_used = 0;
          uint32_t duplicate = 0;
          ASSERT_TRUE(session->insert_row(table.get(), hidden.image, &duplicate).ok());
          ASSERT_TRUE(session->commit().ok());
          const std::lock_guard lock(mutex);
          for (uint64_t k = 0; k < count; ++k)
            ASSERT_TRUE(values.insert(first + k * step).second) << first + k * step;
          ASSERT_TRUE(row_ids.insert(row_id).second);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (HasFailure()) return;
    // What was taken and not used is lost with the node; a value that somebody has chosen himself
    // is passed by whoever comes back.
    auto session = cluster.kernel(1)->new_session();
    const TableRef table = cluster.table(session.get());
    explicit_value = 100000 * (static_cast<uint64_t>(life) + 1);
    session->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(insert(session.get(), table, explicit_value, row_of(explicit_value, 1, 10)).ok());
    ASSERT_TRUE(session->commit().ok());
    table->raise_auto_increment(explicit_value);
    session.reset();
    for (const uint8_t node : {2, 3}) {
      cluster.crash(node);
      cluster.start(node);
    }
  }
}

uint64_t free_pages_of(KernelImpl* k, const Table& table) {
  const auto use = k->spaces->use(SpaceId{table.spec().space_id});
  EXPECT_TRUE(use.ok());
  return use.ok() ? use->free_pages : 0;
}

// MW13: pages that leave a tree stay as they are while an operation of another node may know them.
TEST(SeveralKernels, PagesAreNotReusedWhileAnotherNodesOperationMayKnowThem) {
  Cluster cluster(2, {"t"}, false);
  auto session = cluster.kernel(1)->new_session();
  const TableRef table = cluster.table(session.get());
  KernelImpl* const first = cluster.impl(1);
  for (const bool fills : {true, false}) {
    for (uint64_t id = 1; id <= 400; ++id) {
      session->begin(Isolation::kRepeatableRead);
      const Row row = row_of(id, 1, 2000);
      ASSERT_TRUE(
          (fills ? insert(session.get(), table, id, row) : remove(session.get(), table, id, row))
              .ok());
      ASSERT_TRUE(session->commit().ok());
    }
  }
  {
    const SpaceManager::EpochGuard reading(cluster.impl(2)->spaces.get());
    for (int i = 0; i < 3; ++i) cluster.purge();
    const uint64_t before = free_pages_of(first, *table);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(first->spaces->reclaim().ok());
      EXPECT_EQ(free_pages_of(first, *table), before);
    }
  }
  const uint64_t held_back = free_pages_of(first, *table);
  // The other node says so in its own time.
  const uint64_t deadline_us = monotonic_us() + 60'000'000;
  while (free_pages_of(first, *table) <= held_back + 20 && monotonic_us() < deadline_us) {
    ASSERT_TRUE(first->spaces->reclaim().ok());
    std::this_thread::yield();
  }
  EXPECT_GT(free_pages_of(first, *table), held_back + 20);
  expect_consistent(cluster.kernel(2), table);
  expect_merged_logs_make_pages(&cluster);
}

// MW15, MW16: what one node does to a table the others see at their next look; a handle from before
// says that it is stale, and a view from before is told that it cannot read it.
TEST(SeveralKernels, OtherNodesSeeChangedDefinitionsAtOnce) {
  Cluster cluster(2, {"t"}, false);
  auto a = cluster.kernel(1)->new_session();
  auto b = cluster.kernel(2)->new_session();
  EXPECT_TRUE(is_not_found(b->open_table("test", "new").status()));
  a->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(a->create_table(table_spec("new"), nullptr).ok());
  ASSERT_TRUE(a->commit().ok());
  EXPECT_TRUE(cluster.kernel(2)->table_exists("test", "new"));
  const TableRef at_b = cluster.table(b.get(), "new");
  b->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(b.get(), at_b, 1, row_of(1, 1, 10)).ok());
  ASSERT_TRUE(b->commit().ok());

  // An index that node 1 adds is filled with what node 2 has written, and node 2 keeps it up.
  a->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(add_index(a.get(), "new", false).ok());
  ASSERT_TRUE(a->commit().ok());
  EXPECT_TRUE(at_b->stale());
  const TableRef wider = cluster.table(b.get(), "new");
  EXPECT_EQ(wider->spec().indexes.size(), at_b->spec().indexes.size() + 1);
  b->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(b.get(), wider, 2, row_of(2, 1, 10)).ok());
  ASSERT_TRUE(b->commit().ok());
  const TableRef at_a = cluster.table(a.get(), "new");
  a->begin(Isolation::kRepeatableRead);
  for (uint32_t index = 0; index < at_a->spec().indexes.size(); ++index)
    EXPECT_EQ(scan(a.get(), at_a, index)->size(), 2u) << index;
  ASSERT_TRUE(a->commit().ok());
  expect_consistent(cluster.kernel(1), at_a);

  // K14: a view from before a TRUNCATE elsewhere gets an error, not an empty table.
  b->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(b->open_view().ok());
  a->begin(Isolation::kRepeatableRead);
  TableRef fresh;
  ASSERT_TRUE(a->truncate_table("test", "new", &fresh).ok());
  ASSERT_TRUE(a->commit().ok());
  {
    const TableRef emptied = cluster.table(b.get(), "new");
    EXPECT_TRUE(is_definition_changed(scan(b.get(), emptied).status()));
    ASSERT_TRUE(b->commit().ok());
    b->begin(Isolation::kRepeatableRead);
    EXPECT_EQ(scan(b.get(), cluster.table(b.get(), "new"))->size(), 0u);
    ASSERT_TRUE(b->commit().ok());
  }
  b->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(b->drop_table("test", "new").ok());
  ASSERT_TRUE(b->commit().ok());
  EXPECT_TRUE(is_not_found(a->open_table("test", "new").status()));
  EXPECT_FALSE(cluster.kernel(1)->table_exists("test", "new"));
}

// All nodes create, fill, alter, empty, rename and drop the same few tables at once, and write to
// them. Nobody sees a table half changed, a row of another life of it, or an error but the ones
// that say what happened. STRATA_SECONDS chooses how long.
namespace {

// A server that remembers tables: it says when it lets go, and what it has been asked.
class Remembering final : public TableUsers {
 public:
  Status give_up(Bytes name, uint64_t timeout_us, const Forget& forget) override {
    ++asked;
    if (name != expected) ++others;
    if (in_use) return error_lock_wait_timeout();
    return forget(timeout_us);
  }
  void begins_to_wait(Bytes) noexcept override { ++waiting; }
  void has_waited(Bytes) noexcept override { --waiting; }

  std::atomic<bool> in_use{false};
  std::atomic<int> asked{0}, others{0}, waiting{0};
  const std::string expected = table_key("test", "t");
};

}  // namespace

// MW15: a node keeps a name for as long as somebody above uses the table.
TEST(SeveralKernels, WhoRemembersTablesAboveIsAskedFirst) {
  Remembering server;
  Cluster cluster(2, {"t"}, false);
  cluster.stop(2);
  cluster.above[1] = &server;
  cluster.start(2);
  auto reader = cluster.kernel(2)->new_session();
  const TableRef known = cluster.table(reader.get());  // in no transaction
  server.in_use = true;
  auto ddl = cluster.kernel(1)->new_session();
  ddl->set_lock_wait_timeout_us(50'000);
  ddl->begin(Isolation::kRepeatableRead);
  EXPECT_TRUE(is_lock_wait_timeout(ddl->lock_name("test", "t")));
  ASSERT_TRUE(ddl->rollback().ok());
  EXPECT_FALSE(known->stale());
  EXPECT_GT(server.asked, 0);
  EXPECT_EQ(server.others, 0);
  server.in_use = false;
  ddl->set_lock_wait_timeout_us(20'000'000);
  ddl->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(ddl->lock_name("test", "t").ok());
  EXPECT_TRUE(known->stale());
  // Nobody uses it before the transaction that has locked it ends.
  reader->set_lock_wait_timeout_us(50'000);
  EXPECT_TRUE(is_lock_wait_timeout(reader->open_table("test", "t").status()));
  ASSERT_TRUE(ddl->commit().ok());
  reader->set_lock_wait_timeout_us(20'000'000);
  EXPECT_TRUE(reader->open_table("test", "t").ok());
  reader->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(reader->lock_name("test", "t").ok());
  EXPECT_EQ(server.waiting, 0);
  ASSERT_TRUE(reader->commit().ok());
}

TEST(SeveralKernels, DdlOnAllNodesAtOnce) {
  const uint64_t seed = environment("STRATA_SEED", 42);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  const uint64_t stop_us = monotonic_us() + environment("STRATA_SECONDS", kSeconds) * 1'000'000;
  Cluster cluster(3, {"t"});
  std::atomic<uint64_t> changes{0}, rows{0}, refused{0};
  std::shared_mutex metadata[kNodesMax];
  const auto is_said = [](const Status& status) {
    return is_not_found(status) || is_duplicate_key(status) || is_lock_wait_timeout(status) ||
           is_deadlock(status) || is_definition_changed(status);
  };
  const auto work = [&](uint8_t node, uint64_t thread_seed) {
    Rng rng(thread_seed);
    auto session = cluster.kernel(node)->new_session();
    session->set_lock_wait_timeout_us(2'000'000);
    // However busy the machine is.
    while ((monotonic_us() < stop_us || changes.load() <= 10) &&
           monotonic_us() < stop_us + 60'000'000 && !HasFailure()) {
      const std::string name = "d" + std::to_string(rng.below(3));
      const uint64_t what = rng.below(8);
      // The server's metadata locks keep the sessions of one node apart.
      std::shared_lock reading(metadata[node], std::defer_lock);
      std::unique_lock changing(metadata[node], std::defer_lock);
      if (what < 3)
        changing.lock();
      else
        reading.lock();
      session->begin(Isolation::kRepeatableRead);
      Status status;
      bool is_ddl = true;
      switch (what) {
        case 0:
          status = session->create_table(table_spec(name), nullptr);
          break;
        case 1:
          status = rng.one_in(2) ? session->drop_table("test", name)
                                 : session->rename_table("test", name, "test",
                                                         "d" + std::to_string(rng.below(3)));
          break;
        case 2: {
          TableRef fresh;
          status = session->truncate_table("test", name, &fresh);
          break;
        }
        default: {
          is_ddl = false;
          auto table = session->open_table("test", name);
          status = table.status();
          for (uint64_t i = rng.below(6); i > 0 && status.ok(); --i) {
            const auto reserved = (*table)->reserve_auto_increment(1, 1, 1, UINT64_MAX);
            EXPECT_TRUE(reserved.ok())
                << "the table has gone under its user: " << reserved.status();
            const uint64_t id = reserved.value();
            status = insert(session.get(), *table, id, row_of(id, node, rng.below(300)));
            ++rows;
          }
          if (status.ok()) {
            const auto seen = scan(session.get(), *table, static_cast<uint32_t>(rng.below(3)));
            status = seen.status();
            if (!seen.ok()) break;
            for (const auto& [id, row] : *seen) EXPECT_EQ(row.unique_value, id);
          }
        }
      }
      if (status.ok() && !rng.one_in(6)) {
        status = session->commit();
        EXPECT_TRUE(status.ok()) << status;
        if (is_ddl) ++changes;
        continue;
      }
      EXPECT_TRUE(status.ok() || is_said(status)) << status;
      ++refused;
      EXPECT_TRUE(session->rollback().ok());
    }
  };
  std::vector<std::thread> threads;
  for (uint8_t node = 1; node <= 3; ++node)
    for (uint64_t i = 0; i < 2; ++i) threads.emplace_back(work, node, seed * 100 + node * 10 + i);
  for (std::thread& thread : threads) thread.join();
  if (HasFailure()) return;
  EXPECT_GT(changes.load(), 10u);
  std::printf("%llu changes of definitions, %llu rows, %llu rolled back\n",
              static_cast<unsigned long long>(changes.load()),
              static_cast<unsigned long long>(rows.load()),
              static_cast<unsigned long long>(refused.load()));
  // Every node sees the same tables with the same rows.
  for (int d = 0; d < 3; ++d) {
    const std::string name = "d" + std::to_string(d);
    std::optional<Rows> first;
    for (uint8_t node = 1; node <= 3; ++node) {
      ASSERT_EQ(cluster.kernel(node)->table_exists("test", name),
                cluster.kernel(1)->table_exists("test", name));
      if (!cluster.kernel(1)->table_exists("test", name)) continue;
      auto session = cluster.kernel(node)->new_session();
      session->begin(Isolation::kRepeatableRead);
      const TableRef table = cluster.table(session.get(), name);
      const auto seen = scan(session.get(), table);
      ASSERT_TRUE(seen.ok()) << seen.status();
      if (!first.has_value()) first = *seen;
      EXPECT_TRUE(*seen == *first);
      ASSERT_TRUE(session->commit().ok());
      expect_consistent(cluster.kernel(node), table);
    }
  }
}

}  // namespace
}  // namespace strata::engine
