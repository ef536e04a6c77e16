// A Status inside a message. Pure.
#pragma once

#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace strata::proto {

constexpr size_t kMessageBytesMax = 4096;  // longer ones are cut off

void append_status(std::string* out, const Status& status);
// A number that this version does not know is read as outcome_unknown (ER4).
Status read_status(ByteReader* reader, bool* well_formed);

}  // namespace strata::proto
