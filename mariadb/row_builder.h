// Turns the server's records into what the kernel stores, keys, entries and row bytes, and back.
// It holds the memory for it, so that no row allocates, and knows nothing of scans and locks.
//
//   RB1  Records come in buffers of any kind (record[0], record[1], lookup buffers, copies of
//        ours): everything works by offsets (H3).
//   RB2  BLOB pointers in a record that decode() has filled stay valid until its next call (RF4).
//   RB3  What a build_...() gives points into the builder, and into the record: valid until the
//        next call of one of them, or of decode().
//   RB4  Entries of a stored row are made of the values it stores: of columns that the server has
//        not read, and of virtual columns that an index needs, those in the row, never the record's
//        (RF5). The server's record is not touched for it.
//   RB5  A set of columns that a function returns may be the builder's only scratch set: it is
//        valid until the next call.
#pragma once

#include "mariadb/entry_list.h"
#include "mariadb/row_codec.h"
#include "mariadb/scan.h"
#include "mariadb/table_layout.h"

namespace strata::glue {

// What an update does with the row: RB3.
struct RowUpdate {
  engine::RowImage image;
  Bytes old_key;
  const engine::EntryImage* old_entries = nullptr;
  uint32_t old_entry_count = 0;
  bool unchanged = false;   // there is nothing to write
  bool bytes_only = false;  // the key and all entries stay, and nothing will be kept outside
};
struct RowDelete {
  Bytes key;
  const engine::EntryImage* entries = nullptr;
  uint32_t entry_count = 0;
};

class RowBuilder final : public WholeKeys {
 public:
  RowBuilder() = default;
  RowBuilder(const RowBuilder&) = delete;
  RowBuilder& operator=(const RowBuilder&) = delete;

  void open(TABLE* table, KeyForm form);
  [[nodiscard]] TableLayout& layout() noexcept { return layout_; }
  [[nodiscard]] const TableLayout& layout() const noexcept { return layout_; }
  // For whole tables: rows that no cursor of a statement has found.
  [[nodiscard]] RowCodec& codec() noexcept { return row_; }
  [[nodiscard]] std::vector<ScanIndex> scan_indexes();

  // --- keys ---
  // A key in the server's format, and how much of it are the index's own parts (KeyCodec).
  void append_search_key(uint32_t index, const uchar* key, uint length, Buffer* out,
                         size_t* own_bytes) {
    layout_.index(index).codec.append_server_key(key, length, out, own_bytes);
  }
  // The clustered key of a table that has no hidden one: valid until the next call of a function
  // that makes keys. It is given also where it is too long.
  Status clustered_key_of(const uchar* record, Bytes* key);
  // Whether a key of the first form was longer than the kernel takes: why a build_...() failed.
  [[nodiscard]] bool key_is_too_long() const noexcept { return too_long_; }

  // --- reading: each row of a scan comes through here ---
  // The columns a row is fetched for, and those its entry would give back besides, where the row
  // stands in for it (RB5). `to_change`: it may be written.
  const MY_BITMAP* wanted_columns(bool to_change) {
    return to_change ? read_and_written() : table_->read_set;
  }
  const MY_BITMAP* columns_of_entry(bool to_change, uint32_t index);
  // Fills those columns from the row that the cursor has fetched. Not found: at READ UNCOMMITTED
  // the row has changed before all of it was read.
  Status decode(engine::TableCursor* at, const MY_BITMAP* columns, uchar* record) {
    at_ = at;
    return row_.decode(at->row(), columns, load_, record);
  }
  // ... from the entry alone. False: malformed.
  [[nodiscard]] bool decode_entry(uint32_t index, const engine::TableCursor::Entry& entry,
                                  uchar* record) {
    const IndexLayout& layout = layout_.index(index);
    if (!layout.codec.decode(entry.key, record)) return false;
    if (index == 0) return true;
    if (!layout_.hidden_key() && !layout_.index(0).codec.decode(entry.clustered_key, record))
      return false;
    return layout.covering.empty() || layout.decode_covering(entry.covering, record);
  }
  // Whether an entry of the index can give the server all it looks at: it compares columns with the
  // range's end, and, in an index merge or to name the row, those of the primary key, and an entry
  // does not give back a column of which it has a prefix. `computes_again`: the server does so with
  // virtual columns, from columns of the row.
  [[nodiscard]] bool entry_is_enough(uint32_t index, bool computes_again) {
    const IndexLayout& layout = layout_.index(index);
    if (layout.codec.has_prefix()) return false;
    if (!layout_.hidden_key() && layout_.index(0).codec.has_prefix_of(table_->read_set))
      return false;
    return !computes_again || !layout.has_virtual;
  }

  // --- writing ---
  // kOutOfRange: the row is too large; or see key_is_too_long().
  Status build_insert(const uchar* record, engine::Table* table, engine::RowImage* out);
  // Of the row that the cursor has fetched.
  Status build_update(engine::TableCursor* at, const uchar* old_record, const uchar* new_record,
                      RowUpdate* out);
  Status build_delete(engine::TableCursor* at, const uchar* record, RowDelete* out);

  // --- WholeKeys ---
  Status whole_key(engine::TableCursor* cursor, uint32_t index, std::string* whole,
                   bool* gone) override;
  void cut(uint32_t index, size_t own_bytes, Buffer* key) override {
    layout_.index(index).cut(key, 0, own_bytes);
  }
  [[nodiscard]] bool killed() const override;

 private:
  Status too_long();
  void make_entry(size_t index, const uchar* record, size_t clustered_bytes, EntryList* entries);
  [[nodiscard]] bool may_change(size_t index);
  const MY_BITMAP* read_and_written();
  void add_columns_of(uint32_t index);
  Status complete(engine::TableCursor* at, const uchar** old_record, const uchar** new_record,
                  bool only_changing);
  Status make_changed_entries(const uchar* old_image, const uchar* new_image, bool key_changes);
  const MY_BITMAP* known_columns();
  void set_row(const EncodedRow& row, engine::RowImage* out) const;
  [[nodiscard]] uint64_t used_auto_increment(const uchar* record) const;

  // Of the open table.
  TABLE* table_ = nullptr;
  TableLayout layout_;
  RowCodec row_;
  LoadExternal load_;  // an outside value of the row that `at_` has fetched
  std::vector<my_bitmap_map> known_storage_;
  // Of one call.
  engine::TableCursor* at_ = nullptr;
  MY_BITMAP known_{};  // RB5
  bool too_long_ = false;
  // Of the row that was built last (RB3).
  Buffer key_;
  Buffer old_key_;
  EntryList entries_;
  EntryList old_entries_;
  std::vector<uchar> old_image_;  // records completed with columns the server did not ask for
  std::vector<uchar> new_image_;
  std::vector<uchar> whole_record_;  // of an entry whose key is cut
  Buffer whole_key_;
};

}  // namespace strata::glue
