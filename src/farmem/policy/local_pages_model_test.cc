// Goal: FM1-FM3 over long random traces: the machine with its lists and frames agrees with an
// oracle that keeps plain deques, step by step, for every policy. STRATA_SEED=n repeats a round.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>

#include "base/rng.h"
#include "farmem/policy/local_pages.h"
#include "farmem/policy/replay.h"

namespace strata::farmem {
namespace {

constexpr uint64_t kPages = 400;

std::vector<uint64_t> pages_of(const std::vector<Framed>& list) {
  std::vector<uint64_t> pages;
  for (const Framed& framed : list) pages.push_back(framed.page);
  return pages;
}

// The same promises, told as slowly and simply as possible.
class Oracle {
 public:
  explicit Oracle(const Shares& shares) : shares_(shares), sets_(shares.sets) {}
  Place place(uint64_t page) const {
    if (holds(staged_, page)) return Place::kStaged;
    return holds(sets_[page % sets_.size()], page) ? Place::kMapped : Place::kAway;
  }
  struct Gone {
    std::vector<uint64_t> evict, stage;
  };
  void tidy(Gone* moves) {
    if (staged_.size() != shares_.staged) return;
    for (uint32_t i = 0; i < shares_.batch; i++) {
      moves->evict.push_back(staged_.front());
      staged_.pop_front();
    }
  }
  void bring(uint64_t page, Gone* moves) {
    remove(&staged_, page);
    auto& set = sets_[page % sets_.size()];
    if (set.size() == shares_.ways) {
      tidy(moves);
      moves->stage.push_back(set.front());
      staged_.push_back(set.front());
      set.pop_front();
    }
    set.push_back(page);
  }
  void forget(uint64_t page) {
    remove(&staged_, page);
    remove(&sets_[page % sets_.size()], page);
  }

 private:
  static bool holds(const std::deque<uint64_t>& list, uint64_t page) {
    return std::find(list.begin(), list.end(), page) != list.end();
  }
  static void remove(std::deque<uint64_t>* list, uint64_t page) { std::erase(*list, page); }
  const Shares shares_;
  std::vector<std::deque<uint64_t>> sets_;
  std::deque<uint64_t> staged_;
};

uint64_t first_seed() {
  const char* const given = std::getenv("STRATA_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
}

class LocalPagesModel : public testing::TestWithParam<const char*> {};

TEST_P(LocalPagesModel, AgreesWithTheOracle) {
  for (uint64_t seed = first_seed(); seed < first_seed() + 20; seed++) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    Rng rng(seed);
    PolicyOptions options{.frames = static_cast<uint32_t>(kFramesMin + rng.below(100))};
    ASSERT_TRUE(parse_policy(GetParam(), &options).ok());
    const auto local = *LocalPages::make(options, kPages);
    Oracle oracle(local->shares());
    for (int step = 0; step < 3000; step++) {
      const uint64_t page = rng.one_in(3) ? rng.below(20) : rng.below(kPages);
      ASSERT_EQ(local->place(page), oracle.place(page));
      if (rng.one_in(10)) {
        local->forget(page);
        oracle.forget(page);
      } else if (local->place(page) != Place::kMapped) {
        Moves moves;
        Oracle::Gone expected;
        local->bring(page, &moves);
        oracle.bring(page, &expected);
        ASSERT_EQ(pages_of(moves.evict), expected.evict);
        ASSERT_EQ(pages_of(moves.stage), expected.stage);
        for (const auto& list : {expected.evict, expected.stage})
          ASSERT_EQ(std::count(list.begin(), list.end(), page), 0);  // FM3
      } else if (rng.one_in(2)) {
        Moves moves;
        Oracle::Gone expected;
        local->tidy(&moves);
        oracle.tidy(&expected);
        ASSERT_EQ(pages_of(moves.evict), expected.evict);
      }
      ASSERT_LE(local->mapped() + local->staged(), options.frames);  // FM1
    }
    for (uint64_t page = 0; page < kPages; page++)
      ASSERT_EQ(local->place(page), oracle.place(page));
  }
}

// What comes in goes out or is there, whatever the policy and the prefetch: counts must add up.
TEST_P(LocalPagesModel, CountsAddUp) {
  Rng rng(first_seed());
  std::vector<Access> trace(20000);
  for (Access& access : trace) {
    // Runs, and now and then a jump: as programs do.
    static uint64_t at = 0;
    at = rng.one_in(8) ? rng.below(kPages) : (at + 1) % kPages;
    access = {at, rng.one_in(3) ? Change::kWritten : Change::kNone};
  }
  for (const uint32_t prefetch : {0u, 1u, 7u, 15u}) {
    PolicyOptions options{.frames = 96, .prefetch = prefetch};
    ASSERT_TRUE(parse_policy(GetParam(), &options).ok());
    const PageCounts counts = *replay(trace, options, kPages);
    EXPECT_EQ(counts.faults, counts.soft_hits + counts.zero_filled + counts.fetched);
    const uint64_t came = counts.zero_filled + counts.fetched + counts.prefetched;
    const uint64_t gone = counts.evicted_clean + counts.evicted_dirty + counts.evicted_zero;
    EXPECT_GE(came, gone);
    EXPECT_LE(came - gone, options.frames);
    EXPECT_EQ(counts.prefetched == 0, prefetch == 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, LocalPagesModel,
                         testing::Values("fifo", "second-chance", "assoc:1", "assoc:4", "assoc:16"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == ':' || c == '-'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace strata::farmem
