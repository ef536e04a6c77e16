#include "clients/storage/in_sync_set.h"

namespace strata::clients {

StatusOr<std::unique_ptr<InSyncSet>> InSyncSet::open(registry::Registry* registry,
                                                     cluster::ClusterKeys keys,
                                                     const cluster::EpochGrant& grant,
                                                     uint64_t timeout_us) {
  auto set =
      std::unique_ptr<InSyncSet>(new InSyncSet(registry, std::move(keys), grant, timeout_us));
  STRATA_RETURN_IF_ERROR(set->read());
  return set;
}

Status InSyncSet::read() {
  auto read = records_.read(grant_.stream, deadline());
  if (!read.ok()) return read.status();
  nodes_.clear();
  version_ = {};
  if (!read->has_value()) return ok_status();
  nodes_ = (*read)->nodes;
  version_ = (*read)->version;
  return ok_status();
}

// IY1: a change that may still come expects the version before it; this one, at whatever version
// there is now, makes it void.
Status InSyncSet::publish(const std::vector<cluster::InSyncNode>& nodes) {
  if (in_doubt_)
    STRATA_RETURN_IF_ERROR(read());
  else if (nodes == nodes_)
    return ok_status();
  in_doubt_ = true;
  const auto published =
      records_.publish(grant_.stream, grant().writer, version_, nodes, deadline());
  if (is_conflict(published.status())) return epochs_.why_refused(grant(), deadline());
  if (!published.ok()) return published.status();
  in_doubt_ = false;
  version_ = *published;
  nodes_ = nodes;
  return ok_status();
}

}  // namespace strata::clients
