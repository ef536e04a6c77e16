// Sorting in memory and through runs; what is left of files; a full disk; damaged runs.
#include "sort/sorter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "base/rng.h"
#include "io/file_system.h"

namespace strata {
namespace {

using Pair = std::pair<std::string, std::string>;
using Pairs = std::vector<Pair>;

constexpr size_t kSmall = 4096;  // the least: blocks of 256 bytes, some 80 short pairs
const char* const kPrefix = "/tmp/sort-";

class SorterTest : public ::testing::Test {
 protected:
  SorterTest() { EXPECT_TRUE(disk_->make_directory("/tmp").ok()); }

  std::vector<std::string> files() {
    auto names = disk_->list("/tmp");
    EXPECT_TRUE(names.ok());
    return *names;
  }
  // Adds them, and says what went wrong first.
  static Status add_all(Sorter* sorter, const Pairs& pairs) {
    for (const auto& [key, value] : pairs) STRATA_RETURN_IF_ERROR(sorter->add(key, value));
    return ok_status();
  }
  static Status read_all(Sorter* sorter, Pairs* out) {
    STRATA_RETURN_IF_ERROR(sorter->finish());
    Bytes key;
    Bytes value;
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const bool found, sorter->next(&key, &value));
      if (!found) return ok_status();
      out->emplace_back(key, value);
    }
  }
  // Keys in order; among equal keys the values may come in any.
  static void expect_sorted(Pairs got, Pairs wanted) {
    ASSERT_TRUE(std::is_sorted(got.begin(), got.end(),
                               [](const Pair& a, const Pair& b) { return a.first < b.first; }));
    std::sort(got.begin(), got.end());
    std::sort(wanted.begin(), wanted.end());
    ASSERT_TRUE(got == wanted);
  }
  void expect_sorts(const Pairs& pairs, size_t memory_bytes, uint64_t* spilled = nullptr) {
    {
      Sorter sorter(disk_.get(), kPrefix, memory_bytes);
      Pairs got;
      ASSERT_TRUE(add_all(&sorter, pairs).ok());
      ASSERT_TRUE(read_all(&sorter, &got).ok());
      expect_sorted(got, pairs);
      EXPECT_EQ(sorter.count(), pairs.size());
      EXPECT_EQ(sorter.spilled_bytes() == 0, files().empty());
      if (spilled != nullptr) *spilled = sorter.spilled_bytes();
      Bytes key;
      Bytes value;
      EXPECT_FALSE(*sorter.next(&key, &value));  // again and again
    }
    EXPECT_TRUE(files().empty());
  }
  static Pairs random_pairs(size_t count, size_t key_bytes = 12, uint64_t seed = 1) {
    Rng rng(seed);
    Pairs pairs(count);
    for (auto& [key, value] : pairs) {
      for (size_t i = 0; i < key_bytes; ++i) key.push_back(static_cast<char>(rng.next()));
      value = std::to_string(rng.next());
    }
    return pairs;
  }
  static uint64_t bytes_of(const Pairs& pairs) {
    uint64_t sum = 0;
    for (const auto& [key, value] : pairs) sum += key.size() + value.size();
    return sum;
  }

  const std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
};

TEST_F(SorterTest, NothingAddedNothingComes) {
  Sorter sorter(disk_.get(), kPrefix, 1 << 20);
  Pairs got;
  ASSERT_TRUE(read_all(&sorter, &got).ok());
  EXPECT_TRUE(got.empty());
  EXPECT_EQ(sorter.count(), 0u);
}

TEST_F(SorterTest, WhatFitsInMemoryMakesNoFile) {
  uint64_t spilled = 1;
  expect_sorts(random_pairs(5000), 1 << 20, &spilled);
  EXPECT_EQ(spilled, 0u);
}

TEST_F(SorterTest, AnUnusedObjectLeavesNothing) {
  { Sorter sorter(disk_.get(), kPrefix, kSmall); }
  {
    Sorter sorter(disk_.get(), kPrefix, kSmall);
    ASSERT_TRUE(add_all(&sorter, random_pairs(1000)).ok());
    EXPECT_FALSE(files().empty());
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(SorterTest, ManyRunsInOnePass) {
  const Pairs pairs = random_pairs(1000);
  uint64_t spilled = 0;
  expect_sorts(pairs, kSmall * 16, &spilled);
  EXPECT_EQ(spilled, 0u);
  expect_sorts(pairs, kSmall * 2, &spilled);
  EXPECT_GT(spilled, bytes_of(pairs));
  EXPECT_LT(spilled, 2 * bytes_of(pairs));  // each pair once
}

TEST_F(SorterTest, SeveralPasses) {
  const Pairs pairs = random_pairs(30000);  // some 400 runs, 15 at a time
  uint64_t spilled = 0;
  expect_sorts(pairs, kSmall, &spilled);
  EXPECT_GT(spilled, 2 * bytes_of(pairs));
}

TEST_F(SorterTest, OrderedInput) {
  Pairs pairs = random_pairs(3000);
  std::sort(pairs.begin(), pairs.end());
  expect_sorts(pairs, 1 << 20);
  expect_sorts(pairs, kSmall);
  std::reverse(pairs.begin(), pairs.end());
  expect_sorts(pairs, 1 << 20);
  expect_sorts(pairs, kSmall);
  // Only the last pair is out of order.
  std::reverse(pairs.begin(), pairs.end());
  pairs.emplace_back("", "last");
  expect_sorts(pairs, 1 << 20);
}

TEST_F(SorterTest, EqualKeysAllCome) {
  Pairs pairs;
  for (int i = 0; i < 4000; ++i)
    pairs.emplace_back(i % 3 == 0 ? "same" : "same key of more than eight bytes",
                       std::to_string(i));
  expect_sorts(pairs, 1 << 20);
  expect_sorts(pairs, kSmall);
}

TEST_F(SorterTest, EmptyKeysAndValues) {
  Pairs pairs;
  for (int i = 0; i < 1000; ++i) {
    pairs.emplace_back("", "");
    pairs.emplace_back(std::to_string(i), "");
    pairs.emplace_back("", std::to_string(i));
  }
  expect_sorts(pairs, 1 << 20);
  expect_sorts(pairs, kSmall);
}

TEST_F(SorterTest, KeysThatArePrefixesAndBytesThatAreNegative) {
  Pairs pairs;
  for (const size_t length : {0, 1, 2, 6, 7, 8, 9, 10, 15, 16, 17, 40}) {
    for (const char byte : {'\0', '\x01', 'a', '\x7f', '\x80', '\xff'}) {
      pairs.emplace_back(std::string(length, byte), "v");
      pairs.emplace_back(std::string(length, 'a') + byte, "w");
      pairs.emplace_back(std::string(length, '\0') + byte + '\0', "x");
    }
  }
  Rng rng(7);
  for (size_t i = pairs.size(); i-- > 1;) std::swap(pairs[i], pairs[rng.below(i + 1)]);
  expect_sorts(pairs, 1 << 20);
  expect_sorts(pairs, kSmall);
}

TEST_F(SorterTest, KeysThatBeginAlike) {
  for (const size_t common : {8, 11, 56, 64, 200}) {
    Pairs pairs = random_pairs(2000, 3);
    for (size_t i = 0; i < pairs.size(); ++i) {
      std::string& key = pairs[i].first;
      key.insert(0, std::string(common - i % 5, 'c'));
      key.append(i % 20, '\0');
      if (i % 7 == 0) key.resize(i % (common + 1), '\0');
    }
    expect_sorts(pairs, 1 << 20);
    expect_sorts(pairs, kSmall);
  }
}

TEST_F(SorterTest, LongPairsHaveBlocksOfTheirOwn) {
  Pairs pairs = random_pairs(500);
  for (size_t i = 0; i < pairs.size(); i += 3) pairs[i].second.assign(i * 2, 'v');
  for (size_t i = 1; i < pairs.size(); i += 7)
    pairs[i] = {pairs[i].first + std::string(900, 'k'), "v"};
  for (size_t i = 2; i < pairs.size(); i += 50) pairs[i] = {"k", std::string(1023, 'm')};
  expect_sorts(pairs, kSmall);
  expect_sorts(pairs, 16 * kSmall);
}

TEST_F(SorterTest, AQuarterOfTheMemoryIsTheLongestPair) {
  Pairs pairs;
  for (int i = 0; i < 100; ++i) pairs.emplace_back(std::string(512, 'a'), std::string(512, 'b'));
  expect_sorts(pairs, kSmall);
  for (const auto& [key, value] :
       {Pair(std::string(1025, 'a'), ""), Pair("", std::string(1025, 'b')),
        Pair(std::string(512, 'a'), std::string(513, 'b'))}) {
    Sorter sorter(disk_.get(), kPrefix, kSmall);
    ASSERT_TRUE(add_all(&sorter, pairs).ok());
    const Status status = sorter.add(key, value);
    EXPECT_TRUE(is_invalid_argument(status)) << status;
    EXPECT_TRUE(is_invalid_argument(sorter.add("a", "b")));  // SO3
    EXPECT_TRUE(is_invalid_argument(sorter.finish()));
    Bytes a;
    Bytes b;
    EXPECT_TRUE(is_invalid_argument(sorter.next(&a, &b).status()));
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(SorterTest, FilesOfAnEarlierLifeAreReplaced) {
  for (int i = 0; i < 10; ++i) {
    auto file = disk_->open(kPrefix + std::to_string(i), {.create = true});
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->write_at(0, std::string(100'000, 'x').data(), 100'000).ok());
  }
  const Pairs pairs = random_pairs(1000);
  Sorter sorter(disk_.get(), kPrefix, kSmall);
  Pairs got;
  ASSERT_TRUE(add_all(&sorter, pairs).ok());
  ASSERT_TRUE(read_all(&sorter, &got).ok());
  expect_sorted(got, pairs);
}

TEST_F(SorterTest, AFullDiskIsSaidAndNothingStays) {
  const Pairs pairs = random_pairs(3000);
  uint64_t needed = 0;
  expect_sorts(pairs, kSmall, &needed);
  // Some refusals come in add(), those of the higher capacities in finish(), where runs are merged.
  int refused = 0;
  for (uint64_t capacity = 0; capacity < needed; capacity += needed / 97) {
    disk_->set_capacity(capacity);
    {
      Sorter sorter(disk_.get(), kPrefix, kSmall);
      Pairs got;
      Status status = add_all(&sorter, pairs);
      if (status.ok()) status = read_all(&sorter, &got);
      if (status.ok()) {
        expect_sorted(got, pairs);
      } else {
        ASSERT_TRUE(is_no_space(status)) << status;
        ASSERT_NE(status.message().find(kPrefix), std::string::npos) << status;
        ++refused;
      }
    }
    ASSERT_TRUE(files().empty());
  }
  EXPECT_GT(refused, 40);
}

class DamageTest : public SorterTest {
 protected:
  // Sorts with `harm` done to the runs before they are read.
  template <typename Harm>
  void expect_found(const Harm& harm) {
    {
      Sorter sorter(disk_.get(), kPrefix, kSmall);
      ASSERT_TRUE(add_all(&sorter, pairs_).ok());
      const std::string path = harm();
      Pairs got;
      const Status status = read_all(&sorter, &got);
      ASSERT_TRUE(is_corruption(status)) << status;
      ASSERT_NE(status.message().find(path), std::string::npos) << status;
      Bytes key;
      Bytes value;
      ASSERT_TRUE(is_corruption(sorter.next(&key, &value).status()));  // SO3
    }
    ASSERT_TRUE(files().empty());
  }
  uint64_t size_of(const std::string& path) {
    auto file = disk_->open(path, {});
    EXPECT_TRUE(file.ok());
    return *(*file)->size();
  }

  const Pairs pairs_ = random_pairs(300);
  const std::string first_ = kPrefix + std::string("0");
};

TEST_F(DamageTest, AFlippedBit) {
  uint64_t bits = ~uint64_t{0};
  // Every bit of the first headers, then one here and there.
  for (uint64_t bit = 0; bit < bits; bit += bit < 8 * 48 ? 1 : 53) {
    expect_found([&] {
      bits = 8 * size_of(first_);
      disk_->flip_bit(first_, bit);
      return first_ + ", offset ";
    });
    ASSERT_FALSE(HasFailure()) << "bit " << bit;
  }
  EXPECT_GT(bits, 8u * 1000);
}

TEST_F(DamageTest, ACutFile) {
  uint64_t size = 1;
  for (uint64_t bytes = 0; bytes < size; bytes += 37) {
    expect_found([&] {
      size = size_of(first_);
      EXPECT_TRUE((*disk_->open(first_, {}))->truncate(bytes).ok());
      return first_ + ", offset ";
    });
    ASSERT_FALSE(HasFailure()) << "cut to " << bytes;
  }
}

TEST_F(DamageTest, AFileThatIsGone) {
  expect_found([&] {
    EXPECT_TRUE(disk_->remove(first_).ok());
    return first_;
  });
}

TEST_F(DamageTest, AnotherRunsFile) {  // all its checksums are right
  expect_found([&] {
    EXPECT_TRUE(disk_->remove(first_).ok());
    EXPECT_TRUE(disk_->rename(kPrefix + std::string("1"), first_).ok());
    return first_;
  });
}

TEST_F(DamageTest, BlocksThatChangedPlaces) {
  expect_found([&] {
    auto file = *disk_->open(first_, {});
    std::string bytes(size_of(first_), '\0');
    size_t got = 0;
    EXPECT_TRUE(file->read_at(0, bytes.data(), bytes.size(), &got).ok());
    const size_t one = 16 + load_u32(bytes.data() + 4);
    const size_t two = 16 + load_u32(bytes.data() + one + 4);
    const std::string changed = bytes.substr(one, two) + bytes.substr(0, one);
    EXPECT_TRUE(file->write_at(0, changed.data(), changed.size()).ok());
    return first_ + ", offset 0";
  });
}

TEST_F(SorterTest, OnTheRealDisk) {
  std::string folder = ::testing::TempDir() + "/strata_sort_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto disk = make_posix_file_system();
  const Pairs pairs = random_pairs(50'000);
  {
    Sorter sorter(disk.get(), folder + "/run-", 64u << 10);
    Pairs got;
    ASSERT_TRUE(add_all(&sorter, pairs).ok());
    ASSERT_TRUE(read_all(&sorter, &got).ok());
    expect_sorted(got, pairs);
    EXPECT_FALSE(disk->list(folder)->empty());
  }
  EXPECT_TRUE(disk->list(folder)->empty());
  EXPECT_TRUE(disk->remove(folder).ok());
}

}  // namespace
}  // namespace strata
