// Pages (FV6, FV8): who has which, what is told to servers that wait, and the way to storage.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <variant>

#include "base/aligned.h"
#include "memnode/fusion/fusion_service.h"
#include "memnode/fusion/internal/service_parts.h"
#include "page/page.h"

namespace strata::memnode {

using internal::count;
using internal::wait_of;

namespace {
constexpr size_t kWriteBacksMax = 4096;
constexpr size_t kSlotWaitsMax = 1024;
constexpr size_t kAskWaitsMax = 256;    // calls of a server
constexpr size_t kAsksWaitingMax = 64;  // asks of one call
}  // namespace

// --- pages ---

void FusionService::ask_pages(Bytes payload, const To& to) {
  serve(proto::decode_ask_pages(payload), &FusionService::ask, to, payload.size());
}

void FusionService::ask(const proto::AskPagesRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr || refused(pages_.ask(request.caller, request.asks, now_us_), to)) return;
  proto::AskPagesReply reply;
  say_pages(server->id, &reply.grants);
  end_same_asks(server, request.asks.front().ask);
  const bool waits = reply.grants.empty() && request.wait_us != 0;
  if (!waits || request.asks.size() > kAsksWaitingMax || server->ask_waits.size() >= kAskWaitsMax)
    return to->reply(proto::encode(reply), epoch_.value);
  AskWait wait{to, {}, now_us_ + wait_of(request.wait_us)};  // FV12
  for (const proto::PageAsk& one : request.asks) wait.asks.push_back(one.ask);
  server->ask_waits.push_back(std::move(wait));
  count(&counters_.asks_waiting);
}

// FV12. Whoever says an ask again does not listen to the answer of the first one any more.
void FusionService::end_same_asks(Server* server, uint64_t ask) {
  std::erase_if(server->ask_waits, [this, ask](const AskWait& wait) {
    if (wait.asks.front() != ask) return false;
    wait.to->reply(proto::encode(proto::AskPagesReply{}), epoch_.value);
    return true;
  });
}

// FV12. False: nobody waits for it.
bool FusionService::answer_ask(Server* server, proto::PageGrant* grant) {
  const auto waits_for = [grant](const AskWait& wait) {
    return std::find(wait.asks.begin(), wait.asks.end(), grant->ask) != wait.asks.end();
  };
  const auto found = std::find_if(server->ask_waits.begin(), server->ask_waits.end(), waits_for);
  if (found == server->ask_waits.end()) return false;
  const To to = std::move(found->to);
  server->ask_waits.erase(found);
  proto::AskPagesReply reply;
  reply.grants.push_back(std::move(*grant));
  count(&counters_.pages_told);
  to->reply(proto::encode(reply), epoch_.value);
  return true;
}

void FusionService::expire_asks(Server* server) {
  std::erase_if(server->ask_waits, [this](const AskWait& wait) {
    if (now_us_ < wait.until_us) return false;
    wait.to->reply(proto::encode(proto::AskPagesReply{}), epoch_.value);
    return true;
  });
}

void FusionService::report_pages(Bytes payload, const To& to) {
  serve(proto::decode_report_pages(payload), &FusionService::report, to, payload.size());
}

void FusionService::report(const proto::ReportPagesRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr || refused(pages_.report(request.caller, request.reports, now_us_), to))
    return;
  to->reply({}, epoch_.value);
  say_pages(NodeId{}, nullptr);
  answer_slot_waits();  // an older version's slot is free
  start_writes();
}

void FusionService::take_page_slots(Bytes payload, const To& to) {
  serve(proto::decode_take_page_slots(payload), &FusionService::take_slots, to, payload.size());
}

void FusionService::take_slots(const proto::TakePageSlotsRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr) return;
  auto slots = pages_.take_slots(request.caller, request.request, request.wanted);
  if (refused(slots.status(), to)) return;
  if (slots->empty() && request.wait_us != 0 && slot_waits_.size() < kSlotWaitsMax)
    slot_waits_.push_back({request, to, now_us_ + wait_of(request.wait_us)});
  else
    to->reply(proto::encode(proto::TakePageSlotsReply{*std::move(slots)}), epoch_.value);
  start_writes();
}

// Nobody waits while there is a slot: so nobody who comes later is given one first.
void FusionService::answer_slot_waits() {
  for (auto at = slot_waits_.begin(); at != slot_waits_.end();) {
    const proto::TakePageSlotsRequest& request = at->request;
    auto slots = pages_.take_slots(request.caller, request.request, request.wanted);
    if (slots.ok() && slots->empty() && now_us_ < at->until_us) {
      ++at;
      continue;
    }
    if (!refused(slots.status(), at->to))
      at->to->reply(proto::encode(proto::TakePageSlotsReply{*std::move(slots)}), epoch_.value);
    at = slot_waits_.erase(at);
  }
}

void FusionService::adopt_pages(Bytes payload, const To& to) {
  serve(proto::decode_adopt_pages(payload), &FusionService::adopt, to, payload.size());
}

void FusionService::adopt(const proto::AdoptPagesRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr ||
      refused(pages_.adopt(request.caller, request.place), to))
    return;
  // All of them were the place's when it was released; what is granted to be redone meanwhile goes
  // out of the list of the dead, but is the adopter's all the same.
  AdoptedList& list = adopted_[request.place.value];
  if (list.life != request.caller.life) {
    list = {request.caller.life, {}};
    for (const fusion::Pages::DeadPage& page : pages_.dead_pages(request.place))
      list.pages.push_back(page.page);
    std::sort(list.pages.begin(), list.pages.end());
  }
  proto::AdoptPagesReply reply;
  auto at = std::lower_bound(list.pages.begin(), list.pages.end(), request.from);
  for (; at != list.pages.end() && reply.pages.size() < proto::kListedPagesMax; ++at)
    reply.pages.push_back(*at);
  reply.more = at != list.pages.end();
  to->reply(proto::encode(reply), epoch_.value);
}

void FusionService::adoption_ended(Bytes payload, const To& to) {
  serve(proto::decode_adoption_ended(payload), &FusionService::end_adoption, to, payload.size());
}

void FusionService::end_adoption(const proto::AdoptionEndedRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr ||
      refused(pages_.adoption_ended(request.caller, request.place, request.end), to))
    return;
  const auto list = adopted_.find(request.place.value);
  if (list != adopted_.end() && list->second.life == server->life) {
    adopted_.erase(list);
    // Who has its own place again says so by its report of row locks.
    if (request.place != server->id) locks_.adopted(request.place, server->id);
  }
  to->reply({}, epoch_.value);
  say_pages(NodeId{}, nullptr);
  tell_locks();
}

void FusionService::write_back_pages(Bytes payload, const To& to) {
  serve(proto::decode_write_back_pages(payload), &FusionService::write_back, to, payload.size());
}

void FusionService::write_back(const proto::WriteBackPagesRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr) return;
  const Lsn oldest = pages_.oldest(request.stream);
  if (oldest >= request.below || request.wait_us == 0)
    return to->reply(proto::encode(proto::WriteBackPagesReply{oldest}), epoch_.value);
  if (write_backs_.size() >= kWriteBacksMax) {
    count(&counters_.too_many_requests);
    return to->fail(error_busy("too many wait for pages to be written"), epoch_.value);
  }
  write_backs_.push_back(
      {server->id, to, request.stream, request.below, now_us_ + wait_of(request.wait_us)});
  start_writes();
}

void FusionService::answer_write_backs() {
  for (auto at = write_backs_.begin(); at != write_backs_.end();) {
    const Lsn oldest = pages_.oldest(at->stream);
    if (oldest < at->below && now_us_ < at->until_us) {
      ++at;
      continue;
    }
    at->to->reply(proto::encode(proto::WriteBackPagesReply{oldest}), epoch_.value);
    at = write_backs_.erase(at);
  }
}

void FusionService::forget_space_pages(Bytes payload, const To& to) {
  serve(proto::decode_forget_space_pages(payload), &FusionService::forget_space, to,
        payload.size());
}

// Whoever drops it is answered once nothing of it is on its way to storage.
void FusionService::forget_space(const proto::ForgetSpacePagesRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr) return;
  pages_.forget_space(request.space);
  say_pages(NodeId{}, nullptr);
  answer_write_backs();
  answer_slot_waits();
  if (writing_) return after_write_.push_back(to);
  to->reply({}, epoch_.value);
}

// --- what there is to be said about pages ---

// FV6. What `self` is granted goes to *granted, which it is answered with.
void FusionService::say_pages(NodeId self, std::vector<proto::PageGrant>* granted) {
  for (fusion::Pages::Outgoing& out : pages_.take_outgoing()) {
    auto* const grant = std::get_if<proto::PageGrant>(&out.message);
    if (grant != nullptr && granted != nullptr && out.server == self &&
        granted->size() < proto::kFusionPagesMax) {
      granted->push_back(std::move(*grant));
      continue;
    }
    Server* const server = find(out.server);
    if (server == nullptr || server->life != out.life || server->fenced) continue;
    if (grant != nullptr && answer_ask(server, grant)) continue;
    if (server->grants.size() + server->give_ups.size() >= options_.said_max) {
      count(&counters_.pages_untold);
      continue;
    }
    if (grant != nullptr)
      server->grants.push_back(std::move(*grant));
    else
      server->give_ups.push_back(std::get<proto::PageGiveUp>(out.message));
  }
  for (auto& [number, server] : servers_) tell(&server);
}

void FusionService::tell(Server* server) {
  const bool silent = server->grants.empty() && server->give_ups.empty() &&
                      server->questions.empty() && !names_.has_news(server->id);
  if (server->events.has_value() && !silent) answer_events(server);
}

namespace {

template <class T>
void take_some(std::deque<T>* from, size_t max, std::vector<T>* to) {
  const auto end = from->begin() + static_cast<ptrdiff_t>(std::min(from->size(), max));
  to->assign(std::make_move_iterator(from->begin()), std::make_move_iterator(end));
  from->erase(from->begin(), end);
}

}  // namespace

void FusionService::answer_events(Server* server) {
  const To to = *std::exchange(server->events, std::nullopt);
  proto::FusionEventsReply reply;
  take_some(&server->grants, proto::kFusionPagesMax, &reply.grants);
  take_some(&server->give_ups, proto::kFusionPagesMax, &reply.give_ups);
  take_some(&server->questions, proto::kFusionQuestionsMax, &reply.questions);
  reply.names = names_.take_news(server->id);
  count(&counters_.pages_told, reply.grants.size() + reply.give_ups.size());
  to->reply(proto::encode(reply), epoch_.value);
}

void FusionService::fusion_events(Bytes payload, const To& to) {
  serve(proto::decode_fusion_events(payload), &FusionService::events, to, payload.size());
}

// FV5
void FusionService::events(const proto::FusionEventsRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr) return;
  // Whoever sent the other one does not listen to it any more: it gets nothing.
  if (server->events.has_value())
    (*std::exchange(server->events, std::nullopt))
        ->reply(proto::encode(proto::FusionEventsReply{}), epoch_.value);
  server->events = to;
  server->events_until_us = now_us_ + wait_of(request.wait_us);
  if (request.wait_us == 0) return answer_events(server);
  tell(server);
}

// --- to storage ---

void FusionService::start_writes() {
  if (parts_.store == nullptr || writing_ || pages_.dirty_pages() == 0) return;
  const bool wanted = !write_backs_.empty() || !slot_waits_.empty() ||
                      pages_.free_slots() < options_.pages.slots / 8;
  if (now_us_ < write_at_us_ && (write_failed_ || !wanted)) return;
  constexpr uint32_t kWriteBatch = 64;
  const bool all = wanted || now_us_ < options_.write_age_us;
  std::vector<fusion::Pages::Write> writes =
      pages_.begin_writes(kWriteBatch, all ? UINT64_MAX : now_us_ - options_.write_age_us);
  if (writes.empty()) return;
  writing_ = true;
  const bool runs = run_blocking([this, writes] {
    std::vector<bool> synced;
    write_slots(writes, &synced);
    post_always([this, writes, synced] { writes_ended(writes, synced); });
  });
  if (!runs) writes_ended(writes, std::vector<bool>(writes.size(), false));
}

// FV8. A slot that is being written is nobody's to put into.
void FusionService::write_slots(const std::vector<fusion::Pages::Write>& writes,
                                std::vector<bool>* synced) {
  synced->assign(writes.size(), false);
  const AlignedBytes copies(writes.size() * size_t{kPageBytes});
  std::vector<PageStore::Image> images;
  std::vector<size_t> which;
  for (size_t i = 0; i < writes.size(); ++i) {
    char* const copy = copies.get() + i * size_t{kPageBytes};
    std::memcpy(copy, pool_->data() + uint64_t{writes[i].slot} * kPageBytes, kPageBytes);
    if (header_of(copy)->llsn == writes[i].llsn.value && verify_page(copy, writes[i].page).ok()) {
      images.push_back({writes[i].page, writes[i].llsn, copy});
      which.push_back(i);
      continue;
    }
    count(&counters_.slots_damaged);
  }
  std::vector<Status> results(images.size(), error_peer_down("not written"));
  if (!images.empty()) parts_.store->write(images, absl::MakeSpan(results));
  for (size_t i = 0; i < results.size(); ++i) {
    (*synced)[which[i]] = results[i].ok();
    count(results[i].ok() ? &counters_.pages_written : &counters_.writes_failed);
  }
}

void FusionService::writes_ended(const std::vector<fusion::Pages::Write>& writes,
                                 const std::vector<bool>& synced) {
  for (size_t i = 0; i < writes.size(); ++i) pages_.write_ended(writes[i], synced[i]);
  writing_ = false;
  write_failed_ = std::find(synced.begin(), synced.end(), false) != synced.end();
  write_at_us_ = now_us_ + (write_failed_ ? options_.write_again_us : options_.write_pause_us);
  for (const To& to : std::exchange(after_write_, {})) to->reply({}, epoch_.value);
  answer_write_backs();
  answer_slot_waits();
  start_writes();
}

}  // namespace strata::memnode
