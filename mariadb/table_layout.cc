#include "mariadb/table_layout.h"

namespace strata::glue {

void IndexLayout::append_covering(const uchar* record, Buffer* out) const {
  for (const Column& column : covering) {
    if (column.is_null(record)) continue;
    const Bytes value = variable_value(column, record);
    if (column.kind != ColumnKind::kFixed) append_varint(out, value.size());
    out->append(value.data(), value.size());
  }
}

bool IndexLayout::decode_covering(Bytes bytes, uchar* record) const {
  const uchar* p = reinterpret_cast<const uchar*>(bytes.data());
  const uchar* const end = p + bytes.size();
  for (const Column& column : covering) {
    if (column.is_null(record)) continue;  // the key has set the NULL flag
    uint64_t length = column.bytes;
    if (column.kind != ColumnKind::kFixed && !read_varint(&p, end, &length)) return false;
    if (length > static_cast<size_t>(end - p)) return false;
    if (!store_variable_value(column, Bytes(reinterpret_cast<const char*>(p), length), record))
      return false;
    p += length;
  }
  return true;
}

void TableLayout::open(const TABLE* table) {
  const uint primary = table->s->primary_key;
  indexes_.clear();
  virtual_columns_.clear();
  for (Field** field = table->field; *field != nullptr; ++field) {
    if (is_kept(*field) && !(*field)->stored_in_db())
      virtual_columns_.push_back((*field)->field_index);
  }
  indexes_.emplace_back();
  indexes_[0].unique = true;
  kernel_index_.assign(table->s->keys, 0);
  if (primary != MAX_KEY) {
    indexes_[0].server_key = primary;
    indexes_[0].codec = KeyCodec(table, table->key_info[primary]);
  }
  for (uint i = 0; i < table->s->keys; ++i) {
    if (i == primary) continue;
    const KEY& key = table->key_info[i];
    kernel_index_[i] = static_cast<uint32_t>(indexes_.size());
    IndexLayout layout;
    layout.server_key = i;
    // The server checks long uniques itself, through a hash that may collide.
    layout.unique = (key.flags & HA_NOSAME) != 0 && key.algorithm != HA_KEY_ALG_LONG_HASH;
    layout.codec = KeyCodec(table, key);
    indexes_.push_back(std::move(layout));
  }
  for (IndexLayout& layout : indexes_) {
    for (const KeyPart& part : layout.codec.parts()) {
      layout.columns.push_back(part.column.field_index);
      if (part.in_covering) layout.covering.push_back(part.column);
      if (!part.column.field->stored_in_db()) layout.has_virtual = true;
    }
    if (&layout == indexes_.data()) continue;
    for (const KeyPart& part : indexes_[0].codec.parts()) {
      if (!part.in_covering) continue;
      const bool there =
          std::any_of(layout.covering.begin(), layout.covering.end(),
                      [&](const Column& c) { return c.field_index == part.column.field_index; });
      if (there) continue;
      layout.covering.push_back(part.column);
      layout.columns.push_back(part.column.field_index);
    }
  }
}

}  // namespace strata::glue
