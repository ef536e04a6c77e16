// Goal: where two logs part is found from their histories alone (QH1, QH2). Method: cases by hand;
// then random families of logs, made the way the protocol makes them, whose bytes are compared.
#include "quorum/history.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/rng.h"

namespace strata::quorum {
namespace {

History make(std::initializer_list<std::pair<uint64_t, uint64_t>> entries) {
  History h;
  for (const auto& [epoch, start] : entries) h.push_back(EpochStart{Epoch{epoch}, Lsn{start}});
  return h;
}
LogShape shape(uint64_t start, uint64_t end, History history) {
  return LogShape{Lsn{start}, Lsn{end}, std::move(history)};
}
std::optional<Lsn> agreed(const LogShape& a, const LogShape& b) {
  const auto one = agreed_end(a, b);
  const auto other = agreed_end(b, a);
  EXPECT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
  EXPECT_EQ(*one, *other);
  return *one;
}

TEST(History, OnlyGrows) {
  EXPECT_TRUE(check_history({}).ok());
  EXPECT_TRUE(check_history(make({{1, 0}, {3, 10}})).ok());
  EXPECT_EQ(check_history(make({{1, 0}, {1, 10}})).code(), StatusCode::kDataLoss);
  EXPECT_EQ(check_history(make({{1, 10}, {2, 10}})).code(), StatusCode::kDataLoss);
  EXPECT_EQ(check_history(make({{0, 0}})).code(), StatusCode::kDataLoss);
}

TEST(History, TellsTheEpochOfAByte) {
  const History h = make({{1, 10}, {4, 20}, {7, 30}});
  EXPECT_EQ(epoch_at(h, Lsn{9}), Epoch{0});
  EXPECT_EQ(epoch_at(h, Lsn{10}), Epoch{1});
  EXPECT_EQ(epoch_at(h, Lsn{29}), Epoch{4});
  EXPECT_EQ(epoch_at(h, Lsn{1000}), Epoch{7});
  EXPECT_EQ(next_boundary(h, Lsn{10}, Lsn{100}), Lsn{20});
  EXPECT_EQ(next_boundary(h, Lsn{30}, Lsn{100}), Lsn{100});
  EXPECT_EQ(next_boundary(h, Lsn{10}, Lsn{15}), Lsn{15});
  EXPECT_EQ(last_epoch(h), Epoch{7});
  EXPECT_EQ(last_epoch({}), Epoch{0});
}

TEST(History, IsCutAndGrowsAndForgets) {
  const History h = make({{1, 10}, {4, 20}, {7, 30}});
  EXPECT_EQ(clipped(h, Lsn{30}), h);  // an epoch that begins at the end is part of the log
  EXPECT_EQ(clipped(h, Lsn{29}), make({{1, 10}, {4, 20}}));
  EXPECT_EQ(clipped(h, Lsn{5}), History{});
  EXPECT_EQ(begun(h, Epoch{9}, Lsn{40}), make({{1, 10}, {4, 20}, {7, 30}, {9, 40}}));
  EXPECT_EQ(begun(h, Epoch{9}, Lsn{30}), make({{1, 10}, {4, 20}, {9, 30}}));  // 7 wrote nothing
  EXPECT_EQ(begun(h, Epoch{9}, Lsn{10}), make({{9, 10}}));
  History short_memory = h;
  forget_below(&short_memory, Lsn{25});
  EXPECT_EQ(short_memory, make({{4, 20}, {7, 30}}));
  forget_below(&short_memory, Lsn{30});
  EXPECT_EQ(short_memory, make({{7, 30}}));
  forget_below(&short_memory, Lsn{1000});
  EXPECT_EQ(short_memory, make({{7, 30}}));
  History of_two = h;
  forget_oldest(&of_two, 2);
  EXPECT_EQ(of_two, make({{4, 20}, {7, 30}}));
  forget_oldest(&of_two, 3);
  EXPECT_EQ(of_two.size(), 2u);
  EXPECT_EQ(epoch_at(of_two, Lsn{10}), Epoch{0});
}

TEST(History, TakesOverAChosenOneWithoutForgettingItsOwnPast) {
  const History own = make({{1, 10}, {4, 20}, {6, 30}});
  EXPECT_EQ(joined(own, make({{4, 20}, {7, 35}})), make({{1, 10}, {4, 20}, {7, 35}}));
  EXPECT_EQ(joined(own, make({{1, 10}, {8, 15}})), make({{1, 10}, {8, 15}}));
  EXPECT_EQ(joined({}, own), own);
  EXPECT_EQ(joined(own, {}), own);
}

TEST(AgreedEnd, IsWhereEitherEndsOrGoesOnUnderAnotherEpoch) {
  const History one = make({{1, 0}});
  EXPECT_EQ(agreed(shape(0, 50, one), shape(0, 80, one)), Lsn{50});
  EXPECT_EQ(agreed(shape(0, 150, make({{1, 0}, {3, 100}})), shape(0, 130, make({{1, 0}, {2, 80}}))),
            Lsn{80});
  EXPECT_EQ(agreed(shape(0, 80, one), shape(0, 130, make({{1, 0}, {2, 80}}))), Lsn{80});
  EXPECT_EQ(agreed(shape(0, 95, one), shape(0, 130, make({{1, 0}, {2, 80}}))), Lsn{80});
  EXPECT_EQ(agreed(shape(0, 100, make({{1, 0}, {3, 100}})), shape(0, 100, one)), Lsn{100});
}

TEST(AgreedEnd, WorksWithWhatIsStillRemembered) {
  const LogShape whole = shape(0, 200, make({{1, 0}, {2, 80}, {5, 160}}));
  EXPECT_EQ(agreed(whole, shape(150, 190, make({{2, 80}, {5, 160}}))), Lsn{190});
  EXPECT_EQ(agreed(whole, shape(170, 180, make({{5, 160}}))), Lsn{180});
  // All that is known of one lies behind the other's end, or under epochs it never saw.
  EXPECT_EQ(agreed(shape(0, 100, make({{1, 0}})), shape(170, 180, make({{5, 160}}))), std::nullopt);
  EXPECT_EQ(agreed(shape(0, 175, make({{1, 0}, {3, 90}})), shape(170, 180, make({{5, 160}}))),
            std::nullopt);
}

TEST(AgreedEnd, OfALogThatWasNeverWritten) {
  const LogShape log = shape(40, 90, make({{2, 30}}));
  EXPECT_EQ(agreed(shape(0, 0, {}), log), std::nullopt);
  EXPECT_EQ(agreed(shape(40, 40, {}), log), Lsn{40});
  EXPECT_EQ(agreed(shape(91, 91, {}), log), std::nullopt);
  EXPECT_EQ(agreed(shape(7, 7, {}), shape(7, 7, {})), Lsn{7});
  EXPECT_EQ(agreed(shape(7, 7, {}), shape(8, 8, {})), std::nullopt);
}

TEST(AgreedEnd, ReportsLogsThatCannotBothBe) {
  const auto two_starts =
      agreed_end(shape(0, 200, make({{1, 0}, {2, 80}})), shape(0, 200, make({{1, 0}, {2, 90}})));
  EXPECT_EQ(two_starts.status().code(), StatusCode::kDataLoss);
  const auto two_pasts = agreed_end(shape(0, 200, make({{1, 0}, {3, 100}})),
                                    shape(0, 200, make({{1, 0}, {2, 80}, {3, 100}})));
  EXPECT_EQ(two_pasts.status().code(), StatusCode::kDataLoss);
}

TEST(IsNewer, EpochBeforeLength) {
  EXPECT_TRUE(is_newer(Epoch{3}, Lsn{10}, Epoch{2}, Lsn{100}));
  EXPECT_TRUE(is_newer(Epoch{2}, Lsn{101}, Epoch{2}, Lsn{100}));
  EXPECT_FALSE(is_newer(Epoch{2}, Lsn{100}, Epoch{2}, Lsn{100}));
  EXPECT_FALSE(is_newer(Epoch{1}, Lsn{100}, Epoch{2}, Lsn{1}));
}

// A log whose bytes say which epoch wrote them and where.
struct Log {
  std::vector<std::pair<uint64_t, uint64_t>> bytes;  // (epoch, position)
  LogShape shape;
};

Log prefix(const Log& log, uint64_t end) {
  Log out = log;
  out.bytes.resize(end);
  out.shape.end = Lsn{end};
  out.shape.history = clipped(log.shape.history, Lsn{end});
  return out;
}

TEST(AgreedEnd, IsRightForRandomFamiliesOfLogs) {
  const char* fixed = std::getenv("STRATA_SEED");
  std::random_device entropy;
  const uint64_t seed = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : entropy();
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<Log> logs(1);
    // Each epoch goes on from a prefix of any log there is, and writes something or nothing.
    for (uint64_t epoch = 1; epoch <= 8; ++epoch) {
      const Log& from = logs[rng.below(logs.size())];
      Log log = prefix(from, rng.below(from.bytes.size() + 1));
      const uint64_t start = log.bytes.size();
      log.shape.history = begun(log.shape.history, Epoch{epoch}, Lsn{start});
      for (uint64_t n = rng.below(6); n > 0; --n) log.bytes.emplace_back(epoch, log.bytes.size());
      log.shape.end = Lsn{log.bytes.size()};
      logs.push_back(log);
    }
    for (int pair = 0; pair < 50; ++pair) {
      const Log& x = logs[1 + rng.below(logs.size() - 1)];
      const Log& y = logs[1 + rng.below(logs.size() - 1)];
      const Log a = prefix(x, rng.below(x.bytes.size() + 1));
      const Log b = prefix(y, rng.below(y.bytes.size() + 1));
      uint64_t same = 0;
      while (same < a.bytes.size() && same < b.bytes.size() && a.bytes[same] == b.bytes[same])
        ++same;
      const std::optional<Lsn> found = agreed(a.shape, b.shape);
      // Without an epoch in common nothing is known, and nothing is equal.
      EXPECT_EQ(found.value_or(Lsn{0}).value, same)
          << describe(a.shape.history) << " / " << describe(b.shape.history);
    }
  }
}

}  // namespace
}  // namespace strata::quorum
