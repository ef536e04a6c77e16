#include "registry/etcd/testing/etcd_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/testing/wait_until.h"
#include "registry/etcd/etcd.h"
#include "registry/etcd/internal/http.h"

namespace strata::registry::testing {
namespace {

std::string program() {
  const char* named = std::getenv("STRATA_ETCD");
  return named != nullptr ? named : STRATA_ETCD_PROGRAM;
}

std::string make_folder() {
  std::string name = "etcd-test-XXXXXX";
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  return std::filesystem::absolute(name);
}

// Between fork() and exec: nothing that allocates.
[[noreturn]] void become(char* const* arguments, const char* log) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int out = ::open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  ::dup2(out, 1);
  ::dup2(out, 2);
  char* const environment[] = {nullptr};
  ::execve(arguments[0], arguments, environment);
  ::_exit(127);
}

StatusOr<std::string> post(const std::string& endpoint, const std::string& path,
                           const std::string& body) {
  internal::HttpExchange exchange;
  internal::HttpOutcome outcome = exchange.perform(
      {.url = endpoint + path, .body = body, .exchange_us = 2'000'000, .reply_bytes_max = 1 << 20});
  STRATA_RETURN_IF_ERROR(outcome.status);
  return std::move(outcome.body);
}

}  // namespace

uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

EtcdProcess::EtcdProcess() : folder_(make_folder()) {
  port_ = free_port();
  endpoint_ = "http://127.0.0.1:" + std::to_string(port_);
  start();
}

EtcdProcess::~EtcdProcess() {
  kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void EtcdProcess::start() {
  ASSERT_EQ(pid_, -1);
  ASSERT_EQ(::access(program().c_str(), X_OK), 0)
      << program() << " is not there: ./strata setup fetches it, STRATA_ETCD names another";
  const std::vector<std::string> arguments = {
      program(), "--name=test", "--data-dir=" + folder_ + "/data",
      "--listen-client-urls=" + endpoint_, "--advertise-client-urls=" + endpoint_,
      "--listen-peer-urls=http://127.0.0.1:0", "--initial-advertise-peer-urls=http://127.0.0.1:1",
      "--initial-cluster=test=http://127.0.0.1:1",
      // Another token makes another cluster id.
      "--initial-cluster-token=" + folder_ + std::to_string(life_),
      // Quick elections also allow leases of one second.
      "--heartbeat-interval=50", "--election-timeout=500", "--logger=zap", "--log-outputs=stderr"};
  std::vector<char*> pointers;
  pointers.reserve(std::size(arguments) + 1);
  for (const std::string& argument : arguments)
    pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  const std::string log = folder_ + "/log";
  pid_ = ::fork();
  if (pid_ == 0) become(pointers.data(), log.c_str());
  const auto healthy = [&] {
    const auto body = post(endpoint_, "/v3/kv/range", R"({"key":"YQ=="})");
    return body.ok() && body->find("header") != std::string::npos;
  };
  ASSERT_TRUE(strata::testing::wait_until(healthy)) << "etcd does not answer; see " << log;
}

void EtcdProcess::kill() {
  if (pid_ == -1) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdProcess::pause() {
  ASSERT_EQ(::kill(pid_, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
  ASSERT_TRUE(WIFSTOPPED(status));
}

void EtcdProcess::resume() { ASSERT_EQ(::kill(pid_, SIGCONT), 0); }

void EtcdProcess::wipe() {
  ASSERT_EQ(pid_, -1);
  std::filesystem::remove_all(folder_ + "/data");
  life_++;
}

void EtcdProcess::compact() {
  const auto registry = connect();
  const auto listing = registry->list("/", registry->now_us() + 5'000'000);
  ASSERT_TRUE(listing.ok()) << listing.status();
  const std::string body = "{\"revision\":\"" + std::to_string(listing->at.value) + "\"}";
  const auto done = post(endpoint_, "/v3/kv/compaction", body);
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_NE(done->find("header"), std::string::npos) << *done;
}

std::unique_ptr<Registry> EtcdProcess::connect(uint64_t retry_us_min) const {
  auto made = make_etcd_registry({.endpoints = {endpoint_},
                                  .watch_check_us = 500'000,
                                  .retry_us_min = retry_us_min,
                                  .retry_us_max = std::max<uint64_t>(retry_us_min, 200'000)});
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

}  // namespace strata::registry::testing
