// Goal: what RFR1 and RFR2 promise: the last whole record of a log is found, whatever its end was
// torn to, and damage before a whole record is an error, never an older record. Method: logs that
// are cut and changed at every byte, and random bytes (prints its seed; STRATA_SEED).
#include "memnode/host/record_frames.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "base/rng.h"

namespace strata::memnode {
namespace {

constexpr Lsn kBegin{4096};

std::string log_of(const std::vector<std::string>& records) {
  std::string log;
  for (const std::string& record : records) log += frame_of(Lsn{kBegin.value + log.size()}, record);
  return log;
}

TEST(RecordFrames, TheLastRecordIsFound) {
  const auto none = last_record({}, kBegin);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->record.has_value());
  EXPECT_EQ(none->end, kBegin);
  for (const std::string& last : {std::string(), std::string("x"), std::string(1000, 'y')}) {
    const std::string log = log_of({"first", "second one", last});
    EXPECT_EQ(log.size() % kFrameAlignment, 0u);
    const auto found = last_record(log, kBegin);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->record, last);
    EXPECT_EQ(found->end, Lsn{kBegin.value + log.size()});
    EXPECT_EQ(found->at, Lsn{kBegin.value + log_of({"first", "second one"}).size()});
  }
}

TEST(RecordFrames, ATornEndIsNoRecord) {  // RFR2
  const std::string before = log_of({"first", "second"});
  const std::string log = log_of({"first", "second", "third record"});
  for (size_t bytes = before.size(); bytes < log.size(); ++bytes) {
    const auto found = last_record(Bytes(log).substr(0, bytes), kBegin);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->record, "second") << bytes;
    EXPECT_EQ(found->end, Lsn{kBegin.value + before.size()});
  }
}

TEST(RecordFrames, DamageBeforeAWholeRecordIsAnError) {  // RFR2
  const std::string log = log_of({"first", "second"});
  const size_t second = log_of({"first"}).size();
  for (size_t at = 0; at < log.size(); ++at) {
    std::string damaged = log;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    const auto found = last_record(damaged, kBegin);
    if (at < second) {
      EXPECT_TRUE(is_corruption(found.status())) << at;
    } else {
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->record, "first") << at;
    }
  }
}

TEST(RecordFrames, WhatBelongsElsewhereIsNoRecord) {  // RFR1
  const std::string elsewhere = frame_of(Lsn{8192}, "of an earlier life");
  const auto found = last_record(log_of({"first"}) + elsewhere, kBegin);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->record, "first");
}

TEST(RecordFrames, RandomBytesAreNoRecords) {
  const char* const given = std::getenv("STRATA_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string log = log_of({"first"});
    const size_t whole = log.size();
    for (uint64_t i = rng.below(200); i > 0; --i) log += static_cast<char>(rng.below(256));
    const auto found = last_record(log, kBegin);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->record, "first");
    EXPECT_EQ(found->end, Lsn{kBegin.value + whole});
  }
}

}  // namespace
}  // namespace strata::memnode
