// A table's indexes as the kernel numbers them, and the codecs that make their entries.
//
//   TL1  Kernel index 0 is the clustered one: the server's primary key, or a hidden 8-byte row id.
//        The other keys follow in the server's order.
//   TL2  Covering bytes of an entry: the values KC3 puts there, of the index's parts and of primary
//        key columns that are not among them, in that order; NULL takes no bytes.
//   TL3  A key of the second form is never too long for the kernel. Of one that is longer than
//        `most_key` bytes the first so many bytes are kept, and the SHA-256 of the whole in place
//        of the rest ("cut"). So keys are equal where the whole ones are, which is what unique
//        checks, locks and look-ups go by. Two cut keys that begin alike are not in order;
//        scan_groups.cc puts them in order while it reads. Images are prefix-free (KC1), so no key
//        that is not cut begins like a cut one, and against all others its first bytes decide.
//   TL4  Covering bytes that would make an entry too large are left out, all of them: where an
//        entry has none although a covered column is not NULL, the row has to be read.
#pragma once

#include "mariadb/key_codec.h"

namespace strata::glue {

struct IndexLayout {
  uint server_key = MAX_KEY;  // MAX_KEY: the hidden row id
  bool unique = false;
  bool has_virtual = false;
  KeyCodec codec;
  std::vector<Column> covering;
  std::vector<uint16_t> columns;   // field indexes whose change may change the entry
  uint32_t most_key = UINT32_MAX;  // bytes of a key that is kept whole
  bool may_be_cut = false;         // by its definition, or the clustered key behind it

  // The key as it is stored. `codec` makes the whole one.
  void append_key(const uchar* record, Buffer* out, bool* has_null) {
    const size_t begin = out->size();
    codec.append(record, out, has_null);
    if (out->size() - begin > most_key) cut(out, begin, out->size());
  }
  [[nodiscard]] bool is_cut(Bytes key) const noexcept { return key.size() > most_key; }
  [[nodiscard]] size_t stored_bytes_most() const;
  // Cuts the key that stands at [begin, end) of `bytes`; what follows it moves up.
  void cut(Buffer* bytes, size_t begin, size_t end) const;

  void append_covering(const uchar* record, Buffer* out) const;
  [[nodiscard]] bool decode_covering(Bytes covering, uchar* record) const;
};

class TableLayout {
 public:
  void open(const TABLE* table, KeyForm form);

  [[nodiscard]] KeyForm form() const noexcept { return form_; }
  // Whether the entry gives back all that it is made of. `record`: to be used at will.
  [[nodiscard]] bool is_whole(size_t kernel_index, const engine::TableCursor::Entry& entry,
                              uchar* record) const;
  [[nodiscard]] bool is_cut(size_t kernel_index,
                            const engine::TableCursor::Entry& entry) const noexcept {
    return indexes_[kernel_index].is_cut(entry.key) ||
           (kernel_index != 0 && indexes_[0].is_cut(entry.clustered_key));
  }
  [[nodiscard]] bool clustered_may_be_cut() const noexcept { return indexes_[0].may_be_cut; }
  // So many bytes of a whole key stand in every entry it is made of, or it is shorter: up to there
  // entries are in order as they are.
  [[nodiscard]] size_t in_order_bytes(size_t kernel_index) const noexcept {
    return std::min(indexes_[0].most_key, indexes_[kernel_index].most_key);
  }

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
  KeyForm form_ = KeyForm::kFirst;
};

}  // namespace strata::glue
