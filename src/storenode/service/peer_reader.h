// Reads the logs of other storage nodes, for a replica that catches up (logstore/self_catch_up.h).
// Thread-safe; nothing blocks but the destructor.
//   PE1  Every read is answered once: by the peer, or with kUnavailable. After destruction none is.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/latch.h"
#include "storenode/logstore/self_catch_up.h"
#include "transport/calls/channel.h"

namespace strata::storenode {

class PeerReader {
 public:
  // Empty: not known.
  using AddressOf = std::function<std::string(StreamId stream, quorum::ReplicaIndex replica)>;

  PeerReader(const transport::World& world, const transport::Secret& secret, AddressOf address_of,
             uint64_t timeout_us = 2'000'000);
  // Before its world; blocks for the executor's thread, if it runs. Callbacks in that thread may
  // still call fetch() meanwhile: they get no answer from a peer any more.
  ~PeerReader();
  PeerReader(const PeerReader&) = delete;
  PeerReader& operator=(const PeerReader&) = delete;

  void fetch(StreamId stream, quorum::ReplicaIndex peer, const quorum::ReadRequest& request,
             SelfCatchUp::FetchDone done);

 private:
  transport::Channel* channel_to(const std::string& address);  // null: it is being destroyed
  const transport::World world_;
  const transport::Secret secret_;
  const AddressOf address_of_;
  const uint64_t timeout_us_;
  Mutex mutex_{LatchRank::kPeers};
  using Channels = std::map<std::string, std::unique_ptr<transport::Channel>>;
  Channels channels_ STRATA_GUARDED_BY(mutex_);
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
};

}  // namespace strata::storenode
