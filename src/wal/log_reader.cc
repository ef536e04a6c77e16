#include "wal/log_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "base/assert.h"

namespace strata {
namespace {
constexpr size_t kReadBytes = 1u << 20;
constexpr size_t kBufferBytes = redo::kGroupBytesMax + 4 * kReadBytes;
}  // namespace

size_t find_group(Bytes bytes, Lsn at, redo::GroupView* group) {
  constexpr size_t kLsnOffset = offsetof(redo::GroupHeader, lsn);
  for (size_t i = 0; i + sizeof(redo::GroupHeader) <= bytes.size(); i += 8) {
    const char* p = bytes.data() + i;
    if (load_u16(p) != redo::kGroupMagic || load_u64(p + kLsnOffset) != at.value + i) continue;
    size_t need = 0;
    StatusOr<redo::GroupView> parsed = redo::parse_group(bytes.substr(i), Lsn{at.value + i}, &need);
    if (!parsed.ok()) continue;
    if (group != nullptr) *group = *parsed;
    return i;
  }
  return Bytes::npos;
}

LogReader::LogReader(LogSink* sink, Lsn start, uint64_t bias)
    : sink_(sink),
      position_(start.value),
      bias_(bias),
      buffer_(std::make_unique_for_overwrite<char[]>(kBufferBytes)) {}

Status LogReader::fill(size_t bytes) {
  STRATA_ASSERT(bytes <= kBufferBytes - kReadBytes);
  if (filled_ - offset_ >= bytes || exhausted_) return ok_status();
  if (kBufferBytes - offset_ < bytes + kReadBytes) {
    std::memmove(buffer_.get(), buffer_.get() + offset_, filled_ - offset_);
    filled_ -= offset_;
    offset_ = 0;
  }
  while (filled_ - offset_ < bytes && !exhausted_) {
    const size_t room = std::min(kBufferBytes - filled_, 2 * kReadBytes);
    STRATA_ASSIGN_OR_RETURN(const size_t got, sink_->read(Lsn{position_ + (filled_ - offset_)},
                                                          buffer_.get() + filled_, room));
    filled_ += got;
    exhausted_ = got < room;
  }
  return ok_status();
}

StatusOr<bool> LogReader::next(redo::GroupView* group) {
  if (ended_) return false;
  STRATA_RETURN_IF_ERROR(fill(sizeof(redo::GroupHeader)));
  size_t need = 0;
  StatusOr<redo::GroupView> parsed = redo::parse_group(buffered(), Lsn{position_}, &need);
  if (!parsed.ok() && is_out_of_range(parsed.status()) && need <= redo::kGroupBytesMax) {
    STRATA_RETURN_IF_ERROR(fill(need));
    parsed = redo::parse_group(buffered(), Lsn{position_}, &need);
  }
  if (!parsed.ok()) {
    if (is_out_of_range(parsed.status())) STRATA_RETURN_IF_ERROR(check_room(need));
    return at_end();
  }
  const redo::GroupHeader& header = parsed->header;
  const uint64_t end = position_ + header.length;
  if (header.llsn < end || header.llsn - end < bias_) return at_end();  // LR4
  bias_ = header.llsn - end;
  *group = *parsed;
  position_ = end;
  offset_ += header.length;
  group_count_++;
  return true;
}

// Room is durable before a group is reserved in it (W7, LS2), so a group that needs more room than
// there is lost a segment. Its length counts only if the header is whole: a torn one says anything.
Status LogReader::check_room(size_t need) {
  if (sink_->is_stream()) return ok_status();
  redo::GroupHeader header;
  if (buffered().size() < sizeof(header) || position_ + need <= sink_->room_end().value)
    return ok_status();
  std::memcpy(&header, buffered().data(), sizeof(header));
  if (!redo::header_is_whole(header)) return ok_status();
  return error_corruption("the log is cut off: the group at " + sink_->locate(Lsn{position_}) +
                          " goes on behind the last segment; restore the segments after it");
}

// Decides LR2 and remembers what erase_tail() has to blank.
StatusOr<bool> LogReader::at_end() {
  ended_ = true;
  const uint64_t room_end = sink_->room_end().value;
  uint64_t at = position_ + 8;
  const auto chunk = std::make_unique_for_overwrite<char[]>(kBufferBytes);
  while (at + sizeof(redo::GroupHeader) <= room_end) {
    STRATA_ASSIGN_OR_RETURN(const size_t got, sink_->read(Lsn{at}, chunk.get(), kBufferBytes));
    const Bytes bytes(chunk.get(), got);
    size_t done = 0;
    redo::GroupView group;
    for (;;) {
      const size_t found = find_group(bytes.substr(done), Lsn{at + done}, &group);
      if (found == Bytes::npos) break;
      const redo::GroupHeader& h = group.header;
      if (h.durable_delta != UINT32_MAX && h.durable_delta <= h.lsn &&
          h.lsn - h.durable_delta > position_)
        return error_corruption("the log is damaged at " + sink_->locate(Lsn{position_}) +
                                ": a later group (lsn " + std::to_string(h.lsn) +
                                ") says that it was durable up to lsn " +
                                std::to_string(h.lsn - h.durable_delta) +
                                "; restore the segment from a copy or the database from a backup");
      done += found + h.length;
      stray_end_ = at + done;
    }
    if (got < kBufferBytes) break;
    // A group that starts in the last kGroupBytesMax bytes may not have been whole in this chunk.
    at += std::max<uint64_t>(done, (got - redo::kGroupBytesMax) / 8 * 8);
  }
  return false;
}

Status LogReader::erase_tail() {
  STRATA_ASSERT(ended_);
  if (sink_->is_stream()) return sink_->cut_at(Lsn{position_});
  std::vector<char> zeroes;
  if (stray_end_ > position_) zeroes.resize(kReadBytes, 0);
  for (uint64_t at = position_; at < stray_end_; at += zeroes.size()) {
    const size_t bytes = std::min<uint64_t>(zeroes.size(), stray_end_ - at);
    STRATA_RETURN_IF_ERROR(sink_->append(Lsn{at}, Bytes(zeroes.data(), bytes)));
  }
  return sink_->sync();
}

}  // namespace strata
