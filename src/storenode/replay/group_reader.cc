#include "storenode/replay/group_reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/assert.h"
#include "storenode/replay/streams.h"

namespace strata::storenode {
namespace {

constexpr size_t kReadBytes = 256u << 10;
constexpr size_t kBufferBytes = redo::kGroupBytesMax + 2 * kReadBytes;

}  // namespace

GroupReader::GroupReader(StreamId stream, LogView* log, LogCache* cache, Lsn start)
    : stream_(stream),
      log_(log),
      cache_(cache),
      position_(start.value),
      buffer_(std::make_unique_for_overwrite<char[]>(kBufferBytes)) {}

// Makes `bytes` bytes from position_ available, or all that are durable.
Status GroupReader::fill(size_t bytes, uint64_t durable) {
  STRATA_ASSERT(bytes <= redo::kGroupBytesMax);
  STRATA_ASSERT(offset_ <= filled_ && filled_ <= kBufferBytes);
  if (kBufferBytes - offset_ < bytes + kReadBytes) {
    std::memmove(buffer_.get(), buffer_.get() + offset_, filled_ - offset_);
    filled_ -= offset_;
    offset_ = 0;
  }
  while (filled_ - offset_ < bytes) {
    const uint64_t at = position_ + (filled_ - offset_);
    if (at >= durable) break;
    const size_t n = std::min<uint64_t>(durable - at, kReadBytes);
    STRATA_ASSERT(filled_ + n <= kBufferBytes);
    STRATA_RETURN_IF_ERROR(cache_->read(stream_, log_, Lsn{at}, buffer_.get() + filled_, n));
    filled_ += n;
  }
  return ok_status();
}

Status GroupReader::forget(const Status& status) {
  filled_ = offset_;
  return with_message(
      status, "log of " + name_of(stream_, Lsn{position_}) + ": " + std::string(status.message()));
}

StatusOr<bool> GroupReader::next(redo::GroupView* group) {
  const uint64_t durable = log_->durable_lsn().value;
  size_t need = sizeof(redo::GroupHeader);
  bool read_again = false;
  for (;;) {
    if (Status status = fill(need, durable); !status.ok()) return forget(status);
    if (buffered().size() < need) return false;
    StatusOr<redo::GroupView> parsed = redo::parse_group(buffered(), Lsn{position_}, &need);
    if (!parsed.ok() &&
        is_out_of_range(parsed.status())) {  // `need` has grown, if it is to be believed
      redo::GroupHeader header;
      std::memcpy(&header, buffered().data(), sizeof(header));
      if (redo::header_is_whole(header)) continue;
      parsed = error_corruption("redo group: its header is damaged");
    }
    if (!parsed.ok()) {
      cache_->clear();
      if (std::exchange(read_again, true)) return forget(parsed.status());
      // What was read ahead, or cached, may be from before the log was repaired.
      filled_ = offset_;
      need = sizeof(redo::GroupHeader);
      continue;
    }
    const redo::GroupHeader& header = parsed->header;
    const uint64_t end = position_ + header.length;
    if (header.llsn < end || header.llsn - end < bias_)
      return forget(error_corruption("the group's llsn " + std::to_string(header.llsn) +
                                     " does not follow the ones before"));
    bias_ = header.llsn - end;
    *group = *parsed;
    position_ = end;
    offset_ += header.length;
    return true;
  }
}

}  // namespace strata::storenode
