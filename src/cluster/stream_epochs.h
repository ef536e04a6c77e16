// Who may write a log stream: epochs, each larger than all before it, given to one holder at a
// time. Thread-safe.
//
//   SE1  An acquired epoch is larger than every epoch of the stream that was ever in the registry,
//        and than `above`.
//   SE2  No epoch is given twice, to whomever. Nobody is given one that it tried for with an
//        unknown outcome: it goes on with a larger one, whether the first came to be or not.
//   SE3  While a holder's lease lives and it has not released the stream, others get the stream
//        only if they name that very holder, as they have read it (in_place_of): whoever came in
//        between is not taken over.
//   SE4  An epoch is returned only under a lease that is valid then.
//   SE5  A grant ends when a larger epoch is given, and by nothing else. That a change which
//        required the writer's key was refused does not say so: the key also goes, or is another
//        one, when the holder's lease runs out and is replaced.
// A larger epoch in the registry does not stop the holder of a smaller one, the storage nodes do
// (S2): the registry says who is next, never who has stopped.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/keys.h"
#include "registry/registry.h"

namespace strata::cluster {

struct EpochRequest {
  StreamId stream;
  std::string holder;   // the node's name, for others to read
  Epoch above;          // e.g. the largest that a storage node has promised
  Version in_place_of;  // StreamHolder's; 0: nobody is taken over
};

struct EpochGrant {
  StreamId stream;
  Epoch epoch;
  // Of the key ClusterKeys::writer(): Change::require() of it makes a change only while the holder
  // is still the stream's writer.
  Version writer;
};

struct StreamHolder {
  Epoch epoch;         // the last one given
  std::string holder;  // to whom
  bool held = false;   // its lease lives and it has not released the stream
  Version writer;      // of its key; 0: not held
};

class StreamEpochs {
 public:
  StreamEpochs(Registry* registry, ClusterKeys keys)
      : registry_(registry), keys_(std::move(keys)) {}

  // Acquires an epoch under `lease`, of the same registry. Tries again while others come before it.
  // Blocks. Errors:
  //   in_use               the stream is held, not by whom in_place_of names
  //   lease_lost           `lease` is
  //   kNotFound            the lease is gone
  //   busy                 others kept coming first
  //   kDataLoss            the keys of the stream cannot be read
  //   timed_out, kUnknown   the registry's
  // After an error no epoch was got, but the stream may be, or come to be, held under the lease:
  // who does not want it any more revokes the lease.
  StatusOr<EpochGrant> acquire(const EpochRequest& request, const Lease& lease,
                               uint64_t deadline_us);
  // Holds the stream under another lease, with the same epoch: for a holder whose lease was lost
  // and that nobody has followed. Blocks. Errors:
  //   fenced               a larger epoch was given
  //   lease_lost           `lease` is
  //   the others as of acquire(); after any error the old grant stands as far as it did
  StatusOr<EpochGrant> renew(const EpochGrant& grant, const Lease& lease, uint64_t deadline_us);
  // Lets others have the stream before the lease ends. OK also when it was not held any more.
  // Blocks. Errors: the registry's.
  Status release(const EpochGrant& grant, uint64_t deadline_us);
  // SE5. Why a change that required the writer's key at `grant.writer` was refused. Blocks:
  //   fenced               a larger epoch was given: the grant has ended
  //   lease_lost           nobody else came, the stream is only not held under that lease now (it
  //                        has run out and was not replaced yet, or was replaced since)
  //   the registry's       it cannot be said now
  Status why_refused(const EpochGrant& grant, uint64_t deadline_us);
  // Nothing: no epoch was ever given. Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::optional<StreamHolder>> current(StreamId stream, uint64_t deadline_us);
  // Tells the last epoch given and to whom, now and whenever there is another; kDataLoss: it cannot
  // be read. The handler runs in the registry's thread. Does not block.
  using Handler = absl::AnyInvocable<void(const StatusOr<StreamHolder>&)>;
  std::unique_ptr<Watch> watch(StreamId stream, Handler handler);
  // The same, and whether it is held, and by which key: now and whenever any of that changes.
  // Nothing: no epoch was ever given.
  using HolderHandler = absl::AnyInvocable<void(const StatusOr<std::optional<StreamHolder>>&)>;
  std::unique_ptr<Watch> watch_holder(StreamId stream, HolderHandler handler);

 private:
  struct State;
  static StatusOr<State> state_of(const std::vector<KeyValue>& entries, StreamId stream,
                                  const ClusterKeys& keys);
  static std::optional<StreamHolder> holder_of(const State& state);
  StatusOr<State> read(StreamId stream, uint64_t deadline_us);
  Registry* const registry_;
  const ClusterKeys keys_;
};

}  // namespace strata::cluster
