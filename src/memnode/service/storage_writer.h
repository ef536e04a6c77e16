// Writes pages to storage nodes for a compute node, which says to which ones, in which sessions.
// Thread-safe; nothing blocks but stop().
//   SWR1  Every write is answered once, by its deadline at the latest, with what each of its
//         storage nodes said, or that it said nothing; after stop() none is.
//   SWR2  Who said nothing may have written the pages, or may yet: who asked begins new sessions
//         before anything else is written (WN3 in clients/storage/write_sessions.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/ids.h"
#include "base/latch.h"
#include "proto/memory_messages.h"
#include "transport/calls/channel.h"

namespace strata::memnode {

struct PageBatch {
  StreamId stream;
  Epoch epoch;  // of the pool's user
  std::vector<PageId> ids;
  std::string pages;  // sealed, in the order of the ids
};

struct StorageWriterOptions {
  uint64_t timeout_us = 3'000'000;
  size_t channels_max = 64;  // idle ones beyond go
};

class StorageWriter {
 public:
  // In the executor's thread, or inside write() if there was nobody to ask.
  using Done = absl::AnyInvocable<void(std::vector<proto::PoolAnswer>)>;

  StorageWriter(const transport::World& world, const transport::Secret& secret,
                const StorageWriterOptions& options = {});
  ~StorageWriter();  // stop()
  StorageWriter(const StorageWriter&) = delete;
  StorageWriter& operator=(const StorageWriter&) = delete;

  // To all of them at once.
  void write(const PageBatch& batch, const std::vector<proto::PoolTarget>& targets, Done done);
  // Blocks for the executor's thread, if it runs.
  void stop();

 private:
  struct Call;
  struct Peer {
    std::shared_ptr<transport::Channel> channel;
    uint64_t used = 0;  // the count of uses when it was used last
    size_t under_way = 0;
  };
  std::shared_ptr<transport::Channel> begin(const std::string& address);  // null: stopped
  void end(const std::string& address);
  std::shared_ptr<transport::Channel> take_idle() STRATA_REQUIRES(mutex_);

  const transport::World world_;
  const transport::Secret secret_;
  const StorageWriterOptions options_;
  Mutex mutex_{LatchRank::kPeers};
  std::map<std::string, Peer> peers_ STRATA_GUARDED_BY(mutex_);
  uint64_t uses_ STRATA_GUARDED_BY(mutex_) = 0;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
};

}  // namespace strata::memnode
