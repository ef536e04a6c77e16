// Pages that storage makes from several logs, one of each server that writes: which states they
// have is told by places in these logs. Beside PageSource, of which it is another face.
#pragma once

#include <absl/types/span.h>

#include "base/ids.h"
#include "base/status.h"

namespace strata {

struct LogPosition {
  StreamId stream;
  Lsn lsn;
};

// Thread-safe.
class PositionedPages {
 public:
  virtual ~PositionedPages() = default;
  // The newest state of the page that the logs tell of up to these places, or a newer one; its llsn
  // is `at_least` or larger, else the logs are waited for. So nobody has to know which llsn a page
  // has. Errors as PageSource::read(). Blocks.
  virtual Status read_behind(PageId id, Llsn at_least, absl::Span<const LogPosition> places,
                             char* page) = 0;
};

}  // namespace strata
