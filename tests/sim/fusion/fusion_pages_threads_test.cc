// Goal: threads of three servers change and read the same pages through real buffer pools, page
// locks and slots, and no change is lost, nobody reads an older page than somebody was told of, no
// page leaves before its log; with pools so small that pages are evicted, and a memory node's pool
// so small that slots are taken back. And no data race under TSan.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "bufpool/pool_test_support.h"
#include "clients/fusion/testing/memory_region.h"
#include "pages_node.h"

namespace strata::sim {
namespace {

using testing::check_page;
using testing::fill_page;
using testing::MemoryLogSink;
using testing::MemoryPageSource;
using testing::PageVersion;
using testing::tiny_pool;
using testing::wait_until;

constexpr uint8_t kServers = 3;
constexpr uint32_t kShared = 60;
constexpr uint32_t kSpace = 300;
constexpr Epoch kEpoch{1};
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 300;
#else
constexpr int kOperations = 2000;
#endif

class AlwaysValid final : public clients::LeaseCheck {
 public:
  [[nodiscard]] bool valid(Epoch epoch) const noexcept override { return epoch == kEpoch; }
  [[nodiscard]] Epoch epoch() const noexcept override { return kEpoch; }
};

// Calls of which some get no answer, nor arrive, when the test says so.
class Calls final : public PageService {
 public:
  Calls(PagesNode* node, const proto::PageCaller& caller) : server_(node, caller) {}
  StatusOr<std::vector<proto::PageGrant>> ask(const std::vector<proto::PageAsk>& asks,
                                              uint64_t wait_us) override {
    if (wait_us != 0) ++waiting_asks;
    return server_.ask(asks, wait_us);
  }
  Status report(const std::vector<proto::PageReport>& reports, Epoch epoch) override {
    const bool gives_up = std::any_of(reports.begin(), reports.end(),
                                      [](const proto::PageReport& r) { return r.gives_up; });
    if (!gives_up || !loses_give_ups.load()) return server_.report(reports, epoch);
    ++lost;
    return error_peer_down();
  }
  StatusOr<std::vector<uint32_t>> take_slots(uint64_t request, uint32_t wanted, uint64_t wait_us,
                                             Epoch epoch) override {
    return server_.take_slots(request, wanted, wait_us, epoch);
  }
  StatusOr<std::vector<PageId>> adopt() override { return server_.adopt(); }
  Status adoption_ended(const proto::StreamPosition& end) override {
    return server_.adoption_ended(end);
  }
  Status write_back_below(StreamId stream, Lsn below) override {
    return server_.write_back_below(stream, below);
  }
  Status forget_space(SpaceId space) override { return server_.forget_space(space); }

  std::atomic<bool> loses_give_ups{false};
  std::atomic<uint64_t> lost{0};
  std::atomic<uint64_t> waiting_asks{0};

 private:
  PagesNode::Server server_;
};

struct Server {
  Server(PagesNode* node, uint8_t number, transport::Region* pool_region, PageSource* storage,
         uint64_t slot_us_max = 60'000'000, uint64_t ask_wait_us = 50'000,
         uint32_t ask_waits_max = 32)
      : id(number),
        service(node, proto::PageCaller{id, number, kEpoch}),
        log(std::make_unique<Log>(LogOptions{.buffer_bytes = 1u << 20}, &sink, Lsn{4096}, 0)) {
    clients::FusionPagesOptions options;
    options.stream = StreamId{number};
    options.look_us = 5'000;
    options.slots_at_once = 8;
    options.slot_us_max = slot_us_max;
    options.ask_wait_us = ask_wait_us;
    options.ask_waits_max = ask_waits_max;
    pages = std::make_unique<FusionPages>(
        options, kEpoch, &lease, &service,
        std::make_shared<clients::testing::MemoryRegion>(pool_region->data(), pool_region->bytes()),
        storage);
    node->joined(id, number, pages.get(), storage);
    EXPECT_TRUE(pages->begin().ok());
    auto made = BufferPool::create(tiny_pool(40, 1), pages->source(), pages.get(), log.get());
    EXPECT_TRUE(made.ok()) << made.status();
    pool = std::move(*made);
    pages->serve(pool.get());
  }
  void change(PageId page) {
    ASSERT_TRUE(log->reserve_capacity(64, false).ok());
    auto guard = pool->fix(page, LatchMode::kExclusive);
    ASSERT_TRUE(guard.ok()) << guard.status();
    PageVersion v;
    ASSERT_EQ(check_page(guard->page(), page, &v), "");
    LogReservation r;
    while (!log->reserve(64, log->image_floor(), Llsn{header_of(guard->page())->llsn}, &r)) {
    }
    log->copy(r, std::string(64, 'g'));
    fill_page(guard->mutable_page(), page, r.llsn.value, PageVersion{v.version + 1, 0});
    pool->note_modified(*guard, r.start, r.end, false);
    log->complete(r);
  }

  const NodeId id;
  AlwaysValid lease;
  Calls service;
  MemoryLogSink sink;
  std::unique_ptr<Log> log;
  std::unique_ptr<FusionPages> pages;
  std::unique_ptr<BufferPool> pool;
};

void fill_storage(MemoryPageSource* storage) {
  std::vector<char> bytes(kPageBytes);
  for (uint32_t i = 0; i < kShared; ++i) {
    const PageId page{kSpace, i};
    fill_page(bytes.data(), page, 1, PageVersion{0, 0});
    seal_page(bytes.data());
    ASSERT_TRUE(storage->write(page, bytes.data()).ok());
  }
}

uint64_t stored_version(MemoryPageSource* storage, PageId page) {
  std::vector<char> bytes(kPageBytes);
  EXPECT_TRUE(storage->read(page, Llsn{}, bytes.data()).ok());
  PageVersion v;
  EXPECT_EQ(check_page(bytes.data(), page, &v), "");
  return v.version;
}

// FH6, FU17: a page is in a slot and in no frame any more, and the memory node has not heard of it:
// its report is lost again and again. A checkpoint has to wait for it all the same: the log would
// be cut off behind a change that nobody but this server knows.
TEST(FusionPagesWaits, ACheckpointWaitsForWhatIsGivenUpAndNotReported) {
  MemoryPageSource storage;
  fill_storage(&storage);
  fusion::PagesOptions options;
  options.slots = 64;
  auto made = transport::Region::create_in_memory(uint64_t{options.slots} * kPageBytes, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<transport::Region> region = *std::move(made);
  PagesNode node(options, kEpoch, region);
  Server first(&node, 1, region.get(), &storage);
  Server second(&node, 2, region.get(), &storage);
  const PageId page{kSpace, 7};
  first.change(page);
  first.service.loses_give_ups.store(true);
  std::thread reader([&] {
    const auto guard = second.pool->fix(page, LatchMode::kShared);
    ASSERT_TRUE(guard.ok()) << guard.status();
    PageVersion v;
    EXPECT_EQ(check_page(guard->page(), page, &v), "");
    EXPECT_EQ(v.version, 1u);
  });
  EXPECT_TRUE(wait_until([&] { return first.service.lost.load() != 0; }));
  EXPECT_EQ(first.pool->dirty_count(), 0u);
  EXPECT_TRUE(first.pool->source()->sync_below(first.log->next_lsn()).ok());
  EXPECT_EQ(stored_version(&storage, page), 1u);
  first.service.loses_give_ups.store(false);
  reader.join();
  for (Server* const server : {&first, &second}) {
    server->pages->serve(nullptr);
    server->pool.reset();
    node.ended(server->id, server->id.value, false);
  }
  node.stop();
}

// FH12: who waits for a page that another server has gets it as the answer of its own call; with no
// room for calls that wait, or after a wait that was too short, by an event.
TEST(FusionPagesWaits, AGrantComesInTheCallThatAsksForIt) {
  MemoryPageSource storage;
  fill_storage(&storage);
  fusion::PagesOptions options;
  options.slots = 64;
  auto made = transport::Region::create_in_memory(uint64_t{options.slots} * kPageBytes, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<transport::Region> region = *std::move(made);
  PagesNode node(options, kEpoch, region);
  struct Case {
    uint64_t wait_us;
    uint32_t waits_max;
    bool in_its_call;
  };
  uint8_t number = 0;
  for (const Case one :
       {Case{60'000'000, 32, true}, Case{60'000'000, 0, false}, Case{1, 32, false}}) {
    Server first(&node, ++number, region.get(), &storage);
    Server second(&node, ++number, region.get(), &storage, 60'000'000, one.wait_us, one.waits_max);
    const PageId page{kSpace, number};
    first.change(page);
    const uint64_t before = node.grants_in_calls();
    {
      auto guard = first.pool->fix(page, LatchMode::kShared);  // it is not given up yet
      ASSERT_TRUE(guard.ok()) << guard.status();
      std::thread writer([&] { second.change(page); });
      EXPECT_TRUE(wait_until([&] { return first.pages->holds().counters().asked_back != 0; }));
      EXPECT_TRUE(one.in_its_call || wait_until([&] { return node.calls_that_wait() == 0; }));
      guard->release();
      writer.join();
    }
    EXPECT_EQ(second.service.waiting_asks.load() != 0, one.waits_max != 0);
    EXPECT_EQ(node.grants_in_calls() - before, one.in_its_call ? 1u : 0u);
    for (Server* const server : {&first, &second}) {
      server->pages->serve(nullptr);
      server->pool.reset();
      node.ended(server->id, server->id.value, false);
    }
  }
  node.stop();
}

// Storage takes nothing while `away`.
class StorageAway final : public MemoryPageSource {
 public:
  StorageAway() {
    on_write = [this](PageId, const char*) {
      return away.load() ? error_peer_down() : ok_status();
    };
  }
  std::atomic<bool> away{false};
};

// FH9: a statement that needs a frame, in a pool that is full of changed pages, goes on once
// storage is back, and so do the writers of two servers that share a memory node of a few slots.
TEST(FusionPagesWaits, WhoWritesWaitsForASlotUntilStorageIsBack) {
  StorageAway storage;
  fill_storage(&storage);
  fusion::PagesOptions options;
  options.slots = 16;
  auto made = transport::Region::create_in_memory(uint64_t{options.slots} * kPageBytes, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<transport::Region> region = *std::move(made);
  PagesNode node(options, kEpoch, region);
  Server first(&node, 1, region.get(), &storage, 600'000'000);
  Server second(&node, 2, region.get(), &storage, 600'000'000);
  storage.away.store(true);
  std::atomic<int> ended{0};
  std::vector<std::thread> writers;
  for (Server* const server : {&first, &second}) {
    writers.emplace_back([server, &ended] {
      const uint32_t from = server->id.value == 1 ? 0 : kShared / 2;
      for (uint32_t i = 0; i < kShared / 2; ++i) server->change(PageId{kSpace, from + i});
      EXPECT_TRUE(server->log->persist(server->log->next_lsn()).ok());
      const Status status = server->pool->write_back_below(server->log->next_lsn());
      EXPECT_TRUE(status.ok()) << status;
      ++ended;
    });
  }
  // 60 changed pages have no place in 16 slots.
  EXPECT_TRUE(wait_until([&] {
    return first.pages->counters().slot_waits.load() != 0 &&
           second.pages->counters().slot_waits.load() != 0;
  }));
  EXPECT_EQ(ended.load(), 0);
  storage.away.store(false);
  for (std::thread& writer : writers) writer.join();
  EXPECT_TRUE(node.store_all().ok());
  for (uint32_t i = 0; i < kShared; ++i)
    EXPECT_EQ(stored_version(&storage, PageId{kSpace, i}), 1u) << "page " << i;
  for (Server* const server : {&first, &second}) {
    server->pages->serve(nullptr);
    server->pool.reset();
    node.ended(server->id, server->id.value, false);
  }
  node.stop();
}

// FH9: the wait ends, says why, and nothing is lost: what is tried again later is written.
TEST(FusionPagesWaits, AWaitForASlotEndsAndSaysThatStorageTakesNothing) {
  StorageAway storage;
  fill_storage(&storage);
  fusion::PagesOptions options;
  options.slots = 8;
  auto made = transport::Region::create_in_memory(uint64_t{options.slots} * kPageBytes, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<transport::Region> region = *std::move(made);
  PagesNode node(options, kEpoch, region);
  Server server(&node, 1, region.get(), &storage, 30'000);
  storage.away.store(true);
  constexpr uint32_t kChanged = 20;  // of 40 frames: no statement lacks one
  for (uint32_t i = 0; i < kChanged; ++i) server.change(PageId{kSpace, i});
  EXPECT_TRUE(server.log->persist(server.log->next_lsn()).ok());
  const Status status = server.pool->write_back_below(server.log->next_lsn());
  EXPECT_TRUE(is_busy(status)) << status;
  EXPECT_NE(std::string(status.message()).find("storage has taken none"), std::string::npos);
  EXPECT_GE(server.pool->dirty_count(), kChanged - options.slots);
  storage.away.store(false);
  EXPECT_TRUE(
      wait_until([&] { return server.pool->write_back_below(server.log->next_lsn()).ok(); }));
  EXPECT_TRUE(node.store_all().ok());
  for (uint32_t i = 0; i < kChanged; ++i)
    EXPECT_EQ(stored_version(&storage, PageId{kSpace, i}), 1u) << "page " << i;
  server.pages->serve(nullptr);
  server.pool.reset();
  node.ended(server.id, server.id.value, false);
  node.stop();
}

class FusionPagesThreads : public ::testing::TestWithParam<uint32_t> {};

// With slots for more pages than there are, and for far fewer than the servers change at a time.
INSTANTIATE_TEST_SUITE_P(Slots, FusionPagesThreads, ::testing::Values(128, 24, 6));

TEST_P(FusionPagesThreads, ServersThatChangeTheSamePagesLoseNothing) {
  MemoryPageSource storage;
  fill_storage(&storage);
  fusion::PagesOptions options;
  options.slots = GetParam();
  options.entries_max = 48;
  options.ask_again_us = 20'000;
  auto made = transport::Region::create_in_memory(uint64_t{options.slots} * kPageBytes, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<transport::Region> region = *std::move(made);
  PagesNode node(options, kEpoch, region);
  std::vector<std::unique_ptr<Server>> servers;
  for (uint8_t s = 1; s <= kServers; ++s)
    servers.push_back(std::make_unique<Server>(&node, s, region.get(), &storage));
  std::array<std::atomic<uint64_t>, kShared> least{};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 2 * kServers; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(700 + t);
      Server& server = *servers[t % kServers];
      for (int i = 0; i < kOperations && !::testing::Test::HasFailure(); ++i) {
        const auto number = static_cast<uint32_t>(rng.below(kShared));
        const PageId page{kSpace, number};
        if (rng.one_in(2)) {
          server.change(page);
          least[number].fetch_add(1);
          continue;
        }
        const uint64_t told = least[number].load();
        const auto guard = rng.one_in(8) ? server.pool->try_fix(page, LatchMode::kShared)
                                         : server.pool->fix(page, LatchMode::kShared);
        if (!guard.ok()) {  // only who does not wait
          ASSERT_TRUE(may_pass(guard.status())) << guard.status();
          continue;
        }
        PageVersion v;
        ASSERT_EQ(check_page(guard->page(), page, &v), "");
        ASSERT_GE(v.version, told) << "page " << number;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t i = 0; i < kShared && !HasFailure(); ++i) {
    auto guard = servers[i % kServers]->pool->fix(PageId{kSpace, i}, LatchMode::kShared);
    ASSERT_TRUE(guard.ok()) << guard.status();
    PageVersion v;
    EXPECT_EQ(check_page(guard->page(), PageId{kSpace, i}, &v), "");
    EXPECT_EQ(v.version, least[i].load()) << "page " << i;
  }
  // All of it is in storage once every server has written back and the memory node has, too.
  for (const auto& server : servers) {
    EXPECT_TRUE(server->log->persist(server->log->next_lsn()).ok());
    EXPECT_TRUE(server->pool->write_back_below(server->log->next_lsn()).ok());
    EXPECT_TRUE(server->pool->source()->sync_below(server->log->next_lsn()).ok());
  }
  EXPECT_TRUE(node.store_all().ok());
  for (uint32_t i = 0; i < kShared; ++i)
    EXPECT_EQ(stored_version(&storage, PageId{kSpace, i}), least[i].load()) << "page " << i;
  uint64_t gets = 0, held = 0, given_up = 0;
  for (const auto& server : servers) {
    gets += server->pages->counters().gets.load();
    held += server->pages->holds().counters().held.load();
    given_up += server->pages->holds().counters().given_up.load();
    server->pages->serve(nullptr);
    server->pool.reset();
    node.ended(server->id, server->id.value, false);
  }
  EXPECT_TRUE(gets > 0 || options.slots < 24) << "with few slots it may be storage that is read";
  EXPECT_GT(held, 0u);
  EXPECT_GT(given_up, 0u);
  node.stop();
  servers.clear();
}

}  // namespace
}  // namespace strata::sim
