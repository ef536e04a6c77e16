// A page read from a pool on a memory node as a compute node reads it: header, page and generation
// in one batch, then checksum, identity and llsn; over a mapping and by calls over TCP on loopback.
// What the node does to take a page; and a whole call that puts pages, which the call carries or
// the node pulls from memory that both have mapped.
#include <unistd.h>

#include <array>
#include <vector>

#include "base/clock.h"
#include "clients/memory/pool_client.h"
#include "daemon/worker_pool.h"
#include "memnode/file/pool_file.h"
#include "memnode/service/pool_service.h"
#include "micro.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/rpc_server.h"
#include "transport/regions/region_server.h"
#include "transport/regions/remote_region.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket_network.h"

namespace strata::micro {
namespace {

using namespace transport;  // NOLINT
using memnode::Pool;
using memnode::PoolFile;

constexpr uint32_t kSlots = 4096;  // 64 MiB: more than caches hold
constexpr uint32_t kPages = 3072;

PageId id_of(uint32_t number) { return {300, number}; }

std::string page_of(uint32_t number, Llsn llsn) {
  std::string page(kPageBytes, 'p');
  *header_of(page.data()) = {};
  header_of(page.data())->format = kPageFormat;
  header_of(page.data())->type = static_cast<uint8_t>(PageType::kTree);
  header_of(page.data())->llsn = llsn.value;
  header_of(page.data())->space = id_of(number).space;
  header_of(page.data())->number = id_of(number).number;
  seal_page(page.data());
  return page;
}

Secret secret() {
  std::array<char, Secret::kBytes> bytes;
  bytes.fill('s');
  return Secret(bytes);
}

std::unique_ptr<PoolFile> open_pool() {
  const std::string path = directory() + "/pool.tmp";
  auto file = PoolFile::open(
      {.path = path, .stream = StreamId{1}, .node = 1, .pool = {.slots = kSlots}, .boot = {}});
  must(file.status());
  ::unlink(path.c_str());
  return *std::move(file);
}

void put(Pool* pool, uint32_t number, const std::string& page) {
  Pool::Slot there;
  const auto slot =
      pool->begin_fill(id_of(number), Llsn{header_of(page.data())->llsn}, false, Lsn(), &there);
  must(slot.status());
  pool->fill(*slot, page.data());
  must(pool->publish(*slot).status());
}

struct MemoryNode {
  MemoryNode() : network(io.loop()), server(world(), secret(), {}), regions(&server) {
    for (uint32_t number = 0; number < kPages; number++)
      put(file->pool(), number, page_of(number, Llsn{5}));
    regions.expose("pool", file->region(), RegionAccess::kReadOnly);
    char* const folder = ::realpath(directory().c_str(), nullptr);
    unix_address = std::string("unix:") + folder + "/pool-socket.tmp";
    ::free(folder);
    must(server.listen(unix_address).status());
    const auto tcp = server.listen("tcp:127.0.0.1:0");
    must(tcp.status());
    tcp_address = *tcp;
  }
  World world() { return {io.loop(), &network, system_entropy()}; }
  std::unique_ptr<PoolFile> file = open_pool();
  IoThread io;
  SocketNetwork network;
  RpcServer server;
  RegionServer regions;
  std::string unix_address, tcp_address;
};

void get(benchmark::State& state, RegionPath path) {
  MemoryNode node;
  const bool mapped = path == RegionPath::kMapped;
  const uint64_t deadline_us = monotonic_us() + 3'600'000'000;
  auto channel = std::make_shared<BlockingChannel>(
      secret(), mapped ? node.unix_address : node.tcp_address, BlockingChannelOptions());
  auto remote = open_remote_region(channel, "pool", path, deadline_us);
  must(remote.status());
  PageBytes page;
  std::array<char, sizeof(memnode::SlotHeader)> header;
  std::array<char, 8> generation;
  Rng rng(1);
  for (auto _ : state) {
    const auto number = static_cast<uint32_t>(rng.below(kPages));
    const Pool::Slot known = *node.file->pool()->lookup(id_of(number));
    const uint64_t header_at = node.file->headers_at() + known.number * header.size();
    const uint64_t page_at = node.file->pages_at() + uint64_t{known.number} * kPageBytes;
    std::array<RegionOperation, 3> batch = {
        RegionOperation::get(header_at, absl::MakeSpan(header)),
        RegionOperation::get(page_at, absl::MakeSpan(page.bytes, kPageBytes)),
        RegionOperation::get(header_at, absl::MakeSpan(generation))};
    must((*remote)->run(absl::MakeSpan(batch), deadline_us));
    STRATA_ASSERT(load_u64(header.data()) == known.generation);
    STRATA_ASSERT(load_u64(generation.data()) == known.generation);
    must(verify_page(page.bytes, id_of(number)));
    STRATA_ASSERT(header_of(page.bytes)->llsn == known.llsn.value);
  }
  state.SetLabel(mapped ? "limit: memcpy_16k" : "limit: tcp_exchange_16k");
}
void get_mapped(benchmark::State& state) { get(state, RegionPath::kMapped); }
void get_tcp(benchmark::State& state) { get(state, RegionPath::kCalls); }
BENCHMARK(get_mapped)->Name("memory_pool/get_mapped");
BENCHMARK(get_tcp)->Name("memory_pool/get_tcp")->UseRealTime();

// An image that takes another one's place.
void take(benchmark::State& state) {
  const std::unique_ptr<PoolFile> file = open_pool();
  std::vector<std::string> pages;
  for (uint32_t number = 0; number < 64; number++) pages.push_back(page_of(number, Llsn{1}));
  uint64_t llsn = 1;
  uint32_t number = 0;
  for (auto _ : state) {
    // Its checksum is of another llsn: nobody looks at it here.
    if (number == 0) llsn++;
    header_of(pages[number].data())->llsn = llsn;
    put(file->pool(), number, pages[number]);
    number = (number + 1) % 64;
  }
  state.SetLabel("limit: memcpy_16k");
}
BENCHMARK(take)->Name("memory_pool/put");

// A memory node's service, without a registry, and a compute node's client.
struct Service {
  explicit Service(bool tcp, uint32_t places) {
    memnode::PoolService::Parts parts;
    parts.folder = directory();
    parts.node = 1;
    parts.check_epoch = [](StreamId, Epoch) { return ok_status(); };
    parts.expose = [this](const std::string& name, const std::shared_ptr<Region>& region,
                          RegionAccess access) { regions.expose(name, region, access); };
    parts.withdraw = [this](const std::string& name) { regions.withdraw(name); };
    parts.offload = [this](daemon::WorkerPool::Task task) { return workers.run(std::move(task)); };
    parts.offload_attach = parts.offload;
    parts.tenants = &tenants;
    parts.writer = &writer;
    pools = std::make_unique<memnode::PoolService>(std::move(parts));
    pools->register_on(server.get());
    char* const folder = ::realpath(directory().c_str(), nullptr);
    std::string address = std::string("unix:") + folder + "/pool-service.tmp";
    ::free(folder);
    const auto listens = server->listen(tcp ? "tcp:127.0.0.1:0" : address);
    must(listens.status());
    clients::PoolClientOptions options;
    options.stream = StreamId{1};
    options.epoch = Epoch{1};
    options.slots_max = 4096;
    options.places = places;
    client = std::make_unique<clients::PoolClient>(secret(), *listens, options);
    must(client->attach(0, true, monotonic_us() + 10'000'000).status());
    ::unlink((directory() + "/pool-1").c_str());
    STRATA_ASSERT(client->pulls() == (places != 0));
  }
  ~Service() {
    client.reset();
    server.reset();
    writer.stop();
    workers.stop();
  }
  World world() { return {io.loop(), &network, system_entropy()}; }
  IoThread io;
  SocketNetwork network{io.loop()};
  daemon::WorkerPool workers{2, 1000};
  std::unique_ptr<RpcServer> server =
      std::make_unique<RpcServer>(world(), secret(), ServerOptions());
  RegionServer regions{server.get()};
  memnode::StorageWriter writer{world(), secret()};
  memnode::Tenants tenants{{}, uint64_t{256} << 20};
  std::unique_ptr<memnode::PoolService> pools;
  std::unique_ptr<clients::PoolClient> client;
};

// So many images of a call take the places of the ones before.
void put_call(benchmark::State& state, bool tcp, uint32_t places) {
  Service service(tcp, places);
  const auto count = static_cast<uint32_t>(state.range(0));
  std::vector<proto::PoolImage> images;
  for (uint32_t number = 0; number < count; number++)
    images.push_back({id_of(number), true, Lsn{100}, Lsn{200}});
  uint64_t llsn = 0;
  std::string pages;
  for (auto _ : state) {
    state.PauseTiming();
    llsn++;
    pages.clear();
    for (uint32_t number = 0; number < count; number++) pages += page_of(number, Llsn{llsn});
    state.ResumeTiming();
    const auto taken = service.client->put(images, pages, Lsn{1000});
    must(taken.status());
    must(taken->back().status);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * count));
  state.SetLabel(tcp ? "limit: tcp_exchange_16k" : "limit: memcpy_16k");
}
void put_pulled(benchmark::State& state) { put_call(state, false, 256); }
void put_carried(benchmark::State& state) { put_call(state, false, 0); }
void put_tcp(benchmark::State& state) { put_call(state, true, 0); }
BENCHMARK(put_pulled)
    ->Name("memory_pool/put_pulled")
    ->Arg(1)
    ->Arg(20)
    ->MeasureProcessCPUTime()
    ->UseRealTime();
BENCHMARK(put_carried)
    ->Name("memory_pool/put_carried")
    ->Arg(1)
    ->Arg(20)
    ->MeasureProcessCPUTime()
    ->UseRealTime();
BENCHMARK(put_tcp)
    ->Name("memory_pool/put_tcp")
    ->Arg(1)
    ->Arg(20)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

}  // namespace
}  // namespace strata::micro
