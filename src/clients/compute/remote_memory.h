// A compute node's remote buffer pool (LegoBase, §4): finds the memory nodes, and puts
// clients/memory between the kernel and the storage nodes that its pages are written to.
//   RM1  Which content of which node's pool counts is what the registry says (MPR1-MPR4,
//        cluster/memory_pools.h). If it names other memory nodes than those to be used, or in
//        another order, all of them are given up before anything is read: recovery begins where
//        storage has everything.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/latch.h"
#include "clients/memory/mirrored_pool.h"
#include "clients/memory/pool_client.h"
#include "clients/memory/pool_set.h"
#include "clients/memory/written_below.h"
#include "cluster/memory_pools.h"
#include "cluster/node_addresses.h"
#include "cluster/stream_epochs.h"

namespace strata::clients {

struct RemoteMemoryOptions {
  // The memory nodes' names, in an order that stays; empty: those that the registry names for the
  // stream, else the first members by name, up to nodes_max.
  std::vector<std::string> nodes;
  uint32_t nodes_max = 1;
  // The first two of the names have the same pages, and so have the next two, and so on.
  bool backup = false;
  std::string token;                        // its tenant's, on all of them
  uint64_t pool_bytes = uint64_t{1} << 40;  // asked of each when a pool is made; it may be less
  uint32_t free_slots = 100;
  uint64_t timeout_us = 5'000'000;  // for a memory node to answer
  bool remote_addresses = true;     // false: it is asked where a page is, before each read
  bool pull = true;                 // false: calls carry pages, though the node could pull them
};

// The registry's names of the stream's pools, as its writer keeps them. One change at a time:
// others wait. Thread-safe.
class RegistryPoolNaming {
 public:
  // By place the name of the memory node, or of the two that have a copy each.
  using Nodes = std::vector<std::vector<std::string>>;
  RegistryPoolNaming(registry::Registry* registry, const cluster::ClusterKeys& keys,
                     std::function<cluster::EpochGrant()> grant, Nodes nodes, uint64_t timeout_us);
  ~RegistryPoolNaming();
  [[nodiscard]] PoolNaming* of(size_t place) const;           // where there is one copy
  [[nodiscard]] CopiesNaming* copies_of(size_t place) const;  // where there are two
  Status remove_all();                                        // whatever there is

 private:
  class Member;
  class Single;
  class Turn;
  StatusOr<std::optional<NamedCopies>> named(size_t place);
  Status change(size_t place, const NamedCopies& copies, PoolLoss loss);
  [[nodiscard]] bool are_mine(const cluster::MemoryPoolSet& set) const;
  Status read();
  Status publish(const cluster::MemoryPoolSet& set);
  Status remove();
  Status refused(const Status& status);
  [[nodiscard]] uint64_t deadline() const { return registry_->now_us() + timeout_us_; }

  registry::Registry* const registry_;
  cluster::MemoryPools pools_;
  cluster::StreamEpochs epochs_;
  const std::function<cluster::EpochGrant()> grant_;
  const Nodes nodes_;
  const uint64_t timeout_us_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<Single>> singles_;
  std::atomic<uint64_t> since_{0};
  Mutex mutex_{LatchRank::kLeaf};
  CondVar ended_;
  bool busy_ STRATA_GUARDED_BY(mutex_) = false;  // somebody has the turn
  // Of who has the turn.
  std::optional<cluster::PublishedPools> found_;
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
    std::function<bool()> pause;  // waits a little for memory nodes to be there; false: no longer
  };
  // Before the storage nodes are opened. Blocks. Errors: kUnavailable (no memory node is in the
  // registry, and none is named), kInvalidArgument (names that do not go together), those of the
  // registry.
  static StatusOr<std::unique_ptr<RemoteMemory>> find(Parts parts,
                                                      const RemoteMemoryOptions& options);
  // For WrittenNodesOptions::write_again; valid as long as this.
  [[nodiscard]] std::function<DelegateAnswer(const DelegateTarget&)> write_again();
  // Once. Blocks. Errors: those of PoolSet::open(). `storage` outlives this. `founding`:
  // whatever pool there is, it is not of this database.
  Status open(WrittenPageSource* storage, bool founding);

  [[nodiscard]] PoolSet* pages() noexcept { return pages_.get(); }
  [[nodiscard]] const PoolSet* pages() const noexcept { return pages_.get(); }
  struct Backups {
    uint64_t whole = 0;  // pools that have one which counts
    uint64_t switches = 0;
  };
  [[nodiscard]] Backups backups() const;

 private:
  RemoteMemory(Parts parts, const RemoteMemoryOptions& options,
               const RegistryPoolNaming::Nodes& nodes);
  const Parts parts_;
  const RemoteMemoryOptions options_;
  WrittenBelow storage_;
  RegistryPoolNaming naming_;
  std::vector<std::unique_ptr<PoolClient>> clients_;    // one or two of each place
  std::vector<std::unique_ptr<MirroredPool>> mirrors_;  // by place, if there are two of each
  std::unique_ptr<PoolSet> pages_;                      // goes first
};

}  // namespace strata::clients
