#include "clients/fusion/remote_names.h"

#include <string>

#include "proto/fusion_messages.h"
#include "proto/methods.h"

namespace strata::clients {

Status RemoteNames::ask(const std::vector<proto::NameAsk>& asks) {
  for (size_t from = 0; from < asks.size(); from += proto::kFusionNamesMax) {
    const proto::AskNamesRequest request{calls_->caller(),
                                         part_of(asks, from, proto::kFusionNamesMax)};
    STRATA_RETURN_IF_ERROR(calls_->call(proto::kAskNames, proto::encode(request)).status());
  }
  return ok_status();
}

Status RemoteNames::report(const std::vector<proto::NameReport>& reports) {
  for (size_t from = 0; from < reports.size(); from += proto::kFusionNamesMax) {
    const proto::ReportNamesRequest request{calls_->caller(),
                                            part_of(reports, from, proto::kFusionNamesMax)};
    STRATA_RETURN_IF_ERROR(calls_->call(proto::kReportNames, proto::encode(request)).status());
  }
  return ok_status();
}

Status RemoteNames::adoption_ended() {
  const proto::AdoptionEndedRequest request{calls_->caller(), calls_->caller().server, {}};
  return calls_->call(proto::kNamesAdopted, proto::encode(request)).status();
}

StatusOr<bool> RemoteNames::space_dropped(SpaceId space) {
  const proto::SpaceDroppedRequest request{calls_->caller(), space};
  STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                          calls_->call(proto::kSpaceDropped, proto::encode(request)));
  STRATA_ASSIGN_OR_RETURN(const proto::SpaceDroppedReply reply,
                          proto::decode_space_dropped_reply(bytes));
  return reply.is_left;
}

Status RemoteNames::has_left(const std::vector<SpaceId>& spaces) {
  for (size_t from = 0; from < spaces.size(); from += proto::kFusionSpacesMax) {
    const proto::LeftSpacesRequest request{calls_->caller(),
                                           part_of(spaces, from, proto::kFusionSpacesMax)};
    STRATA_RETURN_IF_ERROR(calls_->call(proto::kLeftSpaces, proto::encode(request)).status());
  }
  return ok_status();
}

StatusOr<uint64_t> RemoteNames::begin_round() {
  const proto::FusionCallerRequest request{calls_->caller()};
  STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                          calls_->call(proto::kBeginReuseRound, proto::encode(request)));
  STRATA_ASSIGN_OR_RETURN(const proto::BeginReuseRoundReply reply,
                          proto::decode_begin_reuse_round_reply(bytes));
  return reply.round;
}

StatusOr<bool> RemoteNames::round_ended(uint64_t round) {
  const proto::ReuseRoundRequest request{calls_->caller(), round};
  STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                          calls_->call(proto::kReuseRoundEnded, proto::encode(request)));
  STRATA_ASSIGN_OR_RETURN(const proto::ReuseRoundEndedReply reply,
                          proto::decode_reuse_round_ended_reply(bytes));
  return reply.ended;
}

Status RemoteNames::report_round(uint64_t round) {
  const proto::ReuseRoundRequest request{calls_->caller(), round};
  return calls_->call(proto::kReportReuseRound, proto::encode(request)).status();
}

}  // namespace strata::clients
