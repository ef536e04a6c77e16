// A store of written pages as calls (proto/written_messages.h, proto/page_messages.h). Thread-safe.
//   WV1  A caller whose epoch of its stream has been taken over is refused (S2), before its session
//        is looked at.
//   WV2  Nothing here blocks the server's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "storenode/service/log_service.h"
#include "storenode/written/page_copier.h"
#include "storenode/written/written_store.h"
#include "transport/calls/rpc_server.h"

namespace strata::storenode {

class WrittenService {
 public:
  // fenced: that epoch of the stream was taken over.
  using CheckEpoch = std::function<Status(StreamId stream, Epoch epoch)>;
  // All outlive the service.
  WrittenService(WrittenStore* store, PageCopier* copier, CheckEpoch check_epoch, Offload offload);
  WrittenService(const WrittenService&) = delete;
  WrittenService& operator=(const WrittenService&) = delete;

  // Once, before the server listens.
  void register_on(transport::RpcServer* server);
  [[nodiscard]] uint64_t pages_sent() const noexcept { return pages_sent_.load(); }

 private:
  template <class Work>
  void handle(transport::RpcServer* server, uint16_t method, Work work);
  template <class Message>
  void register_method(transport::RpcServer* server, uint16_t method,
                       void (WrittenService::*run)(const Message&, transport::Responder*));
  void register_method(transport::RpcServer* server, uint16_t method,
                       void (WrittenService::*run)(transport::Responder*));
  void begin_writes(const proto::BeginWritesRequest& request, transport::Responder* to);
  void write_pages(const proto::WritePagesRequest& request, transport::Responder* to);
  void sync_pages(const proto::SyncPagesRequest& request, transport::Responder* to);
  void create_space(const proto::SpaceRequest& request, transport::Responder* to);
  void delete_space(const proto::SpaceRequest& request, transport::Responder* to);
  void grow_space(const proto::SpaceRequest& request, transport::Responder* to);
  void copy_pages(const proto::CopyPagesRequest& request, transport::Responder* to);
  void get_pages(const proto::GetPagesRequest& request, transport::Responder* to);
  void list_spaces(transport::Responder* to);
  void list_space_sizes(transport::Responder* to);
  void get_some(const proto::PageWanted* wanted, uint32_t count, char* pages, proto::PageGot* got);

  WrittenStore* const store_;
  PageCopier* const copier_;
  const CheckEpoch check_epoch_;
  const Offload offload_;
  std::atomic<uint64_t> pages_sent_{0};
};

}  // namespace strata::storenode
