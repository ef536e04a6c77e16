#include "clients/compute/remote_memory.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/diag.h"
#include "cluster/membership.h"
#include "page/page.h"

namespace strata::clients {

namespace {

// Empty: there is none.
StatusOr<std::string> first_memory_node(cluster::Membership* members, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<cluster::Member> all, members->list(deadline_us));
  std::string first;
  for (const cluster::Member& member : all)
    if (member.role == cluster::Role::kMemory && (first.empty() || member.name < first))
      first = member.name;
  return first;
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

// --- the name ---

RegistryPoolNaming::RegistryPoolNaming(registry::Registry* registry,
                                       const cluster::ClusterKeys& keys,
                                       std::function<cluster::EpochGrant()> grant, std::string node,
                                       uint64_t timeout_us)
    : registry_(registry),
      pools_(registry, keys),
      epochs_(registry, keys),
      grant_(std::move(grant)),
      node_(std::move(node)),
      timeout_us_(timeout_us) {}

Status RegistryPoolNaming::read() {
  if (!in_doubt_) return ok_status();
  STRATA_ASSIGN_OR_RETURN(found_, pools_.read(grant_().stream, deadline()));
  in_doubt_ = false;
  return ok_status();
}

// A conflict: somebody else has the stream, or nobody knows what there is.
Status RegistryPoolNaming::refused(const Status& status) {
  in_doubt_ = true;
  return is_conflict(status) ? epochs_.why_refused(grant_(), deadline()) : status;
}

StatusOr<std::optional<uint64_t>> RegistryPoolNaming::named() {
  in_doubt_ = true;
  STRATA_RETURN_IF_ERROR(read());
  if (!found_.has_value()) return std::optional<uint64_t>();
  if (found_->pool.node == node_) return std::optional<uint64_t>(found_->pool.incarnation);
  diag(Severity::kWarning,
       "memory node %s had this database's pages, %s is to be used: its pool is given up",
       found_->pool.node.c_str(), node_.c_str());
  STRATA_RETURN_IF_ERROR(remove());  // RM1
  return std::optional<uint64_t>();
}

Status RegistryPoolNaming::name(uint64_t incarnation) {
  STRATA_RETURN_IF_ERROR(read());
  const cluster::EpochGrant grant = grant_();
  const cluster::MemoryPool pool{node_, incarnation};
  const auto published =
      pools_.publish(grant.stream, grant.writer,
                     found_.has_value() ? found_->version : registry::Version{}, pool, deadline());
  if (!published.ok()) return refused(published.status());
  found_ = cluster::PublishedPool{pool, *published};
  return ok_status();
}

Status RegistryPoolNaming::remove() {
  STRATA_RETURN_IF_ERROR(read());
  if (!found_.has_value()) return ok_status();
  const cluster::EpochGrant grant = grant_();
  const Status removed = pools_.remove(grant.stream, grant.writer, found_->version, deadline());
  if (!removed.ok()) return refused(removed);
  found_.reset();
  return ok_status();
}

// --- the memory ---

StatusOr<std::unique_ptr<RemoteMemory>> RemoteMemory::find(Parts parts,
                                                           const RemoteMemoryOptions& options) {
  std::string node = options.node;
  cluster::MemoryPools pools(parts.registry, parts.keys);
  cluster::Membership members(parts.registry, parts.keys);
  while (node.empty()) {
    const uint64_t deadline_us = parts.registry->now_us() + parts.call_timeout_us;
    STRATA_ASSIGN_OR_RETURN(const auto named, pools.read(parts.grant().stream, deadline_us));
    if (named.has_value()) node = named->pool.node;
    if (node.empty()) {
      STRATA_ASSIGN_OR_RETURN(node, first_memory_node(&members, deadline_us));
    }
    if (!node.empty()) break;
    if (!parts.pause())
      return error_peer_down(
          "no memory node is in the registry; to do: start one, or set strata_lego_memnode to the "
          "name of the one that will be there");
  }
  return std::unique_ptr<RemoteMemory>(
      new RemoteMemory(std::move(parts), options, std::move(node)));
}

RemoteMemory::RemoteMemory(Parts parts, const RemoteMemoryOptions& options, std::string node)
    : parts_(std::move(parts)),
      options_(options),
      node_(std::move(node)),
      naming_(parts_.registry, parts_.keys, parts_.grant, node_, parts_.call_timeout_us),
      client_(parts_.secret,
              transport::Address([this] { return parts_.addresses->address_of(node_); }),
              client_options(parts_, options_)) {}

std::function<DelegateAnswer(const DelegateTarget&)> RemoteMemory::write_again() {
  return [this](const DelegateTarget& target) { return storage_.write_again(target); };
}

Status RemoteMemory::open(WrittenPageSource* storage, bool founding) {
  storage_.use(storage);
  if (founding) {
    STRATA_RETURN_IF_ERROR(naming_.named().status());
    STRATA_RETURN_IF_ERROR(naming_.remove());
  }
  MemoryPagesOptions pages;
  pages.durable = parts_.durable;
  pages.free_slots = options_.free_slots;
  pages.timeout_us = options_.timeout_us;
  pages.remote_addresses = options_.remote_addresses;
  STRATA_ASSIGN_OR_RETURN(pages_, MemoryPageSource::open(pages, &client_, &naming_, &storage_));
  return ok_status();
}

}  // namespace strata::clients
