// A memory node's pools behind real sockets, with storage nodes that do what the test says, and
// what a reader on this host finds in a pool.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "memnode/service/pool_service.h"
#include "memnode/service/testing/memory_node_fixture.h"
#include "transport/regions/region_memory.h"
#include "transport/regions/remote_region.h"

namespace strata::memnode::testing {

constexpr PageId kPage{300, 7};
constexpr PageId kOther{300, 8};
constexpr PageId kElsewhere{301, 7};

class PoolServiceFixture : public MemoryNodeFixture {
 protected:
  void storage_nodes(size_t count) {
    for (size_t i = 0; i < count; ++i) storage_.push_back(std::make_unique<StorageNode>());
  }
  // What a reader on this host finds there, or nothing if the slot changed under it.
  std::string read(const proto::PoolAttachReply& pool, const proto::PoolSlot& at) {
    auto region = transport::open_remote_region(channel_, pool.region,
                                                transport::RegionPath::kMapped, deadline());
    EXPECT_TRUE(region.ok()) << region.status();
    if (!region.ok()) return {};
    SlotHeader before, after;
    std::string page(kPageBytes, '\0');
    const uint64_t header_at = pool.headers_at + uint64_t{at.slot} * sizeof(SlotHeader);
    transport::RegionOperation batch[] = {
        transport::RegionOperation::get(header_at,
                                        {reinterpret_cast<char*>(&before), sizeof before}),
        transport::RegionOperation::get(pool.pages_at + uint64_t{at.slot} * kPageBytes,
                                        {page.data(), page.size()}),
        transport::RegionOperation::get(header_at,
                                        {reinterpret_cast<char*>(&after), sizeof after})};
    EXPECT_TRUE((*region)->run(batch, deadline()).ok());
    if (before.generation != at.generation || after.generation != at.generation) return {};
    return page;
  }
  static uint64_t deadline() { return monotonic_us() + 20'000'000; }
};

}  // namespace strata::memnode::testing
