// Goal: what is written of a table's statistics is read again, whatever else is there is refused;
// and the record that follows another one has everybody's rows and the newest samples.
#include "mariadb/statistics_record.h"

#include <gtest/gtest.h>

namespace strata::glue {
namespace {

StatisticsRecord some_record() {
  StatisticsRecord record;
  record.space_id = 7;
  record.counts = {.known = true,
                   .version = 50,
                   .base = 40,
                   .rows = 1000,
                   .modified = 30,
                   .clustered_pages = 12,
                   .index_pages = 9,
                   .index_pages_beside = 4,
                   .updated_at = 1'700'000'000};
  record.number = 45;
  record.sampled_rows = 900;
  record.indexes[3] = {{1}};
  record.indexes[8] = {{250.125, 17.5, 1}};
  return record;
}

void expect_same(const StatisticsRecord& a, const StatisticsRecord& b) {
  EXPECT_EQ(encode(a), encode(b));
}

TEST(StatisticsRecord, ComesBackAsItWasWritten) {
  const StatisticsRecord record = some_record();
  const auto read = decode_statistics(encode(record));
  ASSERT_TRUE(read.has_value());
  expect_same(*read, record);
  EXPECT_EQ(read->counts.rows, 1000u);
  EXPECT_EQ(read->counts.updated_at, 1'700'000'000);
  EXPECT_EQ(read->indexes.at(8).rows_per_prefix, (std::vector<double>{250.125, 17.5, 1}));
}

TEST(StatisticsRecord, WhatDoesNotParseIsNothing) {
  const std::string whole = encode(some_record());
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(decode_statistics(Bytes(whole).substr(0, size)).has_value()) << size;
  EXPECT_FALSE(decode_statistics(whole + "x").has_value());
  std::string later = whole;
  later[0] = 2;  // a format to come
  EXPECT_FALSE(decode_statistics(later).has_value());
}

TEST(StatisticsRecord, KeysTellTheirTable) {
  EXPECT_EQ(table_of_statistics(statistics_key(0x1234567890)), 0x1234567890u);
  EXPECT_FALSE(table_of_statistics("statistics/").has_value());
  EXPECT_FALSE(table_of_statistics("alter/tics/12345678").has_value());
}

const Calculated kMine{.counts = {.known = true, .rows = 77, .modified = 6, .clustered_pages = 99}};

StatisticsRecord follow(const StatisticsRecord* before, const Calculated& mine,
                        const engine::Committed& untold, const engine::Committed& since = {},
                        uint64_t version = 60) {
  return next_record(before, 7, mine, untold, since, version);
}

TEST(NextRecord, RowsOfAllServersAddUp) {
  const StatisticsRecord before = some_record();
  const StatisticsRecord next = follow(&before, kMine, {.net = -100, .changed = 120});
  EXPECT_EQ(next.counts.rows, 900u);
  EXPECT_EQ(next.counts.modified, 150u);
  EXPECT_EQ(next.counts.version, 60u);
  EXPECT_EQ(next.counts.base, 40u);
  EXPECT_EQ(next.counts.clustered_pages, 12u);  // nobody has sampled
  EXPECT_EQ(next.number, 45u);
  EXPECT_EQ(next.indexes.size(), 2u);
  EXPECT_EQ(follow(&before, kMine, {.net = -2000, .changed = 2000}).counts.rows, 0u);
}

// Clocks of servers differ.
TEST(NextRecord, VersionsGrowWhateverTheClockSays) {
  const StatisticsRecord before = some_record();
  EXPECT_EQ(follow(&before, kMine, {.net = 1, .changed = 1}, {}, 3).counts.version, 51u);
}

TEST(NextRecord, TheFirstOneHasWhatTheServerKnows) {
  const StatisticsRecord first =
      follow(nullptr, kMine, {.net = 77, .changed = 80}, {.net = -7, .changed = 9});
  EXPECT_EQ(first.counts.rows, 70u);
  EXPECT_EQ(first.counts.modified, 15u);
  EXPECT_EQ(first.counts.base, 60u);
  EXPECT_EQ(first.counts.clustered_pages, 99u);
  EXPECT_EQ(first.number, 0u);
}

TEST(NextRecord, ASampleReplacesPagesAndOnlyIfFarApartRows) {
  const StatisticsRecord before = some_record();
  Calculated mine = kMine;
  mine.counts.modified = 0;
  mine.sampled = true;
  StatisticsRecord next = follow(&before, mine, {.net = 10, .changed = 10});
  EXPECT_EQ(next.counts.clustered_pages, 99u);
  EXPECT_EQ(next.counts.modified, 0u);
  EXPECT_EQ(next.counts.rows, 1010u);
  EXPECT_EQ(next.counts.base, 40u);
  mine.recounted = true;
  next = follow(&before, mine, {.net = 10, .changed = 10}, {.net = 3, .changed = 4});
  EXPECT_EQ(next.counts.rows, 80u);
  EXPECT_EQ(next.counts.modified, 4u);
  EXPECT_EQ(next.counts.base, 60u);
}

TEST(NextRecord, SampledIndexesReplaceTheOldOnes) {
  const StatisticsRecord before = some_record();
  Calculated mine = kMine;
  mine.sampled_rows = 1234;
  mine.indexes[9] = {{4}};
  const StatisticsRecord next = follow(&before, mine, {});
  EXPECT_EQ(next.number, 60u);
  EXPECT_EQ(next.sampled_rows, 1234u);
  EXPECT_EQ(next.indexes.size(), 1u);
}

TEST(Add, KeepsWhatTheNewerOneHasNot) {
  Calculated older = kMine, newer = kMine;
  newer.committed = {.net = 3, .changed = 3};
  older.recounted = older.sampled = true;
  older.indexes[9] = {{4}};
  older.sampled_rows = 70;
  add(&older, newer);
  EXPECT_TRUE(older.recounted);
  EXPECT_TRUE(older.sampled);
  EXPECT_EQ(older.committed.net, 3);
  EXPECT_EQ(older.sampled_rows, 70u);
  EXPECT_EQ(older.indexes.count(9), 1u);
}

TEST(WorthTelling, ManyAtOnceAndFewAfterAWhile) {
  EXPECT_FALSE(is_worth_telling({}, 0, 100'000'000));
  EXPECT_FALSE(is_worth_telling({.net = 5, .changed = 5}, 0, 1'000'000));
  EXPECT_TRUE(is_worth_telling({.net = 5, .changed = 5}, 0, 5'000'000));
  EXPECT_TRUE(is_worth_telling({.net = 100, .changed = 100}, 1000, 0));
  EXPECT_FALSE(is_worth_telling({.net = 100, .changed = 100}, 1'000'000, 0));
}

}  // namespace
}  // namespace strata::glue
