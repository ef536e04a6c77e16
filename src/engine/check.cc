// CHECK TABLE and statistics.
#include "absl/strings/escaping.h"
#include "base/assert.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {
namespace {

constexpr size_t kProblemsMax = 20;

uint64_t hash_bytes(Bytes b) {
  uint64_t h = 0x9e3779b97f4a7c15ull ^ b.size();
  size_t i = 0;
  for (; i + 8 <= b.size(); i += 8) h = mix64(h ^ load_u64(b.data() + i)) + 0x9e3779b97f4a7c15ull;
  uint64_t tail = 0;
  std::memcpy(&tail, b.data() + i, b.size() - i);
  return mix64(h ^ tail);
}

// Order-independent fingerprint of a set of entries.
struct SetDigest {
  uint64_t count = 0;
  uint64_t sum = 0;
  uint64_t mix = 0;
  void add(Bytes key) {
    const uint64_t h = hash_bytes(key);
    ++count;
    sum += h;
    mix += mix64(h ^ 0x5bd1e995);
  }
  bool operator==(const SetDigest&) const = default;
};

class EntryCheck {
 public:
  EntryCheck(Session* session, TableRef table, const Kernel::RowEntries& row_entries,
             CheckResult* out)
      : session_(session), table_(std::move(table)), row_entries_(row_entries), out_(out) {}

  Status run() {
    const size_t index_count = table_->spec().indexes.size();
    from_rows_.resize(index_count);
    from_index_.resize(index_count);
    STRATA_RETURN_IF_ERROR(
        scan_rows([this](uint32_t index, Bytes key) { from_rows_[index].add(key); }));
    for (uint32_t i = 1; i < index_count; ++i) STRATA_RETURN_IF_ERROR(scan_index(i));
    for (uint32_t i = 1; i < index_count; ++i) {
      if (from_rows_[i] == from_index_[i]) continue;
      out_->problems.push_back("index " + table_->spec().indexes[i].name + " has " +
                               std::to_string(from_index_[i].count) + " entries, the rows make " +
                               std::to_string(from_rows_[i].count));
      const size_t told = out_->problems.size();
      STRATA_RETURN_IF_ERROR(name_rows_without_entry(i));
      STRATA_RETURN_IF_ERROR(name_entries_without_row(i));
      if (out_->problems.size() == told)
        out_->problems.push_back("a second look at index " + table_->spec().indexes[i].name +
                                 " found nothing amiss");
    }
    return ok_status();
  }

 private:
  Status scan_rows(const std::function<void(uint32_t, Bytes)>& add) {
    TableCursor cursor(session_, table_, 0);
    STRATA_RETURN_IF_ERROR(cursor.seek(Bytes()));
    std::string full;
    out_->rows = 0;
    while (cursor.valid()) {
      bool gone = false;
      STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
      if (!gone) {
        ++out_->rows;
        const std::string clustered(cursor.clustered_key());
        STRATA_RETURN_IF_ERROR(row_entries_(
            clustered, cursor.row(),
            [&cursor](uint32_t position, std::string* value) {
              return cursor.external(position, value);
            },
            [&](uint32_t index, Bytes key) {
              full.assign(key);
              full.append(clustered);
              if (index < from_rows_.size()) add(index, full);
            }));
      }
      STRATA_RETURN_IF_ERROR(cursor.next());
    }
    return ok_status();
  }

  Status scan_index(uint32_t index) {
    TableCursor cursor(session_, table_, index);
    STRATA_RETURN_IF_ERROR(cursor.seek(Bytes()));
    while (cursor.valid()) {
      from_index_[index].add(cursor.entry().whole);
      STRATA_RETURN_IF_ERROR(cursor.next());
    }
    return ok_status();
  }

  // Second pass, only for a broken index: says which rows are concerned.
  Status name_rows_without_entry(uint32_t wanted) {
    TableCursor lookup(session_, table_, wanted);
    Status failed;
    uint64_t row = 0;
    const Status scanned = scan_rows([&](uint32_t index, Bytes full) {
      if (index != wanted || !failed.ok() || out_->problems.size() >= kProblemsMax) return;
      ++row;
      failed = lookup.seek(full);
      if (!failed.ok()) return;
      const Bytes found = lookup.valid() ? lookup.entry().whole : Bytes();
      if (found != full) {
        out_->problems.push_back("row number " + std::to_string(row) + " has no entry in index " +
                                 table_->spec().indexes[wanted].name);
      }
    });
    STRATA_RETURN_IF_ERROR(scanned);
    return failed;
  }

  Status name_entries_without_row(uint32_t wanted) {
    TableCursor entries(session_, table_, wanted);
    TableCursor rows(session_, table_, 0);
    uint64_t number = 0;
    STRATA_RETURN_IF_ERROR(entries.seek(Bytes()));
    while (entries.valid() && out_->problems.size() < kProblemsMax) {
      ++number;
      bool gone = false;
      const std::string clustered(entries.clustered_key());
      STRATA_RETURN_IF_ERROR(rows.get(clustered, &gone));
      if (gone)
        out_->problems.push_back("entry number " + std::to_string(number) + " of index " +
                                 table_->spec().indexes[wanted].name + " has no row (its key is " +
                                 absl::BytesToHexString(clustered) + ")");
      STRATA_RETURN_IF_ERROR(entries.next());
    }
    return ok_status();
  }

  Session* session_;
  TableRef table_;
  const Kernel::RowEntries& row_entries_;
  CheckResult* out_;
  std::vector<SetDigest> from_rows_;
  std::vector<SetDigest> from_index_;
};

}  // namespace

// Reads by a view, whatever the session's isolation level: what others change while a table is
// looked at must not look like damage.
class Kernel::ReadsByView {
 public:
  explicit ReadsByView(Session* session) : session_(session), before_(session->impl_->isolation) {
    if (is_dirty()) session_->set_isolation(Isolation::kReadCommitted);
  }
  ~ReadsByView() {
    if (!is_dirty()) return;
    session_->set_isolation(before_);
    session_->close_view();
  }
  ReadsByView(const ReadsByView&) = delete;

 private:
  [[nodiscard]] bool is_dirty() const noexcept { return before_ == Isolation::kReadUncommitted; }
  Session* const session_;
  const Isolation before_;
};

Status Kernel::check_table(Session* session, const TableRef& table, bool entries,
                           const RowEntries& row_entries, CheckResult* out) {
  for (uint32_t i = 0; i < table->spec().indexes.size(); ++i) {
    TreeCheck tree;
    STRATA_RETURN_IF_ERROR(check_tree(&impl_->row.tree, tree_of(*table, i), nullptr, &tree));
    for (const std::string& problem : tree.problems) {
      if (out->problems.size() < kProblemsMax) {
        out->problems.push_back("index " + table->spec().indexes[i].name + ": " + problem);
      }
    }
  }
  if (!entries || !out->problems.empty()) return ok_status();
  const ReadsByView reads(session);
  STRATA_RETURN_IF_ERROR(session->open_view());
  return EntryCheck(session, table, row_entries, out).run();
}

StatusOr<uint64_t> Kernel::estimate_range(Table* table, uint32_t index, Bytes low, Bytes high) {
  return strata::estimate_range(&impl_->row.tree, tree_of(*table, index), low, high, high.empty());
}

Status Kernel::sample(Table* table, uint32_t index, uint32_t pages,
                      const std::function<void(uint32_t leaf, Bytes key)>& visit) {
  LeafSample sample;
  return sample_leaves(
      &impl_->row.tree, tree_of(*table, index), pages, table->spec().table_id,
      [&visit](uint32_t leaf, Bytes key, Bytes value) {
        if (has_record_header(value) && !read_record_header(value).deleted()) visit(leaf, key);
      },
      &sample);
}

Status Kernel::refresh_statistics(Table* table, Sampled* out) {
  constexpr uint32_t kPages = 20;
  constexpr uint32_t kIndexDives = 4;
  uint64_t live = 0;
  LeafSample clustered;
  STRATA_RETURN_IF_ERROR(sample_leaves(
      &impl_->row.tree, tree_of(*table, 0), kPages, table->spec().table_id,
      [&live](uint32_t, Bytes, Bytes value) {
        live += has_record_header(value) && !read_record_header(value).deleted() ? 1 : 0;
      },
      &clustered));
  uint64_t index_pages = 0;
  uint64_t index_pages_beside = 0;
  for (uint32_t i = 1; i < table->spec().indexes.size(); ++i) {
    LeafSample index;
    STRATA_RETURN_IF_ERROR(sample_leaves(
        &impl_->row.tree, tree_of(*table, i), kIndexDives, table->spec().table_id,
        [](uint32_t, Bytes, Bytes) {}, &index));
    index_pages += index.leaves;
    if (table->spec().indexes[i].own_space_id == 0) index_pages_beside += index.leaves;
  }
  STRATA_ASSERT(index_pages_beside <= index_pages);
  const uint64_t sampled = clustered.visited == 0 ? 0 : live * clustered.leaves / clustered.visited;
  const uint64_t counted = table->estimated_rows();
  // A count that started from a sample drifts: a later sample replaces it when they are far apart.
  const uint64_t apart = std::max(sampled, counted) - std::min(sampled, counted);
  const bool recount = !table->rows_exact_ && (!table->statistics_known_ || apart > counted / 4);
  if (recount) table->rows_.store(static_cast<int64_t>(sampled));
  table->clustered_pages_.store(std::max<uint64_t>(clustered.leaves, 1));
  table->index_pages_.store(index_pages);
  table->index_pages_beside_.store(index_pages_beside);
  table->modified_since_sample_.store(0);
  table->statistics_known_.store(true);
  if (out != nullptr) *out = {.done = true, .recounted = recount};
  return ok_status();
}

TableSizes Kernel::sizes(const Table& table) const {
  static constexpr uint64_t kOverheadPages = 2;  // the space's header and its first map
  TableSizes out;
  const auto pages_of = [this, &out](SpaceId space) -> uint64_t {
    const StatusOr<SpaceManager::Use> use = impl_->spaces->use(space);
    if (!use.ok()) return 0;  // dropped meanwhile
    out.free += use->free_pages * kPageBytes;
    return use->used_pages - std::min<uint64_t>(use->used_pages, kOverheadPages);
  };
  const uint64_t beside = table.index_pages_beside_.load(std::memory_order_relaxed);
  const uint64_t own = pages_of(SpaceId{table.spec().space_id});
  // What is in the table's space and in none of its trees is outside of rows.
  out.data = std::max(table.clustered_leaf_pages(), own - std::min(own, beside)) * kPageBytes;
  out.indexes = beside * kPageBytes;
  for (const IndexSpec& index : table.spec().indexes)
    if (index.own_space_id != 0) out.indexes += pages_of(SpaceId{index.own_space_id}) * kPageBytes;
  return out;
}

Status Kernel::refresh_old_statistics(Table* table, Sampled* out) {
  if (!table->statistics_are_old()) return ok_status();
  // One is enough; but who knows nothing yet does not go on without.
  const bool other = table->refreshing_.exchange(true);
  if (other && table->statistics_known_) return ok_status();
  const Status status = refresh_statistics(table, out);
  if (!other) table->refreshing_.store(false);
  return status;
}

}  // namespace strata::engine
