// One segment file of a stream, in memory. The persister writes it; any thread reads it.
//   SG1  Nothing is written before `write_offset`, and nothing at all after close(): chunks are
//        only added.
//   SG2  The file objects are opened when first needed; the one for reading then stays.
//   SG3  Writes go around the page cache, in whole blocks (io/block_writer.h): the block before
//        write_offset is written again with the bytes it held, what lies behind it in its block is
//        undefined. Reads go through the page cache.
//   SG4  A place that the disk refuses to read (EIO), try after try, is damage like bytes that are
//        wrong, and repaired like it; but where the end of the log is looked for it is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/latch.h"
#include "base/status.h"
#include "io/block_writer.h"
#include "io/file_system.h"
#include "storenode/logstore/internal/segment_format.h"
#include "storenode/logstore/internal/segment_scan.h"

namespace strata::logstore {

class Segment {
 public:
  Segment(FileSystem* fs, std::string path, const SegmentInfo& info, uint32_t salt)
      : path(std::move(path)), info(info), salt(salt), fs_(fs) {}

  const std::string path;
  const SegmentInfo info;
  const uint32_t salt;
  // Set by whoever opens the stream, before the segment is shared. The header is unreadable, so no
  // chunk can be told from any other bytes:
  Status header_failure;
  // What should come behind this segment and is not there, for messages:
  std::string missing_behind;

  // --- the persister ---
  // New chunks go behind what is there; only for a segment just made.
  Status write(Bytes chunks);
  Status sync();
  [[nodiscard]] bool dirty() const noexcept { return dirty_; }
  [[nodiscard]] uint64_t write_offset() const noexcept { return write_offset_; }
  void note_chunk(Lsn lsn, uint64_t offset);
  // Nothing is written any more. Gives room back to the disk when much of it is unused.
  void close(uint64_t segment_bytes) noexcept;
  // After a failed write: nobody knows what stands at the end of the file.
  void distrust() noexcept { offset_known_ = false; }
  // Takes over what a scan found (open, repair).
  void adopt(SegmentIndex index);

  // --- any thread; these block ---
  // Appends bytes [from, to) to *out. `known_end`: up to where the file must be whole. When
  // something is damaged the whole segment is scanned and damages() filled.
  Status read(Lsn from, Lsn to, Lsn known_end, std::string* out);
  Status verify(Lsn known_end);  // kDataLoss when there is damage
  [[nodiscard]] std::vector<LogDamage> damages() const;
  StatusOr<File*> file();

 private:
  Status ensure_index(Lsn known_end);
  SegmentIndex::Entry entry_for(Lsn lsn) const;
  void note_damage(std::vector<LogDamage> found);

  FileSystem* const fs_;
  mutable Mutex mutex_{LatchRank::kFileTable};
  std::unique_ptr<File> file_ STRATA_GUARDED_BY(mutex_);  // set once
  std::vector<SegmentIndex::Entry> entries_ STRATA_GUARDED_BY(mutex_);
  std::vector<LogDamage> damages_ STRATA_GUARDED_BY(mutex_);
  bool indexed_ STRATA_GUARDED_BY(mutex_) = false;
  // Owned by the persister.
  struct Writing {
    std::unique_ptr<File> file;
    BlockWriter blocks;
  };
  StatusOr<Writing*> writing();
  std::unique_ptr<Writing> writing_;  // from the first write until close()
  uint64_t write_offset_ = kSegmentHeaderBytes;
  bool offset_known_ = false;
  bool dirty_ = false;
};
using SegmentPtr = std::shared_ptr<Segment>;

}  // namespace strata::logstore
