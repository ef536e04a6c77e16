#include "memnode/host/fusion_term.h"

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "base/data_format.h"
#include "base/diag.h"
#include "base/profiles.h"
#include "cluster/places.h"

namespace strata::memnode {

using cluster::kAuthorityStream;

namespace {

// A replica that is away for long has to be replaced; the stream is small.
constexpr uint64_t kKeptForReplicasMax = 4u << 20;
constexpr uint64_t kLateUs = 3'000'000;
constexpr uint64_t kFollowLateUs = 5'000'000;  // servers say what they follow twice a second

uint64_t boot_time_us() noexcept {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

FusionHostOptions completed(FusionHostOptions options) {
  if (!options.service.now_us) options.service.now_us = boot_time_us;
  return options;
}

}  // namespace

FusionTerm::FusionTerm(const FusionHostOptions& options, const FusionHostParts& parts,
                       daemon::Offload blocking, std::function<void()> wake)
    : options_(completed(options)),
      parts_(parts),
      blocking_(std::move(blocking)),
      wake_(std::move(wake)) {}

StatusOr<std::unique_ptr<FusionTerm>> FusionTerm::begin(const FusionHostOptions& options,
                                                        const FusionHostParts& parts,
                                                        daemon::Offload blocking,
                                                        std::function<void()> wake,
                                                        registry::Version in_place_of) {
  std::unique_ptr<FusionTerm> term(
      new FusionTerm(options, parts, std::move(blocking), std::move(wake)));
  STRATA_RETURN_IF_ERROR(term->take(in_place_of));
  return term;
}

FusionTerm::~FusionTerm() {
  placement_watch_.reset();
  keeper_.reset();
  if (written_ != nullptr) written_->stop();  // what the service waits for ends
  if (service_ != nullptr) service_->stop();
  if (sealer_ != nullptr) sealer_->stop();
  if (stream_ != nullptr) stream_->stop();
  std::shared_ptr<registry::Lease> held;  // ends here: its handler uses what goes with this
  {
    const MutexLock lock(mutex_);
    held.swap(lease_);
  }
  if (held == nullptr) return;
  // Others need not wait for the lease to end; if the registry does not answer, they do.
  if (!grant_.epoch.is_zero())
    cluster::StreamEpochs(parts_.registry, parts_.keys).release(grant_, deadline()).IgnoreError();
  held->revoke(deadline()).IgnoreError();
}

Status FusionTerm::take(registry::Version in_place_of) {
  STRATA_ASSIGN_OR_RETURN(const cluster::Placement before, find_cluster());
  STRATA_ASSIGN_OR_RETURN(const cluster::StorageGroup* const group, before.only_group());
  STRATA_RETURN_IF_ERROR(hold_stream(group->taken_out_by, in_place_of));
  STRATA_ASSIGN_OR_RETURN(const cluster::Placement placement, find_cluster());  // FTM1
  STRATA_RETURN_IF_ERROR(note_placement(placement));
  STRATA_RETURN_IF_ERROR(open_stream());
  make_sealer();
  STRATA_ASSIGN_OR_RETURN(recovers_, may_recover());
  if (recovers_) STRATA_RETURN_IF_ERROR(find_unsettled());
  if (earlier_ != nullptr && !recovers_) STRATA_RETURN_IF_ERROR(earlier_->seal_all());  // FTM5
  if (shares_pages() && !storage_replays_) STRATA_RETURN_IF_ERROR(open_pages());
  topology_ = std::make_unique<cluster::Topology>(parts_.registry, parts_.keys);
  placement_watch_ =
      topology_->watch_placement([this](const StatusOr<cluster::Placement>& now) { follow(now); });
  return ok_status();
}

// --- the cluster ---

StatusOr<cluster::Placement> FusionTerm::find_cluster() {
  cluster::Topology topology(parts_.registry, parts_.keys);
  STRATA_ASSIGN_OR_RETURN(const auto identity, topology.identity(deadline()));
  STRATA_ASSIGN_OR_RETURN(const auto placement, topology.placement(deadline()));
  if (!identity.has_value() || !placement.has_value())
    return error_peer_down("the registry knows no storage nodes of this cluster yet; start them");
  const Profile* const profile = find_cluster_profile(identity->profile);
  if (profile == nullptr)
    return error_unsupported("the cluster is of profile '" + identity->profile +
                             "', which this version does not know");
  identity_ = *identity;
  storage_replays_ = profile->pages == PageOrigin::kReplayed;
  return *placement;
}

Status FusionTerm::note_placement(const cluster::Placement& placement) {
  STRATA_ASSIGN_OR_RETURN(const cluster::StorageGroup* const group, placement.only_group());
  const MutexLock lock(mutex_);
  if (placement.generation < generation_) return ok_status();
  generation_ = placement.generation;
  group_ = *group;
  return ok_status();
}

// In the registry's thread.
void FusionTerm::follow(const StatusOr<cluster::Placement>& now) {
  const Status noted = now.ok() ? note_placement(*now) : now.status();
  if (!noted.ok()) {
    diag(Severity::kError, "fusion: the placement of storage nodes is not followed: %s",
         cause_of(noted).c_str());
    return;
  }
  stream_->follow(replicas());
  wake_();  // for the pages, at the next look
}

// FTM9. Before there is a service there are no servers, but for those that are to go on.
bool FusionTerm::all_follow(uint64_t generation) const {
  return service_ == nullptr ? !recovers_ : service_->placement_followed() >= generation;
}

void FusionTerm::follow_with_pages() {
  if (written_ == nullptr) return;
  const clients::ReplicaSet set = replicas();
  const bool is_new = set.generation > pages_generation_;
  const bool waits = is_new && !all_follow(set.generation);
  if (!waits)
    waits_since_us_ = 0;
  else if (waits_since_us_ == 0)
    waits_since_us_ = parts_.registry->now_us();
  if (!is_new || waits) return;
  written_->follow(set);
  pages_generation_ = set.generation;
}

clients::ReplicaSet FusionTerm::replicas() const {
  const MutexLock lock(mutex_);
  clients::ReplicaSet set{generation_, group_.write_quorum, {}, group_.taken_out_by};
  for (const std::string& name : group_.nodes)
    set.nodes.push_back({name, transport::Address([known = addresses_.get(), name] {
                           return known->address_of(name);
                         })});
  return set;
}

clients::QuorumClientOptions FusionTerm::log_nodes() const {
  const clients::ReplicaSet set = replicas();
  clients::QuorumClientOptions options;
  options.generation = set.generation;
  options.quorum.replicas = static_cast<uint32_t>(set.nodes.size());
  options.quorum.write_quorum = set.write_quorum;
  options.quorum.keep_bytes_max = kKeptForReplicasMax;
  for (const clients::ReplicaNode& node : set.nodes) {
    options.addresses.push_back(node.address);
    options.keys.push_back(node.key);
  }
  return options;
}

// LSE5
StatusOr<clients::QuorumClientOptions> FusionTerm::log_nodes_now() {
  cluster::Topology topology(parts_.registry, parts_.keys);
  STRATA_ASSIGN_OR_RETURN(const auto placement, topology.placement(deadline()));
  if (!placement.has_value()) return error_corruption("the registry has lost the placement");
  STRATA_RETURN_IF_ERROR(note_placement(*placement));
  return log_nodes();
}

// --- the epoch ---

std::shared_ptr<registry::Lease> FusionTerm::lease() const {
  const MutexLock lock(mutex_);
  return lease_;
}

StatusOr<std::shared_ptr<registry::Lease>> FusionTerm::new_lease() {
  lease_lost_ = false;  // the next one may be lost before this returns
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<registry::Lease> granted, parts_.registry->grant_lease(
                                                                        options_.lease_s,
                                                                        [this](registry::LeaseId) {
                                                                          lease_lost_ = true;
                                                                          wake_();
                                                                        },
                                                                        deadline()));
  return std::shared_ptr<registry::Lease>(std::move(granted));
}

// Whoever has this node's name and has the stream is its own older self: no two have one folder.
Status FusionTerm::hold_stream(Epoch above, registry::Version gone) {
  cluster::StreamEpochs epochs(parts_.registry, parts_.keys);
  STRATA_ASSIGN_OR_RETURN(const auto before, epochs.current(kAuthorityStream, deadline()));
  const bool own = before.has_value() && before->holder == options_.name;
  const bool named = before.has_value() && before->held && before->writer == gone;
  if (before.has_value() && before->held && !own && !named)  // without a lease for nothing
    return error_in_use("memory node " + before->holder +
                        " serves the servers of this cluster, with epoch " +
                        std::to_string(before->epoch.value));
  STRATA_ASSIGN_OR_RETURN(std::shared_ptr<registry::Lease> granted, new_lease());
  {
    const MutexLock lock(mutex_);
    lease_ = granted;
  }
  const registry::Version in_place_of = own || named ? before->writer : registry::Version{};
  STRATA_ASSIGN_OR_RETURN(
      grant_,
      epochs.acquire({kAuthorityStream, options_.name, above, in_place_of}, *granted, deadline()));
  return ok_status();
}

// FTM4
Status FusionTerm::keep_lease() {
  if (!lease_lost_) return ok_status();
  auto granted = new_lease();
  auto grant =
      granted.ok()
          ? cluster::StreamEpochs(parts_.registry, parts_.keys).renew(grant_, **granted, deadline())
          : StatusOr<cluster::EpochGrant>(granted.status());
  if (!grant.ok()) {
    if (ends_right(grant.status())) return grant.status();
    lease_lost_ = true;  // at the next look
    return ok_status();
  }
  grant_ = *grant;
  control_->set_writer(grant->writer);
  if (in_sync_ != nullptr) in_sync_->set_writer(grant->writer);
  std::shared_ptr<registry::Lease> old = *std::move(granted);
  const MutexLock lock(mutex_);
  lease_.swap(old);
  return ok_status();
}

// --- the authority stream ---

Status FusionTerm::open_stream() {
  STRATA_ASSIGN_OR_RETURN(control_,
                          clients::RegistryControl::open(parts_.registry, parts_.keys, grant_,
                                                         options_.call_timeout_us));
  addresses_ = std::make_unique<cluster::NodeAddresses>(parts_.registry, parts_.keys);
  AuthorityStreamOptions stream;
  stream.log.client = log_nodes();
  stream.log.client.stream = kAuthorityStream;
  stream.log.holder = {grant_.epoch, grant_.epoch.value};
  stream.log.founding = !control_->founded();
  stream.log.first_lsn = kFirstLsn;
  stream.log.take_over_timeout_us = options_.take_over_timeout_us;
  stream.log.late_after_us = kLateUs;
  stream.trim_bytes = options_.trim_bytes;
  stream.now_us = options_.service.now_us;
  const uint32_t needed = stream.log.client.quorum.recovery_quorum();
  const std::vector<std::string> names = stream.log.client.keys;
  if (!addresses_->wait_for(names, needed, deadline()))
    return error_peer_down("fewer than " + std::to_string(needed) + " of the " +
                           std::to_string(names.size()) +
                           " storage nodes are in the registry; start those that are missing");
  STRATA_ASSIGN_OR_RETURN(stream_,
                          QuorumAuthorityStream::open(parts_.world, parts_.secret, stream));
  STRATA_RETURN_IF_ERROR(stream_->begin());
  if (control_->founded()) return ok_status();
  ControlData data;  // FTM2
  data.database_id = identity_.database_id;
  data.data_format = identity_.data_format;
  data.profile = identity_.profile;
  data.checkpoint_lsn = stream_->end();
  return control_->publish(data);
}

// --- pages ---

// FTM6
StatusOr<bool> FusionTerm::may_recover() {
  const auto last = stream_->last();
  if (!last.has_value() || !shares_pages()) return false;
  const bool are_there =
      std::any_of(last->members.begin(), last->members.end(),
                  [](const fusion::Member& member) { return member.fence == 0; });
  return are_there ? database_is_founded() : StatusOr<bool>(false);
}

// Before any log is sealed: that unsettles the place of who had left in order (PLC4).
Status FusionTerm::find_unsettled() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<cluster::KnownPlace> places,
                          cluster::Places(parts_.registry, parts_.keys).unsettled(deadline()));
  for (const cluster::KnownPlace& one : places) unsettled_.push_back(one.place.number);
  return ok_status();
}

// A server publishes where its log begins once its database is whole.
StatusOr<bool> FusionTerm::database_is_founded() {
  STRATA_ASSIGN_OR_RETURN(const registry::Listing listing,
                          parts_.registry->list(parts_.keys.streams(), deadline()));
  const std::string own = parts_.keys.control(kAuthorityStream);
  return std::any_of(listing.entries.begin(), listing.entries.end(), [&](const auto& entry) {
    return entry.key.ends_with("/control") && entry.key != own;
  });
}

Status FusionTerm::open_pages() {
  STRATA_ASSIGN_OR_RETURN(in_sync_, clients::InSyncSet::open(parts_.registry, parts_.keys, grant_,
                                                             options_.call_timeout_us));
  STRATA_ASSIGN_OR_RETURN(const bool founded, database_is_founded());
  if (founded && in_sync_->nodes().empty())
    return error_unsupported(
        "this cluster has a database whose pages a server alone has written; this version cannot "
        "give them to a memory node; to do: dump it, and load it into a new cluster");
  clients::WrittenPagesOptions pages;
  pages.nodes = options_.page_nodes;
  pages.nodes.stream = kAuthorityStream;
  pages.nodes.epoch = grant_.epoch;
  pages.nodes.founding = !founded;  // FTM5
  const clients::ReplicaSet set = replicas();
  pages.nodes.write_quorum = set.write_quorum;
  pages.nodes.generation = set.generation;
  pages_generation_ = set.generation;
  for (const clients::ReplicaNode& node : set.nodes)
    pages.nodes.nodes.push_back({node.key, node.address});
  STRATA_ASSIGN_OR_RETURN(written_, clients::WrittenPageSource::open(parts_.world, parts_.secret,
                                                                     pages, in_sync_.get()));
  store_ = std::make_unique<StoredPages>(written_.get());
  // The list of nodes that have every page is there before a server can publish its database: a
  // next term refuses one without it.
  return founded ? ok_status() : written_->sync();
}

// --- servers ---

LogSealer::Parts FusionTerm::log_parts() {
  return {.registry = parts_.registry,
          .keys = parts_.keys,
          .world = parts_.world,
          .secret = parts_.secret,
          .holder = options_.name,
          .lease = [this] { return lease(); },
          .storage = [this] { return log_nodes(); },
          .storage_now = [this] { return log_nodes_now(); },
          .call_timeout_us = options_.call_timeout_us,
          .seal_timeout_us = options_.take_over_timeout_us};
}

void FusionTerm::make_sealer() {
  sealer_ = std::make_unique<LogSealer>(log_parts());
  if (stream_->last().has_value())
    earlier_ = std::make_unique<EarlierLogs>(*stream_->last(), sealer_.get(), parts_.registry,
                                             parts_.keys, options_.call_timeout_us);
}

// FTM7. While there is no database nothing counts that an attempt to make one has left.
Status FusionTerm::find_ends() {
  STRATA_ASSIGN_OR_RETURN(const bool founded, database_is_founded());
  if (!founded) return ok_status();
  STRATA_ASSIGN_OR_RETURN(ends_, earlier_->ends(redoer()));
  return ok_status();
}

Status FusionTerm::ready() {
  if (recovers_ || earlier_ == nullptr || earlier_->servers() == 0) return ok_status();
  if (storage_replays_) return find_ends();
  if (written_ == nullptr) {
    STRATA_ASSIGN_OR_RETURN(const auto lacking, earlier_->lacking());
    if (lacking.empty()) return ok_status();
    return error_unsupported(
        "the memory node before this one shared pages, and this one is to share none; to do: start "
        "it with as many page slots as that one (--fusion-slots)");
  }
  return earlier_->complete(redoer());
}

LogRedoer* FusionTerm::redoer() {
  if (redoer_ == nullptr)
    redoer_ = std::make_unique<LogRedoer>(log_parts(), written_.get(), replicas().taken_out_by);
  return redoer_.get();
}

// FTM6
Status FusionTerm::recover() {
  if (!recovers_) return ok_status();
  const FusionRecovery now = service_->status().recovery;
  if (!now.heard_all) {
    // Who says nothing is gone once its log is sealed.
    if (sealer_->waiting() != 0) STRATA_RETURN_IF_ERROR(sealer_->last_failure());
    return error_peer_down(std::to_string(now.resumed) + " of " + std::to_string(now.servers) +
                           " servers of the memory node before this one have said what they have");
  }
  earlier_->spare(now.durable);
  STRATA_RETURN_IF_ERROR(storage_replays_ ? find_ends() : earlier_->complete(redoer()));
  if (written_ != nullptr && !all_follow(pages_generation_))
    return error_peer_down("not all servers have heard of the storage nodes of placement " +
                           std::to_string(pages_generation_) +
                           " yet; they hear of them from the registry");
  recovers_ = false;
  service_->recovered(ends_);
  return ok_status();
}

StatusOr<std::shared_ptr<FusionService>> FusionTerm::serve() {
  FusionServiceOptions service = options_.service;
  service.pages.storage_replays = storage_replays_;
  FusionService::Parts parts;
  parts.epoch = grant_.epoch;
  parts.last = stream_->last();
  parts.sealed_us = stream_->sealed_us();
  parts.recovers = recovers_;
  parts.ends = ends_;
  parts.unsettled = unsettled_;
  parts.stream = stream_.get();
  parts.store = store_.get();
  parts.expose = parts_.expose;
  parts.withdraw = parts_.withdraw;
  parts.offload = parts_.offload;
  parts.offload_blocking = blocking_;
  parts.seal = [sealer = sealer_.get()](NodeId server, uint64_t,
                                        absl::AnyInvocable<void(const Status&)> done) {
    sealer->seal(cluster::log_stream_of(server), std::move(done));
  };
  parts.tenants = parts_.tenants;
  parts.tenant = options_.tenant;
  STRATA_ASSIGN_OR_RETURN(service_, FusionService::start(service, std::move(parts)));
  const auto there = [service = service_.get()] {
    std::set<uint8_t> servers;
    for (const FusionStatus::Server& server : service->status().servers)
      servers.insert(server.server.value);
    return servers;
  };
  LogKeeperOptions logs;
  logs.ends_matter = storage_replays_;
  keeper_ = std::make_unique<LogKeeper>(log_parts(), there, logs);
  return service_;
}

Status FusionTerm::look() {
  STRATA_RETURN_IF_ERROR(stream_->state());
  if (written_ != nullptr) STRATA_RETURN_IF_ERROR(written_->nodes()->ended());
  if (service_ != nullptr && service_->status().phase == fusion::Authority::Phase::kDeposed)
    return error_fenced("another memory node has the authority");
  follow_with_pages();
  return keep_lease();
}

Status FusionTerm::trouble() const {
  STRATA_RETURN_IF_ERROR(stream_->late());
  if (sealer_ != nullptr && sealer_->waiting() != 0) return sealer_->last_failure();
  const uint64_t since_us = waits_since_us_;
  if (since_us == 0 || parts_.registry->now_us() < since_us + kFollowLateUs) return ok_status();
  return error_peer_down(
      "a server has not heard of the storage nodes of the new placement yet, and no pages are "
      "written by it before; if that stays so, look at the servers' connections to the registry");
}

}  // namespace strata::memnode
