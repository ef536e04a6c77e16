#include "dict/table_spec.h"

#include "base/assert.h"

namespace strata {
namespace {

constexpr uint32_t kFormatOfOtherTextKeys = 1;

void append_strings(std::string* out, const std::vector<std::string>& strings) {
  append_u32(out, static_cast<uint32_t>(strings.size()));
  for (const std::string& s : strings) append_bytes32(out, s);
}

void read_strings(ByteReader* in, std::vector<std::string>* strings) {
  const uint32_t count = in->u32();
  for (uint32_t i = 0; i < count && in->ok(); ++i) strings->emplace_back(in->bytes32());
}

void append_parts(std::string* out, const IndexSpec& index) {
  append_u8(out, index.whole ? 1 : 0);
  append_u32(out, index.most_key);
  append_u32(out, static_cast<uint32_t>(index.parts.size()));
  for (const KeyPartSpec& part : index.parts) {
    append_bytes32(out, part.column);
    append_bytes32(out, part.type);
    append_u8(out, static_cast<uint8_t>((part.nullable ? 1 : 0) | (part.descending ? 2 : 0) |
                                        (part.counts_spaces ? 4 : 0)));
    append_u32(out, part.fixed_bytes);
    append_bytes32(out, part.levels);
  }
}

void read_parts(ByteReader* in, IndexSpec* index) {
  index->whole = in->u8() != 0;
  index->most_key = in->u32();
  const uint32_t count = in->u32();
  for (uint32_t i = 0; i < count && in->ok(); ++i) {
    KeyPartSpec part;
    part.column = in->bytes32();
    part.type = in->bytes32();
    const uint8_t flags = in->u8();
    part.nullable = (flags & 1) != 0;
    part.descending = (flags & 2) != 0;
    part.counts_spaces = (flags & 4) != 0;
    part.fixed_bytes = in->u32();
    part.levels = in->bytes32();
    index->parts.push_back(std::move(part));
  }
}

void append_foreign_keys(std::string* out, const std::vector<ForeignKeySpec>& keys) {
  append_u32(out, static_cast<uint32_t>(keys.size()));
  for (const ForeignKeySpec& key : keys) {
    append_bytes32(out, key.name);
    append_strings(out, key.columns);
    append_bytes32(out, key.parent);
    append_strings(out, key.parent_columns);
    append_u8(out, static_cast<uint8_t>(key.on_delete));
    append_u8(out, static_cast<uint8_t>(key.on_update));
    append_u8(out, key.kept ? 1 : 0);
  }
}

// False: an action there is not, or columns that do not go together.
bool read_foreign_keys(ByteReader* in, std::vector<ForeignKeySpec>* keys) {
  const uint32_t count = in->u32();
  for (uint32_t i = 0; i < count && in->ok(); ++i) {
    ForeignKeySpec key;
    key.name = in->bytes32();
    read_strings(in, &key.columns);
    key.parent = in->bytes32();
    read_strings(in, &key.parent_columns);
    const uint8_t on_delete = in->u8();
    const uint8_t on_update = in->u8();
    key.kept = in->u8() != 0;
    constexpr auto kMost = static_cast<uint8_t>(ReferentialAction::kSetDefault);
    if (on_delete > kMost || on_update > kMost || key.columns.empty() ||
        key.columns.size() != key.parent_columns.size() ||
        key.parent.find('\0') == std::string::npos)
      return false;
    key.on_delete = static_cast<ReferentialAction>(on_delete);
    key.on_update = static_cast<ReferentialAction>(on_update);
    keys->push_back(std::move(key));
  }
  return true;
}

}  // namespace

size_t KeyPartSpec::measure(Bytes key) const noexcept {
  if (fixed_bytes != 0) return key.size() < fixed_bytes ? 0 : fixed_bytes;
  constexpr uint8_t kMore = 9;
  constexpr uint8_t kRestIsSpaces = 2;
  const uint8_t flip = descending ? 0xff : 0;
  size_t at = 0;
  for (const char c : levels) {
    const auto level = static_cast<uint8_t>(c);
    const bool ends_at_mark = (level & kEndsAtMark) != 0;
    const size_t segment = level & ~kEndsAtMark;
    for (bool more = true; more;) {
      if (key.size() - at < segment + 1) return 0;
      const auto mark = static_cast<uint8_t>(static_cast<uint8_t>(key[at + segment]) ^ flip);
      at += segment + 1;
      more = ends_at_mark ? mark == kMore : mark != kRestIsSpaces;
    }
  }
  return at;
}

std::vector<uint32_t> spaces_of(const TableSpec& spec) {
  std::vector<uint32_t> spaces{spec.space_id};
  for (const IndexSpec& index : spec.indexes)
    if (index.own_space_id != 0) spaces.push_back(index.own_space_id);
  return spaces;
}

std::string encode_table_spec(const TableSpec& spec) {
  std::string out;
  // A table of the format before gets this one with its first reference.
  uint32_t format = spec.format;
  const bool has_references = !spec.foreign_keys.empty() || !spec.children.empty();
  if (format == kSpecFormatWithoutReferences && has_references) format = kSpecFormat;
  const bool with_references = format >= kSpecFormat;
  STRATA_ASSERT(with_references || !has_references);
  append_u32(&out, format);
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
    if (with_references) append_parts(&out, index);
  }
  if (!with_references) return out;
  append_foreign_keys(&out, spec.foreign_keys);
  append_strings(&out, spec.children);
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
  if (format > kSpecFormat) {
    return error_unsupported("a table's definition was written by a newer version (format " +
                             std::to_string(format) + "; this one knows formats up to " +
                             std::to_string(kSpecFormat) +
                             "); nothing was changed; to do: start that version");
  }
  if (format != kSpecFormat && format != kSpecFormatWithoutReferences &&
      format != kSpecFormatOfUnboundedKeys)
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
    if (format == kSpecFormat) read_parts(&in, &index);
    spec.indexes.push_back(std::move(index));
  }
  bool good = true;
  if (format == kSpecFormat && in.ok()) {
    good = read_foreign_keys(&in, &spec.foreign_keys);
    read_strings(&in, &spec.children);
  }
  if (!good || !in.ok() || in.remaining() != 0 || spec.indexes.empty()) {
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
