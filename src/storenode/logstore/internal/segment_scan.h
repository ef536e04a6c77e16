// Walks the chunks of a segment file and says where they end or are damaged. Reads only; one
// thread per scanner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "io/file_system.h"
#include "storenode/logstore/internal/segment_format.h"
#include "storenode/logstore/log_store.h"

namespace strata::logstore {

class ChunkScanner {
 public:
  // `offset` is where the chunk that begins at `lsn` should stand. `file` must outlive this.
  // `end_is_known`: what the disk refuses to read is damage (SG4). Otherwise it is an error, since
  // it could be the end.
  ChunkScanner(File* file, uint32_t salt, uint64_t offset, Lsn lsn, bool end_is_known)
      : file_(file), salt_(salt), end_is_known_(end_is_known), offset_(offset), lsn_(lsn) {}

  enum class Found {
    kChunk,       // header() and payload(), valid until the next call; the position is behind it
    kBadPayload,  // header() is whole, the payload is not; the position stays
    kNothing,     // no whole header that continues at lsn(); the position stays
  };
  StatusOr<Found> next();
  void skip_bad_payload() noexcept;
  // Looks for the next whole header behind the position and goes there. False: there is none.
  StatusOr<bool> resync();
  // The largest durable Lsn that a whole header behind the position proves (SEF2); zero: none.
  StatusOr<Lsn> proven_durable();

  [[nodiscard]] uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] Lsn lsn() const noexcept { return lsn_; }
  [[nodiscard]] const ChunkHeader& header() const noexcept { return header_; }
  [[nodiscard]] Bytes payload() const noexcept { return payload_; }

 private:
  StatusOr<Bytes> load(uint64_t offset, size_t bytes);  // fewer at the end of the file
  // First whole header at or behind `offset`, which is a multiple of 8; false when there is none.
  StatusOr<bool> find_header(uint64_t offset, uint64_t* found, ChunkHeader* header);

  File* const file_;
  const uint32_t salt_;
  const bool end_is_known_;
  uint64_t offset_;
  Lsn lsn_;
  ChunkHeader header_{};
  Bytes payload_;
  std::string window_;
  uint64_t window_offset_ = 0;
};

// Where chunks stand, sparsely, and what is wrong.
struct SegmentIndex {
  struct Entry {
    Lsn lsn;
    uint64_t offset;
  };
  std::vector<Entry> entries;  // growing; the first chunk, then about one per kIndexBytes
  std::vector<LogDamage> damages;
  Lsn end;
  uint64_t end_offset = 0;  // where the next chunk would stand
  Lsn quorum_durable;       // the largest any chunk tells
  // Whether a chunk at `offset` deserves an entry of its own.
  static bool is_due(const std::vector<Entry>& entries, uint64_t offset) noexcept;
};

// Scans a whole segment. With `known_end` everything before it was durable once, so whatever is not
// whole is damage. Without (the newest segment after a crash) the first place that is not whole is
// the end, torn, unless a header behind it proves that it was durable (SEF2): then it is damage and
// the log goes on behind it.
StatusOr<SegmentIndex> scan_segment(File* file, const std::string& path, uint32_t salt, Lsn start,
                                    std::optional<Lsn> known_end);

// Appends bytes [from, to) to *out, beginning the walk at `entry`. kDataLoss names file and offset.
Status read_chunks(File* file, const std::string& path, uint32_t salt, SegmentIndex::Entry entry,
                   Lsn from, Lsn to, std::string* out);

}  // namespace strata::logstore
