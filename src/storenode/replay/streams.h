// The logs a page store reads. Thread-safe; streams are added, never removed.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "storenode/replay/log_view.h"

namespace strata::storenode {

class Streams {
 public:
  struct Stream {
    StreamId id;
    LogView* log;  // outlives the page store
  };
  void add(const Stream& stream) {
    const MutexLock lock(mutex_);
    logs_[stream.id] = stream.log;
  }
  // Null: no such stream.
  [[nodiscard]] LogView* find(StreamId id) const {
    const MutexLock lock(mutex_);
    const auto it = logs_.find(id);
    return it == logs_.end() ? nullptr : it->second;
  }
  [[nodiscard]] std::vector<Stream> all() const {
    const MutexLock lock(mutex_);
    return all_locked();
  }
  // Without waiting for the latch.
  [[nodiscard]] std::optional<std::vector<Stream>> all_at_hand() const {
    if (!mutex_.try_lock()) return std::nullopt;
    const MutexLock lock(mutex_, std::adopt_lock);
    return all_locked();
  }

 private:
  [[nodiscard]] std::vector<Stream> all_locked() const STRATA_REQUIRES(mutex_) {
    std::vector<Stream> found;
    for (const auto& [id, log] : logs_) found.push_back({id, log});
    return found;
  }
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::map<StreamId, LogView*> logs_ STRATA_GUARDED_BY(mutex_);
};

inline std::string name_of(StreamId stream, Lsn lsn) {
  return "stream " + std::to_string(stream.value) + ", lsn " + std::to_string(lsn.value);
}
inline std::string name_of(PageId page) {
  return "page " + std::to_string(page.space) + ":" + std::to_string(page.number);
}

}  // namespace strata::storenode
