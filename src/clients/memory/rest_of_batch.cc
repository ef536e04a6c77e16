#include "clients/memory/rest_of_batch.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"

namespace strata::clients {

namespace {

struct Rest {
  ReadBatch batch;
  uint32_t count = 0;
  std::optional<AlignedBytes> bytes;  // nothing: the batch's own, all of it is read
  std::array<PageId, kReadBatchPages> ids;
  std::array<uint32_t, kReadBatchPages> which;
  std::array<Status, kReadBatchPages> results;
  std::function<void(PageId, const char*)> keep;

  [[nodiscard]] char* pages() { return bytes.has_value() ? bytes->get() : batch.pages; }
  [[nodiscard]] Status* told() { return bytes.has_value() ? results.data() : batch.results; }
  void ended() {
    for (uint32_t i = 0; i < count; ++i) {
      const char* const read = pages() + size_t{i} * kPageBytes;
      if (told()[i].ok()) {
        keep(ids[i], read);
        if (bytes.has_value())
          std::copy_n(read, kPageBytes, batch.pages + size_t{which[i]} * kPageBytes);
      }
      if (bytes.has_value()) batch.results[which[i]] = std::move(results[i]);
    }
  }
};

}  // namespace

void read_rest(PageSource* storage, const ReadBatch& batch, absl::Span<const uint32_t> missing,
               std::function<void(PageId, const char*)> keep, ReadBatchDone done) {
  STRATA_ASSERT(missing.size() <= batch.count && batch.count <= kReadBatchPages);
  auto made = std::make_unique<Rest>();
  Rest* const rest = made.get();
  rest->batch = batch;
  rest->count = static_cast<uint32_t>(missing.size());
  rest->keep = std::move(keep);
  if (rest->count != batch.count) rest->bytes.emplace(size_t{rest->count} * kPageBytes);
  for (uint32_t i = 0; i < rest->count; ++i) {
    rest->ids[i] = batch.ids[missing[i]];
    rest->which[i] = missing[i];
  }
  if (!done) {
    storage->read_batch(rest->ids.data(), rest->count, rest->pages(), rest->told());
    return rest->ended();
  }
  storage->start_read_batch(rest->ids.data(), rest->count, rest->pages(), rest->told(),
                            [made = std::move(made), done = std::move(done)]() mutable {
                              made->ended();
                              made.reset();
                              done();
                            });
}

}  // namespace strata::clients
