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

std::vector<std::string> names_of(const cluster::MemoryPoolSet& set) {
  std::vector<std::string> names;
  for (const cluster::MemoryPool& pool : set.pools) names.push_back(pool.node);
  return names;
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
  client.write_timeout_us = options.timeout_us + 1'000'000;
  client.link_model = parts.link_model;
  client.counters = parts.counters;
  return client;
}

}  // namespace

// --- the names ---

class RegistryPoolNaming::Member final : public PoolNaming {
 public:
  Member(RegistryPoolNaming* of, size_t place) : of_(of), place_(place) {}
  StatusOr<std::optional<uint64_t>> named() override { return of_->named(place_); }
  Status name(uint64_t incarnation) override {
    return of_->change(place_, incarnation, PoolLoss::kNothing);
  }
  Status remove(PoolLoss loss) override { return of_->change(place_, 0, loss); }
  [[nodiscard]] Epoch since() const override { return Epoch{of_->since_.load()}; }

 private:
  RegistryPoolNaming* const of_;
  const size_t place_;
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
                                       std::function<cluster::EpochGrant()> grant,
                                       std::vector<std::string> nodes, uint64_t timeout_us)
    : registry_(registry),
      pools_(registry, keys),
      epochs_(registry, keys),
      grant_(std::move(grant)),
      nodes_(std::move(nodes)),
      timeout_us_(timeout_us) {
  for (size_t i = 0; i < nodes_.size(); ++i) members_.push_back(std::make_unique<Member>(this, i));
}

RegistryPoolNaming::~RegistryPoolNaming() = default;

PoolNaming* RegistryPoolNaming::of(size_t place) const { return members_[place].get(); }

Status RegistryPoolNaming::read() {
  if (!in_doubt_) return ok_status();
  STRATA_ASSIGN_OR_RETURN(found_, pools_.read(grant_().stream, deadline()));
  in_doubt_ = false;
  if (!found_.has_value()) return ok_status();
  since_.store(std::max(since_.load(), found_->set.since.value));
  const std::vector<std::string> there = names_of(found_->set);
  if (there == nodes_) return ok_status();
  diag(Severity::kWarning,
       "memory nodes %s had this database's pages, %s are to be used: those pools are given up",
       joined(there).c_str(), joined(nodes_).c_str());
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

StatusOr<std::optional<uint64_t>> RegistryPoolNaming::named(size_t place) {
  const Turn turn(this);
  in_doubt_ = true;
  STRATA_RETURN_IF_ERROR(read());
  if (!found_.has_value() || found_->set.pools[place].incarnation == 0)
    return std::optional<uint64_t>();
  return std::optional<uint64_t>(found_->set.pools[place].incarnation);
}

// Of one of them; 0: nothing of it counts. Without any the record goes: no page's place matters.
Status RegistryPoolNaming::change(size_t place, uint64_t incarnation, PoolLoss loss) {
  const Turn turn(this);
  STRATA_RETURN_IF_ERROR(read());
  cluster::MemoryPoolSet set;
  if (found_.has_value()) set = found_->set;
  set.pools.resize(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) set.pools[i].node = nodes_[i];
  if (set.pools[place].incarnation == incarnation) return ok_status();
  set.pools[place].incarnation = incarnation;
  if (loss == PoolLoss::kUnknown) set.since = grant_().epoch;  // MPR4
  const bool any = std::any_of(set.pools.begin(), set.pools.end(),
                               [](const auto& pool) { return pool.incarnation != 0; });
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
    if (!nodes.empty()) break;
    if (!parts.pause())
      return error_peer_down(
          "no memory node is in the registry; to do: start one, or set strata_lego_memnode to the "
          "name of the one that will be there");
  }
  return std::unique_ptr<RemoteMemory>(new RemoteMemory(std::move(parts), options, nodes));
}

RemoteMemory::RemoteMemory(Parts parts, const RemoteMemoryOptions& options,
                           const std::vector<std::string>& nodes)
    : parts_(std::move(parts)),
      options_(options),
      naming_(parts_.registry, parts_.keys, parts_.grant, nodes, parts_.call_timeout_us) {
  for (const std::string& node : nodes)
    clients_.push_back(std::make_unique<PoolClient>(parts_.secret, transport::Address([this, node] {
                                                      return parts_.addresses->address_of(node);
                                                    }),
                                                    client_options(parts_, options_)));
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
  for (size_t i = 0; i < clients_.size(); ++i)
    members.push_back({clients_[i].get(), naming_.of(i)});
  STRATA_ASSIGN_OR_RETURN(pages_, PoolSet::open(pages, members, &storage_));
  return ok_status();
}

}  // namespace strata::clients
