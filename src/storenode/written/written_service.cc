#include "storenode/written/written_service.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/aligned.h"
#include "page/page.h"
#include "proto/methods.h"
#include "proto/page_messages.h"

namespace strata::storenode {

using transport::Request;
using transport::Responder;

namespace {

void answer(Responder* to, const Status& status) { status.ok() ? to->reply({}) : to->fail(status); }

const proto::Writer& writer_of(const proto::BeginWritesRequest& request) { return request.writer; }
const proto::Writer& writer_of(const proto::WritePagesRequest& request) { return request.writer; }
const proto::Writer& writer_of(const proto::SyncPagesRequest& request) { return request.writer; }
const proto::Writer& writer_of(const proto::SpaceRequest& request) { return request.writer; }
const proto::Writer& writer_of(const proto::CopyPagesRequest& request) { return request.writer; }
proto::Writer writer_of(const proto::GetPagesRequest& request) {
  return {request.stream, request.epoch, request.session};
}

}  // namespace

WrittenService::WrittenService(WrittenStore* store, PageCopier* copier, CheckEpoch check_epoch,
                               Offload offload)
    : store_(store),
      copier_(copier),
      check_epoch_(std::move(check_epoch)),
      offload_(std::move(offload)) {}

// The request's bytes go along: some messages are views of them.
template <class Message, class Run>
void WrittenService::handle(transport::RpcServer* server, uint16_t method,
                            StatusOr<Message> (*decode)(Bytes), Run run) {
  server->handle(method, [this, decode, run](const Request& call, Responder responder) {
    auto to = std::make_shared<Responder>(std::move(responder));
    const bool taken = offload_([this, decode, run, to, bytes = std::string(call.payload)] {
      const StatusOr<Message> request = decode(bytes);
      if (!request.ok()) return to->fail(request.status());
      const proto::Writer writer = writer_of(*request);
      const Status allowed = check_epoch_(writer.stream, writer.epoch);  // WV1
      if (!allowed.ok()) return to->fail(allowed);
      run(*request, to.get());
    });
    if (!taken) to->fail(error_busy("too many requests for pages wait"));
  });
}

void WrittenService::register_on(transport::RpcServer* server) {
  handle(server, proto::kBeginWrites, proto::decode_begin_writes,
         [this](const proto::BeginWritesRequest& request, Responder* to) {
           begin_writes(request, to);
         });
  handle(
      server, proto::kWritePages, proto::decode_write_pages,
      [this](const proto::WritePagesRequest& request, Responder* to) { write_pages(request, to); });
  handle(server, proto::kSyncPages, proto::decode_sync_pages,
         [this](const proto::SyncPagesRequest& request, Responder* to) {
           answer(to, store_->sync(request.writer));
         });
  handle(server, proto::kCreateSpace, proto::decode_space,
         [this](const proto::SpaceRequest& request, Responder* to) {
           answer(to, store_->create_space(request.writer, request.space));
         });
  handle(server, proto::kDeleteSpace, proto::decode_space,
         [this](const proto::SpaceRequest& request, Responder* to) {
           answer(to, store_->delete_space(request.writer, request.space));
         });
  handle(server, proto::kGrowSpace, proto::decode_space,
         [this](const proto::SpaceRequest& request, Responder* to) {
           answer(to, store_->grow_space(request.writer, request.space, request.pages));
         });
  handle(server, proto::kCopyPages, proto::decode_copy_pages,
         [this](const proto::CopyPagesRequest& request, Responder* to) {
           to->reply(proto::encode(copier_->order(request)));
         });
  handle(server, proto::kGetPages, proto::decode_get_pages,
         [this](const proto::GetPagesRequest& request, Responder* to) { get_pages(request, to); });
  server->handle(proto::kListSpaces, [this](const Request&, Responder responder) {
    list_spaces(std::move(responder), false);
  });
  server->handle(proto::kListSpaceSizes, [this](const Request&, Responder responder) {
    list_spaces(std::move(responder), true);
  });
}

void WrittenService::begin_writes(const proto::BeginWritesRequest& request, Responder* to) {
  const StatusOr<proto::BeginWritesReply> reply = store_->begin(request.writer, request.continues);
  reply.ok() ? to->reply(proto::encode(*reply)) : to->fail(reply.status());
}

void WrittenService::write_pages(const proto::WritePagesRequest& request, Responder* to) {
  const AlignedBytes pages(request.pages.size(), 4096);
  std::memcpy(pages.get(), request.pages.data(), request.pages.size());
  answer(to, store_->write(request.writer, request.ids.data(),
                           static_cast<uint32_t>(request.ids.size()), pages.get()));
}

void WrittenService::get_pages(const proto::GetPagesRequest& request, Responder* to) {
  const Status known = store_->check_session(request.epoch, request.session);  // WS2
  if (!known.ok()) return to->fail(known);
  proto::GetPagesReply reply;
  reply.pages.resize(request.pages.size());
  const AlignedBytes pages(size_t{kReadBatchPages} * kPageBytes, 4096);
  for (size_t begin = 0; begin < request.pages.size(); begin += kReadBatchPages) {
    const auto count =
        static_cast<uint32_t>(std::min<size_t>(kReadBatchPages, request.pages.size() - begin));
    get_some(&request.pages[begin], count, pages.get(), &reply.pages[begin]);
  }
  pages_sent_.fetch_add(reply.pages.size());
  to->reply(proto::encode(reply));
}

void WrittenService::get_some(const proto::PageWanted* wanted, uint32_t count, char* pages,
                              proto::PageGot* got) {
  PageId ids[kReadBatchPages];
  Status results[kReadBatchPages];
  for (uint32_t i = 0; i < count; ++i) ids[i] = wanted[i].page;
  store_->read(ids, count, pages, results);
  for (uint32_t i = 0; i < count; ++i) {
    got[i].status = results[i];
    if (!results[i].ok()) continue;
    const char* page = pages + size_t{i} * kPageBytes;
    got[i].llsn = Llsn{header_of(page)->llsn};
    if (got[i].llsn < wanted[i].at_least)
      got[i].status = error_peer_down("this node has an older version of the page");
    else if (got[i].llsn > wanted[i].at_most)
      got[i].status = error_out_of_range("this node has a newer version of the page only");
    else
      got[i].bytes.assign(page, kPageBytes);
  }
}

void WrittenService::list_spaces(Responder responder, bool with_sizes) {
  auto to = std::make_shared<Responder>(std::move(responder));
  const bool taken = offload_([this, to, with_sizes] {
    if (with_sizes) {
      auto sizes = store_->list_sizes();
      if (!sizes.ok()) return to->fail(sizes.status());
      return to->reply(proto::encode(proto::ListSpaceSizesReply{*std::move(sizes)}));
    }
    auto spaces = store_->list_spaces();
    if (!spaces.ok()) return to->fail(spaces.status());
    to->reply(proto::encode(proto::ListSpacesReply{*std::move(spaces), {}}));
  });
  if (!taken) to->fail(error_busy("too many requests wait"));
}

}  // namespace strata::storenode
