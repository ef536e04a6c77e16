// In the place of a memory node that is gone (FV11): what servers still have, until all were heard.
#include <utility>

#include "base/diag.h"
#include "memnode/fusion/fusion_service.h"
#include "memnode/fusion/internal/service_parts.h"

namespace strata::memnode {

using internal::count;
using internal::has_ended;
using internal::not_yours;

void FusionService::expect(const fusion::Member& member) {
  Server& server = servers_[member.server.value];
  server.id = member.server;
  server.life = member.life;
  server.expected = true;
  if (recovers_) return;
  recovers_ = true;
  pages_.recover();
  names_.recover();
}

void FusionService::fusion_resume(Bytes payload, const To& to) {
  serve(proto::decode_fusion_resume(payload), &FusionService::resume, to, payload.size());
}

void FusionService::resume(const proto::FusionResumeRequest& request, const To& to) {
  const Status resumed = try_resume(request);
  if (!resumed.ok()) {
    count(is_fenced(resumed) ? &counters_.stale_calls : &counters_.calls_unready);
    return to->fail(resumed, epoch_.value);
  }
  to->reply(proto::encode(join_reply(*find(request.caller.server))), epoch_.value);
}

// peer_down: not yet.
Status FusionService::try_resume(const proto::FusionResumeRequest& request) {
  STRATA_RETURN_IF_ERROR(check_tenant(request.token));
  const proto::PageCaller& caller = request.caller;
  if (caller.epoch > epoch_) return error_peer_down("a later memory node serves this server");
  if (authority().phase(now_us_) == fusion::Authority::Phase::kDeposed) return has_ended();
  Server* const server = find(caller.server);
  const bool is_known = server != nullptr && server->life == caller.life && server->expected;
  if (!is_known || server->fenced) return not_yours();
  // Who has said everything, and did not hear that it was heard, begins anew.
  if (server->member && caller.epoch == epoch_) return not_yours();
  if (!authority().serves(now_us_))
    return error_peer_down("this memory node does not know yet that it serves");
  if (!wants_table(server)) return error_peer_down("memory for this server is being made");
  STRATA_RETURN_IF_ERROR(time_->join(caller.server, caller.life, now_us_));
  STRATA_RETURN_IF_ERROR(pages_.joined(caller.server, caller.life));
  STRATA_RETURN_IF_ERROR(names_.joined(caller.server, caller.life));
  server->speaks = true;
  return ok_status();
}

// FV1, of whoever says what it has.
FusionService::Server* FusionService::check_speaker(const proto::PageCaller& caller, const To& to) {
  Server* const server = find(caller.server);
  const bool speaks = server != nullptr && server->life == caller.life && server->speaks;
  if (caller.epoch != epoch_ || !speaks || server->fenced) {
    check_life(caller, to);  // says why not
    return nullptr;
  }
  if (authority().serves(now_us_)) return server;
  count(&counters_.calls_unready);
  to->fail(error_peer_down("the memory node cannot tell whether it still serves"), epoch_.value);
  return nullptr;
}

void FusionService::report_held_pages(Bytes payload, const To& to) {
  serve(proto::decode_report_held_pages(payload), &FusionService::hear_pages, to, payload.size());
}

void FusionService::hear_pages(const proto::ReportHeldPagesRequest& request, const To& to) {
  Server* const server = check_speaker(request.caller, to);
  if (server == nullptr) return;
  if (!server->member && refused(pages_.holds(request.caller, request.pages), to)) return;
  to->reply({}, epoch_.value);
}

void FusionService::report_held_names(Bytes payload, const To& to) {
  serve(proto::decode_report_held_names(payload), &FusionService::hear_names, to, payload.size());
}

void FusionService::hear_names(const proto::ReportHeldNamesRequest& request, const To& to) {
  Server* const server = check_speaker(request.caller, to);
  if (server == nullptr) return;
  if (!server->member && refused(names_.holds(request.caller, request.names), to)) return;
  to->reply({}, epoch_.value);
}

void FusionService::resume_ended(Bytes payload, const To& to) {
  serve(proto::decode_resume_ended(payload), &FusionService::end_resume, to, payload.size());
}

void FusionService::end_resume(const proto::ResumeEndedRequest& request, const To& to) {
  Server* const server = check_speaker(request.caller, to);
  if (server == nullptr) return;
  if (!server->member) {
    server->member = true;
    server->durable = request.durable;
    const uint64_t lease_us = options_.time.authority.lease_us;
    server->lease_end_us = now_us_ + lease_us + lease_us / 8;
    pages_.heard_of(request.page_number);
    names_.resumed(server->id, request.name_number, request.round);
    count(&counters_.resumed);
    list_changed();
    take_snapshot();
  }
  to->reply({}, epoch_.value);
}

// Who says nothing is fenced: nobody is granted anything before that.
void FusionService::look_after_expected() {
  if (!recovers_ || now_us_ < resume_until_us_) return;
  for (auto& [number, server] : servers_) {
    if (!server.expected || server.member || server.fenced) continue;
    count(&counters_.expired);
    diag(Severity::kWarning,
         "fusion: server %u has not told this memory node what it has, and is fenced",
         unsigned{server.id.value});
    fence_member(server.id);
  }
}

FusionRecovery FusionService::recovery() const {
  FusionRecovery now;
  now.recovers = recovers_;
  if (!recovers_) return now;
  now.heard_all = true;
  for (const auto& [number, server] : servers_) {
    if (!server.expected) continue;
    ++now.servers;
    if (server.member) {
      ++now.resumed;
      now.durable[server.id] = server.durable;
    } else {
      now.heard_all = false;
    }
  }
  return now;
}

void FusionService::recovered(const std::vector<proto::StreamPosition>& ends) {
  post_always([this, ends] {
    if (!std::exchange(recovers_, false)) return;
    pages_.know_ends(ends);
    pages_.recovered();
    names_.recovered();
    diag(Severity::kInfo, "fusion: the servers of the memory node before this one go on");
    say_pages(NodeId{}, nullptr);
    tell_locks();
    try_joins();
    take_snapshot();
  });
}

}  // namespace strata::memnode
