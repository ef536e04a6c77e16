// Transactions of other servers (FV9), and row locks.
#include <algorithm>
#include <utility>

#include "memnode/fusion/fusion_service.h"
#include "memnode/fusion/internal/service_parts.h"

namespace strata::memnode {

using internal::count;
using internal::wait_of;

namespace {
constexpr uint64_t kDescribedMax = 4096;  // lines of a description of waits
}  // namespace

// --- transactions of others ---

void FusionService::ask_owner(Bytes payload, const To& to) {
  serve(proto::decode_ask_owner(payload), &FusionService::ask_about, to, payload.size());
}

// FV9
void FusionService::ask_about(const proto::AskOwnerRequest& request, const To& to) {
  Server* const asker = check(request.caller, to);
  if (asker == nullptr) return;
  Server* const owner = find(node_of(request.trx));
  // What the dead one had for writing nobody gets before its log is redone: its pages tell then.
  if (owner == nullptr || owner->fenced || !owner->member)
    return to->fail(error_not_found(), epoch_.value);
  if (std::max(owner->asked.size(), owner->questions.size()) >= options_.questions_max) {
    count(&counters_.too_many_requests);
    return to->fail(error_busy("too many ask that server about its transactions"), epoch_.value);
  }
  count(&counters_.questions);
  const uint64_t number = ++last_question_;
  owner->asked.emplace(number, Question{to, asker->id, now_us_ + wait_of(request.wait_us)});
  owner->questions.push_back({number, request.trx, request.decided});
  tell(owner);
}

void FusionService::answer_askers(Bytes payload, const To& to) {
  serve(proto::decode_answer_askers(payload), &FusionService::answer, to, payload.size());
}

void FusionService::answer(const proto::AnswerAskersRequest& request, const To& to) {
  Server* const owner = check(request.caller, to);
  if (owner == nullptr) return;
  for (const proto::OwnerAnswer& one : request.answers) {
    const auto question = owner->asked.find(one.number);
    if (question == owner->asked.end()) {
      count(&counters_.answers_late);
      continue;
    }
    count(&counters_.answers);
    const To asker = question->second.to;
    owner->asked.erase(question);
    if (one.status.ok())
      asker->reply(proto::encode(one.outcome), epoch_.value);
    else if (is_not_found(one.status))
      asker->fail(error_not_found(), epoch_.value);
    else  // whatever keeps it from knowing is its own: it is no reason for the asker to end
      asker->fail(error_peer_down("the transaction's server does not know: " +
                                  std::string(one.status.message())),
                  epoch_.value);
  }
  to->reply({}, epoch_.value);
}

void FusionService::end_questions(Server* server, const Status& why) {
  for (const auto& [number, question] : std::exchange(server->asked, {}))
    question.to->fail(why, epoch_.value);
  server->questions.clear();
}

// --- row locks ---

StatusOr<proto::LockReply> FusionService::exchanged(const proto::LockBatch& batch) {
  STRATA_ASSIGN_OR_RETURN(proto::LockReply reply, locks_.exchange(batch));
  size_t bytes = 0;
  for (size_t i = 0; i < reply.events.size(); ++i) {
    bytes += proto::encoded_bytes(reply.events[i]);
    if (i == 0 || bytes <= proto::kLockMessageBytesMax) continue;
    reply.events.resize(i);
    reply.active = false;  // these are not all there are
  }
  return reply;
}

void FusionService::row_locks(Bytes payload, const To& to) {
  serve(proto::decode_row_locks(payload), &FusionService::exchange, to, payload.size());
}

void FusionService::exchange(const proto::LockBatch& batch, const To& to) {
  if (check({batch.server, batch.life, batch.epoch}, to) == nullptr) return;
  proto::LockBatch bounded = batch;
  for (proto::LockRequest& request : bounded.requests)
    if (request.kind == proto::LockRequestKind::kDescribe)
      request.ticket = std::min(request.ticket, kDescribedMax);
  const auto reply = exchanged(bounded);
  if (refused(reply.status(), to)) return;
  to->reply(proto::encode(*reply), epoch_.value);
  tell_locks();
}

void FusionService::row_lock_events(Bytes payload, const To& to) {
  serve(proto::decode_row_lock_events(payload), &FusionService::lock_events, to, payload.size());
}

// FV5
void FusionService::lock_events(const proto::RowLockEventsRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr) return;
  proto::LockBatch poll;
  poll.server = request.caller.server;
  poll.life = request.caller.life;
  poll.epoch = request.caller.epoch;
  poll.heard = request.heard;
  const auto reply = exchanged(poll);
  if (refused(reply.status(), to)) return;
  if (server->lock_events.has_value()) answer_lock_events(server);
  if (!reply->events.empty() || request.wait_us == 0)
    return to->reply(proto::encode(*reply), epoch_.value);
  server->lock_events = to;
  server->lock_poll = poll;
  server->lock_events_until_us = now_us_ + wait_of(request.wait_us);
}

void FusionService::tell_locks() {
  for (auto& [number, server] : servers_)
    if (server.lock_events.has_value() && locks_.has_events(server.id)) answer_lock_events(&server);
}

void FusionService::answer_lock_events(Server* server) {
  const To to = *std::exchange(server->lock_events, std::nullopt);
  const auto reply = exchanged(server->lock_poll);
  if (!refused(reply.status(), to)) to->reply(proto::encode(*reply), epoch_.value);
}

}  // namespace strata::memnode
