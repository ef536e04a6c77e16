// The file <directory>/store of a store of written pages: which store this is, and the highest
// epoch that has begun writing here (docs/data_formats.md). Not thread-safe.
//   SK1  The file is replaced as a whole: it is what it was before, or what was written.
//   SK2  A store that has pages and no mark, or one that cannot be read, is damaged: it is not made
//        anew.
#pragma once

#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "io/file_system.h"

namespace strata::storenode {

struct StoreMark {
  uint64_t number = 0;  // random, not 0
  Epoch epoch;
  bool operator==(const StoreMark&) const = default;
};

[[nodiscard]] std::string encode(const StoreMark& mark);
StatusOr<StoreMark> decode_store_mark(Bytes bytes, const std::string& path);  // kDataLoss

// kNotFound: there is none. Blocks.
StatusOr<StoreMark> read_store_mark(FileSystem* files, const std::string& directory);
// Durable when it returns. Blocks.
Status write_store_mark(FileSystem* files, const std::string& directory, const StoreMark& mark);

}  // namespace strata::storenode
