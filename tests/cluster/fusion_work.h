// Work of several servers on one table, and what was committed of it, for tests: an oracle.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "base/rng.h"
#include "fusion_cluster.h"

namespace strata::testing {

using engine::Isolation;
using engine::LockMode;
using engine::Session;
using engine::TableRef;
using engine::testing::Row;
using engine::testing::Rows;

constexpr uint64_t kCounters = 8;  // rows that all servers add to
constexpr uint64_t kRowsPerServer = 150;

inline Status create_table(FusionServer* server) {
  auto session = server->kernel()->new_session();
  session->begin(Isolation::kRepeatableRead);
  STRATA_RETURN_IF_ERROR(session->create_table(engine::testing::table_spec("t"), nullptr));
  STRATA_ASSIGN_OR_RETURN(const TableRef table, session->open_table("test", "t"));
  for (uint64_t id = 1; id <= kCounters; ++id)
    STRATA_RETURN_IF_ERROR(engine::testing::insert(session.get(), table, id, Row{id, 0, "", ""}));
  return session->commit();
}

inline StatusOr<Rows> all_rows(FusionServer* server, uint32_t index = 0) {
  auto session = server->kernel()->new_session();
  STRATA_ASSIGN_OR_RETURN(const TableRef table, session->open_table("test", "t"));
  session->begin(Isolation::kRepeatableRead);
  auto rows = engine::testing::scan(session.get(), table, index);
  STRATA_RETURN_IF_ERROR(session->rollback());
  return rows;
}

// What servers do, and what was committed of it. A server's own rows lie between those of the
// others, in the same leaves; counters are added to by all.
class Work {
 public:
  explicit Work(uint64_t seed) : seed_(seed) {}

  // Until `stop`; with `cut_off` the last transaction is under way for ever.
  void run(FusionServer* server, size_t who, const std::atomic<bool>* stop, bool cut_off) {
    Rng rng(seed_ * 1000 + ++runs_);
    auto session = server->kernel()->new_session();
    session->set_lock_wait_timeout_us(20'000'000);
    const auto table = session->open_table("test", "t");
    ASSERT_TRUE(table.ok()) << table.status();
    while (!::testing::Test::HasFailure()) {
      const bool last = stop->load();
      const Status status = transaction(session.get(), *table, who, last && cut_off, &rng);
      if (last && cut_off) {
        engine::testing::bury(std::move(session));
        return;
      }
      ASSERT_TRUE(status.ok()) << status << ", server " << who;
      if (last) return;
    }
  }

  // Every index of every server that runs shows just that.
  void verify(FusionCluster* cluster) {
    Rows expected;
    for (const auto& [who, rows] : rows_) expected.insert(rows.begin(), rows.end());
    for (uint64_t id = 1; id <= kCounters; ++id)
      expected[id] = Row{id, static_cast<uint32_t>(counters_[id].load()), "", ""};
    for (const auto& server : cluster->servers) {
      if (!server->runs()) continue;
      for (const uint32_t index : {0u, 1u, 2u}) {
        const auto rows = all_rows(server.get(), index);
        ASSERT_TRUE(rows.ok()) << rows.status();
        EXPECT_EQ(rows->size(), expected.size());
        EXPECT_TRUE(*rows == expected) << "through index " << index << " of " << server->folder();
      }
      auto session = server->kernel()->new_session();
      engine::testing::expect_consistent(server->kernel(), *session->open_table("test", "t"));
    }
  }
  [[nodiscard]] uint64_t commits() const { return commits_.load(); }

 private:
  Status transaction(Session* session, const TableRef& table, size_t who, bool cut_off, Rng* rng) {
    std::map<uint64_t, uint32_t> added;
    Rows after;
    {
      const std::lock_guard lock(mutex_);
      after = rows_[who];
    }
    session->begin(Isolation::kRepeatableRead);
    Status status;
    for (uint64_t n = 1 + rng->below(6); n > 0 && status.ok(); --n)
      status = rng->one_in(4) ? add(session, table, rng, &added)
                              : change(session, table, who, rng, &after);
    if (cut_off) return ok_status();
    if (status.ok() && !rng->one_in(6)) {
      STRATA_RETURN_IF_ERROR(session->commit());
      ++commits_;
      for (const auto& [id, amount] : added) counters_[id] += amount;
      const std::lock_guard lock(mutex_);
      rows_[who] = std::move(after);
      return ok_status();
    }
    // E18. A rollback that fails, as for a moment without a lease, is done in the background.
    if (const Status undone = session->rollback(); !is_deadlock(undone))
      STRATA_RETURN_IF_ERROR(undone);
    return is_deadlock(status) || is_lock_wait_timeout(status) ? ok_status() : status;
  }
  static Status add(Session* session, const TableRef& table, Rng* rng,
                    std::map<uint64_t, uint32_t>* added) {
    const uint64_t id = 1 + rng->below(kCounters);
    const auto amount = static_cast<uint32_t>(1 + rng->below(9));
    STRATA_ASSIGN_OR_RETURN(const Row before,
                            engine::testing::get_row(session, table, id, LockMode::kExclusive));
    Row row = before;
    row.group += amount;
    STRATA_RETURN_IF_ERROR(engine::testing::update(session, table, id, before, id, row));
    (*added)[id] += amount;
    return ok_status();
  }
  static Status change(Session* session, const TableRef& table, size_t who, Rng* rng, Rows* rows) {
    const uint64_t id = 100 + rng->below(kRowsPerServer) * 8 + who;
    const auto found = rows->find(id);
    if (found != rows->end() && rng->one_in(4)) {
      STRATA_RETURN_IF_ERROR(engine::testing::remove(session, table, id, found->second));
      rows->erase(found);
      return ok_status();
    }
    Row row{id * 1000 + rng->below(1000), static_cast<uint32_t>(rng->below(50)),
            std::string(rng->below(rng->one_in(20) ? 3000 : 300), 'x'), ""};
    if (rng->one_in(40)) row.blob.assign(rng->below(30000), 'b');
    STRATA_RETURN_IF_ERROR(
        found == rows->end() ? engine::testing::insert(session, table, id, row)
                             : engine::testing::update(session, table, id, found->second, id, row));
    (*rows)[id] = row;
    return ok_status();
  }

  const uint64_t seed_;
  std::atomic<uint64_t> runs_{0}, commits_{0};
  std::mutex mutex_;
  std::map<size_t, Rows> rows_;
  std::atomic<uint64_t> counters_[kCounters + 1] = {};
};

// All that run, for so many more commits.
inline void work_for(FusionCluster* cluster, Work* work, uint64_t commits,
                     size_t victim = SIZE_MAX) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < cluster->servers.size(); ++i)
    if (cluster->servers[i]->runs())
      threads.emplace_back(
          [=, &stop] { work->run(cluster->servers[i].get(), i, &stop, i == victim); });
  const uint64_t until = work->commits() + commits;
  while (work->commits() < until && !::testing::Test::HasFailure())
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace strata::testing
