// What the dictionary stores about a table. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace strata {

struct IndexSpec {
  std::string name;
  bool unique = false;  // index 0 is the clustered one
  std::string meta;     // opaque to the kernel (collations and their versions)
  // Assigned by the kernel:
  uint32_t index_id = 0;
  uint32_t root_page = 0;
  uint32_t own_space_id = 0;  // of an index added later; 0: it is in the table's space
};

// How a definition and the keys of its table are written. A table keeps the format it was made in.
constexpr uint32_t kSpecFormat = 3;
constexpr uint32_t kSpecFormatOfUnboundedKeys = 2;  // keys of the glue's first form

struct TableSpec {
  uint32_t format = kSpecFormat;
  std::string schema;  // as the server's file name encoding gives it
  std::string name;
  std::string definition;  // the server's binary definition (frm image)
  std::string version;     // its 16-byte tabledef_version
  std::string options;     // opaque to the kernel
  std::vector<IndexSpec> indexes;
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
