// The calls of a compute node to a memory node that keeps pages for it, as bytes. Pure.
//   MM1  What decodes is well formed: a stream, an attachment and pages are named, sizes are within
//        limits, nothing left over. A page's bytes are not looked at: who keeps them verifies them.
//   MM2  decode(encode(x)) == x.
// Errors of decoding are kInvalidArgument for requests and kDataLoss for replies. Answers without
// anything to say have no bytes. What the calls do: memnode/pool/pool.h (LegoBase, §4 and §5).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "page/page.h"
#include "proto/methods.h"

namespace strata::proto {

// Who uses a stream's pool: the holder of the stream's epoch, how often it has attached itself, and
// which content of the pool it knows.
struct PoolUser {
  StreamId stream;
  Epoch epoch;
  uint64_t number = 0;       // counts up with each Attach of an epoch; not 0
  uint64_t incarnation = 0;  // 0 in kPoolAttach only: whatever there is
  bool operator==(const PoolUser&) const noexcept = default;
};

// Where a page is in the pool's region. `generation` changes whenever the slot gets another
// content, and is even while it has one.
struct PoolSlot {
  uint32_t slot = 0;
  uint64_t generation = 0;
  Llsn llsn;
  bool dirty = false;  // storage may not have it
  bool operator==(const PoolSlot&) const noexcept = default;
};

struct PoolAttachRequest {
  PoolUser user;
  bool fresh = false;       // discard what there is
  uint32_t slots_max = 0;   // of a pool that is made now; not 0
  std::string token;        // the tenant's
  uint32_t places_max = 0;  // for pages that the node shall pull; 0: it need not
  bool operator==(const PoolAttachRequest&) const noexcept = default;
};
struct PoolAttachReply {
  uint64_t incarnation = 0;
  bool made = false;   // just now: there is nothing in it
  std::string region;  // its name, for open_remote_region()
  uint32_t slots = 0;
  uint64_t headers_at = 0;  // offsets in the region, of slot 0
  uint64_t pages_at = 0;
  uint64_t report = 0;  // the last one (PoolWriteReply)
  // The last kPoolCheckpoint; lsn 0: there was none.
  Epoch checkpoint_epoch;
  Lsn checkpoint;
  uint64_t bias = 0;
  // Memory that this user alone writes pages to, for kPoolPutStaged, until the next kPoolAttach is
  // accepted: a region of `places` pages. No name: there is none, calls carry the bytes.
  std::string staging;
  uint32_t places = 0;
  bool operator==(const PoolAttachReply&) const noexcept = default;
};

struct PoolListRequest {
  PoolUser user;
  uint32_t from = 0;  // slot
  uint32_t slots_max = 0;
  bool operator==(const PoolListRequest&) const noexcept = default;
};
struct PoolListReply {
  struct Page {
    PageId id;
    PoolSlot at;
    bool operator==(const Page&) const noexcept = default;
  };
  uint32_t next = 0;  // go on from here; the number of slots: that was all
  std::vector<Page> pages;
  bool operator==(const PoolListReply&) const noexcept = default;
};

struct PoolImage {
  PageId id;
  bool dirty = false;
  // Of a dirty one: the first change that storage may lack, and the end of its last group (K9).
  Lsn first;
  Lsn end;
  bool operator==(const PoolImage&) const noexcept = default;
};
struct PoolPutRequest {
  PoolUser user;
  Lsn durable;  // of the stream
  std::vector<PoolImage> images;
  Bytes pages;  // of the message; sealed
};
// A page that lies in the staging memory as it is to be, until the reply is there.
struct PoolStagedImage {
  PoolImage image;
  Llsn llsn;
  uint32_t place = 0;
  bool operator==(const PoolStagedImage&) const noexcept = default;
};
struct PoolPutStagedRequest {  // its reply is a PoolPutReply
  PoolUser user;
  Lsn durable;
  std::vector<PoolStagedImage> images;
  bool operator==(const PoolPutStagedRequest&) const noexcept = default;
};
struct PoolPutReply {
  struct Taken {
    Status status;
    uint32_t slot = 0;  // where OK
    uint64_t generation = 0;
  };
  std::vector<Taken> taken;  // by image
};

// Of kPoolLookup and kPoolDrop.
struct PoolPagesRequest {
  PoolUser user;
  std::vector<PageId> pages;
  bool operator==(const PoolPagesRequest&) const noexcept = default;
};
struct PoolLookupReply {
  struct Found {
    bool there = false;
    PoolSlot at;
    bool operator==(const Found&) const noexcept = default;
  };
  std::vector<Found> found;  // by page
  bool operator==(const PoolLookupReply&) const noexcept = default;
};
struct PoolDropReply {
  std::vector<Status> dropped;  // by page: OK, not_found, busy (it is not clean)
};

struct PoolForgetRequest {
  PoolUser user;
  SpaceId space;
  bool operator==(const PoolForgetRequest&) const noexcept = default;
};

// A storage node, and the session in which the pool's user writes pages to it.
struct PoolTarget {
  std::string address;
  uint64_t session = 0;
  bool operator==(const PoolTarget&) const noexcept = default;
};
// What one of them said, or that it said nothing.
struct PoolAnswer {
  bool answered = false;
  Status status;
};
// A version of a page that storage has.
struct StoredPage {
  PageId id;
  Llsn llsn;
  bool operator==(const StoredPage&) const noexcept = default;
};
struct PoolStoredRequest {
  PoolUser user;
  std::vector<StoredPage> pages;
  bool operator==(const PoolStoredRequest&) const noexcept = default;
};
struct PoolWriteRequest {
  PoolUser user;
  Lsn below;  // pages with a first change before it; the largest there is: any
  uint32_t pages_max = 0;
  std::vector<PoolTarget> targets;
  bool operator==(const PoolWriteRequest&) const noexcept = default;
};
struct PoolWriteReply {
  using Page = StoredPage;
  uint64_t report = 0;  // grows
  Lsn oldest;           // first change that storage may lack, of all pages; the largest: none
  uint64_t dirty = 0;   // pages that it may lack
  std::vector<Page> pages;
  std::vector<PoolAnswer> answers;  // by target; all empty if there was nothing to write
};
struct PoolWriteAgainRequest {
  PoolUser user;
  uint32_t from = 0;  // slot
  PoolTarget target;
  bool operator==(const PoolWriteAgainRequest&) const noexcept = default;
};
struct PoolWriteAgainReply {
  uint32_t next = 0;  // go on from here; the number of slots: that was all
  PoolAnswer answer;  // answered and OK, too, where there was nothing to write
};

struct PoolSyncedRequest {
  PoolUser user;
  uint64_t report = 0;
  bool operator==(const PoolSyncedRequest&) const noexcept = default;
};
struct PoolSyncedReply {
  Lsn oldest;
  uint64_t dirty = 0;
  bool operator==(const PoolSyncedReply&) const noexcept = default;
};

struct PoolCheckpointRequest {
  PoolUser user;
  Lsn lsn;
  uint64_t bias = 0;
  bool operator==(const PoolCheckpointRequest&) const noexcept = default;
};

std::string encode(const PoolAttachRequest& request);
StatusOr<PoolAttachRequest> decode_pool_attach(Bytes bytes);
std::string encode(const PoolAttachReply& reply);
StatusOr<PoolAttachReply> decode_pool_attach_reply(Bytes bytes);
std::string encode(const PoolListRequest& request);
StatusOr<PoolListRequest> decode_pool_list(Bytes bytes);
std::string encode(const PoolListReply& reply);
StatusOr<PoolListReply> decode_pool_list_reply(Bytes bytes);
std::string encode(const PoolPutRequest& request);
StatusOr<PoolPutRequest> decode_pool_put(Bytes bytes);  // a view of `bytes`
std::string encode(const PoolPutStagedRequest& request);
StatusOr<PoolPutStagedRequest> decode_pool_put_staged(Bytes bytes);
std::string encode(const PoolPutReply& reply);
StatusOr<PoolPutReply> decode_pool_put_reply(Bytes bytes);
std::string encode(const PoolPagesRequest& request);
StatusOr<PoolPagesRequest> decode_pool_pages(Bytes bytes);
std::string encode(const PoolLookupReply& reply);
StatusOr<PoolLookupReply> decode_pool_lookup_reply(Bytes bytes);
std::string encode(const PoolDropReply& reply);
StatusOr<PoolDropReply> decode_pool_drop_reply(Bytes bytes);
std::string encode(const PoolForgetRequest& request);
StatusOr<PoolForgetRequest> decode_pool_forget(Bytes bytes);
std::string encode(const PoolWriteRequest& request);
StatusOr<PoolWriteRequest> decode_pool_write(Bytes bytes);
std::string encode(const PoolWriteReply& reply);
StatusOr<PoolWriteReply> decode_pool_write_reply(Bytes bytes);
std::string encode(const PoolWriteAgainRequest& request);
StatusOr<PoolWriteAgainRequest> decode_pool_write_again(Bytes bytes);
std::string encode(const PoolWriteAgainReply& reply);
StatusOr<PoolWriteAgainReply> decode_pool_write_again_reply(Bytes bytes);
std::string encode(const PoolSyncedRequest& request);
StatusOr<PoolSyncedRequest> decode_pool_synced(Bytes bytes);
std::string encode(const PoolSyncedReply& reply);
StatusOr<PoolSyncedReply> decode_pool_synced_reply(Bytes bytes);
std::string encode(const PoolStoredRequest& request);
StatusOr<PoolStoredRequest> decode_pool_stored(Bytes bytes);
std::string encode(const PoolCheckpointRequest& request);
StatusOr<PoolCheckpointRequest> decode_pool_checkpoint(Bytes bytes);

}  // namespace strata::proto
