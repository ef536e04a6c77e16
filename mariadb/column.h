// How a column lies in the server's record buffer. All offsets are from the start of the record, so
// one description serves record[0], record[1] and any other buffer of the table's layout.
#pragma once

#include "mariadb/buffer.h"
#include "mariadb/server.h"

namespace strata::glue {

enum class ColumnKind : uint8_t {
  kFixed,    // `bytes` bytes
  kChar,     // `bytes` bytes, filled up with spaces
  kVarchar,  // length of `length_bytes`, then the text
  kBlob,     // length of `length_bytes`, then a pointer
};

struct Column {
  Field* field = nullptr;
  CHARSET_INFO* charset = nullptr;
  uint32_t offset = 0;
  uint32_t bytes = 0;
  uint32_t null_offset = 0;
  uint16_t field_index = 0;
  uchar null_bit = 0;  // 0: NOT NULL
  uint8_t length_bytes = 0;
  ColumnKind kind = ColumnKind::kFixed;
  bool spaces_fill = false;  // kChar of a character set whose space is the byte 0x20

  [[nodiscard]] bool is_null(const uchar* record) const noexcept {
    return null_bit != 0 && (record[null_offset] & null_bit) != 0;
  }
  void set_null(uchar* record, bool null) const noexcept {
    if (null_bit == 0) return;
    if (null) {
      record[null_offset] |= null_bit;
    } else {
      record[null_offset] &= static_cast<uchar>(~null_bit);
    }
  }
};

Column describe_column(const TABLE* table, Field* field);

// Whether the engine keeps the column: everything but virtual columns that no index needs.
inline bool is_kept(const Field* field) {
  return field->stored_in_db() || (field->flags & PART_KEY_FLAG) != 0;
}

inline size_t length_without_spaces(const uchar* text, size_t length) noexcept {
  constexpr uint64_t kSpaces = 0x2020202020202020;
  for (uint64_t word = kSpaces; length >= sizeof word; length -= sizeof word) {
    std::memcpy(&word, text + length - sizeof word, sizeof word);
    if (word != kSpaces) break;
  }
  while (length > 0 && text[length - 1] == ' ') --length;
  return length;
}

// A variable-length value of a record. The view lives as long as the record (kBlob: as its value).
inline Bytes variable_value(const Column& column, const uchar* record) {
  const uchar* const at = record + column.offset;
  switch (column.kind) {
    case ColumnKind::kVarchar: {
      const size_t length = column.length_bytes == 1 ? *at : load_u16(at);
      return {reinterpret_cast<const char*>(at) + column.length_bytes, length};
    }
    case ColumnKind::kBlob: {
      uint32_t length = 0;
      std::memcpy(&length, at, column.length_bytes);
      const char* data = nullptr;
      std::memcpy(&data, at + column.length_bytes, sizeof data);
      return {data, data == nullptr ? 0 : length};
    }
    case ColumnKind::kChar: {
      const size_t length =
          column.spaces_fill
              ? length_without_spaces(at, column.bytes)
              : column.charset->lengthsp(reinterpret_cast<const char*>(at), column.bytes);
      return {reinterpret_cast<const char*>(at), length};
    }
    case ColumnKind::kFixed:
      break;
  }
  return {reinterpret_cast<const char*>(at), column.bytes};
}

// The opposite; `value` of a kBlob must outlive the record's use. False: it does not fit.
bool store_variable_value(const Column& column, Bytes value, uchar* record);

// Under a NULL the server expects the column's default, as if the record had been reset: where rows
// are compared byte for byte it does not look at the NULL flag alone.
void store_null_value(const Column& column, uchar* record);

}  // namespace strata::glue
