// What several nodes tell each other of a table's rows and pages. Estimates: a commit in the middle
// of take_counts() may be missed for as long as nobody tells anew.
#include <algorithm>
#include <optional>

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

Committed Kernel::committed(const Table& table) noexcept {
  return {.net = table.committed_net_.load(), .changed = table.committed_changed_.load()};
}

Committed Kernel::untold(const Table& table, const Committed& totals) noexcept {
  return {.net = totals.net - table.told_net_.load(),
          .changed = totals.changed - table.told_changed_.load()};
}

void Kernel::take_counts(Table* table, const TableCounts& known, const Committed* told) noexcept {
  const bool newer = known.version >= table->counts_version_.load();
  std::optional<Committed> in_it;
  if (told != nullptr)
    in_it = *told;
  else if (newer && known.base != table->counts_base_.load())
    in_it = committed(*table);
  const bool more = in_it.has_value() && in_it->changed > table->told_changed_.load();
  if (more) {
    table->told_net_.store(in_it->net);
    table->told_changed_.store(in_it->changed);
  }
  if (!newer && !more) return;
  if (newer) {
    table->counts_version_.store(known.version);
    table->counts_base_.store(known.base);
    table->counts_rows_.store(known.rows);
  }
  const Committed rest = untold(*table, committed(*table));
  table->rows_.store(static_cast<int64_t>(table->counts_rows_.load()) + rest.net);
  if (!newer) return;
  table->modified_since_sample_.store(known.modified + rest.changed);
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
    if (untold(*table, committed(*table)).changed != 0) found.push_back(table);
  return found;
}

}  // namespace strata::engine
