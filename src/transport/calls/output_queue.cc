#include "transport/calls/internal/output_queue.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::transport {
namespace {
constexpr size_t kCopiedBytesMax = 4096;  // smaller payloads are cheaper to copy than to point at
constexpr size_t kChunkBytesMax = 64u << 10;
}  // namespace

void OutputQueue::append(Bytes header, std::string payload, FileDescriptor attached) {
  queued_ += header.size() + payload.size();
  if (attached.valid() || chunks_.empty() || chunks_.back().bytes.size() > kChunkBytesMax)
    chunks_.emplace_back(Chunk{std::string(), std::move(attached)});
  chunks_.back().bytes.append(header);
  if (payload.size() <= kCopiedBytesMax) {
    chunks_.back().bytes.append(payload);
  } else {
    chunks_.emplace_back();
    chunks_.back().bytes = std::move(payload);
  }
}

OutputQueue::Batch OutputQueue::front(absl::Span<Bytes> out) const {
  Batch batch;
  for (const Chunk& chunk : chunks_) {
    if (batch.pieces == out.size()) break;
    const bool first = batch.pieces == 0;
    if (chunk.attached.valid() && !first) break;
    const size_t offset = first ? front_offset_ : 0;
    if (chunk.attached.valid() && offset == 0) batch.attached = chunk.attached.get();
    out[batch.pieces++] = Bytes(chunk.bytes).substr(offset);
  }
  return batch;
}

void OutputQueue::consume(size_t bytes) noexcept {
  STRATA_ASSERT(bytes <= waiting());
  written_ += bytes;
  while (bytes > 0) {
    const size_t here = std::min(bytes, chunks_.front().bytes.size() - front_offset_);
    front_offset_ += here;
    bytes -= here;
    chunks_.front().attached.reset();
    if (front_offset_ < chunks_.front().bytes.size()) break;
    chunks_.pop_front();
    front_offset_ = 0;
  }
}

}  // namespace strata::transport
