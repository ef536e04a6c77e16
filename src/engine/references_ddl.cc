// What DDL means for foreign keys, and they for it (FK5, FK7 of internal/references.h).
#include <algorithm>
#include <set>

#include "base/assert.h"
#include "engine/internal/references.h"

namespace strata::engine {
namespace {

bool changes_rows(ReferentialAction action) {
  return action == ReferentialAction::kCascade || action == ReferentialAction::kSetNull;
}

bool refers_to(const std::vector<ForeignKeySpec>& keys, Bytes parent) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const ForeignKeySpec& key) { return key.parent == parent; });
}

// Of a key that would set it to NULL; null: there is none.
const std::string* column_that_is_never_null(const ForeignKeySpec& key, const TableSpec& table) {
  if (key.on_delete != ReferentialAction::kSetNull && key.on_update != ReferentialAction::kSetNull)
    return nullptr;
  for (const IndexSpec& index : table.indexes)
    for (const KeyPartSpec& part : index.parts)
      for (const std::string& column : key.columns)
        if (!part.nullable && same_column(part.column, column)) return &part.column;
  return nullptr;
}

const std::string& new_name_of(const std::string& column,
                               const std::vector<ColumnRename>& renamed) {
  for (const ColumnRename& one : renamed)
    if (same_column(one.from, column)) return one.to;
  return column;
}

// For people.
std::string shown(Bytes key) {
  const size_t end = key.find('\0');
  return "`" + std::string(key.substr(0, end)) + "`.`" + std::string(key.substr(end + 1)) + "`";
}

bool begins_with(const IndexSpec& index, const std::vector<std::string>& columns) {
  if (index.parts.size() < columns.size()) return false;
  for (size_t i = 0; i < columns.size(); ++i)
    if (!same_column(index.parts[i].column, columns[i])) return false;
  return true;
}

// Whether or not it keeps them whole.
const IndexSpec* index_that_begins_with(const std::vector<std::string>& columns,
                                        const TableSpec& table) {
  for (const IndexSpec& index : table.indexes)
    if (begins_with(index, columns)) return &index;
  return nullptr;
}

// The first column of the key that is there under the right names, but with another type; empty:
// no index begins with these columns.
std::string why_not(const ForeignKeySpec& key, const TableSpec& child, const TableSpec& parent) {
  const IndexSpec* const from = index_that_begins_with(key.columns, child);
  for (const IndexSpec& index : parent.indexes) {
    if (from == nullptr || !begins_with(index, key.parent_columns)) continue;
    for (size_t i = 0; i < key.columns.size(); ++i) {
      if (from->parts[i].type != index.parts[i].type)
        return "Field type or character set for column '" + key.columns[i] +
               "' does not match referenced column '" + key.parent_columns[i] + "'.";
    }
  }
  return "There is no index in the referenced table where the referenced columns appear as the "
         "first columns.";
}

}  // namespace

TableReferences references_in(const TableSpec& spec) {
  TableReferences out{.foreign_keys = spec.foreign_keys, .children = spec.children};
  for (const ForeignKeySpec& key : spec.foreign_keys)
    out.may_be_cascaded_to |= changes_rows(key.on_delete) || changes_rows(key.on_update);
  return out;
}

void Table::set_references(TableReferences references) {
  all_references_.push_back(std::make_unique<const TableReferences>(std::move(references)));
  references_.store(all_references_.back().get(), std::memory_order_release);
}

void rename_references(const std::string& old_name, const std::string& new_name,
                       const std::string& from, const std::string& to, TableSpec* spec) {
  const std::string made = old_name + "_ibfk_";
  for (ForeignKeySpec& key : spec->foreign_keys) {
    if (key.name.compare(0, made.size(), made) == 0)
      key.name = new_name + "_ibfk_" + key.name.substr(made.size());
    if (key.parent == from) key.parent = to;
  }
  std::sort(spec->foreign_keys.begin(), spec->foreign_keys.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

// In the keys of the table itself, and in those of it that refer to it.
void rename_columns(const std::string& own_name, const std::vector<ColumnRename>& renamed,
                    TableSpec* spec) {
  for (ForeignKeySpec& key : spec->foreign_keys) {
    for (std::string& column : key.columns) column = new_name_of(column, renamed);
    if (key.parent != own_name) continue;
    for (std::string& column : key.parent_columns) column = new_name_of(column, renamed);
  }
}

// As this transaction sees it, other tables' DDL included.
TableSpec Session::spec_now(const std::string& key, const Table& table) {
  TableSpec spec = table.spec();
  const TableReferences* now = table.references();
  for (auto it = impl_->ddl.rbegin(); it != impl_->ddl.rend(); ++it) {
    if (it->key != key) continue;
    if (it->references != nullptr) now = it->references.get();
    break;
  }
  spec.foreign_keys = now == nullptr ? std::vector<ForeignKeySpec>() : now->foreign_keys;
  spec.children = now == nullptr ? std::vector<std::string>() : now->children;
  return spec;
}

// MW18
Status Session::use_names(std::vector<std::string> keys, const TableSpec* with_parents_of) {
  if (with_parents_of != nullptr)
    for (const ForeignKeySpec& key : with_parents_of->foreign_keys) keys.push_back(key.parent);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (const std::string& key : keys)
    STRATA_RETURN_IF_ERROR(impl_->kernel->use_name(impl_.get(), key, true));
  return ok_status();
}

Status Session::refuse(const TableSpec& child, const ForeignKeySpec& key, const std::string& why) {
  impl_->foreign_key_error = {child.schema, child.name, key, false, {}};
  return error_foreign_key_refused(why);
}

// Whether the keys of the table, which has or will have the name `as`, fit their parents, and those
// of the children fit it.
Status Session::check_references(const TableSpec& spec_in, Bytes as,
                                 const std::vector<std::string>& children, ParentsMissing missing) {
  Impl& s = *impl_;
  if (spec_in.foreign_keys.empty() && children.empty()) return ok_status();
  TableSpec spec = spec_in;
  STRATA_RETURN_IF_ERROR(describe(*s.kernel, &spec));
  const auto look_up = [&](Bytes name, TableSpec* out) -> StatusOr<bool> {
    const size_t end = name.find('\0');
    const StatusOr<TableRef> table = open_table(name.substr(0, end), name.substr(end + 1));
    if (is_not_found(table.status())) return false;
    STRATA_RETURN_IF_ERROR(table.status());
    *out = spec_now(std::string(name), **table);
    STRATA_RETURN_IF_ERROR(describe(*s.kernel, out));
    return true;
  };
  Reference found;
  for (const ForeignKeySpec& key : spec.foreign_keys) {
    // Whoever the parent is, or will be.
    const std::string* const never_null = column_that_is_never_null(key, spec);
    if (never_null != nullptr)
      return refuse(spec, key,
                    "You have defined a SET NULL condition but column '" + *never_null +
                        "' is defined as NOT NULL.");
    TableSpec other;
    const bool self = key.parent == as;
    if (!self) {
      STRATA_ASSIGN_OR_RETURN(const bool there, look_up(key.parent, &other));
      if (!there) {
        if (s.foreign_key_checks && index_that_begins_with(key.columns, spec) == nullptr)
          return refuse(spec, key,
                        "There is no index where the columns of the foreign key appear as the "
                        "first columns.");
        if (missing == ParentsMissing::kOk || !s.foreign_key_checks || key.kept) continue;
        return refuse(
            spec, key,
            "Referenced table " + shown(key.parent) + " not found in the data dictionary.");
      }
    }
    const TableSpec& parent = self ? spec : other;
    if (!fit(key, spec, parent, &found)) {
      // Not every table that was loaded in an odd order has to fit at once.
      if ((missing == ParentsMissing::kOk || key.kept) && !s.foreign_key_checks) continue;
      return refuse(spec, key, why_not(key, spec, parent));
    }
  }
  for (const std::string& name : children) {
    TableSpec child;
    STRATA_ASSIGN_OR_RETURN(const bool there, look_up(name, &child));
    if (!there || name == as) continue;
    for (const ForeignKeySpec& key : child.foreign_keys) {
      if (key.parent != as || fit(key, child, spec, &found)) continue;
      if (s.foreign_key_checks) return refuse(child, key, why_not(key, child, spec));
    }
  }
  return ok_status();
}

Status Session::refuse_if_referred_to(const TableSpec& spec, Bytes but_for_schema) {
  Impl& s = *impl_;
  if (!s.foreign_key_checks || spec.internal_name) return ok_status();
  const std::string own = table_key(spec.schema, spec.name);
  for (const std::string& name : spec.children) {
    const size_t end = name.find('\0');
    const Bytes schema = Bytes(name).substr(0, end);
    if (!but_for_schema.empty() && schema == but_for_schema) continue;
    STRATA_ASSIGN_OR_RETURN(const TableRef child, open_table(schema, Bytes(name).substr(end + 1)));
    const TableSpec now = spec_now(name, *child);
    for (const ForeignKeySpec& key : now.foreign_keys) {
      if (key.parent != own) continue;
      s.foreign_key_error = {now.schema, now.name, key, false, {}};
      return error_row_is_referenced();
    }
  }
  return ok_status();
}

Status Session::put_references(const std::string& key, const TableRef& table,
                               const TableSpec& spec) {
  STRATA_RETURN_IF_ERROR(impl_->kernel->dictionary->replace_table(impl_->trx.get(), spec));
  DdlChange change{.key = key, .table = table};
  change.references = std::make_unique<TableReferences>(references_in(spec));
  impl_->ddl.push_back(std::move(change));
  return ok_status();
}

// Its keys have another form, and its format no place for children. A copy (ALTER) has both.
Status Session::refuse_if_too_old(const TableSpec& parent) {
  if (parent.format != kSpecFormatOfUnboundedKeys) return ok_status();
  return error_foreign_key_refused("The referenced table was made by an older version.");
}

Status Session::change_children(const std::string& parent, const std::string& child, bool add) {
  const TableRef table = find(parent);
  if (table == nullptr) return ok_status();
  TableSpec spec = spec_now(parent, *table);
  const auto at = std::lower_bound(spec.children.begin(), spec.children.end(), child);
  const bool there = at != spec.children.end() && *at == child;
  if (there == add) return ok_status();
  if (add) {
    STRATA_RETURN_IF_ERROR(refuse_if_too_old(spec));
    spec.children.insert(at, child);
  } else {
    spec.children.erase(at);
  }
  return put_references(parent, table, spec);
}

// The table `key` begins, or ceases, to be a child of its parents.
Status Session::change_parents(const TableSpec& spec, const std::string& key, bool add) {
  std::set<std::string> parents;
  for (const ForeignKeySpec& foreign : spec.foreign_keys)
    if (foreign.parent != key) parents.insert(foreign.parent);
  for (const std::string& parent : parents)
    STRATA_RETURN_IF_ERROR(change_children(parent, key, add));
  return ok_status();
}

Status Session::rename_parent(const std::vector<std::string>& children, const std::string& from,
                              const std::string& to) {
  for (const std::string& name : children) {
    const TableRef child = find(name);
    if (child == nullptr) continue;
    TableSpec spec = spec_now(name, *child);
    for (ForeignKeySpec& key : spec.foreign_keys)
      if (key.parent == from) key.parent = to;
    STRATA_RETURN_IF_ERROR(put_references(name, child, spec));
  }
  return ok_status();
}

// A child names its parent's columns.
Status Session::rename_parent_columns(const TableSpec& parent, const std::string& key,
                                      const std::vector<ColumnRename>& renamed) {
  STRATA_RETURN_IF_ERROR(use_names(parent.children, nullptr));
  for (const std::string& name : parent.children) {
    const TableRef child = find(name);
    if (child == nullptr || name == key) continue;
    TableSpec spec = spec_now(name, *child);
    bool changes = false;
    for (ForeignKeySpec& foreign : spec.foreign_keys) {
      if (foreign.parent != key) continue;
      for (std::string& column : foreign.parent_columns) {
        const std::string& now = new_name_of(column, renamed);
        changes |= now != column;
        column = now;
      }
    }
    if (changes) STRATA_RETURN_IF_ERROR(put_references(name, child, spec));
  }
  return ok_status();
}

// Tables with foreign keys, as the session's transaction sees them; none with an internal name.
Status KernelImpl::for_each_child(Session::Impl* session, const VisitReferences& visit) {
  std::set<std::string> decided;
  for (auto it = session->ddl.rbegin(); it != session->ddl.rend(); ++it) {
    if (!decided.insert(it->key).second || it->table == nullptr) continue;
    const TableReferences* const now =
        it->references != nullptr ? it->references.get() : it->table->references();
    if (now != nullptr && !it->table->spec().internal_name)
      visit(it->table->spec(), now->foreign_keys);
  }
  const auto look = [&](const TableSpec& spec, const std::vector<ForeignKeySpec>& keys) {
    if (keys.empty() || spec.internal_name) return;
    if (decided.find(table_key(spec.schema, spec.name)) == decided.end()) visit(spec, keys);
  };
  if (seams.schema != nullptr) {
    return dictionary->for_each_table([&](const TableSpec& spec) {
      look(spec, spec.foreign_keys);
      return ok_status();
    });
  }
  const MutexLock lock(tables_mutex);
  for (const auto& [key, table] : tables) {
    const TableReferences* const now = table->references();
    if (now != nullptr) look(table->spec(), now->foreign_keys);
  }
  return ok_status();
}

// Other tables that name this one as parent, in order.
Status KernelImpl::tables_referring_to(Session::Impl* session, const std::string& name,
                                       std::vector<std::string>* children) {
  std::set<std::string> found;
  STRATA_RETURN_IF_ERROR(
      for_each_child(session, [&](const TableSpec& spec, const std::vector<ForeignKeySpec>& keys) {
        std::string own = table_key(spec.schema, spec.name);
        if (own != name && refers_to(keys, name)) found.insert(std::move(own));
      }));
  children->assign(found.begin(), found.end());
  return ok_status();
}

// Names of constraints are unique in their schema. `but_of`: the table itself, or whose copy it is.
Status Session::check_names(const TableSpec& spec, Bytes but_of) {
  if (spec.foreign_keys.empty()) return ok_status();
  std::set<std::string> taken;
  STRATA_RETURN_IF_ERROR(impl_->kernel->for_each_child(
      impl_.get(), [&](const TableSpec& other, const std::vector<ForeignKeySpec>& keys) {
        if (other.schema != spec.schema || table_key(other.schema, other.name) == but_of) return;
        for (const ForeignKeySpec& key : keys) taken.insert(key.name);
      }));
  // Twice among new ones is a mistake of the definition, and no name that is in use.
  std::set<std::string> kept;
  for (const ForeignKeySpec& key : spec.foreign_keys)
    if (key.kept) kept.insert(key.name);
  std::set<std::string> here;
  for (const ForeignKeySpec& key : spec.foreign_keys) {
    const bool in_use = taken.find(key.name) != taken.end();
    if (here.insert(key.name).second && !in_use) continue;
    const bool is_taken = in_use || kept.find(key.name) != kept.end();
    impl_->foreign_key_error = {spec.schema, spec.name, key, is_taken, {}};
    return error_foreign_key_refused("another foreign key has the name " + key.name);
  }
  return ok_status();
}

}  // namespace strata::engine
