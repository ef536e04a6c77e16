#include "farmem/node/memory_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "transport/clock.h"
#include "transport/regions/region.h"

namespace strata::farmem {
namespace {

constexpr size_t kPageMessageBytes = sizeof(uint64_t) + sizeof(uint32_t) + kPageBytes;
constexpr uint32_t kMessageOverheadBytes = 64;

Status nonsense() { return error_corruption("the memory node's answer makes no sense"); }
Status not_what_was_written(uint64_t page) {
  return error_corruption("far memory gave other content of page " + std::to_string(page) +
                          " than was written last");
}

}  // namespace

MemoryClient::MemoryClient(const transport::Secret& secret, const ClientOptions& options,
                           MappedMemory kept)
    : options_(options),
      digest_(transport::system_entropy()),
      channel_(secret, options.address, {.link_model = options.link_model}),
      kept_(std::move(kept)) {}

StatusOr<std::unique_ptr<MemoryClient>> MemoryClient::open(const transport::Secret& secret,
                                                           const ClientOptions& options) {
  if (options.pages == 0 || options.pages > kRegionPagesMax)
    return error_invalid_argument("far memory has 1 to 2^28 pages");
  STRATA_ASSIGN_OR_RETURN(auto kept, MappedMemory::map(options.pages * sizeof(Kept)));
  auto client = std::unique_ptr<MemoryClient>(new MemoryClient(secret, options, std::move(kept)));
  STRATA_RETURN_IF_ERROR(client->open_region());
  return client;
}

Status MemoryClient::open_region() {
  std::string request;
  append_u64(&request, options_.pages);
  append_bytes32(&request, Bytes(options_.name).substr(0, kClientNameBytesMax));
  // A region opened twice because an answer was lost ends with its lease.
  STRATA_RETURN_IF_ERROR(call(kOpenMethod, request, &reply_, true));
  ByteReader reader(reply_.payload);
  credentials_ = read_credentials(&reader);
  const uint64_t pages = reader.u64();
  if (!reader.ok() || reader.remaining() != 0 || pages != options_.pages) return nonsense();
  if (!reply_.attached.valid()) return ok_status();
  const transport::FileDescriptor file = std::move(reply_.attached);
  const int copy = ::dup(file.get());
  if (copy < 0) return error_no_space("no file descriptor is left");
  STRATA_ASSIGN_OR_RETURN(memory_, RegionMemory::map(copy, options_.pages));
  return ok_status();
}

MemoryClient::Kept& MemoryClient::kept(uint64_t page) const noexcept {
  STRATA_ASSERT(page < options_.pages);
  return reinterpret_cast<Kept*>(kept_.get())[page];
}

Status MemoryClient::call(uint16_t method, Bytes request, transport::BlockingReply* reply,
                          bool idempotent) {
  const transport::CallOptions options{.method = method,
                                       .deadline_us = monotonic_us() + options_.timeout_us,
                                       .idempotent = idempotent};
  return channel_.call(options, request, reply);
}

std::string MemoryClient::begin_request() const {
  std::string request;
  append_credentials(&request, credentials_);
  return request;
}

void MemoryClient::charge_link(uint64_t begin_ns, uint64_t bytes_out, uint64_t bytes_in) const {
  if (options_.link_model == nullptr) return;
  transport::sleep_until_ns(options_.link_model->round_trip(begin_ns, bytes_out, bytes_in));
}

Status MemoryClient::store(absl::Span<const PageOut> pages, absl::Span<Stored> outcome) {
  STRATA_ASSERT(pages.size() <= kBatchPagesMax && outcome.size() == pages.size());
  const uint64_t begin_ns = transport::monotonic_ns();
  request_.clear();
  append_credentials(&request_, credentials_);
  const size_t count_at = request_.size();
  append_u16(&request_, 0);
  uint16_t written = 0;
  for (size_t i = 0; i < pages.size(); i++) {
    const auto& [page, bytes] = pages[i];
    Kept& known = kept(page);
    const Digest digest = digest_.of(bytes);
    outcome[i] = Stored::kClean;
    if (known.generation != 0 && known.digest == digest) continue;
    outcome[i] = Stored::kZero;
    if (digest == digest_.of_zeros()) {
      known.generation = 0;
      continue;
    }
    outcome[i] = Stored::kWritten;
    written++;
    known = {digest, ++last_generation_};
    const uint32_t checksum = crc32c(bytes, kPageBytes);
    if (mapped()) {
      *memory_->header(page) = {.generation = known.generation, .crc32c = checksum};
      std::memcpy(memory_->page(page), bytes, kPageBytes);
      continue;
    }
    append_u64(&request_, page);
    append_u64(&request_, known.generation);
    append_u32(&request_, checksum);
    request_.append(bytes, kPageBytes);
  }
  if (written == 0) return ok_status();
  STRATA_RETURN_IF_ERROR(send_discards());  // before what may be in the same place
  counts_.pages_written.fetch_add(written, std::memory_order_relaxed);
  if (mapped()) {
    charge_link(begin_ns, written * kPageBytes, 0);
    return ok_status();
  }
  store_u16(request_.data() + count_at, written);
  return call(kWriteMethod, request_, &reply_, true);
}

Status MemoryClient::fetch(uint64_t first, uint32_t count, char* to) {
  STRATA_ASSERT(count > 0 && count <= kBatchPagesMax);
  if (mapped()) {
    fetch_by_mapping(first, count, to);
  } else {
    STRATA_RETURN_IF_ERROR(fetch_by_call(first, count, to));
  }
  for (uint32_t i = 0; i < count; i++) {
    const Kept& known = kept(first + i);
    STRATA_ASSERT(known.generation != 0);
    if (digest_.of(to + i * kPageBytes) != known.digest)  // FM15
      return not_what_was_written(first + i);
  }
  counts_.pages_read.fetch_add(count, std::memory_order_relaxed);
  return ok_status();
}

void MemoryClient::fetch_by_mapping(uint64_t first, uint32_t count, char* to) {
  const uint64_t begin_ns = transport::monotonic_ns();
  std::memcpy(to, memory_->page(first), count * kPageBytes);
  charge_link(begin_ns, 0, count * kPageBytes);
}

Status MemoryClient::fetch_by_call(uint64_t first, uint32_t count, char* to) {
  request_.clear();
  append_credentials(&request_, credentials_);
  append_u16(&request_, static_cast<uint16_t>(count));
  for (uint32_t i = 0; i < count; i++) append_u64(&request_, first + i);
  reply_.payload.resize(count * kPageMessageBytes + kMessageOverheadBytes);
  STRATA_RETURN_IF_ERROR(call(kReadMethod, request_, &reply_, true));
  if (reply_.payload.size() != count * kPageMessageBytes) return nonsense();
  ByteReader reader(reply_.payload);
  for (uint32_t i = 0; i < count; i++) {
    if (reader.u64() != kept(first + i).generation) return not_what_was_written(first + i);
    reader.u32();  // the digest says more
    reader.bytes(kPageBytes).copy(to + i * kPageBytes, kPageBytes);
  }
  return ok_status();
}

Status MemoryClient::discard(uint64_t first, uint64_t count) {
  STRATA_ASSERT(first <= options_.pages && count <= options_.pages - first);
  // Runs of pages that are far: of the others the node has nothing that counts.
  for (uint64_t page = first; page < first + count;) {
    uint64_t run = 0;
    while (page + run < first + count && run < kDiscardPagesMax && is_far(page + run)) run++;
    if (run == 0) {
      page++;
      continue;
    }
    STRATA_RETURN_IF_ERROR(discard_run(page, run));
    page += run;
  }
  return ok_status();
}

Status MemoryClient::discard_run(uint64_t first, uint64_t count) {
  for (uint64_t page = first; page < first + count; page++) kept(page) = {};
  if (mapped()) {
    memory_->discard(first, count);
    return ok_status();
  }
  // Many at a time: a program frees memory piece by piece.
  if (pending_runs_ == kBatchPagesMax || pending_pages_ + count > kDiscardPagesMax)
    STRATA_RETURN_IF_ERROR(send_discards());
  append_u64(&pending_, first);
  append_u64(&pending_, count);
  pending_runs_++;
  pending_pages_ += count;
  return ok_status();
}

Status MemoryClient::send_discards() {
  if (pending_runs_ == 0) return ok_status();
  std::string request = begin_request();
  append_u16(&request, pending_runs_);
  request += pending_;
  pending_.clear();
  pending_runs_ = 0;
  pending_pages_ = 0;
  return call(kDiscardMethod, request, &reply_, true);
}

Status MemoryClient::renew() {
  std::string request = begin_request();
  append_u64(&request, counts_.pages_read.load(std::memory_order_relaxed));
  append_u64(&request, counts_.pages_written.load(std::memory_order_relaxed));
  transport::BlockingReply reply;
  return call(kRenewMethod, request, &reply, true);
}

Status MemoryClient::close() {
  transport::BlockingReply reply;
  return call(kCloseMethod, begin_request(), &reply, false);
}

Status close_region(const transport::Secret& secret, const std::string& address,
                    const Credentials& credentials, uint64_t timeout_us) {
  transport::BlockingChannel channel(secret, address, {});
  std::string request;
  append_credentials(&request, credentials);
  transport::BlockingReply reply;
  return channel.call({.method = kCloseMethod, .deadline_us = monotonic_us() + timeout_us}, request,
                      &reply);
}

}  // namespace strata::farmem
