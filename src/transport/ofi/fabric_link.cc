#include "transport/ofi/fabric_link.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"

namespace strata::transport::ofi {
namespace {

constexpr size_t kConfirmationBytes = 8;  // behind the buffer

// For libfabric's waits: at least a millisecond, so that short rests do not turn into spinning.
int left_ms(uint64_t deadline_us) {
  const uint64_t now_us = monotonic_us();
  const uint64_t left_us = deadline_us > now_us ? deadline_us - now_us : 0;
  return static_cast<int>(std::min<uint64_t>(left_us / 1000 + 1, 60'000));
}

Status out_of_time() { return error_timed_out("deadline of an operation on a fabric"); }

}  // namespace

StatusOr<std::unique_ptr<FabricLink>> FabricLink::connect(fi_info* info, const FabricPlace& place,
                                                          FabricManner manner,
                                                          uint64_t deadline_us) {
  std::unique_ptr<FabricLink> link(new FabricLink(place));
  link->confirm_by_get_ = manner == FabricManner::kAsHardware || !has_delivery_complete(*info);
  STRATA_RETURN_IF_ERROR(link->open(info));
  const int error =
      ::fi_connect(link->endpoint_.get(), info->dest_addr, place.token.data(), place.token.size());
  if (error != 0) return fabric_error("connect", error);
  STRATA_RETURN_IF_ERROR(link->wait_connected(deadline_us));
  return link;
}

Status FabricLink::open(fi_info* info) {
  buffer_.resize(kBufferBytes + kConfirmationBytes);
  STRATA_ASSIGN_OR_RETURN(fabric_, open_fabric(info));
  STRATA_ASSIGN_OR_RETURN(domain_, open_domain(fabric_.get(), info));
  STRATA_ASSIGN_OR_RETURN(events_, open_events(fabric_.get(), FI_WAIT_UNSPEC));
  STRATA_ASSIGN_OR_RETURN(completions_,
                          open_completions(domain_.get(), 2 * kPiecesMax, FI_WAIT_UNSPEC));
  if ((info->domain_attr->mr_mode & FI_MR_LOCAL) != 0) {
    fid_mr* memory = nullptr;
    const int error = ::fi_mr_reg(domain_.get(), buffer_.data(), buffer_.size(), FI_READ | FI_WRITE,
                                  0, 0, 0, &memory, nullptr);
    if (error != 0) return fabric_error("registering memory", error);
    memory_.reset(memory);
  }
  STRATA_ASSIGN_OR_RETURN(endpoint_, open_endpoint(domain_.get(), info));
  return enable(endpoint_.get(), events_.get(), completions_.get());
}

Status FabricLink::wait_connected(uint64_t deadline_us) {
  for (;;) {
    fi_eq_cm_entry entry{};
    uint32_t event = 0;
    const ssize_t got =
        ::fi_eq_sread(events_.get(), &event, &entry, sizeof entry, left_ms(deadline_us), 0);
    if (got >= 0 && event == FI_CONNECTED) return ok_status();
    if (got >= 0) return error_peer_down("fabric: connecting came to nothing");
    if (got == -FI_EAVAIL) {
      fi_eq_err_entry error{};
      (void)::fi_eq_readerr(events_.get(), &error, 0);
      return fabric_error("connect", error.err);
    }
    if (got != -FI_EAGAIN && got != -FI_EINTR && got != -FI_ETIMEDOUT)
      return fabric_error("connect", got);
    if (monotonic_us() >= deadline_us) return out_of_time();
  }
}

bool FabricLink::is_alive() noexcept {
  fi_cq_entry completion;
  if (::fi_cq_read(completions_.get(), &completion, 1) != -FI_EAGAIN) return false;
  fi_eq_cm_entry entry{};
  uint32_t event = 0;
  return ::fi_eq_read(events_.get(), &event, &entry, sizeof entry, 0) == -FI_EAGAIN;
}

Status FabricLink::put(absl::Span<const Piece> pieces, uint64_t deadline_us, bool* begun) {
  for (const Piece& piece : pieces) {
    STRATA_RETURN_IF_ERROR(post(piece, true, deadline_us));
    *begun = true;
  }
  // Without this the network card at the other end may still be at it when it says that it has
  // everything. A get behind puts comes back after them.
  if (confirm_by_get_)
    STRATA_RETURN_IF_ERROR(post({base_, kBufferBytes, kConfirmationBytes}, false, deadline_us));
  return wait_all(deadline_us);
}

Status FabricLink::get(absl::Span<const Piece> pieces, uint64_t deadline_us) {
  for (const Piece& piece : pieces) STRATA_RETURN_IF_ERROR(post(piece, false, deadline_us));
  return wait_all(deadline_us);
}

Status FabricLink::post(const Piece& piece, bool write, uint64_t deadline_us) {
  STRATA_ASSERT(piece.bytes > 0 && piece.local + piece.bytes <= buffer_.size());
  iovec local{buffer_.data() + piece.local, piece.bytes};
  fi_rma_iov remote{piece.remote, piece.bytes, key_};
  void* description = memory_ == nullptr ? nullptr : ::fi_mr_desc(memory_.get());
  fi_msg_rma message{};
  message.msg_iov = &local;
  message.desc = &description;
  message.iov_count = 1;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  const uint64_t put_flags = FI_COMPLETION | (confirm_by_get_ ? 0 : FI_DELIVERY_COMPLETE);
  for (;;) {
    const ssize_t error = write ? ::fi_writemsg(endpoint_.get(), &message, put_flags)
                                : ::fi_readmsg(endpoint_.get(), &message, FI_COMPLETION);
    if (error == 0) break;
    if (error != -FI_EAGAIN || under_way_ == 0) return fabric_error("operation", error);
    STRATA_RETURN_IF_ERROR(wait_some(deadline_us));  // there is no room for so many
  }
  under_way_++;
  return ok_status();
}

Status FabricLink::wait_all(uint64_t deadline_us) {
  while (under_way_ > 0) STRATA_RETURN_IF_ERROR(wait_some(deadline_us));
  return ok_status();
}

Status FabricLink::wait_some(uint64_t deadline_us) {
  for (;;) {
    fi_cq_entry entries[16];
    const ssize_t got =
        ::fi_cq_sread(completions_.get(), entries, 16, nullptr, left_ms(deadline_us));
    if (got > 0) {
      STRATA_ASSERT(static_cast<size_t>(got) <= under_way_);
      under_way_ -= static_cast<size_t>(got);
      return ok_status();
    }
    if (got == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      (void)::fi_cq_readerr(completions_.get(), &error, 0);
      return fabric_error("operation", error.err);
    }
    if (got != 0 && got != -FI_EAGAIN && got != -FI_EINTR && got != -FI_ETIMEDOUT)
      return fabric_error("operation", got);
    if (monotonic_us() >= deadline_us) return out_of_time();
  }
}

}  // namespace strata::transport::ofi
