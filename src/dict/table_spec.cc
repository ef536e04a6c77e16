#include "dict/table_spec.h"

namespace strata {
namespace {
constexpr uint32_t kFormatOfOtherTextKeys = 1;
}  // namespace

std::vector<uint32_t> spaces_of(const TableSpec& spec) {
  std::vector<uint32_t> spaces{spec.space_id};
  for (const IndexSpec& index : spec.indexes)
    if (index.own_space_id != 0) spaces.push_back(index.own_space_id);
  return spaces;
}

std::string encode_table_spec(const TableSpec& spec) {
  std::string out;
  append_u32(&out, spec.format);
  append_bytes32(&out, spec.schema);
  append_bytes32(&out, spec.name);
  append_u64(&out, spec.table_id);
  append_u32(&out, spec.space_id);
  append_u64(&out, spec.created_at);
  append_u8(&out, spec.internal_name ? 1 : 0);
  append_bytes32(&out, spec.version);
  append_bytes32(&out, spec.options);
  append_bytes32(&out, spec.definition);
  append_u32(&out, static_cast<uint32_t>(spec.indexes.size()));
  for (const IndexSpec& index : spec.indexes) {
    append_bytes32(&out, index.name);
    append_u8(&out, index.unique ? 1 : 0);
    append_bytes32(&out, index.meta);
    append_u32(&out, index.index_id);
    append_u32(&out, index.root_page);
    append_u32(&out, index.own_space_id);
  }
  return out;
}

StatusOr<TableSpec> decode_table_spec(Bytes bytes) {
  ByteReader in(bytes);
  TableSpec spec;
  const uint32_t format = in.u32();
  if (format == kFormatOfOtherTextKeys) {
    return error_unsupported(
        "the tables were made by an earlier build, whose text keys are different; to do: dump them "
        "with "
        "that build and load them with this one");
  }
  if (format != kSpecFormat && format != kSpecFormatOfUnboundedKeys)
    return error_corruption("dictionary: a table definition has an unknown format");
  spec.format = format;
  spec.schema = in.bytes32();
  spec.name = in.bytes32();
  spec.table_id = in.u64();
  spec.space_id = in.u32();
  spec.created_at = in.u64();
  spec.internal_name = in.u8() != 0;
  spec.version = in.bytes32();
  spec.options = in.bytes32();
  spec.definition = in.bytes32();
  const uint32_t count = in.u32();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    IndexSpec index;
    index.name = in.bytes32();
    index.unique = in.u8() != 0;
    index.meta = in.bytes32();
    index.index_id = in.u32();
    index.root_page = in.u32();
    index.own_space_id = in.u32();
    spec.indexes.push_back(std::move(index));
  }
  if (!in.ok() || in.remaining() != 0 || spec.indexes.empty()) {
    return error_corruption("dictionary: a table definition is truncated or damaged");
  }
  return spec;
}

std::string table_key(Bytes schema, Bytes name) {
  std::string key(schema);
  key.push_back('\0');
  key.append(name);
  return key;
}

}  // namespace strata
