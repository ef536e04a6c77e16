// A program's side of its far memory: knows of each page whether the node has content of it, which
// version, and what it must look like. A mapping of the region where the address is a unix
// socket's, calls elsewhere.
//
//   FM15  fetch() hands out what store() was given last for that page, bit for bit, or kDataLoss:
//         whatever the node, the wire or another client did (page_digest.h: but for 2^-64).
//   FM16  A page whose content the node has already is not sent again, and one of zeros never is.
//   FM17  No call takes longer than `timeout_us`; after an error that is not kDataLoss the node is
//         to be taken for lost.
// store(), fetch(), discard() and is_far() are for one thread at a time; renew() and counts() for
// any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "base/mapped_memory.h"
#include "farmem/node/messages.h"
#include "farmem/node/page_digest.h"
#include "farmem/node/region_memory.h"
#include "transport/calls/blocking_channel.h"
#include "transport/link_model.h"

namespace strata::farmem {

struct ClientOptions {
  std::string address;  // "tcp:127.0.0.1:7301" or "unix:/path"
  std::string name;     // for the node's status
  uint64_t pages = 0;   // of far memory
  uint64_t timeout_us = 5'000'000;
  std::shared_ptr<transport::LinkModel> link_model = nullptr;
};

struct PageOut {
  uint64_t page = 0;
  const char* bytes = nullptr;  // kPageBytes of them
};
enum class Stored : uint8_t { kWritten, kClean, kZero };

struct ClientCounts {
  std::atomic<uint64_t> pages_read{0};
  std::atomic<uint64_t> pages_written{0};
};

class MemoryClient {
 public:
  // Blocks. Errors: the node's (kResourceExhausted: full), kDataLoss, and as CA1 of call.h.
  static StatusOr<std::unique_ptr<MemoryClient>> open(const transport::Secret& secret,
                                                      const ClientOptions& options);
  MemoryClient(const MemoryClient&) = delete;
  MemoryClient& operator=(const MemoryClient&) = delete;

  // At most kBatchPagesMax pages. Blocks. `outcome` has as many places.
  Status store(absl::Span<const PageOut> pages, absl::Span<Stored> outcome);
  // Pages `first`, first+1 ... which all are far, at most kBatchPagesMax, into `to`. Blocks.
  Status fetch(uint64_t first, uint32_t count, char* to);
  // Whether the node has content of it; a page without reads as zeros.
  [[nodiscard]] bool is_far(uint64_t page) const noexcept { return kept(page).generation != 0; }
  // The program does not need what is in these pages. May block. The node hears of it at the latest
  // before the next store() that writes.
  Status discard(uint64_t first, uint64_t count);
  // Sign of life. Blocks.
  Status renew();
  Status close();

  [[nodiscard]] const ClientCounts& counts() const noexcept { return counts_; }
  [[nodiscard]] const Credentials& credentials() const noexcept { return credentials_; }
  [[nodiscard]] uint64_t pages() const noexcept { return options_.pages; }
  [[nodiscard]] bool mapped() const noexcept { return memory_ != nullptr; }

 private:
  struct Kept {
    Digest digest;
    uint64_t generation = 0;  // 0: the node has nothing
  };

  MemoryClient(const transport::Secret& secret, const ClientOptions& options, MappedMemory kept);
  [[nodiscard]] Kept& kept(uint64_t page) const noexcept;
  Status open_region();
  Status call(uint16_t method, Bytes request, transport::BlockingReply* reply, bool idempotent);
  [[nodiscard]] std::string begin_request() const;
  Status fetch_by_call(uint64_t first, uint32_t count, char* to);
  void fetch_by_mapping(uint64_t first, uint32_t count, char* to);
  Status discard_run(uint64_t first, uint64_t count);
  Status send_discards();
  void charge_link(uint64_t begin_ns, uint64_t bytes_out, uint64_t bytes_in) const;

  const ClientOptions options_;
  const PageDigest digest_;
  transport::BlockingChannel channel_;
  MappedMemory kept_;
  Credentials credentials_;
  std::unique_ptr<RegionMemory> memory_;  // null: by calls
  uint64_t last_generation_ = 0;          // of any page: none is used twice
  std::string pending_;                   // runs the node has not been told to discard
  uint16_t pending_runs_ = 0;
  uint64_t pending_pages_ = 0;
  std::string request_;  // memory that is used again
  transport::BlockingReply reply_;
  ClientCounts counts_;
};

// For a client that died: its region's memory is free at once. Blocks. Errors as those of close().
Status close_region(const transport::Secret& secret, const std::string& address,
                    const Credentials& credentials, uint64_t timeout_us);

}  // namespace strata::farmem
