// Tables: creating, dropping, renaming, counters. DDL works inside the session's transaction (E3).
#include <algorithm>
#include <ctime>
#include <numeric>

#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"
#include "engine/internal/kernel_impl.h"
#include "engine/internal/references.h"
#include "engine/internal/reserved_numbers.h"
#include "page/page.h"

namespace strata::engine {

uint64_t Table::estimated_rows() const noexcept {
  const int64_t rows = rows_.load(std::memory_order_relaxed);
  return rows > 0 ? static_cast<uint64_t>(rows) : 0;
}
uint64_t Table::data_bytes() const noexcept {
  return clustered_pages_.load(std::memory_order_relaxed) * kPageBytes;
}
uint64_t Table::index_bytes() const noexcept {
  return index_pages_.load(std::memory_order_relaxed) * kPageBytes;
}
uint64_t Table::clustered_leaf_pages() const noexcept {
  return clustered_pages_.load(std::memory_order_relaxed);
}
bool Table::statistics_are_old() const noexcept {
  constexpr uint64_t kAlwaysFresh = 16;  // changed rows that are never worth a look
  return !statistics_known_.load(std::memory_order_relaxed) ||
         modified_since_sample_.load(std::memory_order_relaxed) >
             estimated_rows() / 10 + kAlwaysFresh;
}
uint64_t Table::next_auto_increment() const noexcept {
  if (numbers_ != nullptr) return numbers_->next();
  return auto_increment_.load(std::memory_order_relaxed);
}

StatusOr<uint64_t> Table::reserve_auto_increment(uint64_t offset, uint64_t step, uint64_t count,
                                                 uint64_t most) {
  STRATA_ASSERT(count != 0);
  if (numbers_ != nullptr) return numbers_->take(offset, step, count, most);
  if (step == 0) step = 1;
  uint64_t next = auto_increment_.load(std::memory_order_relaxed);
  for (;;) {
    if (next == UINT64_MAX) return UINT64_MAX;
    // Smallest value >= next of the form offset + k * step.
    uint64_t first = next;
    if (step > 1 && offset <= step) {
      first = next <= offset ? offset : offset + (next - offset + step - 1) / step * step;
    }
    if (first < next) return UINT64_MAX;  // wrapped
    if (first > most) return first;
    uint64_t after;
    if (__builtin_mul_overflow(step, count - 1, &after) ||
        __builtin_add_overflow(first, after, &after) || after == UINT64_MAX) {
      after = UINT64_MAX - 1;
    }
    if (auto_increment_.compare_exchange_weak(next, after + 1, std::memory_order_relaxed))
      return first;
  }
}

void Table::raise_auto_increment(uint64_t used) noexcept {
  if (numbers_ != nullptr) return numbers_->raise(used);
  // UINT64_MAX as the next value means: used up.
  const uint64_t after = used == UINT64_MAX ? UINT64_MAX : used + 1;
  uint64_t next = auto_increment_.load(std::memory_order_relaxed);
  while (next < after &&
         !auto_increment_.compare_exchange_weak(next, after, std::memory_order_relaxed)) {
  }
}

bool Table::has_noted(uint64_t used) const noexcept {
  return numbers_ != nullptr && numbers_->is_noted(used);
}

uint64_t Table::next_row_id() noexcept { return row_id_.fetch_add(1, std::memory_order_relaxed); }

TableRef KernelImpl::make_table(TableSpec spec) {
  TableRef table(new Table());
  table->spec_ = std::move(spec);
  table->index_built_at_.resize(table->spec_.indexes.size());
  if (!table->spec_.foreign_keys.empty() || !table->spec_.children.empty())
    table->set_references(references_in(table->spec_));
  table->rows_exact_.store(!shares_tables());  // else others may have rows there at any time
  if (several_writers()) {
    table->numbers_ =
        std::make_shared<ReservedNumbers>(numbers.get(), SpaceId{table->spec_.space_id});
    table->row_id_.store(first_row_id());
  }
  return table;
}

// AUTO_INCREMENT is durable with each insert, or taken in ranges (ReservedNumbers). The hidden row
// id goes on behind the largest one in the tree; with several nodes behind the largest of this
// node, whose number is in its upper 8 bits.
Status KernelImpl::load_counters(Table* table) {
  table->statistics_known_.store(false);
  table->rows_exact_.store(false);
  const SpaceId space{table->spec_.space_id};
  STRATA_ASSIGN_OR_RETURN(const uint64_t used,
                          spaces->read_slot(space, HeaderSlot::kAutoIncrement));
  if (table->numbers_ != nullptr)
    table->numbers_->raise(used);
  else
    table->auto_increment_.store(used == UINT64_MAX ? used : used + 1);
  Mtr mtr(pool.get(), log.get());
  TreeCursor cursor(&row.tree, tree_of(*table, 0), &mtr);
  std::string key;
  if (several_writers()) append_be64(&key, (uint64_t{options.node} + 1) << 56);
  STRATA_RETURN_IF_ERROR(cursor.seek_before(key, !several_writers()));
  if (!cursor.on_record()) return ok_status();
  cursor.copy_key(&key);
  if (key.size() != 8) return ok_status();
  const uint64_t after = load_be64(key.data()) + 1;
  if (!several_writers() || after > first_row_id()) table->row_id_.store(after);
  return ok_status();
}

// Empty trees in `space` for some of the indexes, by position.
Status KernelImpl::make_trees(TableSpec* spec, SpaceId space,
                              const std::vector<uint32_t>& indexes) {
  STRATA_ASSERT(!indexes.empty());
  const auto count = static_cast<uint32_t>(indexes.size());
  STRATA_ASSIGN_OR_RETURN(IndexId id, dictionary->new_index_ids(count));
  STRATA_RETURN_IF_ERROR(spaces->ensure_room(space, count + 8));
  for (const uint32_t i : indexes) {
    Mtr mtr(pool.get(), log.get());
    STRATA_RETURN_IF_ERROR(mtr.begin_write_to_free());
    STRATA_ASSIGN_OR_RETURN(const TreeId tree, create_tree(&row.tree, &mtr, space, id));
    mtr.publish();
    STRATA_ASSERT(i < spec->indexes.size() && tree.root.space == space.value);
    spec->indexes[i].index_id = tree.index_id.value;
    spec->indexes[i].root_page = tree.root.number;
    spec->indexes[i].own_space_id = space.value == spec->space_id ? 0 : space.value;
    ++id.value;
  }
  return ok_status();
}

namespace {

// The name as this transaction sees it: its own uncommitted DDL first, then what is committed.
TableRef find_table(Session::Impl* s, const std::string& key, bool* own) {
  for (auto it = s->ddl.rbegin(); it != s->ddl.rend(); ++it) {
    if (it->key == key) {
      *own = true;
      return it->table;
    }
  }
  *own = false;
  const MutexLock lock(s->kernel->tables_mutex);
  const auto it = s->kernel->tables.find(key);
  return it == s->kernel->tables.end() ? nullptr : it->second;
}

std::vector<SpaceId> all_spaces(const Table& table) {
  std::vector<SpaceId> spaces;
  for (const uint32_t space : spaces_of(table.spec())) spaces.emplace_back(space);
  return spaces;
}

std::vector<SpaceId> difference(std::vector<SpaceId> from, const std::vector<SpaceId>& without) {
  for (const SpaceId space : without) std::erase(from, space);
  return from;
}

// Of the index with this id; -1: there is none.
int position_of(const TableSpec& spec, uint32_t index_id) {
  for (size_t i = 0; i < spec.indexes.size(); ++i)
    if (spec.indexes[i].index_id == index_id) return static_cast<int>(i);
  return -1;
}

// What alter_table() cannot do is refused before anything is changed.
Status check_successor(const TableSpec& old, const TableSpec& fresh) {
  if (fresh.indexes.empty() || fresh.space_id != old.space_id || fresh.table_id != old.table_id ||
      fresh.indexes[0].index_id != old.indexes[0].index_id)
    return error_invalid_argument("an altered table keeps its rows");
  for (const IndexSpec& index : fresh.indexes)
    if (index.index_id == 0) return error_invalid_argument("an index has no tree");
  for (const IndexSpec& index : old.indexes)
    if (index.own_space_id == 0 && position_of(fresh, index.index_id) < 0)
      return error_invalid_argument("an index in the table's own space goes only with the table");
  return ok_status();
}

}  // namespace

TableRef Session::find(const std::string& key) {
  bool own = false;
  return find_table(impl_.get(), key, &own);
}

// A failure costs a file that nobody names, until the orphan pass of the next start: no reason to
// fail what has been rolled back.
void KernelImpl::discard_created(SpaceId space) {
  const Status status = [&]() -> Status {
    STRATA_RETURN_IF_ERROR(spaces->drop(space));
    Mtr mtr(pool.get(), log.get());
    STRATA_RETURN_IF_ERROR(mtr.begin_write(Mtr::kDefaultLogBytes, true));
    STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr.fix(kPendingDeletePage, LatchMode::kExclusive));
    mtr.pending_delete_add(page, space);
    return log->persist(mtr.publish());
  }();
  if (status.ok()) return note_dropped(space);
  diag(Severity::kWarning,
       "space %u of DDL that was rolled back: %s; its file stays until the next start", space.value,
       text_of(status).c_str());
}

// Makes a space that goes when the transaction is rolled back; on failure nothing is left but a
// file the orphan pass removes.
StatusOr<SpaceId> Session::make_space() {
  Impl& s = *impl_;
  STRATA_ASSIGN_OR_RETURN(const SpaceId space, s.kernel->dictionary->new_space_id());
  const Status made = s.kernel->spaces->create(space);
  if (!is_no_space(made) || !s.trx->frees_room) {
    STRATA_RETURN_IF_ERROR(made);
    s.trx->drop_on_rollback.push_back(space);
    return space;
  }
  // A TRUNCATE on a full disk. What was made of that space is removed by the orphan pass.
  STRATA_RETURN_IF_ERROR(s.kernel->log->give_up_reserve());
  STRATA_ASSIGN_OR_RETURN(const SpaceId another, s.kernel->dictionary->new_space_id());
  STRATA_RETURN_IF_ERROR(s.kernel->spaces->create(another));
  s.trx->drop_on_rollback.push_back(another);
  return another;
}

// A new space with empty trees for the whole table.
Status Session::make_table_space(TableSpec* spec) {
  STRATA_ASSIGN_OR_RETURN(const SpaceId space, make_space());
  spec->space_id = space.value;
  std::vector<uint32_t> all(spec->indexes.size());
  std::iota(all.begin(), all.end(), 0);
  STRATA_RETURN_IF_ERROR(impl_->kernel->make_trees(spec, space, all));
  fault(FaultPoint::ddl_create_space);
  return ok_status();
}

Status Session::create_table(const TableSpec& spec_in, TableRef* out, Bytes replaces) {
  Impl& s = *impl_;
  KernelImpl* k = s.kernel;
  TableSpec spec = spec_in;
  if (spec.indexes.empty()) return error_invalid_argument("a table needs a clustered index");
  const std::string key = table_key(spec.schema, spec.name);
  spec.children.clear();
  STRATA_RETURN_IF_ERROR(use_names({key}, spec.internal_name ? nullptr : &spec));
  if (find(key) != nullptr) return k->answer(error_duplicate_key());
  std::vector<std::string> children;
  STRATA_RETURN_IF_ERROR(
      k->tables_referring_to(&s, replaces.empty() ? key : std::string(replaces), &children));
  const Bytes as = replaces.empty() ? Bytes(key) : replaces;
  STRATA_RETURN_IF_ERROR(check_references(spec, as, children, ParentsMissing::kAsChecked));
  STRATA_RETURN_IF_ERROR(check_names(spec, as));
  // Its parents' columns are called what those call them.
  for (ForeignKeySpec& foreign : spec.foreign_keys) {
    TableSpec parent = spec;
    if (foreign.parent != as) {
      const size_t end = foreign.parent.find('\0');
      const StatusOr<TableRef> there =
          open_table(Bytes(foreign.parent).substr(0, end), Bytes(foreign.parent).substr(end + 1));
      if (is_not_found(there.status())) continue;
      STRATA_RETURN_IF_ERROR(there.status());
      parent = (*there)->spec();
    }
    STRATA_RETURN_IF_ERROR(describe(*k, &parent));
    Reference found;
    if (!fit(foreign, spec, parent, &found)) continue;
    for (size_t i = 0; i < foreign.parent_columns.size(); ++i)
      foreign.parent_columns[i] = found.parent_parts[i].column;
  }
  if (!spec.internal_name) spec.children = children;
  if (!replaces.empty()) STRATA_RETURN_IF_ERROR(keep_originals_still(spec, replaces));
  STRATA_ASSIGN_OR_RETURN(spec.table_id, k->dictionary->new_table_id());
  spec.created_at = static_cast<uint64_t>(std::time(nullptr));
  STRATA_RETURN_IF_ERROR(make_table_space(&spec));
  STRATA_RETURN_IF_ERROR(k->dictionary->put_table(s.trx.get(), spec));
  TableRef table = k->make_table(std::move(spec));
  s.ddl.push_back(
      DdlChange{.key = key, .table = table, .created_spaces = all_spaces(*table), .rebuilt = true});
  if (!replaces.empty()) s.ddl.back().keeps_still = s.kept_still;
  if (!table->spec().internal_name)
    STRATA_RETURN_IF_ERROR(change_parents(table->spec(), key, true));
  if (out != nullptr) *out = table;
  fault(FaultPoint::ddl_before_commit);
  return ok_status();
}

// FK9, of a copy: its original, and the parents that its rows are checked against.
Status Session::keep_originals_still(const TableSpec& copy, Bytes original) {
  Impl& s = *impl_;
  std::vector<std::string> keys = {std::string(original)};
  for (const ForeignKeySpec& key : copy.foreign_keys)
    if (!key.kept && key.parent != original) keys.push_back(key.parent);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (const std::string& key : keys) STRATA_RETURN_IF_ERROR(s.kernel->keep_still(&s, key));
  const TableRef table = find(std::string(original));
  return table == nullptr ? ok_status() : wait_until_decided(*table);
}

Status Session::wait_until_decided(const Table& table) {
  return impl_->kernel->wait_until_decided(SpaceId{table.spec().space_id}, impl_->trx.get());
}

Status Session::drop_table(Bytes schema, Bytes name, bool with_schema) {
  Impl& s = *impl_;
  const std::string key = table_key(schema, name);
  if (const TableRef copy = find(key); copy != nullptr) s.kernel->give_up_copy(copy.get());
  STRATA_RETURN_IF_ERROR(s.kernel->use_name(&s, key, true));
  const TableRef table = find(key);
  if (table == nullptr) return impl_->kernel->answer(error_not_found());
  const TableSpec spec = spec_now(key, *table);
  STRATA_RETURN_IF_ERROR(use_names({}, spec.internal_name ? nullptr : &spec));
  STRATA_RETURN_IF_ERROR(refuse_if_referred_to(spec, with_schema ? schema : Bytes()));
  STRATA_RETURN_IF_ERROR(s.kernel->keep_still(&s, key));
  STRATA_RETURN_IF_ERROR(wait_until_decided(*table));
  s.trx->frees_room = true;
  STRATA_RETURN_IF_ERROR(s.kernel->wait_for_drop_room(&s.trx->interrupt));
  STRATA_RETURN_IF_ERROR(s.kernel->dictionary->erase_table(s.trx.get(), schema, name));
  STRATA_RETURN_IF_ERROR(s.kernel->unmark(&s, schema, name));
  s.ddl.push_back(DdlChange{.key = key, .replaced = table, .dropped_spaces = all_spaces(*table)});
  if (!spec.internal_name) STRATA_RETURN_IF_ERROR(change_parents(spec, key, false));
  fault(FaultPoint::ddl_before_commit);
  return ok_status();
}

Status Session::rename_table(Bytes schema, Bytes name, Bytes new_schema, Bytes new_name) {
  Impl& s = *impl_;
  KernelImpl* k = s.kernel;
  const std::string from = table_key(schema, name);
  const std::string to = table_key(new_schema, new_name);
  STRATA_RETURN_IF_ERROR(use_names({from, to}, nullptr));
  const TableRef table = find(from);
  if (table == nullptr) return impl_->kernel->answer(error_not_found());
  if (find(to) != nullptr) return impl_->kernel->answer(error_duplicate_key());
  STRATA_RETURN_IF_ERROR(k->keep_still(&s, from));
  const TableSpec old = spec_now(from, *table);
  TableSpec spec = old;
  spec.schema = std::string(new_schema);
  spec.name = std::string(new_name);
  spec.internal_name = spec.name.compare(0, 4, "#sql") == 0;
  STRATA_RETURN_IF_ERROR(use_names({}, &old));
  if (!old.internal_name && !spec.internal_name) {
    STRATA_RETURN_IF_ERROR(use_names(old.children, nullptr));
    TableCodecs* const codecs = k->options.codecs;
    const auto shown = [codecs](const std::string& encoded) {
      return codecs == nullptr ? encoded : codecs->shown_name(encoded);
    };
    rename_references(shown(old.name), shown(spec.name), from, to, &spec);
    STRATA_RETURN_IF_ERROR(rename_parent(old.children, from, to));
  }
  spec.children.clear();
  if (!spec.internal_name) {
    for (ForeignKeySpec& foreign : spec.foreign_keys) foreign.kept = false;
    STRATA_RETURN_IF_ERROR(k->tables_referring_to(&s, to, &spec.children));
    std::erase(spec.children, from);
    if (!spec.children.empty()) STRATA_RETURN_IF_ERROR(refuse_if_too_old(spec));
    STRATA_RETURN_IF_ERROR(check_references(spec, to, spec.children, ParentsMissing::kOk));
    if (!old.internal_name) STRATA_RETURN_IF_ERROR(check_names(spec, from));
  }
  STRATA_RETURN_IF_ERROR(k->unmark(&s, schema, name));
  STRATA_RETURN_IF_ERROR(k->dictionary->erase_table(s.trx.get(), schema, name));
  STRATA_RETURN_IF_ERROR(k->dictionary->put_table(s.trx.get(), spec));
  TableRef renamed = k->make_table(std::move(spec));
  copy_counters(*table, renamed.get());
  s.ddl.push_back(DdlChange{.key = from, .replaced = table});
  // The copy of an ALTER was filled after it was made, under its internal name.
  const bool rebuilt = table->spec().internal_name && !renamed->spec().internal_name;
  s.ddl.push_back(DdlChange{.key = to, .table = renamed, .rebuilt = rebuilt});
  if (!old.internal_name) STRATA_RETURN_IF_ERROR(change_parents(old, from, false));
  return renamed->spec().internal_name ? ok_status() : change_parents(renamed->spec(), to, true);
}

Status Session::truncate_table(Bytes schema, Bytes name, TableRef* out, bool forget_options) {
  Impl& s = *impl_;
  KernelImpl* k = s.kernel;
  const std::string key = table_key(schema, name);
  STRATA_RETURN_IF_ERROR(s.kernel->use_name(&s, key, true));
  const TableRef table = find(key);
  if (table == nullptr) return impl_->kernel->answer(error_not_found());
  STRATA_RETURN_IF_ERROR(k->keep_still(&s, key));
  STRATA_RETURN_IF_ERROR(wait_until_decided(*table));
  s.trx->frees_room = true;
  STRATA_RETURN_IF_ERROR(k->wait_for_drop_room(&s.trx->interrupt));
  TableSpec spec = spec_now(key, *table);
  STRATA_RETURN_IF_ERROR(refuse_if_referred_to(spec, Bytes()));
  if (forget_options) spec.options.clear();
  STRATA_RETURN_IF_ERROR(make_table_space(&spec));
  STRATA_RETURN_IF_ERROR(k->dictionary->replace_table(s.trx.get(), spec));
  TableRef fresh = k->make_table(std::move(spec));
  s.ddl.push_back(DdlChange{.key = key,
                            .table = fresh,
                            .replaced = table,
                            .created_spaces = all_spaces(*fresh),
                            .dropped_spaces = all_spaces(*table),
                            .rebuilt = true});
  if (out != nullptr) *out = fresh;
  fault(FaultPoint::ddl_before_commit);
  return ok_status();
}

Status Session::alter_table(const TableSpec& spec_in, const std::vector<ColumnRename>& renamed) {
  Impl& s = *impl_;
  TableSpec spec = spec_in;
  const std::string key = table_key(spec.schema, spec.name);
  STRATA_RETURN_IF_ERROR(s.kernel->use_name(&s, key, true));
  const TableRef table = find(key);
  if (table == nullptr) return impl_->kernel->answer(error_not_found());
  STRATA_RETURN_IF_ERROR(check_successor(table->spec(), spec));
  const TableSpec old = spec_now(key, *table);
  spec.foreign_keys = old.foreign_keys;
  spec.children = old.children;
  // Those of a table of the format before are asked for together (describe()).
  const bool has_parts = std::any_of(old.indexes.begin(), old.indexes.end(),
                                     [](const IndexSpec& index) { return !index.parts.empty(); });
  if (!has_parts)
    for (IndexSpec& index : spec.indexes) index.parts.clear();
  STRATA_RETURN_IF_ERROR(s.kernel->keep_still(&s, key));
  if (!renamed.empty()) {
    rename_columns(key, renamed, &spec);
    STRATA_RETURN_IF_ERROR(rename_parent_columns(spec, key, renamed));
  }
  // What did not fit before (it was made with the checks off) is nobody's fault now.
  const bool drops = std::any_of(old.indexes.begin(), old.indexes.end(), [&](const auto& index) {
    return position_of(spec, index.index_id) < 0;
  });
  if (drops)
    STRATA_RETURN_IF_ERROR(check_references(spec, key, spec.children, ParentsMissing::kOk));
  STRATA_RETURN_IF_ERROR(wait_until_decided(*table));
  STRATA_RETURN_IF_ERROR(s.kernel->wait_for_drop_room(&s.trx->interrupt));
  STRATA_RETURN_IF_ERROR(s.kernel->dictionary->replace_table(s.trx.get(), spec));
  STRATA_ASSERT(has_changes());
  TableRef changed = s.kernel->make_table(spec);
  copy_counters(*table, changed.get());
  DdlChange change{.key = key,
                   .table = changed,
                   .replaced = table,
                   .created_spaces = difference(all_spaces(*changed), all_spaces(*table)),
                   .dropped_spaces = difference(all_spaces(*table), all_spaces(*changed))};
  for (uint32_t i = 0; i < spec.indexes.size(); ++i)
    if (position_of(table->spec(), spec.indexes[i].index_id) < 0) change.built.push_back(i);
  if (!change.built.empty()) changed->statistics_known_.store(false);
  s.ddl.push_back(std::move(change));
  fault(FaultPoint::ddl_before_commit);
  return ok_status();
}

void Session::copy_counters(const Table& from, Table* to) {
  to->auto_increment_.store(from.auto_increment_.load());
  to->row_id_.store(from.row_id_.load());
  if (from.spec_.space_id == to->spec_.space_id) to->numbers_ = from.numbers_;
  to->rows_.store(from.rows_.load());
  to->clustered_pages_.store(from.clustered_pages_.load());
  to->index_pages_.store(from.index_pages_.load());
  to->modified_since_sample_.store(from.modified_since_sample_.load());
  to->updated_at_.store(from.updated_at_.load());
  to->statistics_known_.store(from.statistics_known_.load());
  to->rows_exact_.store(from.rows_exact_.load());
  to->committed_net_.store(from.committed_net_.load());
  to->committed_changed_.store(from.committed_changed_.load());
  to->told_net_.store(from.told_net_.load());
  to->told_changed_.store(from.told_changed_.load());
  to->counts_version_.store(from.counts_version_.load());
  to->counts_base_.store(from.counts_base_.load());
  to->counts_rows_.store(from.counts_rows_.load());
  copy_age(from, to);
}

// E6. Also when the changes are published: only then is known when this transaction built
// something.
void Session::copy_age(const Table& from, Table* to) {
  to->rebuilt_at_.store(from.rebuilt_at_.load());
  for (uint32_t i = 0; i < to->spec_.indexes.size(); ++i) {
    const int old = position_of(from.spec_, to->spec_.indexes[i].index_id);
    if (old >= 0) to->index_built_at_[i] = from.index_built_at_[static_cast<size_t>(old)];
  }
}

StatusOr<TableRef> Session::open_table(Bytes schema, Bytes name) {
  const std::string key = table_key(schema, name);
  STRATA_RETURN_IF_ERROR(impl_->kernel->use_name(impl_.get(), key, false));
  TableRef table = find(key);
  // Outside of a transaction nothing says for how long: until the name is given up, then it is
  // stale.
  if (!impl_->trx->started) impl_->kernel->release_names(impl_.get());
  if (table == nullptr) return impl_->kernel->answer(error_not_found());
  return table;
}

Status Session::lock_name(Bytes schema, Bytes name) {
  STRATA_ASSERT(impl_->trx->started);
  if (!impl_->kernel->shares_tables()) return ok_status();
  return impl_->kernel->use_name(impl_.get(), table_key(schema, name), true);
}

Status Session::journal_put(Bytes key, Bytes value) {
  return impl_->kernel->dictionary->put_journal(impl_->trx.get(), key, value);
}

Status Session::journal_erase(Bytes key) {
  return impl_->kernel->dictionary->erase_journal(impl_->trx.get(), key);
}

// Runs right after the commit is published: other sessions see all of the DDL or none.
void Session::Impl::publish_ddl() {
  {
    const MutexLock lock(kernel->tables_mutex);
    STRATA_ASSERT(!trx->cts.is_zero());  // committed
    std::vector<std::string> gone;
    for (DdlChange& change : ddl) {
      STRATA_ASSERT(change.table != nullptr || change.replaced != nullptr);
      if (change.replaced != nullptr) {
        change.replaced->stale_.store(true, std::memory_order_release);
        gone.insert(gone.end(), change.replaced->keeps_still_.begin(),
                    change.replaced->keeps_still_.end());
        change.replaced->keeps_still_.clear();
      }
      if (change.table != nullptr && !change.keeps_still.empty()) {  // no longer the session's
        for (const std::string& kept : change.keeps_still) std::erase(kept_still, kept);
        change.table->keeps_still_ = std::move(change.keeps_still);
      }
      if (change.table == nullptr) {
        kernel->tables.erase(change.key);
      } else if (change.references != nullptr) {
        change.table->set_references(std::move(*change.references));
      } else {
        if (change.replaced != nullptr) copy_age(*change.replaced, change.table.get());
        if (change.rebuilt) change.table->rebuilt_at_.store(trx->cts.value);
        STRATA_ASSERT(change.table->index_built_at_.size() == change.table->spec().indexes.size());
        for (const uint32_t i : change.built) change.table->index_built_at_[i] = trx->cts.value;
        kernel->tables[change.key] = change.table;
      }
    }
    kernel->let_go(gone);  // whoever has waited finds all of the tables that are no more stale
  }
  kernel->names_changed.notify_all();
  fault(FaultPoint::ddl_after_commit);
  for (const DdlChange& change : ddl) {
    for (const SpaceId space : change.dropped_spaces) {
      // The drop is committed. From here on nobody starts on the space, whatever this answers; that
      // somebody is still at it after a minute is worth a line.
      const Status status = kernel->leave_space(space);  // another node may have asked for it (E23)
      if (!status.ok()) diag(Severity::kWarning, "drop: %s", text_of(status).c_str());
      kernel->note_dropped(space);
    }
  }
}

void Kernel::for_each_table(bool include_internal,
                            const std::function<void(const TableSpec&)>& visit) {
  if (impl_->seams.schema != nullptr) {  // the map has what was used here
    const Status listed = impl_->dictionary->for_each_table([&](const TableSpec& spec) {
      if (include_internal || !spec.internal_name) visit(spec);
      return ok_status();
    });
    if (!listed.ok()) diag(Severity::kWarning, "list of tables: %s", text_of(listed).c_str());
    return;
  }
  std::vector<TableRef> all;
  {
    const MutexLock lock(impl_->tables_mutex);
    for (const auto& [key, table] : impl_->tables) all.push_back(table);
  }
  for (const TableRef& table : all) {
    if (include_internal || !table->spec().internal_name) visit(table->spec());
  }
}

bool Kernel::shares_tables() const noexcept { return impl_->shares_tables(); }

bool Kernel::table_exists(Bytes schema, Bytes name) {
  if (impl_->seams.schema != nullptr) {
    Cts changed_at;
    // What another node is changing just now, or cannot be read, is not gone.
    return !is_not_found(impl_->dictionary->read_table(schema, name, &changed_at).status());
  }
  const MutexLock lock(impl_->tables_mutex);
  return impl_->tables.find(table_key(schema, name)) != impl_->tables.end();
}

Status Kernel::for_each_journal(Bytes prefix,
                                const std::function<void(Bytes key, Bytes value)>& visit) {
  return impl_->dictionary->for_each_journal(prefix, [&visit](Bytes key, Bytes value) {
    visit(key, value);
    return ok_status();
  });
}

}  // namespace strata::engine
