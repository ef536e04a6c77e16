// Goal: TD3, whatever is booked by whom: k cores do as much as k cores can, and no more. Method:
// random bookings against a list of each core's bookings, one after the other, and by several
// threads at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "dilate/node_state.h"
#include "dilate/virtual_cores.h"

namespace strata::dilate {
namespace {

TEST(VirtualCoresModel, EachBookingIsServedAsByAQueueInFrontOfSeveralServers) {
  std::mt19937_64 random(7);
  for (size_t cores = 1; cores <= 9; cores++) {
    std::vector<std::atomic<int64_t>> words(cores);
    const VirtualCores booked{std::span(words)};
    std::vector<int64_t> servers(cores, 0);
    int64_t now = 0;
    for (int i = 0; i < 20'000; i++) {
      now += static_cast<int64_t>(random() % 50);
      const auto length = static_cast<int64_t>(random() % (60 * cores));
      auto first = std::min_element(servers.begin(), servers.end());
      *first = std::max(now, *first) + length;
      ASSERT_EQ(booked.book(now, length), *first);
    }
  }
}

struct Booking {
  int64_t start;
  int64_t done;
};

// How many are served at once, at most.
size_t most_at_once(const std::vector<Booking>& bookings) {
  std::vector<std::pair<int64_t, int>> changes;
  for (const Booking& one : bookings) {
    changes.emplace_back(one.start, 1);
    changes.emplace_back(one.done, -1);
  }
  std::sort(changes.begin(), changes.end());  // an end comes before a beginning at the same time
  int now = 0;
  int most = 0;
  for (const auto& [when, change] : changes) most = std::max(most, now += change);
  return static_cast<size_t>(most);
}

TEST(VirtualCoresModel, ThreadsAtOnceGetNoMoreThanThereIs) {
  constexpr size_t kCores = 3;
  constexpr int64_t kLength = 10;
  std::array<std::atomic<int64_t>, kCores> words{};
  const VirtualCores cores(words);
  std::array<std::vector<Booking>, 4> bookings;
  {
    std::vector<std::jthread> threads;
    for (auto& mine : bookings)
      threads.emplace_back([&mine, &cores] {
        for (int i = 0; i < 20'000; i++) {
          const int64_t done = cores.book(0, kLength);
          mine.push_back({done - kLength, done});
        }
      });
  }
  std::vector<Booking> all;
  for (const auto& mine : bookings) all.insert(all.end(), mine.begin(), mine.end());
  EXPECT_EQ(most_at_once(all), kCores);
  // None is idle in between: all that was booked fits without a gap.
  int64_t last = 0;
  for (const Booking& one : all) last = std::max(last, one.done);
  EXPECT_EQ(last, (static_cast<int64_t>(all.size()) + 2) / 3 * kLength);
}

}  // namespace
}  // namespace strata::dilate
