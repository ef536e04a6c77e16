// The calls of servers that write the same tables to the memory node between them, as bytes. Pure.
//   FN1  What decodes is well formed: a server, its life and an epoch are named, kinds and modes
//        are known, sizes are within limits, nothing is left over. Whether it makes sense is for
//        the memory node's state machines to judge (FW2).
//   FN2  decode(encode(x)) == x.
//   FN3  Whoever encodes keeps to the limits: lists are cut into several messages before, which
//        FW3 and FW5 allow.
// Errors of decoding are kInvalidArgument for requests and kDataLoss for replies. Answers without
// anything to say have no bytes. What the calls do: memnode/fusion/fusion_service.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/fusion.h"
#include "proto/fusion_locks.h"
#include "proto/methods.h"
#include "proto/name_messages.h"
#include "proto/page_locks.h"

namespace strata::proto {

// --- who takes part ---

// Where a server shows its transactions (TitSlot): a region of the memory node's, that the server
// writes and all read.
struct FusionTable {
  std::string region;
  uint32_t slots = 0;  // a power of two
  bool operator==(const FusionTable&) const noexcept = default;
};
struct FusionJoinRequest {
  NodeId server;
  uint64_t life = 0;   // random, of the server's process; not 0
  bool alone = false;  // no earlier process of the server's is there any more
  std::string token;   // the tenant's
  bool operator==(const FusionJoinRequest&) const noexcept = default;
};
struct FusionJoinReply {
  Epoch epoch;
  std::string times;   // names of regions: proto/fusion.h
  std::string pool;    // `slots` pages
  uint32_t slots = 0;  // 0: pages are not shared
  FusionTable table;   // its own
  bool operator==(const FusionJoinReply&) const noexcept = default;
};
struct FusionRenewRequest {
  Heartbeat beat;
  uint64_t members = 0;  // the version of the list that it has heard
  // The generation of the placement by which it finds pages on storage nodes: it never goes back to
  // an older one. 0: it does not know yet; the largest: it reads none there.
  uint64_t placement = 0;
};
struct FusionServer {
  NodeId server;
  uint64_t life = 0;
  FusionTable table;
  bool operator==(const FusionServer&) const noexcept = default;
};
struct FusionRenewReply {
  HeartbeatReply reply;
  uint64_t members = 0;               // version of the list,
  std::vector<FusionServer> servers;  // which comes only if it is another one than was heard
};
// Of calls that say who calls, and nothing else.
struct FusionCallerRequest {
  PageCaller caller;
};

struct FusionLeaveRequest {
  PageCaller caller;
  StreamPosition end;  // of its log; durable
};

// The caller keeps the connection that this comes with for as long as it may use anything.
struct FusionLineRequest {
  PageCaller caller;
  std::string own_end;  // transport::KeptConnection::own_end()
};
constexpr size_t kOwnEndBytesMax = 128;

// --- pages ---

struct AskPagesRequest {
  PageCaller caller;
  std::vector<PageAsk> asks;
  uint32_t wait_us = 0;  // for the first of them that is granted
};
struct AskPagesReply {
  std::vector<PageGrant> grants;
};
struct ReportPagesRequest {
  PageCaller caller;
  std::vector<PageReport> reports;
};
struct TakePageSlotsRequest {
  PageCaller caller;
  uint64_t request = 0;  // not 0; grows with each answer. The last one's is given again
  uint32_t wanted = 0;
  uint32_t wait_us = 0;  // for one at least
};
struct TakePageSlotsReply {
  std::vector<uint32_t> slots;
};
struct AdoptPagesRequest {
  PageCaller caller;
  NodeId place;
  PageId from;  // in the order of their ids
};
struct AdoptPagesReply {
  bool more = false;  // go on behind the last one
  std::vector<PageId> pages;
};
// Of pages and of names.
struct AdoptionEndedRequest {
  PageCaller caller;
  NodeId place;
  StreamPosition end;  // of pages: of the dead server's log, as it was found
};
struct WriteBackPagesRequest {
  PageCaller caller;
  StreamId stream;
  Lsn below;
  uint32_t wait_us = 0;
};
struct WriteBackPagesReply {
  Lsn oldest;  // the first change of the stream that storage may lack; the largest: none
};
struct ForgetSpacePagesRequest {
  PageCaller caller;
  SpaceId space;
};

// --- what the memory node has to say ---

struct OwnerQuestion {
  uint64_t number = 0;
  TrxId trx;
  bool decided = false;  // the answer is to come once there is an outcome
  bool operator==(const OwnerQuestion&) const noexcept = default;
};
struct FusionEventsRequest {
  PageCaller caller;
  uint32_t wait_us = 0;
};
struct FusionEventsReply {
  std::vector<PageGrant> grants;
  std::vector<PageGiveUp> give_ups;
  std::vector<OwnerQuestion> questions;
  NameNews names;
};

// --- transactions of other servers (txn/tit_source.h) ---

struct AskOwnerRequest {
  PageCaller caller;
  TrxId trx;
  bool decided = false;
  uint32_t wait_us = 0;
};
struct TrxOutcome {
  uint8_t state = 0;  // TrxState
  Cts cts;
  Lsn commit;
  bool operator==(const TrxOutcome&) const noexcept = default;
};
struct OwnerAnswer {
  uint64_t number = 0;  // of the question
  Status status;
  TrxOutcome outcome;  // where OK
};
struct AnswerAskersRequest {
  PageCaller caller;
  std::vector<OwnerAnswer> answers;
};

// --- row locks: LockBatch and LockReply ---

struct RowLockEventsRequest {
  PageCaller caller;
  uint64_t heard = 0;
  uint32_t wait_us = 0;
};

// What a deadlock's event carries (DeadlockWait). Too many waits: none are told. Errors:
// kCorruption.
std::string encode(const std::vector<DeadlockWait>& waits);
StatusOr<std::vector<DeadlockWait>> decode_deadlock(Bytes bytes);

// How many bytes it takes in a message, at most.
[[nodiscard]] size_t encoded_bytes(const LockRequest& request) noexcept;
[[nodiscard]] size_t encoded_bytes(const LockEvent& event) noexcept;
// What fits into one message about row locks beside the limits on counts.
constexpr size_t kLockMessageBytesMax = 4u << 20;

std::string encode(const FusionJoinRequest& request);
StatusOr<FusionJoinRequest> decode_fusion_join(Bytes bytes);
std::string encode(const FusionJoinReply& reply);
StatusOr<FusionJoinReply> decode_fusion_join_reply(Bytes bytes);
std::string encode(const FusionRenewRequest& request);
StatusOr<FusionRenewRequest> decode_fusion_renew(Bytes bytes);
std::string encode(const FusionRenewReply& reply);
StatusOr<FusionRenewReply> decode_fusion_renew_reply(Bytes bytes);
std::string encode(const FusionCallerRequest& request);
StatusOr<FusionCallerRequest> decode_fusion_caller(Bytes bytes);
std::string encode(const FusionLeaveRequest& request);
StatusOr<FusionLeaveRequest> decode_fusion_leave(Bytes bytes);
std::string encode(const FusionLineRequest& request);
StatusOr<FusionLineRequest> decode_fusion_line(Bytes bytes);

std::string encode(const AskPagesRequest& request);
StatusOr<AskPagesRequest> decode_ask_pages(Bytes bytes);
std::string encode(const AskPagesReply& reply);
StatusOr<AskPagesReply> decode_ask_pages_reply(Bytes bytes);
std::string encode(const ReportPagesRequest& request);
StatusOr<ReportPagesRequest> decode_report_pages(Bytes bytes);
std::string encode(const TakePageSlotsRequest& request);
StatusOr<TakePageSlotsRequest> decode_take_page_slots(Bytes bytes);
std::string encode(const TakePageSlotsReply& reply);
StatusOr<TakePageSlotsReply> decode_take_page_slots_reply(Bytes bytes);
std::string encode(const AdoptPagesRequest& request);
StatusOr<AdoptPagesRequest> decode_adopt_pages(Bytes bytes);
std::string encode(const AdoptPagesReply& reply);
StatusOr<AdoptPagesReply> decode_adopt_pages_reply(Bytes bytes);
std::string encode(const AdoptionEndedRequest& request);
StatusOr<AdoptionEndedRequest> decode_adoption_ended(Bytes bytes);
std::string encode(const WriteBackPagesRequest& request);
StatusOr<WriteBackPagesRequest> decode_write_back_pages(Bytes bytes);
std::string encode(const WriteBackPagesReply& reply);
StatusOr<WriteBackPagesReply> decode_write_back_pages_reply(Bytes bytes);
std::string encode(const ForgetSpacePagesRequest& request);
StatusOr<ForgetSpacePagesRequest> decode_forget_space_pages(Bytes bytes);

std::string encode(const FusionEventsRequest& request);
StatusOr<FusionEventsRequest> decode_fusion_events(Bytes bytes);
std::string encode(const FusionEventsReply& reply);
StatusOr<FusionEventsReply> decode_fusion_events_reply(Bytes bytes);
std::string encode(const AskOwnerRequest& request);
StatusOr<AskOwnerRequest> decode_ask_owner(Bytes bytes);
std::string encode(const TrxOutcome& outcome);
StatusOr<TrxOutcome> decode_ask_owner_reply(Bytes bytes);
std::string encode(const AnswerAskersRequest& request);
StatusOr<AnswerAskersRequest> decode_answer_askers(Bytes bytes);

std::string encode(const LockBatch& batch);
StatusOr<LockBatch> decode_row_locks(Bytes bytes);
std::string encode(const LockReply& reply);
StatusOr<LockReply> decode_row_locks_reply(Bytes bytes);
std::string encode(const RowLockEventsRequest& request);
StatusOr<RowLockEventsRequest> decode_row_lock_events(Bytes bytes);

}  // namespace strata::proto
