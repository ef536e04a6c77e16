// Random groups over random pages, in one stream or several, whose chains go from one to another,
// horizons, restarts, power losses and lost caches, in every mode: whatever the page store answers
// is what the writer had, byte for byte; what it must be able to answer, it does. Several streams
// get durable, are scanned, and come to be known in any order.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/testing/sanitized.h"
#include "storenode/replay/testing/test_store.h"

namespace strata::storenode {
namespace {

using testing::MemoryLog;
using testing::TestStore;

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Variant {
  const char* name;
  ReplayMode mode;
  bool every;
  uint32_t streams = 1;
  bool late = false;  // streams
};

class ModelRun {
 public:
  ModelRun(const Variant& variant, uint64_t seed) : rng_(seed), test_(variant.mode, variant.every) {
    test_.options().page_cache_bytes = rng_.one_in(2) ? 1u << 20 : 0;
    test_.options().log_cache_bytes = rng_.one_in(2) ? 16u << 20 : 0;
    test_.options().map_bytes = rng_.one_in(2) ? 1u << 20 : 8u << 10;
    test_.options().replay_lag_bytes = rng_.one_in(2) ? 0 : 1 + rng_.below(20'000);
    test_.options().scan_batch_bytes = rng_.one_in(2) ? 1u << 20 : 500;
    for (uint32_t i = 1; i < variant.streams; ++i) test_.add_log();
    if (variant.late) test_.let_streams_come_late();
    test_.open();
  }

  void run(uint32_t steps) {
    for (uint32_t i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(::testing::Message() << "step " << i);
      step();
    }
    finish();
  }

 private:
  PageId random_page() {
    return {300 + static_cast<uint32_t>(rng_.below(2)), static_cast<uint32_t>(rng_.below(8))};
  }
  void expect_ok(const StatusOr<bool>& status) { ASSERT_TRUE(status.ok()) << status.status(); }

  void step() {
    switch (rng_.below(20)) {
      case 0:
        if (!rng_.one_in(4)) return;
        test_.crash(rng_.next());
        waiting_.clear();
        return test_.open();
      case 1:
        if (!rng_.one_in(4)) return;
        test_.close();
        waiting_.clear();
        return test_.open();
      case 2:
        ASSERT_TRUE(test_.store().checkpoint().ok());
        return;
      case 3:
        return test_.store().forget_caches();
      case 4:
        return expect_ok(test_.store().collect_step(1 + static_cast<uint32_t>(rng_.below(8))));
      case 5:
        return move_horizon();
      case 6:
        if (rng_.one_in(4)) test_.add_stream(rng_.below(test_.logs()));
        return write();
      case 7:
      case 8:
        return write();
      case 9:
      case 10:
        return expect_ok(test_.store().scan_step());
      case 11:
      case 12:
      case 13:
        return expect_ok(test_.store().replay_step());
      case 14:
        (void)test_.store().serve_step();
        return check_waiting();
      default:
        return ask();
    }
  }

  void write() {
    std::vector<PageId> pages;
    for (uint64_t count = 1 + rng_.below(4); count > 0; --count) {
      const PageId page = random_page();
      if (std::find(pages.begin(), pages.end(), page) == pages.end()) pages.push_back(page);
    }
    std::vector<testing::WrittenSection> sections;
    for (const PageId page : pages)
      sections.push_back({page, test_.writer().change_ops(&rng_, page)});
    if (rng_.one_in(10)) test_.writer().observe(Llsn{test_.writer().last().value + 5000});
    const size_t log = rng_.below(test_.logs());
    test_.writer().write_to(&test_.log(log), static_cast<uint8_t>(1 + log), sections);
    // Durability comes in pieces that end anywhere.
    MemoryLog& other = test_.log(rng_.below(test_.logs()));
    const uint64_t durable = other.durable_lsn().value;
    const uint64_t end = other.end().value;
    other.make_durable(Lsn{rng_.one_in(3) ? durable + rng_.below(end - durable + 1) : end});
  }

  // A reader's lease at some state that is not collected; sometimes he lets go of everything.
  void move_horizon() {
    test_.pass_time(1);
    const Llsn known = newest_scanned();
    const uint64_t floor = test_.store().status().horizon.value;
    if (lease_.value < floor) lease_ = Llsn{floor};
    if (known > lease_ && rng_.one_in(2))
      lease_ = Llsn{lease_.value + rng_.below(known.value - lease_.value + 1)};
    test_.options().leases.lease_us = 0;
    // Renewed for the moment: time stands still until the horizon is taken.
    ASSERT_TRUE(test_.store().renew_lease(7, lease_, UINT64_MAX / 2).ok());
    ASSERT_TRUE(test_.store().raise_horizon().ok());
    EXPECT_LE(test_.store().status().horizon, lease_);
    test_.store().release_lease(7);
  }

  Llsn newest_scanned() {
    Llsn newest;
    for (const auto& stream : test_.store().status().streams)
      newest = std::max(newest, stream.scanned.llsn);
    return newest;
  }
  // Whether the group that wrote the page then is.
  bool is_durable(PageId page, Llsn llsn) {
    const auto& groups = test_.writer().groups();
    return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
      return group.llsn == llsn && group.end <= group.log->durable_lsn() &&
             std::find(group.pages.begin(), group.pages.end(), page) != group.pages.end();
    });
  }
  // How far each stream must be known for a state to be complete (GP1).
  std::vector<GetPageRequest::Position> positions_of(Llsn llsn) {
    std::vector<GetPageRequest::Position> positions;
    for (uint32_t i = 0; i < test_.logs(); ++i) positions.push_back({StreamId{i + 1}, Lsn{}});
    for (const auto& group : test_.writer().groups())
      for (uint32_t i = 0; i < test_.logs(); ++i)
        if (group.llsn <= llsn && group.log == &test_.log(i)) positions[i].lsn = group.end;
    // Of a stream in which nothing is nobody knows.
    std::erase_if(positions, [](const auto& position) { return position.lsn.is_zero(); });
    return positions;
  }

  // By somebody who knows what was written up to some llsn, and not which llsn the page has (GP3).
  void ask_newest() {
    const Llsn known{rng_.below(test_.writer().last().value + 2)};
    Asked asked{random_page(), kNewestState, kNewestState, {}, {}};
    const std::string* const page = test_.writer().at(asked.page, known);
    asked.written = page == nullptr ? Llsn{} : Llsn{header_of(page->data())->llsn};
    const uint64_t deadline = rng_.one_in(2) ? 0 : UINT64_MAX;
    asked.answer =
        test_.ask(asked.page, asked.at_least, asked.at_most, deadline, positions_of(known));
    waiting_.push_back(asked);
    check_waiting();
  }

  // As of any llsn, known yet or not.
  void ask() {
    if (test_.mode() == ReplayMode::kSmart && rng_.one_in(3)) return ask_newest();
    const Llsn horizon = test_.store().status().horizon;
    Asked asked;
    asked.page = random_page();
    asked.at_least = Llsn{rng_.below(test_.writer().last().value + 2)};
    if (rng_.one_in(2)) asked.at_least = std::max(asked.at_least, horizon);
    asked.at_most = rng_.one_in(2) ? asked.at_least
                                   : Llsn{rng_.one_in(2) ? UINT64_MAX
                                                         : asked.at_least.value + rng_.below(2000)};
    const uint64_t deadline = rng_.one_in(2) ? 0 : UINT64_MAX;
    std::vector<GetPageRequest::Position> positions;
    if (test_.logs() > 1 || rng_.one_in(3)) positions = positions_of(asked.at_least);
    if (!positions.empty() || test_.logs() > 1) asked.written = written_to(asked);
    asked.answer =
        test_.ask(asked.page, asked.at_least, asked.at_most, deadline, std::move(positions));
    waiting_.push_back(asked);
    check_waiting();
  }

  struct Asked {
    PageId page;
    Llsn at_least, at_most;
    // The positions it named stand for what was written by then: the page's llsn. Without them it
    // is answered as of what was written when it is answered.
    std::optional<Llsn> written;
    TestStore::Answer answer;
  };

  // Zero: the page is not there yet.
  Llsn written_to(const Asked& asked) {
    const std::string* const page = test_.writer().at(asked.page, asked.at_least);
    return page == nullptr ? Llsn{} : Llsn{header_of(page->data())->llsn};
  }

  void check_waiting() {
    std::erase_if(waiting_, [this](const Asked& asked) {
      if (!asked.answer->has_value()) return false;
      check(asked, **asked.answer);
      return true;
    });
  }

  void check(const Asked& asked, const StatusOr<PageAnswer>& answer) {
    SCOPED_TRACE(::testing::Message() << "page " << asked.page.space << ":" << asked.page.number
                                      << " from llsn " << asked.at_least.value << " to "
                                      << asked.at_most.value << ": " << answer.status());
    const bool single = test_.mode() == ReplayMode::kSingle;
    const Llsn written = asked.written.has_value() ? *asked.written : written_to(asked);
    if (answer.ok()) {
      // The newest version at or below some llsn of the range that is durable (S1).
      EXPECT_LE(answer->llsn, asked.at_most);
      EXPECT_TRUE(is_durable(asked.page, answer->llsn));
      EXPECT_TRUE(test_.is_right(*answer, asked.page, answer->llsn));
      EXPECT_GE(answer->llsn, written);
    } else if (is_not_found(answer.status())) {
      EXPECT_EQ(written, Llsn{});
    } else if (is_out_of_range(answer.status())) {
      if (!single) {
        EXPECT_LT(asked.at_least, test_.store().status().horizon);
      }
    } else {
      ASSERT_TRUE(is_peer_down(answer.status())) << answer.status();
    }
  }

  // Everything gets durable, is replayed and collected; then every state that is promised is there.
  void finish() {
    if (::testing::Test::HasFailure()) return;
    for (size_t i = 0; i < test_.logs(); ++i) test_.add_stream(i);
    for (size_t i = 0; i < test_.logs(); ++i) test_.log(i).make_durable(test_.log(i).end());
    for (int round = 0; round < 2; ++round) {
      test_.scan_all();
      check_every_state(/*replayed=*/round != 0);
      // The second one gives the workers what they have left alone (PP3).
      ASSERT_TRUE(test_.store().checkpoint().ok());
      ASSERT_TRUE(test_.store().checkpoint().ok());
      test_.replay_all();
      test_.serve_all();
      check_waiting();
      EXPECT_TRUE(waiting_.empty() || round == 0);
      EXPECT_EQ(test_.store().backlog_bytes(), 0u);
      test_.collect_all();
      check_every_state(/*replayed=*/true);
      ASSERT_TRUE(test_.store().checkpoint().ok());
      for (uint32_t i = 0; i < test_.logs(); ++i) {
        EXPECT_EQ(test_.store().needed_from(StreamId{i + 1}), test_.log(i).end());
        test_.log(i).cut_front(test_.log(i).end());  // RP4
      }
      test_.crash(rng_.next());
      test_.open();
      check_every_state(/*replayed=*/true);
    }
  }

  void check_every_state(bool replayed) {
    const Llsn horizon = test_.store().status().horizon;
    const bool exact = replayed || test_.mode() == ReplayMode::kSmart;
    for (const auto& group : test_.writer().groups()) {
      for (const PageId page : group.pages) {
        const Llsn at = std::max(group.llsn, horizon);
        const StatusOr<PageAnswer> answer = test_.get_now(page, at);
        if (test_.mode() == ReplayMode::kSingle) {
          if (replayed && answer.ok()) {
            EXPECT_TRUE(test_.is_right(answer, page, at));
          }
          if (replayed && at >= test_.writer().newest(page)) {
            EXPECT_TRUE(answer.ok()) << answer.status();
          }
        } else if (exact) {
          ASSERT_TRUE(test_.is_right(answer, page, at)) << answer.status() << " llsn " << at.value;
        } else if (!is_peer_down(answer.status())) {
          ASSERT_TRUE(test_.is_right(answer, page, at)) << answer.status() << " llsn " << at.value;
        }
      }
    }
  }

  Rng rng_;
  TestStore test_;
  Llsn lease_;
  std::vector<Asked> waiting_;
};

class PageStoreModel : public ::testing::TestWithParam<Variant> {};

TEST_P(PageStoreModel, AnswersAreWhatTheWriterHad) {
  const uint64_t first = number_from("STRATA_SEED", 1);
  const uint64_t rounds = number_from("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(4, 2));
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "STRATA_SEED=" << seed);
    ModelRun run(GetParam(), seed);
    run.run(400);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, PageStoreModel,
    ::testing::Values(Variant{"single", ReplayMode::kSingle, false},
                      Variant{"eager", ReplayMode::kEager, false},
                      Variant{"filtered", ReplayMode::kFiltered, false},
                      Variant{"smart", ReplayMode::kSmart, false},
                      Variant{"smart_every", ReplayMode::kSmart, true},
                      Variant{"smart_two", ReplayMode::kSmart, false, 2},
                      Variant{"smart_every_two", ReplayMode::kSmart, true, 2},
                      Variant{"smart_five", ReplayMode::kSmart, false, 5},
                      Variant{"smart_late", ReplayMode::kSmart, false, 4, true},
                      Variant{"smart_every_late", ReplayMode::kSmart, true, 4, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace strata::storenode
