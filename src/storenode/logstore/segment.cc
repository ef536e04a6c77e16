#include "storenode/logstore/internal/segment.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::logstore {

StatusOr<File*> Segment::file() {
  {
    const MutexLock lock(mutex_);
    if (file_ != nullptr) return file_.get();
  }
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, fs_->open(path, {}));
  const MutexLock lock(mutex_);
  if (file_ == nullptr) file_ = std::move(opened);
  return file_.get();
}

StatusOr<Segment::Writing*> Segment::writing() {
  if (writing_ == nullptr) {
    auto started = std::make_unique<Writing>();
    STRATA_ASSIGN_OR_RETURN(started->file, fs_->open(path, {.direct = true}));
    writing_ = std::move(started);
  }
  return writing_.get();
}

Status Segment::write(Bytes chunks) {
  STRATA_ASSIGN_OR_RETURN(File* const read_through, file());
  STRATA_ASSIGN_OR_RETURN(Writing* const out, writing());
  STRATA_ASSERT(!chunks.empty() && chunks.size() % 8 == 0);
  STRATA_ASSERT(write_offset_ >= kSegmentHeaderBytes && write_offset_ % 8 == 0);  // SG1
  dirty_ = true;
  offset_known_ = true;
  STRATA_RETURN_IF_ERROR(out->blocks.write(out->file.get(), read_through, write_offset_, chunks));
  write_offset_ += chunks.size();
  return ok_status();
}

// Also of what an earlier life wrote.
Status Segment::sync() {
  STRATA_ASSIGN_OR_RETURN(File* const read_through, file());
  File* const f = writing_ != nullptr ? writing_->file.get() : read_through;
  STRATA_RETURN_IF_ERROR(f->sync_data());
  dirty_ = false;
  return ok_status();
}

void Segment::note_chunk(Lsn lsn, uint64_t offset) {
  const MutexLock lock(mutex_);
  STRATA_ASSERT(lsn >= info.start && offset < write_offset_);
  STRATA_ASSERT(entries_.empty() || (entries_.back().lsn < lsn && entries_.back().offset < offset));
  indexed_ = true;  // a segment that is written to was indexed from its first chunk on
  if (SegmentIndex::is_due(entries_, offset)) entries_.push_back({lsn, offset});
}

void Segment::close(uint64_t segment_bytes) noexcept {
  const bool wasteful = segment_bytes - std::min(segment_bytes, write_offset_) > segment_bytes / 8;
  writing_ = nullptr;
  const StatusOr<File*> f = file();
  // What fails only wastes room.
  if (f.ok() && offset_known_ && wasteful) (*f)->truncate(write_offset_).IgnoreError();
  offset_known_ = false;
}

void Segment::adopt(SegmentIndex index) {
  write_offset_ = index.end_offset;
  offset_known_ = index.damages.empty();
  const MutexLock lock(mutex_);
  entries_ = std::move(index.entries);
  damages_ = std::move(index.damages);
  indexed_ = true;
}

Status Segment::ensure_index(Lsn known_end) {
  {
    const MutexLock lock(mutex_);
    if (indexed_) return ok_status();
  }
  return verify(known_end);
}

Status Segment::verify(Lsn known_end) {
  STRATA_RETURN_IF_ERROR(header_failure);
  STRATA_ASSIGN_OR_RETURN(File* const f, file());
  STRATA_ASSIGN_OR_RETURN(SegmentIndex index, scan_segment(f, path, salt, info.start, known_end));
  const MutexLock lock(mutex_);
  // The persister may have added chunks behind what was scanned.
  for (const SegmentIndex::Entry& entry : entries_)
    if (entry.lsn >= index.end) index.entries.push_back(entry);
  entries_ = std::move(index.entries);
  indexed_ = true;
  for (LogDamage& damage : index.damages)
    if (damage.to == known_end) damage.what += missing_behind;
  damages_ = std::move(index.damages);
  return damages_.empty() ? ok_status() : error_corruption(damages_.front().what);
}

SegmentIndex::Entry Segment::entry_for(Lsn lsn) const {
  const MutexLock lock(mutex_);
  const auto behind =
      std::upper_bound(entries_.begin(), entries_.end(), lsn,
                       [](Lsn l, const SegmentIndex::Entry& e) { return l < e.lsn; });
  if (behind == entries_.begin()) return {info.start, kSegmentHeaderBytes};
  return *std::prev(behind);
}

Status Segment::read(Lsn from, Lsn to, Lsn known_end, std::string* out) {
  STRATA_ASSERT(info.start <= from && from < to && to <= known_end);
  STRATA_RETURN_IF_ERROR(header_failure);
  // Damage elsewhere in the segment does not keep these bytes from being read.
  const Status indexed = ensure_index(known_end);
  if (!indexed.ok() && !is_corruption(indexed)) return indexed;
  STRATA_ASSIGN_OR_RETURN(File* const f, file());
  Status done = read_chunks(f, path, salt, entry_for(from), from, to, out);
  if (is_corruption(done)) {
    const Status found = verify(known_end);
    // Read whole the second time: the first read met bytes that changed under it, or the medium
    // wavers. Nothing was served.
    if (found.ok()) return error_peer_down(std::string(done.message()) + " (not when read again)");
  }
  return done;
}

std::vector<LogDamage> Segment::damages() const {
  const MutexLock lock(mutex_);
  return damages_;
}

}  // namespace strata::logstore
