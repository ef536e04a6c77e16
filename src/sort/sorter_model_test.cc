// Random pairs against a sorted vector. Goal: whatever memory, shape of keys and values, order of
// input, room on the disk and damage to the runs, the sorter gives exactly the pairs added, in key
// order, or an error that says why, and leaves no file. Method: seeded rounds; the seed is printed.
// STRATA_SEED=n runs one seed, STRATA_ROUNDS=n more rounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "base/rng.h"
#include "io/file_system.h"
#include "sort/sorter.h"

namespace strata {
namespace {

using Pair = std::pair<std::string, std::string>;

class ModelRun {
 public:
  explicit ModelRun(uint64_t seed) : rng_(seed) {
    memory_bytes_ = (size_t{4096} << rng_.below(8)) + 16 * rng_.below(256);
    pairs_max_ = rng_.below(rng_.one_in(4) ? 50 : 8000);
    bytes_max_ = rng_.one_in(3) ? memory_bytes_ * 2 : memory_bytes_ * (2 + rng_.below(60));
    key_max_ = rng_.below(rng_.one_in(4) ? memory_bytes_ / 8 : 30);
    value_max_ = rng_.below(rng_.one_in(4) ? memory_bytes_ / 8 : 30);
    alphabet_ = rng_.one_in(3) ? 2 : 256;
    stem_ = std::string(rng_.one_in(3) ? rng_.below(rng_.one_in(2) ? 12 : 90) : 0, 's');
    order_ = static_cast<Order>(rng_.below(4));
    full_disk_ = rng_.one_in(4);
    damage_ = rng_.one_in(3);
    EXPECT_TRUE(disk_->make_directory("/d").ok());
  }

  void run() {
    make_pairs();
    uint64_t spilled = 0;
    run_once(&spilled);
    if (::testing::Test::HasFatalFailure() || spilled == 0) return;
    if (full_disk_) {
      disk_->set_capacity(rng_.below(spilled + spilled / 4));
      run_once(&spilled);
      disk_->set_capacity(~uint64_t{0});
    }
    if (damage_) {
      harm_in_ = 1 + rng_.below(2 * pairs_.size() + 2);
      run_once(&spilled);
    }
  }

 private:
  enum class Order : uint8_t { kRandom, kAscending, kDescending, kNearlyAscending };

  std::string random_bytes(size_t max) {
    std::string bytes(rng_.below(max + 1), '\0');
    for (char& byte : bytes) byte = static_cast<char>(rng_.below(alphabet_) * (256 / alphabet_));
    return bytes;
  }

  void make_pairs() {
    for (uint64_t bytes = 0; pairs_.size() < pairs_max_ && bytes < bytes_max_;) {
      std::string key = stem_ + random_bytes(key_max_);
      if (!pairs_.empty() && rng_.one_in(10)) key = pairs_[rng_.below(pairs_.size())].first;
      key.resize(std::min(key.size(), memory_bytes_ / 4));
      std::string value = random_bytes(value_max_);
      if (rng_.one_in(100)) value.resize(memory_bytes_ / 4 - key.size(), 'l');  // the longest
      value.resize(std::min(value.size(), memory_bytes_ / 4 - key.size()));
      bytes += key.size() + value.size();
      pairs_.emplace_back(std::move(key), std::move(value));
    }
    sorted_ = pairs_;
    std::sort(sorted_.begin(), sorted_.end());
    if (order_ == Order::kRandom) return;
    pairs_ = sorted_;
    if (order_ == Order::kDescending) std::reverse(pairs_.begin(), pairs_.end());
    if (order_ == Order::kNearlyAscending && !pairs_.empty()) {
      for (uint64_t i = rng_.below(4); i > 0; --i)
        std::swap(pairs_[rng_.below(pairs_.size())], pairs_[rng_.below(pairs_.size())]);
    }
  }

  // Any result but a wrong one: all pairs, or an error for which there is a reason.
  void run_once(uint64_t* spilled) {
    {
      Sorter sorter(disk_.get(), "/d/run", memory_bytes_);
      harmed_ = false;
      std::vector<Pair> got;
      const Status status = sort(&sorter, &got);
      *spilled = sorter.spilled_bytes();
      if (status.ok()) {
        expect_all(std::move(got));
      } else if (harmed_) {
        ASSERT_TRUE(is_corruption(status)) << status;
        ASSERT_NE(status.message().find("/d/run"), std::string::npos) << status;
        expect_prefix(got);
      } else {
        ASSERT_TRUE(is_no_space(status) && full_disk_) << status;
      }
    }
    ASSERT_TRUE(disk_->list("/d")->empty());
  }

  Status sort(Sorter* sorter, std::vector<Pair>* got) {
    for (const auto& [key, value] : pairs_) {
      STRATA_RETURN_IF_ERROR(sorter->add(key, value));
      maybe_harm();
    }
    EXPECT_EQ(sorter->count(), pairs_.size());
    STRATA_RETURN_IF_ERROR(sorter->finish());
    Bytes key;
    Bytes value;
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const bool found, sorter->next(&key, &value));
      if (!found) return ok_status();
      got->emplace_back(key, value);
      maybe_harm();
    }
  }

  // Once per run, at a random moment from the first file on.
  void maybe_harm() {
    if (harm_in_ == 0 || --harm_in_ != 0) return;
    const auto names = *disk_->list("/d");
    if (names.empty()) {
      harm_in_ = 1;
      return;
    }
    const std::string path = "/d/" + names[rng_.below(names.size())];
    auto file = *disk_->open(path, {});
    const uint64_t size = *file->size();
    if (size == 0) return;
    harmed_ = true;
    if (rng_.one_in(3)) {
      EXPECT_TRUE(file->truncate(rng_.below(size)).ok());
    } else {
      disk_->flip_bit(path, rng_.below(8 * size));
    }
  }

  void expect_all(std::vector<Pair> got) {
    ASSERT_EQ(got.size(), sorted_.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(got[i].first == sorted_[i].first) << i;
    std::sort(got.begin(), got.end());
    ASSERT_TRUE(got == sorted_);
  }
  // What came before the error was right.
  void expect_prefix(const std::vector<Pair>& got) {
    ASSERT_LE(got.size(), sorted_.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(got[i].first == sorted_[i].first) << i;
      ASSERT_TRUE(std::binary_search(sorted_.begin(), sorted_.end(), got[i])) << i;
    }
  }

  Rng rng_;
  const std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  size_t memory_bytes_, pairs_max_, key_max_, value_max_;
  uint64_t bytes_max_, alphabet_;
  std::string stem_;
  Order order_;
  bool full_disk_, damage_;
  bool harmed_ = false;
  uint64_t harm_in_ = 0;  // pairs until then; 0: never
  std::vector<Pair> pairs_;
  std::vector<Pair> sorted_;
};

TEST(SorterModel, RandomPairsComeSortedOrAnErrorSaysWhyNot) {
  const char* seed_text = std::getenv("STRATA_SEED");
  const char* rounds_text = std::getenv("STRATA_ROUNDS");
  const uint64_t first =
      seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : monotonic_us();
  const uint64_t rounds =
      rounds_text != nullptr ? std::strtoull(rounds_text, nullptr, 10) : (seed_text ? 1 : 60);
  for (uint64_t i = 0; i < rounds && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(first + i));
    std::printf("seed %llu\n", static_cast<unsigned long long>(first + i));
    ModelRun(first + i).run();
  }
}

}  // namespace
}  // namespace strata
