#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/fault.h"
#include "base/ids.h"
#include "base/latch.h"
#include "base/mapped_memory.h"
#include "base/profiles.h"
#include "base/rng.h"
#include "base/wait_interrupt.h"

namespace strata {
namespace {

TEST(Crc32c, MatchesThePublishedVectors) {
  // RFC 3720, appendix B.4: 32 bytes of zero, 32 bytes of 0xff.
  std::string zero(32, '\0');
  std::string ones(32, '\xff');
  EXPECT_EQ(crc32c(zero.data(), zero.size()), 0x8a9136aau);
  EXPECT_EQ(crc32c(ones.data(), ones.size()), 0x62a8ab43u);
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
}

TEST(Crc32c, SeedContinuesARunningSum) {
  EXPECT_EQ(crc32c("6789", 4, crc32c("12345", 5)), 0xe3069283u);
}

// The definition, bit by bit, beside lengths around those at which the way of summing changes.
TEST(Crc32c, EveryLengthAndPlaceGivesTheSumOfTheDefinition) {
  const auto by_bits = [](Bytes bytes, uint32_t seed) {
    uint32_t sum = ~seed;
    for (const char byte : bytes) {
      sum ^= static_cast<unsigned char>(byte);
      for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ ((sum & 1) != 0 ? 0x82f63b78u : 0u);
    }
    return ~sum;
  };
  Rng rng(1);
  std::string bytes(17000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng.next());
  std::vector<size_t> lengths = {16380, 16384};
  for (const size_t lane : {size_t{8}, size_t{384}, size_t{768}, size_t{3072}, size_t{6144}})
    for (size_t length = lane - 8; length < lane + 9; ++length) lengths.push_back(length);
  for (const size_t length : lengths) {
    const Bytes part = Bytes(bytes).substr(rng.below(600), length);
    const auto seed = static_cast<uint32_t>(rng.next());
    EXPECT_EQ(crc32c(part.data(), part.size(), seed), by_bits(part, seed)) << length;
  }
}

TEST(Ids, TrxIdAndUndoPtrRoundTrip) {
  const TrxId id = make_trx_id(NodeId{7}, 123456789);
  EXPECT_EQ(node_of(id).value, 7);
  EXPECT_EQ(sequence_of(id), 123456789u);
  const UndoPtr ptr = make_undo_ptr(NodeId{9}, 0xfffffffe, 0xabcd);
  EXPECT_EQ(undo_node(ptr).value, 9);
  EXPECT_EQ(undo_page_number(ptr), 0xfffffffeu);
  EXPECT_EQ(undo_offset(ptr), 0xabcd);
}

TEST(Profiles, OnesOfClustersAreTakenFromTheTableByTheirTraits) {
  EXPECT_EQ(find_profile("log"), nullptr);
  for (const Profile& profile : all_profiles()) {
    EXPECT_EQ(find_profile(profile.name), &profile);
    EXPECT_EQ(find_cluster_profile(profile.name) != nullptr, profile.is_of_cluster());
    EXPECT_NE(names_of_profiles().find(profile.name), std::string::npos);
  }
  EXPECT_EQ(names_of_cluster_profiles().find("monolithic"), std::string::npos);
  EXPECT_TRUE(names_of_cluster_profiles().ends_with("lego-sr, fusion or fusion-sr"))
      << names_of_cluster_profiles();
}

TEST(ByteReader, ReportsTruncationInsteadOfReadingPastTheEnd) {
  ByteReader r(
      Bytes("\x05\x00\x00\x00"
            "ab",
            6));
  EXPECT_EQ(r.bytes32().size(), 0u);
  EXPECT_FALSE(r.ok());
  EXPECT_EQ(r.u64(), 0u);
}

TEST(RwLatch, WritersExcludeEveryoneUnderContention) {
  RwLatch latch;
  uint64_t a = 0;
  uint64_t b = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20000; ++i) {
        if ((i + t) % 3 == 0) {
          latch.lock();
          ++a;
          ++b;
          latch.unlock();
        } else {
          latch.lock_shared();
          EXPECT_EQ(a, b);
          latch.unlock_shared();
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(a, b);
  EXPECT_NEAR(static_cast<double>(a), 4 * 20000 / 3.0, 8);
}

// Holders that let others run make everybody sleep; a lost wake-up would never end.
TEST(RwLatch, NobodySleepsForEver) {
  for (const uint64_t readers_of_8 : {0, 4, 7}) {
    RwLatch latch;
    std::atomic<int> readers{0};
    std::atomic<int> writers{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 12; ++t) {
      threads.emplace_back([&, t] {
        Rng rng(t);
        for (int i = 0; i < 4000; ++i) {
          const bool yields = rng.one_in(2);
          if (rng.below(8) < readers_of_8) {
            if (!rng.one_in(4)) {
              latch.lock_shared();
            } else if (!latch.try_lock_shared()) {
              continue;
            }
            readers.fetch_add(1);
            EXPECT_EQ(writers.load(), 0);
            if (yields) std::this_thread::yield();
            readers.fetch_sub(1);
            latch.unlock_shared();
          } else {
            if (!rng.one_in(4)) {
              latch.lock();
            } else if (!latch.try_lock()) {
              continue;
            }
            EXPECT_EQ(writers.fetch_add(1), 0);
            EXPECT_EQ(readers.load(), 0);
            if (yields) std::this_thread::yield();
            writers.fetch_sub(1);
            latch.unlock();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Sleeps until it is interrupted.
void sleep_with(WaitInterrupt* interrupt, std::atomic<bool>* sleeps) {
  Mutex mutex{LatchRank::kLeaf};
  CondVar never;
  CondVarSleep sleep(&mutex, &never);
  const WaitInterrupt::Asleep asleep(interrupt, &sleep);
  MutexLock lock(mutex);
  sleeps->store(true);
  while (!interrupt->interrupted()) never.wait(lock);
}

TEST(WaitInterrupt, OneThatComesBeforeTheWaitIsNotLost) {  // BA8
  WaitInterrupt interrupt;
  std::atomic<bool> sleeps{false};
  interrupt.interrupt();
  sleep_with(&interrupt, &sleeps);
  interrupt.clear();
  EXPECT_FALSE(interrupt.interrupted());
  for (int round = 0; round < 200; ++round) {  // before, during and after the registration
    sleeps = false;
    std::thread sleeper([&] { sleep_with(&interrupt, &sleeps); });
    if (round % 2 != 0) {
      while (!sleeps.load()) std::this_thread::yield();
    }
    interrupt.interrupt();
    sleeper.join();
    interrupt.clear();
  }
}

TEST(WaitInterrupt, AThreadHasTheInterruptOfItsInnermostScope) {  // BA9
  WaitInterrupt outer;
  WaitInterrupt inner;
  EXPECT_EQ(WaitInterrupt::current(), nullptr);
  {
    const InterruptScope a(&outer);
    {
      const InterruptScope b(&inner);
      EXPECT_EQ(WaitInterrupt::current(), &inner);
      std::thread([] { EXPECT_EQ(WaitInterrupt::current(), nullptr); }).join();
      const InterruptScope none(nullptr);
      EXPECT_EQ(WaitInterrupt::current(), nullptr);
    }
    EXPECT_EQ(WaitInterrupt::current(), &outer);
  }
  EXPECT_EQ(WaitInterrupt::current(), nullptr);
}

TEST(MappedMemory, IsZeroedAndMovesWithItsContent) {
  auto mapped = MappedMemory::map(3u << 20);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(mapped->bytes(), 3u << 20);
  EXPECT_EQ(mapped->get()[(3u << 20) - 1], '\0');
  mapped->get()[0] = 'x';
  MappedMemory other;
  other = std::move(*mapped);
  EXPECT_EQ(other.get()[0], 'x');
  const MappedMemory third = std::move(other);
  EXPECT_EQ(third.get()[0], 'x');
}

TEST(MappedMemory, WhatTheSystemRefusesIsAnErrorThatNamesTheSize) {
  const auto mapped = MappedMemory::map(size_t{1} << 60);
  ASSERT_TRUE(is_no_space(mapped.status()));
  EXPECT_NE(mapped.status().message().find("1152921504606846976"), std::string::npos);
}

TEST(Fault, ErrorActionFiresOnceAtTheNthHit) {
  ASSERT_TRUE(arm_fault("purge_half:3:error"));
  EXPECT_FALSE(fault(FaultPoint::purge_half));
  EXPECT_FALSE(fault(FaultPoint::purge_half));
  EXPECT_TRUE(fault(FaultPoint::purge_half));
  EXPECT_FALSE(fault(FaultPoint::purge_half));
  EXPECT_FALSE(arm_fault("no_such_point:1"));
  disarm_faults();
}

TEST(Fault, ErrorsActionFiresSoManyTimes) {
  ASSERT_TRUE(arm_fault("purge_half:2:errors=2"));
  EXPECT_FALSE(fault(FaultPoint::purge_half));
  EXPECT_TRUE(fault(FaultPoint::purge_half));
  EXPECT_TRUE(fault(FaultPoint::purge_half));
  EXPECT_FALSE(fault(FaultPoint::purge_half));
  EXPECT_FALSE(arm_fault("purge_half:1:errors=0"));
  disarm_faults();
}

TEST(Fault, FailActionFiresFromTheNthHitOn) {
  ASSERT_TRUE(arm_fault("purge_half:2:fail"));
  EXPECT_FALSE(fault(FaultPoint::purge_half));
  EXPECT_TRUE(fault(FaultPoint::purge_half));
  EXPECT_TRUE(fault(FaultPoint::purge_half));
  disarm_faults();
  EXPECT_FALSE(fault(FaultPoint::purge_half));
}

// A test switches faults of a running process on and off by a file.
TEST(Fault, FileArmsAndDisarmsWhileTheProcessRuns) {
  const std::string path = ::testing::TempDir() + "strata_fault_file_" + std::to_string(::getpid());
  const auto put = [&](const std::string& text) {
    std::ofstream(path + ".new") << text;
    ASSERT_EQ(::rename((path + ".new").c_str(), path.c_str()), 0);
  };
  watch_fault_file(path);
  EXPECT_FALSE(fault(FaultPoint::purge_half));
  put("purge_half:1:fail\nnonsense\nrollback_half:2:error\n");
  EXPECT_TRUE(fault(FaultPoint::purge_half));
  EXPECT_TRUE(fault(FaultPoint::purge_half));
  EXPECT_FALSE(fault(FaultPoint::rollback_half));
  EXPECT_TRUE(fault(FaultPoint::rollback_half));
  EXPECT_FALSE(fault(FaultPoint::rollback_half));
  put("overflow_half:1:fail");
  EXPECT_FALSE(fault(FaultPoint::purge_half));
  EXPECT_TRUE(fault(FaultPoint::overflow_half));
  ::unlink(path.c_str());
  EXPECT_FALSE(fault(FaultPoint::overflow_half));
  std::ifstream struck(path + ".struck");
  const std::string noted{std::istreambuf_iterator<char>(struck), {}};
  EXPECT_EQ(noted, "purge_half\nrollback_half\noverflow_half\n");
  ::unlink((path + ".struck").c_str());
  disarm_faults();
}

}  // namespace
}  // namespace strata
