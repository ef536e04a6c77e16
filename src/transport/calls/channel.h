// Many calls at once over one connection, in order, without blocking: for log append, replication,
// lock service. Thread-safe; callbacks run in the executor's thread and must not block.
//
//   CH1  Calls made by one thread reach the peer's handlers in the order they were made; over
//        reconnections too (RS2): what is reported kUnknown never runs after a later call.
//   CH2  Every call ends once, by its callback, at its deadline at the latest; never inside call().
//        How it ended is told truly (CA1). Calls alive when the channel is destroyed are the
//        exception: their callbacks are dropped without being run.
//   CH3  A connection that is lost takes the calls sent on it with it (kUnknown); nothing is sent a
//        second time. The channel reconnects by itself, with growing pauses; a call that comes in a
//        pause ends it, unless the last attempt took as long as has passed since: a peer that is
//        back is not called away because of what an attempt before has found.
//   CH4  Memory is bounded: calls beyond waiting_bytes_max end with kResourceExhausted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "transport/address.h"
#include "transport/calls/call.h"
#include "transport/calls/connection.h"
#include "transport/link_model.h"
#include "transport/world.h"

namespace strata::transport {

struct ChannelOptions {
  ConnectionLimits limits = {};
  uint64_t reconnect_us_min = 20'000;  // pause after a failure, doubled each time; none is shorter
  uint64_t reconnect_us_max = 1'000'000;
  uint64_t waiting_bytes_max = 64u << 20;           // of calls that have not ended
  std::shared_ptr<LinkModel> link_model = nullptr;  // null: none
  std::shared_ptr<Counters> counters = nullptr;     // its own if null
};

class ChannelCore;

class Channel {
 public:
  // The payload is valid inside the callback only.
  using Callback = absl::AnyInvocable<void(const Reply&)>;
  // In the executor's thread: whether there is an authenticated connection, and to which life of
  // the server (another number after it was restarted), or why not.
  using StateObserver =
      absl::AnyInvocable<void(bool connected, uint64_t server_life, const Status& why)>;

  // Starts to connect. The observer may be empty.
  Channel(const World& world, const Secret& secret, Address address, ChannelOptions options,
          StateObserver observer = nullptr);
  // No callback runs after it. May be called inside a callback of this channel. Otherwise blocks
  // for the executor's thread, if it runs.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void call(const CallOptions& options, std::string payload, Callback callback);
  [[nodiscard]] Counters& counters() noexcept { return *counters_; }

 private:
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<ChannelCore> core_;
};

}  // namespace strata::transport
