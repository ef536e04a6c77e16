// A storage node: its data folder, log store, page store, services, sockets and membership, put
// together. What a daemon runs, and a test may have several of. Thread-safe but for stop().
//
//   ND1  A node serves only in its own folder (daemon/data_folder.h), for the database that the
//        registry names, in a group of its placement. Whatever is wrong is said by open().
//   ND2  It is a member only while it listens; it leaves before it stops listening.
//   ND3  A node without the registry goes on serving. Whoever may not write is stopped by epochs.
//   ND7  A node whose pages cannot be made from the log it can get copies them from a peer, and
//        says so in status() and health(); damage of single pages or ranges of the log is mended
//        with what peers have.
//   ND4  After stop() the folder is free for the next process: what was acknowledged is durable in
//        any case, and a last checkpoint saves the next start from replaying the log again.
//   ND5  It follows the placement while it runs: asks peers where they are now, and serves nothing
//        any more once it is out of its group (group_view.h).
//   ND6  A node that came later than its group never votes from the start, and changes the
//        placement only while its folder is empty and every other node of the group is a member.
//   ND8  Where compute writes the pages, the placement is changed only while the registry's list of
//        nodes that have them all has every other node of the group: whoever recovers finds enough
//        of those in the new placement.
//   ND9  Where several servers write, and it makes pages from their logs, it takes in every log of
//        a server that it has, from when the log is begun here, and every one that the pages of a
//        peer have taken in. Nothing of a log is cut off before.
//   ND10  Where several servers write, it makes a replica, when it starts, of every log stream that
//        was ever given an epoch. Of a stream that it has none of it knows from then on that it is
//        younger than its place: everybody who ever has an epoch of that goes by placements that
//        have this node, so it votes as one that came with its group (ND6).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "base/status.h"
#include "cluster/group_view.h"
#include "cluster/in_sync_nodes.h"
#include "cluster/membership_keeper.h"
#include "cluster/node_addresses.h"
#include "cluster/topology.h"
#include "daemon/data_folder.h"
#include "daemon/worker_pool.h"
#include "io/file_system.h"
#include "storenode/copy/log_mender.h"
#include "storenode/copy/page_asker.h"
#include "storenode/copy/store_copier.h"
#include "storenode/logstore/log_store_runner.h"
#include "storenode/node/node_options.h"
#include "storenode/node/node_status.h"
#include "storenode/service/log_service.h"
#include "storenode/service/page_service.h"
#include "storenode/service/peer_reader.h"
#include "storenode/service/stream_log_view.h"
#include "storenode/written/page_copier.h"
#include "storenode/written/written_service.h"
#include "storenode/written/written_store.h"
#include "transport/calls/rpc_server.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket_network.h"

namespace strata::storenode {

class StorageNode {
 public:
  // Starts a node that serves and is a member when this returns. Blocks, as long as the registry
  // does not answer (options). `registry` and `files` outlive the node. Errors: kInvalidArgument
  // (options), wrong_database and others (ND1; the message says what to do), kDataLoss,
  // kAlreadyExists (an address in use), kUnavailable (the registry, in time), kCancelled
  // (options.stop).
  static StatusOr<std::unique_ptr<StorageNode>> open(registry::Registry* registry,
                                                     FileSystem* files,
                                                     const transport::Secret& secret,
                                                     NodeOptions options);
  ~StorageNode();  // stop()
  StorageNode(const StorageNode&) = delete;
  StorageNode& operator=(const StorageNode&) = delete;

  // Leaves, stops listening, finishes what is under way (ND4). Blocks. Again: nothing.
  void stop();

  // Blocks for a moment: it counts the bytes of the folder.
  [[nodiscard]] NodeStatus status() const;
  // Why not all is well, in one line; OK otherwise. A node that is not healthy may still serve.
  [[nodiscard]] Status health() const;
  [[nodiscard]] const std::string& address() const { return addresses_.front(); }
  [[nodiscard]] LogStore* logs() { return logs_.get(); }
  [[nodiscard]] PageStore* pages() { return pages_.get(); }         // made from the log; or null
  [[nodiscard]] WrittenStore* written() { return written_.get(); }  // written by compute; or null

 private:
  StorageNode(registry::Registry* registry, FileSystem* files, const transport::Secret& secret,
              NodeOptions options);
  Status start();
  // Makes the database's identity and placement if there are none yet, and checks them (ND1).
  Status find_database(cluster::RegistryCalls* calls);
  StatusOr<cluster::DatabaseIdentity> found_database(cluster::RegistryCalls* calls);
  Status find_group(cluster::RegistryCalls* calls);
  StatusOr<std::optional<cluster::Placement>> read_placement(cluster::RegistryCalls* calls);
  Status make_placement(cluster::RegistryCalls* calls);
  // Puts this node into `placement`. conflict: another one was made meanwhile.
  StatusOr<cluster::Placement> change_placement(const cluster::Placement& placement,
                                                cluster::RegistryCalls* calls);
  Status check_others_are_there(const cluster::StorageGroup& group, cluster::RegistryCalls* calls);
  StatusOr<std::vector<registry::Change>> others_have_pages(const cluster::StorageGroup& group,
                                                            cluster::RegistryCalls* calls);
  [[nodiscard]] Status check_others_are_in(const cluster::StorageGroup& group,
                                           const std::vector<cluster::InSyncNode>& in_sync) const;
  [[nodiscard]] StatusOr<std::vector<cluster::StorageGroup>> added_to_group(
      const cluster::Placement& placement) const;
  bool enter_group(const cluster::Placement& placement);
  void watch_placement();
  StatusOr<std::vector<StreamId>> streams_begun(cluster::RegistryCalls* calls);
  Status make_replicas(cluster::RegistryCalls* calls);
  Status stamp_folder();
  Status open_stores();
  Status open_replayed_pages();
  Status add_stream(StreamId stream);
  Status add_servers_streams();
  void note_stream_made(StreamId stream);
  void add_streams_as_they_come();
  void stop_adding_streams();
  Status open_written_pages();
  void make_services();
  void make_page_service();
  Status listen();
  Status join(cluster::RegistryCalls* calls);
  LogService::Parts parts();
  daemon::Offload offload();
  StatusOr<quorum::StreamOrigin> origin(StreamId stream);
  [[nodiscard]] bool is_younger(StreamId stream) const;
  [[nodiscard]] std::string address_of(quorum::ReplicaIndex replica) const;
  [[nodiscard]] std::string address_of_nth_behind(size_t n) const;
  [[nodiscard]] quorum::ReplicaIndex own_replica() const;
  CopyPeers make_copy_peers();
  void upkeep();
  [[nodiscard]] Lsn needed_from(StreamId stream) const;
  void add_log_values(NodeStatus* status) const;
  void add_replay_values(NodeStatus* status, const PageStoreStatus& pages) const;
  void add_written_values(NodeStatus* status) const;
  [[nodiscard]] Status pages_failure(const PageStoreStatus& pages) const;
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
  cluster::DatabaseIdentity database_;
  std::unique_ptr<cluster::Topology> topology_;
  std::unique_ptr<cluster::GroupView> group_;
  std::unique_ptr<cluster::NodeAddresses> known_;
  std::unique_ptr<LogStore> logs_;
  std::set<StreamId> older_streams_;  // ND10: those that were begun when this process began
  // By the profile: pages made from the log, or written by compute.
  Mutex views_mutex_{LatchRank::kLeaf};
  std::map<StreamId, std::unique_ptr<StreamLogView>> views_
      STRATA_GUARDED_BY(views_mutex_);  // never shrinks
  std::set<StreamId> added_streams_;    // of several servers (ND9); of the thread that adds them
  CondVar stream_made_changed_;
  bool stream_made_ STRATA_GUARDED_BY(views_mutex_) = false;
  bool stops_adding_ STRATA_GUARDED_BY(views_mutex_) = false;
  CopyPeers copy_peers_;
  std::unique_ptr<PageAsker> asker_;
  std::unique_ptr<PageStore> pages_;
  std::unique_ptr<WrittenStore> written_;
  std::unique_ptr<StoreCopier> store_copier_;
  std::unique_ptr<LogMender> mender_;
  std::unique_ptr<daemon::WorkerPool> workers_;
  std::unique_ptr<transport::IoThread> io_;
  std::shared_ptr<transport::Counters> counters_ = std::make_shared<transport::Counters>();
  std::unique_ptr<transport::SocketNetwork> network_;
  std::unique_ptr<LogService> log_service_;
  std::unique_ptr<PageService> page_service_;
  std::unique_ptr<PageCopier> copier_;
  std::unique_ptr<WrittenService> written_service_;
  std::vector<std::string> addresses_;
  std::unique_ptr<cluster::MembershipKeeper> membership_;
  // Gone after stop().
  std::unique_ptr<registry::Watch> placement_watch_;
  std::unique_ptr<LogStoreRunner> runner_;
  std::unique_ptr<PeerReader> peers_;
  std::unique_ptr<transport::RpcServer> server_;
  std::thread upkeep_;
  std::thread stream_adder_;
};

}  // namespace strata::storenode
