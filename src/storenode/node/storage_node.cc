#include "storenode/node/storage_node.h"

#include <algorithm>
#include <utility>

#include "base/diag.h"
#include "registry/log_checkpoints.h"
#include "registry/stream_epochs.h"

namespace strata::storenode {
namespace {

uint64_t random_id() {
  uint64_t id = 0;
  while (id == 0) transport::system_entropy()->fill(reinterpret_cast<char*>(&id), sizeof id);
  return id;
}

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

StorageNode::StorageNode(registry::Registry* registry, FileSystem* files,
                         const transport::Secret& secret, NodeOptions options)
    : registry_(registry),
      files_(files),
      secret_(secret),
      options_(std::move(options)),
      keys_(*registry::ClusterKeys::of(options_.cluster)) {}

StatusOr<std::unique_ptr<StorageNode>> StorageNode::open(registry::Registry* registry,
                                                         FileSystem* files,
                                                         const transport::Secret& secret,
                                                         NodeOptions options) {
  STRATA_RETURN_IF_ERROR(check_options(options));
  auto node =
      std::unique_ptr<StorageNode>(new StorageNode(registry, files, secret, std::move(options)));
  STRATA_RETURN_IF_ERROR(node->start());
  return node;
}

StorageNode::~StorageNode() {
  stop();
  // Late answers of the log store find no service any more, then the stores go.
  page_service_.reset();
  log_service_.reset();
  pages_.reset();
  view_.reset();
  logs_.reset();
}

Status StorageNode::start() {
  RegistryCalls calls(registry_, options_.stop, options_.start_timeout_us,
                      options_.call_timeout_us);
  STRATA_ASSIGN_OR_RETURN(folder_, NodeFolder::open(files_, options_.directory));
  STRATA_RETURN_IF_ERROR(folder_->check(options_.name, options_.profile));
  STRATA_RETURN_IF_ERROR(find_database(&calls));
  STRATA_RETURN_IF_ERROR(find_group(&calls));
  STRATA_RETURN_IF_ERROR(stamp_folder());
  STRATA_RETURN_IF_ERROR(open_stores());
  make_services();
  STRATA_RETURN_IF_ERROR(listen());
  STRATA_RETURN_IF_ERROR(join(&calls));
  upkeep_ = std::thread([this] { upkeep(); });
  return ok_status();
}

// --- what the registry says ---

StatusOr<registry::DatabaseIdentity> StorageNode::found_database(RegistryCalls* calls) {
  registry::Topology topology(registry_, keys_);
  const auto read = [&](uint64_t deadline_us) { return topology.identity(deadline_us); };
  STRATA_ASSIGN_OR_RETURN(auto found,
                          calls->until_reached("reading the database's identity", read));
  if (!found.has_value()) {
    if (folder_->stamp().has_value())
      return error_fenced("the data folder " + options_.directory + " holds data of database " +
                          hex64(folder_->stamp()->database_id) + ", and cluster " +
                          options_.cluster +
                          " has no database yet in this registry; start it with its own registry "
                          "and cluster name, or with another folder");
    const registry::DatabaseIdentity ours{random_id(), options_.profile, kDataFormat};
    const Status made = calls->until_reached(
        "making the database's identity",
        [&](uint64_t deadline_us) { return topology.create_identity(ours, deadline_us); });
    if (!made.ok() && !is_fenced(made)) return made;  // fenced: another node was first
    STRATA_ASSIGN_OR_RETURN(found, calls->until_reached("reading the database's identity", read));
    if (!found.has_value()) return error_fenced("the database's identity went away again");
  }
  return *std::move(found);
}

Status StorageNode::find_database(RegistryCalls* calls) {
  STRATA_ASSIGN_OR_RETURN(database_, found_database(calls));
  if (database_.profile != options_.profile)
    return error_fenced("the database of cluster " + options_.cluster + " has profile " +
                        database_.profile + ", this node was started with " + options_.profile +
                        "; start it with that one, or for another cluster");
  if (database_.data_format != kDataFormat)
    return error_fenced("the database of cluster " + options_.cluster + " has data format " +
                        std::to_string(database_.data_format) + ", this program knows " +
                        std::to_string(kDataFormat) + "; use the program that made it");
  return folder_->check_database(database_.database_id);
}

Status StorageNode::find_group(RegistryCalls* calls) {
  registry::Topology topology(registry_, keys_);
  const auto read = [&](uint64_t deadline_us) { return topology.placement(deadline_us); };
  STRATA_ASSIGN_OR_RETURN(auto placement, calls->until_reached("reading the placement", read));
  if (!placement.has_value() && options_.initial_group.has_value()) {
    const registry::StorageGroup first{1, options_.initial_group->nodes,
                                       options_.initial_group->write_quorum};
    const Status made = calls->until_reached("making the placement", [&](uint64_t deadline_us) {
      return topology.change_placement(std::nullopt, {first}, deadline_us).status();
    });
    if (!made.ok() && !is_fenced(made)) return made;  // fenced: another node was first
    STRATA_ASSIGN_OR_RETURN(placement, calls->until_reached("reading the placement", read));
  }
  if (!placement.has_value())
    return error_fenced("cluster " + options_.cluster +
                        " has no placement yet; start its first nodes with an initial group");
  std::string groups;
  for (const registry::StorageGroup& group : placement->groups) {
    groups += (groups.empty() ? "" : "; ") + joined_names(group.nodes);
    if (std::count(group.nodes.begin(), group.nodes.end(), options_.name) == 0) continue;
    group_ = group;
    placement_generation_ = placement->generation;
    return ok_status();
  }
  return error_fenced("node " + options_.name + " is in no storage group of cluster " +
                      options_.cluster + " (" + groups +
                      "); start it with one of these names, or change the placement first");
}

StatusOr<quorum::StreamOrigin> StorageNode::origin(StreamId stream) {
  const uint64_t deadline = registry_->now_us() + options_.call_timeout_us;
  STRATA_ASSIGN_OR_RETURN(const auto holder,
                          registry::StreamEpochs(registry_, keys_).current(stream, deadline));
  STRATA_ASSIGN_OR_RETURN(const auto founded,
                          registry::LogCheckpoints(registry_, keys_).read(stream, deadline));
  return quorum::StreamOrigin{holder.has_value() ? holder->epoch : Epoch{}, !founded.has_value()};
}

// --- what is here ---

Status StorageNode::stamp_folder() {
  if (folder_->stamp().has_value()) return ok_status();
  return folder_->write({options_.name, random_id(), database_.database_id, options_.profile});
}

Status StorageNode::open_stores() {
  LogStoreOptions log_options = options_.log;
  log_options.directory = options_.directory + "/log";
  log_options.cluster_id = database_.database_id;
  STRATA_ASSIGN_OR_RETURN(logs_, LogStore::open(files_, log_options));
  view_ = std::make_unique<StreamLogView>(logs_.get(), kFirstStream, kFirstLsn);

  PageStoreOptions page_options = options_.pages;
  page_options.directory = options_.directory + "/pages";
  page_options.files = files_;
  page_options.cluster_id = database_.database_id;
  STRATA_ASSIGN_OR_RETURN(page_options.mode, mode_of_profile(options_.profile));
  STRATA_ASSIGN_OR_RETURN(pages_, PageStore::open(page_options));
  return pages_->add_stream(kFirstStream, view_.get(), kFirstLsn);
}

std::string StorageNode::address_of(quorum::ReplicaIndex replica) const {
  return replica < group_.nodes.size() ? known_->address_of(group_.nodes[replica]) : std::string();
}

Offload StorageNode::offload() {
  return [this](WorkerPool::Task task) { return workers_->run(std::move(task)); };
}

LogService::Parts StorageNode::parts() {
  LogService::Parts parts;
  parts.store = logs_.get();
  parts.offload = offload();
  parts.fetch = [peers = peers_.get()](StreamId stream, quorum::ReplicaIndex peer,
                                       const quorum::ReadRequest& request,
                                       SelfCatchUp::FetchDone done) {
    peers->fetch(stream, peer, request, std::move(done));
  };
  parts.origin = [this](StreamId stream) { return origin(stream); };
  parts.stream_made = [this](StreamId) { view_->stream_made(); };
  parts.needed_from = [this](StreamId stream) { return pages_->needed_from(stream); };
  return parts;
}

void StorageNode::make_services() {
  known_ = std::make_unique<registry::NodeAddresses>(registry_, keys_);
  runner_ = std::make_unique<LogStoreRunner>(logs_.get());
  pages_->start();
  workers_ = std::make_unique<WorkerPool>(options_.workers, options_.workers_waiting_max);
  io_ = std::make_unique<transport::IoThread>();
  network_ = std::make_unique<transport::SocketNetwork>(io_->loop(), counters_);
  const transport::World world{io_->loop(), network_.get(), transport::system_entropy()};
  peers_ = std::make_unique<PeerReader>(
      world, secret_,
      [this](StreamId, quorum::ReplicaIndex replica) { return address_of(replica); });
  log_service_ = std::make_unique<LogService>(parts());
  page_service_ = std::make_unique<PageService>(pages_.get(), log_service_.get(), offload(),
                                                options_.pages.now_us);
  transport::ServerOptions server_options;
  server_options.counters = counters_;
  server_ = std::make_unique<transport::RpcServer>(world, secret_, server_options);
  log_service_->register_on(server_.get());
  page_service_->register_on(server_.get());
}

Status StorageNode::listen() {
  for (const std::string& wanted : options_.listen) {
    STRATA_ASSIGN_OR_RETURN(std::string address, server_->listen(transport_address(wanted)));
    addresses_.push_back(std::move(address));
  }
  return ok_status();
}

Status StorageNode::join(RegistryCalls* calls) {
  MembershipKeeper::Options keeper;
  keeper.member.name = options_.name;
  keeper.member.role = registry::Role::kStorage;
  keeper.member.identity = folder_->stamp()->identity;
  keeper.member.address = addresses_.front();
  keeper.member.status_address = options_.status_address;
  keeper.lease_s = options_.lease_s;
  keeper.call_timeout_us = options_.call_timeout_us;
  membership_ = std::make_unique<MembershipKeeper>(registry_, keys_, std::move(keeper));
  return membership_->join(calls);
}

// What the page store does not need any more is cut off the log even if no writer asks.
void StorageNode::upkeep() {
  while (!stopping_.wait_for_us(options_.pages.checkpoint_interval_us)) log_service_->truncate();
}

void StorageNode::stop() {
  if (std::exchange(stopped_, true)) return;
  stopping_.raise();
  if (upkeep_.joinable()) upkeep_.join();
  if (membership_ != nullptr) membership_->leave();  // ND2
  // Nothing new comes in; then what is under way ends, each before what it hands its results to:
  // requests, pages, the log. Peers may be asked until the log store's thread is gone.
  server_.reset();
  if (workers_ != nullptr) workers_->stop();
  if (pages_ != nullptr) pages_->stop();
  runner_.reset();
  peers_.reset();
}

}  // namespace strata::storenode
