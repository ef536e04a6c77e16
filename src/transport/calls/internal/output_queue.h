// Bytes waiting to be written to a stream, large payloads without a copy. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/types/span.h"
#include "base/bytes.h"
#include "transport/internal/file_descriptor.h"

namespace strata::transport {

class OutputQueue {
 public:
  // `attached`, if valid, goes with the first byte of the header.
  void append(Bytes header, std::string payload, FileDescriptor attached);

  struct Batch {
    size_t pieces = 0;
    int attached = -1;  // goes with the first byte
  };
  // What may be written by one call: at most `out.size()` pieces, and none with a descriptor of its
  // own behind the first. The views are valid until consume().
  [[nodiscard]] Batch front(absl::Span<Bytes> out) const;
  void consume(size_t bytes) noexcept;  // were written, with the descriptor of the first

  [[nodiscard]] uint64_t waiting() const noexcept { return queued_ - written_; }
  [[nodiscard]] uint64_t queued() const noexcept { return queued_; }    // bytes, of all time
  [[nodiscard]] uint64_t written() const noexcept { return written_; }  // bytes, of all time

 private:
  struct Chunk {
    std::string bytes;
    FileDescriptor attached;
  };
  std::deque<Chunk> chunks_;
  size_t front_offset_ = 0;  // of the first chunk, already written
  uint64_t queued_ = 0;
  uint64_t written_ = 0;
};

}  // namespace strata::transport
