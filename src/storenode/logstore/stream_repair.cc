// Putting a peer's bytes in the place of damaged ones. A repaired segment is written whole under
// another name and takes the old one's place at once.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "io/device_error.h"
#include "storenode/logstore/internal/stream.h"

namespace strata::logstore {
namespace {

using quorum::ChangeReply;

// Copies a segment chunk by chunk, with `bytes` for [from, to). Other damage is copied as it is.
class Rebuilder {
 public:
  Rebuilder(File* file, uint32_t salt, const SegmentInfo& info, uint64_t chunk_bytes_max)
      : scanner_(file, salt, kSegmentHeaderBytes, info.start, /*end_is_known=*/true),
        file_(file),
        chunk_bytes_max_(chunk_bytes_max) {
    image_ = encode_segment_header(info, &salt_);
  }

  Status run(Lsn known_end, Lsn from, Lsn to, Bytes bytes) {
    while (scanner_.lsn() < known_end) {
      const uint64_t offset = scanner_.offset();
      const Lsn lsn = scanner_.lsn();
      STRATA_ASSIGN_OR_RETURN(const ChunkScanner::Found found, scanner_.next());
      if (found == ChunkScanner::Found::kChunk) {
        const ChunkHeader& h = scanner_.header();
        encode_chunk(&image_, salt_, lsn, Lsn{h.durable_lsn}, Lsn{h.quorum_durable_lsn},
                     scanner_.payload());
        continue;
      }
      if (found == ChunkScanner::Found::kBadPayload) {
        // The chunk's own checksum may have survived: the bytes must be those.
        if (lsn == from && scanner_.header().bytes == bytes.size() &&
            !payload_is_whole(scanner_.header(), bytes))
          return error_corruption("the bytes do not match the checksum of the damaged chunk");
        scanner_.skip_bad_payload();
      } else {
        STRATA_ASSIGN_OR_RETURN(const bool more, scanner_.resync());
        if (!more) {
          if (lsn == from) add(lsn, bytes);
          return ok_status();
        }
      }
      if (lsn == from) {
        add(lsn, bytes.substr(0, std::min(to, scanner_.lsn()).value - lsn.value));
      } else {
        STRATA_RETURN_IF_ERROR(copy_raw(offset, scanner_.offset()));
      }
    }
    return ok_status();
  }

  void add(Lsn lsn, Bytes bytes) {
    while (!bytes.empty()) {
      const Bytes piece = bytes.substr(0, chunk_bytes_max_);
      encode_chunk(&image_, salt_, lsn, lsn, Lsn{}, piece);
      lsn.value += piece.size();
      bytes.remove_prefix(piece.size());
    }
  }

  [[nodiscard]] const std::string& image() const noexcept { return image_; }
  [[nodiscard]] uint32_t salt() const noexcept { return salt_; }

 private:
  Status copy_raw(uint64_t from, uint64_t to) {
    std::string bytes(to - from, '\0');
    size_t got = 0;
    STRATA_RETURN_IF_ERROR(
        read_around_device_errors(file_, from, bytes.data(), bytes.size(), &got));
    image_ += bytes;
    return ok_status();
  }

  ChunkScanner scanner_;
  File* const file_;
  const uint64_t chunk_bytes_max_;
  uint32_t salt_ = 0;
  std::string image_;
};

}  // namespace

ChangeReply Stream::repair(Lsn from, Bytes bytes) {
  const Status trusted = ensure_control();
  if (!trusted.ok()) return reply(trusted);
  std::vector<LogDamage> damages;
  {
    const MutexLock lock(mutex_);
    damages = damages_locked();
  }
  const auto damage = std::find_if(damages.begin(), damages.end(),
                                   [&](const LogDamage& d) { return d.from == from; });
  if (damage == damages.end())
    return reply(
        error_invalid_argument("no damaged range begins at lsn " + std::to_string(from.value)));
  if (bytes.size() != damage->to.value - from.value)
    return reply(error_invalid_argument("the damaged range goes on to lsn " +
                                        std::to_string(damage->to.value)));
  for (size_t i = 0; i < segments_.size(); ++i)
    if (segments_[i]->info.start <= from && from < known_end_of(i))
      return reply(repair_segment(i, *damage, bytes));
  return reply(restore_front(*damage, bytes));
}

Status Stream::repair_segment(size_t index, const LogDamage& damage, Bytes bytes) {
  const SegmentPtr segment = segments_[index];
  if (segment == active_) close_active();
  SegmentInfo info = segment->info;
  STRATA_ASSIGN_OR_RETURN(File* const file, segment->file());
  if (!segment->header_failure.ok()) {
    info.previous = index == 0 ? 0 : segments_[index - 1]->info.sequence;
    info.epoch = quorum::epoch_at(control_.history, info.start);
    Rebuilder whole(file, 0, info, context_->options.chunk_bytes_max);
    whole.add(info.start, bytes);
    return replace_segment(index, whole.image(), info, whole.salt());
  }
  Rebuilder rebuilder(file, segment->salt, info, context_->options.chunk_bytes_max);
  STRATA_RETURN_IF_ERROR(rebuilder.run(known_end_of(index), damage.from, damage.to, bytes));
  return replace_segment(index, rebuilder.image(), info, rebuilder.salt());
}

// The new file has the old one's name from one moment to the next.
Status Stream::replace_segment(size_t index, const std::string& image, const SegmentInfo& info,
                               uint32_t salt) {
  FileSystem* const fs = context_->fs;
  const std::string& folder = context_->options.directory;
  const std::string temporary = folder + "/repair-" + std::to_string(id_.value) + ".tmp";
  const std::string path = folder + "/" + segment_name({id_, info.sequence, info.start});
  STRATA_RETURN_IF_ERROR(fs->remove(temporary));
  {
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                            fs->open(temporary, {.create = true, .exclusive = true}));
    STRATA_RETURN_IF_ERROR(file->write_at(0, image.data(), image.size()));
    STRATA_RETURN_IF_ERROR(file->sync_data());
  }
  STRATA_RETURN_IF_ERROR(fs->rename(temporary, path));
  STRATA_RETURN_IF_ERROR(fs->sync_directory(folder));
  auto repaired = std::make_shared<Segment>(fs, path, info, salt);
  repaired->missing_behind = segments_[index]->missing_behind;
  const Status whole = repaired->verify(known_end_of(index));
  if (!whole.ok() && !is_corruption(whole)) return whole;
  diag(Severity::kWarning, "stream %u: %s was repaired%s", id_.value, path.c_str(),
       whole.ok() ? "" : " in part");
  const MutexLock lock(mutex_);
  segments_[index] = std::move(repaired);
  return ok_status();
}

// The first segment is missing: one is made in its place.
Status Stream::restore_front(const LogDamage& damage, Bytes bytes) {
  STRATA_ASSERT(!segments_.empty());
  SegmentInfo info;
  info.cluster_id = context_->options.cluster_id;
  info.stream = id_;
  info.sequence = segments_.front()->info.previous;
  info.epoch = quorum::epoch_at(control_.history, damage.from);
  info.start = damage.from;
  Rebuilder whole(nullptr, 0, info, context_->options.chunk_bytes_max);
  whole.add(damage.from, bytes);
  {
    const MutexLock lock(mutex_);
    segments_.insert(segments_.begin(),
                     std::make_shared<Segment>(context_->fs, "", info, whole.salt()));
  }
  const Status done = replace_segment(0, whole.image(), info, whole.salt());
  const MutexLock lock(mutex_);
  if (done.ok()) {
    std::erase_if(holes_, [&](const LogDamage& d) { return d.from == damage.from; });
  } else {
    segments_.erase(segments_.begin());
  }
  return done;
}

}  // namespace strata::logstore
