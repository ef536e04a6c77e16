#include "cluster/holder_address.h"

#include "base/diag.h"

namespace strata::cluster {

HolderAddress::HolderAddress(Registry* registry, const ClusterKeys& keys, StreamId stream)
    : addresses_(registry, keys) {
  watch_ = StreamEpochs(registry, keys).watch(stream, [this](const StatusOr<StreamHolder>& holder) {
    learn(holder);
  });
}

HolderAddress::~HolderAddress() { watch_.reset(); }

void HolderAddress::learn(const StatusOr<StreamHolder>& holder) {
  if (!holder.ok()) {  // what was known before may still be right
    diag(Severity::kWarning, "the holder of a stream cannot be read in the registry: %s",
         std::string(holder.status().message()).c_str());
    return;
  }
  const MutexLock lock(mutex_);
  if (holder->epoch >= holder_.epoch) holder_ = *holder;
}

std::string HolderAddress::now() const {
  std::string name;
  {
    const MutexLock lock(mutex_);
    name = holder_.holder;
  }
  return name.empty() ? std::string() : addresses_.address_of(name);
}

Epoch HolderAddress::epoch() const {
  const MutexLock lock(mutex_);
  return holder_.epoch;
}

}  // namespace strata::cluster
