#include "mariadb/column.h"

namespace strata::glue {

Column describe_column(const TABLE* table, Field* field) {
  Column c;
  c.field = field;
  c.field_index = field->field_index;
  c.charset = field->charset();
  c.offset = static_cast<uint32_t>(field->ptr - table->record[0]);
  c.bytes = field->pack_length_in_rec();
  if (field->null_ptr != nullptr && field->null_bit != 0) {
    c.null_offset = static_cast<uint32_t>(field->null_ptr - table->record[0]);
    c.null_bit = field->null_bit;
  }
  if ((field->flags & BLOB_FLAG) != 0) {
    c.kind = ColumnKind::kBlob;
    c.length_bytes = static_cast<uint8_t>(static_cast<Field_blob*>(field)->pack_length_no_ptr());
  } else if (field->real_type() == MYSQL_TYPE_VARCHAR) {
    c.kind = ColumnKind::kVarchar;
    c.length_bytes = static_cast<uint8_t>(static_cast<Field_varstring*>(field)->length_bytes);
  } else if (field->type_handler() == &type_handler_string && c.charset != &my_charset_bin) {
    c.kind = ColumnKind::kChar;
    c.spaces_fill = c.charset->mbminlen == 1;
  }
  return c;
}

void store_null_value(const Column& column, uchar* record) {
  const uchar* const defaults = column.field->table->s->default_values;
  std::memcpy(record + column.offset, defaults + column.offset, column.bytes);
}

bool store_variable_value(const Column& column, Bytes value, uchar* record) {
  uchar* const at = record + column.offset;
  switch (column.kind) {
    case ColumnKind::kVarchar:
      if (value.size() + column.length_bytes > column.bytes) return false;
      if (column.length_bytes == 1) {
        *at = static_cast<uchar>(value.size());
      } else {
        store_u16(at, static_cast<uint16_t>(value.size()));
      }
      if (!value.empty()) std::memcpy(at + column.length_bytes, value.data(), value.size());
      return true;
    case ColumnKind::kBlob: {
      const auto length = static_cast<uint32_t>(value.size());
      const char* const data = value.data();
      std::memcpy(at, &length, column.length_bytes);
      std::memcpy(at + column.length_bytes, &data, sizeof data);
      return true;
    }
    case ColumnKind::kChar:
      if (value.size() > column.bytes) return false;
      if (!value.empty()) std::memcpy(at, value.data(), value.size());
      if (column.spaces_fill) {
        std::memset(at + value.size(), ' ', column.bytes - value.size());
      } else {
        column.charset->fill(reinterpret_cast<char*>(at) + value.size(),
                             column.bytes - value.size(), ' ');
      }
      return true;
    case ColumnKind::kFixed:
      break;
  }
  if (value.size() != column.bytes) return false;
  std::memcpy(at, value.data(), value.size());
  return true;
}

}  // namespace strata::glue
