// A page read from a pool on a memory node as a compute node reads it: header, page and generation
// in one batch, then checksum, identity and llsn; over a mapping and by calls over TCP on loopback.
// And what the node does to take a page.
#include <unistd.h>

#include <array>
#include <vector>

#include "base/clock.h"
#include "memnode/file/pool_file.h"
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

}  // namespace
}  // namespace strata::micro
