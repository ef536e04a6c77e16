#include "clients/storage/registry_control.h"

#include <optional>

namespace strata::clients {

namespace {

registry::LogCheckpoint to_record(const ControlData& data) {
  return {data.database_id,    data.profile,   data.data_format,      data.page_bytes,    data.node,
          data.checkpoint_lsn, data.llsn_bias, data.checkpoint_count, data.clean_shutdown};
}

ControlData from_record(const registry::LogCheckpoint& record) {
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
                                                                 registry::ClusterKeys keys,
                                                                 const registry::EpochGrant& grant,
                                                                 uint64_t timeout_us) {
  auto control = std::unique_ptr<RegistryControl>(
      new RegistryControl(registry, std::move(keys), grant, timeout_us));
  STRATA_ASSIGN_OR_RETURN(
      const std::optional<registry::PublishedCheckpoint> found,
      control->checkpoints_.read(grant.stream, registry->now_us() + timeout_us));
  if (found.has_value()) {
    control->data_ = from_record(found->checkpoint);
    control->version_ = found->version;
  }
  return control;
}

Status RegistryControl::publish(const ControlData& data) {
  STRATA_ASSIGN_OR_RETURN(version_,
                          checkpoints_.publish(stream_, registry::Version{writer_.load()}, version_,
                                               to_record(data), registry_->now_us() + timeout_us_));
  data_ = data;
  return ok_status();
}

}  // namespace strata::clients
