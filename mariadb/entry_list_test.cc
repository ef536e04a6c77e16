// Lists of a row's entries: what they say, whatever the buffer they are made in does.
#include "mariadb/entry_list.h"

#include <gtest/gtest.h>

namespace strata::glue {
namespace {

constexpr size_t kIndexes = 40;

void make(EntryList* entries, size_t index, const std::string& key, const std::string& covering,
          bool has_null = false, size_t beside = 8) {
  entries->begin(index);
  entries->bytes()->append(key.data(), key.size());
  entries->end_key(index, has_null);
  entries->bytes()->append(covering.data(), covering.size());
  entries->end_covering(index, beside);
}

// EL1: the buffer grows many times; the images are made afterwards.
TEST(EntryList, KeepsKeysApartFromWhatTheyCover) {
  EntryList entries;
  entries.open(kIndexes);
  for (int round = 0; round < 2; ++round) {  // the second without growing
    entries.clear();
    const auto key = [](size_t i) { return std::string(i * 7, static_cast<char>('a' + i % 26)); };
    for (size_t i = 1; i < kIndexes; ++i) make(&entries, i, key(i), std::string(i, 'c'), i == 3);
    for (size_t i = 1; i < kIndexes; ++i) entries.add(i, i % 3 == 0);
    ASSERT_EQ(entries.size(), kIndexes - 1);
    for (size_t i = 1; i < kIndexes; ++i) {
      const engine::EntryImage& image = entries.images()[i - 1];
      EXPECT_EQ(image.index, i);
      EXPECT_EQ(image.key, key(i));
      EXPECT_EQ(image.covering, std::string(i, 'c'));
      EXPECT_EQ(image.check_unique, i % 3 == 0 && i != 3) << "a key with NULL never conflicts";
    }
  }
}

TEST(EntryList, WhatIsRemovedIsFoundByItsKey) {
  EntryList entries;
  entries.open(2);
  make(&entries, 1, "key", "covering");
  entries.remove(1);
  EXPECT_EQ(entries.images()[0].key, "key");
  EXPECT_TRUE(entries.images()[0].covering.empty());
  EXPECT_FALSE(entries.images()[0].check_unique);
  entries.clear();
  EXPECT_TRUE(entries.empty());
}

// TL4: what does not fit goes whole, and what comes behind it is not disturbed.
TEST(EntryList, CoveringBytesThatDoNotFitAreLeftOut) {
  EntryList entries;
  entries.open(4);
  const size_t beside = 100;
  const std::string key(50, 'k');
  const size_t most = engine::kMaxEntryBytes - beside - key.size();
  make(&entries, 1, key, std::string(most, 'x'), false, beside);
  make(&entries, 2, key, std::string(most + 1, 'x'), false, beside);
  make(&entries, 3, "next", "y", false, beside);
  EXPECT_EQ(entries.covering(1).size(), most);
  EXPECT_TRUE(entries.covering(2).empty());
  EXPECT_EQ(entries.key(2), key);
  EXPECT_EQ(entries.key(3), "next");
  EXPECT_EQ(entries.covering(3), "y");
}

}  // namespace
}  // namespace strata::glue
