// Rows as the kernel keeps them.
//
//   row    := 0 | NULL bytes of the record | fixed columns in order | variable columns in order
//           | 1 | varint position      the row is itself the outside value at that position
//   variable column := varint (length << 1)       that many bytes follow
//                    | varint (position << 1 | 1) the value is the outside value at that position
//
//   RF1  Fixed columns stand at constant offsets, NULL or not.
//   RF2  When key, row and references exceed the kernel's limit the longest variable values move
//        outside, one after the other, until they fit; if that is not enough the row itself does.
//   RF3  An update takes columns that are neither read nor written from the old row, and values
//        that are outside and unchanged by reference, in the order they had.
//   RF4  A record's BLOB pointers, after decode(), point into the codec: valid until its next
//        decode().
//   RF5  A virtual column that is part of an index is kept (is_kept()); entries of an old row are
//        made from that value, never from a new evaluation.
//   RF6  Rows with the same values are the same bytes: fixed columns that are NULL are zeros, NULL
//        bits of columns that are not kept are 0. (Rows written before this rule only seem to
//        change when they do not.)
// One codec belongs to one handler object.
#pragma once

#include "mariadb/column.h"

namespace strata::glue {

using LoadExternal = std::function<Status(uint32_t position, std::string* out)>;

// The result of encode(): points into the codec, valid until its next encode().
struct EncodedRow {
  Bytes inline_bytes;
  const engine::ExternalImage* externals = nullptr;
  uint32_t external_count = 0;
  bool unchanged = false;  // an update that leaves every stored byte as it is (RF6)
};

class RowCodec {
 public:
  void open(const TABLE* table);

  // `key_bytes` is the length of the clustered key. kOutOfRange: too large whatever moves outside.
  StatusOr<EncodedRow> encode(const uchar* record, size_t key_bytes);
  // `known`: columns whose value in the record is right; all others come from the old row.
  StatusOr<EncodedRow> encode_update(const uchar* record, size_t key_bytes, Bytes old_row,
                                     const MY_BITMAP* known, const MY_BITMAP* written,
                                     const LoadExternal& load_old);
  // Gives generated columns that are not wanted the NULL flags they have in an empty record:
  // CHECKSUM TABLE does not ask for them and counts all flags, and InnoDB leaves these so. Not
  // where the row will be written: encode_update() finds the flags of columns it does not know in
  // the record.
  void reset_generated_nulls(const MY_BITMAP* wanted, uchar* record) const;
  // Fills the columns of `wanted` (null: all) that are kept in the row. kDataLoss: malformed.
  Status decode(Bytes row, const MY_BITMAP* wanted, const LoadExternal& load, uchar* record);

 private:
  struct Variable {
    Column column;
    std::string loaded;  // backing memory of what decode() handed out
  };
  struct Value {
    Bytes bytes;
    int32_t external = -1;        // position among externals_
    int32_t unchanged_from = -1;  // position in the old row
  };
  struct Stored {  // one variable column of a stored row
    Bytes bytes;
    int32_t external = -1;
  };

  Status keep_equal_external(size_t variable, uint32_t position, const LoadExternal& load_old);
  [[nodiscard]] bool externals_kept() const;
  void place_unchanged();
  StatusOr<EncodedRow> finish(const uchar* record, size_t key_bytes, Bytes old_row,
                              const MY_BITMAP* known);
  void write_row(const uchar* record, Bytes old_row, const MY_BITMAP* known);
  size_t row_bytes() const;  // with the references to outside values
  Status resolve_body(Bytes* row, const LoadExternal& load);
  static bool next_variable(const uchar** p, const uchar* end, Stored* out);

  std::vector<Column> generated_;  // those that can be NULL
  uint32_t null_bytes_ = 0;
  std::vector<uchar> kept_nulls_;  // the bits of the NULL bytes that are stored (RF6)
  uint32_t fixed_bytes_ = 0;
  std::vector<Column> fixed_;
  std::vector<Variable> variable_;

  std::vector<Value> values_;  // of the row being encoded, one per variable column
  std::vector<engine::ExternalImage> externals_;
  Buffer row_;
  Buffer outer_;
  std::string body_;       // a row that was itself outside
  std::string old_value_;  // an outside value to compare with
};

}  // namespace strata::glue
