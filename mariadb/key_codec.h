// Memcomparable keys: memcmp of two keys orders like the index does in SQL.
//
//   KC1  A key is its parts one after the other: for a nullable part a byte 0 (NULL, nothing
//        follows) or 1, then the value's image. Part images are prefix-free, so the image of the
//        first n parts is a prefix of every key that starts with these values.
//   KC2  A DESC part has every byte complemented, the NULL byte too.
//   KC3  Integers, temporals, decimals, enums and BINARY can be read back from the image; values of
//        other whole columns go into the entry's covering bytes. Prefix parts and BLOBs are in
//        neither.
//   KC4  Behind its own parts an entry has the whole clustered key. The server's extended keys end
//        in those primary key columns that the index does not have; a search key repeats the others
//        in between.
//   KC5  A CHAR column is stored without its trailing spaces, and the server compares what is left.
//        But where it finds groups, and in InnoDB's unique keys, values of a NO PAD collation are
//        equal only if they are so with their spaces, up to the column's (or the prefix's) number
//        of characters: 'ss' and 'ß ' differ. In unique keys the image of such a part is followed
//        by a byte, how many spaces are missing. Not in keys of the first form.
// One codec belongs to one handler object (it has scratch memory).
#pragma once

#include "mariadb/column.h"
#include "mariadb/string_image.h"

namespace strata::glue {

// How a table's keys are made, as the format of its definition says. Keys of different forms are
// not comparable, so a table keeps its form until it is copied.
enum class KeyForm : uint8_t {
  kFirst = 1,    // KC5 does not hold; rows with longer keys than the kernel takes are refused
  kBounded = 2,  // TL3
};

struct KeyPart {
  enum class Form : uint8_t {
    kInteger,  // little-endian in the record
    kBytes,    // ordered as it lies there
    kServer,   // Field::sort_string()
    kText,     // StringImage
  };
  Column column;
  Form form = Form::kBytes;
  bool is_unsigned = false;
  bool is_prefix = false;
  bool descending = false;
  bool in_key = false;         // the value can be read back from the image (KC3)
  bool in_covering = false;    // ... or from the covering bytes
  bool counts_spaces = false;  // KC5
  uint32_t length = 0;         // of the value in the server's key format
  uint32_t store_length = 0;   // with NULL byte and length bytes
  uint32_t image_bytes = 0;    // fixed forms
  uint32_t prefix_characters = 0;
  StringImage image;
};

class KeyCodec {
 public:
  KeyCodec() = default;
  KeyCodec(const TABLE* table, const KEY& key, KeyForm form);

  [[nodiscard]] bool has_prefix() const noexcept { return has_prefix_; }  // of some column
  [[nodiscard]] bool has_prefix_of(const MY_BITMAP* columns) const;       // ... of one of these

  // The key of a record. *has_null: some part is NULL (such keys never conflict).
  void append(const uchar* record, Buffer* out, bool* has_null);
  // The leading parts given in the server's key format (key_copy()), extended ones too (KC4).
  // *own_bytes: how much of it are the index's own parts, all of them; SIZE_MAX: some are missing.
  void append_server_key(const uchar* key, uint length, Buffer* out, size_t* own_bytes);
  // Reads back what KC3 allows into the record; NULL bits of all parts. False: malformed.
  [[nodiscard]] bool decode(Bytes key, uchar* record) const;
  // Byte length of each leading part; false: malformed.
  [[nodiscard]] bool part_ends(Bytes key, std::vector<uint32_t>* ends) const;
  [[nodiscard]] const std::vector<KeyPart>& parts() const noexcept { return parts_; }
  [[nodiscard]] size_t most_bytes() const;
  // Of a key whose parts all have one size; 0: some have not.
  [[nodiscard]] size_t fixed_bytes() const;

 private:
  static constexpr size_t kNotInKey = SIZE_MAX;
  struct Extension {  // a part of the primary key
    KeyPart part;
    size_t key_part = kNotInKey;  // the part of this key with the same column
  };

  const uchar* append_server_value(KeyPart* part, const uchar* key, uint32_t store_length,
                                   Buffer* out);
  void append_value(KeyPart* part, const uchar* raw, Bytes text, Buffer* out);
  static size_t value_bytes(const KeyPart& part, Bytes image);

  // One part of a key that consists of columns readable by position only, for decode().
  struct PlainPart {
    uint32_t offset;  // in the record
    uint32_t bytes;
    bool integer;
    bool is_unsigned;
  };
  void describe_plain();
  bool decode_plain(Bytes key, uchar* record) const noexcept;

  std::vector<KeyPart> parts_;
  std::vector<PlainPart> plain_;  // empty: some part is nullable, descending or not kept whole
  uint32_t plain_bytes_ = 0;
  bool has_prefix_ = false;
  std::vector<Extension> extensions_;  // empty in the primary key and in tables without one
};

// Complains (server error) when a column of the table's keys has a collation without images.
bool keys_are_supported(const TABLE* table, bool raise_error = true);

}  // namespace strata::glue
