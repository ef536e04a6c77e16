// Cuts a log into pieces that replicas make durable as a whole: at the boundaries of groups, so
// that nobody is told that half a group is durable, and small enough that several fit into what the
// quorum's writer retains (quorum::QuorumOptions::retain_bytes). Not thread-safe.
//   LPC1  Put together, the pieces are the log. Each is whole groups.
//   LPC2  No piece is longer than bytes_max, which is not less than the longest group.
//   LPC3  What has come goes out at once, but for the beginning of a group whose end has not come:
//         a log that lies in a ring is appended in two parts where it turns.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "base/bytes.h"
#include "redo/redo.h"

namespace strata::clients {

class LogPieces {
 public:
  static constexpr size_t kBytesMax = size_t{8} << 20;
  explicit LogPieces(size_t bytes_max = kBytesMax);

  // More of the log. Calls `piece` for what is whole by now.
  void add(Bytes bytes, absl::FunctionRef<void(std::string)> piece);
  [[nodiscard]] bool at_boundary() const noexcept { return rest_.empty(); }

 private:
  const size_t bytes_max_;
  std::string rest_;  // the beginning of a group
};

static_assert(LogPieces::kBytesMax >= redo::kGroupBytesMax);

}  // namespace strata::clients
