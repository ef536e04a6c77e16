// Locks on names of tables, dropped spaces and rounds of page reuse (name_locks.h), as bytes: what
// servers that write the same tables call their memory node for, and what it has to say to them.
// Pure. FN1-FN3 (fusion_messages.h) hold here, too; what the calls do: memnode/fusion.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/methods.h"
#include "proto/name_locks.h"

namespace strata::proto {

struct AskNamesRequest {
  NameCaller caller;
  std::vector<NameAsk> asks;
};
struct ReportNamesRequest {
  NameCaller caller;
  std::vector<NameReport> reports;
};
struct SpaceDroppedRequest {
  NameCaller caller;
  SpaceId space;
};
struct SpaceDroppedReply {
  bool is_left = false;  // by all others; if not, that is told once it is so
};
struct LeftSpacesRequest {
  NameCaller caller;
  std::vector<SpaceId> spaces;
};
struct ReuseRoundRequest {
  NameCaller caller;
  uint64_t round = 0;
};
struct BeginReuseRoundReply {
  uint64_t round = 0;
};
struct ReuseRoundEndedReply {
  bool ended = false;
};

// What the memory node has to say to a server (FusionEventsReply).
struct NameNews {
  std::vector<NameGrant> grants;
  std::vector<NameGiveUp> give_ups;
  std::vector<SpaceLeave> leave;
  std::vector<SpaceIsLeft> left;
  uint64_t reuse_round = 0;  // the newest that it is asked for (ReuseAsk); 0: none
  [[nodiscard]] bool empty() const noexcept {
    return grants.empty() && give_ups.empty() && leave.empty() && left.empty() && reuse_round == 0;
  }
};

std::string encode(const AskNamesRequest& request);
StatusOr<AskNamesRequest> decode_ask_names(Bytes bytes);
std::string encode(const ReportNamesRequest& request);
StatusOr<ReportNamesRequest> decode_report_names(Bytes bytes);
std::string encode(const SpaceDroppedRequest& request);
StatusOr<SpaceDroppedRequest> decode_space_dropped(Bytes bytes);
std::string encode(const SpaceDroppedReply& reply);
StatusOr<SpaceDroppedReply> decode_space_dropped_reply(Bytes bytes);
std::string encode(const LeftSpacesRequest& request);
StatusOr<LeftSpacesRequest> decode_left_spaces(Bytes bytes);
std::string encode(const ReuseRoundRequest& request);
StatusOr<ReuseRoundRequest> decode_reuse_round(Bytes bytes);
std::string encode(const BeginReuseRoundReply& reply);
StatusOr<BeginReuseRoundReply> decode_begin_reuse_round_reply(Bytes bytes);
std::string encode(const ReuseRoundEndedReply& reply);
StatusOr<ReuseRoundEndedReply> decode_reuse_round_ended_reply(Bytes bytes);

// As the fields "name_news" of another message.
void append_name_news(std::string* out, const NameNews& news);
bool read_name_news(ByteReader* in, NameNews* news);

}  // namespace strata::proto
