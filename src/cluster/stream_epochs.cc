#include "cluster/stream_epochs.h"

#include <algorithm>
#include <utility>

#include "cluster/internal/records.h"
#include "registry/text.h"

namespace strata::cluster {
namespace {

// An attempt fails when somebody else came first, or its outcome is unknown: neither happens often.
constexpr int kAttemptsMax = 16;

Status lease_lost(StreamId stream) {
  return error_lease_lost(absl::StrCat("the lease for stream ", stream.value, " is lost"));
}

Status taken_over(StreamId stream, const internal::EpochRecord& by) {
  return error_fenced(absl::StrCat("stream ", stream.value, " was taken over by ", by.holder,
                                   " with epoch ", by.epoch.value));
}

}  // namespace

struct StreamEpochs::State {
  Version epoch_version;
  Version writer_version;
  internal::EpochRecord last;  // zero epoch: none was given yet
  internal::EpochRecord writer;
  LeaseId writer_lease;
};

StatusOr<StreamEpochs::State> StreamEpochs::read(StreamId stream, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const Listing listing,
                          registry_->list(keys_.stream(stream), deadline_us));
  return state_of(listing.entries, stream, keys_);
}

StatusOr<StreamEpochs::State> StreamEpochs::state_of(const std::vector<KeyValue>& entries,
                                                     StreamId stream, const ClusterKeys& keys) {
  State state;
  for (const KeyValue& entry : entries) {
    if (entry.key == keys.epoch(stream)) {
      STRATA_ASSIGN_OR_RETURN(state.last, internal::decode_epoch(entry));
      state.epoch_version = entry.version;
    } else if (entry.key == keys.writer(stream)) {
      STRATA_ASSIGN_OR_RETURN(state.writer, internal::decode_epoch(entry));
      state.writer_version = entry.version;
      state.writer_lease = entry.lease;
    }
  }
  // The writer's key is made with the epoch's, in one change.
  if (state.writer.epoch > state.last.epoch)
    return error_corruption(absl::StrCat("stream ", stream.value, " has a writer of epoch ",
                                         state.writer.epoch.value, ", but its last epoch is ",
                                         state.last.epoch.value));
  return state;
}

StatusOr<EpochGrant> StreamEpochs::acquire(const EpochRequest& request, const Lease& lease,
                                           uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(check_name("node", request.holder));
  Epoch floor = request.above;
  Status last = ok_status();
  for (int attempt = 0; attempt < kAttemptsMax; attempt++) {
    if (!lease.valid()) return lease_lost(request.stream);
    STRATA_ASSIGN_OR_RETURN(const State state, read(request.stream, deadline_us));
    const bool ours = state.writer_lease == lease.id();
    if (!state.writer_version.is_zero() && !ours && state.writer_version != request.in_place_of)
      return error_in_use(absl::StrCat("stream ", request.stream.value, " is held by ",
                                       state.writer.holder, " with epoch ",
                                       state.writer.epoch.value));
    floor = std::max(floor, state.last.epoch);
    if (floor.value >= internal::kEpochMax) return error_out_of_range("no epoch is left");
    const Epoch next{floor.value + 1};
    const std::string record = internal::encode_epoch({next, request.holder});
    const Change changes[] = {
        Change::replace(keys_.epoch(request.stream), state.epoch_version, record),
        Change::replace(keys_.writer(request.stream), state.writer_version, record, lease.id())};
    const StatusOr<Version> done = registry_->change(changes, deadline_us);
    if (done.ok()) {
      if (!lease.valid()) return lease_lost(request.stream);  // SE4
      return EpochGrant{request.stream, next, *done};
    }
    last = done.status();
    if (is_outcome_unknown(last)) {
      floor = next;  // SE2
    } else if (!is_conflict(last)) {
      return last;
    }
  }
  if (is_outcome_unknown(last)) return last;
  return error_busy(absl::StrCat("others keep acquiring stream ", request.stream.value));
}

// The epoch's key stays as it is: whoever acquires meanwhile changes it, and one of the two fails.
StatusOr<EpochGrant> StreamEpochs::renew(const EpochGrant& grant, const Lease& lease,
                                         uint64_t deadline_us) {
  Status last = ok_status();
  for (int attempt = 0; attempt < kAttemptsMax; attempt++) {
    if (!lease.valid()) return lease_lost(grant.stream);
    STRATA_ASSIGN_OR_RETURN(const State state, read(grant.stream, deadline_us));
    if (state.last.epoch != grant.epoch) return taken_over(grant.stream, state.last);
    const Change changes[] = {Change::require(keys_.epoch(grant.stream), state.epoch_version),
                              Change::replace(keys_.writer(grant.stream), state.writer_version,
                                              internal::encode_epoch(state.last), lease.id())};
    const StatusOr<Version> done = registry_->change(changes, deadline_us);
    if (done.ok()) {
      if (!lease.valid()) return lease_lost(grant.stream);  // SE4
      return EpochGrant{grant.stream, grant.epoch, *done};
    }
    last = done.status();
    if (!is_outcome_unknown(last) && !is_conflict(last)) return last;
  }
  return last;
}

Status StreamEpochs::why_refused(const EpochGrant& grant, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const State state, read(grant.stream, deadline_us));
  if (state.last.epoch != grant.epoch) return taken_over(grant.stream, state.last);
  return error_lease_lost(absl::StrCat("the registry took no change of stream ", grant.stream.value,
                                       ": this node's lease has ended, or was replaced just now"));
}

Status StreamEpochs::release(const EpochGrant& grant, uint64_t deadline_us) {
  const Status status =
      registry_->change(Change::remove(keys_.writer(grant.stream), grant.writer), deadline_us)
          .status();
  return is_conflict(status) ? ok_status() : status;
}

StatusOr<std::optional<StreamHolder>> StreamEpochs::current(StreamId stream, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const State state, read(stream, deadline_us));
  return holder_of(state);
}

std::optional<StreamHolder> StreamEpochs::holder_of(const State& state) {
  if (state.last.epoch.is_zero()) return std::nullopt;
  return StreamHolder{state.last.epoch, state.last.holder, !state.writer_version.is_zero(),
                      state.writer_version};
}

// The epoch's key stays when a lease ends, and changes only with an epoch that is given.
std::unique_ptr<Watch> StreamEpochs::watch(StreamId stream, Handler handler) {
  const std::string key = keys_.epoch(stream);
  return registry_->watch(key, [key, handler = std::move(handler),
                                keys = WatchedKeys()](const WatchBatch& batch) mutable {
    keys.apply(batch);
    for (const KeyValue& entry : keys.entries()) {
      if (entry.key != key) continue;
      const StatusOr<internal::EpochRecord> record = internal::decode_epoch(entry);
      if (record.ok())
        handler(StreamHolder{record->epoch, record->holder, false, {}});
      else
        handler(record.status());
    }
  });
}

std::unique_ptr<Watch> StreamEpochs::watch_holder(StreamId stream, HolderHandler handler) {
  return registry_->watch(keys_.stream(stream),
                          [stream, own = keys_, handler = std::move(handler),
                           keys = WatchedKeys()](const WatchBatch& batch) mutable {
                            keys.apply(batch);
                            const StatusOr<State> state = state_of(keys.entries(), stream, own);
                            if (state.ok())
                              handler(holder_of(*state));
                            else
                              handler(state.status());
                          });
}

}  // namespace strata::cluster
