// A memory node: keeps pages for programs that run elsewhere, each in a region of its own. Answers
// the calls of messages.h in the thread of the server's executor; nothing here blocks.
//
//   FM11  A client reaches its own region only, and only with the token it was given; a call that
//         is refused has changed nothing.
//   FM12  What a page's header says is what is in the page: a write whose checksum does not fit its
//         bytes is refused, so is one of an older generation than what is there (a call that was on
//         its way for long).
//   FM13  Memory is bounded: `capacity_bytes` for all regions, checked before each write by call;
//         what clients write through mappings is measured at each sign of life, and who finds the
//         node full then is told so and ends.
//   FM14  A client without a sign of life for `lease_us` has lost its region; its memory is free
//         again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "farmem/node/messages.h"
#include "farmem/node/region_memory.h"
#include "transport/calls/rpc_server.h"
#include "transport/world.h"

namespace strata::farmem {

struct ServiceOptions {
  uint64_t capacity_bytes = 1ull << 30;
  uint32_t clients_max = 64;
  uint64_t lease_us = 10'000'000;
};

// Of one client, or of all there ever were.
struct ServiceCounts {
  uint64_t calls = 0;
  uint64_t refused = 0;
  uint64_t pages_read = 0;  // with those through mappings, as told by the clients
  uint64_t pages_written = 0;
  uint64_t pages_discarded = 0;
};

struct ClientStatus {
  uint64_t client = 0;
  std::string name;
  bool mapped = false;
  uint64_t pages = 0;
  uint64_t bytes_used = 0;
  ServiceCounts counts;
};

struct ServiceStatus {
  uint64_t capacity_bytes = 0;
  uint64_t bytes_used = 0;
  uint64_t clients_ended = 0;
  uint64_t leases_expired = 0;
  ServiceCounts counts;
  std::vector<ClientStatus> clients;
};

class MemoryService {
 public:
  // Before the server listens. All three outlive this; the server is destroyed before it.
  MemoryService(const transport::World& world, transport::RpcServer* server,
                const ServiceOptions& options);
  ~MemoryService();  // blocks for the executor's thread
  MemoryService(const MemoryService&) = delete;
  MemoryService& operator=(const MemoryService&) = delete;

  [[nodiscard]] ServiceStatus status() const;  // in the executor's thread

 private:
  struct Client {
    Credentials credentials;
    std::string name;
    bool mapped = false;
    uint64_t seen_us = 0;
    uint64_t stored_pages = 0;    // by call
    uint64_t measured_bytes = 0;  // of a mapped one
    std::unique_ptr<RegionMemory> memory;
    ServiceCounts counts;
  };
  using Method = StatusOr<std::string> (MemoryService::*)(Client*, ByteReader*);

  void handle(transport::RpcServer* server, uint16_t method, Method work);
  void open(const transport::Request& request, transport::Responder responder);
  StatusOr<Client*> make_client(Bytes payload, bool mapped);
  StatusOr<Client*> known(ByteReader* reader);
  StatusOr<std::string> write(Client* client, ByteReader* reader);
  StatusOr<std::string> read(Client* client, ByteReader* reader);
  StatusOr<std::string> discard(Client* client, ByteReader* reader);
  StatusOr<std::string> renew(Client* client, ByteReader* reader);
  StatusOr<std::string> close(Client* client, ByteReader* reader);
  [[nodiscard]] Status check_write(const Client& client, ByteReader reader, uint16_t count) const;
  [[nodiscard]] uint64_t bytes_used() const noexcept;
  [[nodiscard]] static uint64_t bytes_used_by(const Client& client) noexcept;
  void remove(uint64_t client);
  void expire();
  void expire_later();

  const transport::World world_;
  const ServiceOptions options_;
  std::map<uint64_t, Client> clients_;
  uint64_t next_client_ = 1;
  uint64_t ended_ = 0;
  uint64_t expired_ = 0;
  ServiceCounts counts_;  // of clients that are gone, and of calls of nobody
  transport::Executor::TimerId timer_ = 0;
};

}  // namespace strata::farmem
