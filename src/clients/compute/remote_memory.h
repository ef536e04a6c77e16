// A compute node's remote buffer pool (LegoBase, §4): finds the memory node, and puts
// clients/memory between the kernel and the storage nodes that its pages are written to.
//   RM1  Which content of which node's pool counts is what the registry says (MPR1-MPR3,
//        cluster/memory_pools.h). One that is named on another memory node than the one to be used
//        is given up before anything is read: recovery begins where storage has everything.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "clients/memory/memory_page_source.h"
#include "clients/memory/pool_client.h"
#include "clients/memory/written_below.h"
#include "cluster/memory_pools.h"
#include "cluster/node_addresses.h"
#include "cluster/stream_epochs.h"

namespace strata::clients {

struct RemoteMemoryOptions {
  std::string node;   // the memory node's name; empty: the one that the registry names for the
                      // stream, else the first member by name
  std::string token;  // its tenant's
  uint64_t pool_bytes = uint64_t{1} << 40;  // asked for when a pool is made; it may be less
  uint32_t free_slots = 100;
  uint64_t timeout_us = 5'000'000;  // for the memory node to answer
  bool remote_addresses = true;     // false: it is asked where a page is, before each read
  bool pull = true;                 // false: calls carry pages, though the node could pull them
};

// The registry's name of the stream's pool, as its writer keeps it. Used by one thread at a time.
class RegistryPoolNaming final : public PoolNaming {
 public:
  RegistryPoolNaming(registry::Registry* registry, const cluster::ClusterKeys& keys,
                     std::function<cluster::EpochGrant()> grant, std::string node,
                     uint64_t timeout_us);
  StatusOr<std::optional<uint64_t>> named() override;
  Status name(uint64_t incarnation) override;
  Status remove() override;

 private:
  Status read();
  Status refused(const Status& status);
  [[nodiscard]] uint64_t deadline() const { return registry_->now_us() + timeout_us_; }

  registry::Registry* const registry_;
  cluster::MemoryPools pools_;
  cluster::StreamEpochs epochs_;
  const std::function<cluster::EpochGrant()> grant_;
  const std::string node_;
  const uint64_t timeout_us_;
  std::optional<cluster::PublishedPool> found_;
  bool in_doubt_ = true;  // found_ may not be what there is
};

class RemoteMemory {
 public:
  struct Parts {
    registry::Registry* registry = nullptr;
    cluster::ClusterKeys keys;
    std::function<cluster::EpochGrant()> grant;  // of the stream, as it is now
    const cluster::NodeAddresses* addresses = nullptr;
    transport::Secret secret;
    std::function<Lsn()> durable;  // up to where the log is
    std::shared_ptr<transport::LinkModel> link_model;
    std::shared_ptr<transport::Counters> counters;
    uint64_t call_timeout_us = 5'000'000;  // of the registry's
    std::function<bool()> pause;  // waits a little for a memory node to be there; false: no longer
  };
  // Before the storage nodes are opened. Blocks. Errors: kUnavailable (no memory node is in the
  // registry, and none is named), those of the registry.
  static StatusOr<std::unique_ptr<RemoteMemory>> find(Parts parts,
                                                      const RemoteMemoryOptions& options);
  // For WrittenNodesOptions::write_again; valid as long as this.
  [[nodiscard]] std::function<DelegateAnswer(const DelegateTarget&)> write_again();
  // Once. Blocks. Errors: those of MemoryPageSource::open(). `storage` outlives this. `founding`:
  // whatever pool there is, it is not of this database.
  Status open(WrittenPageSource* storage, bool founding);

  [[nodiscard]] MemoryPageSource* pages() noexcept { return pages_.get(); }
  [[nodiscard]] const MemoryPageSource* pages() const noexcept { return pages_.get(); }
  [[nodiscard]] const std::string& node() const noexcept { return node_; }

 private:
  RemoteMemory(Parts parts, const RemoteMemoryOptions& options, std::string node);
  const Parts parts_;
  const RemoteMemoryOptions options_;
  const std::string node_;
  WrittenBelow storage_;
  RegistryPoolNaming naming_;
  PoolClient client_;
  std::unique_ptr<MemoryPageSource> pages_;  // goes first
};

}  // namespace strata::clients
