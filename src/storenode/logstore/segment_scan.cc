#include "storenode/logstore/internal/segment_scan.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "io/device_error.h"

namespace strata::logstore {
namespace {

constexpr size_t kWindowBytes = 256u << 10;
constexpr uint64_t kIndexBytes = 64u << 10;
static_assert(sizeof(ChunkHeader) % 8 == 0);

constexpr const char* kCopyFromPeer = "; copy the range from a peer (repair)";

std::string place(const std::string& path, uint64_t offset, Lsn lsn) {
  return "log segment " + path + " at byte " + std::to_string(offset) + " (lsn " +
         std::to_string(lsn.value) + ")";
}

}  // namespace

StatusOr<Bytes> ChunkScanner::load(uint64_t offset, size_t bytes) {
  if (offset < window_offset_ || offset + bytes > window_offset_ + window_.size()) {
    window_.resize(std::max(bytes, kWindowBytes));
    size_t got = 0;
    STRATA_RETURN_IF_ERROR(
        end_is_known_
            ? read_around_device_errors(file_, offset, window_.data(), window_.size(), &got)
            : file_->read_at(offset, window_.data(), window_.size(), &got));
    window_.resize(got);
    window_offset_ = offset;
  }
  const Bytes window(window_);
  return window.substr(offset - window_offset_, bytes);
}

StatusOr<ChunkScanner::Found> ChunkScanner::next() {
  STRATA_ASSIGN_OR_RETURN(const Bytes head, load(offset_, sizeof(ChunkHeader)));
  if (!decode_chunk_header(head, salt_, &header_) || header_.lsn != lsn_.value)
    return Found::kNothing;
  STRATA_ASSIGN_OR_RETURN(const Bytes whole, load(offset_, sizeof(ChunkHeader) + header_.bytes));
  payload_ = whole.size() < sizeof(ChunkHeader) ? Bytes() : whole.substr(sizeof(ChunkHeader));
  if (!payload_is_whole(header_, payload_)) return Found::kBadPayload;
  offset_ += chunk_bytes(header_.bytes);
  lsn_.value += header_.bytes;
  return Found::kChunk;
}

void ChunkScanner::skip_bad_payload() noexcept {
  offset_ += chunk_bytes(header_.bytes);
  lsn_.value += header_.bytes;
}

StatusOr<bool> ChunkScanner::find_header(uint64_t offset, uint64_t* found, ChunkHeader* header) {
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(const Bytes bytes, load(offset, kWindowBytes));
    for (size_t i = 0; i + sizeof(ChunkHeader) <= bytes.size(); i += 8) {
      if (!decode_chunk_header(bytes.substr(i), salt_, header)) continue;
      *found = offset + i;
      return true;
    }
    if (bytes.size() < kWindowBytes) return false;
    offset += kWindowBytes - sizeof(ChunkHeader) + 8;
  }
}

StatusOr<bool> ChunkScanner::resync() {
  uint64_t from = offset_ + 8;
  for (;;) {
    uint64_t found = 0;
    ChunkHeader header;
    STRATA_ASSIGN_OR_RETURN(const bool more, find_header(from, &found, &header));
    if (!more) return false;
    // Bytes take at least their own room in the file.
    if (header.lsn > lsn_.value && header.lsn - lsn_.value <= found - offset_) {
      offset_ = found;
      lsn_ = Lsn{header.lsn};
      return true;
    }
    from = found + 8;
  }
}

StatusOr<Lsn> ChunkScanner::proven_durable() {
  Lsn proven;
  uint64_t from = offset_ + 8;
  for (;;) {
    uint64_t found = 0;
    ChunkHeader header;
    STRATA_ASSIGN_OR_RETURN(const bool more, find_header(from, &found, &header));
    if (!more) return proven;
    if (header.lsn >= lsn_.value && header.durable_lsn <= header.lsn)
      proven = std::max(proven, Lsn{header.durable_lsn});
    from = found + 8;
  }
}

bool SegmentIndex::is_due(const std::vector<Entry>& entries, uint64_t offset) noexcept {
  return entries.empty() || offset - entries.back().offset >= kIndexBytes;
}

namespace {

// The scan met something that is not a whole chunk. Says where the walk goes on: false at its end.
StatusOr<bool> pass_damage(ChunkScanner* scanner, ChunkScanner::Found found,
                           const std::string& path, std::optional<Lsn> known_end,
                           SegmentIndex* index) {
  const Lsn from = scanner->lsn();
  const uint64_t offset = scanner->offset();
  Lsn end = known_end.value_or(Lsn{});
  if (!known_end.has_value()) {
    STRATA_ASSIGN_OR_RETURN(end, scanner->proven_durable());
    if (end <= from) return false;  // a torn tail
  }
  LogDamage damage{.from = from, .to = end, .path = path, .offset = offset, .what = {}};
  bool more = true;
  if (found == ChunkScanner::Found::kBadPayload) {
    damage.what = place(path, offset, from) + ": the bytes of a chunk are damaged";
    scanner->skip_bad_payload();
  } else {
    damage.what = place(path, offset, from) + ": no whole chunk stands here";
    STRATA_ASSIGN_OR_RETURN(more, scanner->resync());
  }
  // A whole chunk behind may show that the log goes on beyond what is proven.
  if (more) damage.to = known_end.has_value() ? std::min(end, scanner->lsn()) : scanner->lsn();
  damage.what += kCopyFromPeer;
  index->damages.push_back(std::move(damage));
  index->end = index->damages.back().to;
  return more;
}

}  // namespace

StatusOr<SegmentIndex> scan_segment(File* file, const std::string& path, uint32_t salt, Lsn start,
                                    std::optional<Lsn> known_end) {
  SegmentIndex index;
  ChunkScanner scanner(file, salt, kSegmentHeaderBytes, start, known_end.has_value());
  index.entries.push_back({start, kSegmentHeaderBytes});
  index.end = start;
  while (!known_end.has_value() || scanner.lsn() < *known_end) {
    const Lsn lsn = scanner.lsn();
    const uint64_t offset = scanner.offset();
    STRATA_ASSIGN_OR_RETURN(const ChunkScanner::Found found, scanner.next());
    if (found == ChunkScanner::Found::kChunk) {
      if (SegmentIndex::is_due(index.entries, offset)) index.entries.push_back({lsn, offset});
      index.quorum_durable =
          std::max(index.quorum_durable, Lsn{scanner.header().quorum_durable_lsn});
      index.end = scanner.lsn();
      continue;
    }
    STRATA_ASSIGN_OR_RETURN(const bool more, pass_damage(&scanner, found, path, known_end, &index));
    if (!more) break;
    // Who wants what is behind need not walk over the damage.
    index.entries.push_back({scanner.lsn(), scanner.offset()});
  }
  index.end_offset = scanner.offset();
  if (known_end.has_value()) index.end = *known_end;
  return index;
}

Status read_chunks(File* file, const std::string& path, uint32_t salt, SegmentIndex::Entry entry,
                   Lsn from, Lsn to, std::string* out) {
  STRATA_ASSERT(entry.lsn <= from);
  ChunkScanner scanner(file, salt, entry.offset, entry.lsn, /*end_is_known=*/true);
  while (from < to) {
    const Lsn lsn = scanner.lsn();
    const uint64_t offset = scanner.offset();
    STRATA_ASSIGN_OR_RETURN(const ChunkScanner::Found found, scanner.next());
    if (found != ChunkScanner::Found::kChunk)
      return error_corruption(place(path, offset, lsn) + ": damaged" + kCopyFromPeer);
    if (scanner.lsn() <= from) continue;
    const uint64_t skip = from.value - lsn.value;
    const uint64_t bytes = std::min(scanner.lsn(), to).value - from.value;
    out->append(scanner.payload().substr(skip, bytes));
    from.value += bytes;
  }
  return ok_status();
}

}  // namespace strata::logstore
