#include "memnode/node/memory_node.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/diag.h"
#include "cluster/membership.h"
#include "cluster/memory_pools.h"
#include "cluster/stream_epochs.h"

namespace strata::memnode {
namespace {

constexpr uint64_t kJoinPauseUs = 200'000;
constexpr uint64_t kSecondUs = 1'000'000;
// Pools bound what waits for them; what finishes a write is never refused.
constexpr size_t kWorkWaitingMax = 1u << 20;
constexpr size_t kAttachThreads = 2;
constexpr size_t kAttachWaitingMax = 64;
// A request may carry a megabyte.
constexpr uint32_t kRequestsInProgressMax = 128;

uint64_t random_id() {
  uint64_t id = 0;
  while (id == 0) transport::system_entropy()->fill(reinterpret_cast<char*>(&id), sizeof id);
  return id;
}

}  // namespace

MemoryNode::MemoryNode(registry::Registry* registry, FileSystem* files,
                       const transport::Secret& secret, NodeOptions options)
    : registry_(registry),
      files_(files),
      secret_(secret),
      options_(std::move(options)),
      keys_(*cluster::ClusterKeys::of(options_.cluster)) {}

StatusOr<std::unique_ptr<MemoryNode>> MemoryNode::open(registry::Registry* registry,
                                                       FileSystem* files,
                                                       const transport::Secret& secret,
                                                       NodeOptions options) {
  STRATA_RETURN_IF_ERROR(check_options(options));
  auto node =
      std::unique_ptr<MemoryNode>(new MemoryNode(registry, files, secret, std::move(options)));
  STRATA_RETURN_IF_ERROR(node->start());
  return node;
}

MemoryNode::~MemoryNode() {
  stop();
  service_.reset();  // before what it works with
  regions_.reset();
}

Status MemoryNode::start() {
  cluster::RegistryCalls calls(registry_, options_.stop, options_.start_timeout_us,
                               options_.call_timeout_us);
  STRATA_RETURN_IF_ERROR(open_folders());
  STRATA_RETURN_IF_ERROR(make_services());
  STRATA_RETURN_IF_ERROR(listen());
  if (fusion_ != nullptr)
    STRATA_RETURN_IF_ERROR(fusion_->check(registry_->now_us() + options_.call_timeout_us));
  STRATA_RETURN_IF_ERROR(join(&calls));
  if (fusion_ != nullptr) fusion_->start();  // MY6
  if (options_.unused_us != 0) giver_back_ = std::thread([this] { give_back_unused(); });
  return ok_status();
}

// MY1
Status MemoryNode::open_folders() {
  STRATA_ASSIGN_OR_RETURN(folder_,
                          daemon::DataFolder::open(files_, kNodeFolder, options_.directory));
  STRATA_RETURN_IF_ERROR(folder_->check(options_.name, {}));
  if (!folder_->stamp().has_value())
    STRATA_RETURN_IF_ERROR(folder_->write({.name = options_.name, .identity = random_id()}));
  if (options_.pools.empty() || options_.pools == options_.directory) return check_medium();
  STRATA_RETURN_IF_ERROR(files_->make_directory(options_.pools));
  auto locked = files_->lock_file(options_.pools + "/lock");
  if (is_in_use(locked.status()))
    return error_in_use("the folder of pools " + options_.pools + " is in use by another process");
  STRATA_RETURN_IF_ERROR(locked.status());
  pools_lock_ = *std::move(locked);
  return check_medium();
}

// Whoever asks for persistence and names a folder in memory has made a mistake.
Status MemoryNode::check_medium() const {
  struct statfs info {};
  if (!options_.persistent || ::statfs(pools_folder().c_str(), &info) != 0) return ok_status();
  if (info.f_type != TMPFS_MAGIC && info.f_type != HUGETLBFS_MAGIC) return ok_status();
  return error_invalid_argument("the folder of pools " + pools_folder() +
                                " is in memory and keeps nothing over a power loss; to do: name a "
                                "folder on persistent memory or a disk, or leave the medium out");
}

Status MemoryNode::make_services() {
  tenants_ = std::make_unique<Tenants>(options_.tenants, options_.memory_bytes);
  workers_ = std::make_unique<daemon::WorkerPool>(options_.workers, kWorkWaitingMax);
  attachers_ = std::make_unique<daemon::WorkerPool>(kAttachThreads, kAttachWaitingMax);
  io_ = std::make_unique<transport::IoThread>();
  network_ = std::make_unique<transport::SocketNetwork>(io_->loop(), counters_);
  if (!options_.fabric.empty()) {
    STRATA_ASSIGN_OR_RETURN(
        fabric_, transport::FabricServer::start(options_.fabric,
                                                {.connections_max = options_.connections_max}));
  }
  const transport::World world{io_->loop(), network_.get(), transport::system_entropy()};
  transport::ServerOptions server_options;
  server_options.counters = counters_;
  server_options.connections_max = options_.connections_max;
  server_options.requests_in_progress_max = kRequestsInProgressMax;
  server_ = std::make_unique<transport::RpcServer>(world, secret_, server_options);
  regions_ = std::make_unique<transport::RegionServer>(server_.get(), fabric_.get());
  writer_ = std::make_unique<StorageWriter>(
      world, secret_, StorageWriterOptions{.timeout_us = options_.storage_timeout_us});
  PoolService::Parts parts;
  parts.folder = pools_folder();
  parts.node = number_in_cluster();
  parts.persistent = options_.persistent;
  parts.reserve_slots = options_.reserve_slots;
  parts.check_epoch = [this](StreamId stream, Epoch epoch) { return check_epoch(stream, epoch); };
  parts.is_named = [this](StreamId stream, uint64_t incarnation) {
    return is_named(stream, incarnation);
  };
  parts.expose = [this](const std::string& name, const std::shared_ptr<transport::Region>& region,
                        transport::RegionAccess access) { regions_->expose(name, region, access); };
  parts.withdraw = [this](const std::string& name) { regions_->withdraw(name); };
  parts.offload = [this](daemon::WorkerPool::Task task) { return workers_->run(std::move(task)); };
  parts.offload_attach = [this](daemon::WorkerPool::Task task) {
    return attachers_->run(std::move(task));
  };
  parts.tenants = tenants_.get();
  parts.writer = writer_.get();
  service_ = std::make_unique<PoolService>(std::move(parts));
  STRATA_RETURN_IF_ERROR(service_->open_pools());
  service_->register_on(server_.get());
  return options_.fusion.service.pages.slots == 0 ? ok_status() : make_fusion(world);
}

Status MemoryNode::make_fusion(const transport::World& world) {
  FusionHostOptions fusion = options_.fusion;
  fusion.name = options_.name;
  fusion.lease_s = options_.lease_s;
  fusion.call_timeout_us = options_.call_timeout_us;
  if (!options_.fusion_tenant.empty()) {
    STRATA_ASSIGN_OR_RETURN(fusion.tenant, tenants_->named(options_.fusion_tenant));
  }
  fusion_ = std::make_unique<FusionHost>(
      std::move(fusion),
      FusionHostParts{
          .registry = registry_,
          .keys = keys_,
          .secret = secret_,
          .world = world,
          .expose = [this](
                        const std::string& name, const std::shared_ptr<transport::Region>& region,
                        transport::RegionAccess access) { regions_->expose(name, region, access); },
          .withdraw = [this](const std::string& name) { regions_->withdraw(name); },
          .offload = run_in(world.executor),
          .tenants = tenants_.get()});
  fusion_->register_on(server_.get());
  return ok_status();
}

// MY3
Status MemoryNode::check_epoch(StreamId stream, Epoch epoch) {
  const uint64_t deadline_us = registry_->now_us() + options_.call_timeout_us;
  const auto holder = cluster::StreamEpochs(registry_, keys_).current(stream, deadline_us);
  if (!holder.ok()) {
    if (!may_be_repeated(holder.status())) return holder.status();
    return error_peer_down("the memory node cannot ask the registry whose the stream is: " +
                           std::string(holder.status().message()));
  }
  if (!holder->has_value() || (*holder)->epoch < epoch)
    return error_invalid_argument(
        "the memory node's registry has never given that epoch of the stream; to do: see whether "
        "compute and the memory node have the same registry and cluster");
  if ((*holder)->epoch > epoch)
    return error_fenced("the stream is " + (*holder)->holder + "'s now");
  return ok_status();
}

// MY5. Two folders have different identities, and one folder may be started for another cluster.
uint64_t MemoryNode::number_in_cluster() const {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  const uint64_t number =
      folder_->stamp()->identity ^
      (kOdd * (1 + uint64_t{crc32c(options_.cluster.data(), options_.cluster.size())}));
  return number == 0 ? 1 : number;
}

// PV4: what the registry says last, or why that is not known.
StatusOr<bool> MemoryNode::is_named(StreamId stream, uint64_t incarnation) {
  const uint64_t deadline_us = registry_->now_us() + options_.call_timeout_us;
  STRATA_ASSIGN_OR_RETURN(const auto named,
                          cluster::MemoryPools(registry_, keys_).read(stream, deadline_us));
  if (!named.has_value()) return false;
  for (const cluster::MemoryPool& pool : named->set.pools) {
    if (pool.node == options_.name && pool.incarnation == incarnation) return true;
    // A copy that is not whole yet (0) is on its way to be.
    if (pool.backup == options_.name &&
        (pool.backup_incarnation == incarnation || pool.backup_incarnation == 0))
      return true;
  }
  return false;
}

void MemoryNode::give_back_unused() {
  constexpr uint64_t kPauseUsMin = 1'000;
  while (!stopping_.wait_for_us(std::max(kPauseUsMin, options_.unused_us / 10)))
    service_->give_back_unused(monotonic_us(), options_.unused_us);
}

Status MemoryNode::listen() {
  for (const std::string& wanted : options_.listen) {
    STRATA_ASSIGN_OR_RETURN(std::string address, server_->listen(transport_address(wanted)));
    addresses_.push_back(std::move(address));
  }
  return ok_status();
}

Status MemoryNode::join(cluster::RegistryCalls* calls) {
  cluster::MembershipKeeper::Options keeper;
  keeper.member.name = options_.name;
  keeper.member.role = cluster::Role::kMemory;
  keeper.member.identity = folder_->stamp()->identity;
  keeper.member.address =
      options_.advertise.empty() ? addresses_.front() : transport_address(options_.advertise);
  keeper.member.status_address = options_.status_address;
  keeper.lease_s = options_.lease_s;
  keeper.call_timeout_us = options_.call_timeout_us;
  membership_ = std::make_unique<cluster::MembershipKeeper>(registry_, keys_, std::move(keeper));
  // As a storage node does: the entry of one that died with its folder goes with its lease.
  const uint64_t deadline_us =
      registry_->now_us() +
      options_.name_wait_us.value_or(2 * kSecondUs * options_.lease_s + 3 * kSecondUs);
  StopFlag* const stop = options_.stop != nullptr ? options_.stop : &stopping_;
  for (;;) {
    Status joined = membership_->join(calls);
    if (!is_in_use(joined) || registry_->now_us() >= deadline_us) return joined;
    diag(Severity::kInfo, "%s; waiting for its lease to end",
         std::string(joined.message()).c_str());
    if (stop->wait_for_us(kJoinPauseUs))
      return error_interrupted("stopped while joining the cluster");
  }
}

void MemoryNode::stop() {
  if (std::exchange(stopped_, true)) return;
  stopping_.raise();
  if (giver_back_.joinable()) giver_back_.join();
  if (fusion_ != nullptr) fusion_->stop();           // MY6
  if (membership_ != nullptr) membership_->leave();  // MY2
  // Nothing new comes in; what is under way ends, before what it hands its results to.
  server_.reset();
  if (writer_ != nullptr) writer_->stop();
  if (attachers_ != nullptr) attachers_->stop();
  if (workers_ != nullptr) workers_->stop();
}

}  // namespace strata::memnode
