// Goal: a replica finds out whether it may wait (internal/gather_policy.h). Method: answers of a
// group in virtual time: replicas have appends durable after half a millisecond, or wait 5 ms for
// more; the next append is sent 1.5 ms after two of them have answered.
#include "storenode/logstore/internal/gather_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace strata::logstore {
namespace {

struct Group {
  // Beside the one that may wait. With two of them nobody waits for it.
  explicit Group(uint64_t others) : others_(others) {}
  void append() {
    if (waits_until_.has_value() && *waits_until_ <= now) {
      policy_.waited(waiting_ > 1, *waits_until_);  // a later append has said so
      waits_until_.reset();
      waiting_ = 0;
    }
    if (!waits_until_.has_value() && policy_.may_wait(now)) {
      waits_until_ = now + 5000;
      ++syncs;
    }
    if (waits_until_.has_value()) {
      ++waiting_;
    } else {
      ++syncs;
    }
    const uint64_t took = others_ >= 2 ? 500 : waits_until_.value_or(now) + 500 - now;
    waited_us += took - 500;
    ++appends;
    now += took + 1500;
  }
  uint64_t now = 0, appends = 0, waited_us = 0, syncs = 0;

 private:
  const uint64_t others_;
  GatherPolicy policy_;
  std::optional<uint64_t> waits_until_;
  uint64_t waiting_ = 0;
};

TEST(GatherPolicy, OneSyncForSeveralAppendsWhileTheOthersSuffice) {  // GA1
  Group group(2);
  while (group.now < 60'000'000) group.append();
  EXPECT_LT(group.syncs * 2, group.appends);
  EXPECT_EQ(group.waited_us, 0u);
}

TEST(GatherPolicy, HardlyACommitWaitsWhenTheyDoNot) {  // GA1
  Group group(1);
  while (group.now < 60'000'000) group.append();
  EXPECT_LT(group.waited_us * 250, group.now);
}

}  // namespace
}  // namespace strata::logstore
