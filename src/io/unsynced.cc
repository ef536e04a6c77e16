#include "io/internal/unsynced.h"

#include <algorithm>

namespace strata {

PowerLoss::PowerLoss(Rng* rng, ChangedFile* file) : rng_(rng), file_(file) {
  constexpr uint64_t kSurvivorsOf8[] = {0, 1, 4, 7, 8};
  survivors_of_8_ = kSurvivorsOf8[rng->below(5)];
}

void PowerLoss::undo(const FileChange& change) {
  if (change.shrinks()) return undo_shrink(change);
  undo_size(change);
  if (change.bytes == 0) return;
  const uint64_t last = (change.offset + change.bytes - 1) / kSectorBytes;
  for (uint64_t sector = change.offset / kSectorBytes; sector <= last; ++sector)
    undo_sector(change, sector);
}

void PowerLoss::undo_size(const FileChange& change) {
  if (change.new_size == change.old_size || size_settled_) return;
  if (survives()) {
    size_settled_ = true;
    any_survived_ = true;
  } else if (file_->size() > change.old_size) {
    file_->resize(change.old_size);
  }
}

void PowerLoss::undo_shrink(const FileChange& change) {
  if (any_survived_ || survives()) {
    settled_from_ = std::min(settled_from_, change.new_size / kSectorBytes);
    size_settled_ = true;
    any_survived_ = true;
    return;
  }
  file_->resize(change.old_size);
  file_->write(change.new_size, change.before);
}

void PowerLoss::undo_sector(const FileChange& change, uint64_t sector) {
  if (sector >= settled_from_ || settled_.count(sector) > 0) return;
  if (survives()) {
    settled_.insert(sector);
    any_survived_ = true;
    return;
  }
  ++reverted_sectors_;
  const uint64_t begin = std::max(change.offset, sector * kSectorBytes);
  const uint64_t end = std::min({change.offset + change.bytes, (sector + 1) * kSectorBytes,
                                 file_->size()});  // undoing a write never extends the file
  if (begin >= end) return;
  std::string before(end - begin, '\0');  // zero where the file did not reach
  const uint64_t at = begin - change.offset;
  if (at < change.before.size())
    before.replace(0, std::min<uint64_t>(change.before.size() - at, before.size()), change.before,
                   at, std::min<uint64_t>(change.before.size() - at, before.size()));
  file_->write(begin, before);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace strata
