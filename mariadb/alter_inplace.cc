// ALTER TABLE that only adds, drops or renames secondary indexes, or gives columns other names or
// defaults: rows stay where they are.
//
// The server calls, all with writers kept out: check_if_supported_inplace_alter() ->
// prepare_inplace_alter_table() -> inplace_alter_table(), which builds the new indexes ->
// commit_inplace_alter_table(), with everybody kept out, true to publish or false to forget. A
// kernel transaction of its own lasts from the second call to the last (D1); the server finds out
// after a crash whether it committed by comparing versions (check_version()).
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/ha_strata.h"
#include "mariadb/settings.h"

namespace strata::glue {
namespace {

constexpr alter_table_operations kAddsIndexes =
    ALTER_ADD_NON_UNIQUE_NON_PRIM_INDEX | ALTER_ADD_UNIQUE_INDEX;
constexpr alter_table_operations kInPlace =
    kAddsIndexes | ALTER_DROP_NON_UNIQUE_NON_PRIM_INDEX | ALTER_DROP_UNIQUE_INDEX |
    ALTER_RENAME_INDEX | ALTER_INDEX_ORDER | ALTER_INDEX_IGNORABILITY | ALTER_CHANGE_INDEX_COMMENT |
    ALTER_COLUMN_NAME | ALTER_COLUMN_DEFAULT;

bool same_name(const LEX_CSTRING& a, const LEX_CSTRING& b) {
  return a.length == b.length && std::memcmp(a.str, b.str, a.length) == 0;
}

bool same_shape(const KEY& a, const KEY& b) {
  if (a.user_defined_key_parts != b.user_defined_key_parts || a.algorithm != b.algorithm ||
      (a.flags & HA_NOSAME) != (b.flags & HA_NOSAME))
    return false;
  for (uint i = 0; i < a.user_defined_key_parts; ++i) {
    const KEY_PART_INFO& x = a.key_part[i];
    const KEY_PART_INFO& y = b.key_part[i];
    if (x.fieldnr != y.fieldnr || x.length != y.length ||
        (x.key_part_flag & HA_REVERSE_SORT) != (y.key_part_flag & HA_REVERSE_SORT))
      return false;
  }
  return true;
}

bool same_rows(const TABLE* before, const TABLE* after) {
  if (before->s->fields != after->s->fields || before->s->reclength != after->s->reclength ||
      before->s->null_bytes != after->s->null_bytes)
    return false;
  for (uint i = 0; i < before->s->fields; ++i) {
    if (before->field[i]->offset(before->record[0]) != after->field[i]->offset(after->record[0]) ||
        is_kept(before->field[i]) != is_kept(after->field[i]))
      return false;
  }
  return true;
}

// Foreign keys name columns: nothing else in the dictionary does that is not made anew.
std::vector<engine::ColumnRename> renamed_columns(const TABLE* before, const TABLE* after) {
  std::vector<engine::ColumnRename> out;
  for (uint i = 0; i < before->s->fields; ++i) {
    const LEX_CSTRING& old = before->field[i]->field_name;
    const LEX_CSTRING& now = after->field[i]->field_name;
    if (!same_name(old, now)) out.push_back({{old.str, old.length}, {now.str, now.length}});
  }
  return out;
}

// CHANGE and MODIFY may have added the CHECK, of which rows that stay where they are hear nothing.
bool checks_a_column(const TABLE* after) {
  return std::any_of(after->field, after->field + after->s->fields,
                     [](const Field* field) { return field->check_constraint != nullptr; });
}

// The key of the old table that a key of the new one continues; MAX_KEY: it has to be built.
uint find_old_key(const TABLE* before, const Alter_inplace_info* info, const KEY& key) {
  for (const auto& renamed : info->rename_keys) {
    if (same_name(renamed.new_key->name, key.name))
      return static_cast<uint>(renamed.old_key - before->key_info);
  }
  for (uint i = 0; i < info->index_add_count; ++i) {
    if (same_name(info->key_info_buffer[info->index_add_buffer[i]].name, key.name)) return MAX_KEY;
  }
  for (uint i = 0; i < before->s->keys; ++i) {
    if (same_name(before->key_info[i].name, key.name)) return i;
  }
  return MAX_KEY;
}

class AlterInPlace final : public inplace_alter_handler_ctx {
 public:
  std::unique_ptr<engine::Session> session;
  TableLayout layout;      // of the new definition
  engine::TableSpec spec;  // its indexes; those to be built have no id until they are
};

AlterInPlace* context_of(Alter_inplace_info* info) {
  return static_cast<AlterInPlace*>(info->handler_ctx);
}

// Turns rows into the entries of the indexes that are being built.
class EntryMaker {
 public:
  EntryMaker(THD* thd, TABLE* table, RowCodec* rows, TableLayout* layout,
             const engine::TableSpec& spec)
      : thd_(thd), record_(table->record[0]), rows_(rows), layout_(layout) {
    storage_.assign(bitmap_buffer_size(table->s->fields) / sizeof(my_bitmap_map) + 1, 0);
    my_bitmap_init(&needed_, storage_.data(), table->s->fields);
    for (uint32_t i = 1; i < spec.indexes.size(); ++i) {
      if (spec.indexes[i].index_id != 0) continue;
      wanted_.push_back(i);
      for (const uint16_t column : layout->index(i).columns) bitmap_set_bit(&needed_, column);
    }
  }

  Status make(Bytes clustered_key, Bytes row, const LoadExternal& load,
              const engine::IndexBuild::Emit& emit) {
    STRATA_RETURN_IF_ERROR(rows_->decode(row, &needed_, load, record_));
    for (const uint32_t i : wanted_) {
      IndexLayout& index = layout_->index(i);
      bytes_.clear();
      bool has_null = false;
      index.append_key(record_, &bytes_, &has_null);
      const size_t key_bytes = bytes_.size();
      if (key_bytes + clustered_key.size() > engine::kMaxKeyLength) {
        too_long_ = true;
        return error_invalid_argument();
      }
      index.append_covering(record_, &bytes_);
      if (bytes_.size() + clustered_key.size() > engine::kMaxEntryBytes)
        bytes_.shrink(key_bytes);  // TL4
      const Bytes all = bytes_.bytes();
      STRATA_RETURN_IF_ERROR(emit(engine::EntryImage{
          i, all.substr(0, key_bytes), index.unique && !has_null, all.substr(key_bytes)}));
    }
    return ok_status();
  }
  [[nodiscard]] bool too_long() const noexcept { return too_long_; }

  Status progress(uint64_t done, uint64_t of) {
    if (thd_killed(thd_)) return error_interrupted();
    thd_progress_report(thd_, done, of);
    return ok_status();
  }

 private:
  THD* thd_;
  uchar* record_;
  RowCodec* rows_;
  TableLayout* layout_;
  std::vector<uint32_t> wanted_;
  std::vector<my_bitmap_map> storage_;
  MY_BITMAP needed_{};
  Buffer bytes_;
  bool too_long_ = false;
};

}  // namespace

// Kernel index of the old table for each index of the new one, kBuilt where there is none. False:
// not in place.
bool ha_strata::map_indexes(TABLE* altered, const Alter_inplace_info* info,
                            std::vector<uint32_t>* from) {
  TableLayout after;
  after.open(altered, rows_.layout().form());
  from->assign(after.index_count(), kBuilt);
  std::vector<bool> continued(rows_.layout().index_count(), false);
  for (uint32_t i = 0; i < after.index_count(); ++i) {
    uint32_t old = 0;  // the hidden clustered key
    if (after.index(i).server_key != MAX_KEY) {
      const KEY& key = altered->key_info[after.index(i).server_key];
      const uint old_key = find_old_key(table, info, key);
      if (old_key == MAX_KEY) continue;
      if (!same_shape(table->key_info[old_key], key)) return false;
      old = rows_.layout().kernel_index(old_key);
    } else if (!rows_.layout().hidden_key()) {
      return false;
    }
    if (continued[old]) return false;
    continued[old] = true;
    (*from)[i] = old;
  }
  if ((*from)[0] != 0) return false;
  for (uint32_t old = 1; old < rows_.layout().index_count(); ++old) {
    // The kernel drops an index with its space only.
    if (!continued[old] && table_->spec().indexes[old].own_space_id == 0) return false;
  }
  return true;
}

enum_alter_inplace_result ha_strata::check_if_supported_inplace_alter(TABLE* altered,
                                                                      Alter_inplace_info* info) {
  enum_alter_inplace_result result = HA_ALTER_INPLACE_NOT_SUPPORTED;
  (void)guarded([&] {
    if ((info->handler_flags & ~kInPlace) != 0 || info->ignore || !same_rows(table, altered))
      return 0;
    if ((info->handler_flags & ALTER_COLUMN_NAME) != 0 && table->versioned()) return 0;
    if ((info->handler_flags & ALTER_COLUMN_DEFAULT) != 0 && checks_a_column(altered)) return 0;
    for (uint i = 0; i < altered->s->keys; ++i) {
      if ((altered->key_info[i].flags & (HA_FULLTEXT | HA_SPATIAL)) != 0) return 0;
    }
    if (!keys_are_supported(altered, false)) return 0;
    std::vector<uint32_t> from;
    if (!map_indexes(altered, info, &from)) return 0;
    result = std::count(from.begin(), from.end(), kBuilt) == 0 ? HA_ALTER_INPLACE_INSTANT
                                                               : HA_ALTER_INPLACE_NOCOPY_LOCK;
    return 0;
  });
  return result;
}

// What the server does not do for handlers here: say what went wrong. True: something did.
bool ha_strata::report_alter(int error) {
  if (error != 0 && !ha_thd()->is_error()) print_error(error, MYF(0));
  return error != 0;
}

bool ha_strata::prepare_inplace_alter_table(TABLE* altered, Alter_inplace_info* info) {
  return report_alter(guarded([&] {
    THD* const thd = ha_thd();
    auto* const alter = new (thd->mem_root) AlterInPlace();
    info->handler_ctx = alter;
    std::vector<uint32_t> from;
    if (!map_indexes(altered, info, &from)) return HA_ERR_TABLE_DEF_CHANGED;
    alter->layout.open(altered, rows_.layout().form());
    alter->spec = table_->spec();
    alter->spec.indexes.clear();
    for (uint32_t i = 0; i < from.size(); ++i) {
      engine::IndexSpec index = describe_index(altered, alter->layout.index(i));
      if (from[i] != kBuilt) {
        const engine::IndexSpec& old = table_->spec().indexes[from[i]];
        index.index_id = old.index_id;
        index.root_page = old.root_page;
        index.own_space_id = old.own_space_id;
      }
      alter->spec.indexes.push_back(std::move(index));
    }
    alter->session =
        take_alter_hold(connection_of(thd), {table_->spec().schema, table_->spec().name});
    if (alter->session == nullptr) {
      alter->session = kernel->new_session();
      alter->session->set_lock_wait_timeout_us(lock_wait_timeout_us(thd));
      alter->session->begin(engine::Isolation::kReadCommitted);
    }
    alter->session->set_foreign_key_checks(checks_foreign_keys(thd));
    return 0;
  }));
}

bool ha_strata::inplace_alter_table(TABLE* altered, Alter_inplace_info* info) {
  return report_alter(guarded([&] {
    THD* const thd = ha_thd();
    AlterInPlace* const alter = context_of(info);
    const KillReaches reaches(connection_of(thd), alter->session.get());
    EntryMaker maker(thd, altered, &rows_.codec(), &alter->layout, alter->spec);
    engine::IndexBuild build;
    build.memory_bytes = session_setting_index_build_memory(thd);
    build.entries_of = [&](Bytes key, Bytes row, const LoadExternal& load,
                           const engine::IndexBuild::Emit& emit) {
      return maker.make(key, row, load, emit);
    };
    build.progress = [&](uint64_t done, uint64_t of) { return maker.progress(done, of); };
    thd_progress_init(thd, 1);
    const Status built = alter->session->build_indexes(table_, &alter->spec, &build);
    thd_progress_end(thd);
    if (is_duplicate_key(built)) return report_duplicate(altered, info, build);
    return maker.too_long() ? key_too_long() : fail(built);
  }));
}

// Raises the error that names the value.
int ha_strata::report_duplicate(TABLE* altered, Alter_inplace_info* info,
                                const engine::IndexBuild& build) {
  AlterInPlace* const alter = context_of(info);
  engine::TableCursor cursor(alter->session.get(), table_, 0);
  bool gone = false;
  Status status = cursor.get(build.duplicate_row, &gone);
  if (status.ok() && !gone) {
    const LoadExternal load = [&cursor](uint32_t position, std::string* value) {
      return cursor.external(position, value);
    };
    status = rows_.codec().decode(cursor.row(), nullptr, load, altered->record[0]);
  }
  if (!status.ok()) return fail(status);
  const uint key = alter->layout.index(build.duplicate_index).server_key;
  print_keydup_error(altered, &altered->key_info[key], MYF(0));
  return HA_ERR_FOUND_DUPP_KEY;
}

bool ha_strata::commit_inplace_alter_table(TABLE* altered, Alter_inplace_info* info, bool commit) {
  return report_alter(guarded([&] {
    THD* const thd = ha_thd();
    AlterInPlace* const alter = context_of(info);
    if (alter == nullptr || alter->session == nullptr) return 0;
    const std::unique_ptr<engine::Session> session = std::move(alter->session);
    if (!commit) {
      session->rollback().IgnoreError();  // at once or in the background (engine E18)
      return 0;
    }
    const LEX_CUSTRING& image = *table->s->frm_image;  // the new one, by now
    const LEX_CUSTRING& version = altered->s->tabledef_version;
    alter->spec.definition.assign(reinterpret_cast<const char*>(image.str), image.length);
    alter->spec.version.assign(reinterpret_cast<const char*>(version.str), version.length);
    Status status = session->alter_table(alter->spec, renamed_columns(table, altered));
    if (status.ok()) status = session->commit(engine::Durability::kSync);
    close_if_outcome_unknown(status, thd);  // D6
    if (is_foreign_key_refused(status) && info->index_drop_count > 0) {
      my_error(ER_DROP_INDEX_FK, MYF(0), info->index_drop_buffer[0]->name.str);
      return HA_ERR_GENERIC;
    }
    if (!status.ok()) return fail(status);
    // The server is about to rename the file with the new definition itself (DF1).
    scan_.drop_cursors();
    return 0;
  }));
}

}  // namespace strata::glue
