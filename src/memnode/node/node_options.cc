#include "memnode/node/node_options.h"

#include "cluster/keys.h"
#include "page/page.h"
#include "proto/fusion.h"
#include "registry/registry.h"
#include "transport/regions/fabric_server.h"

namespace strata::memnode {

const daemon::FolderKind kNodeFolder{
    .what = "memory node",
    .format = 1,
    .is_name = cluster::is_name,
    .remedy_of_damage =
        "start with an empty folder; what compute nodes keep here is in storage and in their log",
    .of_one_database = false};

std::string transport_address(std::string_view address) {
  if (address.starts_with("unix:") || address.starts_with("tcp:")) return std::string(address);
  return "tcp:" + std::string(address);
}

namespace {

// Of so many servers, at least, transactions have to have room, too.
constexpr uint64_t kServersMin = 3;

// MY7. It is the same for one that serves at once and for one that waits to.
Status check_fusion(const NodeOptions& options) {
  const FusionServiceOptions& service = options.fusion.service;
  if (service.pages.slots == 0) return ok_status();
  const uint64_t bytes = uint64_t{service.pages.slots} * kPageBytes +
                         kServersMin * service.table_slots * sizeof(proto::TitSlot);
  if (bytes > options.memory_bytes)
    return error_invalid_argument("the pages that servers share, and their transactions, need " +
                                  std::to_string(bytes) + " bytes, and the node has " +
                                  std::to_string(options.memory_bytes) +
                                  " bytes of memory; to do: raise the one, or lower the other");
  if (options.tenants.empty()) return ok_status();  // or their tokens have not been read yet
  for (const TenantOptions& tenant : options.tenants)
    if (tenant.name == options.fusion_tenant) return ok_status();
  return error_invalid_argument("the pages that servers share are one tenant's; to do: name it");
}

}  // namespace

Status check_options(const NodeOptions& options) {
  STRATA_RETURN_IF_ERROR(cluster::check_name("node", options.name));
  STRATA_RETURN_IF_ERROR(cluster::check_name("cluster", options.cluster));
  if (options.directory.empty()) return error_invalid_argument("a memory node needs a data folder");
  if (options.listen.empty())
    return error_invalid_argument("a memory node needs an address to listen on");
  if (options.lease_s == 0 || options.lease_s > registry::kLeaseSecondsMax)
    return error_invalid_argument("a lease lasts 1 to " +
                                  std::to_string(registry::kLeaseSecondsMax) + " seconds");
  if (options.workers == 0 || options.workers > 256)
    return error_invalid_argument("a memory node has 1 to 256 workers");
  if (options.memory_bytes == 0) return error_invalid_argument("a memory node needs memory");
  if (!options.fabric.empty() && !transport::fabric_is_built())
    return error_invalid_argument(
        "this program was built without libfabric, so it has no fabric; to do: leave that out");
  for (const TenantOptions& tenant : options.tenants)
    STRATA_RETURN_IF_ERROR(cluster::check_name("tenant", tenant.name));
  STRATA_RETURN_IF_ERROR(check_fusion(options));
  return Tenants::check(options.tenants, options.memory_bytes);
}

}  // namespace strata::memnode
