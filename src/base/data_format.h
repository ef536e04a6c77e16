// Version of what lies in pages and log together. It is stamped where a database's identity is
// (control file, registry); another one is refused, because bytes would be misread.
//   1  the first
//   2  entries of transaction status pages are striped (txn/internal/status_pages.h SD4)
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace strata {

constexpr uint32_t kDataFormat = 2;

// Where the log of a new database, and of a stream that nobody has written to, begins: 0 stands for
// no position.
constexpr Lsn kFirstLsn{4096};

}  // namespace strata
