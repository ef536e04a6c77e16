// The page store as calls (proto/page_messages.h). Thread-safe.
//   PS1  A caller whose epoch of its stream has been taken over gets no pages (S2).
//   PS2  Nothing here blocks the server's thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "storenode/replay/page_store.h"
#include "storenode/service/log_service.h"
#include "transport/rpc_server.h"

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
  void list_spaces(transport::Responder responder);
  void renew_lease(Bytes payload, transport::Responder responder);

  PageStore* const store_;
  const LogService* const logs_;
  const Offload offload_;
  const std::function<uint64_t()> now_us_;
  std::atomic<uint64_t> pages_sent_{0};
};

}  // namespace strata::storenode
