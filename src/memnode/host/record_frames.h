// Records of the authority stream as they lie in a log (docs/data_formats.md). Pure.
//   RFR1  A frame names its own place in the log: what an earlier life left somewhere is no record
//         there.
//   RFR2  A record counts if its frame is whole; what is not whole at the end of a log was torn,
//         and anything that is not whole before a whole record is damage.
#pragma once

#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"

namespace strata::memnode {

constexpr size_t kRecordBytesMax = 1u << 20;
constexpr size_t kFrameAlignment = 8;  // frames begin at multiples of it

// `at`: where it will lie, a multiple of kFrameAlignment; so is the frame's length.
[[nodiscard]] std::string frame_of(Lsn at, Bytes record);

struct LastRecord {
  std::optional<std::string> record;  // nothing: there is none
  Lsn at;                             // where its frame begins
  Lsn end;                            // of the last whole frame; the log's begin if there is none
};
// Of a log that begins at `begin`, which may be anything. Errors: kDataLoss (RFR2).
StatusOr<LastRecord> last_record(Bytes log, Lsn begin);

}  // namespace strata::memnode
