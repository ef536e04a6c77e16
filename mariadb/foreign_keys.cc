#include "mariadb/foreign_keys.h"

#include <sql_show.h>

#include <charconv>
#include <new>

#include "mariadb/error_map.h"

namespace strata::glue {
namespace {

constexpr const char* kMadeName = "_ibfk_";  // what applications know from other engines

std::pair<std::string, std::string> split(const std::string& key) {
  const size_t end = key.find('\0');
  return {key.substr(0, end), key.substr(end + 1)};
}

// The server's own functions say by their result when there is no memory (FG4).
void must(bool failed) {
  if (failed) throw std::bad_alloc();
}
template <typename T>
T* must(T* made) {
  must(made == nullptr);
  return made;
}

void append_name(THD* thd, const std::string& name, String* out) {
  must(append_identifier(thd, out, name.data(), name.size()));
}

void append_columns(THD* thd, const std::vector<std::string>& columns, String* out) {
  must(out->append('('));
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i > 0) must(out->append(STRING_WITH_LEN(", ")));
    append_name(thd, columns[i], out);
  }
  must(out->append(')'));
}

void append_action(const char* when, engine::ReferentialAction action, String* out) {
  const char* what = nullptr;
  switch (action) {
    case engine::ReferentialAction::kRestrict:
    case engine::ReferentialAction::kSetDefault:
      return;
    case engine::ReferentialAction::kNoAction:
      what = " NO ACTION";
      break;
    case engine::ReferentialAction::kCascade:
      what = " CASCADE";
      break;
    case engine::ReferentialAction::kSetNull:
      what = " SET NULL";
      break;
  }
  must(out->append(when, std::strlen(when)));
  must(out->append(what, std::strlen(what)));
}

engine::ReferentialAction action_of(enum_fk_option option) {
  switch (option) {
    case FK_OPTION_CASCADE:
      return engine::ReferentialAction::kCascade;
    case FK_OPTION_SET_NULL:
      return engine::ReferentialAction::kSetNull;
    case FK_OPTION_NO_ACTION:
      return engine::ReferentialAction::kNoAction;
    case FK_OPTION_SET_DEFAULT:  // as with other engines, no more than a word
    case FK_OPTION_RESTRICT:
    case FK_OPTION_UNDEF:
      break;
  }
  return engine::ReferentialAction::kRestrict;
}

enum_fk_option option_of(engine::ReferentialAction action) {
  switch (action) {
    case engine::ReferentialAction::kCascade:
      return FK_OPTION_CASCADE;
    case engine::ReferentialAction::kSetNull:
      return FK_OPTION_SET_NULL;
    case engine::ReferentialAction::kNoAction:
      return FK_OPTION_NO_ACTION;
    case engine::ReferentialAction::kSetDefault:
    case engine::ReferentialAction::kRestrict:
      break;
  }
  return FK_OPTION_RESTRICT;
}

bool changes_columns(const engine::ForeignKeySpec& key) {
  return key.on_update == engine::ReferentialAction::kCascade ||
         key.on_update == engine::ReferentialAction::kSetNull ||
         key.on_delete == engine::ReferentialAction::kSetNull;
}

Field* find_column(const TABLE* table, const LEX_CSTRING& name) {
  for (Field** field = table->field; *field != nullptr; ++field) {
    if (my_strcasecmp(system_charset_info, (*field)->field_name.str, name.str) == 0) return *field;
  }
  return nullptr;
}

// FG3
bool others_depend_on(const TABLE* table, const Field* column) {
  std::vector<my_bitmap_map> storage(
      bitmap_buffer_size(table->s->fields) / sizeof(my_bitmap_map) + 1, 0);
  MY_BITMAP used;
  my_bitmap_init(&used, storage.data(), table->s->fields);
  for (Field** field = table->field; *field != nullptr; ++field) {
    if ((*field)->vcol_info == nullptr || !is_kept(*field) || (*field)->vcol_info->expr == nullptr)
      continue;
    (*field)->vcol_info->expr->walk(&Item::register_field_in_bitmap, true, &used);
  }
  return bitmap_is_set(&used, column->field_index);
}

// The highest number of a name made by us; 0: there is none.
uint64_t highest_made(const std::string& table, const std::vector<engine::ForeignKeySpec>& keys) {
  const std::string made = table + kMadeName;
  uint64_t highest = 0;
  for (const engine::ForeignKeySpec& key : keys) {
    if (key.name.compare(0, made.size(), made) != 0) continue;
    uint64_t number = 0;
    const char* const end = key.name.data() + key.name.size();
    if (std::from_chars(key.name.data() + made.size(), end, number).ptr == end)
      highest = std::max(highest, number);
  }
  return highest;
}

std::string lower_case_if_needed(const LEX_CSTRING& name) {
  std::string out(name.str, name.length);
  if (lower_case_table_names != 0 && !out.empty())
    out.resize(my_casedn_str(system_charset_info, out.data()));
  return out;
}

struct LastKeyError {
  std::string text, table, index;
};
thread_local LastKeyError last_key_error;

LEX_CSTRING* make_name(THD* thd, const std::string& name) {
  return must(thd_make_lex_string(thd, nullptr, name.data(), name.size(), 1));
}

// set_nullable() takes these bytes and does not look whether it got them.
void set_nullable(THD* thd, bool of_parent, uint column, uint columns, FOREIGN_KEY_INFO* info) {
  const size_t bytes = ALIGN_SIZE((2 * columns + 7) / 8);
  const auto has_room = [bytes](const USED_MEM* block) {
    for (; block != nullptr; block = block->next)
      if (block->left >= bytes) return true;
    return false;
  };
  while (!has_room(thd->mem_root->free)) must(thd_alloc(thd, bytes));
  info->set_nullable(thd, of_parent, column, columns);
}

}  // namespace

std::string plain_name(Bytes encoded) {
  if (encoded.substr(0, tmp_file_prefix_length) == tmp_file_prefix)
    return std::string(encoded);  // of an ALTER's copy: the server encodes nothing in it
  char name[NAME_LEN + 1];
  const std::string copy(encoded);
  return {name, filename_to_tablename(copy.c_str(), name, sizeof name, true)};
}

void describe_parts(const TABLE* table, const IndexLayout& index, engine::IndexSpec* out) {
  out->parts.clear();
  out->most_key = index.most_key;
  out->whole = false;
  if (index.server_key == MAX_KEY || table->versioned()) return;
  for (const KeyPart& part : index.codec.parts()) {
    if (part.is_prefix || !part.column.field->stored_in_db()) return;
    engine::KeyPartSpec spec;
    const Field* const field = part.column.field;
    spec.column.assign(field->field_name.str, field->field_name.length);
    spec.nullable = part.column.null_bit != 0;
    spec.descending = part.descending;
    spec.counts_spaces = part.counts_spaces;
    const auto add = [&spec](const char* kind, uint64_t number) {
      spec.type += kind + std::to_string(number);
    };
    switch (part.form) {
      case KeyPart::Form::kInteger:
        spec.fixed_bytes = part.image_bytes;
        add(part.is_unsigned ? "unsigned " : "signed ", part.image_bytes);
        break;
      case KeyPart::Form::kBytes:
        spec.fixed_bytes = part.image_bytes;
        add("type ", field->real_type());
        add(" bytes ", part.image_bytes);
        add(" decimals ", field->decimals());
        break;
      case KeyPart::Form::kServer:
        spec.fixed_bytes = part.image_bytes;
        spec.type.assign(field->type_handler()->name().ptr(),
                         field->type_handler()->name().length());
        add(" ", part.image_bytes);
        break;
      case KeyPart::Form::kText: {
        const LEX_CSTRING& collation = part.column.charset->coll_name;
        spec.type.assign(collation.str, collation.length);
        part.image.describe(&spec.fixed_bytes, &spec.levels);
        if (spec.fixed_bytes != 0) add(" ", spec.fixed_bytes);
        break;
      }
    }
    out->parts.push_back(std::move(spec));
  }
  out->whole = true;
}

bool read_foreign_keys(THD* thd, const TableName& name, const TABLE* form,
                       const HA_CREATE_INFO* info, const engine::Table* original,
                       engine::TableSpec* spec) {
  if (info->alter_info == nullptr) return true;
  const engine::TableReferences* const before =
      original == nullptr ? nullptr : original->references();
  const std::string table = plain_name(original == nullptr ? name.table : original->spec().name);
  uint64_t number = before == nullptr ? 0 : highest_made(table, before->foreign_keys);
  List_iterator_fast<Key> keys(info->alter_info->key_list);
  while (const Key* const any = keys++) {
    if (any->type != Key::FOREIGN_KEY) continue;
    if (any->old && original == nullptr) continue;  // LIKE takes none over
    const auto* const asked = static_cast<const Foreign_key*>(any);
    engine::ForeignKeySpec key;
    key.kept = asked->old;
    key.name.assign(asked->constraint_name.str == nullptr ? "" : asked->constraint_name.str,
                    asked->constraint_name.length);
    if (key.name.empty()) key.name = table + kMadeName + std::to_string(++number);
    key.on_delete = action_of(asked->delete_opt);
    key.on_update = action_of(asked->update_opt);
    const std::string parent_schema =
        asked->ref_db.str == nullptr
            ? name.schema
            : from_plain_names(lower_case_if_needed(asked->ref_db).c_str(), "x").schema;
    const TableName parent = from_plain_names("x", lower_case_if_needed(asked->ref_table).c_str());
    key.parent = table_key(parent_schema, parent.table);
    List<Key_part_spec>& columns = const_cast<Foreign_key*>(asked)->columns;
    List_iterator_fast<Key_part_spec> own(columns);
    while (const Key_part_spec* const part = own++) {
      Field* const field = find_column(form, part->field_name);
      const engine::ForeignKeyError error{name.schema, name.table, key, false, {}};
      const std::string column(part->field_name.str, part->field_name.length);
      if (field == nullptr) {
        warn_of_refused_key(thd, original == nullptr ? "Create " : "Alter ", name, error,
                            error_foreign_key_refused("Column " + column + " was not found."));
        return false;
      }
      if (changes_columns(key) && others_depend_on(form, field)) {
        warn_of_refused_key(
            thd, original == nullptr ? "Create " : "Alter ", name, error,
            error_foreign_key_refused("Column '" + column +
                                      "' is what a kept generated column is made of."));
        return false;
      }
      key.columns.emplace_back(field->field_name.str, field->field_name.length);
    }
    List<Key_part_spec>& referred = const_cast<Foreign_key*>(asked)->ref_columns;
    List_iterator_fast<Key_part_spec> theirs(referred);
    while (const Key_part_spec* const part = theirs++)
      key.parent_columns.emplace_back(part->field_name.str, part->field_name.length);
    spec->foreign_keys.push_back(std::move(key));
  }
  std::sort(spec->foreign_keys.begin(), spec->foreign_keys.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return true;
}

std::string foreign_key_text(THD* thd, const std::string& schema,
                             const engine::ForeignKeySpec& key) {
  String out;
  out.set_charset(system_charset_info);
  must(out.append(STRING_WITH_LEN("CONSTRAINT ")));
  append_name(thd, key.name, &out);
  must(out.append(STRING_WITH_LEN(" FOREIGN KEY ")));
  append_columns(thd, key.columns, &out);
  must(out.append(STRING_WITH_LEN(" REFERENCES ")));
  const auto [parent_schema, parent_table] = split(key.parent);
  if (parent_schema != schema) {
    append_name(thd, plain_name(parent_schema), &out);
    must(out.append('.'));
  }
  append_name(thd, plain_name(parent_table), &out);
  must(out.append(' '));
  append_columns(thd, key.parent_columns, &out);
  append_action(" ON DELETE", key.on_delete, &out);
  append_action(" ON UPDATE", key.on_update, &out);
  return {out.ptr(), out.length()};
}

void remember_foreign_key_error(THD* thd, const engine::ForeignKeyError& error) {
  String name;
  name.set_charset(system_charset_info);
  append_name(thd, plain_name(error.schema), &name);
  must(name.append('.'));
  append_name(thd, plain_name(error.table), &name);
  last_key_error.text.assign(name.ptr(), name.length());
  last_key_error.text += ", " + foreign_key_text(thd, error.schema, error.key);
  last_key_error.table = plain_name(error.table);
  last_key_error.index = error.index;
}

void forget_foreign_key_error() noexcept { last_key_error = {}; }

bool last_foreign_key_text(int error, String* text) {
  if (error != HA_ERR_ROW_IS_REFERENCED && error != HA_ERR_NO_REFERENCED_ROW &&
      error != HA_ERR_FK_DEPTH_EXCEEDED)
    return false;
  text->copy(last_key_error.text.data(), last_key_error.text.size(), system_charset_info);
  return true;
}

bool last_cascaded_duplicate(char* table, size_t table_bytes, char* index, size_t index_bytes) {
  if (last_key_error.index.empty()) return false;
  strmake(table, last_key_error.table.c_str(), table_bytes - 1);
  strmake(index, last_key_error.index.c_str(), index_bytes - 1);
  return true;
}

void warn_of_refused_key(THD* thd, const char* operation, const TableName& name,
                         const engine::ForeignKeyError& error, const Status& why) {
  // By its name, unless that was made by us.
  std::string shown = "`" + error.key.name + "`";
  if (error.key.name.empty() || highest_made(plain_name(name.table), {error.key}) != 0 ||
      highest_made(plain_name(error.table), {error.key}) != 0) {
    shown = "(";
    for (const std::string& column : error.key.columns)
      shown += (shown.size() > 1 ? ", " : "") + column;
    shown += ")";
  }
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, HA_ERR_CANNOT_ADD_FOREIGN,
                      "%s table `%s`.`%s` with foreign key %s constraint failed. %.*s", operation,
                      plain_name(name.schema).c_str(), plain_name(name.table).c_str(),
                      shown.c_str(), static_cast<int>(why.message().size()), why.message().data());
}

FOREIGN_KEY_INFO* foreign_key_info(THD* thd, const engine::TableSpec& child,
                                   const engine::ForeignKeySpec& key, engine::Session* session) {
  FOREIGN_KEY_INFO info;
  const auto [parent_schema, parent_table] = split(key.parent);
  info.foreign_id = make_name(thd, key.name);
  info.foreign_db = make_name(thd, plain_name(child.schema));
  info.foreign_table = make_name(thd, plain_name(child.name));
  info.referenced_db = make_name(thd, plain_name(parent_schema));
  info.referenced_table = make_name(thd, plain_name(parent_table));
  info.update_method = option_of(key.on_update);
  info.delete_method = option_of(key.on_delete);
  info.referenced_key_name = nullptr;
  const auto same = [](const std::string& a, const std::string& b) {
    return my_strcasecmp(system_charset_info, a.c_str(), b.c_str()) == 0;
  };
  const auto nullable = [&same](const engine::TableSpec& table, const std::string& column) {
    for (const engine::IndexSpec& index : table.indexes)
      for (const engine::KeyPartSpec& part : index.parts)
        if (same(part.column, column)) return part.nullable;
    return false;
  };
  engine::TableSpec parent;
  const StatusOr<engine::TableRef> opened = session->open_table(parent_schema, parent_table);
  if (opened.ok()) {
    parent = (*opened)->spec();
    const bool has_parts =
        std::any_of(parent.indexes.begin(), parent.indexes.end(),
                    [](const engine::IndexSpec& index) { return !index.parts.empty(); });
    // The dictionary has none of tables of the format before; without them no index is named.
    if (!has_parts && !table_codecs()->describe(&parent).ok()) parent.indexes.clear();
  }
  const auto count = static_cast<uint>(key.columns.size());
  for (uint i = 0; i < count; ++i) {
    must(info.foreign_fields.push_back(make_name(thd, key.columns[i]), thd->mem_root));
    must(info.referenced_fields.push_back(make_name(thd, key.parent_columns[i]), thd->mem_root));
    if (nullable(child, key.columns[i])) set_nullable(thd, false, i, count, &info);
    if (nullable(parent, key.parent_columns[i])) set_nullable(thd, true, i, count, &info);
  }
  for (const engine::IndexSpec& index : parent.indexes) {
    bool begins = index.parts.size() >= count;
    for (uint i = 0; i < count && begins; ++i)
      begins = same(index.parts[i].column, key.parent_columns[i]);
    if (!begins) continue;
    info.referenced_key_name = make_name(thd, index.name);
    break;
  }
  return must(static_cast<FOREIGN_KEY_INFO*>(thd_memdup(thd, &info, sizeof info)));
}

}  // namespace strata::glue
