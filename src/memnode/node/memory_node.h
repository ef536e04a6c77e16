// A memory node: its data folder, pools, services, sockets and membership, put together. What a
// daemon runs, and a test may have several of. Thread-safe but for stop().
//
//   MY1  A node serves only in its own folder (daemon/data_folder.h), and two never use the same
//        pools. Whatever is wrong is said by open().
//   MY2  It is a member only while it listens; it leaves before it stops listening.
//   MY3  Without the registry it goes on serving who is attached, and attaches nobody: a later
//        holder of the stream may be there. One that says that a later epoch was given, or that
//        this one never was, attaches nobody either.
//   MY4  After stop(), and after a kill, the pools' files are what they were: the next process
//        finds the pages, checks all of them, and has nobody attached (PUS7).
//   MY7  Where several servers share pages, a node that could not follow the one that serves them
//        does not start: it has another secret, or not the memory for pages and transactions.
//   MY6  Where several servers share pages, they are served only while it is a member, or was, so
//        that its address is found; their calls end before it stops listening.
//   MY5  A pool's file says which node of which cluster it is of; no other one serves it (PV5).
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/stop_flag.h"
#include "cluster/keys.h"
#include "cluster/membership_keeper.h"
#include "cluster/registry_calls.h"
#include "daemon/data_folder.h"
#include "daemon/worker_pool.h"
#include "io/file_system.h"
#include "memnode/host/fusion_host.h"
#include "memnode/node/node_options.h"
#include "memnode/node/node_status.h"
#include "memnode/service/pool_service.h"
#include "registry/registry.h"
#include "transport/calls/rpc_server.h"
#include "transport/regions/fabric_server.h"
#include "transport/regions/region_server.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket_network.h"

namespace strata::memnode {

class MemoryNode {
 public:
  // Starts a node that serves and is a member when this returns. Blocks, as long as the registry
  // does not answer (options). `registry` and `files` outlive the node. Errors: kInvalidArgument
  // (options), wrong_database and in_use (MY1; the message says what to do), kDataLoss,
  // kAlreadyExists (an address in use), kUnavailable (the registry, in time), kCancelled
  // (options.stop).
  static StatusOr<std::unique_ptr<MemoryNode>> open(registry::Registry* registry, FileSystem* files,
                                                    const transport::Secret& secret,
                                                    NodeOptions options);
  ~MemoryNode();  // stop()
  MemoryNode(const MemoryNode&) = delete;
  MemoryNode& operator=(const MemoryNode&) = delete;

  // Leaves, stops listening, finishes what is under way (MY4). Blocks. Again: nothing.
  void stop();

  [[nodiscard]] NodeStatus status() const;
  // Why not all is well, in one line; OK otherwise. A node that is not healthy may still serve.
  [[nodiscard]] Status health() const;
  [[nodiscard]] const std::string& address() const { return addresses_.front(); }
  [[nodiscard]] FusionHost* fusion() const noexcept { return fusion_.get(); }  // null: none

 private:
  MemoryNode(registry::Registry* registry, FileSystem* files, const transport::Secret& secret,
             NodeOptions options);
  Status start();
  Status open_folders();
  [[nodiscard]] Status check_medium() const;
  Status make_services();
  Status make_fusion(const transport::World& world);
  Status listen();
  Status join(cluster::RegistryCalls* calls);
  Status check_epoch(StreamId stream, Epoch epoch);
  StatusOr<bool> is_named(StreamId stream, uint64_t incarnation);
  [[nodiscard]] uint64_t number_in_cluster() const;
  void give_back_unused();
  [[nodiscard]] const std::string& pools_folder() const noexcept {
    return options_.pools.empty() ? options_.directory : options_.pools;
  }
  void add_pool_values(NodeStatus* status) const;
  void add_fusion_values(NodeStatus* status) const;
  void add_calls(NodeStatus* status) const;

  registry::Registry* const registry_;
  FileSystem* const files_;
  const transport::Secret secret_;
  const NodeOptions options_;
  const cluster::ClusterKeys keys_;
  StopFlag stopping_;
  bool stopped_ = false;  // the stopper's

  // Made in this order by open(), and then constant until the node is destroyed.
  std::unique_ptr<daemon::DataFolder> folder_;
  std::unique_ptr<FileLock> pools_lock_;  // null: they are in the data folder
  std::unique_ptr<Tenants> tenants_;
  std::unique_ptr<daemon::WorkerPool> workers_;
  std::unique_ptr<daemon::WorkerPool> attachers_;
  std::unique_ptr<transport::IoThread> io_;
  std::shared_ptr<transport::Counters> counters_ = std::make_shared<transport::Counters>();
  std::unique_ptr<transport::SocketNetwork> network_;
  std::unique_ptr<transport::FabricServer> fabric_;  // null: none
  std::unique_ptr<StorageWriter> writer_;
  std::unique_ptr<PoolService> service_;
  std::vector<std::string> addresses_;
  std::unique_ptr<cluster::MembershipKeeper> membership_;
  std::unique_ptr<transport::RegionServer> regions_;
  std::unique_ptr<FusionHost> fusion_;  // null: no servers share pages here
  std::thread giver_back_;              // PV4
  // Gone after stop().
  std::unique_ptr<transport::RpcServer> server_;
};

}  // namespace strata::memnode
