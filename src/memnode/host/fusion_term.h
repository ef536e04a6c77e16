// A memory node's authority under one epoch, from the registry's word to its end: the stream that
// fences it, the pages that it writes, the service that servers call. One thread, but for what says
// otherwise.
//
//   begin() -> ready() until OK -> serve() -> recover() until OK -> look() until not OK -> the end
//
//   FTM1  The placement by which the authority stream is taken over was read after the epoch was
//         given (CM5 of clients/compute), and every later one is followed. So is that by which a
//         server's stream is taken (LSE5).
//   FTM2  It is told to the registry that the stream has a beginning before the first record is
//         acknowledged: a storage node that lost its disk does not vote for an empty one then.
//   FTM3  Nobody is served before storage has all that servers of earlier epochs have logged;
//         what it lacks is redone first (earlier_logs.h).
//   FTM6  If servers of the epoch before may still be there, nobody's log is sealed when a term
//         begins. They are heard by the service (FV11); when all have spoken, or are gone, the logs
//         of all are redone together, and only then anything is granted. While a database is being
//         founded it is not so.
//   FTM7  Where storage makes pages from the logs nothing is redone: it is found out where they
//         end, which is told with the pages that are granted (FP7 of fusion/pages).
//   FTM8  While it serves it sees to it that all storage nodes get the logs of servers that are not
//         there any more (log_keeper.h).
//   FTM9  Where it writes pages, it goes by a new placement for them once every server does that
//         may read there (FV16), and in the place of another memory node it grants nothing before:
//         else a server that has not heard of the placement could read from a quorum of the old one
//         a version that is older than what a quorum of the new one has.
//   FTM4  A lease that is lost is replaced, and the service goes on meanwhile: it is the stream
//         that fences. If somebody else was given an epoch, this has ended.
//   FTM5  What earlier attempts at founding a database left on storage nodes goes when a term
//         begins; once a server has published where its log begins, nothing does. Whether one has
//         is looked at when none of the servers before can publish anything any more.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/latch.h"
#include "clients/storage/in_sync_set.h"
#include "clients/storage/registry_control.h"
#include "clients/storage/written_page_source.h"
#include "cluster/node_addresses.h"
#include "cluster/stream_epochs.h"
#include "cluster/topology.h"
#include "memnode/fusion/fusion_service.h"
#include "memnode/host/earlier_logs.h"
#include "memnode/host/log_keeper.h"
#include "memnode/host/log_sealer.h"
#include "memnode/host/quorum_authority_stream.h"
#include "memnode/host/stored_pages.h"
#include "memnode/service/tenants.h"
#include "registry/registry.h"
#include "transport/secret.h"
#include "transport/world.h"

namespace strata::memnode {

struct FusionHostOptions {
  std::string name;  // this node's, as a member: servers find it by that
  // pages.storage_replays follows from the cluster's profile.
  FusionServiceOptions service;
  Tenants::Number tenant = 0;  // whose memory it is, and who may join
  uint32_t lease_s = 10;
  uint64_t call_timeout_us = 2'000'000;       // of a call to the registry
  uint64_t take_over_timeout_us = 5'000'000;  // for enough storage nodes to answer
  uint64_t again_us = 500'000;                // between two looks at what is waited for
  uint64_t trim_bytes = 256u << 10;           // of the authority stream
  clients::WrittenNodesOptions page_nodes;    // timeouts; the rest is filled in
};

// All outlive the host.
struct FusionHostParts {
  registry::Registry* registry = nullptr;
  cluster::ClusterKeys keys;
  transport::Secret secret;
  transport::World world;  // whose executor runs
  std::function<void(const std::string& name, std::shared_ptr<transport::Region> region,
                     transport::RegionAccess access)>
      expose;
  std::function<void(const std::string& name)> withdraw;
  daemon::Offload offload;  // FusionService::Parts
  Tenants* tenants = nullptr;
};

class FusionTerm {
 public:
  // Becomes the authority. Blocks. Errors: in_use (another memory node is; its lease lives),
  // peer_down, timed_out (registry, storage nodes), kDataLoss, unsupported. `blocking` runs what
  // blocks; `wake` is called when look() has something to see, in any thread, and does not block.
  // `in_place_of`: a holder that is gone though its lease lives (AUW3, SE3); 0: none is.
  static StatusOr<std::unique_ptr<FusionTerm>> begin(const FusionHostOptions& options,
                                                     const FusionHostParts& parts,
                                                     daemon::Offload blocking,
                                                     std::function<void()> wake,
                                                     registry::Version in_place_of = {});
  // Ends what is under way, and lets others have the stream. Blocks.
  ~FusionTerm();
  FusionTerm(const FusionTerm&) = delete;
  FusionTerm& operator=(const FusionTerm&) = delete;

  // FTM3. OK: it may serve. Blocks for as long as redo takes, but for the thread's InterruptScope;
  // to be asked again. Errors: those of EarlierLogs::complete(), or of ends() (FTM7).
  Status ready();
  // FTM6. Once it serves: OK: it may grant, too. Blocks as ready() does; to be asked again. Errors:
  // peer_down (not all servers have been heard yet), those of EarlierLogs::complete(), and of the
  // sealing of who was not heard.
  Status recover();
  // Once. Blocks for memory. Errors: those of FusionService::start().
  StatusOr<std::shared_ptr<FusionService>> serve();
  // OK: it goes on. Errors: fenced (another memory node has the authority), ended (pages can be
  // written no more, or it serves no more): it is over. Blocks for the registry if the lease was
  // lost (FTM4).
  Status look();

  [[nodiscard]] Epoch epoch() const noexcept { return grant_.epoch; }
  // Not OK: it goes on, but something keeps it from what it should do. Thread-safe once serve() has
  // returned.
  [[nodiscard]] Status trouble() const;
  // Where pages are written; null: storage makes them from the log, or none are shared. For tests.
  [[nodiscard]] clients::WrittenPageSource* pages() const noexcept { return written_.get(); }

 private:
  FusionTerm(const FusionHostOptions& options, const FusionHostParts& parts,
             daemon::Offload blocking, std::function<void()> wake);
  Status take(registry::Version in_place_of);
  StatusOr<cluster::Placement> find_cluster();
  StatusOr<std::shared_ptr<registry::Lease>> new_lease();
  Status hold_stream(Epoch above, registry::Version gone);
  Status open_stream();
  Status open_pages();
  StatusOr<bool> may_recover();
  Status find_unsettled();
  LogRedoer* redoer();
  StatusOr<bool> database_is_founded();
  Status find_ends();
  [[nodiscard]] LogSealer::Parts log_parts();
  void make_sealer();
  void follow(const StatusOr<cluster::Placement>& now);
  Status note_placement(const cluster::Placement& placement);
  [[nodiscard]] bool all_follow(uint64_t generation) const;
  void follow_with_pages();
  [[nodiscard]] clients::ReplicaSet replicas() const;
  [[nodiscard]] clients::QuorumClientOptions log_nodes() const;
  StatusOr<clients::QuorumClientOptions> log_nodes_now();
  Status keep_lease();
  [[nodiscard]] std::shared_ptr<registry::Lease> lease() const;
  [[nodiscard]] bool shares_pages() const noexcept { return options_.service.pages.slots != 0; }
  [[nodiscard]] uint64_t deadline() const {
    return parts_.registry->now_us() + options_.call_timeout_us;
  }

  const FusionHostOptions options_;
  const FusionHostParts& parts_;
  const daemon::Offload blocking_;
  const std::function<void()> wake_;
  cluster::DatabaseIdentity identity_;
  bool storage_replays_ = false;
  bool recovers_ = false;                    // FTM6
  std::vector<NodeId> unsettled_;            // then
  std::vector<proto::StreamPosition> ends_;  // FTM7
  std::unique_ptr<cluster::NodeAddresses> addresses_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::shared_ptr<registry::Lease> lease_ STRATA_GUARDED_BY(mutex_);
  uint64_t generation_ STRATA_GUARDED_BY(mutex_) = 0;
  cluster::StorageGroup group_ STRATA_GUARDED_BY(mutex_);
  std::atomic<bool> lease_lost_{false};
  cluster::EpochGrant grant_;
  std::unique_ptr<clients::RegistryControl> control_;
  std::unique_ptr<QuorumAuthorityStream> stream_;
  std::unique_ptr<clients::InSyncSet> in_sync_;
  std::unique_ptr<clients::WrittenPageSource> written_;
  std::unique_ptr<StoredPages> store_;
  std::unique_ptr<LogSealer> sealer_;
  std::unique_ptr<EarlierLogs> earlier_;
  std::unique_ptr<LogRedoer> redoer_;
  std::shared_ptr<FusionService> service_;
  std::unique_ptr<LogKeeper> keeper_;  // FTM8; asks service_
  std::unique_ptr<cluster::Topology> topology_;
  std::atomic<uint64_t> pages_generation_{0};  // FTM9: by which pages are written
  std::atomic<uint64_t> waits_since_us_{0};    // for servers to follow a newer one; 0: it does not
  std::unique_ptr<registry::Watch> placement_watch_;  // last: it calls follow()
};

}  // namespace strata::memnode
