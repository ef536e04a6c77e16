// The calls to a storage node whose pages compute writes, as bytes. Pure.
//   WM1  What decodes is well formed: a stream and a session are named (no session only where the
//        message says so), sizes are within limits, nothing left over. A page's bytes are not
//        looked at: who stores them verifies them.
//   WM2  decode(encode(x)) == x.
// Errors of decoding are kInvalidArgument for requests and kDataLoss for replies. Answers without
// anything to say have no bytes.
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

// In whose name pages are written: the holder of a stream's epoch, and the number of the write
// session that it has begun on this node. Sessions of a holder count up.
struct Writer {
  StreamId stream;
  Epoch epoch;
  uint64_t session = 0;
  bool operator==(const Writer&) const noexcept = default;
};

// Ends every earlier session on the node and begins this one.
struct BeginWritesRequest {
  Writer writer;
  uint64_t continues = 0;  // an earlier session of the same epoch, which this one follows; 0: none
  bool operator==(const BeginWritesRequest&) const noexcept = default;
};
struct BeginWritesReply {
  uint64_t store = 0;      // which page store this is: one that lost its pages has another number
  bool continued = false;  // the session it follows is known: nothing written since is lost
  bool operator==(const BeginWritesReply&) const noexcept = default;
};

// Sealed pages in the order of their ids, one after the other.
struct WritePagesRequest {
  Writer writer;
  std::vector<PageId> ids;
  Bytes pages;  // of the message
};

// Everything written in this session is durable when it is answered.
struct SyncPagesRequest {
  Writer writer;
  bool operator==(const SyncPagesRequest&) const noexcept = default;
};

// Of create, delete and grow; `pages` is for grow. Session 0: from one of several servers, which
// write no pages themselves; the stream is its own log's, and so is the epoch.
struct SpaceRequest {
  Writer writer;
  SpaceId space;
  uint32_t pages = 0;
  bool operator==(const SpaceRequest&) const noexcept = default;
};

struct SpaceSize {
  SpaceId space;
  uint32_t pages = 0;  // room for so many
  bool operator==(const SpaceSize&) const noexcept = default;
};
struct ListSpaceSizesReply {
  std::vector<SpaceSize> spaces;
};

// Take every page from a node that has them all, where it is newer than what is here. Asked again
// in the same session, it tells how far that is.
struct CopyPagesRequest {
  Writer writer;
  std::string peer;           // its address
  uint64_t peer_session = 0;  // the peer's write session: what was read in another does not count
  bool operator==(const CopyPagesRequest&) const noexcept = default;
};
struct CopyPagesReply {
  enum class State : uint8_t { kRunning, kDone, kFailed };
  State state = State::kRunning;
  uint64_t pages_seen = 0;   // of the peer's
  uint64_t pages_taken = 0;  // of those, newer ones
  Status why;                // it failed
};

std::string encode(const BeginWritesRequest& request);
StatusOr<BeginWritesRequest> decode_begin_writes(Bytes bytes);
std::string encode(const BeginWritesReply& reply);
StatusOr<BeginWritesReply> decode_begin_writes_reply(Bytes bytes);
std::string encode(const WritePagesRequest& request);
StatusOr<WritePagesRequest> decode_write_pages(Bytes bytes);  // a view of `bytes`
std::string encode(const SyncPagesRequest& request);
StatusOr<SyncPagesRequest> decode_sync_pages(Bytes bytes);
std::string encode(const SpaceRequest& request);
StatusOr<SpaceRequest> decode_space(Bytes bytes);
std::string encode(const ListSpaceSizesReply& reply);
StatusOr<ListSpaceSizesReply> decode_list_space_sizes_reply(Bytes bytes);
std::string encode(const CopyPagesRequest& request);
StatusOr<CopyPagesRequest> decode_copy_pages(Bytes bytes);
std::string encode(const CopyPagesReply& reply);
StatusOr<CopyPagesReply> decode_copy_pages_reply(Bytes bytes);

}  // namespace strata::proto
