#include "cluster/log_checkpoints.h"

#include <array>

#include "cluster/internal/records.h"

namespace strata::cluster {

StatusOr<std::optional<PublishedCheckpoint>> LogCheckpoints::read(StreamId stream,
                                                                  uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const std::optional<KeyValue> entry,
                          registry_->get(keys_.control(stream), deadline_us));
  if (!entry.has_value()) return std::optional<PublishedCheckpoint>();
  STRATA_ASSIGN_OR_RETURN(LogCheckpoint checkpoint, internal::decode_checkpoint(*entry));
  return std::optional<PublishedCheckpoint>({std::move(checkpoint), entry->version});
}

StatusOr<Version> LogCheckpoints::publish(StreamId stream, Version writer, Version current,
                                          const LogCheckpoint& checkpoint, uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(internal::check_checkpoint(checkpoint));
  const std::array changes = {
      Change::replace(keys_.control(stream), current, internal::encode_checkpoint(checkpoint)),
      Change::require(keys_.writer(stream), writer)};
  for (;;) {
    const auto changed = registry_->change(changes, deadline_us);
    if (changed.ok()) return *changed;
    const bool in_doubt = is_outcome_unknown(changed.status()) ||
                          is_conflict(changed.status());  // perhaps by our own earlier try
    if (!in_doubt) return changed.status();
    // A try that comes late finds another version there, so what is read now decides.
    STRATA_ASSIGN_OR_RETURN(const auto found, read(stream, deadline_us));
    if (found.has_value() && found->checkpoint == checkpoint && found->version != current)
      return found->version;
    if (is_conflict(changed.status())) return changed.status();
    if (registry_->now_us() >= deadline_us) return changed.status();
  }
}

}  // namespace strata::cluster
