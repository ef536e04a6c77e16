// Rows of tables that a statement does not name (FG3).
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/foreign_keys.h"
#include "mariadb/row_builder.h"

namespace strata::glue {
namespace {

// A TABLE that the server does not know of.
class OwnTable {
 public:
  explicit OwnTable(const engine::TableSpec& spec)
      : schema_(spec.schema), name_(spec.name), path_("./" + spec.schema + "/" + spec.name) {}
  ~OwnTable() {
    if (opened_) closefrm(&table_);
    if (shared_) free_table_share(&share_);
  }
  OwnTable(const OwnTable&) = delete;
  OwnTable& operator=(const OwnTable&) = delete;

  Status open(const engine::TableSpec& spec) {
    THD* const thd = current_thd;
    if (thd == nullptr) return error_unsupported("no definition is read without a connection");
    init_tmp_table_share(thd, &share_, schema_.c_str(), 0, name_.c_str(), path_.c_str());
    shared_ = true;
    const std::string& image = spec.definition;
    if (share_.init_from_binary_frm_image(thd, false, reinterpret_cast<const uchar*>(image.data()),
                                          image.size()) != 0)
      return error_corruption("the definition of " + path_ + " does not parse");
    const LEX_CSTRING alias{name_.c_str(), name_.size()};
    if (open_table_from_share(thd, &share_, &alias, 0, READ_ALL, 0, &table_, false) != OPEN_FRM_OK)
      return error_corruption("the definition of " + path_ + " cannot be opened");
    opened_ = true;
    table_.use_all_columns();
    return ok_status();
  }
  TABLE* get() noexcept { return &table_; }

 private:
  std::string schema_, name_, path_;
  TABLE_SHARE share_{};
  TABLE table_{};
  bool shared_ = false;
  bool opened_ = false;
};

class ForeignRows final : public engine::TableCodec {
 public:
  explicit ForeignRows(const engine::TableSpec& spec) : own_(spec) {}

  Status open(const engine::TableSpec& spec) {
    STRATA_RETURN_IF_ERROR(own_.open(spec));
    rows_.open(own_.get(), key_form(spec));
    return ok_status();
  }

  Status remove(engine::TableCursor* at, Row* out) override {
    STRATA_RETURN_IF_ERROR(read(at));
    RowDelete row;
    STRATA_RETURN_IF_ERROR(rows_.build_delete(at, record(), &row));
    out->old_key = row.key;
    out->old_entries = row.entries;
    out->old_entry_count = row.entry_count;
    return ok_status();
  }

  Status set_null(engine::TableCursor* at, const engine::ForeignKeySpec& key, Row* out) override {
    STRATA_RETURN_IF_ERROR(begin_update(at));
    for (const std::string& name : key.columns) {
      Field* const field = column(name);
      if (field == nullptr || !field->real_maybe_null()) return error_out_of_range();
      set_null(field);
    }
    return end_update(at, out);
  }

  Status copy_from(engine::TableCodec* parent, engine::TableCursor* parent_at,
                   engine::TableCursor* at, const engine::ForeignKeySpec& key, Row* out) override {
    auto* const other = static_cast<ForeignRows*>(parent);
    STRATA_RETURN_IF_ERROR(other->read(parent_at));
    STRATA_RETURN_IF_ERROR(begin_update(at));
    for (size_t i = 0; i < key.columns.size(); ++i) {
      Field* const to = column(key.columns[i]);
      Field* const from = other->column(key.parent_columns[i]);
      if (to == nullptr || from == nullptr) return error_internal("a column has gone");
      if (!copy_value(from, to)) return error_out_of_range();
    }
    return end_update(at, out);
  }

 private:
  uchar* record() { return own_.get()->record[0]; }

  Status read(engine::TableCursor* at) { return rows_.decode(at, nullptr, record()); }

  Status begin_update(engine::TableCursor* at) {
    TABLE* const table = own_.get();
    STRATA_RETURN_IF_ERROR(read(at));
    old_.assign(record(), record() + table->s->reclength);
    bitmap_clear_all(&table->def_write_set);
    table->write_set = &table->def_write_set;
    return ok_status();
  }

  Status end_update(engine::TableCursor* at, Row* out) {
    RowUpdate update;
    STRATA_RETURN_IF_ERROR(rows_.build_update(at, old_.data(), record(), &update));
    out->image = update.image;
    out->image.auto_increment_used = 0;
    out->old_key = update.old_key;
    out->old_entries = update.old_entries;
    out->old_entry_count = update.old_entry_count;
    out->unchanged = update.unchanged;
    return ok_status();
  }

  Field* column(const std::string& name) {
    TABLE* const table = own_.get();
    for (Field** field = table->field; *field != nullptr; ++field) {
      const LEX_CSTRING& own = (*field)->field_name;
      if (own.length != name.size() ||
          my_strcasecmp(system_charset_info, own.str, name.c_str()) != 0)
        continue;
      bitmap_set_bit(&table->def_write_set, (*field)->field_index);
      return *field;
    }
    return nullptr;
  }

  void set_null(Field* field) {
    const Column column = describe_column(own_.get(), field);
    column.set_null(record(), true);
    store_null_value(column, record());
  }

  bool copy_value(Field* from, Field* to) {
    if (from->is_null()) {
      if (!to->real_maybe_null()) return false;
      set_null(to);
      return true;
    }
    to->set_notnull();
    const Column source = describe_column(from->table, from);
    const Column target = describe_column(own_.get(), to);
    const Bytes value = variable_value(source, from->table->record[0]);
    if (target.kind == ColumnKind::kFixed)
      return source.kind == ColumnKind::kFixed && store_variable_value(target, value, record());
    if (to->charset()->numchars(value.data(), value.data() + value.size()) > to->char_length())
      return false;
    return store_variable_value(target, value, record());
  }

  OwnTable own_;
  RowBuilder rows_;
  std::vector<uchar> old_;
};

class Codecs final : public engine::TableCodecs {
 public:
  void about_to_change(const engine::TableSpec& spec) override {
    THD* const thd = current_thd;
    Connection* const connection = thd == nullptr ? nullptr : existing_connection(thd);
    if (connection != nullptr) connection->writes.add(cached_table(spec.schema + "/" + spec.name));
  }

  StatusOr<std::unique_ptr<engine::TableCodec>> open(const engine::TableSpec& spec) override {
    auto made = std::make_unique<ForeignRows>(spec);
    STRATA_RETURN_IF_ERROR(made->open(spec));
    return std::unique_ptr<engine::TableCodec>(std::move(made));
  }

  Status describe(engine::TableSpec* spec) override {
    OwnTable table(*spec);
    STRATA_RETURN_IF_ERROR(table.open(*spec));
    TableLayout layout;
    layout.open(table.get(), key_form(*spec));
    if (layout.index_count() != spec->indexes.size()) return ok_status();
    for (size_t i = 0; i < spec->indexes.size(); ++i)
      describe_parts(table.get(), layout.index(i), &spec->indexes[i]);
    return ok_status();
  }

  std::string shown_name(Bytes name) override { return plain_name(name); }
};

Codecs codecs;

}  // namespace

engine::TableCodecs* table_codecs() { return &codecs; }

}  // namespace strata::glue
