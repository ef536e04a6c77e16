#include "clients/compute/compute_node.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/data_format.h"
#include "base/diag.h"
#include "base/profiles.h"
#include "base/thread_name.h"
#include "proto/methods.h"

namespace strata::clients {

namespace {

constexpr uint64_t kPauseUsMin = 50'000, kPauseUsMax = 1'000'000;
constexpr uint64_t kBacklogLookUs = 200'000;
constexpr uint64_t kScanWeight = 64;  // BG5: by default 16 MiB that are not scanned are too many
constexpr uint64_t kEnterUs = 3'000'000;           // then it is looked anew at what place there is
constexpr uint64_t kFolderPatienceUs = 5'000'000;  // for a process that was killed a moment ago

std::string text(const Status& status) { return status.ok() ? std::string() : cause_of(status); }

Status check_identity(const ComputeOptions& options, const cluster::DatabaseIdentity& identity) {
  if (identity.profile != options.profile)
    return error_wrong_database("the cluster '" + options.cluster + "' is of profile '" +
                                identity.profile + "', this node was started with '" +
                                options.profile + "'; to do: set strata_profile to the cluster's");
  return cluster::check_data_format(identity, options.cluster);
}

Status check_role(const ComputeOptions& options) {
  const Profile* const profile = find_cluster_profile(options.profile);
  const bool several = profile->writers == Writers::kSeveral;
  if (several != (options.role == ComputeRole::kOneOfSeveral))
    return error_unsupported("under profile '" + options.profile + "' " +
                             (several ? "every compute node is one of several that write"
                                      : "one compute node writes, and no others"));
  if (several && (!options.membership.enter || !options.membership.leave))
    return error_invalid_argument("one of several servers is a member at the memory node");
  if (!several && !options.adopts.is_zero())
    return error_invalid_argument("places are adopted where several servers write");
  if (several) return ok_status();
  const std::set<StreamId> streams(options.streams.begin(), options.streams.end());
  if (streams.empty() || streams.size() != options.streams.size() || streams.contains(StreamId{}))
    return error_invalid_argument("a compute node names the log streams it is about, each once");
  if (options.role == ComputeRole::kWriter) {
    if (streams.size() == 1) return ok_status();
    return error_invalid_argument("a writer holds one log stream; " +
                                  std::to_string(streams.size()) + " are named");
  }
  if (profile->pages == PageOrigin::kWritten)
    return error_unsupported("under profile '" + options.profile +
                             "' storage nodes have what the writer has written, which is neither "
                             "its newest state nor one of a single moment: nobody can read beside "
                             "it; to do: use a profile whose storage nodes replay the log");
  return ok_status();
}

// Either page source counts what it reads in the same way.
template <typename Counters>
void add_reads(const Counters& pages, ComputeNode::Facts* facts) {
  facts->pages_read = pages.pages;
  facts->pages_read_ahead = pages.read_ahead;
  facts->page_calls = pages.calls;
  facts->page_retries = pages.retries;
  facts->bad_pages = pages.bad_pages;
  facts->page_wait_us = pages.wait_us;
}

}  // namespace

ComputeNode::ComputeNode(std::unique_ptr<registry::Registry> registry,
                         const transport::Secret& secret, cluster::ClusterKeys keys,
                         ComputeOptions options)
    : options_(std::move(options)),
      profile_(find_cluster_profile(options_.profile)),
      secret_(secret),
      keys_(std::move(keys)),
      registry_(std::move(registry)),
      io_("strata-io"),
      network_(io_.loop()) {}

ComputeNode::~ComputeNode() {
  stop_keeping();
  if (options_.membership.leave) options_.membership.leave();  // it uses what goes here
  epoch_watch_.reset();
  list_watch_.reset();
  remover_.reset();
  placement_watch_.reset();
  held_versions_.reset();
  stop_pages();
  memory_.reset();
  log_.reset();  // its events stop before what they speak of goes
}

StatusOr<std::unique_ptr<ComputeNode>> ComputeNode::join(
    std::unique_ptr<registry::Registry> registry, const transport::Secret& secret,
    ComputeOptions options) {
  STRATA_RETURN_IF_ERROR(cluster::check_name("node", options.name));
  if (find_cluster_profile(options.profile) == nullptr)
    return error_invalid_argument("there is no profile '" + options.profile +
                                  "' of a cluster; use " + names_of_cluster_profiles());
  STRATA_RETURN_IF_ERROR(check_role(options));
  STRATA_ASSIGN_OR_RETURN(cluster::ClusterKeys keys, cluster::ClusterKeys::of(options.cluster));
  const uint64_t deadline_us = registry->now_us() + options.start_timeout_us;
  auto node = std::unique_ptr<ComputeNode>(
      new ComputeNode(std::move(registry), secret, std::move(keys), std::move(options)));
  STRATA_RETURN_IF_ERROR(node->find_identity());
  switch (node->options_.role) {
    case ComputeRole::kWriter:
      STRATA_RETURN_IF_ERROR(node->join_as_writer(deadline_us));
      break;
    case ComputeRole::kReader:
      STRATA_RETURN_IF_ERROR(node->join_as_reader(deadline_us));
      break;
    case ComputeRole::kOneOfSeveral: {
      const Status joined = node->join_as_one_of_several(deadline_us);
      if (joined.ok()) break;
      node->give_up().IgnoreError();  // CM10; what is held ends with the lease otherwise
      return joined;
    }
  }
  node->keeper_ = std::thread([self = node.get()] { self->keep_lease(); });
  if (node->gate_ != nullptr)
    node->watcher_ = std::thread([self = node.get()] { self->watch_backlogs(); });
  return node;
}

Status ComputeNode::join_as_writer(uint64_t deadline_us) {
  // Nothing is done to a cluster that this node does not fit, and CM5: the placement is read again.
  STRATA_ASSIGN_OR_RETURN(const cluster::Placement before, find_placement(deadline_us));
  STRATA_RETURN_IF_ERROR(before.only_group().status());
  STRATA_RETURN_IF_ERROR(hold_stream(deadline_us));
  watch_epoch();
  STRATA_ASSIGN_OR_RETURN(const cluster::Placement placement, find_placement(deadline_us));
  return open_storage(placement, deadline_us);
}

// --- one of several ---

// CM9, CM5
Status ComputeNode::join_as_one_of_several(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const cluster::Placement before, find_placement(deadline_us));
  STRATA_RETURN_IF_ERROR(before.only_group().status());
  STRATA_RETURN_IF_ERROR(take_place(deadline_us));
  watch_epoch();
  STRATA_ASSIGN_OR_RETURN(const cluster::Placement placement, find_placement(deadline_us));
  return open_storage(placement, deadline_us);
}

StatusOr<bool> ComputeNode::is_founded(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const auto control,
                          cluster::LogCheckpoints(registry_.get(), keys_)
                              .read(cluster::log_stream_of(cluster::kFirstPlace), deadline_us));
  return control.has_value();
}

Status ComputeNode::take_place(uint64_t deadline_us) {
  authority_ =
      std::make_unique<cluster::HolderAddress>(registry_.get(), keys_, cluster::kAuthorityStream);
  cluster::Places places(registry_.get(), keys_);
  bool told = false;
  for (;;) {
    Status taken = have_lease();
    if (taken.ok()) taken = try_place(&places, deadline_us);
    if (taken.ok()) return taken;
    // Somebody is there, or was quicker, or nobody knows: what is so now is looked at again.
    if (!is_in_use(taken) && !is_conflict(taken) && !may_be_repeated(taken)) return taken;
    if (!std::exchange(told, true) && !adopts())
      diag(Severity::kInfo, "%s: waiting for a place among the servers", text(taken).c_str());
    if (!pause(kPauseUsMin * 4, deadline_us)) return taken;
  }
}

// A place may be waited for for longer than a lease lasts, and the registry be away meanwhile.
Status ComputeNode::have_lease() {
  if (!leases_.empty() && leases_.back()->valid()) return ok_status();
  {
    const MutexLock lock(mutex_);
    lease_lost_ = false;
  }
  STRATA_ASSIGN_OR_RETURN(auto lease, new_lease(call_deadline()));
  lease_.store(lease.get(), std::memory_order_release);
  leases_.push_back(std::move(lease));
  return ok_status();
}

// *fresh: nobody else can ever have had it.
StatusOr<cluster::KnownPlace> ComputeNode::find_place(cluster::Places* places, bool founded,
                                                      bool* fresh) {
  *fresh = false;
  if (adopts()) return find_adopted(places);
  if (founded) return places->take(held_->identity(), fresh, call_deadline());
  // Whose it is makes no difference: nothing on it counts yet.
  STRATA_ASSIGN_OR_RETURN(const auto all, places->all(call_deadline()));
  cluster::KnownPlace first;
  if (!all.empty() && all.front().place.number == cluster::kFirstPlace) first = all.front();
  first.place.number = cluster::kFirstPlace;
  first.place.folder = held_->identity();
  return first;
}

// CM11
StatusOr<cluster::KnownPlace> ComputeNode::find_adopted(cluster::Places* places) {
  STRATA_ASSIGN_OR_RETURN(const auto all, places->all(call_deadline()));
  for (const cluster::KnownPlace& one : all) {
    if (one.place.number != options_.adopts) continue;
    STRATA_ASSIGN_OR_RETURN(const bool settled, places->is_settled(one.place, call_deadline()));
    if (!settled) return one;
  }
  return error_not_found("there is nothing to recover of server " +
                         std::to_string(options_.adopts.value));
}

Status ComputeNode::try_place(cluster::Places* places, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const bool founded, is_founded(call_deadline()));
  bool fresh = false;
  STRATA_ASSIGN_OR_RETURN(const cluster::KnownPlace known, find_place(places, founded, &fresh));
  if (!founded && adopts()) return error_not_found("there is no database yet");
  founds_ = !founded;
  if (fresh) fresh_place_ = known;
  const uint64_t now_us = registry_->now_us();
  if (now_us >= deadline_us) return error_timed_out("no place was found in time");
  Membership::Seat seat{
      known.place.number,
      // PLC3, ID2. Who became a member meanwhile, and has not moved in, has not used a page. An
      // adopter knows nothing of the process whose place it takes.
      !adopts() && (fresh || (known.place.server == holder_ && known.place.adopter.empty())),
      transport::Address([authority = authority_.get()] { return authority->now(); }),
      std::min(deadline_us - now_us, kEnterUs)};
  const Status entered = options_.membership.enter(seat);
  if (is_in_use(entered))
    return error_in_use(founded ? "the place of this node's data folder is in use: " + text(entered)
                                : "another node makes the database: " + text(entered));
  STRATA_RETURN_IF_ERROR(entered);
  const Status held = hold_place(places, known, deadline_us);
  if (!held.ok()) let_place_go();
  return held;
}

// This node is the place's member. An earlier one that left by itself lets its stream go a moment
// later; that of another one, which was not sealed, ends with its lease.
Status ComputeNode::hold_place(cluster::Places* places, const cluster::KnownPlace& known,
                               uint64_t deadline_us) {
  if (adopts()) {  // somebody else may have been at it meanwhile, to its end
    STRATA_ASSIGN_OR_RETURN(const cluster::KnownPlace now, find_adopted(places));
    if (now.version != known.version) return error_conflict("the place was taken meanwhile");
  }
  place_ = known;
  for (;;) {
    const Status held = try_to_hold(call_deadline());
    if (held.ok()) return move_in(places, known);
    if (!is_in_use(held) || !pause(kPauseUsMin, deadline_us)) return held;
  }
}

// What was read before the stream was held may be old.
Status ComputeNode::move_in(cluster::Places* places, const cluster::KnownPlace& known) {
  if (founds_) {
    STRATA_ASSIGN_OR_RETURN(const bool founded, is_founded(call_deadline()));
    if (founded) return error_conflict("the database was made meanwhile");
  }
  STRATA_ASSIGN_OR_RETURN(
      const auto control,
      cluster::LogCheckpoints(registry_.get(), keys_).read(stream(), call_deadline()));
  place_is_new_ = !control.has_value();
  cluster::Place place = known.place;
  (adopts() ? place.adopter : place.server) = holder_;
  if (!adopts()) place.adopter.clear();
  // Its own earlier attempt has ended, as its name says (ID2).
  after_adopter_ = adopts() && !known.place.adopter.empty() && known.place.adopter != holder_;
  STRATA_ASSIGN_OR_RETURN(place_, places->move_in(place, known.version, grant_, call_deadline()));
  fresh_place_ = {};
  return ok_status();
}

// CM10. If the registry does not answer the stream goes with the lease.
void ComputeNode::let_place_go() {
  options_.membership.leave();
  if (!grant_.epoch.is_zero())
    cluster::StreamEpochs(registry_.get(), keys_).release(grant_, call_deadline()).IgnoreError();
  place_ = {};
  grant_ = {};
}

// CM7
Status ComputeNode::join_as_reader(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const cluster::Placement placement, find_placement(deadline_us));
  STRATA_ASSIGN_OR_RETURN(const cluster::StorageGroup* const group, placement.only_group());
  STRATA_ASSIGN_OR_RETURN(auto lease, new_lease(deadline_us));
  lease_ = lease.get();
  leases_.push_back(std::move(lease));
  writers_ = std::make_unique<StreamWriters>(registry_.get(), keys_, options_.streams);
  addresses_ = std::make_unique<cluster::NodeAddresses>(registry_.get(), keys_);
  if (!addresses_->wait_for(group->nodes, 1, deadline_us))
    return error_peer_down("none of the " + std::to_string(group->nodes.size()) +
                           " storage nodes is in the registry; start them");
  StoragePagesOptions pages;  // of no stream: no epoch of any ends them
  for (const ReplicaNode& node : replicas_of(placement.generation, *group).nodes) {
    pages.addresses.push_back(node.address);
    pages.keys.push_back(node.key);
  }
  pages.channel.link_model = options_.link_model;
  pages.channel.counters = counters_;
  pages.world = {io_.loop(), &network_, transport::system_entropy()};
  pages_ = std::make_unique<StoragePageSource>(secret_, pages);
  reader_pages_ = std::make_unique<ReaderPages>(
      pages_.get(), [writers = writers_.get()] { return writers->names(); });
  uint64_t reader = 0;
  while (reader == 0)
    transport::system_entropy()->fill(reinterpret_cast<char*>(&reader), sizeof reader);
  held_versions_ = std::make_unique<HeldVersions>(pages_.get(), reader);
  watch_placement(placement.generation);
  return ok_status();
}

Status ComputeNode::hold_versions(Llsn oldest) {
  if (held_versions_ == nullptr)
    return error_invalid_argument(
        "a writer reads the newest states of pages and holds no older ones");
  return held_versions_->hold(oldest);
}

Status ComputeNode::find_identity() {
  if (adopts()) {
    holder_ = options_.name;
    return ok_status();
  }
  const uint64_t patience_us = std::min(options_.start_timeout_us, kFolderPatienceUs);
  STRATA_ASSIGN_OR_RETURN(held_, HeldIdentity::of(options_.data_directory, patience_us));
  holder_ = options_.name + held_->suffix();
  return cluster::check_name("node", holder_);
}

bool ComputeNode::pause(uint64_t pause_us, uint64_t deadline_us) {
  MutexLock lock(mutex_);
  changed_.wait_for_us(lock, pause_us, [this]() STRATA_REQUIRES(mutex_) { return stopped_; });
  return !stopped_ && !(options_.stop && options_.stop()) && registry_->now_us() < deadline_us;
}

// The storage nodes make identity and placement when they start for the first time.
StatusOr<cluster::Placement> ComputeNode::find_placement(uint64_t deadline_us) {
  cluster::Topology topology(registry_.get(), keys_);
  Status missing = ok_status();
  for (uint64_t pause_us = kPauseUsMin;; pause_us = std::min(2 * pause_us, kPauseUsMax)) {
    const uint64_t call_until =
        std::min(deadline_us, registry_->now_us() + options_.call_timeout_us);
    const auto identity = topology.identity(call_until);
    const auto placement = identity.ok()
                               ? topology.placement(call_until)
                               : StatusOr<std::optional<cluster::Placement>>(identity.status());
    if (identity.ok() && identity->has_value())
      STRATA_RETURN_IF_ERROR(check_identity(options_, **identity));
    if (placement.ok() && identity->has_value() && placement->has_value()) return **placement;
    if (!placement.ok() && !may_be_repeated(placement.status())) return placement.status();
    missing = placement.ok() ? error_peer_down("the registry knows no storage nodes of cluster '" +
                                               options_.cluster + "' yet; start them first")
                             : error_peer_down("the registry: " + text(placement.status()));
    if (!pause(pause_us, deadline_us)) return missing;
  }
}

StatusOr<std::unique_ptr<registry::Lease>> ComputeNode::new_lease(uint64_t deadline_us) {
  return registry_->grant_lease(
      options_.lease_seconds,
      [this](registry::LeaseId) {
        const MutexLock lock(mutex_);
        lease_lost_ = true;
        changed_.notify_all();
      },
      deadline_us);
}

// Once. in_use: another node holds the stream.
Status ComputeNode::try_to_hold(uint64_t deadline_us) {
  cluster::StreamEpochs epochs(registry_.get(), keys_);
  STRATA_ASSIGN_OR_RETURN(const auto before, epochs.current(stream(), deadline_us));
  const bool same = before.has_value() && before->holder == holder_;
  const registry::Version in_place_of = same ? before->writer : options_.in_place_of;
  STRATA_ASSIGN_OR_RETURN(grant_, epochs.acquire({stream(), holder_, Epoch{}, in_place_of},
                                                 *leases_.back(), deadline_us));
  return ok_status();
}

// CM2: an earlier writer that was killed holds the stream until its lease ends.
Status ComputeNode::hold_stream(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(auto lease, new_lease(deadline_us));
  lease_ = lease.get();
  leases_.push_back(std::move(lease));
  const uint64_t patience_us = (uint64_t{options_.lease_seconds} + 3) * 1'000'000;
  const uint64_t until = std::min(deadline_us, registry_->now_us() + patience_us);
  bool told = false;
  for (;;) {
    const Status held = try_to_hold(deadline_us);
    if (held.ok() || !is_in_use(held) || options_.stands_by) return held;
    if (!std::exchange(told, true))
      diag(Severity::kInfo, "%s: waiting until that node leaves or its lease ends",
           text(held).c_str());
    if (!pause(kPauseUsMin * 4, until))
      return error_in_use(text(held) +
                          " and its lease has not ended: it is running, or was killed a moment "
                          "ago; this node has changed nothing; to do: stop that one first");
  }
}

// CM3. The lease alone would do if everybody kept to CM2; it does not hurt to hear of who did not.
void ComputeNode::watch_epoch() {
  cluster::StreamEpochs epochs(registry_.get(), keys_);
  epoch_watch_ = epochs.watch(
      stream(), [this, own = grant_.epoch](const StatusOr<cluster::StreamHolder>& last) {
        if (!last.ok())
          diag(Severity::kError, "the last epoch of the log stream cannot be read: %s",
               text(last.status()).c_str());
        else if (last->epoch > own)
          note_taken_over(*last);
      });
}

// In the registry's thread.
void ComputeNode::note_taken_over(const cluster::StreamHolder& by) {
  const Status why =
      error_fenced("log stream " + std::to_string(stream().value) + " was taken over by " +
                   by.holder + " with epoch " + std::to_string(by.epoch.value));
  {
    const MutexLock lock(mutex_);
    if (taken_over_.load(std::memory_order_relaxed)) return;
    if (fenced_.ok()) fenced_ = why;  // before it is silent, else it would say that this may pass
    taken_over_.store(true, std::memory_order_release);
  }
  diag(adopts() ? Severity::kInfo : Severity::kError, "%s: %s", text(why).c_str(), end_of_it());
}

const char* ComputeNode::end_of_it() const noexcept {
  return adopts() ? "what this server does in another's place ends"
                  : "this node answers nothing any more; stop it";
}

ReplicaSet ComputeNode::replicas_of(uint64_t generation, const cluster::StorageGroup& group) {
  ReplicaSet set{generation, group.write_quorum, {}, group.taken_out_by};
  for (const std::string& name : group.nodes)
    set.nodes.push_back(
        {name, transport::Address([this, name] { return addresses_->address_of(name); })});
  return set;
}

// In the registry's thread, or the remover's.
void ComputeNode::follow_placement(const cluster::Placement& placement) {
  const auto group = placement.only_group();
  note_placement(group.status());
  if (!group.ok()) return;
  const ReplicaSet replicas = replicas_of(placement.generation, **group);
  uint64_t before = placement_generation_;
  while (before < placement.generation &&
         !placement_generation_.compare_exchange_weak(before, placement.generation)) {
  }
  if (log_ != nullptr) log_->follow(replicas);
  if (pages_ != nullptr)
    pages_->follow(replicas);
  else if (shared_ != nullptr)
    shared_->follow(replicas);
  else
    written_->follow(replicas);
  say_followed(placement.generation);
}

void ComputeNode::say_followed(uint64_t generation) {
  if (options_.followed) options_.followed(generation);
}

// CM8
void ComputeNode::note_placement(const Status& followed) {
  {
    const MutexLock lock(mutex_);
    placement_ = followed;
  }
  if (!followed.ok())
    diag(Severity::kError, "the new placement is not followed: %s", text(followed).c_str());
}

Status ComputeNode::open_storage(const cluster::Placement& placement, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const cluster::StorageGroup* const all, placement.only_group());
  const cluster::StorageGroup& group = *all;
  if (group.taken_out_by > grant_.epoch)  // PR6
    return error_fenced(
        "another compute node has taken the stream over and changed its storage "
        "nodes");
  addresses_ = std::make_unique<cluster::NodeAddresses>(registry_.get(), keys_);
  std::vector<transport::Address> nodes;
  std::vector<std::string> node_keys;
  for (const ReplicaNode& node : replicas_of(placement.generation, group).nodes) {
    nodes.push_back(node.address);
    node_keys.push_back(node.key);
  }
  STRATA_ASSIGN_OR_RETURN(
      control_, RegistryControl::open(registry_.get(), keys_, grant_, options_.call_timeout_us));
  QuorumLogOptions log;
  log.client.stream = stream();
  log.client.addresses = nodes;
  log.client.keys = node_keys;
  log.client.generation = placement.generation;
  log.client.quorum.replicas = static_cast<uint32_t>(group.nodes.size());
  log.client.quorum.write_quorum = group.write_quorum;
  log.client.channel.link_model = options_.link_model;
  log.client.channel.counters = counters_;
  const bool written = profile_->pages == PageOrigin::kWritten;
  if (!written) {
    gate_ = std::make_shared<BacklogGate>(
        nodes.size(), group.write_quorum, options_.replay_backlog_max,
        options_.role == ComputeRole::kOneOfSeveral ? kScanWeight : 0);
    log.gate = gate_;
  }
  log.holder = {grant_.epoch, grant_.epoch.value};
  log.founding = !control_->founded();
  log.first_lsn = kFirstLsn;
  log.give_up = options_.give_up_log;
  log.late_after_us = options_.log_late_after_us;
  const uint32_t needed = log.client.quorum.recovery_quorum();
  if (!addresses_->wait_for(group.nodes, needed, deadline_us))
    return error_peer_down("fewer than " + std::to_string(needed) + " of the " +
                           std::to_string(group.nodes.size()) +
                           " storage nodes are in the registry; start those that are missing");
  const uint64_t now_us = registry_->now_us();
  log.take_over_timeout_us =
      std::max<uint64_t>(deadline_us > now_us ? deadline_us - now_us : 0, options_.call_timeout_us);
  STRATA_ASSIGN_OR_RETURN(
      log_,
      QuorumLogSink::open({io_.loop(), &network_, transport::system_entropy()}, secret_, log));
  if (written && options_.role == ComputeRole::kOneOfSeveral)
    STRATA_RETURN_IF_ERROR(open_shared_pages(placement.generation, group));
  else if (written)
    STRATA_RETURN_IF_ERROR(open_written_pages(placement.generation, group, deadline_us));
  else
    open_replayed_pages(nodes, node_keys, group.write_quorum);
  if (!written && profile_->memory == MemoryTier::kPool) {
    STRATA_RETURN_IF_ERROR(find_memory(deadline_us));
    STRATA_RETURN_IF_ERROR(memory_->open(pages_.get(), !control_->founded()));
  }
  watch_placement(placement.generation);
  if (options_.role == ComputeRole::kWriter) watch_removals();
  return ok_status();
}

void ComputeNode::open_replayed_pages(const std::vector<transport::Address>& nodes,
                                      const std::vector<std::string>& keys, size_t write_quorum) {
  StoragePagesOptions pages;
  pages.stream = stream();
  pages.epoch = grant_.epoch;
  pages.addresses = nodes;
  pages.keys = keys;
  if (options_.role == ComputeRole::kOneOfSeveral) pages.write_quorum = write_quorum;
  pages.page_images = options_.page_images || profile_->images == PageImages::kNeeded;
  pages.given_up_max = options_.given_up_max;
  pages.gate = gate_;
  pages.spread_news = [log = log_.get()] { log->spread_news(); };
  pages.channel.link_model = options_.link_model;
  pages.channel.counters = counters_;
  pages.world = {io_.loop(), &network_, transport::system_entropy()};
  pages_ = std::make_unique<StoragePageSource>(secret_, pages);
}

// Log and pages follow it from here on.
void ComputeNode::watch_placement(uint64_t generation) {
  placement_generation_ = generation;
  say_followed(generation);
  topology_ = std::make_unique<cluster::Topology>(registry_.get(), keys_);
  placement_watch_ = topology_->watch_placement([this](const StatusOr<cluster::Placement>& now) {
    if (now.ok())
      follow_placement(*now);
    else
      diag(Severity::kError, "the placement cannot be read: %s", text(now.status()).c_str());
  });
}

// CM6
void ComputeNode::watch_removals() {
  NodeRemover::Parts parts{
      .registry = registry_.get(),
      .keys = keys_,
      .stream = stream(),
      .log = log_.get(),
      .pages = written_ != nullptr ? written_->nodes() : nullptr,
      .grant =
          [this] {
            return cluster::EpochGrant{stream(), log_->epoch(), control_->writer()};
          },
      .follow = [this](const auto& now) { follow_placement(now); },
      .call_timeout_us = options_.call_timeout_us,
      .prepare_timeout_us = options_.removal_timeout_us};
  remover_ = std::make_unique<NodeRemover>(std::move(parts));
}

Status ComputeNode::find_memory(uint64_t deadline_us) {
  RemoteMemory::Parts parts{
      .registry = registry_.get(),
      .keys = keys_,
      .grant =
          [this] {
            return cluster::EpochGrant{stream(), log_->epoch(), control_->writer()};
          },
      .addresses = addresses_.get(),
      .secret = secret_,
      .durable = [this] { return log_->durable_lsn(); },
      .link_model = options_.link_model,
      .counters = counters_,
      .call_timeout_us = options_.call_timeout_us,
      .pause = [this, deadline_us] { return pause(kPauseUsMin * 4, deadline_us); }};
  STRATA_ASSIGN_OR_RETURN(memory_, RemoteMemory::find(std::move(parts), options_.memory));
  return ok_status();
}

// What runs over the storage nodes first: it makes calls to them.
void ComputeNode::stop_pages() {
  if (shared_ != nullptr) shared_->stop();
  if (memory_ != nullptr && memory_->pages() != nullptr) memory_->pages()->stop();
  if (written_ != nullptr) written_->stop();
}

Status ComputeNode::open_shared_pages(uint64_t generation, const cluster::StorageGroup& group) {
  SharedPagesOptions pages;
  pages.stream = stream();
  pages.epoch = grant_.epoch;
  pages.replicas = replicas_of(generation, group);
  pages.page_images = options_.page_images || profile_->images == PageImages::kNeeded;
  pages.link_model = options_.link_model;
  pages.counters = counters_;
  cluster::InSyncNodes in_sync(registry_.get(), keys_);
  STRATA_ASSIGN_OR_RETURN(const auto list,
                          in_sync.read(cluster::kAuthorityStream, call_deadline()));
  shared_ = std::make_unique<SharedPages>(
      transport::World{io_.loop(), &network_, transport::system_entropy()}, secret_, pages);
  if (list.has_value()) shared_->follow_list(list->nodes);
  list_watch_ = in_sync.watch(cluster::kAuthorityStream, [this](const auto& now) {
    if (now.ok())
      shared_->follow_list(*now);
    else
      diag(Severity::kError, "which storage nodes have all pages cannot be read: %s",
           text(now.status()).c_str());
  });
  return ok_status();
}

Status ComputeNode::open_written_pages(uint64_t generation, const cluster::StorageGroup& group,
                                       uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(
      in_sync_, InSyncSet::open(registry_.get(), keys_, grant_, options_.call_timeout_us));
  WrittenPagesOptions pages;
  pages.page_images = options_.page_images || profile_->images == PageImages::kNeeded;
  pages.nodes.stream = stream();
  pages.nodes.epoch = grant_.epoch;
  pages.nodes.write_quorum = group.write_quorum;
  pages.nodes.generation = generation;
  pages.nodes.founding = !control_->founded();
  pages.nodes.link_model = options_.link_model;
  pages.nodes.counters = counters_;
  for (const std::string& name : group.nodes)
    pages.nodes.nodes.push_back(
        {name, transport::Address([this, name] { return addresses_->address_of(name); })});
  if (profile_->memory == MemoryTier::kPool) {
    STRATA_RETURN_IF_ERROR(find_memory(deadline_us));
    pages.nodes.write_again = memory_->write_again();
  }
  STRATA_ASSIGN_OR_RETURN(
      written_, WrittenPageSource::open({io_.loop(), &network_, transport::system_entropy()},
                                        secret_, pages, in_sync_.get()));
  return memory_ == nullptr ? ok_status() : memory_->open(written_.get(), !control_->founded());
}

// --- the lease --------------------------------------------------------------------------------

void ComputeNode::keep_lease() {
  name_this_thread("lease-keeper");
  for (uint64_t pause_us = kPauseUsMin;;) {
    {
      MutexLock lock(mutex_);
      changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) {
        return stopped_ || (lease_lost_ && fenced_.ok());
      });
      if (stopped_) return;
    }
    const Status status = replace_lease();
    if (status.ok()) {
      diag(Severity::kInfo, "the registry has given this node a new lease: it goes on");
      pause_us = kPauseUsMin;
      continue;
    }
    if (ends_right(status)) {
      diag(Severity::kError, "%s: %s", text(status).c_str(), end_of_it());
      continue;
    }
    diag(Severity::kWarning, "the lease is lost and nothing is answered until there is another: %s",
         text(status).c_str());
    if (!pause(pause_us, UINT64_MAX)) return;
    pause_us = std::min(2 * pause_us, kPauseUsMax);
  }
}

Status ComputeNode::replace_lease() {
  {
    const MutexLock lock(mutex_);
    lease_lost_ = false;  // the next one may be lost before this returns
  }
  const uint64_t deadline_us = registry_->now_us() + options_.call_timeout_us;
  auto lease = new_lease(deadline_us);
  if (options_.role == ComputeRole::kReader && lease.ok()) {  // nobody waits for a reader's to end
    lease_.store(lease->get(), std::memory_order_release);
    leases_.push_back(*std::move(lease));
    return ok_status();
  }
  const auto grant =
      lease.ok() ? cluster::StreamEpochs(registry_.get(), keys_).renew(grant_, **lease, deadline_us)
                 : StatusOr<cluster::EpochGrant>(lease.status());
  if (grant.ok()) {
    grant_ = *grant;
    control_->set_writer(grant->writer);
    if (in_sync_ != nullptr) in_sync_->set_writer(grant->writer);
    lease_.store(lease->get(), std::memory_order_release);
    leases_.push_back(*std::move(lease));
    return ok_status();
  }
  const bool taken_over = ends_right(grant.status());
  const MutexLock lock(mutex_);
  lease_lost_ = true;
  if (taken_over) fenced_ = grant.status();
  return grant.status();  // also lease_lost: that one was, too
}

// Replies to page reads tell the backlogs, too; a node that only writes has to ask.
void ComputeNode::watch_backlogs() {
  name_this_thread("backlog-watcher");
  for (Lsn asked_at;;) {
    {
      MutexLock lock(mutex_);
      if (changed_.wait_for_us(lock, kBacklogLookUs,
                               [this]() STRATA_REQUIRES(mutex_) { return stopped_; }))
        return;
    }
    const Lsn durable = log_->durable_lsn();
    if (durable == asked_at && !gate_->closed()) continue;  // an idle node asks nothing
    asked_at = durable;
    pages_->ask_backlogs();
  }
}

// CM10. A control record is published before anything on the place counts.
Status ComputeNode::give_up() {
  stop_keeping();
  options_.membership.leave();
  cluster::Places places(registry_.get(), keys_);
  const bool unused = !adopts() && place_is_new_ && (control_ == nullptr || !control_->founded());
  const bool moved_in = !place_.version.is_zero() && !grant_.epoch.is_zero();
  Status given_back;
  if (!fresh_place_.version.is_zero())
    given_back = places.give_back_unused(fresh_place_, call_deadline());
  else if (unused && moved_in)
    given_back = places.give_back(place_, grant_, call_deadline());
  const Status left = leave();
  return given_back.ok() ? left : given_back;
}

void ComputeNode::stop_keeping() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  if (keeper_.joinable()) keeper_.join();
  if (watcher_.joinable()) watcher_.join();
}

Status ComputeNode::settle() {
  stop_keeping();  // the lease, and so the grant, is the keeper's
  cluster::Places places(registry_.get(), keys_);
  STRATA_ASSIGN_OR_RETURN(place_, places.settle(place_, !after_adopter_, grant_, call_deadline()));
  return ok_status();
}

Status ComputeNode::leave() {
  stop_keeping();
  epoch_watch_.reset();  // who comes next is let in
  list_watch_.reset();
  remover_.reset();
  stop_pages();  // they change the registry as long as they run
  const uint64_t deadline_us = registry_->now_us() + options_.call_timeout_us;
  held_versions_.reset();
  if (leases_.empty()) return ok_status();  // it has never held anything
  const Status released =
      options_.role == ComputeRole::kReader || grant_.epoch.is_zero()
          ? ok_status()
          : cluster::StreamEpochs(registry_.get(), keys_).release(grant_, deadline_us);
  const Status revoked = leases_.back()->revoke(deadline_us);
  return released.ok() ? revoked : released;
}

Status ComputeNode::why_silent() const {
  if (may_answer()) return ok_status();
  const MutexLock lock(mutex_);
  if (!fenced_.ok())
    return error_fenced("this node is not the database's writer any more (" + text(fenced_) +
                        ") and answers nothing; to do: stop it, and connect to the one that is");
  if (options_.role == ComputeRole::kReader)
    return error_lease_lost(
        "this node has lost its lease in the registry, so that it does not hear of changes; to do: "
        "wait, it answers again when the registry has given it another lease; if that takes long, "
        "look at the registry");
  if (options_.role == ComputeRole::kOneOfSeveral)
    return error_lease_lost(
        "this server has lost its lease in the registry; it goes on as long as the memory node "
        "gives it one; to do: look at the registry, without which no server can join");
  return error_lease_lost(
      "this node has lost its lease in the registry, so that another one may have become the "
      "database's writer; to do: wait, it answers again when the registry has given it another "
      "lease; if that takes long, look at the registry");
}

Status ComputeNode::trouble() const {
  STRATA_RETURN_IF_ERROR(why_silent());
  {
    const MutexLock lock(mutex_);
    STRATA_RETURN_IF_ERROR(placement_);
  }
  if (held_versions_ != nullptr) return held_versions_->state();
  STRATA_RETURN_IF_ERROR(log_->state());
  if (written_ != nullptr) STRATA_RETURN_IF_ERROR(written_->nodes()->ended());
  if (memory_ != nullptr) STRATA_RETURN_IF_ERROR(memory_->pages()->ended());
  STRATA_RETURN_IF_ERROR(log_->late());
  return log_->check_usable();  // of the others there are enough
}

ComputeNode::Facts ComputeNode::facts() const {
  Facts facts;
  facts.holds_lease = may_answer();
  facts.placement_generation = placement_generation_;
  if (options_.role == ComputeRole::kReader) {
    facts.epoch = writers_->newest();
    add_replayed(&facts);
    return facts;
  }
  facts.epoch = log_->epoch();
  facts.durable = log_->durable_lsn();
  const Status log = log_->state();
  {
    const MutexLock lock(mutex_);
    facts.fenced = !log.ok() ? text(log) : text(fenced_);
  }
  if (shared_ != nullptr)
    add_shared(&facts);
  else if (written_ != nullptr)
    add_written(&facts);
  else
    add_replayed(&facts);
  const transport::MethodCounters& appends = counters_->of(proto::kLogAppend);
  facts.log_calls = appends.operations;
  facts.log_bytes_sent = appends.bytes_out;
  for (const QuorumClient::ReplicaStatus& replica : log_->replicas()) {
    ++facts.replicas;
    facts.replicas_reached += replica.log.durable >= facts.durable ? 1 : 0;
  }
  return facts;
}

void ComputeNode::add_shared(Facts* facts) const {
  add_reads(shared_->counters(), facts);
  facts->page_nodes = facts->replicas;
  facts->page_nodes_in_sync = static_cast<uint32_t>(shared_->nodes_listed());
}

void ComputeNode::add_replayed(Facts* facts) const {
  const StoragePageSource::Counters& pages = pages_->counters();
  add_reads(pages, facts);
  facts->replay_backlog_bytes = pages_->backlog_bytes();
  if (gate_ == nullptr) return;
  facts->backpressure = gate_->closed();
  facts->backpressure_waits = gate_->counters().waits;
  facts->backpressure_wait_us = gate_->counters().wait_us;
}

void ComputeNode::add_written(Facts* facts) const {
  const WrittenPageSource::Counters& pages = written_->counters();
  add_reads(pages, facts);
  facts->pages_written = pages.pages_written;
  facts->page_write_calls = pages.write_calls;
  facts->page_write_errors = pages.write_errors;
  facts->pages_repaired = pages.repaired;
  facts->page_bytes_written = counters_->of(proto::kWritePages).bytes_out;
  facts->page_writes_ended = !written_->nodes()->ended().ok();
  for (const WrittenNodes::NodeState& node : written_->nodes()->states()) {
    ++facts->page_nodes;
    facts->page_nodes_in_sync += node.in_sync ? 1 : 0;
  }
}

}  // namespace strata::clients
