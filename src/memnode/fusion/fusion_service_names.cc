// Names of tables, dropped spaces, rounds of page reuse (FV10).
#include "memnode/fusion/fusion_service.h"
#include "memnode/fusion/internal/service_parts.h"

namespace strata::memnode {

// Whoever has something to be told now, and waits for it.
void FusionService::tell_names() {
  for (auto& [number, server] : servers_) tell(&server);
}

void FusionService::ask_names(Bytes payload, const To& to) {
  serve(proto::decode_ask_names(payload), &FusionService::want_names, to, payload.size());
}

void FusionService::want_names(const proto::AskNamesRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr || refused(names_.ask(request, now_us_), to)) return;
  to->reply({}, epoch_.value);
  tell_names();
}

void FusionService::report_names(Bytes payload, const To& to) {
  serve(proto::decode_report_names(payload), &FusionService::note_names, to, payload.size());
}

void FusionService::note_names(const proto::ReportNamesRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr || refused(names_.report(request, now_us_), to)) return;
  to->reply({}, epoch_.value);
  tell_names();
}

void FusionService::names_adopted(Bytes payload, const To& to) {
  serve(proto::decode_adoption_ended(payload), &FusionService::end_name_adoption, to,
        payload.size());
}

void FusionService::end_name_adoption(const proto::AdoptionEndedRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr ||
      refused(names_.adopted(request.caller, request.place, now_us_), to))
    return;
  to->reply({}, epoch_.value);
  tell_names();
}

void FusionService::space_dropped(Bytes payload, const To& to) {
  serve(proto::decode_space_dropped(payload), &FusionService::note_dropped, to, payload.size());
}

void FusionService::note_dropped(const proto::SpaceDroppedRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr) return;
  const StatusOr<bool> is_left = names_.dropped(request, now_us_);
  if (refused(is_left.status(), to)) return;
  to->reply(proto::encode(proto::SpaceDroppedReply{*is_left}), epoch_.value);
  tell_names();
}

void FusionService::left_spaces(Bytes payload, const To& to) {
  serve(proto::decode_left_spaces(payload), &FusionService::note_left, to, payload.size());
}

void FusionService::note_left(const proto::LeftSpacesRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr || refused(names_.has_left(request), to)) return;
  to->reply({}, epoch_.value);
  tell_names();
}

void FusionService::begin_reuse_round(Bytes payload, const To& to) {
  serve(proto::decode_fusion_caller(payload), &FusionService::begin_round, to, payload.size());
}

void FusionService::begin_round(const proto::FusionCallerRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr) return;
  const StatusOr<uint64_t> round = names_.begin_round(request.caller, now_us_);
  if (refused(round.status(), to)) return;
  to->reply(proto::encode(proto::BeginReuseRoundReply{*round}), epoch_.value);
  tell_names();
}

void FusionService::reuse_round_ended(Bytes payload, const To& to) {
  serve(proto::decode_reuse_round(payload), &FusionService::look_at_round, to, payload.size());
}

void FusionService::look_at_round(const proto::ReuseRoundRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr) return;
  const StatusOr<bool> ended = names_.round_ended(request);
  if (refused(ended.status(), to)) return;
  to->reply(proto::encode(proto::ReuseRoundEndedReply{*ended}), epoch_.value);
}

void FusionService::report_reuse_round(Bytes payload, const To& to) {
  serve(proto::decode_reuse_round(payload), &FusionService::note_round, to, payload.size());
}

void FusionService::note_round(const proto::ReuseRoundRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr || refused(names_.report_round(request), to)) return;
  to->reply({}, epoch_.value);
}

}  // namespace strata::memnode
