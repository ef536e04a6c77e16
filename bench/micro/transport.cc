// Calls: a GetPage (small request, 16 KiB reply, answered inline) that blocks its thread, from one
// and from eight threads; log appends through one channel; a region by a mapping, by calls and over
// a fabric on loopback. The limit is the same exchange by plain blocking sockets.
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "base/clock.h"
#include "base/latch.h"
#include "micro.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/channel.h"
#include "transport/calls/rpc_server.h"
#include "transport/regions/fabric_server.h"
#include "transport/regions/region_server.h"
#include "transport/regions/remote_region.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket.h"
#include "transport/sockets/socket_network.h"

namespace strata::micro {
namespace {

using namespace transport;  // NOLINT

constexpr uint16_t kGetPage = 1, kAppend = 2;
constexpr size_t kRequestBytes = 32;

uint64_t soon() { return monotonic_us() + 60'000'000; }

Secret secret() {
  std::array<char, Secret::kBytes> bytes;
  bytes.fill('s');
  return Secret(bytes);
}

struct Node {
  Node()
      : network(io.loop()),
        fabric(start_fabric()),
        server(world(), secret(), {}),
        regions(&server, fabric.get()) {
    server.handle(kGetPage, [](const Request&, Responder responder) {
      responder.reply(std::string(kPageBytes, 'p'));
    });
    server.handle(kAppend, [](const Request&, Responder responder) { responder.reply("durable"); });
    const std::string path = directory() + "/region.tmp";
    auto region = Region::create(path, 1u << 20, 1);
    must(region.status());
    regions.expose("region", *std::move(region));
    ::unlink(path.c_str());
    const auto tcp_address = server.listen("tcp:127.0.0.1:0");
    must(tcp_address.status());
    tcp = std::make_shared<BlockingChannel>(secret(), *tcp_address, BlockingChannelOptions());
    char* const folder = ::realpath(directory().c_str(), nullptr);
    const auto unix_address = server.listen(std::string("unix:") + folder + "/socket.tmp");
    ::free(folder);
    must(unix_address.status());
    local = std::make_shared<BlockingChannel>(secret(), *unix_address, BlockingChannelOptions());
    lively_address = *tcp_address;
  }
  static std::unique_ptr<FabricServer> start_fabric() {
    if (!fabric_is_built()) return nullptr;
    auto started = FabricServer::start("tcp:127.0.0.1:0");
    must(started.status());
    return *std::move(started);
  }
  World world() { return {io.loop(), &network, system_entropy()}; }
  IoThread io;
  SocketNetwork network;
  std::shared_ptr<BlockingChannel> tcp, local;
  std::string lively_address;
  std::unique_ptr<FabricServer> fabric;
  RpcServer server;
  RegionServer regions;
};
std::unique_ptr<Node> node;

void get_page(benchmark::State& state, bool over_tcp) {
  if (state.thread_index() == 0) node = std::make_unique<Node>();
  const std::string request(kRequestBytes, 'r');
  BlockingReply reply;
  reply.payload.resize(kPageBytes);
  for (auto _ : state) {
    const CallOptions options{.method = kGetPage, .deadline_us = soon(), .idempotent = true};
    BlockingChannel* const channel = over_tcp ? node->tcp.get() : node->local.get();
    must(channel->call(options, request, &reply));
  }
  state.SetLabel(over_tcp ? "limit: tcp_exchange_16k" : "limit: unix_exchange_16k");
  if (state.thread_index() == 0) node.reset();
}
void get_page_tcp(benchmark::State& state) { get_page(state, true); }
void get_page_unix(benchmark::State& state) { get_page(state, false); }
BENCHMARK(get_page_tcp)->Name("rpc/get_page_tcp")->UseRealTime();
BENCHMARK(get_page_unix)->Name("rpc/get_page_unix")->UseRealTime();
BENCHMARK(get_page_tcp)->Name("rpc/get_page_tcp_8_threads")->Threads(8)->UseRealTime();

// So many appends under way at a time.
void append(benchmark::State& state, size_t window) {
  Node one;
  IoThread io;
  SocketNetwork network(io.loop());
  Channel channel({io.loop(), &network, system_entropy()}, secret(), one.lively_address, {});
  Mutex mutex(LatchRank::kLeaf);
  CondVar changed;
  size_t under_way = 0;
  for (auto _ : state) {
    MutexLock lock(mutex);
    changed.wait(lock, [&] { return under_way < window; });
    under_way++;
    lock.unlock();
    const CallOptions options{
        .method = kAppend, .deadline_us = soon(), .wait_for_connection = true};
    channel.call(options, std::string(4096, 'l'), [&](const Reply& reply) {
      must(reply.status);
      const MutexLock done(mutex);
      under_way--;
      changed.notify_one();
    });
  }
  MutexLock lock(mutex);
  changed.wait(lock, [&] { return under_way == 0; });
}
void append_one(benchmark::State& state) { append(state, 1); }
void append_many(benchmark::State& state) { append(state, 64); }
BENCHMARK(append_one)->Name("rpc/append_4k")->UseRealTime();
BENCHMARK(append_many)->Name("rpc/append_4k_64_under_way")->UseRealTime();

const char* limit_of(RegionPath path) {
  if (path == RegionPath::kMapped) return "limit: memcpy_16k";
  return path == RegionPath::kCalls ? "limit: unix_exchange_16k" : "limit: tcp_exchange_16k";
}

template <class Operation>
void region_operation(benchmark::State& state, RegionPath path, Operation operation) {
  Node one;
  auto remote = open_remote_region(one.local, "region", path, soon());
  must(remote.status());
  const uint64_t deadline_us = monotonic_us() + 3'600'000'000;
  for (auto _ : state) must(operation(remote->get(), deadline_us));
}
void region_get(benchmark::State& state, size_t bytes, RegionPath path) {
  std::string page(bytes, '\0');
  region_operation(state, path, [&](RemoteRegion* remote, uint64_t deadline_us) {
    return remote->get(64, absl::MakeSpan(page.data(), page.size()), deadline_us);
  });
  if (bytes == kPageBytes) state.SetLabel(limit_of(path));
}
void region_put(benchmark::State& state, size_t bytes, RegionPath path) {
  const std::string page(bytes, 'p');
  region_operation(state, path, [&](RemoteRegion* remote, uint64_t deadline_us) {
    return remote->put(64, page, deadline_us);
  });
  if (bytes == kPageBytes) state.SetLabel(limit_of(path));
}
void mapped_get_16k(benchmark::State& state) { region_get(state, kPageBytes, RegionPath::kMapped); }
void mapped_get_8(benchmark::State& state) { region_get(state, 8, RegionPath::kMapped); }
void call_get_16k(benchmark::State& state) { region_get(state, kPageBytes, RegionPath::kCalls); }
BENCHMARK(mapped_get_8)->Name("region/mapped_get_8")->UseRealTime();
BENCHMARK(mapped_get_16k)->Name("region/mapped_get_16k")->UseRealTime();
BENCHMARK(call_get_16k)->Name("region/call_get_16k")->UseRealTime();

void fabric_fetch_add(benchmark::State& state) {
  region_operation(state, RegionPath::kFabric, [](RemoteRegion* remote, uint64_t deadline_us) {
    return remote->fetch_add(64, 1, deadline_us).status();
  });
}
template <size_t kBytes>
void fabric_get(benchmark::State& state) {
  region_get(state, kBytes, RegionPath::kFabric);
}
template <size_t kBytes>
void fabric_put(benchmark::State& state) {
  region_put(state, kBytes, RegionPath::kFabric);
}
// Not every build has a fabric.
[[maybe_unused]] const bool fabric_registered = [] {
  if (!fabric_is_built()) return false;
  const auto add = [](const char* name, benchmark::internal::Function* function) {
    benchmark::RegisterBenchmark(name, function)->UseRealTime();
  };
  add("region/fabric_get_8", fabric_get<8>);
  add("region/fabric_get_256", fabric_get<256>);
  add("region/fabric_get_16k", fabric_get<kPageBytes>);
  add("region/fabric_put_8", fabric_put<8>);
  add("region/fabric_put_256", fabric_put<256>);
  add("region/fabric_put_16k", fabric_put<kPageBytes>);
  add("region/fabric_fetch_add", fabric_fetch_add);
  return true;
}();

// --- the limit ----------------------------------------------------------------------------------

void read_exactly(int fd, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, to, bytes, 0);
    if (got <= 0) return;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
}

void exchange(benchmark::State& state, const FileDescriptor& near, FileDescriptor far) {
  std::thread peer([fd = std::move(far)] {
    std::string request(kRequestBytes, '\0');
    const std::string reply(kPageBytes, 'p');
    while (::recv(fd.get(), request.data(), request.size(), 0) > 0)
      (void)!::send(fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
  });
  const std::string request(kRequestBytes, 'r');
  std::string reply(kPageBytes, '\0');
  for (auto _ : state) {
    (void)!::send(near.get(), request.data(), request.size(), 0);
    read_exactly(near.get(), reply.data(), reply.size());
  }
  ::shutdown(near.get(), SHUT_RDWR);
  peer.join();
}

void unix_exchange(benchmark::State& state) {
  int ends[2];
  STRATA_ASSERT(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const FileDescriptor near(ends[0]);
  exchange(state, near, FileDescriptor(ends[1]));
}
BENCHMARK(unix_exchange)->Name("limit/unix_exchange_16k")->UseRealTime();

void tcp_exchange(benchmark::State& state) {
  SocketAddress address = *parse_address("tcp:127.0.0.1:0");
  const FileDescriptor listening(::socket(AF_INET, SOCK_STREAM, 0));
  STRATA_ASSERT(::bind(listening.get(), address.get(), address.bytes) == 0);
  STRATA_ASSERT(::listen(listening.get(), 1) == 0);
  address.bytes = sizeof address.storage;
  STRATA_ASSERT(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address.storage),
                              &address.bytes) == 0);
  const FileDescriptor near(::socket(AF_INET, SOCK_STREAM, 0));
  STRATA_ASSERT(::connect(near.get(), address.get(), address.bytes) == 0);
  FileDescriptor far(::accept(listening.get(), nullptr, nullptr));
  set_stream_options(near.get(), address);
  set_stream_options(far.get(), address);
  exchange(state, near, std::move(far));
}
BENCHMARK(tcp_exchange)->Name("limit/tcp_exchange_16k")->UseRealTime();

}  // namespace
}  // namespace strata::micro
