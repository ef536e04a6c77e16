#include "proto/name_messages.h"

#include "proto/internal/message_fields.h"

namespace strata::proto {

using internal::append_caller;
using internal::append_flag;
using internal::append_list;
using internal::decoded;
using internal::read_caller;
using internal::read_flag;
using internal::read_list;
using internal::read_text;

namespace {

constexpr size_t kAskBytesMin = 4 + 1 + 8;
constexpr size_t kReportBytesMin = 4 + 8 + 1;
constexpr size_t kGrantBytesMin = 4 + 1 + 8 + 8;
constexpr size_t kGiveUpBytesMin = 4 + 1 + 8;
constexpr size_t kSpaceBytes = 4;

void append_mode(std::string* out, NameMode mode) { append_u8(out, static_cast<uint8_t>(mode)); }

bool read_mode(ByteReader* in, NameMode* mode) {
  const uint8_t value = in->u8();
  *mode = static_cast<NameMode>(value);
  return *mode == NameMode::kNone || *mode == NameMode::kUse || *mode == NameMode::kShared ||
         *mode == NameMode::kExclusive;
}

void append_ask(std::string* out, const NameAsk& ask) {
  append_bytes32(out, ask.name);
  append_mode(out, ask.mode);
  append_u64(out, ask.ask);
}

bool read_ask(ByteReader* in, NameAsk* ask) {
  const bool fits = read_text(in, kNameBytesMax, &ask->name) && read_mode(in, &ask->mode);
  ask->ask = in->u64();
  return fits && ask->ask != 0;
}

void append_report(std::string* out, const NameReport& report) {
  append_bytes32(out, report.name);
  append_u64(out, report.number);
  append_mode(out, report.keeps);
}

bool read_report(ByteReader* in, NameReport* report) {
  const bool fits = read_text(in, kNameBytesMax, &report->name);
  report->number = in->u64();
  return fits && read_mode(in, &report->keeps) && report->number != 0 &&
         (report->keeps == NameMode::kNone || report->keeps == NameMode::kUse);
}

void append_grant(std::string* out, const NameGrant& grant) {
  append_bytes32(out, grant.name);
  append_mode(out, grant.mode);
  append_u64(out, grant.ask);
  append_u64(out, grant.number);
}

bool read_grant(ByteReader* in, NameGrant* grant) {
  const bool fits = read_text(in, kNameBytesMax, &grant->name) && read_mode(in, &grant->mode);
  grant->ask = in->u64();
  grant->number = in->u64();
  return fits && grant->mode != NameMode::kNone && grant->number != 0;
}

void append_give_up(std::string* out, const NameGiveUp& give_up) {
  append_bytes32(out, give_up.name);
  append_mode(out, give_up.mode);
  append_u64(out, give_up.number);
}

bool read_give_up(ByteReader* in, NameGiveUp* give_up) {
  const bool fits = read_text(in, kNameBytesMax, &give_up->name) && read_mode(in, &give_up->mode);
  give_up->number = in->u64();
  return fits && give_up->mode != NameMode::kNone && give_up->number != 0;
}

// Of SpaceLeave and SpaceIsLeft.
template <class OfSpace>
void append_space_of(std::string* out, const OfSpace& of) {
  append_u32(out, of.space.value);
}

template <class OfSpace>
bool read_space_of(ByteReader* in, OfSpace* of) {
  of->space = SpaceId{in->u32()};
  return true;
}

}  // namespace

std::string encode(const AskNamesRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_list(&out, request.asks, append_ask);
  return out;
}

StatusOr<AskNamesRequest> decode_ask_names(Bytes bytes) {
  return decoded<AskNamesRequest>(
      bytes, error_invalid_argument("not a request for names of tables"),
      [](ByteReader* in, AskNamesRequest* out) {
        return read_caller(in, &out->caller) &&
               read_list(in, kFusionNamesMax, kAskBytesMin, &out->asks, read_ask) &&
               !out->asks.empty();
      });
}

std::string encode(const ReportNamesRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_list(&out, request.reports, append_report);
  return out;
}

StatusOr<ReportNamesRequest> decode_report_names(Bytes bytes) {
  return decoded<ReportNamesRequest>(
      bytes, error_invalid_argument("not a report of names of tables"),
      [](ByteReader* in, ReportNamesRequest* out) {
        return read_caller(in, &out->caller) &&
               read_list(in, kFusionNamesMax, kReportBytesMin, &out->reports, read_report) &&
               !out->reports.empty();
      });
}

std::string encode(const SpaceDroppedRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u32(&out, request.space.value);
  return out;
}

StatusOr<SpaceDroppedRequest> decode_space_dropped(Bytes bytes) {
  return decoded<SpaceDroppedRequest>(bytes,
                                      error_invalid_argument("not a request about a dropped space"),
                                      [](ByteReader* in, SpaceDroppedRequest* out) {
                                        if (!read_caller(in, &out->caller)) return false;
                                        out->space = SpaceId{in->u32()};
                                        return true;
                                      });
}

std::string encode(const SpaceDroppedReply& reply) {
  std::string out;
  append_flag(&out, reply.is_left);
  return out;
}

StatusOr<SpaceDroppedReply> decode_space_dropped_reply(Bytes bytes) {
  return decoded<SpaceDroppedReply>(
      bytes, error_corruption("not a reply about a dropped space"),
      [](ByteReader* in, SpaceDroppedReply* out) { return read_flag(in, &out->is_left); });
}

std::string encode(const LeftSpacesRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_list(&out, request.spaces,
              [](std::string* to, SpaceId space) { append_u32(to, space.value); });
  return out;
}

StatusOr<LeftSpacesRequest> decode_left_spaces(Bytes bytes) {
  return decoded<LeftSpacesRequest>(
      bytes, error_invalid_argument("not a list of spaces that were left"),
      [](ByteReader* in, LeftSpacesRequest* out) {
        return read_caller(in, &out->caller) &&
               read_list(in, kFusionSpacesMax, kSpaceBytes, &out->spaces,
                         [](ByteReader* from, SpaceId* space) {
                           *space = SpaceId{from->u32()};
                           return true;
                         }) &&
               !out->spaces.empty();
      });
}

std::string encode(const ReuseRoundRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u64(&out, request.round);
  return out;
}

StatusOr<ReuseRoundRequest> decode_reuse_round(Bytes bytes) {
  return decoded<ReuseRoundRequest>(bytes,
                                    error_invalid_argument("not a request about a round of reuse"),
                                    [](ByteReader* in, ReuseRoundRequest* out) {
                                      if (!read_caller(in, &out->caller)) return false;
                                      out->round = in->u64();
                                      return out->round != 0;
                                    });
}

std::string encode(const BeginReuseRoundReply& reply) {
  std::string out;
  append_u64(&out, reply.round);
  return out;
}

StatusOr<BeginReuseRoundReply> decode_begin_reuse_round_reply(Bytes bytes) {
  return decoded<BeginReuseRoundReply>(bytes, error_corruption("not the number of a round"),
                                       [](ByteReader* in, BeginReuseRoundReply* out) {
                                         out->round = in->u64();
                                         return out->round != 0;
                                       });
}

std::string encode(const ReuseRoundEndedReply& reply) {
  std::string out;
  append_flag(&out, reply.ended);
  return out;
}

StatusOr<ReuseRoundEndedReply> decode_reuse_round_ended_reply(Bytes bytes) {
  return decoded<ReuseRoundEndedReply>(
      bytes, error_corruption("not a reply about a round of reuse"),
      [](ByteReader* in, ReuseRoundEndedReply* out) { return read_flag(in, &out->ended); });
}

void append_name_news(std::string* out, const NameNews& news) {
  append_list(out, news.grants, append_grant);
  append_list(out, news.give_ups, append_give_up);
  append_list(out, news.leave, append_space_of<SpaceLeave>);
  append_list(out, news.left, append_space_of<SpaceIsLeft>);
  append_u64(out, news.reuse_round);
}

bool read_name_news(ByteReader* in, NameNews* news) {
  const bool well_formed =
      read_list(in, kFusionNamesMax, kGrantBytesMin, &news->grants, read_grant) &&
      read_list(in, kFusionNamesMax, kGiveUpBytesMin, &news->give_ups, read_give_up) &&
      read_list(in, kFusionSpacesMax, kSpaceBytes, &news->leave, read_space_of<SpaceLeave>) &&
      read_list(in, kFusionSpacesMax, kSpaceBytes, &news->left, read_space_of<SpaceIsLeft>);
  news->reuse_round = in->u64();
  return well_formed;
}

}  // namespace strata::proto
