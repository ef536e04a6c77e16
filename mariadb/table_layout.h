// A table's indexes as the kernel numbers them, and the codecs that make their entries.
//
//   TL1  Kernel index 0 is the clustered one: the server's primary key, or a hidden 8-byte row id.
//   The
//        other keys follow in the server's order.
//   TL2  Covering bytes of an entry: the values KC3 puts there, of the index's parts and of primary
//   key
//        columns that are not among them, in that order; NULL takes no bytes.
#pragma once

#include "mariadb/key_codec.h"

namespace strata::glue {

struct IndexLayout {
  uint server_key = MAX_KEY;  // MAX_KEY: the hidden row id
  bool unique = false;
  bool has_virtual = false;
  KeyCodec codec;
  std::vector<Column> covering;
  std::vector<uint16_t> columns;  // field indexes whose change may change the entry

  void append_covering(const uchar* record, Buffer* out) const;
  [[nodiscard]] bool decode_covering(Bytes covering, uchar* record) const;
};

class TableLayout {
 public:
  void open(const TABLE* table);

  [[nodiscard]] bool hidden_key() const noexcept { return indexes_[0].server_key == MAX_KEY; }
  [[nodiscard]] size_t index_count() const noexcept { return indexes_.size(); }
  [[nodiscard]] IndexLayout& index(size_t kernel_index) noexcept { return indexes_[kernel_index]; }
  // Virtual columns that are kept in rows because an index needs them.
  [[nodiscard]] const std::vector<uint16_t>& virtual_columns() const noexcept {
    return virtual_columns_;
  }
  [[nodiscard]] uint32_t kernel_index(uint server_key) const noexcept {
    return kernel_index_[server_key];
  }

 private:
  std::vector<IndexLayout> indexes_;
  std::vector<uint32_t> kernel_index_;
  std::vector<uint16_t> virtual_columns_;
};

}  // namespace strata::glue
