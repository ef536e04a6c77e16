#include "storenode/service/page_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "proto/calls/calls.h"
#include "proto/copy_messages.h"
#include "proto/methods.h"
#include "proto/page_messages.h"

namespace strata::storenode {

using transport::Request;
using transport::Responder;

PageService::PageService(PageStore* store, const LogService* logs, Offload offload,
                         std::function<uint64_t()> now_us)
    : store_(store), logs_(logs), offload_(std::move(offload)), now_us_(std::move(now_us)) {}

void PageService::register_on(transport::RpcServer* server) {
  const auto handle = [&](uint16_t method, void (PageService::*run)(Bytes, Responder)) {
    proto::serve(server, method, [this, run](const Request& call, Responder responder) {
      if (const Status may = logs_->may_serve(); !may.ok()) return responder.fail(may);  // LSV4
      (this->*run)(call.payload, std::move(responder));
    });
  };
#define STRATA_PAGE_METHOD(number, constant, counter, ...) \
  handle(proto::constant, &PageService::counter);
#define STRATA_PEER_METHOD STRATA_PAGE_METHOD
#include "proto/methods.def"
}

namespace {

constexpr uint64_t kScanUsMax = 1'000'000;

GetPageRequest request_for(const proto::GetPagesRequest& wanted, size_t i, uint64_t deadline_us,
                           bool from_peer) {
  const proto::PageWanted& page = wanted.pages[i];
  GetPageRequest request{page.page, page.at_least, page.at_most, {}, deadline_us, from_peer};
  for (const proto::Position& position : wanted.scanned_to)
    request.scanned_to.push_back({position.stream, position.lsn});
  return request;
}

proto::ReplayProgress on_the_wire(const ReplayProgress& progress) {
  return {progress.backlog_bytes, progress.scan_lag_bytes, progress.scanned_bytes};
}

proto::PageView view_of(const StatusOr<PageAnswer>& answer) {
  if (!answer.ok()) return {answer.status(), {}, {}};
  return {ok_status(), answer->llsn, Bytes(answer->page->bytes, kPageBytes)};
}

}  // namespace

// One call under way: its pages come in any order, from any thread; whoever brings the last one
// answers.
struct PageService::Answering {
  Responder responder;
  std::vector<StatusOr<PageAnswer>> answers;
  std::atomic<size_t> missing{0};
};

void PageService::get_pages(Bytes payload, Responder responder) {
  answer_pages(payload, std::move(responder), /*from_peer=*/false);
}

void PageService::peer_pages(Bytes payload, Responder responder) {
  answer_pages(payload, std::move(responder), /*from_peer=*/true);
}

void PageService::answer_pages(Bytes payload, Responder responder, bool from_peer) {
  auto request = proto::decode_get_pages(payload);
  if (!request.ok()) return responder.fail(request.status());
  if (!request->stream.is_zero()) {
    const Status allowed = logs_->check_epoch(request->stream, request->epoch);  // PS1
    if (!allowed.ok()) return responder.fail(allowed);
  }
  if (answer_at_hand(*request, from_peer, &responder)) return;
  auto answering = std::make_shared<Answering>();
  answering->responder = std::move(responder);
  answering->answers.resize(request->pages.size());
  answering->missing = request->pages.size();
  const bool taken = offload_([this, answering, from_peer, wanted = *std::move(request)] {
    const uint64_t deadline_us = now_us_() + std::min(wanted.wait_us, proto::kPageWaitUsMax);
    for (size_t i = 0; i < wanted.pages.size(); ++i)
      store_->get_page(request_for(wanted, i, deadline_us, from_peer),
                       [this, answering, i](StatusOr<PageAnswer> answer) {
                         answering->answers[i] = std::move(answer);
                         const size_t missing = answering->missing.fetch_sub(1);
                         STRATA_ASSERT(missing != 0);  // each page is answered once
                         if (missing == 1) answer_all(answering.get());
                       });
  });
  if (!taken) answering->responder.fail(error_busy("too many requests for pages wait"));
}

void PageService::answer_all(Answering* answering) {
  STRATA_ASSERT(answering->missing.load() == 0);
  proto::GetPagesReplyView reply;
  reply.pages.reserve(answering->answers.size());
  for (const StatusOr<PageAnswer>& answer : answering->answers)
    reply.pages.push_back(view_of(answer));
  pages_sent_.fetch_add(reply.pages.size());
  reply.progress = on_the_wire(store_->progress());
  answering->responder.reply(proto::encode(reply));
}

// PS3
bool PageService::answer_at_hand(const proto::GetPagesRequest& wanted, bool from_peer,
                                 Responder* responder) {
  if (wanted.pages.size() != 1) return false;
  auto found = store_->page_at_hand(request_for(wanted, 0, 0, from_peer));
  if (!found.has_value()) return false;
  pages_sent_.fetch_add(1);
  const StatusOr<PageAnswer> answer(std::move(found->page));
  responder->reply(
      proto::encode(proto::GetPagesReplyView{{view_of(answer)}, on_the_wire(found->progress)}));
  return true;
}

// PS4. Nobody waits in this node's threads for the scan: any page will do to wait with.
void PageService::list_spaces(Bytes payload, Responder responder) {
  auto request = proto::decode_list_spaces(payload);
  if (!request.ok()) return responder.fail(request.status());
  auto to = std::make_shared<Responder>(std::move(responder));
  const bool taken = offload_([this, to, named = std::move(request->scanned_to)] {
    if (!store_->streams_come()) return answer_spaces(to.get());
    GetPageRequest all{PageId{kSystemSpace, 0}, kNewestState, kNewestState, {}, 0, false};
    for (const proto::Position& position : named)
      all.scanned_to.push_back({position.stream, position.lsn});
    if (all.scanned_to.empty()) all.scanned_to = store_->durable_positions();
    all.deadline_us = now_us_() + kScanUsMax;
    auto waits_for = all.scanned_to;
    store_->get_page(std::move(all), [this, to, waits_for = std::move(waits_for)](
                                         const StatusOr<PageAnswer>& answer) {
      if (is_peer_down(answer.status()) && !waits_for.empty())
        return answer_not_yet(waits_for, to.get());
      if (may_pass(answer.status())) return to->fail(answer.status());
      answer_spaces(to.get());
    });
  });
  if (!taken) to->fail(error_busy("too many requests wait"));
}

// The next time it need not be further.
void PageService::answer_not_yet(const std::vector<GetPageRequest::Position>& waits_for,
                                 Responder* responder) {
  proto::ListSpacesReply reply;
  reply.scanned_bytes = store_->progress().scanned_bytes;
  for (const GetPageRequest::Position& position : waits_for)
    reply.waits_for.push_back({position.stream, position.lsn});
  responder->reply(proto::encode(reply));
}

// PS4. What this node was not given yet of a log may have begun spaces: it is none of those that
// have one among them that knows all.
void PageService::answer_spaces(Responder* responder) {
  if (store_->streams_come())
    if (const Status lacks = logs_->votes_in_all(); !lacks.ok()) return responder->fail(lacks);
  proto::ListSpacesReply reply;
  auto spaces = store_->list_spaces(&reply.as_of);
  if (!spaces.ok()) return responder->fail(spaces.status());
  reply.spaces = *std::move(spaces);
  reply.scanned_bytes = store_->progress().scanned_bytes;
  responder->reply(proto::encode(reply));
}

void PageService::copy_offer(Bytes /*payload*/, Responder responder) {
  auto to = std::make_shared<Responder>(std::move(responder));
  const bool taken = offload_([this, to] {
    const auto offer = store_->offer_copy();
    if (!offer.ok()) return to->fail(offer.status());
    proto::CopyOfferReply reply;
    for (const CopyMark& mark : offer->marks)
      reply.marks.push_back({mark.stream, mark.replayed.lsn, mark.replayed.llsn});
    for (const DroppedSpace& dropped : offer->dropped)
      reply.dropped.push_back({dropped.space, dropped.llsn, dropped.reclaimed});
    reply.newest = offer->newest;
    reply.horizon = offer->horizon;
    reply.pages = offer->pages;
    to->reply(proto::encode(reply));
  });
  if (!taken) to->fail(error_busy("too many requests wait"));
}

void PageService::list_pages(Bytes payload, Responder responder) {
  const auto request = proto::decode_list_pages(payload);
  if (!request.ok()) return responder.fail(request.status());
  auto to = std::make_shared<Responder>(std::move(responder));
  const bool taken = offload_([this, to, wanted = *request] {
    std::vector<CopyMark> marks;
    for (const auto& mark : wanted.marks) marks.push_back({mark.stream, {mark.lsn, mark.llsn}});
    auto listing = store_->list_pages(wanted.from, wanted.pages_max, marks);
    if (!listing.ok()) return to->fail(listing.status());
    proto::ListPagesReply reply{std::move(listing->pages), {}};
    for (const DroppedSpace& gone : listing->gone)
      reply.gone.push_back({gone.space, gone.llsn, gone.reclaimed});
    to->reply(proto::encode(reply));
  });
  if (!taken) to->fail(error_busy("too many requests wait"));
}

void PageService::reader_lease(Bytes payload, Responder responder) {
  const auto request = proto::decode_reader_lease(payload);
  if (!request.ok()) return responder.fail(request.status());
  if (request->ttl_ms == 0) {
    store_->release_lease(request->reader);
    return responder.reply({});
  }
  const Status renewed = store_->renew_lease(request->reader, request->oldest, now_us_());
  renewed.ok() ? responder.reply({}) : responder.fail(renewed);
}

}  // namespace strata::storenode
