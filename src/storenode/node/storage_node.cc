#include "storenode/node/storage_node.h"

#include <algorithm>
#include <future>
#include <utility>

#include "base/clock.h"
#include "base/data_format.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "cluster/in_sync_nodes.h"
#include "cluster/log_checkpoints.h"
#include "cluster/membership.h"
#include "cluster/places.h"
#include "cluster/stream_epochs.h"
#include "storenode/copy/rpc_peer.h"

namespace strata::storenode {
namespace {

constexpr uint64_t kMendIntervalUs = 1'000'000;
constexpr uint64_t kJoinPauseUs = 200'000;
constexpr uint64_t kStreamsIntervalUs = 1'000'000;
constexpr uint64_t kSecondUs = 1'000'000;

uint64_t random_id() {
  uint64_t id = 0;
  while (id == 0) transport::system_entropy()->fill(reinterpret_cast<char*>(&id), sizeof id);
  return id;
}

bool is_log_of_place(StreamId stream) noexcept {
  return !stream.is_zero() && stream.value <= cluster::kPlacesMax;
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
      keys_(*cluster::ClusterKeys::of(options_.cluster)) {}

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
  written_service_.reset();
  log_service_.reset();
  pages_.reset();
  copier_.reset();
  written_.reset();
  {
    const MutexLock lock(views_mutex_);
    views_.clear();
  }
  logs_.reset();
}

Status StorageNode::start() {
  cluster::RegistryCalls calls(registry_, options_.stop, options_.start_timeout_us,
                               options_.call_timeout_us);
  STRATA_ASSIGN_OR_RETURN(folder_,
                          daemon::DataFolder::open(files_, kNodeFolder, options_.directory));
  STRATA_RETURN_IF_ERROR(folder_->check(options_.name, options_.profile));
  STRATA_RETURN_IF_ERROR(find_database(&calls));
  STRATA_RETURN_IF_ERROR(find_group(&calls));
  STRATA_RETURN_IF_ERROR(stamp_folder());
  STRATA_RETURN_IF_ERROR(open_stores());
  make_services();
  watch_placement();
  STRATA_RETURN_IF_ERROR(make_replicas(&calls));
  STRATA_RETURN_IF_ERROR(listen());
  STRATA_RETURN_IF_ERROR(join(&calls));
  if (store_copier_ != nullptr) store_copier_->start();
  upkeep_ = std::thread([this] { upkeep(); });
  if (pages_ != nullptr && has_several_writers(options_.profile))
    stream_adder_ = std::thread([this] { add_streams_as_they_come(); });
  return ok_status();
}

// --- what the registry says ---

StatusOr<cluster::DatabaseIdentity> StorageNode::found_database(cluster::RegistryCalls* calls) {
  cluster::Topology topology(registry_, keys_);
  const auto read = [&](uint64_t deadline_us) { return topology.identity(deadline_us); };
  STRATA_ASSIGN_OR_RETURN(auto found,
                          calls->until_reached("reading the database's identity", read));
  if (!found.has_value()) {
    if (folder_->stamp().has_value())
      return error_wrong_database(
          "the data folder " + options_.directory + " holds data of database " +
          daemon::hex64(folder_->stamp()->database_id) + ", and cluster " + options_.cluster +
          " has no database yet in this registry; to do: start it with its own registry "
          "and cluster name, or with another folder");
    const cluster::DatabaseIdentity ours{random_id(), options_.profile, kDataFormat};
    const Status made = calls->until_reached(
        "making the database's identity",
        [&](uint64_t deadline_us) { return topology.create_identity(ours, deadline_us); });
    if (!made.ok() && !is_wrong_database(made)) return made;  // that one: another node was first
    STRATA_ASSIGN_OR_RETURN(found, calls->until_reached("reading the database's identity", read));
    if (!found.has_value()) return error_conflict("the database's identity went away again");
  }
  return *std::move(found);
}

Status StorageNode::find_database(cluster::RegistryCalls* calls) {
  STRATA_ASSIGN_OR_RETURN(database_, found_database(calls));
  if (database_.profile != options_.profile)
    return error_wrong_database("the database of cluster " + options_.cluster + " has profile " +
                                database_.profile + ", this node was started with " +
                                options_.profile +
                                "; to do: start it with that one, or for another cluster");
  STRATA_RETURN_IF_ERROR(cluster::check_data_format(database_, options_.cluster));
  return folder_->check_database(database_.database_id);
}

StatusOr<std::optional<cluster::Placement>> StorageNode::read_placement(
    cluster::RegistryCalls* calls) {
  return calls->until_reached("reading the placement", [&](uint64_t deadline_us) {
    return topology_->placement(deadline_us);
  });
}

// The first one of the cluster. OK also when another node was first.
Status StorageNode::make_placement(cluster::RegistryCalls* calls) {
  const cluster::StorageGroup first{1, options_.initial_group->nodes,
                                    options_.initial_group->write_quorum};
  const Status made = calls->until_reached("making the placement", [&](uint64_t deadline_us) {
    return topology_->change_placement(std::nullopt, {first}, deadline_us).status();
  });
  return is_conflict(made) ? ok_status() : made;
}

bool StorageNode::enter_group(const cluster::Placement& placement) {
  for (const cluster::StorageGroup& group : placement.groups) {
    if (!group.place_of(options_.name).has_value()) continue;
    group_ = std::make_unique<cluster::GroupView>(options_.name, placement.generation, group);
    return true;
  }
  return false;
}

Status StorageNode::find_group(cluster::RegistryCalls* calls) {
  topology_ = std::make_unique<cluster::Topology>(registry_, keys_);
  STRATA_ASSIGN_OR_RETURN(auto placement, read_placement(calls));
  if (!placement.has_value() && options_.initial_group.has_value()) {
    STRATA_RETURN_IF_ERROR(make_placement(calls));
    STRATA_ASSIGN_OR_RETURN(placement, read_placement(calls));
  }
  if (!placement.has_value())
    return error_not_found(
        "cluster " + options_.cluster +
        " has no placement yet; to do: start its first nodes with an initial group");
  if (!enter_group(*placement) && options_.joining.has_value()) {
    STRATA_ASSIGN_OR_RETURN(placement, change_placement(*placement, calls));
    enter_group(*placement);
  }
  if (group_ != nullptr) return ok_status();
  std::string groups;
  for (const cluster::StorageGroup& group : placement->groups)
    groups += (groups.empty() ? "" : "; ") + joined_names(group.nodes);
  return error_wrong_database(
      "node " + options_.name + " is in no storage group of cluster " + options_.cluster + " (" +
      groups + "); to do: start it with one of these names, or change the placement first");
}

StatusOr<std::vector<cluster::StorageGroup>> StorageNode::added_to_group(
    const cluster::Placement& placement) const {
  uint32_t group = options_.joining->group;
  if (group == 0 && placement.groups.size() > 1)
    return error_invalid_argument("there are " + std::to_string(placement.groups.size()) +
                                  " groups, and none of them was named");
  if (group == 0) group = placement.groups[0].id;
  return cluster::with_added(placement, group, options_.name, options_.joining->write_quorum);
}

// ND6
StatusOr<cluster::Placement> StorageNode::change_placement(const cluster::Placement& placement,
                                                           cluster::RegistryCalls* calls) {
  if (folder_->stamp().has_value())
    return error_wrong_database("the data folder " + options_.directory + " was used by " +
                                folder_->stamp()->name +
                                " before; a node comes into a group with an empty one");
  const Joining& joining = *options_.joining;
  const auto groups = joining.replaces.empty()
                          ? added_to_group(placement)
                          : cluster::with_replaced(placement, joining.replaces, options_.name);
  if (!groups.ok())
    return error_conflict("node " + options_.name + " cannot come into a group of cluster " +
                          options_.cluster + ": " + std::string(groups.status().message()));
  std::vector<registry::Change> with;
  for (const cluster::StorageGroup& group : *groups) {
    if (!group.place_of(options_.name).has_value()) continue;
    STRATA_RETURN_IF_ERROR(check_others_are_there(group, calls));
    STRATA_ASSIGN_OR_RETURN(with, others_have_pages(group, calls));
  }
  auto changed = calls->until_reached("changing the placement", [&](uint64_t deadline_us) {
    return topology_->change_placement(placement, *groups, deadline_us, with);
  });
  if (is_conflict(changed.status()))
    return error_conflict("the placement of cluster " + options_.cluster +
                          ", or which of its nodes have every page, was changed meanwhile; start "
                          "this one again");
  return changed;
}

// ND8. What has to hold when the placement is changed.
StatusOr<std::vector<registry::Change>> StorageNode::others_have_pages(
    const cluster::StorageGroup& group, cluster::RegistryCalls* calls) {
  std::vector<registry::Change> with;
  if (!pages_are_written(options_.profile)) return with;
  std::vector<StreamId> writers;
  if (!has_several_writers(options_.profile)) writers = options_.streams;
  writers.push_back(cluster::kAuthorityStream);  // a memory node may write the pages
  for (const StreamId stream : writers) {
    STRATA_ASSIGN_OR_RETURN(
        const auto found,
        calls->until_reached("reading which nodes have every page", [&](uint64_t deadline_us) {
          return cluster::InSyncNodes(registry_, keys_).read(stream, deadline_us);
        }));
    with.push_back(registry::Change::require(
        keys_.in_sync(stream), found.has_value() ? found->version : registry::Version{}));
    if (found.has_value())  // else there are no pages of it yet
      STRATA_RETURN_IF_ERROR(check_others_are_in(group, found->nodes));
  }
  return with;
}

Status StorageNode::check_others_are_in(const cluster::StorageGroup& group,
                                        const std::vector<cluster::InSyncNode>& in_sync) const {
  if (group.nodes.size() == 1)
    return error_peer_down(
        "no other node has the pages: add one, and wait until it has copied them");
  for (const std::string& name : group.nodes) {
    const bool has_all = std::any_of(in_sync.begin(), in_sync.end(),
                                     [&](const auto& node) { return node.name == name; });
    if (!has_all && name != options_.name)
      return error_peer_down(
          "storage node " + name +
          " does not have every page; the group is changed only while every other "
          "node has: wait until it has copied them, or replace that one first");
  }
  return ok_status();
}

// Who is away may lack what the node that goes has.
Status StorageNode::check_others_are_there(const cluster::StorageGroup& group,
                                           cluster::RegistryCalls* calls) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<cluster::Member> members,
                          calls->until_reached("reading the members", [&](uint64_t deadline_us) {
                            return cluster::Membership(registry_, keys_).list(deadline_us);
                          }));
  for (const std::string& name : group.nodes) {
    const bool there = std::any_of(members.begin(), members.end(),
                                   [&](const cluster::Member& m) { return m.name == name; });
    if (!there && name != options_.name)
      return error_peer_down("storage node " + name +
                             " is away; the group is changed only while every other node is there: "
                             "start it, or replace that one first");
  }
  return ok_status();
}

void StorageNode::watch_placement() {
  placement_watch_ = topology_->watch_placement([this](const StatusOr<cluster::Placement>& now) {
    if (now.ok())
      group_->update(*now);
    else
      diag(Severity::kError, "the placement cannot be read: %s",
           std::string(now.status().message()).c_str());
  });
}

StatusOr<quorum::StreamOrigin> StorageNode::origin(StreamId stream) {
  const uint64_t deadline = registry_->now_us() + options_.call_timeout_us;
  STRATA_ASSIGN_OR_RETURN(const auto holder,
                          cluster::StreamEpochs(registry_, keys_).current(stream, deadline));
  STRATA_ASSIGN_OR_RETURN(const auto founded,
                          cluster::LogCheckpoints(registry_, keys_).read(stream, deadline));
  const cluster::StorageGroup group = group_->group();
  const auto place = group.place_of(options_.name);
  // ND6: others may have acknowledged by now what the registry does not know of yet.
  const bool came_with_it =
      place.has_value() && (group.joined_at(*place) == 0 || is_younger(stream));
  return quorum::StreamOrigin{holder.has_value() ? holder->epoch : Epoch{},
                              came_with_it && !founded.has_value()};
}

// ND10
bool StorageNode::is_younger(StreamId stream) const {
  return has_several_writers(options_.profile) && !older_streams_.contains(stream);
}

// The placement that has this node was read before.
StatusOr<std::vector<StreamId>> StorageNode::streams_begun(cluster::RegistryCalls* calls) {
  STRATA_ASSIGN_OR_RETURN(
      const registry::Listing listing,
      calls->until_reached("reading which log streams there are", [&](uint64_t deadline_us) {
        return registry_->list(keys_.streams(), deadline_us);
      }));
  std::set<std::string> keys;
  for (const registry::KeyValue& entry : listing.entries) keys.insert(entry.key);
  std::vector<StreamId> begun;
  for (uint32_t number = 1; number <= cluster::kAuthorityStream.value; ++number)
    if (keys.contains(keys_.epoch(StreamId{number}))) begun.push_back(StreamId{number});
  return begun;
}

// ND10. Before anybody can reach this node.
Status StorageNode::make_replicas(cluster::RegistryCalls* calls) {
  if (!has_several_writers(options_.profile)) return ok_status();
  STRATA_ASSIGN_OR_RETURN(const std::vector<StreamId> begun, streams_begun(calls));
  older_streams_.insert(begun.begin(), begun.end());
  for (const StreamId stream : begun) {
    if (!is_not_found(logs_->status(stream).status())) continue;
    STRATA_ASSIGN_OR_RETURN(
        const quorum::StreamOrigin from,
        calls->until_reached("reading what is known of log stream " + std::to_string(stream.value),
                             [&](uint64_t) { return origin(stream); }));
    const auto made = std::make_shared<std::promise<Status>>();
    logs_->make_stream(stream, from,
                       [made](const quorum::ChangeReply& reply) { made->set_value(reply.status); });
    STRATA_RETURN_IF_ERROR(made->get_future().get());
    note_stream_made(stream);
  }
  return ok_status();
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
  return pages_are_written(options_.profile) ? open_written_pages() : open_replayed_pages();
}

Status StorageNode::open_written_pages() {
  WrittenStoreOptions written_options;
  written_options.directory = options_.directory + "/written";
  written_options.files = files_;
  written_options.number = random_id();
  written_options.direct_io = !options_.buffered_pages;
  written_options.open_files_max = options_.pages.open_files_max;
  written_options.of_several = has_several_writers(options_.profile);
  STRATA_ASSIGN_OR_RETURN(written_, WrittenStore::open(written_options));
  return ok_status();
}

Status StorageNode::open_replayed_pages() {
  PageStoreOptions page_options = options_.pages;
  page_options.directory = options_.directory + "/pages";
  page_options.files = files_;
  page_options.cluster_id = database_.database_id;
  page_options.streams_come = has_several_writers(options_.profile);
  STRATA_ASSIGN_OR_RETURN(page_options.mode, mode_of_profile(options_.profile));
  copy_peers_ = make_copy_peers();
  asker_ = std::make_unique<PageAsker>(copy_peers_);
  if (!copy_peers_.empty()) {
    page_options.copy_when_damaged = true;
    page_options.ask_peers = [this](const GetPageRequest& request, GetPageDone done) {
      asker_->ask(request, std::move(done));
    };
  }
  STRATA_ASSIGN_OR_RETURN(pages_, PageStore::open(page_options));
  if (has_several_writers(options_.profile)) return add_servers_streams();
  for (const StreamId stream : options_.streams) STRATA_RETURN_IF_ERROR(add_stream(stream));
  return ok_status();
}

// --- streams whose changes are in the pages here ---

Status StorageNode::add_stream(StreamId stream) {
  StreamLogView* view = nullptr;
  {
    const MutexLock lock(views_mutex_);
    std::unique_ptr<StreamLogView>& known = views_[stream];
    if (known == nullptr) known = std::make_unique<StreamLogView>(logs_.get(), stream, kFirstLsn);
    view = known.get();
  }
  return pages_->add_stream(stream, view, kFirstLsn);
}

// ND9. One thread at a time.
Status StorageNode::add_servers_streams() {
  std::set<StreamId> there;
  for (const StreamStatus& log : logs_->status())
    if (is_log_of_place(log.stream)) there.insert(log.stream);
  // A log may be gone from here, or never have come, of which a peer's pages have all.
  const auto replayed = pages_->known_streams();
  if (replayed.ok()) there.insert(replayed->begin(), replayed->end());
  for (const StreamId stream : there) {
    if (added_streams_.contains(stream)) continue;
    STRATA_RETURN_IF_ERROR(add_stream(stream));
    added_streams_.insert(stream);
  }
  return ok_status();
}

// In the log store's thread, which must not wait.
void StorageNode::note_stream_made(StreamId stream) {
  StreamLogView* view = nullptr;
  {
    const MutexLock lock(views_mutex_);
    const auto known = views_.find(stream);
    if (known != views_.end()) view = known->second.get();
  }
  if (view != nullptr) return view->stream_made();
  const MutexLock lock(views_mutex_);
  stream_made_ = true;
  stream_made_changed_.notify_all();
}

// Those that servers begin, and those that a copy of a peer's pages has brought.
void StorageNode::add_streams_as_they_come() {
  name_this_thread("node-streams");
  for (Status last;;) {
    {
      MutexLock lock(views_mutex_);
      stream_made_changed_.wait_for_us(
          lock, kStreamsIntervalUs,
          [this]() STRATA_REQUIRES(views_mutex_) { return stream_made_ || stops_adding_; });
      if (stops_adding_) return;
      stream_made_ = false;
    }
    const Status added = add_servers_streams();
    if (!added.ok() && added != last)
      diag(Severity::kError, "the log of a server is not replayed yet: %s; it is tried again",
           std::string(added.message()).c_str());
    last = added;
  }
}

void StorageNode::stop_adding_streams() {
  {
    const MutexLock lock(views_mutex_);
    stops_adding_ = true;
  }
  stream_made_changed_.notify_all();
  if (stream_adder_.joinable()) stream_adder_.join();
}

std::string StorageNode::address_of(quorum::ReplicaIndex replica) const {
  const std::string name = group_->node_at(replica);
  return name.empty() ? name : known_->address_of(name);
}

quorum::ReplicaIndex StorageNode::own_replica() const {
  return static_cast<quorum::ReplicaIndex>(group_->group().place_of(options_.name).value_or(0));
}

// The one behind this node first, so that not all ask the same one. Who that is changes with the
// group.
CopyPeers StorageNode::make_copy_peers() {
  CopyPeers peers;
  const cluster::StorageGroup group = group_->group();
  for (size_t i = 1; i < group.nodes.size(); ++i)
    peers.push_back(std::make_shared<RpcPeer>(
        secret_, RpcPeerOptions{.name = group.nodes[(own_replica() + i) % group.nodes.size()],
                                .address = [this, i] { return address_of_nth_behind(i); }}));
  return peers;
}

// Empty: there are not so many others any more.
std::string StorageNode::address_of_nth_behind(size_t n) const {
  const size_t count = group_->group().nodes.size();
  if (n >= count) return {};
  return address_of(static_cast<quorum::ReplicaIndex>((own_replica() + n) % count));
}

daemon::Offload StorageNode::offload() {
  return [this](daemon::WorkerPool::Task task) { return workers_->run(std::move(task)); };
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
  parts.stream_made = [this](StreamId stream) { note_stream_made(stream); };
  parts.needed_from = [this](StreamId stream) { return needed_from(stream); };
  parts.may_serve = [this] { return group_->may_serve(); };
  return parts;
}

// Written pages need no log here: compute's checkpoint alone decides. Nor is anything made from the
// authority stream.
Lsn StorageNode::needed_from(StreamId stream) const {
  return pages_ != nullptr && stream != cluster::kAuthorityStream ? pages_->needed_from(stream)
                                                                  : Lsn{UINT64_MAX};
}

void StorageNode::make_page_service() {
  if (pages_ != nullptr) {
    page_service_ = std::make_unique<PageService>(pages_.get(), log_service_.get(), offload(),
                                                  options_.pages.now_us);
    return page_service_->register_on(server_.get());
  }
  copier_ = std::make_unique<PageCopier>(written_.get(), secret_);
  written_service_ = std::make_unique<WrittenService>(
      written_.get(), copier_.get(),
      [this](StreamId stream, Epoch epoch) {
        STRATA_RETURN_IF_ERROR(group_->may_serve());
        return log_service_->check_epoch(stream, epoch);
      },
      offload());
  written_service_->register_on(server_.get());
}

void StorageNode::make_services() {
  known_ = std::make_unique<cluster::NodeAddresses>(registry_, keys_);
  runner_ = std::make_unique<LogStoreRunner>(logs_.get(), [this] { return group_->is_spare(); });
  if (pages_ != nullptr) {
    asker_->start();
    pages_->start();
  }
  workers_ = std::make_unique<daemon::WorkerPool>(options_.workers, options_.workers_waiting_max);
  io_ = std::make_unique<transport::IoThread>();
  network_ = std::make_unique<transport::SocketNetwork>(io_->loop(), counters_);
  const transport::World world{io_->loop(), network_.get(), transport::system_entropy()};
  peers_ = std::make_unique<PeerReader>(
      world, secret_,
      [this](StreamId, quorum::ReplicaIndex replica) { return address_of(replica); });
  if (pages_ != nullptr)
    store_copier_ =
        std::make_unique<StoreCopier>(pages_.get(), StoreCopierOptions{.peers = copy_peers_});
  mender_ = std::make_unique<LogMender>(
      logs_.get(),
      [this] {
        return LogMender::Place{own_replica(),
                                static_cast<quorum::ReplicaIndex>(group_->group().nodes.size())};
      },
      [peers = peers_.get()](StreamId stream, quorum::ReplicaIndex peer,
                             const quorum::ReadRequest& request, SelfCatchUp::FetchDone done) {
        peers->fetch(stream, peer, request, std::move(done));
      },
      [this](StreamId stream, Lsn to, Lsn begin) {
        if (pages_ != nullptr) pages_->note_lost(stream, to);
        // What the writer needs, nobody cuts off: this node may have been away when it said so.
        log_service_->not_needed_by_writer(stream, begin);
      });
  log_service_ = std::make_unique<LogService>(parts());
  transport::ServerOptions server_options;
  server_options.counters = counters_;
  server_options.connections_max = options_.connections_max;
  server_ = std::make_unique<transport::RpcServer>(world, secret_, server_options);
  log_service_->register_on(server_.get());
  make_page_service();
}

Status StorageNode::listen() {
  for (const std::string& wanted : options_.listen) {
    STRATA_ASSIGN_OR_RETURN(std::string address, server_->listen(transport_address(wanted)));
    addresses_.push_back(std::move(address));
  }
  return ok_status();
}

Status StorageNode::join(cluster::RegistryCalls* calls) {
  cluster::MembershipKeeper::Options keeper;
  keeper.member.name = options_.name;
  keeper.member.role = cluster::Role::kStorage;
  keeper.member.identity = folder_->stamp()->identity;
  keeper.member.address =
      options_.advertise.empty() ? addresses_.front() : transport_address(options_.advertise);
  keeper.member.status_address = options_.status_address;
  keeper.lease_s = options_.lease_s;
  keeper.call_timeout_us = options_.call_timeout_us;
  membership_ = std::make_unique<cluster::MembershipKeeper>(registry_, keys_, std::move(keeper));
  // The entry of a node that died with its folder goes with its lease; that of one that lives
  // stays, and the name is its.
  const uint64_t deadline_us =
      registry_->now_us() +
      options_.name_wait_us.value_or(2 * kSecondUs * options_.lease_s + 3 * kSecondUs);
  for (;;) {
    Status joined = membership_->join(calls);
    if (!is_in_use(joined) || registry_->now_us() >= deadline_us) return joined;
    diag(Severity::kInfo, "%s; waiting for its lease to end",
         std::string(joined.message()).c_str());
    if (options_.stop == nullptr) {
      (void)stopping_.wait_for_us(kJoinPauseUs);
    } else if (options_.stop->wait_for_us(kJoinPauseUs)) {
      return error_interrupted("stopped while joining the cluster");
    }
  }
}

// Damage of the log is mended; and what the page store does not need any more is cut off it even if
// no writer asks.
void StorageNode::upkeep() {
  name_this_thread("node-upkeep");
  const uint64_t pause_us = std::min(kMendIntervalUs, options_.pages.checkpoint_interval_us);
  uint64_t next_truncation_us = monotonic_us() + options_.pages.checkpoint_interval_us;
  while (!stopping_.wait_for_us(pause_us)) {
    if (mender_->mend() && pages_ != nullptr) pages_->retry();
    if (monotonic_us() < next_truncation_us) continue;
    next_truncation_us = monotonic_us() + options_.pages.checkpoint_interval_us;
    log_service_->truncate();
  }
}

void StorageNode::stop() {
  if (std::exchange(stopped_, true)) return;
  stopping_.raise();
  if (upkeep_.joinable()) upkeep_.join();
  stop_adding_streams();
  placement_watch_.reset();
  if (store_copier_ != nullptr) store_copier_->stop();
  if (membership_ != nullptr) membership_->leave();  // ND2
  // Nothing new comes in; then what is under way ends, each before what it hands its results to:
  // requests, pages, the log. Peers may be asked until the log store's thread is gone.
  server_.reset();
  if (workers_ != nullptr) workers_->stop();
  if (copier_ != nullptr) copier_->stop();
  if (asker_ != nullptr) asker_->stop();
  if (pages_ != nullptr) pages_->stop();
  runner_.reset();
  peers_.reset();
}

}  // namespace strata::storenode
