// Goal: writers wait exactly while too few storage nodes keep up, and never for ever (BG1-BG3).
#include "clients/storage/backlog_gate.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/diag.h"
#include "base/testing/wait_until.h"

namespace strata::clients {
namespace {

class BacklogGateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_diag_sink([](Severity, std::string_view) {});
  }
  void TearDown() override { set_diag_sink(nullptr); }
  BacklogGate gate_{3, 2, 1000};
};

TEST_F(BacklogGateTest, OneSlowNodeOfThreeHoldsNobodyBack) {  // BG1, BG2
  EXPECT_FALSE(gate_.closed());
  gate_.note(0, 1'000'000, 0);
  EXPECT_FALSE(gate_.closed());
  EXPECT_TRUE(gate_.wait(nullptr).ok());
  EXPECT_EQ(gate_.counters().waits, 0u);
  gate_.note(1, 999, 0);
  EXPECT_FALSE(gate_.closed());
  gate_.note(1, 1000, 0);
  EXPECT_TRUE(gate_.closed());
}

TEST(BacklogGateOfSeveral, LogThatIsNotScannedCountsMore) {  // BG5
  set_diag_sink([](Severity, std::string_view) {});
  BacklogGate gate(3, 2, 1600, 16);
  gate.note(0, 1599, 99);
  gate.note(1, 1599, 99);
  gate.note(2, 0, 100);
  EXPECT_FALSE(gate.closed());
  gate.note(1, 0, 100);
  EXPECT_TRUE(gate.closed());
  gate.note(1, 0, 50);
  EXPECT_TRUE(gate.closed());
  gate.note(1, 0, 49);
  gate.note(0, 0, 49);
  EXPECT_FALSE(gate.closed());
  set_diag_sink(nullptr);
}

TEST_F(BacklogGateTest, ItOpensWhenHalfOfItIsDone) {  // BG1
  gate_.note(0, 5000, 0);
  gate_.note(1, 5000, 0);
  ASSERT_TRUE(gate_.closed());
  gate_.note(1, 500, 0);
  EXPECT_TRUE(gate_.closed()) << "it would close again at once";
  gate_.note(1, 499, 0);
  EXPECT_FALSE(gate_.closed());
}

TEST_F(BacklogGateTest, AWaitEndsWhenItOpensOrIsGivenUpOrStopped) {  // BG3
  const auto close = [this] {
    gate_.note(0, 5000, 0);
    gate_.note(1, 5000, 0);
  };
  close();
  std::thread writer([this] { EXPECT_TRUE(gate_.wait(nullptr).ok()); });
  gate_.note(0, 0, 0);
  writer.join();
  close();
  WaitInterrupt interrupt;
  interrupt.interrupt();  // before the wait begins
  EXPECT_EQ(gate_.wait(&interrupt).code(), StatusCode::kCancelled);
  interrupt.clear();
  std::thread killed([&] { EXPECT_EQ(gate_.wait(&interrupt).code(), StatusCode::kCancelled); });
  interrupt.interrupt();
  killed.join();
  EXPECT_GE(gate_.counters().waits, 1u);
  std::thread last([this] { EXPECT_TRUE(gate_.wait(nullptr).ok()); });
  gate_.stop();
  last.join();
}

TEST_F(BacklogGateTest, AnotherNodeIsNotBehindForTheOneBefore) {  // BG4
  gate_.note(0, 5000, 0);
  gate_.note(1, 5000, 0);
  EXPECT_TRUE(gate_.closed());
  gate_.follow(2, {0, std::nullopt, 2});
  EXPECT_FALSE(gate_.closed());
  gate_.follow(3, {0, 1, 2, std::nullopt});
  EXPECT_FALSE(gate_.closed());
  gate_.note(3, 5000, 0);
  EXPECT_TRUE(gate_.closed());
  gate_.note(7, 0, 0);  // of a place that is not there
  EXPECT_TRUE(gate_.closed());
  gate_.note(0, 100, 0);
  EXPECT_FALSE(gate_.closed());
}

TEST_F(BacklogGateTest, WhoHasLeftIsNotWaitedFor) {  // BG4
  gate_.note(0, 5000, 0);
  gate_.note(1, 5000, 0);
  EXPECT_TRUE(gate_.closed());
  gate_.follow(1, {1, 2});
  EXPECT_FALSE(gate_.closed());
  gate_.note(1, 5000, 0);
  EXPECT_TRUE(gate_.closed()) << "the one that was first is behind as before";
}

}  // namespace
}  // namespace strata::clients
