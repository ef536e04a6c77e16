// Timestamps, views, other nodes' transactions, row locks and names of a test's Cluster by members
// of a memory node over sockets (FusionMember, FusionService): what servers in processes of their
// own have. Renewals are made when the test says so, or seldom.
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/diag.h"
#include "clients/fusion/fusion_member.h"
#include "engine/testing/cluster.h"
#include "memnode/fusion/testing/fusion_node.h"

namespace strata::engine::testing {
namespace {

using clients::FusionMember;
using clients::FusionMemberOptions;
using memnode::testing::FusionNode;

constexpr uint64_t kLeaseUs = 60'000'000;  // nobody loses it only because the machine is busy

class WireServices final : public ClusterServices {
 public:
  WireServices() {
    node_.options.time.authority.lease_us = kLeaseUs;
    node_.options.time.oracle.step = 10'000;  // the ceiling is met, too
    node_.options.pages.slots = 0;            // the cluster has page locks of its own
    node_.options.table_slots = 1u << 16;     // as many as a node's own table has
    node_.start();
  }
  ~WireServices() override {
    uint64_t fetches = 0, requests = 0, gets = 0, calls = 0, waits = 0, batches = 0;
    for (const auto& member : graveyard_) {
      const auto& c = member->timestamps()->counters();
      fetches += c.fetches.load();
      requests += c.views.load() + c.commits.load();
      gets += member->others()->counters().gets.load();
      calls += member->others()->counters().calls.load();
      waits += member->locks()->counters().waits;
      batches += member->locks()->counters().batches;
    }
    std::printf("fusion: %llu timestamps by %llu fetches; %llu slots read, %llu owners asked\n",
                static_cast<unsigned long long>(requests), static_cast<unsigned long long>(fetches),
                static_cast<unsigned long long>(gets), static_cast<unsigned long long>(calls));
    const memnode::FusionServiceCounters& of = node_.counters();
    const memnode::FusionStatus status = node_.service()->status();
    const fusion::RowLockCounters rows = status.locks;
    std::printf(
        "row locks: %llu waits in %llu messages, %llu turns, %llu deadlocks; %llu questions, %llu "
        "answers, %llu renewals, %llu stale calls\n",
        static_cast<unsigned long long>(waits), static_cast<unsigned long long>(batches),
        static_cast<unsigned long long>(rows.turns),
        static_cast<unsigned long long>(rows.deadlocks),
        static_cast<unsigned long long>(of.questions.load()),
        static_cast<unsigned long long>(of.answers.load()),
        static_cast<unsigned long long>(of.renewals.load()),
        static_cast<unsigned long long>(of.stale_calls.load()));
    std::printf("names: %llu grants, %llu asked back, %llu told, %llu untold; %llu rounds\n",
                static_cast<unsigned long long>(status.name_locks.grants),
                static_cast<unsigned long long>(status.name_locks.give_ups),
                static_cast<unsigned long long>(status.name_news.told),
                static_cast<unsigned long long>(status.name_news.untold),
                static_cast<unsigned long long>(status.reuse_rounds));
    EXPECT_EQ(rows.polls_found, 0u);  // no wake-up was lost (FU26)
    EXPECT_EQ(of.bad_requests.load(), 0u);
    members_.clear();
    graveyard_.clear();
    node_.stop();
  }

  Seams start(uint8_t node, PageSource*) override {
    FusionMemberOptions options;
    options.server = NodeId{node};
    options.life = ++last_life_;
    options.renew_us = kLeaseUs / 8;
    auto joined = FusionMember::join(options, node_.channel());
    EXPECT_TRUE(joined.ok()) << joined.status();
    const std::shared_ptr<FusionMember> member = *std::move(joined);
    const Status serves = member->serve();
    EXPECT_TRUE(serves.ok()) << serves;
    for (const auto& other : living()) renew(other.get());  // they open its table
    const std::lock_guard lock(mutex_);
    members_[node] = member;
    Seams seams;  // page locks and pages are the test's own
    seams.timestamps = member->timestamps();
    seams.horizon = member->horizon();
    seams.others = member->others();
    seams.locks = member->locks();
    seams.schema = member->names();
    seams.page_reuse = member->page_reuse();
    return seams;
  }

  void ended(uint8_t node, bool crashed) override {
    std::shared_ptr<FusionMember> member;
    {
      const std::lock_guard lock(mutex_);
      member = members_[node];
      members_.erase(node);
      graveyard_.push_back(member);  // the last views of a kernel may still point here
    }
    if (crashed) {
      member->stop();
      node_.service()->exited(NodeId{node}, lives_of(node));
    } else {
      const Status left = member->leave();
      EXPECT_TRUE(left.ok()) << left;
    }
    // FU4: all others hear of it, and say so.
    for (const uint64_t deadline_us = FusionNode::now_us() + 60'000'000; is_there(node);) {
      for (const auto& other : living()) renew(other.get());
      if (FusionNode::now_us() < deadline_us) continue;
      ADD_FAILURE() << "node " << int{node} << " is never released";
      return;
    }
  }

  void hear(uint8_t node) override {
    for (const auto& member : living()) renew(member.get());
    std::shared_ptr<FusionMember> member;
    {
      const std::lock_guard lock(mutex_);
      const auto found = members_.find(node);
      if (found != members_.end()) member = found->second;
    }
    if (member != nullptr) renew(member.get());
  }
  [[nodiscard]] uint64_t reads_of_others(uint8_t node) override {
    const std::lock_guard lock(mutex_);
    const clients::TitCounters& counters = members_[node]->others()->counters();
    return counters.gets.load() + counters.calls.load();
  }
  [[nodiscard]] LockAuthority* any_locks() override {
    const std::lock_guard lock(mutex_);
    return members_.empty() ? nullptr : members_.begin()->second->locks();
  }
  Status store_all() override { return ok_status(); }
  [[nodiscard]] uint64_t page_transfers() override { return 0; }

 private:
  std::vector<std::shared_ptr<FusionMember>> living() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<FusionMember>> all;
    for (const auto& [node, member] : members_) all.push_back(member);
    return all;
  }
  void renew(FusionMember* member) {
    const Status renewed = member->renew();
    if (renewed.ok()) return;
    const std::lock_guard lock(mutex_);  // else it has crashed meanwhile
    for (const auto& [node, there] : members_) EXPECT_NE(there.get(), member) << renewed;
  }
  [[nodiscard]] uint64_t lives_of(uint8_t node) {
    for (const auto& server : node_.service()->status().servers)
      if (server.server.value == node) return server.life;
    ADD_FAILURE() << "node " << int{node} << " is not there";
    return 0;
  }
  [[nodiscard]] bool is_there(uint8_t node) {
    for (const auto& server : node_.service()->status().servers)
      if (server.server.value == node) return true;
    return false;
  }

  FusionNode node_;
  std::mutex mutex_;
  std::map<uint8_t, std::shared_ptr<FusionMember>> members_;  // under mutex_
  std::vector<std::shared_ptr<FusionMember>> graveyard_;
  std::atomic<uint64_t> last_life_{0};
};

const bool is_set = [] {
  cluster_services = [](uint8_t) { return std::make_unique<WireServices>(); };
  return true;
}();

}  // namespace
}  // namespace strata::engine::testing
