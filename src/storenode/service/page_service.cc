#include "storenode/service/page_service.h"

#include <memory>
#include <utility>

#include "proto/methods.h"
#include "proto/page_messages.h"

namespace strata::storenode {

using transport::Request;
using transport::Responder;

PageService::PageService(PageStore* store, const LogService* logs, Offload offload,
                         std::function<uint64_t()> now_us)
    : store_(store), logs_(logs), offload_(std::move(offload)), now_us_(std::move(now_us)) {}

void PageService::register_on(transport::RpcServer* server) {
  server->handle(proto::kGetPages, [this](const Request& call, Responder responder) {
    get_pages(call.payload, std::move(responder));
  });
  server->handle(proto::kListSpaces, [this](const Request&, Responder responder) {
    list_spaces(std::move(responder));
  });
  server->handle(proto::kReaderLease, [this](const Request& call, Responder responder) {
    renew_lease(call.payload, std::move(responder));
  });
}

// One call under way: its pages come in any order, from any thread; whoever brings the last one
// answers.
struct PageService::Answering {
  Responder responder;
  proto::GetPagesReply reply;
  std::atomic<size_t> missing{0};
};

void PageService::get_pages(Bytes payload, Responder responder) {
  auto request = proto::decode_get_pages(payload);
  if (!request.ok()) return responder.fail(request.status());
  if (!request->stream.is_zero()) {
    const Status allowed = logs_->check_epoch(request->stream, request->epoch);  // PS1
    if (!allowed.ok()) return responder.fail(allowed);
  }
  auto answering = std::make_shared<Answering>();
  answering->responder = std::move(responder);
  answering->reply.pages.resize(request->pages.size());
  answering->missing = request->pages.size();
  const bool taken = offload_([this, answering, wanted = *std::move(request)] {
    const uint64_t deadline_us = now_us_() + wanted.wait_us;
    std::vector<GetPageRequest::Position> scanned_to;
    for (const proto::Position& position : wanted.scanned_to)
      scanned_to.push_back({position.stream, position.lsn});
    for (size_t i = 0; i < wanted.pages.size(); ++i) {
      const proto::PageWanted& page = wanted.pages[i];
      store_->get_page({page.page, page.at_least, page.at_most, scanned_to, deadline_us},
                       [this, answering, i](StatusOr<PageAnswer> answer) {
                         proto::PageGot& got = answering->reply.pages[i];
                         if (answer.ok()) {
                           got.llsn = answer->llsn;
                           got.bytes.assign(answer->page->bytes, kPageBytes);
                         } else {
                           got.status = answer.status();
                         }
                         if (answering->missing.fetch_sub(1) > 1) return;
                         pages_sent_.fetch_add(answering->reply.pages.size());
                         answering->reply.backlog_bytes = store_->backlog_bytes();
                         answering->responder.reply(proto::encode(answering->reply));
                       });
    }
  });
  if (!taken) answering->responder.fail(error_peer_down("too many requests for pages wait"));
}

void PageService::list_spaces(Responder responder) {
  auto to = std::make_shared<Responder>(std::move(responder));
  const bool taken = offload_([this, to] {
    auto spaces = store_->list_spaces();
    if (!spaces.ok()) return to->fail(spaces.status());
    to->reply(proto::encode(proto::ListSpacesReply{*std::move(spaces)}));
  });
  if (!taken) to->fail(error_peer_down("too many requests wait"));
}

void PageService::renew_lease(Bytes payload, Responder responder) {
  const auto request = proto::decode_reader_lease(payload);
  if (!request.ok()) return responder.fail(request.status());
  if (request->ttl_ms == 0) {
    store_->leases().release(request->reader);
    return responder.reply({});
  }
  const Status renewed = store_->leases().renew(request->reader, request->oldest, now_us_());
  renewed.ok() ? responder.reply({}) : responder.fail(renewed);
}

}  // namespace strata::storenode
