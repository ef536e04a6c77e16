#include "clients/compute/stream_writers.h"

#include <algorithm>

#include "base/diag.h"

namespace strata::clients {

StreamWriters::StreamWriters(registry::Registry* registry, const cluster::ClusterKeys& keys,
                             const std::vector<StreamId>& streams) {
  {
    const MutexLock lock(mutex_);
    for (const StreamId stream : streams) writers_[stream];
  }
  cluster::StreamEpochs epochs(registry, keys);
  for (const StreamId stream : streams)
    watches_.push_back(
        epochs.watch(stream, [this, stream](const auto& holder) { note(stream, holder); }));
}

// In the registry's thread.
void StreamWriters::note(StreamId stream, const StatusOr<cluster::StreamHolder>& holder) {
  if (!holder.ok())
    return diag(Severity::kError, "the last epoch of log stream %u cannot be read: %s",
                stream.value, cause_of(holder.status()).c_str());
  const MutexLock lock(mutex_);
  Writer& writer = writers_[stream];
  if (holder->epoch > writer.epoch) writer = {holder->epoch, holder->holder};
}

std::map<StreamId, StreamWriters::Writer> StreamWriters::all() const {
  const MutexLock lock(mutex_);
  return writers_;
}

Epoch StreamWriters::newest() const {
  Epoch newest;
  for (const auto& [stream, writer] : all()) newest = std::max(newest, writer.epoch);
  return newest;
}

std::string StreamWriters::names() const {
  std::string names;
  for (const auto& [stream, writer] : all()) {
    if (writer.epoch.is_zero()) continue;
    names += (names.empty() ? "" : ", ") + writer.holder + " (log stream " +
             std::to_string(stream.value) + ")";
  }
  return names.empty() ? "the database's writer, of which nothing was heard yet" : names;
}

}  // namespace strata::clients
