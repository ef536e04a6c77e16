// The error of a device that refuses to read or write a place (EIO): the only one that says
// something about the medium. Too many open files, a lost permission or a full disk are no fault of
// it.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "io/file_system.h"

namespace strata {

// Told by its text, since RocksDB's errors, and those of files, have no kind of their own for it.
[[nodiscard]] bool is_device_error(const Status& status) noexcept;

// Reads as File::read_at() does, but goes around what the device refuses to read, try after try:
// zeros stand for it, which no checksum takes for anything else. For readers who know that
// something was there, and where another copy can be had; whoever looks for the end of what was
// written may not use it.
Status read_around_device_errors(File* file, uint64_t offset, char* data, size_t bytes,
                                 size_t* got);

}  // namespace strata
