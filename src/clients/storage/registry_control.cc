#include "clients/storage/registry_control.h"

#include <optional>

namespace strata::clients {

namespace {

cluster::LogCheckpoint to_record(const ControlData& data) {
  return {data.database_id,    data.profile,   data.data_format,      data.page_bytes,    data.node,
          data.checkpoint_lsn, data.llsn_bias, data.checkpoint_count, data.clean_shutdown};
}

ControlData from_record(const cluster::LogCheckpoint& record) {
  ControlData data;
  data.database_id = record.database_id;
  data.data_format = record.data_format;
  data.page_bytes = record.page_bytes;
  data.profile = record.profile;
  data.node = record.node;
  data.checkpoint_lsn = record.lsn;
  data.llsn_bias = record.llsn_bias;
  data.checkpoint_count = record.count;
  data.clean_shutdown = record.clean_shutdown;
  return data;
}

}  // namespace

StatusOr<std::unique_ptr<RegistryControl>> RegistryControl::open(registry::Registry* registry,
                                                                 cluster::ClusterKeys keys,
                                                                 const cluster::EpochGrant& grant,
                                                                 uint64_t timeout_us) {
  auto control = std::unique_ptr<RegistryControl>(
      new RegistryControl(registry, std::move(keys), grant, timeout_us));
  STRATA_ASSIGN_OR_RETURN(
      const std::optional<cluster::PublishedCheckpoint> found,
      control->checkpoints_.read(grant.stream, registry->now_us() + timeout_us));
  if (found.has_value()) {
    control->data_ = from_record(found->checkpoint);
    control->version_ = found->version;
  }
  return control;
}

Status RegistryControl::publish(const ControlData& data) {
  if (in_doubt_) {
    STRATA_ASSIGN_OR_RETURN(const auto found, checkpoints_.read(grant_.stream, deadline()));
    version_ = found.has_value() ? found->version : registry::Version{};
  }
  in_doubt_ = true;
  const auto published =
      checkpoints_.publish(grant_.stream, writer(), version_, to_record(data), deadline());
  if (is_conflict(published.status()))
    return epochs_.why_refused({grant_.stream, grant_.epoch, writer()}, deadline());
  if (!published.ok()) return published.status();
  in_doubt_ = false;
  version_ = *published;
  data_ = data;
  return ok_status();
}

}  // namespace strata::clients
