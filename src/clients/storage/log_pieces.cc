#include "clients/storage/log_pieces.h"

#include <cstddef>
#include <utility>

#include "base/assert.h"

namespace strata::clients {

namespace {

// Magic, flags and length. Groups lie at multiples of 8, and so do the parts of a log.
constexpr size_t kBeginBytes = 8;
static_assert(offsetof(redo::GroupHeader, magic) == 0 && offsetof(redo::GroupHeader, length) == 4);

size_t length_of(Bytes group) {
  STRATA_ASSERT(load_u16(group.data()) == redo::kGroupMagic);  // we have made it
  const size_t length = load_u32(group.data() + offsetof(redo::GroupHeader, length));
  STRATA_ASSERT(length >= sizeof(redo::GroupHeader) && length <= redo::kGroupBytesMax);
  return length;
}

}  // namespace

LogPieces::LogPieces(size_t bytes_max) : bytes_max_(bytes_max) {
  STRATA_ASSERT(bytes_max_ >= redo::kGroupBytesMax);
}

void LogPieces::add(Bytes bytes, absl::FunctionRef<void(std::string)> piece) {
  STRATA_ASSERT(bytes.size() % kBeginBytes == 0);
  std::string joined;
  if (!rest_.empty()) {
    joined = std::exchange(rest_, {});
    joined += bytes;
    bytes = joined;
  }
  size_t begin = 0, end = 0;  // of the piece
  while (end < bytes.size()) {
    const size_t length = length_of(bytes.substr(end));
    if (length > bytes.size() - end) break;
    if (end + length - begin > bytes_max_) {
      piece(std::string(bytes.substr(begin, end - begin)));
      begin = end;
    }
    end += length;
  }
  if (end > begin) piece(std::string(bytes.substr(begin, end - begin)));
  rest_ = bytes.substr(end);
}

}  // namespace strata::clients
