// The page service's calls as bytes. Pure.
//   PM1  What decodes is well formed: sizes within limits, nothing left over. A page's bytes are
//        not looked at: who gets them verifies checksum, identity and llsn.
//   PM2  decode(encode(x)) == x.
// Errors of decoding are kInvalidArgument for requests and kDataLoss for replies.
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

// How far a stream is known to the reader (S3).
struct Position {
  StreamId stream;
  Lsn lsn;
  bool operator==(const Position&) const noexcept = default;
};

struct PageWanted {
  PageId page;
  Llsn at_least;
  Llsn at_most{UINT64_MAX};
  bool operator==(const PageWanted&) const noexcept = default;
};

// Pages, each as it was at some llsn in its range. The caller's epoch of `stream` fences it: a node
// that has promised a higher one does not answer.
struct GetPagesRequest {
  StreamId stream;  // 0: a reader without a stream of its own
  Epoch epoch;
  uint32_t wait_us = 0;  // how long the node may wait for log it does not have yet
  std::vector<PageWanted> pages;
  std::vector<Position> scanned_to;
  // Of a node whose pages compute writes (written_messages.h): it answers only in that write
  // session, so that one which was restarted, and may have lost writes, is not taken at its word.
  // 0: any.
  uint64_t session = 0;
  bool operator==(const GetPagesRequest&) const noexcept = default;
};

// In the order asked for. `bytes` is a sealed page when `status` is OK, else empty.
struct PageGot {
  Status status;
  Llsn llsn;
  std::string bytes;
};
// How a storage node gets on with the log, as far as it knows that to be durable.
struct ReplayProgress {
  uint64_t backlog_bytes = 0;   // not replayed
  uint64_t scan_lag_bytes = 0;  // not scanned: a reader of a page that changed there waits for it
  uint64_t scanned_bytes = 0;   // since the node was started; only grows
  bool operator==(const ReplayProgress&) const noexcept = default;
};
struct GetPagesReply {
  std::vector<PageGot> pages;
  ReplayProgress progress;
};
// The same reply with the pages where they are: in the sender's memory, in the bytes that came.
struct PageView {
  Status status;
  Llsn llsn;
  Bytes bytes;
};
struct GetPagesReplyView {
  std::vector<PageView> pages;
  ReplayProgress progress;
};

// Of a storage node that replays several logs, each as far as it is known to be durable here; or,
// from one that has said that it is not so far yet, as far as it said then. A node that waited for
// ever later ends of logs would never answer while others write faster than it scans.
struct ListSpacesRequest {
  std::vector<Position> scanned_to;
  bool operator==(const ListSpacesRequest&) const noexcept = default;
};
struct ListSpacesReply {
  std::vector<SpaceId> spaces;
  Llsn as_of;  // storage nodes that replay: none is missing that was made up to here
  uint64_t scanned_bytes = 0;
  // Not empty: it is not so far, and knows no spaces; to be asked again with these.
  std::vector<Position> waits_for;
  bool operator==(const ListSpacesReply&) const noexcept = default;
};

// A reader holds back the collection of versions at and above `oldest`, until the lease's time is
// over. Renewed by asking again; `ttl_ms` 0 gives it up.
struct ReaderLeaseRequest {
  uint64_t reader = 0;  // random, not 0
  Llsn oldest;
  uint32_t ttl_ms = 0;
  bool operator==(const ReaderLeaseRequest&) const noexcept = default;
};

std::string encode(const GetPagesRequest& request);
StatusOr<GetPagesRequest> decode_get_pages(Bytes bytes);
std::string encode(const GetPagesReply& reply);
std::string encode(const GetPagesReplyView& reply);
StatusOr<GetPagesReply> decode_get_pages_reply(Bytes bytes);
StatusOr<GetPagesReplyView> view_get_pages_reply(Bytes bytes);  // valid as long as `bytes`

std::string encode(const ListSpacesRequest& request);
StatusOr<ListSpacesRequest> decode_list_spaces(Bytes bytes);
std::string encode(const ListSpacesReply& reply);
StatusOr<ListSpacesReply> decode_list_spaces_reply(Bytes bytes);
std::string encode(const ReaderLeaseRequest& request);
StatusOr<ReaderLeaseRequest> decode_reader_lease(Bytes bytes);

}  // namespace strata::proto
