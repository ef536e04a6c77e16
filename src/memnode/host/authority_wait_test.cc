// Goal: AUW1-AUW4: a memory node that waits is told that it is its turn when the one that serves
// has left or is gone, at once if that one's process has ended, and not because the registry was
// away or an address cannot be used from here. Method: the registry in memory, in real time;
// holders are sockets that listen, or do not.
#include "memnode/host/authority_wait.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "cluster/membership.h"
#include "registry/sim/testing/sim_thread.h"
#include "transport/calls/rpc_server.h"
#include "transport/calls/testing/io_node.h"

namespace strata::memnode {
namespace {

using cluster::kAuthorityStream;
using registry::Version;
using strata::testing::wait_until;
using transport::test::secret_of;

constexpr uint64_t kLookUs = 5'000;
constexpr auto kWhile = std::chrono::milliseconds(150);

// Somebody who waits, in a thread.
class Waiter {
 public:
  Waiter(const std::string& name, registry::SimStore* store, uint64_t patience_us, char secret)
      : registry_(store->connect()),
        wait_({.name = name, .look_us = kLookUs, .patience_us = patience_us}, registry_.get(),
              *cluster::ClusterKeys::of("test"), secret_of(secret)),
        thread_([this] {
          auto turn = wait_.wait([this](const Status& why) {
            const MutexLock lock(mutex_);
            why_ = why;
          });
          const MutexLock lock(mutex_);
          turn_.emplace(std::move(turn));
        }) {}
  ~Waiter() {
    wait_.stop();
    thread_.join();
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  Status why() const {
    const MutexLock lock(mutex_);
    return why_;
  }
  std::optional<StatusOr<Version>> turn() const {
    const MutexLock lock(mutex_);
    return turn_;
  }
  // It waits for who serves, and goes on waiting.
  void expect_waits() {
    EXPECT_TRUE(wait_until([this] { return is_in_use(why()); })) << why();
    std::this_thread::sleep_for(kWhile);
    EXPECT_FALSE(turn().has_value());
  }
  bool has_turn(Version in_place_of) {
    if (!wait_until([this] { return turn().has_value(); })) return false;
    EXPECT_TRUE(turn()->ok()) << turn()->status();
    return turn()->ok() && **turn() == in_place_of;
  }
  [[nodiscard]] registry::SimRegistry* registry() { return registry_.get(); }
  [[nodiscard]] AuthorityWait* operator->() noexcept { return &wait_; }

 private:
  std::unique_ptr<registry::SimRegistry> registry_;
  AuthorityWait wait_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  Status why_ STRATA_GUARDED_BY(mutex_);
  std::optional<StatusOr<Version>> turn_ STRATA_GUARDED_BY(mutex_);
  std::thread thread_;
};

class AuthorityWaitTest : public ::testing::Test {
 protected:
  AuthorityWaitTest() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~AuthorityWaitTest() override { set_diag_sink(nullptr); }

  uint64_t deadline() const { return registry_->now_us() + 10'000'000; }
  std::unique_ptr<Waiter> waiter(const std::string& name = "m2", uint64_t patience_us = 60'000'000,
                                 char secret = 's') {
    return std::make_unique<Waiter>(name, &sim_.store(), patience_us, secret);
  }
  // m1 is a member with an address, and has the stream.
  void m1_serves() {
    lease_ = grant_lease();
    cluster::Member member;
    member.name = "m1";
    member.identity = 1;
    member.address = address_;
    ASSERT_TRUE(cluster::Membership(registry_.get(), keys_).join(member, *lease_, deadline()).ok());
    stream_lease_ = grant_lease();
    const auto grant = acquire("m1", *stream_lease_, {});
    ASSERT_TRUE(grant.ok()) << grant.status();
    grant_ = *grant;
  }
  std::unique_ptr<registry::Lease> grant_lease() {
    auto lease = registry_->grant_lease(
        600, [](registry::LeaseId) {}, deadline());
    EXPECT_TRUE(lease.ok()) << lease.status();
    return *std::move(lease);
  }
  StatusOr<cluster::EpochGrant> acquire(const std::string& name, const registry::Lease& lease,
                                        Version in_place_of) {
    return cluster::StreamEpochs(registry_.get(), keys_)
        .acquire({kAuthorityStream, name, Epoch{}, in_place_of}, lease, deadline());
  }
  void m1_listens() {
    server_ = std::make_unique<transport::RpcServer>(io_.world(), secret_of('s'),
                                                     transport::ServerOptions{});
    const auto listens = server_->listen(address_);
    ASSERT_TRUE(listens.ok()) << listens.status();
  }
  void m1_loses_its_lease() { ASSERT_TRUE(stream_lease_->revoke(deadline()).ok()); }

  transport::test::Folder folder_;
  transport::test::IoNode io_;
  const std::string address_ = "unix:" + (folder_ / "m1");
  registry::testing::SimThread sim_;
  const cluster::ClusterKeys keys_ = *cluster::ClusterKeys::of("test");
  std::unique_ptr<registry::SimRegistry> registry_ = sim_.store().connect();
  std::unique_ptr<registry::Lease> lease_, stream_lease_;
  cluster::EpochGrant grant_;
  std::unique_ptr<transport::RpcServer> server_;
};

TEST_F(AuthorityWaitTest, WhatNobodyElseHasIsAnybodysTurn) {
  EXPECT_TRUE(waiter()->has_turn(Version{}));
  m1_serves();
  EXPECT_TRUE(waiter("m1")->has_turn(Version{})) << "its own older self is waited for by nobody";
}

TEST_F(AuthorityWaitTest, WhoServesIsWaitedForUntilItHasLeft) {
  m1_listens();
  m1_serves();
  const auto second = waiter();
  second->expect_waits();
  EXPECT_NE(second->why().message().find("m1 serves"), std::string::npos) << second->why();
  EXPECT_TRUE(wait_until([&] { return (*second)->has_line(); }));
  server_.reset();
  m1_loses_its_lease();
  ASSERT_TRUE(wait_until([&] { return second->turn().has_value(); }));
  EXPECT_FALSE((*second)->has_line());
}

TEST_F(AuthorityWaitTest, OneWhoseProcessHasEndedIsFollowedAtOnceByOne) {  // AUW2
  m1_listens();
  m1_serves();
  const auto second = waiter();
  const auto third = waiter("m3");
  EXPECT_TRUE(wait_until([&] { return (*second)->has_line() && (*third)->has_line(); }));
  second->expect_waits();
  server_.reset();
  EXPECT_TRUE(second->has_turn(grant_.writer));
  EXPECT_TRUE(third->has_turn(grant_.writer));
  const auto lease = grant_lease();
  EXPECT_TRUE(acquire("m2", *lease, grant_.writer).ok());
  const auto other = grant_lease();
  EXPECT_TRUE(is_in_use(acquire("m3", *other, grant_.writer).status()));
}

TEST_F(AuthorityWaitTest, OneThatComesBackAtOnceIsWaitedFor) {
  m1_listens();
  m1_serves();
  const auto second = waiter();
  EXPECT_TRUE(wait_until([&] { return (*second)->has_line(); }));
  // Its connections end, and it still listens: somebody stands between, or has ended them.
  for (int fd = 3; fd < 200; ++fd) {
    sockaddr_un own{};
    socklen_t bytes = sizeof own;
    int listens = 0;
    socklen_t size = sizeof listens;
    const bool is_its = ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes) == 0 &&
                        own.sun_family == AF_UNIX &&
                        "unix:" + std::string(own.sun_path) == address_ &&
                        ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0;
    if (is_its && listens == 0) ::shutdown(fd, SHUT_RDWR);
  }
  second->expect_waits();
  EXPECT_TRUE(wait_until([&] { return (*second)->has_line(); }));
}

TEST_F(AuthorityWaitTest, AnAddressThatWasNeverReachedTellsNothing) {  // AUW2
  m1_serves();
  const auto second = waiter();
  second->expect_waits();
  EXPECT_FALSE((*second)->has_line());
  m1_loses_its_lease();  // nobody answers: there is nothing to be patient with
  EXPECT_TRUE(second->has_turn(Version{}));
}

TEST_F(AuthorityWaitTest, OneThatAnswersHasTimeToHoldTheStreamAgain) {  // AUW3
  m1_listens();
  m1_serves();
  const auto second = waiter();
  const auto hasty = waiter("m3", 20'000);
  EXPECT_TRUE(wait_until([&] { return (*second)->has_line(); }));
  m1_loses_its_lease();
  EXPECT_TRUE(hasty->has_turn(Version{}));
  second->expect_waits();
  EXPECT_NE(second->why().message().find("no lease"), std::string::npos) << second->why();
  const auto lease = grant_lease();
  const auto renewed =
      cluster::StreamEpochs(registry_.get(), keys_).renew(grant_, *lease, deadline());
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_TRUE(wait_until(
      [&] { return second->why().message().find("m1 serves") != absl::string_view::npos; }));
  server_.reset();
  EXPECT_TRUE(second->has_turn(renewed->writer));
}

TEST_F(AuthorityWaitTest, OneThatHangsHasNone) {  // AUW3
  // It listens, and answers nothing.
  const int listens = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::strncpy(at.sun_path, address_.c_str() + std::strlen("unix:"), sizeof at.sun_path - 1);
  ASSERT_EQ(::bind(listens, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(::listen(listens, 64), 0);
  m1_serves();
  const auto second = waiter();
  EXPECT_TRUE(wait_until([&] { return is_in_use(second->why()); })) << second->why();
  m1_loses_its_lease();
  EXPECT_TRUE(second->has_turn(Version{}));
  ::close(listens);
}

TEST_F(AuthorityWaitTest, WithoutTheRegistryNothingIsTold) {  // AUW1
  m1_serves();
  const auto second = waiter();
  second->expect_waits();
  second->registry()->set_connected(false);
  m1_loses_its_lease();
  second->expect_waits();
  second->registry()->set_connected(true);
  EXPECT_TRUE(second->has_turn(Version{}));
}

TEST_F(AuthorityWaitTest, WhoHasAnotherSecretIsToldBeforeItCounts) {
  m1_listens();
  m1_serves();
  EXPECT_TRUE((*waiter())->check(deadline()).ok());
  const auto stranger = waiter("m2", 60'000'000, 'x');
  const Status refused = (*stranger)->check(deadline());
  EXPECT_TRUE(is_wrong_secret(refused)) << refused;
  EXPECT_NE(refused.message().find("to do"), std::string::npos) << refused;
  EXPECT_TRUE(wait_until([&] { return is_wrong_secret(stranger->why()); })) << stranger->why();
  server_.reset();
  EXPECT_TRUE((*stranger)->check(deadline()).ok()) << "nobody can say so";
}

TEST_F(AuthorityWaitTest, ItEndsWhenItIsTold) {
  m1_serves();
  const auto second = waiter();
  second->expect_waits();
  (*second)->stop();
  ASSERT_TRUE(wait_until([&] { return second->turn().has_value(); }));
  EXPECT_TRUE(is_interrupted(second->turn()->status()));
}

}  // namespace
}  // namespace strata::memnode
