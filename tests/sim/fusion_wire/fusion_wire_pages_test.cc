// Goal: threads of three servers change and read the same pages through real buffer pools, over a
// memory node and sockets, and no change is lost, nobody reads an older page than somebody was told
// of, no page leaves before its log; while storage fails at times, and while a fourth server comes,
// takes pages and is fenced. And what a server's pages come to when it is fenced itself, or the
// memory node is silent.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "bufpool/pool_test_support.h"
#include "clients/fusion/fusion_member.h"
#include "memnode/fusion/testing/fusion_node.h"

namespace strata::clients {
namespace {

using memnode::PageStore;
using memnode::testing::FusionNode;
using memnode::testing::TestStream;
using strata::testing::check_page;
using strata::testing::fill_page;
using strata::testing::MemoryLogSink;
using strata::testing::MemoryPageSource;
using strata::testing::PageVersion;
using strata::testing::tiny_pool;
using strata::testing::wait_until;

constexpr uint8_t kServers = 3;
constexpr uint32_t kShared = 60;
constexpr uint32_t kSpace = 300;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 200;
#else
constexpr int kOperations = 1000;
#endif

// The memory node's way into the storage that the servers read.
class Store final : public PageStore {
 public:
  explicit Store(PageSource* storage) : storage_(storage) {}
  void write(absl::Span<const Image> images, absl::Span<Status> results) override {
    for (size_t i = 0; i < images.size(); ++i)
      results[i] = calls_.fetch_add(1) % 7 == 3 ? error_peer_down("asked for by a test")
                                                : storage_->write(images[i].page, images[i].bytes);
  }

 private:
  PageSource* const storage_;
  std::atomic<uint64_t> calls_{0};
};

struct Server {
  Server(const FusionNode& node, uint8_t number, PageSource* storage)
      : id(number),
        log(std::make_unique<Log>(LogOptions{.buffer_bytes = 1u << 20}, &sink, Lsn{4096}, 0)) {
    FusionMemberOptions options;
    options.server = id;
    options.life = number;
    options.renew_us = 20'000;
    auto joined = FusionMember::join(options, node.channel());
    EXPECT_TRUE(joined.ok()) << joined.status();
    member = *std::move(joined);
    FusionPagesOptions page_options;
    page_options.stream = StreamId{number};
    page_options.look_us = 5'000;
    page_options.slots_at_once = 8;
    const auto made_pages = member->make_pages(page_options, storage);
    EXPECT_TRUE(made_pages.ok()) << made_pages.status();
    EXPECT_TRUE((*made_pages)->begin().ok());
    EXPECT_TRUE(member->serve().ok());
    auto made =
        BufferPool::create(tiny_pool(40, 1), (*made_pages)->source(), *made_pages, log.get());
    EXPECT_TRUE(made.ok()) << made.status();
    pool = std::move(*made);
    (*made_pages)->serve(pool.get());
  }
  Status change(PageId page) {
    STRATA_RETURN_IF_ERROR(log->reserve_capacity(64, false));
    STRATA_ASSIGN_OR_RETURN(auto guard, pool->fix(page, LatchMode::kExclusive));
    PageVersion v;
    EXPECT_EQ(check_page(guard.page(), page, &v), "");
    LogReservation r;
    while (!log->reserve(64, log->image_floor(), Llsn{header_of(guard.page())->llsn}, &r)) {
    }
    log->copy(r, std::string(64, 'g'));
    fill_page(guard.mutable_page(), page, r.llsn.value, PageVersion{v.version + 1, 0});
    pool->note_modified(guard, r.start, r.end, false);
    log->complete(r);
    return ok_status();
  }
  void close_pool() {
    member->pages()->serve(nullptr);
    pool.reset();
  }

  const NodeId id;
  MemoryLogSink sink;
  std::unique_ptr<Log> log;
  std::unique_ptr<FusionMember> member;
  std::unique_ptr<BufferPool> pool;
};

class FusionWirePages : public ::testing::Test {
 protected:
  FusionWirePages() : store_(&storage_) {
    set_diag_sink([](Severity, std::string_view) {});
    std::vector<char> bytes(kPageBytes);
    for (uint32_t i = 0; i < kShared; ++i) {
      const PageId page{kSpace, i};
      fill_page(bytes.data(), page, 1, PageVersion{0, 0});
      seal_page(bytes.data());
      EXPECT_TRUE(storage_.write(page, bytes.data()).ok());
    }
    node_.other_store = &store_;
    node_.options.pages.slots = 160;
    node_.options.pages.entries_max = 48;
    node_.options.pages.ask_again_us = 20'000;
    node_.options.write_again_us = 10'000;
  }
  ~FusionWirePages() override {
    node_.stop();
    set_diag_sink(nullptr);
  }
  MemoryPageSource storage_;
  Store store_;
  FusionNode node_;
};

TEST_F(FusionWirePages, ServersThatChangeTheSamePagesLoseNothing) {
  node_.start();
  std::vector<std::unique_ptr<Server>> servers;
  for (uint8_t s = 1; s <= kServers; ++s)
    servers.push_back(std::make_unique<Server>(node_, s, &storage_));
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
          const Status changed = server.change(page);
          ASSERT_TRUE(changed.ok()) << changed;
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
  // Another one takes pages for reading, and is gone.
  {
    Server guest(node_, 9, &storage_);
    for (uint32_t i = 0; i < 20; ++i) {
      const auto guard = guest.pool->fix(PageId{kSpace, i}, LatchMode::kShared);
      EXPECT_TRUE(guard.ok()) << guard.status();
    }
    node_.service()->fence(NodeId{9});
    EXPECT_TRUE(wait_until([&] { return !guest.member->status().ok(); }));
    EXPECT_TRUE(is_fenced(guest.pool->fix(PageId{kSpace, 40}, LatchMode::kShared).status()));
    node_.service()->exited(NodeId{9}, 9);
    guest.close_pool();
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
    const Status synced = server->pool->source()->sync_below(server->log->next_lsn());
    EXPECT_TRUE(synced.ok()) << synced;
  }
  std::vector<char> bytes(kPageBytes);
  for (uint32_t i = 0; i < kShared; ++i) {
    ASSERT_TRUE(storage_.read(PageId{kSpace, i}, Llsn{}, bytes.data()).ok());
    PageVersion v;
    EXPECT_EQ(check_page(bytes.data(), PageId{kSpace, i}, &v), "");
    EXPECT_EQ(v.version, least[i].load()) << "page " << i;
  }
  uint64_t gets = 0, held = 0, given_up = 0;
  for (const auto& server : servers) {
    gets += server->member->pages()->counters().gets.load();
    held += server->member->pages()->holds().counters().held.load();
    given_up += server->member->pages()->holds().counters().given_up.load();
    server->close_pool();
    const Status left = server->member->leave();
    EXPECT_TRUE(left.ok()) << left;
  }
  EXPECT_GT(gets, 0u);
  EXPECT_GT(held, 0u);
  EXPECT_GT(given_up, 0u);
  EXPECT_EQ(node_.counters().bad_requests.load(), 0u);
  EXPECT_EQ(node_.counters().slots_damaged.load(), 0u);
  std::printf("%llu pages from slots, %llu had already, %llu given up, %llu told, %llu written\n",
              static_cast<unsigned long long>(gets), static_cast<unsigned long long>(held),
              static_cast<unsigned long long>(given_up),
              static_cast<unsigned long long>(node_.counters().pages_told.load()),
              static_cast<unsigned long long>(node_.counters().pages_written.load()));
}

// FU3: who has no lease uses no page that it did not have, and puts nothing; later it goes on.
TEST_F(FusionWirePages, ASilentMemoryNodeKeepsPagesAwayAndTheyComeLater) {
  node_.options.time.authority.lease_us = 1'000'000;
  node_.options.time.authority.renew_us = 50'000;
  node_.start();
  Server a(node_, 1, &storage_);
  ASSERT_TRUE(a.change({kSpace, 0}).ok());
  node_.stream.will(TestStream::Does::kHolds);
  EXPECT_TRUE(wait_until([&] { return !a.member->lease()->valid(a.member->epoch()); }));
  std::atomic<bool> got{false};
  std::thread waits([&] {
    // The memory node may grant it just before the lease is renewed: then it does not count.
    EXPECT_TRUE(wait_until([&] {
      const auto guard = a.pool->fix(PageId{kSpace, 1}, LatchMode::kShared);
      EXPECT_TRUE(guard.ok() || is_lease_lost(guard.status())) << guard.status();
      return guard.ok();
    }));
    got = true;
  });
  EXPECT_TRUE(a.log->persist(a.log->next_lsn()).ok());
  EXPECT_FALSE(a.pool->write_back_below(a.log->next_lsn()).ok()) << "nothing is put";
  EXPECT_FALSE(got);
  node_.stream.will(TestStream::Does::kTakes);
  waits.join();
  EXPECT_TRUE(wait_until([&] { return a.member->lease()->valid(a.member->epoch()); }));
  EXPECT_TRUE(a.pool->write_back_below(a.log->next_lsn()).ok());
  EXPECT_TRUE(a.pool->source()->sync_below(a.log->next_lsn()).ok());
  a.close_pool();
  EXPECT_TRUE(a.member->leave().ok());
}

// FC58
TEST_F(FusionWirePages, WhoWaitsForStorageIsToldThatItsServerHasEndedThoughThereIsNoMemoryNode) {
  node_.start();
  Server a(node_, 1, &storage_);
  node_.end_service();
  std::thread checkpoint([&] {
    const Status status = a.pool->source()->sync_below(a.log->next_lsn());
    EXPECT_TRUE(is_fenced(status)) << status;
  });
  a.member->pages()->fenced(error_fenced("it is to end"));
  checkpoint.join();
}

// FC22: whoever waits for a page when its server is fenced, or the memory node ends, is told.
TEST_F(FusionWirePages, WhoWaitsForAPageHearsThatItsServerHasEnded) {
  node_.start();
  Server a(node_, 1, &storage_);
  Server b(node_, 2, &storage_);
  auto kept = a.pool->fix(PageId{kSpace, 0}, LatchMode::kExclusive);
  ASSERT_TRUE(kept.ok());
  std::thread waits([&] {
    const auto guard = b.pool->fix(PageId{kSpace, 0}, LatchMode::kShared);
    EXPECT_TRUE(is_fenced(guard.status())) << guard.status();
  });
  EXPECT_TRUE(wait_until([&] { return node_.service()->status().pages.give_ups > 0; }));
  node_.end_service();
  node_.serve(2);
  waits.join();
  EXPECT_TRUE(wait_until([&] { return !a.member->status().ok(); }));
  kept->release();
  a.close_pool();
  b.close_pool();
}

}  // namespace
}  // namespace strata::clients
