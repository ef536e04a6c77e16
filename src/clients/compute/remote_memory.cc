#include "clients/compute/remote_memory.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/diag.h"
#include "cluster/membership.h"
#include "page/page.h"

namespace strata::clients {

namespace {

// By name.
StatusOr<std::vector<std::string>> memory_nodes(cluster::Membership* members,
                                                uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<cluster::Member> all, members->list(deadline_us));
  std::vector<std::string> names;
  for (const cluster::Member& member : all)
    if (member.role == cluster::Role::kMemory) names.push_back(member.name);
  std::sort(names.begin(), names.end());
  return names;
}

// As strata_lego_memnode says it.
std::vector<std::string> names_of(const cluster::MemoryPoolSet& set) {
  std::vector<std::string> names;
  for (const cluster::MemoryPool& pool : set.pools) {
    names.push_back(pool.node);
    if (!pool.backup.empty()) names.push_back(pool.backup);
  }
  return names;
}

StatusOr<RegistryPoolNaming::Nodes> by_place(const std::vector<std::string>& names, bool backup) {
  if (backup && names.size() % 2 != 0)
    return error_invalid_argument("strata_lego_backup wants two memory nodes, or four and so on: " +
                                  std::to_string(names.size()) + " are to be used");
  RegistryPoolNaming::Nodes nodes;
  for (size_t i = 0; i < names.size(); ++i)
    if (backup && i % 2 != 0)
      nodes.back().push_back(names[i]);
    else
      nodes.push_back({names[i]});
  return nodes;
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

PoolClientOptions client_options(const RemoteMemory::Parts& parts,
                                 const RemoteMemoryOptions& options) {
  PoolClientOptions client;
  const cluster::EpochGrant grant = parts.grant();
  client.stream = grant.stream;
  client.epoch = grant.epoch;
  client.token = options.token;
  client.slots_max =
      static_cast<uint32_t>(std::min<uint64_t>(options.pool_bytes / kPageBytes, UINT32_MAX));
  client.call_timeout_us = std::max<uint64_t>(options.timeout_us / 2, 1'000'000);
  if (!options.pull) client.places = 0;
  client.write_timeout_us = options.timeout_us + 1'000'000;
  client.link_model = parts.link_model;
  client.counters = parts.counters;
  return client;
}

}  // namespace

// --- the names ---

class RegistryPoolNaming::Member final : public CopiesNaming {
 public:
  Member(RegistryPoolNaming* of, size_t place) : of_(of), place_(place) {}
  StatusOr<std::optional<NamedCopies>> named() override { return of_->named(place_); }
  Status name(const NamedCopies& copies) override {
    return of_->change(place_, copies, PoolLoss::kNothing);
  }
  Status remove(PoolLoss loss) override { return of_->change(place_, {}, loss); }
  [[nodiscard]] Epoch since() const override { return Epoch{of_->since_.load()}; }

 private:
  RegistryPoolNaming* const of_;
  const size_t place_;
};

class RegistryPoolNaming::Single final : public PoolNaming {
 public:
  explicit Single(Member* member) : member_(*member) {}
  StatusOr<std::optional<uint64_t>> named() override {
    STRATA_ASSIGN_OR_RETURN(const std::optional<NamedCopies> found, member_.named());
    return found.has_value() ? std::optional(found->incarnations[0]) : std::nullopt;
  }
  Status name(uint64_t incarnation) override { return member_.name({0, {incarnation, 0}}); }
  Status remove(PoolLoss loss) override { return member_.remove(loss); }
  [[nodiscard]] Epoch since() const override { return member_.since(); }

 private:
  Member& member_;
};

class RegistryPoolNaming::Turn {
 public:
  explicit Turn(RegistryPoolNaming* of) : of_(of) {
    MutexLock lock(of_->mutex_);
    of_->ended_.wait(lock, [of]() STRATA_REQUIRES(of->mutex_) { return !of->busy_; });
    of_->busy_ = true;
  }
  ~Turn() {
    const MutexLock lock(of_->mutex_);
    of_->busy_ = false;
    of_->ended_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  RegistryPoolNaming* const of_;
};

RegistryPoolNaming::RegistryPoolNaming(registry::Registry* registry,
                                       const cluster::ClusterKeys& keys,
                                       std::function<cluster::EpochGrant()> grant, Nodes nodes,
                                       uint64_t timeout_us)
    : registry_(registry),
      pools_(registry, keys),
      epochs_(registry, keys),
      grant_(std::move(grant)),
      nodes_(std::move(nodes)),
      timeout_us_(timeout_us) {
  for (size_t i = 0; i < nodes_.size(); ++i) members_.push_back(std::make_unique<Member>(this, i));
}

RegistryPoolNaming::~RegistryPoolNaming() = default;

PoolNaming* RegistryPoolNaming::of(size_t place) const { return singles_[place].get(); }
CopiesNaming* RegistryPoolNaming::copies_of(size_t place) const { return members_[place].get(); }

// Which one of two copies is used changes.
bool RegistryPoolNaming::are_mine(const cluster::MemoryPoolSet& set) const {
  if (set.pools.size() != nodes_.size()) return false;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    std::vector<std::string> there = {set.pools[i].node};
    if (!set.pools[i].backup.empty()) there.push_back(set.pools[i].backup);
    if (!std::is_permutation(there.begin(), there.end(), nodes_[i].begin(), nodes_[i].end()))
      return false;
  }
  return true;
}

Status RegistryPoolNaming::read() {
  if (!in_doubt_) return ok_status();
  STRATA_ASSIGN_OR_RETURN(found_, pools_.read(grant_().stream, deadline()));
  in_doubt_ = false;
  if (!found_.has_value()) return ok_status();
  since_.store(std::max(since_.load(), found_->set.since.value));
  if (are_mine(found_->set)) return ok_status();
  std::vector<std::string> mine;
  for (const auto& nodes : nodes_) mine.insert(mine.end(), nodes.begin(), nodes.end());
  diag(Severity::kWarning,
       "memory nodes %s had this database's pages, %s are to be used: those pools are given up",
       joined(names_of(found_->set)).c_str(), joined(mine).c_str());
  return remove();  // RM1
}

// A conflict: somebody else has the stream, or nobody knows what there is.
Status RegistryPoolNaming::refused(const Status& status) {
  in_doubt_ = true;
  return is_conflict(status) ? epochs_.why_refused(grant_(), deadline()) : status;
}

Status RegistryPoolNaming::publish(const cluster::MemoryPoolSet& set) {
  const cluster::EpochGrant grant = grant_();
  const auto published =
      pools_.publish(grant.stream, grant.writer,
                     found_.has_value() ? found_->version : registry::Version{}, set, deadline());
  if (!published.ok()) return refused(published.status());
  found_ = cluster::PublishedPools{set, *published};
  since_.store(set.since.value);
  return ok_status();
}

Status RegistryPoolNaming::remove() {
  if (!found_.has_value()) return ok_status();
  const cluster::EpochGrant grant = grant_();
  const Status removed = pools_.remove(grant.stream, grant.writer, found_->version, deadline());
  if (!removed.ok()) return refused(removed);
  found_.reset();
  return ok_status();
}

Status RegistryPoolNaming::remove_all() {
  const Turn turn(this);
  STRATA_RETURN_IF_ERROR(read());
  return remove();
}

StatusOr<std::optional<NamedCopies>> RegistryPoolNaming::named(size_t place) {
  const Turn turn(this);
  in_doubt_ = true;
  STRATA_RETURN_IF_ERROR(read());
  if (!found_.has_value() || found_->set.pools[place].incarnation == 0)
    return std::optional<NamedCopies>();
  const cluster::MemoryPool& pool = found_->set.pools[place];
  NamedCopies copies;
  copies.used = pool.node == nodes_[place][0] ? 0 : 1;
  copies.incarnations[copies.used] = pool.incarnation;
  copies.incarnations[1 - copies.used] = pool.backup_incarnation;
  return std::optional<NamedCopies>(copies);
}

// Of one of them. Without any the record goes: no page's place matters.
Status RegistryPoolNaming::change(size_t place, const NamedCopies& copies, PoolLoss loss) {
  const Turn turn(this);
  STRATA_RETURN_IF_ERROR(read());
  cluster::MemoryPoolSet set;
  if (found_.has_value()) set = found_->set;
  set.pools.resize(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!set.pools[i].node.empty()) continue;
    set.pools[i].node = nodes_[i][0];
    if (nodes_[i].size() > 1) set.pools[i].backup = nodes_[i][1];
  }
  cluster::MemoryPool pool;
  pool.node = nodes_[place][copies.used];
  pool.incarnation = copies.incarnations[copies.used];
  if (nodes_[place].size() > 1) {
    pool.backup = nodes_[place][1 - copies.used];
    pool.backup_incarnation = copies.incarnations[1 - copies.used];
  }
  if (loss == PoolLoss::kUnknown && set.pools[place].incarnation != 0)
    set.since = grant_().epoch;  // MPR4
  set.pools[place] = pool;
  if (found_.has_value() && set == found_->set) return ok_status();
  const bool any = std::any_of(set.pools.begin(), set.pools.end(),
                               [](const auto& one) { return one.incarnation != 0; });
  return any ? publish(set) : remove();
}

// --- the memory ---

StatusOr<std::unique_ptr<RemoteMemory>> RemoteMemory::find(Parts parts,
                                                           const RemoteMemoryOptions& options) {
  std::vector<std::string> nodes = options.nodes;
  cluster::MemoryPools pools(parts.registry, parts.keys);
  cluster::Membership members(parts.registry, parts.keys);
  while (nodes.empty()) {
    const uint64_t deadline_us = parts.registry->now_us() + parts.call_timeout_us;
    STRATA_ASSIGN_OR_RETURN(const auto named, pools.read(parts.grant().stream, deadline_us));
    if (named.has_value()) nodes = names_of(named->set);
    if (!nodes.empty()) break;
    STRATA_ASSIGN_OR_RETURN(nodes, memory_nodes(&members, deadline_us));
    if (nodes.size() > options.nodes_max) nodes.resize(options.nodes_max);
    if (nodes.size() >= (options.backup ? 2 : 1)) break;
    nodes.clear();
    if (!parts.pause())
      return error_peer_down(
          "no memory node is in the registry; to do: start one, or set strata_lego_memnode to the "
          "name of the one that will be there");
  }
  STRATA_ASSIGN_OR_RETURN(const RegistryPoolNaming::Nodes places, by_place(nodes, options.backup));
  return std::unique_ptr<RemoteMemory>(new RemoteMemory(std::move(parts), options, places));
}

RemoteMemory::RemoteMemory(Parts parts, const RemoteMemoryOptions& options,
                           const RegistryPoolNaming::Nodes& nodes)
    : parts_(std::move(parts)),
      options_(options),
      naming_(parts_.registry, parts_.keys, parts_.grant, nodes, parts_.call_timeout_us) {
  for (size_t place = 0; place < nodes.size(); ++place) {
    for (const std::string& node : nodes[place])
      clients_.push_back(std::make_unique<PoolClient>(
          parts_.secret,
          transport::Address([this, node] { return parts_.addresses->address_of(node); }),
          client_options(parts_, options_)));
    if (!options_.backup) continue;
    MirrorOptions mirror;
    mirror.durable = parts_.durable;
    mirror.timeout_us = options_.timeout_us;
    mirrors_.push_back(std::make_unique<MirroredPool>(
        mirror,
        std::array<RemotePool*, 2>{clients_[2 * place].get(), clients_[2 * place + 1].get()},
        naming_.copies_of(place)));
  }
}

RemoteMemory::Backups RemoteMemory::backups() const {
  Backups backups;
  for (const auto& mirror : mirrors_) {
    backups.whole += mirror->backup() == MirroredPool::Backup::kCounts;
    backups.switches += mirror->switches();
  }
  return backups;
}

std::function<DelegateAnswer(const DelegateTarget&)> RemoteMemory::write_again() {
  return [this](const DelegateTarget& target) { return storage_.write_again(target); };
}

Status RemoteMemory::open(WrittenPageSource* storage, bool founding) {
  storage_.use(storage);
  if (founding) STRATA_RETURN_IF_ERROR(naming_.remove_all());
  MemoryPagesOptions pages;
  pages.durable = parts_.durable;
  pages.free_slots = options_.free_slots;
  pages.timeout_us = options_.timeout_us;
  pages.remote_addresses = options_.remote_addresses;
  std::vector<PoolSet::Member> members;
  if (options_.backup) {
    for (const auto& mirror : mirrors_) members.push_back({mirror.get(), mirror->naming()});
  } else {
    for (size_t i = 0; i < clients_.size(); ++i)
      members.push_back({clients_[i].get(), naming_.of(i)});
  }
  STRATA_ASSIGN_OR_RETURN(pages_, PoolSet::open(pages, members, &storage_));
  return ok_status();
}

}  // namespace strata::clients
