// Goal: a stand-by is offered the stream as soon as its holder's process has ended, or its lease
// while the registry answered all along, and not otherwise: not from one that lives, not because
// the registry stood still or this node was cut off, not for a copy of a folder (SB1-SB3). Method:
// a simulated registry in real time that goes away when the test says so, and holders with locks
// on real folders.
#include "clients/compute/stand_by.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>

#include "base/clock.h"
#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "io/testing/temporary_folder.h"
#include "registry/sim/testing/sim_thread.h"

namespace strata::clients {
namespace {

using strata::testing::wait_until;

constexpr StreamId kStream{1};
constexpr uint32_t kLeaseSeconds = 1;
constexpr uint64_t kSecond = 1'000'000;
constexpr uint64_t kPatience = 1'800'000;  // longer than SB2 asks for

TEST(RegistryPatienceTest, CountsFromTheLastPause) {  // SB2
  RegistryPatience patience(3 * kSecond, kSecond);
  EXPECT_FALSE(patience.enough(0)) << "it has answered nothing yet";
  uint64_t now = 100 * kSecond;
  const auto look_for = [&](uint64_t seconds) {
    for (const uint64_t until = now + seconds * kSecond; now < until; now += kSecond / 4)
      patience.answered(now, now);
  };
  look_for(2);
  EXPECT_FALSE(patience.enough(now));
  look_for(2);
  EXPECT_TRUE(patience.enough(now));
  now += 2 * kSecond;
  EXPECT_FALSE(patience.enough(now)) << "it does not answer now";
  patience.answered(now, now);
  EXPECT_FALSE(patience.enough(now)) << "it answers again, and may have been away";
  look_for(2);
  EXPECT_FALSE(patience.enough(now));
  look_for(2);
  EXPECT_TRUE(patience.enough(now));
  patience.answered(now, now + 2 * kSecond);  // an answer that took long
  EXPECT_FALSE(patience.enough(now + 2 * kSecond));
}

class StandByTest : public ::testing::Test {
 protected:
  // A process that holds the stream, from a folder.
  struct Writer {
    std::unique_ptr<registry::SimRegistry> registry;
    std::unique_ptr<HeldIdentity> identity;
    std::unique_ptr<registry::Lease> lease;
    cluster::EpochGrant grant;
  };

  StandByTest() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~StandByTest() override { set_diag_sink(nullptr); }

  [[nodiscard]] std::string folder(const std::string& name) const {
    return folder_.path() + "/" + name;
  }
  [[nodiscard]] uint64_t deadline() const { return sim_.now_us() + 10 * kSecond; }

  Writer writes(const std::string& name) {
    Writer writer;
    writer.registry = sim_.store().connect();
    writer.identity = *HeldIdentity::of(folder(name), 0);
    writer.lease = *writer.registry->grant_lease(
        kLeaseSeconds, [](registry::LeaseId) {}, deadline());
    writer.grant = *cluster::StreamEpochs(writer.registry.get(), keys_)
                        .acquire({kStream, name + writer.identity->suffix(), {}, {}}, *writer.lease,
                                 deadline());
    return writer;
  }

  // One that stands by in a thread of its own.
  struct Waiting {
    std::unique_ptr<registry::SimRegistry> registry;
    std::unique_ptr<std::atomic<bool>> stop = std::make_unique<std::atomic<bool>>(false);
    std::future<StatusOr<StandBy::Turn>> turn;
    [[nodiscard]] bool is_over() const {
      return turn.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }
    ~Waiting() {
      if (stop != nullptr) *stop = true;
      if (turn.valid()) turn.wait();
    }
    Waiting() = default;
    Waiting(Waiting&&) = default;
    Waiting& operator=(Waiting&&) = delete;
  };
  Waiting stands_by(const std::string& name, std::vector<std::string> neighbours = {}) {
    Waiting waiting;
    waiting.registry = sim_.store().connect();
    StandByOptions options{kStream, folder(name), std::move(neighbours), kLeaseSeconds,
                           [stop = waiting.stop.get()] { return stop->load(); }};
    waiting.turn = std::async(std::launch::async, [this, options, to = waiting.registry.get()] {
      return StandBy(to, keys_, options).wait();
    });
    return waiting;
  }
  // Whether it goes on waiting for so long.
  static bool waits_for(const Waiting& waiting, uint64_t microseconds) {
    return waiting.turn.wait_for(std::chrono::microseconds(microseconds)) ==
           std::future_status::timeout;
  }

  registry::testing::SimThread sim_;
  strata::testing::TemporaryFolder folder_;
  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("test");
};

TEST_F(StandByTest, AProcessThatHasEndedIsFollowedAtOnce) {  // SB1
  Writer writer = writes("compute-1");
  Waiting waiting = stands_by("compute-2", {folder("compute-1"), folder("nowhere")});
  ASSERT_TRUE(waits_for(waiting, 300'000)) << "its process lives";
  const registry::Version held = writer.grant.writer;
  writer.identity.reset();  // as if it was killed; its lease goes on
  ASSERT_TRUE(wait_until([&] { return waiting.is_over(); }));
  auto turn = waiting.turn.get();
  ASSERT_TRUE(turn.ok()) << turn.status();
  EXPECT_EQ(turn->in_place_of, held);
  EXPECT_TRUE(writer.lease->valid()) << "nobody has waited for its end";
  // Whoever came in between is not taken over: the version names one holder (SE3).
}

TEST_F(StandByTest, AnotherProcessInThatFolderOrACopyOfItIsNotTheHolder) {  // SB1
  Writer writer = writes("compute-1");
  std::filesystem::copy(folder("compute-1"), folder("copy"),
                        std::filesystem::copy_options::recursive);
  Waiting waiting = stands_by("compute-2", {folder("copy")});
  EXPECT_TRUE(waits_for(waiting, 300'000));
}

TEST_F(StandByTest, ALeaseThatEndsWhileTheRegistryAnswersIsEnough) {  // SB2
  Writer writer = writes("compute-1");
  Waiting waiting = stands_by("compute-2", {folder("compute-1")});
  ASSERT_TRUE(waits_for(waiting, kPatience)) << "it renews its lease";
  writer.registry->set_paused(true);  // stopped: it has its folder, and renews no lease
  ASSERT_TRUE(wait_until([&] { return waiting.is_over(); }));
  auto turn = waiting.turn.get();
  ASSERT_TRUE(turn.ok()) << turn.status();
  EXPECT_EQ(turn->in_place_of, registry::Version{});
}

// All leases run out while the registry stands still. The writer gets another one as soon as it
// can, which takes it longer than it takes the stand-by to see that nobody holds the stream.
TEST_F(StandByTest, ARegistryThatStoodStillGivesTheWriterTime) {  // SB2
  Writer writer = writes("compute-1");
  Waiting waiting = stands_by("compute-2");
  ASSERT_TRUE(waits_for(waiting, kPatience));
  sim_.leap(20 * kSecond);
  ASSERT_TRUE(wait_until([&] { return !writer.lease->valid(); }));
  ASSERT_TRUE(waits_for(waiting, 400'000));
  auto again = writer.registry->grant_lease(
      kLeaseSeconds, [](registry::LeaseId) {}, deadline());
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE(cluster::StreamEpochs(writer.registry.get(), keys_)
                  .renew(writer.grant, **again, deadline())
                  .ok());
  EXPECT_TRUE(waits_for(waiting, kPatience)) << "it has the stream again";
}

TEST_F(StandByTest, OneThatIsCutOffTakesNothing) {  // SB2
  Writer writer = writes("compute-1");
  Waiting waiting = stands_by("compute-2");
  waiting.registry->set_connected(false);
  EXPECT_TRUE(waits_for(waiting, kPatience));
  writer.registry->set_paused(true);
  EXPECT_TRUE(waits_for(waiting, kPatience)) << "it cannot know";
  waiting.registry->set_connected(true);
  EXPECT_TRUE(wait_until([&] { return waiting.is_over(); }));
}

TEST_F(StandByTest, ItsOwnOlderSelfIsFollowedAtOnce) {  // SB3
  Writer writer = writes("compute-1");
  const registry::Version held = writer.grant.writer;
  writer.identity.reset();
  Waiting waiting = stands_by("compute-1");
  ASSERT_TRUE(wait_until([&] { return waiting.is_over(); }));
  auto turn = waiting.turn.get();
  ASSERT_TRUE(turn.ok()) << turn.status();
  EXPECT_EQ(turn->in_place_of, held);
}

TEST_F(StandByTest, ItCanBeToldToStop) {
  Writer writer = writes("compute-1");
  Waiting waiting = stands_by("compute-2", {folder("compute-1")});
  ASSERT_TRUE(waits_for(waiting, 100'000));
  *waiting.stop = true;
  ASSERT_TRUE(wait_until([&] { return waiting.is_over(); }));
  EXPECT_TRUE(is_interrupted(waiting.turn.get().status()));
}

}  // namespace
}  // namespace strata::clients
