#include "cluster/node_removals.h"

#include <array>
#include <utility>

#include "cluster/internal/records.h"

namespace strata::cluster {

namespace {

StatusOr<PendingRemoval> decode(const KeyValue& entry) {
  STRATA_ASSIGN_OR_RETURN(RemovalRequest request, internal::decode_removal(entry));
  return PendingRemoval{std::move(request), entry.version, entry.lease};
}

}  // namespace

StatusOr<Version> NodeRemovals::ask(const RemovalRequest& request, LeaseId lease,
                                    uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(internal::check_removal(request));
  STRATA_ASSIGN_OR_RETURN(const auto before, registry_->get(keys_.removal(stream_), deadline_us));
  return registry_->change(
      Change::replace(keys_.removal(stream_), before.has_value() ? before->version : Version{},
                      internal::encode_removal(request), lease),
      deadline_us);
}

StatusOr<std::optional<PendingRemoval>> NodeRemovals::read(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const auto entry, registry_->get(keys_.removal(stream_), deadline_us));
  if (!entry.has_value()) return std::optional<PendingRemoval>();
  STRATA_ASSIGN_OR_RETURN(PendingRemoval pending, decode(*entry));
  return std::optional<PendingRemoval>(std::move(pending));
}

std::unique_ptr<Watch> NodeRemovals::watch(Handler handler) {
  const std::string key = keys_.removal(stream_);
  return registry_->watch(key, [key, handler = std::move(handler),
                                keys = WatchedKeys()](const WatchBatch& batch) mutable {
    keys.apply(batch);
    std::optional<PendingRemoval> found;
    for (const KeyValue& entry : keys.entries()) {
      if (entry.key != key) continue;
      StatusOr<PendingRemoval> pending = decode(entry);
      if (!pending.ok()) return handler(pending.status());
      if (pending->request.refused.empty()) found = *std::move(pending);
    }
    handler(std::move(found));
  });
}

StatusOr<Placement> NodeRemovals::carry_out(const PendingRemoval& pending, const Placement& current,
                                            const EpochGrant& grant, uint64_t deadline_us) {
  if (pending.request.generation != current.generation)
    return error_conflict("the placement has changed since");  // NR2
  const std::array with = {Change::require(keys_.writer(stream_), grant.writer),
                           Change::remove(keys_.removal(stream_), pending.version)};  // NR1
  return Topology(registry_, keys_)
      .take_out(current, pending.request.node, grant.epoch, with, deadline_us);
}

Status NodeRemovals::refuse(const PendingRemoval& pending, std::string_view why,
                            uint64_t deadline_us) {
  RemovalRequest answer = pending.request;
  answer.refused = internal::as_reason(why);
  return registry_
      ->change(Change::replace(keys_.removal(stream_), pending.version,
                               internal::encode_removal(answer), pending.lease),
               deadline_us)
      .status();
}

}  // namespace strata::cluster
