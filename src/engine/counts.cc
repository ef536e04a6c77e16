// What several nodes tell each other of a table's rows and pages. Estimates: a commit in the middle
// of take_counts() may be missed for as long as nobody tells anew.
#include <algorithm>

#include "engine/internal/kernel_impl.h"

namespace strata::engine {

TableCounts Kernel::counts(const Table& table) noexcept {
  return {.known = table.statistics_known_.load(),
          .version = table.counts_version_.load(),
          .base = table.counts_base_.load(),
          .rows = table.estimated_rows(),
          .modified = table.modified_since_sample_.load(),
          .clustered_pages = table.clustered_pages_.load(),
          .index_pages = table.index_pages_.load(),
          .index_pages_beside = table.index_pages_beside_.load(),
          .updated_at = table.updated_at()};
}

Untold Kernel::untold(const Table& table) noexcept {
  return {.net = table.untold_net_.load(),
          .changed = table.untold_changed_.load(),
          .base = table.counts_base_.load()};
}

void Kernel::take_counts(Table* table, const TableCounts& known, const Untold* told) noexcept {
  const uint64_t base = table->counts_base_.load();
  const bool newer = known.version >= table->counts_version_.load();
  Untold gone;
  if (told != nullptr && told->base == base)
    gone = *told;
  else if (newer && known.base != base)
    gone = untold(*table);
  const int64_t net = table->untold_net_.fetch_sub(gone.net) - gone.net;
  const uint64_t changed = table->untold_changed_.fetch_sub(gone.changed) - gone.changed;
  if (!newer) {
    table->rows_.fetch_sub(gone.net);  // what is known has them
    return;
  }
  table->counts_version_.store(known.version);
  table->counts_base_.store(known.base);
  table->rows_.store(static_cast<int64_t>(known.rows) + net);
  table->modified_since_sample_.store(known.modified + changed);
  table->clustered_pages_.store(std::max<uint64_t>(known.clustered_pages, 1));
  table->index_pages_.store(known.index_pages);
  table->index_pages_beside_.store(std::min(known.index_pages_beside, known.index_pages));
  table->updated_at_.store(std::max(table->updated_at(), known.updated_at));
  table->statistics_known_.store(true);
}

std::vector<TableRef> Kernel::tables_with_untold() {
  std::vector<TableRef> found;
  const MutexLock lock(impl_->tables_mutex);
  for (const auto& [key, table] : impl_->tables)
    if (table->untold_changed_.load(std::memory_order_relaxed) != 0) found.push_back(table);
  return found;
}

}  // namespace strata::engine
