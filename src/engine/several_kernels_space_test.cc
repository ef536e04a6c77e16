// Goal: several kernels that make, empty, alter, rename and drop tables while they split, merge and
// free pages of the same trees never give one page to two, never lose one, and never write into a
// space that is gone. Method: threads on every node do random work on the same few tables; an
// oracle says which rows each life of each table has. Nodes may crash and come back meanwhile.
// Afterwards every node sees the oracle's rows through every index, CHECK finds nothing on any of
// them, and the merged logs rebuild every page. At last all rows are deleted, and what is left of
// each space is what its trees consist of: no page has been lost.
// STRATA_SEED chooses the work, STRATA_SECONDS how long it goes on.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/testing/cluster.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

constexpr uint8_t kNodes = 3;
constexpr uint64_t kThreadsPerNode = 2;
constexpr uint64_t kThreads = kNodes * kThreadsPerNode;
constexpr size_t kNames = 4;
constexpr uint64_t kIdsPerThread = 300;
constexpr size_t kIndexesMax = 5;  // with two that are added
#ifdef __SANITIZE_THREAD__
constexpr uint64_t kSeconds = 10;
#else
constexpr uint64_t kSeconds = 1;
#endif

std::string name_of(size_t i) { return "s" + std::to_string(i); }

// What comes of it when others have changed the table, or have its rows.
bool is_said(const Status& status) {
  return is_not_found(status) || is_duplicate_key(status) || is_lock_wait_timeout(status) ||
         is_deadlock(status) || is_definition_changed(status);
}

class Work {
 public:
  Work(Cluster* cluster, uint64_t seed) : cluster_(cluster), seed_(seed) {}

  // For so long, and until there was something of everything, however busy the machine is.
  void run(uint64_t milliseconds, bool crashes) {
    const uint64_t stop_us = monotonic_us() + milliseconds * 1000;
    const uint64_t deadline_us = stop_us + 60'000'000;
    std::vector<std::thread> keepers;
    for (uint8_t node = 1; node <= kNodes; ++node)
      keepers.emplace_back([=, this] { keep(node, crashes && node != 1); });
    for (uint8_t node = 0; !::testing::Test::HasFailure(); node = (node + 1) % kNodes) {
      cluster_->hear(node + 1);
      std::this_thread::yield();
      const uint64_t now_us = monotonic_us();
      const bool enough = commits.load() >= 20 && definitions.load() >= 5;
      if (now_us >= deadline_us || (now_us >= stop_us && enough)) break;
    }
    stopping_.store(true);
    std::atomic<bool> ended{false};
    std::thread heartbeat([&] {  // whoever ends may wait for it
      for (uint8_t node = 0; !ended.load(); node = (node + 1) % kNodes) {
        cluster_->hear(node + 1);
        std::this_thread::yield();
      }
    });
    for (std::thread& keeper : keepers) keeper.join();
    ended.store(true);
    heartbeat.join();
  }

  // Everybody has ended.
  void expect_all() {
    for (uint8_t node = 1; node <= kNodes && !::testing::Test::HasFailure(); ++node) {
      SCOPED_TRACE("node " + std::to_string(node));
      auto session = cluster_->kernel(node)->new_session();
      for (size_t i = 0; i < kNames; ++i) {
        ASSERT_EQ(cluster_->kernel(node)->table_exists("test", name_of(i)),
                  cluster_->kernel(1)->table_exists("test", name_of(i)));
        session->begin(Isolation::kRepeatableRead);
        const auto table = session->open_table("test", name_of(i));
        if (table.ok()) {
          const Rows rows = rows_of((*table)->spec().space_id);
          for (uint32_t index = 0; index < (*table)->spec().indexes.size(); ++index) {
            const auto seen = scan(session.get(), *table, index);
            ASSERT_TRUE(seen.ok()) << seen.status();
            EXPECT_TRUE(*seen == rows) << name_of(i) << ", index " << index << ": " << seen->size()
                                       << " rows, the oracle has " << rows.size();
          }
          expect_consistent(cluster_->kernel(node), *table);
        }
        ASSERT_TRUE(session->commit().ok());
      }
    }
  }

  // Each node deletes some of the rows; then the pages go that no tree needs, all of them.
  void delete_all_and_expect_no_page_lost() {
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([=, this] {
        auto session = cluster_->kernel(node_of(t))->new_session();
        for (size_t i = 0; i < kNames && !::testing::Test::HasFailure(); ++i) {
          session->begin(Isolation::kRepeatableRead);
          const auto table = session->open_table("test", name_of(i));
          if (table.ok()) {
            for (const auto& [id, row] : committed_[t][(*table)->spec().space_id])
              ASSERT_TRUE(remove(session.get(), *table, id, row).ok()) << id;
          }
          ASSERT_TRUE(session->commit().ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (::testing::Test::HasFailure()) return;
    const uint64_t deadline_us = monotonic_us() + 60'000'000;
    std::string left_over = "not looked yet";
    while (!left_over.empty() && monotonic_us() < deadline_us && !::testing::Test::HasFailure()) {
      cluster_->purge();
      for (uint8_t node = 1; node <= kNodes; ++node)
        ASSERT_TRUE(cluster_->impl(node)->spaces->reclaim().ok());
      left_over = pages_in_no_tree();
    }
    EXPECT_EQ(left_over, "");
  }

  std::atomic<uint64_t> commits{0}, definitions{0}, refused{0}, crashes{0};

 private:
  static uint8_t node_of(uint64_t thread) {
    return static_cast<uint8_t>(1 + thread / kThreadsPerNode);
  }
  // Of all threads in turns, so that their rows lie in the same leaves.
  static uint64_t id_of(uint64_t thread, uint64_t i) { return 1 + i * kThreads + thread; }

  Rows rows_of(uint32_t space) {
    Rows all;
    for (auto& lives : committed_) all.insert(lives[space].begin(), lives[space].end());
    return all;
  }

  // Of a table that is there, seen from every node; empty: none.
  std::string pages_in_no_tree() {
    std::string found;
    auto session = cluster_->kernel(1)->new_session();
    for (size_t i = 0; i < kNames; ++i) {
      session->begin(Isolation::kRepeatableRead);
      const auto table = session->open_table("test", name_of(i));
      if (table.ok()) {
        std::map<uint32_t, uint64_t> in_trees;  // by space
        for (uint32_t index = 0; index < (*table)->spec().indexes.size(); ++index) {
          TreeCheck check;
          const TreeId tree = tree_of(**table, index);
          EXPECT_TRUE(check_tree(&cluster_->impl(1)->row.tree, tree, nullptr, &check).ok());
          for (const std::string& problem : check.problems) ADD_FAILURE() << problem;
          in_trees[tree.root.space] += check.leaf_pages + check.inner_pages;
        }
        for (const auto& [space, pages] : in_trees) {
          for (uint8_t node = 1; node <= kNodes; ++node) {
            const auto allocated = cluster_->impl(node)->spaces->allocated_pages(SpaceId{space});
            EXPECT_TRUE(allocated.ok()) << allocated.status();
            if (!allocated.ok() || allocated->size() == pages) continue;
            found += "space " + std::to_string(space) + " has " +
                     std::to_string(allocated->size()) + " pages on node " + std::to_string(node) +
                     ", its trees have " + std::to_string(pages) + "; ";
          }
        }
      }
      EXPECT_TRUE(session->commit().ok());
    }
    return found;
  }

  // One node's life: threads that work, and now and then a crash and another life.
  void keep(uint8_t node, bool crash) {
    Rng rng(seed_ * 100 + node);
    for (uint64_t life = 0; !stopping_.load() && !::testing::Test::HasFailure(); ++life) {
      const uint64_t end_us = crash ? monotonic_us() + 50'000 + rng.below(300'000) : UINT64_MAX;
      std::vector<std::thread> threads;
      for (uint64_t t = (node - 1) * kThreadsPerNode; t < node * kThreadsPerNode; ++t)
        threads.emplace_back(
            [=, this] { work(t, seed_ * 1000 + life * kThreads + t, end_us, crash); });
      for (std::thread& thread : threads) thread.join();
      if (!crash || ::testing::Test::HasFailure()) continue;
      cluster_->crash(node);
      ++crashes;
      cluster_->start(node);
    }
  }

  void work(uint64_t thread, uint64_t seed, uint64_t end_us, bool crash) {
    Rng rng(seed);
    auto session = cluster_->kernel(node_of(thread))->new_session();
    session->set_lock_wait_timeout_us(2'000'000);
    while (!stopping_.load() && monotonic_us() < end_us && !::testing::Test::HasFailure()) {
      session->begin(Isolation::kRepeatableRead);
      if (rng.one_in(5))
        change_definition(thread, session.get(), &rng);
      else
        change_rows(thread, session.get(), &rng, false);
    }
    if (!crash || ::testing::Test::HasFailure()) return;
    if (rng.one_in(2)) {  // it is under way for ever
      session->begin(Isolation::kRepeatableRead);
      change_rows(thread, session.get(), &rng, true);
    }
    bury(std::move(session));
  }

  // The server's metadata locks keep the sessions of one node apart.
  std::shared_mutex& metadata(uint64_t thread, size_t name) {
    return metadata_[node_of(thread) - 1][name];
  }

  void change_definition(uint64_t thread, Session* session, Rng* rng) {
    const auto at = static_cast<size_t>(rng->below(kNames));
    const auto other = static_cast<size_t>(rng->below(kNames));
    const std::unique_lock first(metadata(thread, std::min(at, other)));
    std::unique_lock<std::shared_mutex> second;
    if (other != at) second = std::unique_lock(metadata(thread, std::max(at, other)));
    const std::string name = name_of(at);
    Status status;
    switch (rng->below(8)) {
      case 0:
      case 1:
      case 2:
        status = session->create_table(table_spec(name), nullptr);
        break;
      case 3:
        status = session->drop_table("test", name);
        break;
      case 4:
        status = session->rename_table("test", name, "test", name_of(other));
        break;
      case 5: {
        TableRef fresh;
        status = session->truncate_table("test", name, &fresh);
        break;
      }
      default: {
        const auto table = session->open_table("test", name);
        status = table.status();
        if (!table.ok()) break;
        const std::vector<IndexSpec>& indexes = (*table)->spec().indexes;
        // One that TRUNCATE has put into the table's space stays.
        const bool drops = indexes.back().own_space_id != 0 && rng->one_in(2);
        if (drops)
          status = drop_index(session, name, indexes.size() - 1);
        else if (indexes.size() < kIndexesMax)
          status = add_index(session, name, false);
      }
    }
    if (status.ok() && !rng->one_in(6)) {
      status = session->commit();
      EXPECT_TRUE(status.ok()) << status;
      ++definitions;
      return;
    }
    give_up(session, status);
  }

  void change_rows(uint64_t thread, Session* session, Rng* rng, bool stays_open) {
    const auto at = static_cast<size_t>(rng->below(kNames));
    const std::shared_lock using_it(metadata(thread, at));
    const auto table = session->open_table("test", name_of(at));
    Status status = table.status();
    Rows rows;
    const uint32_t space = table.ok() ? (*table)->spec().space_id : 0;
    if (table.ok()) {
      rows = committed_[thread][space];
      // Runs make leaves split and empty; their neighbours are other threads'.
      const bool removes = rng->one_in(3);
      const uint64_t first = rng->below(kIdsPerThread);
      const uint64_t count = 1 + rng->below(rng->one_in(4) ? 60 : 8);
      for (uint64_t i = 0; i < count && status.ok(); ++i) {
        const uint64_t id = id_of(thread, (first + i) % kIdsPerThread);
        status = change_row(session, *table, id, removes, rng, &rows);
      }
    }
    if (stays_open) return;
    if (!status.ok() || rng->one_in(8)) return give_up(session, status);
    status = session->commit();
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return;
    committed_[thread][space] = std::move(rows);
    ++commits;
  }

  static Status change_row(Session* session, const TableRef& table, uint64_t id, bool removes,
                           Rng* rng, Rows* rows) {
    const auto it = rows->find(id);
    if (removes) {
      if (it == rows->end()) return ok_status();
      STRATA_RETURN_IF_ERROR(remove(session, table, id, it->second));
      rows->erase(it);
      return ok_status();
    }
    Row next{id, static_cast<uint32_t>(rng->below(50)), std::string(rng->below(1500), 'x'), ""};
    if (rng->one_in(30)) next.blob.assign(rng->below(60'000), 'b');
    STRATA_RETURN_IF_ERROR(it == rows->end() ? insert(session, table, id, next)
                                             : update(session, table, id, it->second, id, next));
    (*rows)[id] = std::move(next);
    return ok_status();
  }

  void give_up(Session* session, const Status& status) {
    EXPECT_TRUE(status.ok() || is_said(status)) << status;
    ++refused;
    EXPECT_TRUE(session->rollback().ok());
  }

  Cluster* const cluster_;
  const uint64_t seed_;
  std::atomic<bool> stopping_{false};
  std::array<std::array<std::shared_mutex, kNames>, kNodes> metadata_;
  // By thread and life of a table, that is, its space: a thread's ids are its own.
  std::array<std::map<uint32_t, Rows>, kThreads> committed_;
};

void work_on(bool crashes) {
  const uint64_t seed = environment("STRATA_SEED", 42);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  Cluster cluster(kNodes, {"s0", "s1", "s2"});
  Work work(&cluster, seed);
  work.run(environment("STRATA_SECONDS", kSeconds) * 1000, crashes);
  if (::testing::Test::HasFailure()) return;
  EXPECT_GT(work.commits.load(), 0u);
  EXPECT_GT(work.definitions.load(), 0u);
  work.expect_all();
  if (::testing::Test::HasFailure()) return;
  work.delete_all_and_expect_no_page_lost();
  if (::testing::Test::HasFailure()) return;
  expect_merged_logs_make_pages(&cluster);
  std::printf(
      "%llu commits, %llu changes of definitions, %llu given up, %llu crashes, %llu pages taken\n",
      static_cast<unsigned long long>(work.commits.load()),
      static_cast<unsigned long long>(work.definitions.load()),
      static_cast<unsigned long long>(work.refused.load()),
      static_cast<unsigned long long>(work.crashes.load()),
      static_cast<unsigned long long>(cluster.page_transfers()));
}

TEST(SeveralKernelsSpace, SplitsDropsAndCreatesAtOnceLoseNoRowAndNoPage) { work_on(false); }

TEST(SeveralKernelsSpace, NorDoTheyWhenNodesCrashMeanwhile) { work_on(true); }

}  // namespace
}  // namespace strata::engine
