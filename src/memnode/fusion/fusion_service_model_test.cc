// Goal: whatever servers do, and whenever they vanish, no version of a page that a server's log has
// is lost, and who is granted a page gets exactly the newest one. Method: three servers over real
// sockets ask for pages, change them, give them up, are killed at any step, come back with or
// without knowing that they are alone, and redo their logs; storage fails at times. The model knows
// what each log has: a server's log takes nothing once the memory node has sealed it (FV4).
// STRATA_SEED, STRATA_ROUNDS.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "base/rng.h"
#include "memnode/fusion/testing/fusion_node.h"

namespace strata::memnode {
namespace {

using proto::PageMode;
using testing::fusion_page;
using testing::FusionNode;
using testing::WireServer;

constexpr uint32_t kPages = 12;
constexpr uint8_t kServers = 3;
constexpr int kSteps = 400;
constexpr uint64_t kLeaseUs = 500'000;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// What the logs have.
class Logs {
 public:
  struct Newest {
    uint64_t llsn = 0;
    uint8_t server = 0;  // in whose log
  };
  // False: the log is sealed.
  bool append(uint8_t server, uint64_t life, uint32_t page, uint64_t before, uint64_t llsn) {
    const MutexLock lock(mutex_);
    if (sealed_.contains(life)) return false;
    EXPECT_EQ(newest_[page].llsn, before) << "page " << page << ": a change is lost";
    newest_[page] = {llsn, server};
    return true;
  }
  void seal(uint64_t life) {
    const MutexLock lock(mutex_);
    sealed_.insert(life);
  }
  Newest newest(uint32_t page) const {
    const MutexLock lock(mutex_);
    return newest_[page];
  }

 private:
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::array<Newest, kPages> newest_ STRATA_GUARDED_BY(mutex_) = {};
  std::set<uint64_t> sealed_ STRATA_GUARDED_BY(mutex_);  // by life
};

std::atomic<uint64_t> last_life{0};

struct Counts {
  std::atomic<uint64_t> lives{0}, vanished{0}, left{0}, fenced{0}, changes{0}, grants{0}, redone{0};
};

class Client {
 public:
  Client(FusionNode* node, Logs* logs, Counts* counts, uint8_t id, uint64_t seed)
      : node_(node), logs_(logs), counts_(counts), id_(id), rng_(seed) {}

  void run() {
    for (int step = 0; step < kSteps && !::testing::Test::HasFailure();) {
      if (!begin_life(!rng_.one_in(3))) continue;
      while (step < kSteps && alive_ && !::testing::Test::HasFailure()) {
        ++step;
        keep_lease();
        if (alive_) one_step();
      }
    }
    // The last life gives all back.
    while (!::testing::Test::HasFailure()) {
      if (!alive_ && !begin_life(true)) continue;
      while (alive_ && !held_.empty() && !::testing::Test::HasFailure()) {
        keep_lease();
        if (alive_) give_up(held_.begin()->first);
      }
      if (alive_ && heard(server_->leave())) return;
    }
  }

 private:
  struct Held {
    PageMode mode = PageMode::kShared;
    uint64_t number = 0;
    uint64_t llsn = 0;      // of what is in this server's memory
    uint64_t reported = 0;  // what the memory node knows
  };

  static PageId id_of(uint32_t page) { return {300, page}; }

  // False: this life is over, or never was.
  bool heard(const Status& status) {
    if (status.ok()) return true;
    if (is_fenced(status)) {
      if (alive_) counts_->fenced.fetch_add(1);
      alive_ = false;
    } else {
      EXPECT_TRUE(may_be_repeated(status) || is_in_use(status)) << status;
    }
    return false;
  }
  [[nodiscard]] bool has_lease() const { return FusionNode::now_us() < lease_end_us_; }

  void keep_lease() {
    if (FusionNode::now_us() < renew_at_us_) return;
    const uint64_t asked_us = FusionNode::now_us();
    const auto reply = server_->renew();
    if (!heard(reply.status())) return;
    lease_end_us_ = asked_us + reply->reply.lease_us - reply->reply.lease_us / 32;
    renew_at_us_ = asked_us + kLeaseUs / 6;
  }

  bool begin_life(bool alone) {
    held_.clear();
    asked_.clear();
    slots_.clear();
    refused_.clear();
    slots_request_ = 0;
    renew_at_us_ = 0;
    alive_ = true;
    server_.emplace(node_, id_, last_life.fetch_add(1) + 1);
    if (!heard(server_->join(alone))) return alive_ = false;
    counts_->lives.fetch_add(1);
    keep_lease();
    return alive_ && adopt();
  }

  // What the last life's log has, and the memory node does not.
  bool adopt() {
    const auto pages = server_->adopt(NodeId{id_});
    if (is_not_found(pages.status())) return true;
    if (!heard(pages.status())) return alive_ = false;
    for (const PageId page : *pages) {
      keep_lease();
      if (rng_.one_in(40)) return vanish();
      const auto granted = server_->ask(page, PageMode::kExclusive, ++last_ask_, true);
      if (!heard(granted.status())) return alive_ = false;
      if (granted->empty()) continue;  // an earlier life has redone and given it up
      const proto::PageGrant& grant = granted->front();
      const Logs::Newest newest = logs_->newest(page.number);
      const uint64_t known = grant.known ? grant.llsn.value : node_->store.llsn_of(page);
      proto::PageReport report{page, grant.number, true};
      if (newest.llsn > known) {
        EXPECT_EQ(newest.server, id_) << "page " << page.number << " is redone by somebody else";
        if (!fill(page.number, newest.llsn, known, &report)) return alive_ = false;
        counts_->redone.fetch_add(1);
      }
      if (!heard(server_->report({report}))) return alive_ = false;
    }
    return heard(server_->adoption_ended(NodeId{id_})) || (alive_ = false);
  }

  bool vanish() {
    counts_->vanished.fetch_add(1);
    return alive_ = false;
  }

  // Puts that version into a slot.
  bool fill(uint32_t page, uint64_t llsn, uint64_t first, proto::PageReport* report) {
    while (slots_.empty() && alive_) {
      const auto taken = server_->take_slots(++slots_request_, 4);
      if (!heard(taken.status())) return false;
      slots_ = *taken;
      keep_lease();
    }
    if (!alive_) return false;
    const uint32_t slot = slots_.back();
    slots_.pop_back();
    if (!has_lease()) return vanish();  // FU3; the slot is lost
    server_->put(id_of(page), llsn, slot);
    report->changed = true;
    report->llsn = Llsn{llsn};
    report->slot = slot;
    report->stream = StreamId{id_};
    report->first = Lsn{first + 1};
    report->end = Lsn{llsn + 1};
    return true;
  }

  void one_step() {
    const auto page = static_cast<uint32_t>(rng_.below(kPages));
    const uint64_t what = rng_.below(100);
    const auto held = held_.find(page);
    if (what < 2) {
      vanish();
    } else if (what < 3) {
      while (!held_.empty() && alive_) give_up(held_.begin()->first);
      if (alive_ && heard(server_->leave())) {
        counts_->left.fetch_add(1);
        alive_ = false;
      }
    } else if (what < 25) {
      hear(server_->events(static_cast<uint32_t>(rng_.below(3'000))));
    } else if (held == held_.end()) {
      ask(page);
    } else if (held->second.mode == PageMode::kExclusive && what < 70) {
      change(page, &held->second);
    } else if (what < 85) {
      write(page, &held->second, false);
    } else {
      give_up(page);
    }
  }

  void ask(uint32_t page) {
    if (!asked_.contains(page)) asked_[page] = ++last_ask_;
    const PageMode mode =
        page % 2 == 0 || rng_.one_in(2) ? PageMode::kExclusive : PageMode::kShared;
    const auto granted = server_->ask(id_of(page), mode, asked_[page]);
    if (!heard(granted.status())) return;
    for (const proto::PageGrant& grant : *granted) take(grant);
  }

  void hear(const StatusOr<proto::FusionEventsReply>& events) {
    if (!heard(events.status())) return;
    for (const proto::PageGrant& grant : events->grants)
      if (alive_) take(grant);
    for (const proto::PageGiveUp& give_up_of : events->give_ups) {
      if (!alive_) return;
      const auto held = held_.find(give_up_of.page.number);
      if (held != held_.end() && held->second.number == give_up_of.number) {
        give_up(give_up_of.page.number);
      } else if (held == held_.end() || held->second.number < give_up_of.number) {
        uint64_t& refused = refused_[give_up_of.page.number];
        refused = std::max(refused, give_up_of.number);  // its grant may still come
        asked_.erase(give_up_of.page.number);
        heard(server_->report({{give_up_of.page, give_up_of.number, true}}));
      }
    }
  }

  void take(const proto::PageGrant& grant) {
    const uint32_t page = grant.page.number;
    const auto held = held_.find(page);
    if (held != held_.end() && held->second.number == grant.number) return;  // again
    const auto asked = asked_.find(page);
    if (asked == asked_.end() || asked->second != grant.ask || grant.number <= refused_[page]) {
      heard(server_->report({{grant.page, grant.number, true}}));
      return;
    }
    asked_.erase(asked);
    counts_->grants.fetch_add(1);
    uint64_t llsn = grant.llsn.value;
    if (grant.known) {
      // Under the lease: nobody else puts anything into it.
      const std::string found = server_->get(grant.slot);
      if (has_lease()) {
        EXPECT_EQ(found, fusion_page(grant.page, llsn));
      }
    } else {
      llsn = node_->store.llsn_of(grant.page);
    }
    const Logs::Newest newest = logs_->newest(page);
    if (!has_lease()) {  // nothing that was read counts
      vanish();
      return;
    }
    EXPECT_EQ(llsn, newest.llsn) << "page " << page << ", which server " << int{newest.server}
                                 << " has changed last, for server " << int{id_};
    held_[page] = {grant.mode, grant.number, llsn, llsn};
  }

  void change(uint32_t page, Held* held) {
    const uint64_t llsn = held->llsn + 1 + rng_.below(3);
    if (!logs_->append(id_, server_->caller.life, page, held->llsn, llsn)) {
      vanish();  // its log is sealed
      return;
    }
    counts_->changes.fetch_add(1);
    held->llsn = llsn;
  }

  // False: nothing was reported.
  bool write(uint32_t page, Held* held, bool gives_up) {
    proto::PageReport report{id_of(page), held->number, gives_up};
    if (held->llsn != held->reported && !fill(page, held->llsn, held->reported, &report))
      return false;
    if (!report.changed && !gives_up) return true;
    if (rng_.one_in(60)) return vanish();
    if (!heard(server_->report({report}))) return alive_ = false;  // nobody knows whose it is
    held->reported = held->llsn;
    return true;
  }

  void give_up(uint32_t page) {
    if (write(page, &held_[page], true)) held_.erase(page);
  }

  FusionNode* const node_;
  Logs* const logs_;
  Counts* const counts_;
  const uint8_t id_;
  Rng rng_;
  std::optional<WireServer> server_;
  bool alive_ = false;
  uint64_t lease_end_us_ = 0, renew_at_us_ = 0;
  uint64_t last_ask_ = 0, slots_request_ = 0;
  std::map<uint32_t, Held> held_;
  std::map<uint32_t, uint64_t> asked_, refused_;
  std::vector<uint32_t> slots_;
};

void run_round(uint64_t seed) {
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  FusionNode node;
  node.options.time.authority.lease_us = kLeaseUs;
  node.options.time.authority.renew_us = 50'000;
  node.options.pages.entries_max = 8;
  node.options.pages.ask_again_us = 20'000;
  node.options.pages.slots = 96;
  node.options.write_again_us = 20'000;
  if (seed % 2 == 0) node.options.write_age_us = 10'000;
  node.options.said_max = 6;
  Logs logs;
  node.seal = [&](NodeId, uint64_t life, absl::AnyInvocable<void(const Status&)> done) {
    logs.seal(life);
    done(ok_status());
  };
  node.start();
  Counts counts;
  std::atomic<int> running{kServers};
  std::vector<std::thread> threads;
  for (uint8_t id = 1; id <= kServers; ++id)
    threads.emplace_back([&, id] {
      Client(&node, &logs, &counts, id, seed * 31 + id).run();
      --running;
    });
  Rng rng(seed);
  while (running > 0) {
    node.store.will_fail(rng.one_in(4));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  node.store.will_fail(false);
  for (std::thread& thread : threads) thread.join();
  if (::testing::Test::HasFailure()) return;
  // All of it is in storage.
  WireServer last(&node, 9, last_life.fetch_add(1) + 1);
  ASSERT_TRUE(last.join().ok());
  for (uint32_t stream = 1; stream <= kServers; ++stream)
    EXPECT_EQ(*last.write_back(stream, UINT64_MAX, 9'000'000), Lsn{UINT64_MAX});
  for (uint32_t page = 0; page < kPages; ++page)
    EXPECT_EQ(node.store.llsn_of({300, page}), logs.newest(page).llsn) << "page " << page;
  EXPECT_EQ(node.counters().slots_damaged.load(), 0u);
  EXPECT_GT(counts.changes.load(), 50u);
  std::printf(
      "seed %llu: %llu lives, %llu vanished, %llu left, %llu heard that they were fenced; %llu "
      "grants, %llu changes, %llu pages redone, %llu leases ended\n",
      static_cast<unsigned long long>(seed), static_cast<unsigned long long>(counts.lives.load()),
      static_cast<unsigned long long>(counts.vanished.load()),
      static_cast<unsigned long long>(counts.left.load()),
      static_cast<unsigned long long>(counts.fenced.load()),
      static_cast<unsigned long long>(counts.grants.load()),
      static_cast<unsigned long long>(counts.changes.load()),
      static_cast<unsigned long long>(counts.redone.load()),
      static_cast<unsigned long long>(node.counters().expired.load()));
}

TEST(FusionServiceModel, ServersThatVanishLoseNoChangeAndNobodyGetsAnOldPage) {
  set_diag_sink([](Severity, std::string_view) {});
  const uint64_t seed = from_environment("STRATA_SEED", 1);
  const uint64_t rounds = from_environment("STRATA_ROUNDS", 1);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) run_round(seed + round);
  set_diag_sink(nullptr);
}

}  // namespace
}  // namespace strata::memnode
