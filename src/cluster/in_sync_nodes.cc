#include "cluster/in_sync_nodes.h"

#include <array>
#include <utility>

#include "cluster/internal/records.h"

namespace strata::cluster {

StatusOr<std::optional<PublishedInSync>> InSyncNodes::read(StreamId stream, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const std::optional<KeyValue> entry,
                          registry_->get(keys_.in_sync(stream), deadline_us));
  if (!entry.has_value()) return std::optional<PublishedInSync>();
  STRATA_ASSIGN_OR_RETURN(std::vector<InSyncNode> nodes, internal::decode_in_sync(*entry));
  return std::optional<PublishedInSync>({std::move(nodes), entry->version});
}

StatusOr<Version> InSyncNodes::publish(StreamId stream, Version writer, Version current,
                                       const std::vector<InSyncNode>& nodes, uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(internal::check_in_sync(nodes));
  const std::array changes = {
      Change::replace(keys_.in_sync(stream), current, internal::encode_in_sync(nodes)),
      Change::require(keys_.writer(stream), writer)};
  for (;;) {
    const auto changed = registry_->change(changes, deadline_us);
    if (changed.ok()) return *changed;
    const bool in_doubt = is_outcome_unknown(changed.status()) ||
                          is_conflict(changed.status());  // perhaps by our own earlier try
    if (!in_doubt) return changed.status();
    // A try that comes late finds another version there, so what is read now decides (NS3).
    STRATA_ASSIGN_OR_RETURN(const auto found, read(stream, deadline_us));
    if (found.has_value() && found->nodes == nodes && found->version != current)
      return found->version;
    if (is_conflict(changed.status())) return changed.status();
    if (registry_->now_us() >= deadline_us) return changed.status();
  }
}

std::unique_ptr<Watch> InSyncNodes::watch(StreamId stream, Handler handler) {
  const std::string key = keys_.in_sync(stream);
  return registry_->watch(key, [key, handler = std::move(handler),
                                keys = WatchedKeys()](const WatchBatch& batch) mutable {
    keys.apply(batch);
    for (const KeyValue& entry : keys.entries())
      if (entry.key == key) handler(internal::decode_in_sync(entry));
  });
}

}  // namespace strata::cluster
