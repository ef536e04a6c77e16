#include "storenode/logstore/internal/spares.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/assert.h"

namespace strata::logstore {
namespace {
constexpr const char* kPrefix = "spare-";
constexpr uint64_t kFillBytes = 1u << 20;
}  // namespace

std::string Spares::next_path() {
  const MutexLock lock(mutex_);
  return directory_ + "/" + kPrefix + std::to_string(++last_number_) + ".seg";
}

Status Spares::adopt(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.rfind(kPrefix, 0) != 0) continue;
    const std::string path = directory_ + "/" + name;
    uint64_t size = 0;
    {
      STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs_->open(path, {}));
      STRATA_ASSIGN_OR_RETURN(size, file->size());
    }
    bool keep = false;
    {
      const MutexLock lock(mutex_);
      last_number_ = std::max<uint64_t>(
          last_number_, std::strtoull(name.c_str() + std::string(kPrefix).size(), nullptr, 10));
      keep = size == segment_bytes_ && ready_.size() < spares_max_;
      if (keep) ready_.push_back(path);
    }
    if (!keep) STRATA_RETURN_IF_ERROR(fs_->remove(path));
  }
  return ok_status();
}

StatusOr<std::string> Spares::take() {
  {
    const MutexLock lock(mutex_);
    if (!ready_.empty()) {
      std::string path = std::move(ready_.back());
      ready_.pop_back();
      return path;
    }
  }
  return make(false);
}

// Room is taken at once: a segment that exists cannot run out of it half-way.
StatusOr<std::string> Spares::make(bool fill) {
  STRATA_ASSERT(segment_bytes_ != 0);
  const std::string path = next_path();
  const auto prepare = [&]() -> Status {
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                            fs_->open(path, {.create = true, .exclusive = true}));
    STRATA_RETURN_IF_ERROR(file->allocate(segment_bytes_));
    if (!fill) return ok_status();
    const std::string zeroes(std::min(kFillBytes, segment_bytes_), '\0');
    for (uint64_t at = 0; at < segment_bytes_; at += zeroes.size())
      STRATA_RETURN_IF_ERROR(file->write_at(
          at, zeroes.data(), std::min<uint64_t>(zeroes.size(), segment_bytes_ - at)));
    return file->sync_data();
  };
  const Status prepared = prepare();
  if (prepared.ok()) return path;
  fs_->remove(path).IgnoreError();  // a full disk should get its bytes back
  return prepared;
}

Status Spares::give(const std::vector<std::string>& paths, uint64_t* recycled) {
  std::vector<std::string> renamed;
  for (const std::string& path : paths) {
    size_t ready = 0;
    {
      const MutexLock lock(mutex_);
      ready = ready_.size();
    }
    uint64_t size = 0;
    {
      STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs_->open(path, {}));
      STRATA_ASSIGN_OR_RETURN(size, file->size());
    }
    if (size != segment_bytes_ || ready + renamed.size() >= spares_max_) {
      STRATA_RETURN_IF_ERROR(fs_->remove(path));
      continue;
    }
    const std::string spare = next_path();
    STRATA_RETURN_IF_ERROR(fs_->rename(path, spare));
    renamed.push_back(spare);
  }
  STRATA_RETURN_IF_ERROR(fs_->sync_directory(directory_));  // SPR1
  if (recycled != nullptr) *recycled += renamed.size();
  const MutexLock lock(mutex_);
  ready_.insert(ready_.end(), renamed.begin(), renamed.end());
  return ok_status();
}

bool Spares::lacks_one() const {
  const MutexLock lock(mutex_);
  return ready_.empty() && spares_max_ != 0;
}

Status Spares::fill_one() {
  if (!lacks_one()) return ok_status();
  STRATA_ASSIGN_OR_RETURN(std::string path, make(true));
  const MutexLock lock(mutex_);
  ready_.push_back(std::move(path));
  return ok_status();
}

}  // namespace strata::logstore
