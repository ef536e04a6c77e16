// RemotePool by calls to a memory node, and by reads of its memory: through a mapping where the
// node is on this host (an address of a unix socket), by calls elsewhere, or over a fabric.
// Thread-safe.
//   PCL1  RPL1-RPL3 (remote_pool.h). A reply that cannot be read counts as lost.
//   PCL2  Between two reads of a slot's generation that are the same even number, and the one that
//         is wanted, the slot had one content (PSL2 of the pool). That the page between them is
//         that content its checksum, identity and llsn say: over a fabric reads may overtake each
//         other.
//   PCL3  Where the node's memory is mapped, and it has given memory for it, pages are put there
//         and the node copies them from it. Such a place is used again only after the reply, or in
//         the next attachment, which has other memory: until then the node may be reading it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/latch.h"
#include "clients/memory/remote_pool.h"
#include "clients/memory/staging_places.h"
#include "transport/address.h"
#include "transport/calls/blocking_channel.h"
#include "transport/regions/remote_region.h"

namespace strata::clients {

struct PoolClientOptions {
  StreamId stream;
  Epoch epoch;
  std::string token;       // the tenant's
  uint32_t slots_max = 0;  // of a pool that is made; not 0
  uint64_t call_timeout_us = 2'500'000;
  uint64_t write_timeout_us = 6'000'000;  // of calls that wait for storage nodes
  // How its memory is read; nothing: as its address says.
  std::optional<transport::RegionPath> path;
  // Places for pages that the node shall pull; 0: calls carry the bytes, as they do where its
  // memory cannot be mapped, or when all places are taken.
  uint32_t places = 256;
  std::shared_ptr<transport::LinkModel> link_model;
  std::shared_ptr<transport::Counters> counters;  // null: its own
};

class PoolClient final : public RemotePool {
 public:
  PoolClient(const transport::Secret& secret, transport::Address node, PoolClientOptions options);
  ~PoolClient() override;  // no call may be under way

  StatusOr<AttachedPool> attach(uint64_t incarnation, bool fresh, uint64_t deadline_us) override;
  StatusOr<proto::PoolListReply> list(uint32_t from) override;
  StatusOr<std::vector<proto::PoolPutReply::Taken>> put(const std::vector<proto::PoolImage>& images,
                                                        Bytes pages, Lsn durable) override;
  StatusOr<std::vector<proto::PoolLookupReply::Found>> lookup(
      const std::vector<PageId>& pages) override;
  StatusOr<std::vector<Status>> drop(const std::vector<PageId>& pages) override;
  Status forget_space(SpaceId space) override;
  StatusOr<proto::PoolWriteReply> write(Lsn below, uint32_t pages_max,
                                        const std::vector<proto::PoolTarget>& targets) override;
  StatusOr<proto::PoolWriteAgainReply> write_again(uint32_t from,
                                                   const proto::PoolTarget& target) override;
  StatusOr<proto::PoolSyncedReply> synced(uint64_t report) override;
  Status stored(const std::vector<StoredPage>& pages) override;
  Status checkpoint(Lsn lsn, uint64_t bias) override;
  void read_slots(absl::Span<SlotRead> reads) override;

  // Whether pages are read without the node's processor.
  [[nodiscard]] bool one_sided() const;
  // Whether the node pulls pages (PCL3).
  [[nodiscard]] bool pulls() const;

 private:
  // What one attach() has brought.
  struct Attachment {
    proto::PoolUser user;
    std::string region_name;
    std::shared_ptr<transport::RemoteRegion> region;
    uint32_t slots = 0;
    uint64_t headers_at = 0;
    uint64_t pages_at = 0;
    std::shared_ptr<StagingPlaces> staging;  // or null
  };
  [[nodiscard]] std::shared_ptr<const Attachment> now() const STRATA_EXCLUDES(mutex_);
  [[nodiscard]] proto::PoolUser user() const;
  StatusOr<std::shared_ptr<transport::RemoteRegion>> open_region(const std::string& name,
                                                                 uint64_t deadline_us);
  Status call(uint16_t method, const std::string& request, uint64_t deadline_us,
              std::string* reply);
  std::shared_ptr<StagingPlaces> open_staging(const std::string& name, uint32_t places,
                                              uint64_t deadline_us);
  StatusOr<std::string> put_staged(const Attachment& attachment,
                                   const std::vector<proto::PoolImage>& images, Bytes pages,
                                   Lsn durable, const std::vector<uint32_t>& places);
  void read_batch(const Attachment& from, absl::Span<SlotRead> reads);

  const PoolClientOptions options_;
  const std::shared_ptr<transport::BlockingChannel> channel_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  uint64_t number_ STRATA_GUARDED_BY(mutex_) = 0;  // of the last attach() begun
  std::shared_ptr<const Attachment> attachment_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::clients
