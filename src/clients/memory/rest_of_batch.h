// The pages of a batch that its reader has not found in memory: storage has them, next to each
// other, and they are brought to their places.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/types/span.h"
#include "base/ids.h"
#include "base/status.h"
#include "pagefile/page_source.h"

namespace strata::clients {

// As PageSource::start_read_batch() has it.
struct ReadBatch {
  const PageId* ids;
  uint32_t count;
  char* pages;
  Status* results;
};

// Reads those with the numbers `missing`, at least one, in rising order. `keep` gets each that was
// read, in the thread in which storage ends the call. Without `done` it blocks until all is read;
// else `done` comes last, perhaps before this returns.
void read_rest(PageSource* storage, const ReadBatch& batch, absl::Span<const uint32_t> missing,
               std::function<void(PageId, const char*)> keep, ReadBatchDone done);

}  // namespace strata::clients
