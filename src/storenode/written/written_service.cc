#include "storenode/written/written_service.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/aligned.h"
#include "page/page.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"
#include "proto/page_messages.h"

namespace strata::storenode {

using transport::Request;
using transport::Responder;

namespace {

void answer(Responder* to, const Status& status) { status.ok() ? to->reply({}) : to->fail(status); }

template <class Message>
const proto::Writer& writer_of(const Message& request) {
  return request.writer;
}
proto::Writer writer_of(const proto::GetPagesRequest& request) {
  return {request.stream, request.epoch, request.session};
}

// By the type of the message that a handler wants.
constexpr auto decoder(proto::BeginWritesRequest*) { return proto::decode_begin_writes; }
constexpr auto decoder(proto::WritePagesRequest*) { return proto::decode_write_pages; }
constexpr auto decoder(proto::SyncPagesRequest*) { return proto::decode_sync_pages; }
constexpr auto decoder(proto::SpaceRequest*) { return proto::decode_space; }
constexpr auto decoder(proto::CopyPagesRequest*) { return proto::decode_copy_pages; }
constexpr auto decoder(proto::GetPagesRequest*) { return proto::decode_get_pages; }

}  // namespace

WrittenService::WrittenService(WrittenStore* store, PageCopier* copier, CheckEpoch check_epoch,
                               Offload offload)
    : store_(store),
      copier_(copier),
      check_epoch_(std::move(check_epoch)),
      offload_(std::move(offload)) {}

template <class Work>
void WrittenService::handle(transport::RpcServer* server, uint16_t method, Work work) {
  proto::serve(server, method, [this, work](const Request& call, Responder responder) {
    auto to = std::make_shared<Responder>(std::move(responder));
    // The request's bytes go along: some messages are views of them.
    const bool taken =
        offload_([work, to, bytes = std::string(call.payload)] { work(Bytes(bytes), to.get()); });
    if (!taken) to->fail(error_busy("too many requests for pages wait"));
  });
}

template <class Message>
void WrittenService::register_method(transport::RpcServer* server, uint16_t method,
                                     void (WrittenService::*run)(const Message&, Responder*)) {
  handle(server, method, [this, run](Bytes bytes, Responder* to) {
    const StatusOr<Message> request = decoder(static_cast<Message*>(nullptr))(bytes);
    if (!request.ok()) return to->fail(request.status());
    const proto::Writer writer = writer_of(*request);
    const Status allowed = check_epoch_(writer.stream, writer.epoch);  // WV1
    if (!allowed.ok()) return to->fail(allowed);
    (this->*run)(*request, to);
  });
}

// Of calls that say nothing, not even who they come from.
void WrittenService::register_method(transport::RpcServer* server, uint16_t method,
                                     void (WrittenService::*run)(Responder*)) {
  handle(server, method, [this, run](Bytes, Responder* to) { (this->*run)(to); });
}

// Handlers have their methods' names; what a line of methods.def has none for does not compile.
void WrittenService::register_on(transport::RpcServer* server) {
#define STRATA_WRITTEN_METHOD(number, constant, counter, ...) \
  register_method(server, proto::constant, &WrittenService::counter);
#include "proto/methods.def"
  register_method(server, proto::kGetPages, &WrittenService::get_pages);
  register_method(server, proto::kListSpaces, &WrittenService::list_spaces);
}

void WrittenService::begin_writes(const proto::BeginWritesRequest& request, Responder* to) {
  const StatusOr<proto::BeginWritesReply> reply = store_->begin(request.writer, request.continues);
  reply.ok() ? to->reply(proto::encode(*reply)) : to->fail(reply.status());
}

void WrittenService::write_pages(const proto::WritePagesRequest& request, Responder* to) {
  const AlignedBytes pages(request.pages.size());
  std::memcpy(pages.get(), request.pages.data(), request.pages.size());
  answer(to, store_->write(request.writer, request.ids.data(),
                           static_cast<uint32_t>(request.ids.size()), pages.get()));
}

void WrittenService::sync_pages(const proto::SyncPagesRequest& request, Responder* to) {
  answer(to, store_->sync(request.writer));
}

void WrittenService::create_space(const proto::SpaceRequest& request, Responder* to) {
  answer(to, store_->create_space(request.writer, request.space));
}

void WrittenService::delete_space(const proto::SpaceRequest& request, Responder* to) {
  answer(to, store_->delete_space(request.writer, request.space));
}

void WrittenService::grow_space(const proto::SpaceRequest& request, Responder* to) {
  answer(to, store_->grow_space(request.writer, request.space, request.pages));
}

void WrittenService::copy_pages(const proto::CopyPagesRequest& request, Responder* to) {
  to->reply(proto::encode(copier_->order(request)));
}

void WrittenService::get_pages(const proto::GetPagesRequest& request, Responder* to) {
  const Status known = store_->check_session(request.epoch, request.session);  // WS2
  if (!known.ok()) return to->fail(known);
  proto::GetPagesReply reply;
  reply.pages.resize(request.pages.size());
  const AlignedBytes pages(size_t{kReadBatchPages} * kPageBytes);
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

void WrittenService::list_spaces(Responder* to) {
  auto spaces = store_->list_spaces();
  if (!spaces.ok()) return to->fail(spaces.status());
  to->reply(proto::encode(proto::ListSpacesReply{*std::move(spaces), {}, 0, {}}));
}

void WrittenService::list_space_sizes(Responder* to) {
  auto sizes = store_->list_sizes();
  if (!sizes.ok()) return to->fail(sizes.status());
  to->reply(proto::encode(proto::ListSpaceSizesReply{*std::move(sizes)}));
}

}  // namespace strata::storenode
