// The page store as calls (proto/page_messages.h). Thread-safe.
//   PS1  A caller whose epoch of its stream has been taken over gets no pages (S2).
//   PS2  Nothing here blocks the server's thread.
//   PS3  A request for one page that is in memory is answered by the server's thread: handing it to
//        another one, and its answer back, would take longer than all the rest. Nothing else is.
//   PS4  Where several servers write, a list of spaces has all that the logs tell of which were
//        durable here when it was asked for.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/page_messages.h"
#include "storenode/replay/page_store.h"
#include "storenode/service/log_service.h"
#include "transport/calls/rpc_server.h"

namespace strata::storenode {

class PageService {
 public:
  // All outlive the service. `now_us`: the page store's clock.
  PageService(PageStore* store, const LogService* logs, Offload offload,
              std::function<uint64_t()> now_us);
  PageService(const PageService&) = delete;
  PageService& operator=(const PageService&) = delete;

  // Once, before the server listens.
  void register_on(transport::RpcServer* server);
  [[nodiscard]] uint64_t pages_sent() const noexcept { return pages_sent_.load(); }

 private:
  struct Answering;
  void get_pages(Bytes payload, transport::Responder responder);
  void peer_pages(Bytes payload, transport::Responder responder);
  bool answer_at_hand(const proto::GetPagesRequest& wanted, bool from_peer,
                      transport::Responder* responder);
  void answer_pages(Bytes payload, transport::Responder responder, bool from_peer);
  void answer_all(Answering* answering);
  void copy_offer(Bytes payload, transport::Responder responder);
  void list_pages(Bytes payload, transport::Responder responder);
  void list_spaces(Bytes payload, transport::Responder responder);
  void answer_spaces(transport::Responder* responder);
  void answer_not_yet(const std::vector<GetPageRequest::Position>& waits_for,
                      transport::Responder* responder);
  void reader_lease(Bytes payload, transport::Responder responder);

  PageStore* const store_;
  const LogService* const logs_;
  const Offload offload_;
  const std::function<uint64_t()> now_us_;
  std::atomic<uint64_t> pages_sent_{0};
};

}  // namespace strata::storenode
