#include "wal/control_file.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/rng.h"

namespace strata {
namespace {

constexpr const char* kPath = "/data/control";

struct Control : testing::Test {
  void SetUp() override {
    ASSERT_TRUE(fs->make_directory("/data").ok());
    data.database_id = 99;
    data.profile = "monolithic";
    data.checkpoint_lsn = Lsn{4096};
  }
  std::unique_ptr<SimFileSystem> fs = make_sim_file_system();
  ControlData data;
};

TEST_F(Control, RoundTrip) {
  EXPECT_EQ(ControlFile::open(fs.get(), kPath).status().code(), StatusCode::kNotFound);
  auto file = ControlFile::create(fs.get(), kPath, data);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(ControlFile::create(fs.get(), kPath, data).status().code(), StatusCode::kAlreadyExists);
  data.checkpoint_lsn = Lsn{8192};
  data.llsn_bias = 77;
  data.checkpoint_count = 3;
  data.clean_shutdown = true;
  ASSERT_TRUE((*file)->publish(data).ok());
  fs->crash(5);  // C1
  file = ControlFile::open(fs.get(), kPath);
  ASSERT_TRUE(file.ok()) << file.status();
  const ControlData& read = (*file)->data();
  EXPECT_EQ(read.database_id, 99u);
  EXPECT_EQ(read.profile, "monolithic");
  EXPECT_EQ(read.checkpoint_lsn, Lsn{8192});
  EXPECT_EQ(read.llsn_bias, 77u);
  EXPECT_EQ(read.checkpoint_count, 3u);
  EXPECT_TRUE(read.clean_shutdown);
}

// Goal: a crash at any point leaves the last published or the one being published.
TEST_F(Control, TornPublishKeepsTheOtherSlot) {
  ASSERT_TRUE(ControlFile::create(fs.get(), kPath, data).ok());
  Rng rng(1);
  uint64_t published = 0;
  for (int life = 0; life < 50; life++) {
    auto file = ControlFile::open(fs.get(), kPath);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->data().checkpoint_count, published);
    for (uint64_t n = rng.below(4); n > 0; n--) {
      data.checkpoint_count = ++published;
      ASSERT_TRUE((*file)->publish(data).ok());
    }
    // A write that is never synced, as a crash within publish() leaves it.
    auto raw = fs->open(kPath, {});
    ASSERT_TRUE(raw.ok());
    const std::string garbage(4096, static_cast<char>(life + 1));
    const uint64_t other_slot = (2 + published) % 2 == 0 ? 0 : 4096;  // not the newest
    ASSERT_TRUE((*raw)->write_at(other_slot, garbage.data(), garbage.size()).ok());
    fs->crash(rng.next());
  }
}

// A process killed between write and sync leaves a slot that only the page cache has. Once the next
// process has seen it, a power loss must not bring an older one back.
TEST_F(Control, WhatOpenReturnedIsDurable) {  // C3
  for (uint64_t seed = 1; seed < 40; ++seed) {
    const std::string path = "/data/control-" + std::to_string(seed);
    ASSERT_TRUE(ControlFile::create(fs.get(), path, data).ok());
    const std::string next = "/data/next";
    ControlData newer = data;
    newer.checkpoint_count = 7;
    ASSERT_TRUE(ControlFile::create(fs.get(), next, newer).ok());
    std::string slot(4096, '\0');
    size_t got = 0;
    ASSERT_TRUE((*fs->open(next, {}))->read_at(0, slot.data(), slot.size(), &got).ok());
    ASSERT_TRUE((*fs->open(path, {}))->write_at(0, slot.data(), slot.size()).ok());
    const auto seen = ControlFile::open(fs.get(), path);
    ASSERT_TRUE(seen.ok());
    const uint64_t count = (*seen)->data().checkpoint_count;
    fs->crash(seed);
    const auto again = ControlFile::open(fs.get(), path);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ((*again)->data().checkpoint_count, count) << seed;
    std::string after(4096, '\0');
    ASSERT_TRUE((*fs->open(path, {}))->read_at(0, after.data(), after.size(), &got).ok());
    EXPECT_EQ(after, slot) << seed;
    ASSERT_TRUE(fs->remove(next).ok());
  }
}

TEST_F(Control, DamageAndOtherFormatsAreRefusedWithThePath) {  // C2
  ASSERT_TRUE(ControlFile::create(fs.get(), kPath, data).ok());
  fs->flip_bit(kPath, 8 * 100);
  EXPECT_TRUE(ControlFile::open(fs.get(), kPath).ok()) << "the other copy is good";
  fs->flip_bit(kPath, 8 * (4096 + 100));
  const Status damaged = ControlFile::open(fs.get(), kPath).status();
  EXPECT_EQ(damaged.code(), StatusCode::kDataLoss);
  EXPECT_NE(std::string(damaged.message()).find(kPath), std::string::npos);

  fs = make_sim_file_system();
  ASSERT_TRUE(fs->make_directory("/data").ok());
  for (const uint32_t other : {kDataFormat + 1, kDataFormat - 1}) {
    const std::string path = kPath + std::to_string(other);
    data.data_format = other;
    ASSERT_TRUE(ControlFile::create(fs.get(), path, data).ok());
    const Status refused = ControlFile::open(fs.get(), path).status();
    EXPECT_TRUE(is_unsupported(refused));
    EXPECT_NE(std::string(refused.message()).find(path), std::string::npos);
  }

  auto raw = fs->open("/data/foreign", {.create = true});
  ASSERT_TRUE(raw.ok());
  ASSERT_TRUE((*raw)->write_at(0, "hello", 5).ok());
  EXPECT_EQ(ControlFile::open(fs.get(), "/data/foreign").status().code(), StatusCode::kDataLoss);
}

// Found by fuzzing: the name of a profile without an end was taken over and stopped the process at
// the next publish().
TEST_F(Control, ARightChecksumDoesNotMakeTheContentsRight) {
  ASSERT_TRUE(ControlFile::create(fs.get(), kPath, data).ok());
  const auto spoil = [&](uint64_t copy, size_t at, Bytes bytes) {
    const auto file = fs->open(kPath, {});
    ASSERT_TRUE(file.ok());
    std::string slot(4096, '\0');
    size_t got = 0;
    ASSERT_TRUE((*file)->read_at(copy * slot.size(), slot.data(), slot.size(), &got).ok());
    slot.replace(at, bytes.size(), bytes);
    const uint32_t checksum =
        crc32c(slot.data() + 16, slot.size() - 16, crc32c(slot.data() + 8, 4));
    store_u32(slot.data() + 12, checksum);
    ASSERT_TRUE((*file)->write_at(copy * slot.size(), slot.data(), slot.size()).ok());
  };
  spoil(1, 72, std::string(64, 'x'));  // the profile
  const auto opened = ControlFile::open(fs.get(), kPath);
  ASSERT_TRUE(opened.ok()) << "the other copy is good: " << opened.status();
  EXPECT_EQ((*opened)->data().profile, "monolithic");
  EXPECT_TRUE((*opened)->publish((*opened)->data()).ok());
  const auto number = [](uint64_t n) {
    std::string bytes;
    append_u64(&bytes, n);
    return bytes;
  };
  for (const auto& [first, second] : {std::pair<uint64_t, uint64_t>{3, 8},   // in the wrong place
                                      std::pair<uint64_t, uint64_t>{8, 1}})  // C4
  {
    spoil(0, 16, number(first));
    spoil(1, 16, number(second));
    EXPECT_EQ(ControlFile::open(fs.get(), kPath).status().code(), StatusCode::kDataLoss);
  }
  // The numbers may start again from 0.
  spoil(0, 16, number(UINT64_MAX - 1));
  spoil(1, 16, number(UINT64_MAX));
  const auto last = ControlFile::open(fs.get(), kPath);
  ASSERT_TRUE(last.ok()) << last.status();
  ControlData next = (*last)->data();
  next.checkpoint_count = 42;
  EXPECT_TRUE((*last)->publish(next).ok());
  const auto again = ControlFile::open(fs.get(), kPath);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->data().checkpoint_count, 42u);
}

}  // namespace
}  // namespace strata
