// Whom a test takes a stream over from. For tests.
#pragma once

#include "cluster/stream_epochs.h"

namespace strata::cluster::testing {

// As EpochRequest::in_place_of; 0: the stream is free, or nobody knows.
inline Version held_by(StreamEpochs* epochs, StreamId stream, uint64_t deadline_us) {
  const auto holder = epochs->current(stream, deadline_us);
  return holder.ok() && holder->has_value() ? (*holder)->writer : Version{};
}

}  // namespace strata::cluster::testing
