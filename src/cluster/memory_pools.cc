#include "cluster/memory_pools.h"

#include <array>

#include "cluster/internal/records.h"

namespace strata::cluster {

StatusOr<std::optional<PublishedPools>> MemoryPools::read(StreamId stream, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const std::optional<KeyValue> entry,
                          registry_->get(keys_.memory(stream), deadline_us));
  if (!entry.has_value()) return std::optional<PublishedPools>();
  STRATA_ASSIGN_OR_RETURN(MemoryPoolSet set, internal::decode_memory_pools(*entry));
  return std::optional<PublishedPools>({std::move(set), entry->version});
}

StatusOr<Version> MemoryPools::publish(StreamId stream, Version writer, Version current,
                                       const MemoryPoolSet& set, uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(internal::check_memory_pools(set));
  const std::array changes = {
      Change::replace(keys_.memory(stream), current, internal::encode_memory_pools(set)),
      Change::require(keys_.writer(stream), writer)};
  for (;;) {
    const auto changed = registry_->change(changes, deadline_us);
    if (changed.ok()) return *changed;
    const bool in_doubt = is_outcome_unknown(changed.status()) ||
                          is_conflict(changed.status());  // perhaps by our own earlier try
    if (!in_doubt) return changed.status();
    // A try that comes late finds another version there, so what is read now decides.
    STRATA_ASSIGN_OR_RETURN(const auto found, read(stream, deadline_us));
    if (found.has_value() && found->set == set && found->version != current) return found->version;
    if (is_conflict(changed.status())) return changed.status();
    if (registry_->now_us() >= deadline_us) return changed.status();
  }
}

Status MemoryPools::remove(StreamId stream, Version writer, Version current, uint64_t deadline_us) {
  if (current.is_zero()) return ok_status();
  const std::array changes = {Change::remove(keys_.memory(stream), current),
                              Change::require(keys_.writer(stream), writer)};
  for (;;) {
    const auto changed = registry_->change(changes, deadline_us);
    if (changed.ok()) return ok_status();
    const bool in_doubt = is_outcome_unknown(changed.status()) || is_conflict(changed.status());
    if (!in_doubt) return changed.status();
    STRATA_ASSIGN_OR_RETURN(const auto found, registry_->get(keys_.memory(stream), deadline_us));
    if (!found.has_value()) return ok_status();
    if (is_conflict(changed.status())) return changed.status();
    if (registry_->now_us() >= deadline_us) return changed.status();
  }
}

}  // namespace strata::cluster
