// CREATE TABLE and TRUNCATE.
#include "mariadb/databases.h"
#include "mariadb/ddl.h"
#include "mariadb/definition_files.h"
#include "mariadb/error_map.h"
#include "mariadb/foreign_keys.h"
#include "mariadb/ha_strata.h"
#include "mariadb/object_files.h"
#include "mariadb/statement_names.h"
#include "mariadb/temporary.h"

namespace strata::glue {
namespace {

// TableSpec::options: empty, or the first AUTO_INCREMENT value, in decimal, or what follows.
constexpr std::string_view kSequence = "sequence";
std::string encode_options(ulonglong auto_increment) {
  return auto_increment > 1 ? std::to_string(auto_increment) : std::string();
}

uint64_t first_auto_increment(const engine::TableSpec& spec) {
  uint64_t value = 0;
  for (const char c : spec.options) {
    if (c < '0' || c > '9') return 0;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

bool defines_foreign_key(const HA_CREATE_INFO* info) {
  if (info->alter_info == nullptr) return false;
  const bool alters = (info->options & HA_CREATE_TMP_ALTER) != 0;
  List_iterator_fast<Key> keys(info->alter_info->key_list);
  while (const Key* const key = keys++) {
    if (key->type == Key::FOREIGN_KEY && (alters || !key->old)) return true;  // not LIKE's
  }
  return false;
}

// An index that begins with the columns and that an ALTER leaves out; null: there is none.
const char* lost_index(const TABLE* before, const TABLE* after,
                       const std::vector<std::string>& columns) {
  for (uint i = 0; i < before->s->keys; ++i) {
    const KEY& key = before->key_info[i];
    const auto is_it = [&](const KEY& other) {
      return lex_string_cmp(system_charset_info, &other.name, &key.name) == 0;
    };
    if (std::any_of(after->key_info, after->key_info + after->s->keys, is_it)) continue;
    bool begins = columns.size() <= key.user_defined_key_parts;
    for (size_t c = 0; c < columns.size() && begins; ++c) {
      const Field* const field = before->field[key.key_part[c].fieldnr - 1];
      begins = my_strcasecmp(system_charset_info, field->field_name.str, columns[c].c_str()) == 0;
    }
    if (begins) return key.name.str;
  }
  return nullptr;
}

// Raises what the server has no text for; gives the handler error.
int refuse_foreign_key(THD* thd, const TableName& name, const TABLE* original, const TABLE* form,
                       const engine::ForeignKeyError& error, const Status& why) {
  if (error.name_taken) return HA_ERR_FOUND_DUPP_KEY;
  if (original != nullptr) {
    const char* index = lost_index(original, form, error.key.columns);
    if (index == nullptr) index = lost_index(original, form, error.key.parent_columns);
    if (index != nullptr) {
      my_error(ER_DROP_INDEX_FK, MYF(0), index);
      return HA_ERR_GENERIC;
    }
  }
  warn_of_refused_key(thd, original != nullptr ? "Alter " : "Create ", name, error, why);
  return HA_ERR_CANNOT_ADD_FOREIGN;
}

// In words of InnoDB's.
int refuse_temporary_child(THD* thd, const TABLE* form) {
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, HA_ERR_CANNOT_ADD_FOREIGN,
                      "%s table `%s`.`%s` with foreign key constraint failed. Temporary tables "
                      "can't have foreign key constraints.",
                      thd_sql_command(thd) == SQLCOM_ALTER_TABLE ? "Alter " : "Create ",
                      form->s->db.str, form->s->table_name.str);
  return HA_ERR_CANNOT_ADD_FOREIGN;
}

// True when the definition asks for something the engine does not have; the error is raised.
bool is_refused(THD* thd, const TABLE* form, const HA_CREATE_INFO* info) {
  const char* option = nullptr;
  if (info->data_file_name != nullptr) option = "DATA DIRECTORY";
  if (info->index_file_name != nullptr) option = "INDEX DIRECTORY";
  // Unsupported clauses would otherwise be dropped without a word.
  if (form->versioned() && defines_foreign_key(info)) option = "FOREIGN KEY ... SYSTEM VERSIONING";
  if (form->part_info != nullptr) option = "PARTITION BY";
  if (option != nullptr) {
    my_error(ER_ILLEGAL_HA_CREATE_OPTION, MYF(0), "STRATA", option);
    return true;
  }
  return !keys_are_supported(form);
}

// The collations of an index, for a later version that must know which ones it was built with.
std::string describe_collations(const TABLE* form, const KEY& key) {
  std::string out;
  for (uint i = 0; i < key.user_defined_key_parts; ++i) {
    if (i > 0) out += ',';
    const LEX_CSTRING& name = form->field[key.key_part[i].fieldnr - 1]->charset()->coll_name;
    out.append(name.str, name.length);
  }
  return out;
}

engine::TableSpec make_spec(const TableName& name, TABLE* form, const HA_CREATE_INFO& info) {
  engine::TableSpec spec;
  spec.schema = name.schema;
  spec.name = name.table;
  spec.internal_name = name.internal();
  const LEX_CUSTRING& image = *form->s->frm_image;
  spec.definition.assign(reinterpret_cast<const char*>(image.str), image.length);
  const LEX_CUSTRING& version = form->s->tabledef_version;
  spec.version.assign(reinterpret_cast<const char*>(version.str), version.length);
  spec.options = info.sequence ? std::string(kSequence) : encode_options(info.auto_increment_value);
  TableLayout layout;
  layout.open(form, key_form(spec));
  for (size_t i = 0; i < layout.index_count(); ++i)
    spec.indexes.push_back(describe_index(form, layout.index(i)));
  return spec;
}

// The table an ALTER is copying from: the one of that name which this connection holds against
// writers.
const TABLE* table_being_altered(THD* thd, const HA_CREATE_INFO* info) {
  for (const TABLE* t = thd->open_tables; t != nullptr; t = t->next) {
    if (t->file == nullptr || t->file->ht != strata_hton || t->mdl_ticket == nullptr) continue;
    if (t->mdl_ticket->get_type() < MDL_SHARED_NO_WRITE) continue;
    if (info->alias.str == nullptr ||
        lex_string_cmp(table_alias_charset, &t->s->table_name, &info->alias) == 0)
      return t;
  }
  return nullptr;
}

// The statement puts something into the table once that is there, and is done only then (D8).
bool fills_table(THD* thd, const TableName& name, const HA_CREATE_INFO& info) {
  if (!kernel->shares_tables() || name.internal()) return false;
  if (info.sequence) return true;
  const SELECT_LEX* const select = thd->lex->first_select_lex();
  return thd_sql_command(thd) == SQLCOM_CREATE_TABLE &&
         (select->item_list.elements != 0 || select->tvc != nullptr);
}

bool schema_exists(const char* path) {
  std::string folder(path);
  const size_t slash = folder.rfind('/');
  if (slash == std::string::npos) return true;
  folder.resize(slash);
  return my_access(folder.c_str(), F_OK) == 0;
}

}  // namespace

bool is_sequence(const engine::TableSpec& spec) { return spec.options == kSequence; }

KeyForm key_form(const engine::TableSpec& spec) {
  return spec.format == kSpecFormatOfUnboundedKeys ? KeyForm::kFirst : KeyForm::kBounded;
}

engine::IndexSpec describe_index(const TABLE* form, const IndexLayout& index) {
  engine::IndexSpec out;
  out.unique = index.unique;
  out.name = "ROW_ID";
  if (index.server_key != MAX_KEY) {
    const KEY& key = form->key_info[index.server_key];
    out.name.assign(key.name.str, key.name.length);
    out.meta = describe_collations(form, key);
  }
  describe_parts(form, index, &out);
  return out;
}

int ha_strata::create(const char* name, TABLE* form, HA_CREATE_INFO* info) {
  return guarded([&]() -> int {
    THD* const thd = ha_thd();
    const TableName path = parse_path(name);
    if (!fits_a_file_name(path)) return ENAMETOOLONG;
    if (is_refused(thd, form, info)) return HA_ERR_GENERIC;
    if (form->s->frm_image == nullptr) return HA_ERR_UNSUPPORTED;
    if (is_temporary_path(name)) {
      if (defines_foreign_key(info)) return refuse_temporary_child(thd, form);
      return create_temporary(path, form, *info);
    }
    if (!kernel->shares_tables() && !schema_exists(name)) {
      my_error(ER_BAD_DB_ERROR, MYF(0), path.schema.c_str());
      return HA_ERR_GENERIC;
    }
    if (const Status locked = lock_name_of_create(thd, path); !locked.ok()) {
      tell_client(locked);
      return handler_error(locked, thd);
    }
    engine::TableSpec spec = make_spec(path, form, *info);
    AlterJournal journal;
    const TABLE* original = nullptr;
    if ((info->options & HA_CREATE_TMP_ALTER) != 0) {
      original = table_being_altered(thd, info);
      if (original != nullptr) {
        journal.original = parse_path(original->s->normalized_path.str);
        const LEX_CUSTRING& version = original->s->tabledef_version;
        journal.original_version.assign(reinterpret_cast<const char*>(version.str), version.length);
      }
    }
    const bool alters = !journal.original.table.empty();
    engine::TableRef replaced;
    if (alters) {
      StatusOr<engine::TableRef> found = find_table(journal.original);
      if (!found.ok()) return handler_error(found.status(), thd);
      replaced = *std::move(found);
    }
    if (!read_foreign_keys(thd, path, form, info, replaced.get(), &spec))
      return HA_ERR_CANNOT_ADD_FOREIGN;
    const std::string replaces =
        alters ? table_key(journal.original.schema, journal.original.table) : std::string();
    engine::ForeignKeyError refused;
    engine::TableRef table;
    bool no_database = false;
    const bool is_filled = fills_table(thd, path, *info);
    const Status status = run_ddl(Killable::kYes, [&](engine::Session* session) -> Status {
      if (kernel->shares_tables()) {
        const Status used = use_database(session, path.schema);  // DB2
        no_database = is_not_found(used);
        STRATA_RETURN_IF_ERROR(used);
      }
      const Status created = session->create_table(spec, &table, replaces);
      if (is_foreign_key_refused(created)) refused = session->foreign_key_error();
      STRATA_RETURN_IF_ERROR(created);
      // Files of triggers that a table of that name had, and another server has dropped.
      if (kernel->shares_tables() && !path.internal()) STRATA_RETURN_IF_ERROR(fetch_triggers(path));
      if (is_filled) STRATA_RETURN_IF_ERROR(session->begin_making(table));  // D8
      if (journal.original.table.empty()) return ok_status();
      return session->journal_put(journal_key(path), encode_journal(journal));
    });
    if (status.ok() && is_filled) begins_to_fill(connection_of(thd), path);
    if (no_database) {
      my_error(ER_BAD_DB_ERROR, MYF(0), path.schema.c_str());
      return HA_ERR_GENERIC;
    }
    if (is_duplicate_key(status)) return table_exists(path);
    if (is_foreign_key_refused(status))
      return refuse_foreign_key(thd, alters ? journal.original : path, original, form, refused,
                                status);
    if (is_lock_wait_timeout(status)) my_error(ER_LOCK_WAIT_TIMEOUT, MYF(0));
    // Of an ALTER's copy, too: the server renames its file with it.
    if (status.ok()) (void)write_definition_file(spec);  // DF2
    // Else "can't create" says these, with a number.
    if (is_interrupted(status)) thd->send_kill_message();
    if (server_has_no_text(status) && !thd->is_error()) tell_client(status);
    return handler_error(status, thd);
  });
}

// TT2: the copy of an ALTER has such a path, too, and takes the place of the table in the server's
// memory only.
int ha_strata::create_temporary(const TableName& path, TABLE* form, const HA_CREATE_INFO& info) {
  const StatusOr<engine::Kernel*> home = temporary_kernel();
  if (!home.ok()) {
    tell_client(home.status());
    return handler_error(home.status(), ha_thd());
  }
  engine::TableSpec spec = make_spec(path, form, info);
  spec.definition.clear();  // nobody asks for it
  engine::TableRef table;
  return handler_error(
      run_ddl_in(*home, Killable::kYes,
                 [&](engine::Session* session) { return session->create_table(spec, &table); }),
      ha_thd());
}

// CREATE ... AUTO_INCREMENT = n: the counter on disk only moves with rows.
void ha_strata::apply_auto_increment_start() {
  const uint64_t first = first_auto_increment(table_->spec());
  if (first > 1) table_->raise_auto_increment(first - 1);
}

int ha_strata::truncate() {
  return guarded([&]() -> int {
    const engine::TableSpec old = table_->spec();
    engine::TableRef fresh;
    const Status status =
        run_ddl_in(home_, Killable::kYes, [&](engine::Session* session) -> Status {
          // The first AUTO_INCREMENT value of the definition is forgotten, as InnoDB does.
          return session->truncate_table(old.schema, old.name, &fresh, true);
        });
    if (is_not_found(status)) return HA_ERR_TABLE_DEF_CHANGED;  // another server has renamed it
    if (!status.ok()) return fail(status);
    scan_.drop_cursors();
    table_ = std::move(fresh);
    share_->set_statistics({}, 0);
    share_->forget_shared();
    return 0;
  });
}

void ha_strata::update_create_info(HA_CREATE_INFO* info) {
  if ((info->used_fields & HA_CREATE_USED_AUTO) != 0 || table->found_next_number_field == nullptr)
    return;
  (void)this->info(HA_STATUS_AUTO);
  info->auto_increment_value = stats.auto_increment_value;
}

}  // namespace strata::glue
