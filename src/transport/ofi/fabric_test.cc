// Goal: regions over a fabric keep FB1-FB3, FL1 and RR4, RR5 whatever peers and owners do.
// Method: connections that show a wrong token, name wrong keys or say anything at all, while an
// honest peer goes on; regions withdrawn and unmapped under fire; processes stopped and killed.
// The program starts itself as those processes. What all ways to a region have in common:
// region_test.
#include "transport/regions/fabric.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/diag.h"
#include "base/rng.h"
#include "transport/calls/testing/io_node.h"
#include "transport/ofi/fabric_link.h"
#include "transport/regions/region_server.h"
#include "transport/sockets/socket.h"

extern char** environ;

namespace strata::transport {
namespace {

using ofi::FabricLink;
using test::Folder;
using test::IoNode;
using test::secret_of;

constexpr uint64_t kBytes = 1u << 20;
constexpr const char* kAnyPort = "tcp:127.0.0.1:0";

uint64_t soon() { return monotonic_us() + 60'000'000; }
uint64_t in_ms(uint64_t ms) { return monotonic_us() + ms * 1000; }

std::shared_ptr<Region> make_region(const std::string& path) {
  auto region = Region::create(path, kBytes, 1);
  EXPECT_TRUE(region.ok()) << region.status();
  return *std::move(region);
}

// A node whose region "pool" is reached over a fabric.
struct Owner {
  explicit Owner(const std::string& folder, const FabricServerOptions& options = {}) {
    set_diag_sink([](Severity, std::string_view) {});
    auto started = FabricServer::start(kAnyPort, options);
    EXPECT_TRUE(started.ok()) << started.status();
    fabric = *std::move(started);
    server = std::make_unique<RpcServer>(node.world(), secret_of('s'), ServerOptions());
    regions = std::make_unique<RegionServer>(server.get(), fabric.get());
    region = make_region(folder + "/pool");
    regions->expose("pool", region);
    address = *server->listen("unix:" + folder + "/socket");
  }
  ~Owner() { server.reset(); }  // before regions
  IoNode node;
  std::unique_ptr<FabricServer> fabric;
  std::unique_ptr<RegionServer> regions;
  std::unique_ptr<RpcServer> server;
  std::shared_ptr<Region> region;
  std::string address;
};

std::shared_ptr<BlockingChannel> channel_to(const std::string& folder) {
  return std::make_shared<BlockingChannel>(secret_of('s'), "unix:" + folder + "/socket",
                                           BlockingChannelOptions());
}

std::unique_ptr<RemoteRegion> open(const std::string& folder, const std::string& name = "pool") {
  auto remote = open_remote_region(channel_to(folder), name, RegionPath::kFabric, soon());
  EXPECT_TRUE(remote.ok()) << remote.status();
  return *std::move(remote);
}

StatusOr<std::unique_ptr<FabricLink>> connect(const FabricPlace& place,
                                              uint64_t deadline_us = soon()) {
  const auto address = ofi::parse_fabric_address(place.address);
  auto info = ofi::find_provider(*address, ofi::Side::kPeer);
  EXPECT_TRUE(info.ok()) << info.status();
  return FabricLink::connect(info->get(), place, FabricManner::kOfProvider, deadline_us);
}

// Puts and gets all the time, and counts what went wrong.
class HonestPeer {
 public:
  explicit HonestPeer(const std::string& folder) : remote_(open(folder)) {
    thread_ = std::thread([this] { work(); });
    wait_for(10);
  }
  ~HonestPeer() {
    wait_for(rounds_ + 10);  // it goes on
    stop_ = true;
    thread_.join();
    EXPECT_EQ(failures_, 0);
  }
  HonestPeer(const HonestPeer&) = delete;
  HonestPeer& operator=(const HonestPeer&) = delete;
  void wait_for(int rounds) const {
    while (rounds_ < rounds) std::this_thread::yield();
  }

 private:
  static constexpr uint64_t kOffset = kBytes / 2;
  void work() {
    std::string got(5000, '\0');
    while (!stop_) {
      const std::string said(got.size(), static_cast<char>('a' + rounds_ % 26));
      if (!remote_->put(kOffset, said, soon()).ok()) failures_++;
      if (!remote_->get(kOffset, absl::MakeSpan(got.data(), got.size()), soon()).ok()) failures_++;
      if (got != said) failures_++;
      rounds_++;
    }
  }
  std::unique_ptr<RemoteRegion> remote_;
  std::atomic<int> rounds_{0}, failures_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class Fabric : public testing::Test {
 protected:
  // A place of its own for hostile peers to know.
  FabricPlace expose_more() {
    more_ = make_region(folder_ / "more");
    auto place = owner_.fabric->expose(more_);
    EXPECT_TRUE(place.ok()) << place.status();
    return *place;
  }
  void wait_for_connections(uint64_t count) const {
    while (owner_.fabric->connections() != count) std::this_thread::yield();
  }
  Folder folder_;
  Owner owner_{folder_ / ""};
  std::shared_ptr<Region> more_;
};

TEST(FabricAddresses, AreChecked) {
  for (const char* const address :
       {"", "tcp", "tcp:", "udp:127.0.0.1:0", "tcp:0.0.0.0:0", "tcp:8.8.8.8:0", "verbs:[::]:1",
        "unix:/tmp/x", "tcp:localhost:0", "tcp:127.0.0.1:99999"}) {
    EXPECT_EQ(FabricServer::start(address).status().code(), StatusCode::kInvalidArgument)
        << address;
  }
  const auto fabric = FabricServer::start(kAnyPort);
  ASSERT_TRUE(fabric.ok()) << fabric.status();
  EXPECT_EQ((*fabric)->address().rfind("tcp:127.0.0.1:", 0), 0u) << (*fabric)->address();
  EXPECT_FALSE(FabricServer::start((*fabric)->address()).ok()) << "in use";
}

TEST(FabricPlaces, OfAnyBytesDoNoHarm) {
  FabricPlace place{"tcp:127.0.0.1:1", 5, 6, {'t'}};
  std::string good;
  append_place(&good, place);
  for (size_t bytes = 0; bytes < good.size(); bytes++) {
    ByteReader reader(Bytes(good).substr(0, bytes));
    (void)read_place(&reader);
    EXPECT_FALSE(reader.ok());
  }
  Rng rng(3);
  for (int i = 0; i < 10'000; i++) {
    std::string bad = good;
    bad[rng.below(bad.size())] = static_cast<char>(rng.next());
    ByteReader reader(bad);
    place = read_place(&reader);
    if (reader.ok()) (void)ofi::parse_fabric_address(place.address);
  }
}

TEST_F(Fabric, MoreThanALinkHoldsAtATime) {
  const auto remote = open(folder_ / "");
  std::string said(kBytes - 3, '\0');
  Rng rng(1);
  for (char& c : said) c = static_cast<char>(rng.next());
  std::string got(said.size(), '\0');
  ASSERT_TRUE(remote->put(3, said, soon()).ok());
  EXPECT_EQ(Bytes(owner_.region->data() + 3, said.size()), said);
  ASSERT_TRUE(remote->get(3, absl::MakeSpan(got.data(), got.size()), soon()).ok());
  EXPECT_EQ(got, said);
  // More operations than pieces, some of them empty.
  std::vector<RegionOperation> batch;
  for (uint64_t i = 0; i < 1000; i++)
    batch.push_back(RegionOperation::put(i * 16, Bytes(said).substr(i * 3, i % 10)));
  ASSERT_TRUE(remote->run(absl::MakeSpan(batch), soon()).ok());
  for (uint64_t i = 0; i < 1000; i++)
    ASSERT_EQ(Bytes(owner_.region->data() + i * 16, i % 10), Bytes(said).substr(i * 3, i % 10));
}

TEST_F(Fabric, ManyThreadsUseARegion) {
  const auto remote = open(folder_ / "");
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      std::string got(1000, '\0');
      for (int i = 0; i < 100; i++) {
        const std::string said(got.size(), static_cast<char>(i));
        uint64_t before = 0;
        std::vector<RegionOperation> batch = {
            RegionOperation::put(4096 + t * 1000, said),
            RegionOperation::get(4096 + t * 1000, absl::MakeSpan(got.data(), got.size())),
            RegionOperation::fetch_add(8 * t, 1), RegionOperation::fetch_add(64, 1)};
        ASSERT_TRUE(remote->run(absl::MakeSpan(batch), soon()).ok());
        ASSERT_EQ(got, said);
        before = batch[2].before;
        ASSERT_EQ(before, static_cast<uint64_t>(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(load_u64(owner_.region->data() + 64), 400u);
}

TEST_F(Fabric, ADeadlineThatIsOverLetsNothingHappen) {
  const auto remote = open(folder_ / "");
  ASSERT_TRUE(remote->put(0, "before", soon()).ok());
  EXPECT_TRUE(is_timed_out(remote->put(0, "behind", monotonic_us() - 1)));
  EXPECT_EQ(Bytes(owner_.region->data(), 6), "before");
}

TEST_F(Fabric, ASleepingOwnerCostsNothing) {
  const auto remote = open(folder_ / "");
  ASSERT_TRUE(remote->put(0, "awake", soon()).ok());
  const auto used_us = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  const auto before = used_us();
  const timespec pause{0, 200'000'000};  // what is measured
  ::nanosleep(&pause, nullptr);
  EXPECT_LT(used_us() - before, 100'000);
}

using Handler = void (*)(int);

Handler handler_of(int number) {
  struct sigaction action {};
  EXPECT_EQ(::sigaction(number, nullptr, &action), 0);
  return action.sa_handler;
}

// As the program was started with: a shell's background job ignores SIGINT.
const Handler kInterruptAtStart = handler_of(SIGINT), kTerminateAtStart = handler_of(SIGTERM);

// Drivers of libfabric take signals when they are loaded.
TEST_F(Fabric, SignalsStayAsTheyAre) {
  EXPECT_EQ(handler_of(SIGINT), kInterruptAtStart);
  EXPECT_EQ(handler_of(SIGTERM), kTerminateAtStart);
}

// --- hostile peers -----------------------------------------------------------------------------

TEST_F(Fabric, WithoutTheTokenThereIsNoConnection) {
  const HonestPeer honest(folder_ / "");
  FabricPlace place = expose_more();
  for (size_t byte = 0; byte < place.token.size(); byte++) {
    FabricPlace wrong = place;
    wrong.token[byte] = static_cast<char>(wrong.token[byte] ^ 1);
    EXPECT_EQ(connect(wrong).status().code(), StatusCode::kUnavailable);
  }
  EXPECT_EQ(owner_.fabric->refused(), place.token.size());
  EXPECT_TRUE(connect(place).ok());
  owner_.fabric->withdraw(place);
  EXPECT_EQ(connect(place).status().code(), StatusCode::kUnavailable);
}

TEST(FabricLimits, ConnectionsBeyondTheLimitAreRefused) {
  Folder folder;
  Owner owner(folder / "", {.connections_max = 1});
  const auto place = owner.fabric->expose(owner.region);
  ASSERT_TRUE(place.ok());
  auto first = connect(*place);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(connect(*place).status().code(), StatusCode::kUnavailable);
  first->reset();
  while (owner.fabric->connections() > 0) std::this_thread::yield();
  EXPECT_TRUE(connect(*place).ok());
}

// RX3: the provider refuses what a peer puts that does not hold back by itself.
TEST_F(Fabric, OneForReadingOnlyHasNoRightToBeWritten) {
  more_ = make_region(folder_ / "more");
  const auto place = owner_.fabric->expose(more_, RegionAccess::kReadOnly);
  ASSERT_TRUE(place.ok()) << place.status();
  const std::string before(more_->data(), kBytes);
  const FabricLink::Piece piece{place->base, 0, 100};
  auto link = connect(*place);
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE((*link)->get({&piece, 1}, soon()).ok());
  std::fill_n((*link)->buffer(), 100, 'h');
  bool begun = false;
  EXPECT_FALSE((*link)->put({&piece, 1}, soon(), &begun).ok());
  EXPECT_EQ(Bytes(more_->data(), kBytes), before);
}

TEST_F(Fabric, WrongKeysAndBoundsEndTheirConnection) {
  const HonestPeer honest(folder_ / "");
  const FabricPlace place = expose_more();
  const auto other = owner_.fabric->expose(owner_.region);
  ASSERT_TRUE(other.ok());
  const std::string before(more_->data(), kBytes);
  const FabricLink::Piece inside{place.base, 0, 100};
  const FabricLink::Piece outside[] = {{place.base + kBytes - 99, 0, 100},
                                       {place.base + kBytes, 0, 100},
                                       {place.base + (1ull << 40), 0, 100},
                                       {place.base - 100, 0, 100},
                                       {place.base - 1, 0, 100}};
  const auto fails = [](const FabricPlace& at, const FabricLink::Piece& piece, bool put) {
    auto link = connect(at);
    ASSERT_TRUE(link.ok()) << link.status();
    std::fill_n((*link)->buffer(), 100, 'h');
    bool begun = false;
    const Status done =
        put ? (*link)->put({&piece, 1}, soon(), &begun) : (*link)->get({&piece, 1}, soon());
    EXPECT_EQ(done.code(), StatusCode::kUnavailable);
    EXPECT_FALSE((*link)->is_alive()) << "FL2";
  };
  for (const bool put : {true, false}) {
    for (const FabricLink::Piece& piece : outside) fails(place, piece, put);
    FabricPlace wrong = place;
    wrong.key++;
    fails(wrong, inside, put);
    wrong.key = other->key;  // FB1: not by this connection
    fails(wrong, inside, put);
  }
  EXPECT_EQ(Bytes(more_->data(), kBytes), before);
}

FileDescriptor connect_plainly(const std::string& address) {
  const auto parsed = parse_address(address);  // "tcp:"
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), parsed->get(), parsed->bytes), 0);
  return fd;
}

void say(const FileDescriptor& fd, Bytes bytes) {
  (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// What a peer says to get a connection: recorded by a plain socket that takes it and says nothing.
std::string recorded_request(FabricPlace place) {
  SocketAddress address = *parse_address(kAnyPort);
  const FileDescriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(listening.get(), address.get(), address.bytes), 0);
  EXPECT_EQ(::listen(listening.get(), 1), 0);
  address.bytes = sizeof address.storage;
  EXPECT_EQ(
      ::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.bytes),
      0);
  place.address = to_text(address);
  EXPECT_TRUE(is_timed_out(connect(place, in_ms(100)).status()));
  const FileDescriptor taken(::accept(listening.get(), nullptr, nullptr));
  std::string said(4096, '\0');
  const ssize_t got = ::recv(taken.get(), said.data(), said.size(), 0);
  EXPECT_GT(got, 16);
  said.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return said;
}

// Whatever is said before there is a connection.
TEST_F(Fabric, GarbageAtItsPortHarmsNobody) {
  const HonestPeer honest(folder_ / "");
  const std::string request = recorded_request(expose_more());
  Rng rng(4);
  std::vector<FileDescriptor> open_still;  // they say no more, and stay
  for (int i = 0; i < 100; i++) {
    std::string said = request;
    if (i % 2 == 0) said[rng.below(said.size())] ^= static_cast<char>(1u << rng.below(8));
    if (i % 4 == 1) said.resize(rng.below(said.size()));
    if (i % 4 == 3) said.assign(rng.below(5000), '\0');
    for (char& c : said) c = i % 8 == 7 ? static_cast<char>(rng.next()) : c;
    FileDescriptor fd = connect_plainly(owner_.fabric->address());
    say(fd, said);
    if (i % 10 == 0) open_still.push_back(std::move(fd));
  }
}

// Frames of any contents by who knows a token, but for the kind that FB3 excepts.
TEST_F(Fabric, GarbageOnAConnectionHarmsNobody) {
  const HonestPeer honest(folder_ / "");
  const std::string request = recorded_request(expose_more());
  Rng rng(6);
  for (int i = 0; i < 200; i++) {
    const FileDescriptor fd = connect_plainly(owner_.fabric->address());
    say(fd, request);
    char answer;
    ASSERT_EQ(::recv(fd.get(), &answer, 1, 0), 1) << i;
    std::string said(1 + rng.below(200), '\0');
    for (char& c : said) c = static_cast<char>(rng.one_in(3) ? rng.below(8) : rng.next());
    said.resize(std::max<size_t>(said.size(), 2));
    said[0] = 3;  // the version its frames carry
    said[1] = static_cast<char>(rng.one_in(3) ? 0 : rng.below(256));
    if (said[1] == 1) said[1] = 0;  // a tagged message: becomes a plain one
    say(fd, said);
  }
  wait_for_connections(1);
}

// --- fencing -----------------------------------------------------------------------------------

// FB2, RR4: peers in the middle of puts and gets when their region is withdrawn and unmapped.
TEST_F(Fabric, ARegionMayBeWithdrawnUnderFire) {
  const HonestPeer honest(folder_ / "");
  for (int round = 0; round < 10; round++) {
    const std::string name = "fenced";
    owner_.regions->expose(name, make_region(folder_ / name));
    std::vector<std::thread> peers;
    std::atomic<int> opened{0}, begun{0};
    for (int t = 0; t < 3; t++) {
      peers.emplace_back([&, t] {
        const auto remote = open(folder_ / "", name);
        opened++;
        std::string bytes(300'000, 'f');
        Status done;
        while (done.ok()) {
          done = t == 0 ? remote->get(0, absl::MakeSpan(bytes.data(), bytes.size()), soon())
                        : remote->put(t * 300'000, bytes, soon());
          begun++;
        }
        EXPECT_TRUE(is_withdrawn(done)) << done;
        EXPECT_TRUE(is_withdrawn(remote->put(0, "again", soon())));
      });
    }
    while (opened < 3 || begun < 20) std::this_thread::yield();
    owner_.regions->withdraw(name);  // the last to hold the region: its memory is unmapped
    for (std::thread& peer : peers) peer.join();
  }
}

// --- processes ---------------------------------------------------------------------------------

// This program again, in a role; it tells when it is ready and goes on until it is killed.
class Child {
 public:
  Child(const std::string& role, const std::string& folder) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const FileDescriptor told(ends[0]), out(ends[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out.get(), 1);
    std::string arguments[] = {"child", role, folder};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    char byte;
    EXPECT_EQ(::read(told.get(), &byte, 1), 1);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void signal(int number) const {
    ::kill(pid_, number);
    int status = 0;
    if (number == SIGSTOP) {
      EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    }
  }
  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

void tell() { (void)!::write(1, "x", 1); }

[[noreturn]] void act_as_owner(const std::string& folder) {
  const Owner owner(folder);
  tell();
  for (;;) ::pause();
}

// In the middle of a put when it is killed, as a rule.
[[noreturn]] void act_as_peer(const std::string& folder) {
  const auto remote = open(folder);
  const std::string bytes(200'000, 'k');
  if (!remote->put(0, bytes, soon()).ok()) ::_exit(1);
  tell();
  for (;;) (void)remote->put(0, bytes, soon());
}

TEST_F(Fabric, PeersMayBeKilled) {
  const HonestPeer honest(folder_ / "");
  for (int i = 0; i < 4; i++) Child("peer", folder_ / "").kill();
  wait_for_connections(1);
}

TEST(FabricOwner, MayBeKilled) {
  Folder folder;
  auto owner = std::make_unique<Child>("owner", folder / "");
  const auto remote = open(folder / "");
  std::string bytes(300'000, 'b');
  ASSERT_TRUE(remote->put(0, bytes, soon()).ok());
  std::atomic<int> put{0};
  Status last;
  std::thread peer([&] {
    for (; last.ok(); put++) last = remote->put(0, bytes, soon());
  });
  while (put < 10) std::this_thread::yield();
  owner->kill();
  peer.join();
  // Between two puts it is noticed in time.
  EXPECT_TRUE(last.code() == StatusCode::kUnknown || last.code() == StatusCode::kUnavailable)
      << last;
  EXPECT_EQ(remote->put(0, bytes, soon()).code(), StatusCode::kUnavailable);
  EXPECT_EQ(remote->get(0, absl::MakeSpan(bytes.data(), 100), soon()).code(),
            StatusCode::kUnavailable);
  // Its next life has other regions.
  owner = std::make_unique<Child>("owner", folder / "");
  EXPECT_TRUE(is_withdrawn(remote->put(0, bytes, soon())));
  EXPECT_TRUE(open(folder / "")->put(0, bytes, soon()).ok());
}

TEST(FabricOwner, MayStandStill) {
  Folder folder;
  const Child owner("owner", folder / "");
  const auto remote = open(folder / "");
  const std::string said(100'000, 's');
  ASSERT_TRUE(remote->put(0, said, soon()).ok());
  owner.signal(SIGSTOP);
  std::string got(said.size(), 'u');
  const absl::Span<char> target = absl::MakeSpan(got.data(), got.size());
  const uint64_t begin_us = monotonic_us();
  EXPECT_TRUE(is_timed_out(remote->get(0, target, in_ms(100))));
  EXPECT_TRUE(is_timed_out(remote->put(0, said, in_ms(100))))
      << "there is no connection to put it on";
  EXPECT_GE(monotonic_us() - begin_us, 200'000u);
  owner.signal(SIGCONT);
  ASSERT_TRUE(remote->put(0, said, soon()).ok());
  owner.signal(SIGSTOP);
  EXPECT_EQ(remote->put(0, "unknown", in_ms(100)).code(), StatusCode::kUnknown) << "RR5";
  owner.signal(SIGCONT);
  std::string late(said.size(), '\0');
  ASSERT_TRUE(remote->get(0, absl::MakeSpan(late.data(), late.size()), soon()).ok());
  EXPECT_EQ(late.substr(7), said.substr(7));
  EXPECT_EQ(got, std::string(said.size(), 'u')) << "FL1: given up is given up";
}

}  // namespace

int act(const std::string& role, const std::string& folder) {
  if (role == "owner") act_as_owner(folder);
  if (role == "peer") act_as_peer(folder);
  return 1;
}

}  // namespace strata::transport

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[0]) == "child")
    return strata::transport::act(argv[1], argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
