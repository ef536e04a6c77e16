// Puts peers' bytes in the place of damaged ones in this node's logs. Driven by one thread.
//   MR1  Only bytes that are quorum-durable at the peer are taken, and the log store checks them
//        against every checksum that survived (LogStore::repair).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "storenode/logstore/log_store.h"
#include "storenode/logstore/self_catch_up.h"

namespace strata::storenode {

class LogMender {
 public:
  // Asks a replica of the stream; answers once, within a bounded time, from any thread.
  using Fetch =
      std::function<void(StreamId stream, quorum::ReplicaIndex peer,
                         const quorum::ReadRequest& request, SelfCatchUp::FetchDone done)>;
  // What is damaged up to `to` was cut off everywhere else: all logs of peers begin at `begin` or
  // beyond. Called again each time it is met.
  using Lost = std::function<void(StreamId stream, Lsn to, Lsn begin)>;
  // Which replica this node is, and how many there are: it is asked each time.
  struct Place {
    quorum::ReplicaIndex own = 0;
    quorum::ReplicaIndex replicas = 0;
  };
  // `store` outlives it; something persists what is queued in it meanwhile.
  LogMender(LogStore* store, std::function<Place()> place, Fetch fetch, Lost lost)
      : store_(store), place_(std::move(place)), fetch_(std::move(fetch)), lost_(std::move(lost)) {}

  // Mends what status() says is damaged, as far as a peer has it. True: something was. Blocks. A
  // range that nobody could help with is left alone for ever more calls, up to kPausesMax: asking
  // may fetch megabytes.
  bool mend();
  [[nodiscard]] uint64_t mended_ranges() const noexcept { return mended_.load(); }

 private:
  bool mend(StreamId stream, const LogDamage& damage, bool is_new);
  // kOutOfRange: the peer has cut it off; `begin` is where its log begins.
  StatusOr<std::string> fetch_range(StreamId stream, quorum::ReplicaIndex peer, Lsn from, Lsn to,
                                    Lsn* begin);
  LogStore* const store_;
  const std::function<Place()> place_;
  const Fetch fetch_;
  const Lost lost_;
  static constexpr uint32_t kPausesMax = 60;
  struct Pauses {
    uint32_t after_failure = 0;
    uint32_t left = 0;
  };
  std::map<std::pair<StreamId, Lsn>, Pauses> failed_;
  std::atomic<uint64_t> mended_{0};
};

}  // namespace strata::storenode
