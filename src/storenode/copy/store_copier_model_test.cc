// Goal: whatever writers, peers, collection and crashes do while the pages are copied, in the end
// every page as of every llsn that is promised is what its writer had (PC1-PC4, RP5). Method: two
// sources and a node without history, on simulated disks; random groups over several spaces,
// dropped spaces, horizons, crashes with power loss of each of them, peers that go away, all by
// seed (STRATA_SEED, STRATA_ROUNDS).
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/testing/sanitized.h"
#include "storenode/copy/store_copier.h"
#include "storenode/copy/testing/local_peer.h"

namespace strata::storenode {
namespace {

using testing::LocalPeer;
using testing::TestStore;

constexpr PageId kSystem{0, 1};

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class CopyRun {
 public:
  CopyRun(ReplayMode mode, uint64_t seed) : rng_(seed), first_(mode), second_(mode), target_(mode) {
    for (TestStore* node : all()) {
      node->options().page_cache_bytes = rng_.one_in(2) ? 1u << 20 : 0;
      node->options().log_cache_bytes = rng_.one_in(2) ? 1u << 20 : 0;
      node->options().map_bytes = rng_.one_in(2) ? 1u << 20 : 8u << 10;
      node->options().replay_lag_bytes = rng_.one_in(2) ? 0 : 1 + rng_.below(20'000);
      node->options().scan_batch_bytes = rng_.one_in(2) ? 1u << 20 : 500;
      if (node != &target_) node->open();
    }
  }

  void run() {
    for (int i = 0; i < 40; ++i) write();
    for (TestStore* node : {&first_, &second_}) catch_up(node);
    // The target's log begins somewhere behind the stream's beginning.
    const auto& groups = first_.writer().groups();
    testing::mirror(&first_.log(), &target_.log());
    target_.log().cut_front(groups[rng_.below(groups.size() / 2)].end);
    open_target();
    ASSERT_TRUE(target_.store().needs_copy());
    for (int i = 0; i < 250 && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(::testing::Message() << "step " << i);
      step();
    }
    if (!::testing::Test::HasFailure()) finish();
  }

 private:
  std::vector<TestStore*> all() { return {&first_, &second_, &target_}; }
  TestStore* source() { return rng_.one_in(2) ? &first_ : &second_; }

  void open_target() {
    target_.open();
    StoreCopierOptions options;
    options.peers = {peers_[0], peers_[1]};
    options.pages_at_once = 1 + static_cast<uint32_t>(rng_.below(4));
    options.pages_listed = 1 + static_cast<uint32_t>(rng_.below(9));
    copier_ = std::make_unique<StoreCopier>(&target_.store(), options);
  }

  void step() {
    switch (rng_.below(16)) {
      case 0:
        if (rng_.one_in(3)) crash(source());
        return;
      case 1:
        if (rng_.one_in(6)) crash(&target_);
        return;
      case 2:
        if (rng_.one_in(2)) peers_[rng_.below(2)]->down = rng_.one_in(2);
        return;
      case 3:
        if (rng_.one_in(4)) drop_space();
        return;
      case 4:
        return raise_horizon(source());
      case 5: {
        TestStore* const node = all()[rng_.below(3)];
        ASSERT_TRUE(node->store().checkpoint().ok());
        return;
      }
      case 6:
        ASSERT_TRUE(source()->store().collect_step(4).ok());
        return;
      case 7:
      case 8:
      case 9:
        return write();
      case 10:
      case 11:
        return work(all()[rng_.below(3)]);
      default:
        (void)copier_->step();  // a peer may be down, or not there yet
    }
  }

  void crash(TestStore* node) {
    node->crash(rng_.next());
    node == &target_ ? open_target() : node->open();
  }

  void write() {
    std::vector<PageId> pages;
    for (uint64_t count = 1 + rng_.below(4); count > 0; --count) {
      const PageId page{300 + static_cast<uint32_t>(rng_.below(4)),
                        static_cast<uint32_t>(rng_.below(6))};
      const bool is_gone = dropped_.count(page.space) != 0;
      if (!is_gone && std::find(pages.begin(), pages.end(), page) == pages.end())
        pages.push_back(page);
    }
    if (pages.empty()) return;
    first_.write(&rng_, pages);
    spread();
  }
  void drop_space() {
    const auto space = static_cast<uint32_t>(300 + rng_.below(3));  // one stays
    if (!dropped_.insert(space).second) return;
    std::string ops;
    redo::encode_init_plain(&ops, kSystem, PageType::kSystem, IndexId{}, 0);
    redo::encode_pending_delete_add(&ops, SpaceId{space});
    first_.writer().write({{kSystem, ops}});
    first_.log().make_durable(first_.log().end());
    spread();
  }
  // All have the log; each hears on its own what is durable.
  void spread() {
    for (TestStore* node : {&second_, &target_}) {
      testing::mirror(&first_.log(), &node->log());
      const uint64_t durable = node->log().durable_lsn().value;
      const uint64_t end = node->log().end().value;
      node->log().make_durable(Lsn{rng_.one_in(3) ? durable + rng_.below(end - durable + 1) : end});
    }
  }

  void work(TestStore* node) {
    ASSERT_TRUE(node->store().scan_step().ok());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(node->store().replay_step().ok());
  }
  void raise_horizon(TestStore* node) {
    node->pass_time(1);
    Llsn known;
    for (const auto& stream : node->store().status().streams)
      known = std::max(known, stream.scanned.llsn);
    const Llsn horizon = node->store().status().horizon;
    if (known < horizon) return;
    const Llsn lease{horizon.value + rng_.below(known.value - horizon.value + 1)};
    ASSERT_TRUE(node->store().renew_lease(7, lease, UINT64_MAX / 2).ok());
    ASSERT_TRUE(node->store().raise_horizon().ok());
    node->store().release_lease(7);
  }
  void catch_up(TestStore* node) {
    node->log().make_durable(node->log().end());
    for (int round = 0; round < 2; ++round) {
      node->scan_all();
      node->replay_all();
      ASSERT_TRUE(node->store().checkpoint().ok());
    }
    node->replay_all();
    node->serve_all();
  }

  void finish() {
    for (const auto& peer : peers_) peer->down = false;
    spread();
    for (TestStore* node : {&first_, &second_}) catch_up(node);
    for (int i = 0; target_.store().needs_copy(); ++i) {
      ASSERT_LT(i, 1000) << "it does not come to an end";
      (void)copier_->step();
    }
    for (int round = 0; round < 2; ++round) {
      catch_up(&target_);
      target_.collect_all();
      check_every_state();
      EXPECT_EQ(target_.store().counters().pages_broken, 0u);
      ASSERT_TRUE(target_.store().checkpoint().ok());
      target_.crash(rng_.next());
      target_.open();
      EXPECT_FALSE(target_.store().needs_copy());
    }
  }

  // As of every llsn at or above both horizons the nodes are byte-equal, and right.
  void check_every_state() {
    const Llsn horizon =
        std::max(target_.store().status().horizon, first_.store().status().horizon);
    for (const auto& group : first_.writer().groups()) {
      for (const PageId page : group.pages) {
        if (dropped_.count(page.space) != 0) continue;
        const Llsn at = std::max(group.llsn, horizon);
        const bool single = target_.mode() == ReplayMode::kSingle;
        if (single && at < first_.writer().newest(page)) continue;
        const auto here = target_.get_now(page, at, single ? Llsn{UINT64_MAX} : at);
        const auto there = first_.get_now(page, at, single ? Llsn{UINT64_MAX} : at);
        ASSERT_TRUE(first_.is_right(here, page, at))
            << here.status() << " " << page.space << ":" << page.number << " at " << at.value;
        ASSERT_TRUE(here.ok() && there.ok()) << here.status() << there.status();
        ASSERT_TRUE(testing::same_but_checksum(here->page->bytes, there->page->bytes));
      }
    }
    for (const uint32_t space : dropped_)
      EXPECT_FALSE(target_.get_now({space, 0}, first_.writer().last(), Llsn{UINT64_MAX}).ok() &&
                   target_.store().status().horizon >= first_.writer().last());
  }

  Rng rng_;
  TestStore first_, second_, target_;
  std::vector<std::shared_ptr<LocalPeer>> peers_ = {
      std::make_shared<LocalPeer>(&first_, "first"),
      std::make_shared<LocalPeer>(&second_, "second")};
  std::unique_ptr<StoreCopier> copier_;
  std::set<uint32_t> dropped_;
};

class CopyModel : public ::testing::TestWithParam<ReplayMode> {};

TEST_P(CopyModel, TheCopyIsWhatTheWriterHad) {
  const uint64_t first = number_from("STRATA_SEED", 1);
  const uint64_t rounds = number_from("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(3, 2));
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "STRATA_SEED=" << seed);
    CopyRun run(GetParam(), seed);
    run.run();
    if (HasFailure()) return;
  }
}

constexpr auto kName = [](const auto& info) {
  constexpr const char* kNames[] = {"single", "eager", "filtered", "smart"};
  return std::string(kNames[static_cast<size_t>(info.param)]);
};
INSTANTIATE_TEST_SUITE_P(Modes, CopyModel,
                         ::testing::Values(ReplayMode::kSingle, ReplayMode::kEager,
                                           ReplayMode::kFiltered, ReplayMode::kSmart),
                         kName);

}  // namespace
}  // namespace strata::storenode
