// Checks and cascades of foreign keys (internal/references.h).
#include "engine/internal/references.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "engine/internal/row_change.h"

namespace strata::engine {

bool same_column(Bytes a, Bytes b) noexcept {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

namespace {

constexpr size_t kTablesKept = 64;  // of a session, with their codecs

bool starts_with(Bytes key, Bytes prefix) { return key.substr(0, prefix.size()) == prefix; }

void append_complemented(std::string* out, Bytes bytes) {
  for (const char c : bytes) out->push_back(static_cast<char>(~c));
}

// FK8. `from_most`: of a longer key only so many bytes are its parts'.
KeyMade convert(const std::vector<KeyPartSpec>& from, const std::vector<KeyPartSpec>& to, Bytes key,
                uint32_t from_most, uint32_t to_most, std::string* out) {
  out->clear();
  if (key.size() > from_most) key = key.substr(0, from_most);
  for (size_t i = 0; i < from.size(); ++i) {
    const KeyPartSpec& part = from[i];
    const KeyPartSpec& other = to[i];
    if (part.nullable) {
      if (key.empty()) return KeyMade::kTooLong;
      if (static_cast<uint8_t>(key[0]) == (part.descending ? 0xff : 0)) return KeyMade::kNull;
      key.remove_prefix(1);
    }
    const size_t bytes = part.measure(key);
    if (bytes == 0) return KeyMade::kTooLong;
    if (other.nullable) out->push_back(static_cast<char>(other.descending ? 0xfe : 1));
    if (part.descending == other.descending) {
      out->append(key.substr(0, bytes));
    } else {
      append_complemented(out, key.substr(0, bytes));
    }
    key.remove_prefix(bytes);
    if (part.counts_spaces) {
      if (key.empty()) return KeyMade::kTooLong;
      key.remove_prefix(1);
    }
  }
  return out->size() > to_most ? KeyMade::kTooLong : KeyMade::kOk;
}

bool same_key(const Reference& a, const Reference& b) {
  return a.key.name == b.key.name && a.child_name == b.child_name;
}

bool find_entry(const EntryImage* entries, uint32_t count, uint32_t index, Bytes* out) {
  for (uint32_t i = 0; i < count; ++i) {
    if (entries[i].index != index) continue;
    *out = entries[i].key;
    return true;
  }
  return false;
}

// The index whose first columns these are, kept whole; -1: there is none. A column's byte for
// spaces can only be left out at the end of what is looked for.
int find_index(const TableSpec& table, const std::vector<std::string>& columns,
               const std::vector<KeyPartSpec>* types) {
  for (size_t i = 0; i < table.indexes.size(); ++i) {
    const std::vector<KeyPartSpec>& parts = table.indexes[i].parts;
    if (parts.size() < columns.size()) continue;
    bool fits = true;
    for (size_t c = 0; c < columns.size() && fits; ++c) {
      fits = same_column(parts[c].column, columns[c]) &&
             (types == nullptr || parts[c].type == (*types)[c].type) &&
             (!parts[c].counts_spaces || c + 1 == columns.size());
    }
    if (fits) return static_cast<int>(i);
  }
  return -1;
}

std::vector<KeyPartSpec> first(const std::vector<KeyPartSpec>& parts, size_t count) {
  return {parts.begin(), parts.begin() + static_cast<ptrdiff_t>(count)};
}

}  // namespace

KeyMade parent_key(const Reference& r, Bytes child_key, std::string* out) {
  return convert(r.child_parts, r.parent_parts, child_key, r.child_most_key, r.parent_most_key,
                 out);
}

KeyMade child_key(const Reference& r, Bytes parent_key, std::string* out) {
  return convert(r.parent_parts, r.child_parts, parent_key, r.parent_most_key, r.child_most_key,
                 out);
}

bool fit(const ForeignKeySpec& key, const TableSpec& child, const TableSpec& parent,
         Reference* out) {
  const size_t count = key.columns.size();
  const int child_index = find_index(child, key.columns, nullptr);
  if (child_index < 0) return false;
  const IndexSpec& from = child.indexes[static_cast<size_t>(child_index)];
  const int parent_index = find_index(parent, key.parent_columns, &from.parts);
  if (parent_index < 0) return false;
  const IndexSpec& to = parent.indexes[static_cast<size_t>(parent_index)];
  out->child_index = static_cast<uint32_t>(child_index);
  out->parent_index = static_cast<uint32_t>(parent_index);
  out->child_parts = first(from.parts, count);
  out->parent_parts = first(to.parts, count);
  out->child_most_key = from.most_key;
  out->parent_most_key = to.most_key;
  out->names_row =
      parent_index == 0 && to.whole && to.parts.size() == count && !to.parts.back().counts_spaces;
  return true;
}

Status describe(const KernelImpl& kernel, TableSpec* spec) {
  if (spec->format == kSpecFormatOfUnboundedKeys || kernel.options.codecs == nullptr)
    return ok_status();
  for (const IndexSpec& index : spec->indexes)
    if (!index.parts.empty()) return ok_status();
  return kernel.options.codecs->describe(spec);
}

bool RowKeys::old_of(uint32_t index, Bytes* out) const {
  if (index != 0) return find_entry(old_entries, old_count, index, out);
  *out = old_key;
  return old_key.data() != nullptr;
}

bool RowKeys::new_of(uint32_t index, Bytes* out) const {
  if (index != 0) return find_entry(new_entries, new_count, index, out);
  *out = new_key;
  return new_key.data() != nullptr;
}

// --- who refers to whom ---

Status References::resolve(Table* table, Links* out) {
  KernelImpl* const kernel = s_->kernel;
  out->table = table->shared_from_this();
  out->seen = table->references();
  if (out->seen == nullptr) return ok_status();
  const std::string own_name = table_key(table->spec().schema, table->spec().name);
  TableSpec own = table->spec();
  STRATA_RETURN_IF_ERROR(describe(*kernel, &own));
  const auto look_up = [&](const std::string& name) -> StatusOr<TableRef> {
    if (name == own_name) return out->table;
    const size_t end = name.find('\0');
    StatusOr<TableRef> found =
        s_->session->open_table(Bytes(name).substr(0, end), Bytes(name).substr(end + 1));
    if (is_not_found(found.status())) return TableRef();
    return found;
  };
  for (const ForeignKeySpec& key : out->seen->foreign_keys) {
    Reference r;
    r.key = key;
    r.child = out->table;
    r.child_name = own_name;
    r.parent_name = key.parent;
    STRATA_ASSIGN_OR_RETURN(TableRef parent, look_up(key.parent));
    if (parent != nullptr) {
      TableSpec spec = parent->spec();
      STRATA_RETURN_IF_ERROR(describe(*kernel, &spec));
      if (fit(key, own, spec, &r)) r.parent = parent;
    }
    if (r.parent == nullptr) {
      const int index = find_index(own, key.columns, nullptr);
      if (index < 0) continue;
      r.child_index = static_cast<uint32_t>(index);
      r.child_parts = first(own.indexes[r.child_index].parts, key.columns.size());
      r.parent_parts = r.child_parts;
    }
    if (key.parent == own_name) out->children.push_back(r);
    out->parents.push_back(std::move(r));
  }
  for (const std::string& name : out->seen->children) {
    STRATA_ASSIGN_OR_RETURN(const TableRef child, look_up(name));
    if (child == nullptr || child->references() == nullptr) continue;
    TableSpec spec = child->spec();
    STRATA_RETURN_IF_ERROR(describe(*kernel, &spec));
    for (const ForeignKeySpec& key : child->references()->foreign_keys) {
      if (key.parent != own_name) continue;
      Reference r;
      r.key = key;
      r.parent = out->table;
      r.parent_name = own_name;
      r.child_name = name;
      if (!fit(key, spec, own, &r)) continue;
      r.child = child;
      out->children.push_back(std::move(r));
    }
  }
  std::sort(out->children.begin(), out->children.end(), [](const auto& a, const auto& b) {
    return std::pair(a.child->spec().schema, a.key.name) <
           std::pair(b.child->spec().schema, b.key.name);
  });
  return ok_status();
}

StatusOr<References::LinksRef> References::links_of(Table* table) {
  KernelImpl* const kernel = s_->kernel;
  for (size_t i = 0; i < links_.size(); ++i) {
    const Links& links = *links_[i];
    if (links.table.get() != table) continue;
    bool good = links.seen == table->references();
    for (const Reference& r : links.parents)
      good = good && r.parent != nullptr && !r.parent->stale();
    for (const Reference& r : links.children) good = good && !r.child->stale();
    if (!good) {
      links_.erase(links_.begin() + static_cast<ptrdiff_t>(i));
      break;
    }
    if (kernel->seams.schema == nullptr) return links_[i];
    // MW15
    const LinksRef kept = links_[i];
    for (const Reference& r : kept->parents)
      STRATA_RETURN_IF_ERROR(kernel->use_name(s_, r.parent_name, false));
    for (const Reference& r : kept->children)
      STRATA_RETURN_IF_ERROR(kernel->use_name(s_, r.child_name, false));
    const auto went = [](const Reference& r) { return r.parent->stale() || r.child->stale(); };
    if (std::none_of(kept->parents.begin(), kept->parents.end(), went) &&
        std::none_of(kept->children.begin(), kept->children.end(), went))
      return kept;
    std::erase(links_, kept);
    break;
  }
  if (links_.size() >= kTablesKept) links_.clear();
  auto fresh = std::make_shared<Links>();
  STRATA_RETURN_IF_ERROR(resolve(table, fresh.get()));
  links_.push_back(fresh);
  return LinksRef(fresh);
}

Status References::fail(const Reference& r, Status why) {
  s_->foreign_key_error = {r.child->spec().schema, r.child->spec().name, r.key, false, {}};
  return why;
}

// --- towards parents ---

Status References::find_parent(const Reference& r, Bytes key) {
  RowContext* const context = &s_->kernel->row;
  Trx* const trx = s_->trx.get();
  const TreeId tree = tree_of(*r.parent, r.parent_index);
  if (r.names_row) {
    const Status locked = lock_record(context, trx, tree, key, RowLock::kShared, &other_);
    return is_not_found(locked) ? fail(r, error_no_referenced_row()) : locked;
  }
  RowCursor cursor(context, tree);
  STRATA_RETURN_IF_ERROR(cursor.seek(trx, RowCursor::Read::kLatest, key));
  while (cursor.valid() && starts_with(cursor.key(), key)) {
    const Status locked = lock_record(context, trx, tree, cursor.key(), RowLock::kShared, &other_);
    if (!is_not_found(locked)) return locked;
    STRATA_RETURN_IF_ERROR(cursor.next());
  }
  return fail(r, error_no_referenced_row());
}

Status References::check_parents(const Links& links, const RowKeys& keys, uint32_t index, Bytes key,
                                 const Reference* without) {
  for (const Reference& r : links.parents) {
    if (r.child_index != index || r.key.kept) continue;
    if (without != nullptr && same_key(r, *without)) continue;
    const KeyMade made = parent_key(r, key, &key_);
    if (made == KeyMade::kNull) continue;
    if (made == KeyMade::kTooLong || r.parent == nullptr) {
      if (r.parent == nullptr) return fail(r, error_no_referenced_row());
      return error_invalid_argument("a value is too long for foreign key " + r.key.name);
    }
    Bytes old;
    if (keys.old_of(index, &old) && old == key && keys.old_key == keys.new_key)
      continue;  // it is the same entry
    Bytes own;
    if (r.parent.get() == links.table.get() && r.parent_index < index &&
        keys.new_of(r.parent_index, &own) && starts_with(own, key_))
      continue;  // to itself, which is written by now (FK10)
    const Status found = find_parent(r, key_);
    const bool missed = is_no_referenced_row(found) || is_not_found(found);
    if (missed && r.parent->stale()) continue;  // FK6 will tell
    STRATA_RETURN_IF_ERROR(found);
  }
  return ok_status();
}

Status References::confirm_parents(LinksRef links, const RowKeys& keys, const Reference* without) {
  for (;;) {
    const auto replaced = [](const Reference& r) {
      return r.parent != nullptr && r.parent->stale();
    };
    if (std::none_of(links->parents.begin(), links->parents.end(), replaced)) return ok_status();
    Table* const table = links->table.get();
    if (table->stale()) return error_definition_changed();
    STRATA_ASSIGN_OR_RETURN(links, links_of(table));
    STRATA_RETURN_IF_ERROR(check_parents(*links, keys, 0, keys.new_key, without));
    for (uint32_t i = 0; i < keys.new_count; ++i) {
      STRATA_RETURN_IF_ERROR(
          check_parents(*links, keys, keys.new_entries[i].index, keys.new_entries[i].key, without));
    }
  }
}

// --- towards children ---

Status References::follow(const Links& links, const RowKeys& keys, uint32_t index, Bytes unwritten,
                          const Frame* above, const Reference* without) {
  const bool deletes = keys.deletes();
  const Frame frame{links.table.get(), deletes, above};
  std::string key;
  std::string now;
  for (const Reference& r : links.children) {
    if (r.parent_index != index) continue;
    // What made this row change goes on with the next one by itself.
    if (!deletes && without != nullptr && same_key(r, *without)) continue;
    Bytes old;
    if (!keys.old_of(r.parent_index, &old)) continue;
    if (child_key(r, old, &key) != KeyMade::kOk) continue;  // nobody can refer to it
    Bytes fresh;
    if (!deletes && keys.new_of(r.parent_index, &fresh) &&
        child_key(r, fresh, &now) == KeyMade::kOk && now == key)
      continue;
    STRATA_RETURN_IF_ERROR(apply(r, key, deletes, {keys.new_key, unwritten}, &frame));
  }
  return ok_status();
}

Status References::apply(const Reference& r, Bytes key, bool deletes, const NewRow& parent,
                         const Frame* frame) {
  const ReferentialAction action = deletes ? r.key.on_delete : r.key.on_update;
  const bool changes =
      action == ReferentialAction::kCascade || action == ReferentialAction::kSetNull;
  uint32_t depth = 0;
  bool comes_back = false;  // FK4
  for (const Frame* f = frame; f != nullptr; f = f->above) {
    ++depth;
    comes_back |= f->table == r.child.get() && !f->deletes;
  }
  Status refusal;
  if (!changes || (comes_back && !(deletes && action == ReferentialAction::kCascade))) {
    refusal = error_row_is_referenced();
  } else if (depth >= kCascadesMost) {
    refusal = error_cascade_too_deep();
  }
  TableCursor cursor(s_->session, r.child, r.child_index);
  cursor.set_lock_mode(refusal.ok() ? LockMode::kExclusive : LockMode::kShared);
  cursor.set_follows_references();
  std::string behind(key);
  bool infinite = false;
  make_successor_of_prefix(&behind, &infinite);
  cursor.set_bounds(key, infinite ? Bytes() : Bytes(behind));
  // Rows of a table that has been replaced since it was looked up say nothing (FK9).
  const auto told = [&r](const Status& status) {
    return r.child->stale() && !is_deadlock(status) ? error_definition_changed() : status;
  };
  for (Status moved = cursor.seek(key);; moved = cursor.next()) {
    STRATA_RETURN_IF_ERROR(told(moved));
    if (!cursor.valid() || !starts_with(cursor.entry().whole, key)) return ok_status();
    bool gone = false;
    STRATA_RETURN_IF_ERROR(told(refusal.ok() ? cursor.fetch(&gone) : cursor.lock_entry(&gone)));
    if (gone) continue;  // or going: it is in a frame above
    if (!refusal.ok()) return fail(r, refusal);
    STRATA_RETURN_IF_ERROR(change_child(r, &cursor, deletes, parent, frame, depth));
  }
}

StatusOr<TableCodec*> References::codec_of(const TableRef& table, uint32_t depth) {
  TableCodecs* const codecs = s_->kernel->options.codecs;
  if (codecs == nullptr) return error_internal("nobody can tell what a row is made of");
  for (OpenCodec& open : codecs_) {
    if (open.table != table || open.depth != depth) continue;
    if (open.transaction != transaction_) codecs->about_to_change(table->spec());
    open.transaction = transaction_;
    return open.codec.get();
  }
  codecs->about_to_change(table->spec());
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<TableCodec> made, codecs->open(table->spec()));
  codecs_.push_back({table, depth, transaction_, std::move(made)});
  return codecs_.back().codec.get();
}

Status References::change_child(const Reference& r, TableCursor* at, bool deletes,
                                const NewRow& parent, const Frame* frame, uint32_t depth) {
  STRATA_RETURN_IF_ERROR(s_->wait_for_log_room());
  if (s_->trx->interrupt.interrupted()) return error_interrupted();
  if (s_->cascaded_to.find(r.child_name) == s_->cascaded_to.end()) {  // FK9
    STRATA_RETURN_IF_ERROR(s_->kernel->use_for_cascade(s_, r.child_name));
    if (r.child->stale()) return error_definition_changed();
  }
  // Each level has its own: what one gives has to stay while those below it work.
  if (depth == 1) {
    const auto old = [](const OpenCodec& open) { return open.table->stale(); };
    std::erase_if(codecs_, old);
    if (codecs_.size() > kTablesKept) codecs_.clear();
  }
  STRATA_ASSIGN_OR_RETURN(TableCodec * codec, codec_of(r.child, depth));
  TableCodec::Row row;
  if (deletes && r.key.on_delete == ReferentialAction::kCascade) {
    STRATA_RETURN_IF_ERROR(codec->remove(at, &row));
    return remove_row(r, row, frame);
  }
  Status made;
  if (!deletes && r.key.on_update == ReferentialAction::kCascade) {
    STRATA_ASSIGN_OR_RETURN(TableCodec * parent_codec,
                            codec_of(r.parent, depth + kCascadesMost + 1));
    TableCursor parent_at(s_->session, r.parent, 0);
    parent_at.set_lock_mode(LockMode::kExclusive);
    parent_at.set_follows_references();
    bool gone = false;
    STRATA_RETURN_IF_ERROR(parent.unwritten.empty() ? parent_at.get(parent.key, &gone)
                                                    : parent_at.show(parent.key, parent.unwritten));
    STRATA_ASSERT(!gone);
    made = codec->copy_from(parent_codec, &parent_at, at, r.key, &row);
  } else {
    made = codec->set_null(at, r.key, &row);
  }
  if (error_of(made) == Error::out_of_range) return fail(r, error_row_is_referenced());
  STRATA_RETURN_IF_ERROR(made);
  return row.unchanged ? ok_status() : update_row(r, row, frame);
}

Status References::remove_row(const Reference& r, const TableCodec::Row& row, const Frame* frame) {
  Table* const table = r.child.get();
  const RowKeys keys{
      .old_key = row.old_key, .old_entries = row.old_entries, .old_count = row.old_entry_count};
  const RowReferences asked(s_, table, &keys, nullptr, frame, &r);
  RowChange change(s_, table, &asked);
  STRATA_RETURN_IF_ERROR(change.remove(row.old_key, row.old_entries, row.old_entry_count));
  s_->forget_lock(*table, row.old_key);
  s_->note_rows(table, -1);
  return ok_status();
}

Status References::update_row(const Reference& r, const TableCodec::Row& row, const Frame* frame) {
  Table* const table = r.child.get();
  STRATA_ASSIGN_OR_RETURN(const LinksRef links, links_of(table));
  const RowKeys keys{.old_key = row.old_key,
                     .old_entries = row.old_entries,
                     .old_count = row.old_entry_count,
                     .new_key = row.image.key,
                     .new_entries = row.image.entries,
                     .new_count = row.image.entry_count};
  const RowReferences asked(s_, table, &keys, links.get(), frame, &r);
  RowChange change(s_, table, &asked);
  uint32_t duplicate = 0;
  const Status status =
      change.update(row.old_key, row.image, row.old_entries, row.old_entry_count, &duplicate);
  if (is_duplicate_key(status)) {
    s_->foreign_key_error = {table->spec().schema, table->spec().name, r.key, false,
                             table->spec().indexes[duplicate].name};
    return error_cascaded_duplicate();
  }
  STRATA_RETURN_IF_ERROR(status);
  STRATA_RETURN_IF_ERROR(confirm_parents(links, keys, &r));
  s_->forget_lock(*table, row.old_key);
  s_->note_rows(table, 0);
  return ok_status();
}

// --- of a session ---

Session::Impl::Impl() = default;
Session::Impl::~Impl() = default;

void Session::set_foreign_key_checks(bool on) noexcept { impl_->foreign_key_checks = on; }

const ForeignKeyError& Session::foreign_key_error() const noexcept {
  return impl_->foreign_key_error;
}

StatusOr<References::LinksRef> Session::Impl::links_to_check(Table* table) {
  const TableReferences* const now = table->references();
  if (now == nullptr || !foreign_key_checks || now->foreign_keys.empty()) return nullptr;
  if (references == nullptr) references = std::make_unique<References>(this);
  return references->links_of(table);
}

Status Session::Impl::follow(Table* table, const RowKeys& keys, uint32_t index, Bytes unwritten) {
  if (!foreign_key_checks) return ok_status();
  if (references == nullptr) references = std::make_unique<References>(this);
  STRATA_ASSIGN_OR_RETURN(const References::LinksRef links, references->links_of(table));
  // Rows are counted as they change. What is undone when this fails must not be in one count with
  // what was before; what is not is, so that a long statement keeps no long list.
  const size_t before = row_deltas.size();
  const size_t floor = std::exchange(merge_floor, before);
  Status followed = references->follow(*links, keys, index, unwritten, nullptr, nullptr);
  merge_floor = floor;
  if (followed.ok()) merge_row_deltas(before);
  return followed;
}

}  // namespace strata::engine
