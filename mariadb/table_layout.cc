#include "mariadb/table_layout.h"

#include <mysql/service_sha2.h>

namespace strata::glue {
namespace {

// TL3. These numbers are part of the data format.
constexpr size_t kHashBytes = 32;
constexpr size_t kClusteredMost = 1800;  // with the hash, in an entry

}  // namespace

size_t IndexLayout::stored_bytes_most() const {
  const size_t whole = std::min<size_t>(codec.most_bytes(), engine::kMaxKeyLength);
  return whole > most_key ? most_key + kHashBytes : whole;
}

void IndexLayout::cut(Buffer* bytes, size_t begin, size_t end) const {
  uchar hash[kHashBytes];
  my_sha256(hash, reinterpret_cast<const char*>(bytes->data()) + begin, end - begin);
  const size_t behind = bytes->size() - end;
  const size_t new_end = begin + most_key + kHashBytes;
  bytes->grow(kHashBytes);  // the key may be shorter than what takes its place
  std::memmove(bytes->data() + new_end, bytes->data() + end, behind);
  std::memcpy(bytes->data() + begin + most_key, hash, kHashBytes);
  bytes->shrink(new_end + behind);
}

void IndexLayout::append_covering(const uchar* record, Buffer* out) const {
  for (const Column& column : covering) {
    if (column.is_null(record)) continue;
    const Bytes value = variable_value(column, record);
    if (column.kind != ColumnKind::kFixed) append_varint(out, value.size());
    out->append(value.data(), value.size());
  }
}

bool IndexLayout::decode_covering(Bytes bytes, uchar* record) const {
  const uchar* p = reinterpret_cast<const uchar*>(bytes.data());
  const uchar* const end = p + bytes.size();
  for (const Column& column : covering) {
    if (column.is_null(record)) continue;  // the key has set the NULL flag
    uint64_t length = column.bytes;
    if (column.kind != ColumnKind::kFixed && !read_varint(&p, end, &length)) return false;
    if (length > static_cast<size_t>(end - p)) return false;
    if (!store_variable_value(column, Bytes(reinterpret_cast<const char*>(p), length), record))
      return false;
    p += length;
  }
  return true;
}

bool TableLayout::is_whole(size_t kernel_index, const engine::TableCursor::Entry& entry,
                           uchar* record) const {
  if (is_cut(kernel_index, entry)) return false;
  const IndexLayout& index = indexes_[kernel_index];
  if (kernel_index == 0 || index.covering.empty() || !entry.covering.empty()) return true;
  if (!index.codec.decode(entry.key, record)) return true;  // the reader will find out
  return std::all_of(index.covering.begin(), index.covering.end(),
                     [record](const Column& column) { return column.is_null(record); });
}

void TableLayout::open(const TABLE* table, KeyForm form) {
  form_ = form;
  const uint primary = table->s->primary_key;
  indexes_.clear();
  virtual_columns_.clear();
  for (Field** field = table->field; *field != nullptr; ++field) {
    if (is_kept(*field) && !(*field)->stored_in_db())
      virtual_columns_.push_back((*field)->field_index);
  }
  indexes_.emplace_back();
  indexes_[0].unique = true;
  kernel_index_.assign(table->s->keys, 0);
  if (primary != MAX_KEY) {
    indexes_[0].server_key = primary;
    indexes_[0].codec = KeyCodec(table, table->key_info[primary], form);
  }
  for (uint i = 0; i < table->s->keys; ++i) {
    if (i == primary) continue;
    const KEY& key = table->key_info[i];
    kernel_index_[i] = static_cast<uint32_t>(indexes_.size());
    IndexLayout layout;
    layout.server_key = i;
    // The server checks long uniques itself, through a hash that may collide.
    layout.unique = (key.flags & HA_NOSAME) != 0 && key.algorithm != HA_KEY_ALG_LONG_HASH;
    layout.codec = KeyCodec(table, key, form);
    indexes_.push_back(std::move(layout));
  }
  for (IndexLayout& layout : indexes_) {
    for (const KeyPart& part : layout.codec.parts()) {
      layout.columns.push_back(part.column.field_index);
      if (part.in_covering) layout.covering.push_back(part.column);
      if (!part.column.field->stored_in_db()) layout.has_virtual = true;
    }
    if (&layout == indexes_.data()) continue;
    for (const KeyPart& part : indexes_[0].codec.parts()) {
      if (!part.in_covering) continue;
      const bool there =
          std::any_of(layout.covering.begin(), layout.covering.end(),
                      [&](const Column& c) { return c.field_index == part.column.field_index; });
      if (there) continue;
      layout.covering.push_back(part.column);
      layout.columns.push_back(part.column.field_index);
    }
  }
  if (form == KeyForm::kFirst) return;
  size_t clustered = hidden_key() ? 8 : indexes_[0].codec.fixed_bytes();
  if (clustered == 0 || clustered > kClusteredMost) {
    clustered = kClusteredMost;
    indexes_[0].most_key = kClusteredMost - kHashBytes;
    indexes_[0].may_be_cut = indexes_[0].codec.most_bytes() > indexes_[0].most_key;
  }
  for (size_t i = 1; i < indexes_.size(); ++i) {
    IndexLayout& index = indexes_[i];
    index.most_key = static_cast<uint32_t>(engine::kMaxKeyLength - clustered - kHashBytes);
    index.may_be_cut = index.codec.most_bytes() > index.most_key || indexes_[0].may_be_cut;
  }
}

}  // namespace strata::glue
