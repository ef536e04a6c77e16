// ADD INDEX in place: the entries of all rows are sorted and appended to new trees.
//
// The new trees are in spaces of their own, which the transaction drops when it is rolled back and
// which the next start drops after a crash: until alter_table() has committed nobody names them.
// Their entries need no undo and no owner: they are as old as anything, and whoever has a view from
// before is kept out (E6).
#include "base/assert.h"
#include "base/fault.h"
#include "engine/internal/entry_payload.h"
#include "engine/internal/kernel_impl.h"
#include "sort/sorter.h"

namespace strata::engine {
namespace {

constexpr uint64_t kProgressEvery = 512;  // rows or entries
constexpr size_t kBatchBytes = kPageBytes;
// Left free at the end of every leaf, for rows to come.
constexpr size_t kFillReserve = kPageBytes / 16;

// A pair for the sorter: key is the whole entry key; value is unique prefix length u16 (0: not
// checked), then the record's value without its version header.
constexpr size_t kUniqueBytes = 2;

class EntryBatch {
 public:
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  [[nodiscard]] bool full() const noexcept { return bytes_.size() >= kBatchBytes; }
  [[nodiscard]] size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] Bytes key(size_t i) const noexcept {
    return Bytes(bytes_).substr(entries_[i].key, entries_[i].value - entries_[i].key);
  }
  [[nodiscard]] Bytes value(size_t i) const noexcept {
    return Bytes(bytes_).substr(entries_[i].value, entries_[i].end - entries_[i].value);
  }
  void add(Bytes key, Bytes payload) {
    Place place{bytes_.size(), 0, 0};
    bytes_.append(key);
    place.value = bytes_.size();
    append_record_header(&bytes_, RecordHeader{});  // settled
    bytes_.append(payload);
    place.end = bytes_.size();
    entries_.push_back(place);
  }
  void clear() noexcept {
    bytes_.clear();
    entries_.clear();
  }

 private:
  struct Place {
    size_t key, value, end;
  };
  std::string bytes_;
  std::vector<Place> entries_;
};

class Builder {
 public:
  Builder(Session* session, Session::Impl* s, TableRef table, const TableSpec& spec,
          std::vector<uint32_t> wanted, IndexBuild* build)
      : session_(session),
        s_(s),
        table_(std::move(table)),
        spec_(spec),
        wanted_(std::move(wanted)),
        build_(build) {
    sorters_.resize(spec.indexes.size());
    const size_t memory = std::max<size_t>(build->memory_bytes / wanted_.size(), kSortMemoryLeast);
    for (const uint32_t i : wanted_) {
      STRATA_ASSERT(i != 0 && spec.indexes[i].index_id != 0);  // its tree is there
      const std::string prefix =
          s->kernel->sort_folder() + "/" + std::to_string(spec.indexes[i].index_id) + "-";
      sorters_[i] = std::make_unique<Sorter>(s->kernel->files, prefix, memory);
    }
  }

  Status run() {
    total_ = table_->estimated_rows() * (1 + wanted_.size());
    STRATA_RETURN_IF_ERROR(sort_entries());
    session_->close_view();  // loading takes long: purge goes on
    for (const uint32_t i : wanted_) {
      STRATA_RETURN_IF_ERROR(load(i));
      sorters_[i].reset();
    }
    return ok_status();
  }

 private:
  static constexpr size_t kSortMemoryLeast = 64u << 10;

  Status step() {
    if (++done_ % kProgressEvery != 0) return ok_status();
    if (s_->trx->interrupt.interrupted()) return error_interrupted();
    return build_->progress == nullptr ? ok_status()
                                       : build_->progress(done_, std::max(done_, total_));
  }

  Status sort_entries() {
    TableCursor cursor(session_, table_, 0);
    std::string clustered;
    const IndexBuild::Emit emit = [&](const EntryImage& entry) { return add(entry, clustered); };
    const IndexBuild::External external = [&cursor](uint32_t position, std::string* value) {
      return cursor.external(position, value);
    };
    STRATA_RETURN_IF_ERROR(cursor.seek(Bytes()));
    while (cursor.valid()) {
      bool gone = false;
      STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
      if (!gone) {
        clustered.assign(cursor.clustered_key());
        STRATA_RETURN_IF_ERROR(build_->entries_of(clustered, cursor.row(), external, emit));
      }
      STRATA_RETURN_IF_ERROR(step());
      STRATA_RETURN_IF_ERROR(cursor.next());
    }
    return ok_status();
  }

  Status add(const EntryImage& entry, Bytes clustered) {
    if (entry.index >= sorters_.size() || sorters_[entry.index] == nullptr) return ok_status();
    if (entry.key.size() + clustered.size() > kMaxKeyLength)
      return error_invalid_argument("an index key with the primary key appended is too long");
    key_.assign(entry.key);
    key_.append(clustered);
    make_entry_payload(clustered.size(), entry.covering, &scratch_, &payload_);
    value_.clear();
    append_u16(&value_, static_cast<uint16_t>(entry.check_unique ? entry.key.size() : 0));
    value_.append(payload_);
    return sorters_[entry.index]->add(key_, value_);
  }

  Status load(uint32_t index) {
    STRATA_ASSERT(sorters_[index] != nullptr && batch_.empty());
    Sorter& sorter = *sorters_[index];
    STRATA_RETURN_IF_ERROR(sorter.finish());
    const TreeId tree{IndexId{spec_.indexes[index].index_id},
                      PageId{spec_.indexes[index].own_space_id, spec_.indexes[index].root_page}};
    previous_.clear();
    batch_.clear();
    for (;;) {
      Bytes key;
      Bytes value;
      STRATA_ASSIGN_OR_RETURN(const bool more, sorter.next(&key, &value));
      if (!more) break;
      STRATA_RETURN_IF_ERROR(check_unique(index, key, load_u16(value.data())));
      batch_.add(key, value.substr(kUniqueBytes));
      if (batch_.full()) STRATA_RETURN_IF_ERROR(append(tree));
      STRATA_RETURN_IF_ERROR(step());
    }
    STRATA_RETURN_IF_ERROR(append(tree));
    if (fault(FaultPoint::index_build_done)) return error_internal("fault: index_build_done");
    return ok_status();
  }

  // Entries with the same unique key are neighbours. (Empty keys have no parts: one row at most.)
  Status check_unique(uint32_t index, Bytes key, size_t unique_bytes) {
    const Bytes unique = key.substr(0, unique_bytes);
    if (unique_bytes == 0) {
      previous_.clear();
      return ok_status();
    }
    if (unique == previous_) {
      build_->duplicate_index = index;
      build_->duplicate_row.assign(key.substr(unique_bytes));
      return error_duplicate_key();
    }
    previous_.assign(unique);
    return ok_status();
  }

  // Each mini-transaction fills up one leaf. The pairs are at hand: nothing is read below a latch.
  Status append(TreeId tree) {
    KernelImpl* k = s_->kernel;
    size_t next = 0;
    while (next < batch_.size()) {
      STRATA_RETURN_IF_ERROR(s_->wait_for_log_room());
      Mtr mtr(k->pool.get(), k->log.get());
      STRATA_RETURN_IF_ERROR(mtr.begin_write());
      TreeCursor cursor(&k->row.tree, tree, &mtr);
      STRATA_RETURN_IF_ERROR(cursor.seek(batch_.key(next), LatchMode::kExclusive));
      const size_t first = next;
      while (next < batch_.size() && has_room(cursor, next)) {
        if (next != first) cursor.step_behind();
        cursor.insert(batch_.key(next), batch_.value(next));
        ++next;
      }
      if (next != first) {
        mtr.publish();
        if (fault(FaultPoint::index_build_half)) return error_internal("fault: index_build_half");
        continue;
      }
      cursor.reset();
      mtr.abandon();
      STRATA_RETURN_IF_ERROR(make_room(&k->row.tree, tree, batch_.key(next),
                                       std::max(batch_.value(next).size(), reserve(next))));
    }
    batch_.clear();
    return ok_status();
  }

  [[nodiscard]] bool has_room(const TreeCursor& cursor, size_t i) const noexcept {
    return cursor.fits_insert(batch_.key(i), std::max(batch_.value(i).size(), reserve(i)));
  }
  // A record of this size must still fit.
  [[nodiscard]] size_t reserve(size_t i) const noexcept {
    const size_t most = kMaxRecordBytes - batch_.key(i).size();
    return std::min(most, batch_.value(i).size() + kFillReserve);
  }

  Session* session_;
  Session::Impl* s_;
  TableRef table_;
  const TableSpec& spec_;
  std::vector<uint32_t> wanted_;
  IndexBuild* build_;
  std::vector<std::unique_ptr<Sorter>> sorters_;  // by position
  uint64_t done_ = 0, total_ = 0;
  std::string key_, value_, payload_, scratch_, previous_;
  EntryBatch batch_;
};

}  // namespace

Status Session::build_indexes(const TableRef& table, TableSpec* spec, IndexBuild* build) {
  std::vector<uint32_t> wanted;
  for (uint32_t i = 0; i < spec->indexes.size(); ++i)
    if (spec->indexes[i].index_id == 0) wanted.push_back(i);
  if (wanted.empty()) return ok_status();
  if (wanted[0] == 0) return error_invalid_argument("the clustered index is not built in place");
  if (impl_->isolation == Isolation::kReadUncommitted)
    return error_invalid_argument("indexes are built of committed rows");
  // E16: what writers of other nodes add behind the view would not be in the index.
  if (impl_->kernel->seams.schema != nullptr) {
    STRATA_RETURN_IF_ERROR(
        use_names({table_key(table->spec().schema, table->spec().name)}, nullptr));
    if (table->stale()) return impl_->kernel->answer(error_definition_changed());
  }
  STRATA_RETURN_IF_ERROR(
      impl_->kernel->keep_still(impl_.get(), table_key(table->spec().schema, table->spec().name)));
  STRATA_RETURN_IF_ERROR(wait_until_decided(*table));
  for (const uint32_t i : wanted) {
    STRATA_ASSIGN_OR_RETURN(const SpaceId space, make_space());
    STRATA_RETURN_IF_ERROR(impl_->kernel->make_trees(spec, space, {i}));
  }
  fault(FaultPoint::ddl_create_space);
  // Everything that is committed by now; nothing is added behind it.
  close_view();
  STRATA_RETURN_IF_ERROR(open_view());
  const Status built = Builder(this, impl_.get(), table, *spec, wanted, build).run();
  close_view();
  return built;
}

}  // namespace strata::engine
