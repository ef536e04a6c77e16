// Segment files ready for use: new ones filled with zeroes, or recycled ones. Appending to them
// changes no metadata of the file system, which makes each sync cheaper. Thread-safe.
//   SPR1  A name spare-* stands for a file nobody reads. A recycled segment has it durably before
//         its content changes (its old name must not come back over new bytes).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/latch.h"
#include "base/status.h"
#include "io/file_system.h"

namespace strata::logstore {

class Spares {
 public:
  Spares(FileSystem* fs, std::string directory, uint64_t segment_bytes, uint32_t spares_max)
      : fs_(fs),
        directory_(std::move(directory)),
        segment_bytes_(segment_bytes),
        spares_max_(spares_max) {}

  // Files of an earlier life; those of another size are removed. Blocks.
  Status adopt(const std::vector<std::string>& names);
  // Path of a file with room for a whole segment, made when none is ready. kResourceExhausted.
  // Blocks.
  StatusOr<std::string> take();
  // Gives segment files back to be reused, or removes them. Blocks. `recycled` may be null.
  Status give(const std::vector<std::string>& paths, uint64_t* recycled);
  [[nodiscard]] bool lacks_one() const;  // fill_one() would fill one
  // Fills one file with zeroes when none is ready. Blocks.
  Status fill_one();

 private:
  std::string next_path();
  StatusOr<std::string> make(bool fill);
  FileSystem* const fs_;
  const std::string directory_;
  const uint64_t segment_bytes_;
  const uint32_t spares_max_;
  mutable Mutex mutex_{LatchRank::kFileTable};
  std::vector<std::string> ready_ STRATA_GUARDED_BY(mutex_);
  uint64_t last_number_ STRATA_GUARDED_BY(mutex_) = 0;
};

}  // namespace strata::logstore
