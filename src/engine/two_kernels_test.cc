// Two kernels in one process change the same pages in turns, through a test page-lock authority and
// a shared timestamp source. Their two logs, merged by llsn and replayed on an empty store, must
// give byte-identical pages, and a third kernel on the rebuilt store the same rows. This is the
// property that several writers will rest on (K7, K8).
#include <gtest/gtest.h>

#include <mutex>

#include "base/rng.h"
#include "bufpool/page_lock.h"
#include "engine/internal/kernel_impl.h"
#include "engine/testing/merged_logs.h"
#include "engine/testing/test_database.h"
#include "pagefile/local_page_source.h"
#include "wal/local_log_sink.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

class SharedClock : public TimestampSource {
 public:
  StatusOr<Cts> next() override { return Cts{++last_}; }
  StatusOr<Cts> current() override { return Cts{last_}; }
  Status raise_to(Cts at_least) override {
    last_ = std::max(last_, at_least.value);
    return ok_status();
  }

 private:
  uint64_t last_ = 1;
};

// Grants a page to one node at a time; the other node gives it up first (persists its log, writes
// the page).
class Authority {
 public:
  class Client : public PageLock {
   public:
    Client(Authority* authority, uint8_t node) : authority_(authority), node_(node) {}
    Status acquire(PageId id, LatchMode mode, Llsn* newest) override {
      *newest = Llsn{};
      return authority_->acquire(node_, id);
    }
    void forget(PageId) override {}

   private:
    Authority* authority_;
    uint8_t node_;
  };

  Status acquire(uint8_t node, PageId id) {
    uint8_t& holder = holders_[id];
    if (holder != node && holder != 0) {
      STRATA_RETURN_IF_ERROR(pools_[holder]->surrender(id));
      ++transfers;
    }
    holder = node;
    return ok_status();
  }

  std::map<PageId, uint8_t> holders_;
  std::map<uint8_t, BufferPool*> pools_;
  uint64_t transfers = 0;
};

KernelOptions node_options(FileSystem* fs, uint8_t node) {
  KernelOptions options = options_on(fs, "/node" + std::to_string(node));
  options.node = node;
  options.log_segment_bytes = 64u << 20;
  options.log_checkpoint_bytes = 1u << 30;
  return options;
}

TEST(TwoKernels, MergedLogsRebuildIdenticalPagesAndRows) {
  const uint64_t seed = environment("STRATA_SEED", 42);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  auto disk = make_sim_file_system();
  ASSERT_TRUE(disk->make_directory("/shared").ok());
  auto shared = open_local_page_source(disk.get(), {"/shared", false});
  ASSERT_TRUE(shared.ok());
  SharedClock clock;
  Authority authority;
  Authority::Client lock1(&authority, 1);
  Authority::Client lock2(&authority, 2);

  KernelSeams seams{shared->get(), &lock1, &clock, false};
  auto a = open_with_seams(node_options(disk.get(), 1), seams);
  ASSERT_TRUE(a.ok()) << a.status();
  authority.pools_[1] = (*a)->impl()->pool.get();
  auto session_a = (*a)->new_session();
  session_a->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(session_a->create_table(table_spec("t"), nullptr).ok());
  ASSERT_TRUE(session_a->commit().ok());

  seams.page_lock = &lock2;
  seams.attach = true;
  // Opening reads pages that the first node holds: its pool must be known to the authority before.
  auto b = open_with_seams(node_options(disk.get(), 2), seams);
  ASSERT_TRUE(b.ok()) << b.status();
  authority.pools_[2] = (*b)->impl()->pool.get();

  Rng rng(seed);
  Rows expected;
  std::unique_ptr<Session> sessions[2] = {std::move(session_a), (*b)->new_session()};
  TableRef tables[2];
  for (int i = 0; i < 2; ++i) {
    auto table = sessions[i]->open_table("test", "t");
    ASSERT_TRUE(table.ok()) << table.status();
    tables[i] = *table;
  }
  for (int turn = 0; turn < 400; ++turn) {
    const int who = turn % 2;
    Session* session = sessions[who].get();
    session->begin(Isolation::kRepeatableRead);
    Rows after = expected;
    for (uint64_t i = 0, n = 1 + rng.below(12); i < n; ++i) {
      const uint64_t id = 1 + rng.below(800);
      Row next{id * 10 + rng.below(5), static_cast<uint32_t>(rng.below(9)),
               std::string(rng.below(300), 'x'), ""};
      if (rng.one_in(30)) next.blob = std::string(rng.below(40000), 'b');
      Status status;
      if (after.count(id) == 0) {
        status = insert(session, tables[who], id, next);
        after[id] = next;
      } else if (rng.one_in(3)) {
        status = remove(session, tables[who], id, after[id]);
        after.erase(id);
      } else {
        status = update(session, tables[who], id, after[id], id, next);
        after[id] = next;
      }
      ASSERT_TRUE(status.ok()) << status;
    }
    if (rng.one_in(5)) {
      ASSERT_TRUE(session->rollback().ok());
    } else {
      ASSERT_TRUE(session->commit().ok());
      expected = std::move(after);
    }
    if (turn % 50 == 49) {
      session->begin(Isolation::kRepeatableRead);
      auto seen = scan(session, tables[who]);
      ASSERT_TRUE(seen.ok()) << seen.status();
      ASSERT_TRUE(*seen == expected);
      ASSERT_TRUE(session->commit().ok());
    }
  }
  EXPECT_GT(authority.transfers, 400u);

  for (auto* kernel : {a->get(), b->get()}) {
    KernelImpl* k = kernel->impl();
    ASSERT_TRUE(k->log->persist(k->log->next_lsn()).ok());
    ASSERT_TRUE(k->pool->write_back_below(k->log->next_lsn()).ok());
  }
  Replayed rebuilt = replay_merged({(*a)->impl()->sink, (*b)->impl()->sink});
  EXPECT_GT(rebuilt.groups, 2000u);
  expect_stored(shared->get(), rebuilt);
  EXPECT_GT(rebuilt.pages.size(), 30u);

  // A third node on the rebuilt store sees the same rows.
  auto empty_disk = make_sim_file_system();
  ASSERT_TRUE(empty_disk->make_directory("/shared").ok());
  auto store = open_local_page_source(empty_disk.get(), {"/shared", false});
  ASSERT_TRUE(store.ok());
  for (auto& [id, page] : rebuilt.pages) {
    ASSERT_TRUE((*store)->create_space(SpaceId{id.space}).ok());
    ASSERT_TRUE((*store)->grow_space(SpaceId{id.space}, id.number + 1).ok());
    seal_page(page.data());
    ASSERT_TRUE((*store)->write(id, page.data()).ok());
  }
  KernelSeams third{store->get(), nullptr, &clock, true};
  auto c = open_with_seams(node_options(empty_disk.get(), 3), third);
  ASSERT_TRUE(c.ok()) << c.status();
  auto session = (*c)->new_session();
  auto table = session->open_table("test", "t");
  ASSERT_TRUE(table.ok());
  session->begin(Isolation::kRepeatableRead);
  for (uint32_t index : {0u, 1u, 2u}) EXPECT_TRUE(*scan(session.get(), *table, index) == expected);
  EXPECT_TRUE(session->commit().ok());
}

}  // namespace
}  // namespace strata::engine
