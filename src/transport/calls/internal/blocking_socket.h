// A connected socket read and written by the calling thread, up to a deadline. Not thread-safe.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "base/status.h"
#include "transport/calls/frame.h"
#include "transport/internal/file_descriptor.h"

namespace strata::transport {

class BlockingSocket {
 public:
  BlockingSocket(FileDescriptor fd, bool carries_descriptors) noexcept
      : fd_(std::move(fd)), carries_descriptors_(carries_descriptors) {}

  // From now on reads wait in the system call that reads, where the deadline allows: one call fewer
  // for each reply. Without it, and if it fails, they wait in one of their own.
  void let_reads_wait() noexcept;

  // All of these block, at most until the deadline (of monotonic_ns()). Errors: timed_out,
  // kUnavailable (the connection is broken); kDataLoss, kResourceExhausted (what came is no reply).
  Status wait_writable(uint64_t deadline_ns) noexcept;
  Status write(std::array<iovec, 2> pieces, uint64_t deadline_ns) noexcept;
  StatusOr<size_t> read_some(absl::Span<iovec> pieces, uint64_t deadline_ns,
                             FileDescriptor* attached) noexcept;
  // One frame and nothing behind it: on a quiet connection with one call in progress nothing else
  // may come. *payload's size is a guess of the frame's payload's.
  Status read_frame(uint32_t payload_bytes_max, uint64_t deadline_ns, FrameHeader* header,
                    std::string* payload, FileDescriptor* attached) noexcept;

  // Nothing has come, not even the end.
  [[nodiscard]] bool is_idle() const noexcept;
  // The peer has ended it, or it broke; what came before is not looked at.
  [[nodiscard]] bool is_over() const noexcept;
  // Blocks until that is so.
  void wait_over() const noexcept;
  uint64_t next_request_id() noexcept { return next_request_id_++; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  Status wait(short events, uint64_t deadline_ns) const noexcept;
  FileDescriptor fd_;
  bool carries_descriptors_;
  bool reads_wait_ = false;
  uint64_t next_request_id_ = 1;
};

}  // namespace strata::transport
