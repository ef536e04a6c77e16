// What the dictionary stores about a table. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace strata {

// One whole column in front of an index, so that the kernel can compare the keys of two tables.
struct KeyPartSpec {
  std::string column;
  std::string type;            // opaque: values of parts with the same one have the same images
  bool nullable = false;       // a byte in front: 0 NULL and nothing follows, 1 not
  bool descending = false;     // every byte is complemented, that one too
  bool counts_spaces = false;  // a byte behind, which is no part of the value
  uint32_t fixed_bytes = 0;    // the size of an image; 0: see `levels`
  // An image is one run of segments per level. Lower bits: bytes of a segment, without the mark
  // behind it. kEndsAtMark: the run ends with a mark that is not 9; otherwise with one that is 2.
  std::string levels;
  static constexpr uint8_t kEndsAtMark = 0x80;

  // Bytes of the image at the start of `key`, without the byte behind; 0: it is not all there.
  [[nodiscard]] size_t measure(Bytes key) const noexcept;
  bool operator==(const KeyPartSpec&) const = default;
};

struct IndexSpec {
  std::string name;
  bool unique = false;  // index 0 is the clustered one
  std::string meta;     // opaque to the kernel (collations and their versions)
  // Assigned by the kernel:
  uint32_t index_id = 0;
  uint32_t root_page = 0;
  uint32_t own_space_id = 0;  // of an index added later; 0: it is in the table's space
  // What foreign keys need. Its columns up to the first that is not kept whole; none in tables of
  // the formats before, until somebody asks the glue (TableCodecs::describe()).
  std::vector<KeyPartSpec> parts = {};
  bool whole = false;              // they are all of its columns
  uint32_t most_key = UINT32_MAX;  // of a longer key no more than these bytes are the parts'
};

enum class ReferentialAction : uint8_t { kRestrict, kNoAction, kCascade, kSetNull, kSetDefault };

// A foreign key, as its child has it. Names of columns are in UTF-8, as the server shows them.
struct ForeignKeySpec {
  std::string name;  // of the constraint; no other in the schema has it
  std::vector<std::string> columns;
  std::string parent;  // table_key() of it; there need not be one
  std::vector<std::string> parent_columns;
  ReferentialAction on_delete = ReferentialAction::kRestrict;
  ReferentialAction on_update = ReferentialAction::kRestrict;
  bool kept = false;  // in the copy an ALTER makes: the rows had it before, nobody looks again
  bool operator==(const ForeignKeySpec&) const = default;
};

// How a definition and the keys of its table are written. A table keeps the format it was made in.
constexpr uint32_t kSpecFormat = 4;
constexpr uint32_t kSpecFormatWithoutReferences = 3;  // keys are the same as of 4
constexpr uint32_t kSpecFormatOfUnboundedKeys = 2;    // keys of the glue's first form

struct TableSpec {
  uint32_t format = kSpecFormat;
  std::string schema;  // as the server's file name encoding gives it
  std::string name;
  std::string definition;  // the server's binary definition (frm image)
  std::string version;     // its 16-byte tabledef_version
  std::string options;     // opaque to the kernel
  std::vector<IndexSpec> indexes;
  std::vector<ForeignKeySpec> foreign_keys = {};  // by name
  // table_key() of other tables with a foreign key to this one, in order, internal names left out.
  std::vector<std::string> children = {};
  bool internal_name = false;  // #sql-... : hidden from discovery
  // Assigned by the kernel:
  uint64_t table_id = 0;
  uint32_t space_id = 0;
  uint64_t created_at = 0;  // unix seconds
};

// Spaces with trees of the table: the table's own first, then those of indexes added later.
std::vector<uint32_t> spaces_of(const TableSpec& spec);

// Dictionary row bytes (docs/data_formats.md). decode: kDataLoss when they do not parse.
std::string encode_table_spec(const TableSpec& spec);
StatusOr<TableSpec> decode_table_spec(Bytes bytes);
// Key of the tables tree: schema, a zero byte, name (neither contains a zero byte).
std::string table_key(Bytes schema, Bytes name);

}  // namespace strata
