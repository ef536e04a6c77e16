#include "farmem/node/memory_service.h"

#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "farmem/policy/policy_options.h"
#include "transport/regions/region.h"

namespace strata::farmem {
namespace {

using transport::FileDescriptor;
using transport::Request;
using transport::Responder;

constexpr uint64_t kExpiryChecksPerLease = 4;
constexpr uint64_t kUsToNs = 1000;

Status garbage() { return error_corruption("a message that makes no sense"); }

void add(ServiceCounts* sum, const ServiceCounts& part) {
  sum->calls += part.calls;
  sum->refused += part.refused;
  sum->pages_read += part.pages_read;
  sum->pages_written += part.pages_written;
  sum->pages_discarded += part.pages_discarded;
}

bool is_batch(uint16_t count) { return count > 0 && count <= kBatchPagesMax; }

}  // namespace

MemoryService::MemoryService(const transport::World& world, transport::RpcServer* server,
                             const ServiceOptions& options)
    : world_(world), options_(options) {
  server->handle(kOpenMethod, [this](const Request& request, Responder responder) {
    open(request, std::move(responder));
  });
  handle(server, kWriteMethod, &MemoryService::write);
  handle(server, kReadMethod, &MemoryService::read);
  handle(server, kDiscardMethod, &MemoryService::discard);
  handle(server, kRenewMethod, &MemoryService::renew);
  handle(server, kCloseMethod, &MemoryService::close);
  run_and_wait(world_.executor, [this] { expire_later(); });
}

MemoryService::~MemoryService() {
  run_and_wait(world_.executor, [this] { world_.executor->cancel(timer_); });
}

void MemoryService::handle(transport::RpcServer* server, uint16_t method, Method work) {
  server->handle(method, [this, work](const Request& request, Responder responder) {
    ByteReader reader(request.payload);
    const StatusOr<Client*> client = known(&reader);
    if (!client.ok()) {
      counts_.calls++;
      counts_.refused++;
      responder.fail(client.status());
      return;
    }
    const uint64_t id = (*client)->credentials.client;
    (*client)->counts.calls++;
    (*client)->seen_us = world_.executor->now_us();
    StatusOr<std::string> answer = (this->*work)(*client, &reader);
    if (answer.ok()) {
      responder.reply(*std::move(answer));
      return;
    }
    if (const auto still = clients_.find(id); still != clients_.end())
      still->second.counts.refused++;
    responder.fail(answer.status());
  });
}

void MemoryService::open(const Request& request, Responder responder) {
  const bool mapped = responder.carries_descriptors();
  const StatusOr<Client*> client = make_client(request.payload, mapped);
  if (!client.ok()) {
    counts_.calls++;
    counts_.refused++;
    responder.fail(client.status());
    return;
  }
  std::string answer(sizeof(uint64_t) + kTokenBytes + sizeof(uint64_t), '\0');
  answer.clear();  // with room for all of it
  append_credentials(&answer, (*client)->credentials);
  append_u64(&answer, (*client)->memory->pages());
  if (!mapped) {
    responder.reply(std::move(answer));
    return;
  }
  FileDescriptor file(::dup((*client)->memory->fd()));
  if (!file.valid()) {
    remove((*client)->credentials.client);
    responder.fail(error_no_space("no file descriptor is left"));
    return;
  }
  responder.reply_with(std::move(file), std::move(answer));
}

StatusOr<MemoryService::Client*> MemoryService::make_client(Bytes payload, bool mapped) {
  ByteReader reader(payload);
  const uint64_t pages = reader.u64();
  const Bytes name = reader.bytes32();
  if (!reader.ok() || reader.remaining() != 0 || name.size() > kClientNameBytesMax)
    return garbage();
  expire();
  if (clients_.size() >= options_.clients_max)
    return error_no_space("the memory node has " + std::to_string(clients_.size()) +
                          " clients, and takes no more");
  if (bytes_used() >= options_.capacity_bytes) return error_no_space("the memory node is full");
  STRATA_ASSIGN_OR_RETURN(auto memory, RegionMemory::create(pages));
  const uint64_t id = next_client_++;
  Client& client = clients_[id];
  client.credentials.client = id;
  world_.entropy->fill(client.credentials.token.data(), kTokenBytes);
  client.name = name;
  client.mapped = mapped;
  client.seen_us = world_.executor->now_us();
  client.memory = std::move(memory);
  client.counts.calls = 1;
  return &client;
}

StatusOr<MemoryService::Client*> MemoryService::known(ByteReader* reader) {
  const Credentials credentials = read_credentials(reader);
  if (!reader->ok()) return garbage();
  const auto found = clients_.find(credentials.client);
  const Bytes given(credentials.token.data(), kTokenBytes);
  if (found == clients_.end() ||
      !transport::same_bytes(given, {found->second.credentials.token.data(), kTokenBytes}))
    return error_not_found("the memory node does not know this client (any more)");
  return &found->second;
}

// FM12, and FM11's "nothing": all of it is looked at before any of it is done.
Status MemoryService::check_write(const Client& client, ByteReader reader, uint16_t count) const {
  uint64_t fresh = 0;
  for (uint16_t i = 0; i < count; i++) {
    const uint64_t page = reader.u64();
    const uint64_t generation = reader.u64();
    const uint32_t checksum = reader.u32();
    const Bytes bytes = reader.bytes(kPageBytes);
    if (!reader.ok() || generation == 0 || crc32c(bytes.data(), bytes.size()) != checksum)
      return garbage();
    if (page >= client.memory->pages()) return error_out_of_range("a page beyond the region");
    const PageHeader& there = *client.memory->header(page);
    if (generation < there.generation ||
        (generation == there.generation && checksum != there.crc32c))
      return error_conflict("a newer version of the page is there");
    if (there.generation == 0) fresh++;
  }
  if (reader.remaining() != 0) return garbage();
  if (bytes_used() + fresh * kPageBytes > options_.capacity_bytes)
    return error_no_space("the memory node is full");
  return ok_status();
}

StatusOr<std::string> MemoryService::write(Client* client, ByteReader* reader) {
  const uint16_t count = reader->u16();
  // Who has a mapping writes by it (region_memory.h says why).
  if (!is_batch(count) || client->mapped) return garbage();
  STRATA_RETURN_IF_ERROR(check_write(*client, *reader, count));
  for (uint16_t i = 0; i < count; i++) {
    const uint64_t page = reader->u64();
    PageHeader* const header = client->memory->header(page);
    if (header->generation == 0) client->stored_pages++;
    header->generation = reader->u64();
    header->crc32c = reader->u32();
    reader->bytes(kPageBytes).copy(client->memory->page(page), kPageBytes);
  }
  client->counts.pages_written += count;
  return std::string();
}

StatusOr<std::string> MemoryService::read(Client* client, ByteReader* reader) {
  const uint16_t count = reader->u16();
  if (!is_batch(count) || reader->remaining() != count * sizeof(uint64_t)) return garbage();
  std::string answer;
  answer.reserve(count * (sizeof(uint64_t) + sizeof(uint32_t) + kPageBytes));
  for (uint16_t i = 0; i < count; i++) {
    const uint64_t page = reader->u64();
    if (page >= client->memory->pages()) return error_out_of_range("a page beyond the region");
    const PageHeader& header = *client->memory->header(page);
    if (header.generation == 0) return error_not_found("a page that was never written");
    append_u64(&answer, header.generation);
    append_u32(&answer, header.crc32c);
    answer.append(client->memory->page(page), kPageBytes);
  }
  client->counts.pages_read += count;
  return answer;
}

StatusOr<std::string> MemoryService::discard(Client* client, ByteReader* reader) {
  const uint16_t count = reader->u16();
  constexpr size_t kRunBytes = 2 * sizeof(uint64_t);
  if (!is_batch(count) || reader->remaining() != count * kRunBytes) return garbage();
  const uint64_t pages = client->memory->pages();
  ByteReader ahead = *reader;
  uint64_t all = 0;
  for (uint16_t i = 0; i < count; i++) {
    const uint64_t first = ahead.u64();
    const uint64_t run = ahead.u64();
    if (first > pages || run > pages - first) return error_out_of_range("pages beyond the region");
    if (run > kDiscardPagesMax - all) return garbage();
    all += run;
  }
  for (uint16_t i = 0; i < count; i++) {
    const uint64_t first = reader->u64();
    const uint64_t run = reader->u64();
    for (uint64_t page = first; page < first + run; page++) {
      if (client->memory->header(page)->generation == 0) continue;
      client->counts.pages_discarded++;
      if (!client->mapped) client->stored_pages--;
    }
    client->memory->discard(first, run);
  }
  return std::string();
}

StatusOr<std::string> MemoryService::renew(Client* client, ByteReader* reader) {
  const uint64_t pages_read = reader->u64();
  const uint64_t pages_written = reader->u64();
  if (!reader->ok() || reader->remaining() != 0) return garbage();
  if (!client->mapped) return std::string();
  client->counts.pages_read = pages_read;
  client->counts.pages_written = pages_written;
  client->measured_bytes = client->memory->bytes_used();
  if (bytes_used() > options_.capacity_bytes) return error_no_space("the memory node is full");
  return std::string();
}

StatusOr<std::string> MemoryService::close(Client* client, ByteReader* reader) {
  if (reader->remaining() != 0) return garbage();
  remove(client->credentials.client);
  return std::string();
}

uint64_t MemoryService::bytes_used_by(const Client& client) noexcept {
  return client.mapped ? client.measured_bytes : client.stored_pages * kPageBytes;
}

uint64_t MemoryService::bytes_used() const noexcept {
  uint64_t sum = 0;
  for (const auto& [id, client] : clients_) sum += bytes_used_by(client);
  return sum;
}

void MemoryService::remove(uint64_t client) {
  const auto found = clients_.find(client);
  add(&counts_, found->second.counts);
  clients_.erase(found);
  ended_++;
}

void MemoryService::expire() {
  const uint64_t now_us = world_.executor->now_us();
  std::vector<uint64_t> gone;
  for (const auto& [id, client] : clients_)
    if (now_us - client.seen_us > options_.lease_us) gone.push_back(id);
  for (const uint64_t id : gone) remove(id);
  expired_ += gone.size();
}

void MemoryService::expire_later() {
  const uint64_t pause_ns = options_.lease_us * kUsToNs / kExpiryChecksPerLease;
  timer_ = world_.executor->run_at(world_.executor->now_ns() + pause_ns, [this] {
    expire();
    expire_later();
  });
}

ServiceStatus MemoryService::status() const {
  ServiceStatus status{.capacity_bytes = options_.capacity_bytes,
                       .bytes_used = bytes_used(),
                       .clients_ended = ended_,
                       .leases_expired = expired_,
                       .counts = counts_,
                       .clients = {}};
  for (const auto& [id, client] : clients_) {
    status.clients.push_back({.client = id,
                              .name = client.name,
                              .mapped = client.mapped,
                              .pages = client.memory->pages(),
                              .bytes_used = bytes_used_by(client),
                              .counts = client.counts});
    add(&status.counts, client.counts);
  }
  return status;
}

}  // namespace strata::farmem
