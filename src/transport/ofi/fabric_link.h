// One connection of a peer's to a region on a fabric, with memory of its own through which all
// bytes go. Used by one thread at a time.
//
//   FL1  Nothing but the link's own memory is ever read or written by the provider, and nothing at
//        all once the link is gone: an operation that was given up cannot write later.
//   FL2  After an error the link is of no use; what was under way may have been done or not.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "transport/ofi/provider.h"
#include "transport/regions/fabric.h"
#include "transport/regions/fabric_server.h"

namespace strata::transport::ofi {

class FabricLink {
 public:
  struct Piece {
    uint64_t remote = 0;  // FabricPlace::base and the offset
    uint32_t local = 0;   // where in buffer()
    uint32_t bytes = 0;   // not 0
  };
  // What goes in one put() or get().
  static constexpr size_t kBufferBytes = 256u << 10;
  static constexpr size_t kPiecesMax = 64;

  // Blocks, at most until the deadline (of base/clock.h's clock; the provider counts
  // milliseconds). Errors: kUnavailable (refused, too), timed_out, kResourceExhausted.
  static StatusOr<std::unique_ptr<FabricLink>> connect(fi_info* info, const FabricPlace& place,
                                                       FabricManner manner, uint64_t deadline_us);
  FabricLink(const FabricLink&) = delete;
  FabricLink& operator=(const FabricLink&) = delete;

  [[nodiscard]] char* buffer() noexcept { return buffer_.data(); }
  // Whether it can be used: the peer has not gone.
  [[nodiscard]] bool is_alive() noexcept;
  // Both happen in the order of the pieces; puts are visible at the end. Block. *begun: whether any
  // of it may happen. Errors: kUnavailable, timed_out.
  Status put(absl::Span<const Piece> pieces, uint64_t deadline_us, bool* begun);
  Status get(absl::Span<const Piece> pieces, uint64_t deadline_us);

 private:
  explicit FabricLink(const FabricPlace& place) : base_(place.base), key_(place.key) {}
  Status open(fi_info* info);
  Status wait_connected(uint64_t deadline_us);
  Status post(const Piece& piece, bool write, uint64_t deadline_us);
  Status wait_all(uint64_t deadline_us);
  Status wait_some(uint64_t deadline_us);

  const uint64_t base_;
  const uint64_t key_;
  bool confirm_by_get_ = false;  // puts
  size_t under_way_ = 0;
  std::vector<char> buffer_;
  Handle<fid_fabric> fabric_;
  Handle<fid_domain> domain_;
  Handle<fid_eq> events_;
  Handle<fid_cq> completions_;
  Handle<fid_mr> memory_;  // where the provider wants local memory registered, else null
  Handle<fid_ep> endpoint_;
};

}  // namespace strata::transport::ofi
