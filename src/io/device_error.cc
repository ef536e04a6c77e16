#include "io/device_error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace strata {
namespace {

constexpr uint32_t kTriesMax = 3;
constexpr size_t kPlaceBytes = 4096;

}  // namespace

bool is_device_error(const Status& status) noexcept {
  if (status.ok() || is_corruption(status) || is_no_space(status)) return false;
  char buffer[128];
  const char* const text = ::strerror_r(EIO, buffer, sizeof buffer);
  return status.message().find(text) != absl::string_view::npos;
}

Status read_around_device_errors(File* file, uint64_t offset, char* data, size_t bytes,
                                 size_t* got) {
  for (uint32_t tries = 0; tries < kTriesMax; ++tries) {
    Status whole = file->read_at(offset, data, bytes, got);
    if (!is_device_error(whole)) return whole;
  }
  for (*got = 0; *got < bytes;) {
    const uint64_t at = offset + *got;
    const size_t part = std::min<size_t>(kPlaceBytes - at % kPlaceBytes, bytes - *got);
    size_t read = 0;
    const Status status = file->read_at(at, data + *got, part, &read);
    if (is_device_error(status)) {
      std::memset(data + *got, 0, part);
      read = part;
    } else {
      STRATA_RETURN_IF_ERROR(status);
    }
    *got += read;
    if (read < part) break;  // the end of the file
  }
  return ok_status();
}

}  // namespace strata
