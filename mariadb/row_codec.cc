#include "mariadb/row_codec.h"

namespace strata::glue {
namespace {

constexpr uchar kPlain = 0;
constexpr uchar kOutside = 1;
// Moving a value outside costs a page of its own: short ones stay as long as anything longer is
// left.
constexpr size_t kExternalLeast = 40;
constexpr size_t kExternalsMost = 250;

bool has(const MY_BITMAP* columns, const Column& column) {
  return columns == nullptr || bitmap_is_set(columns, column.field_index);
}

Status malformed() { return error_corruption("a row does not parse"); }

}  // namespace

void RowCodec::open(const TABLE* table) {
  fixed_.clear();
  variable_.clear();
  fixed_bytes_ = 0;
  null_bytes_ = table->s->null_bytes;
  for (Field** field = table->field; *field != nullptr; ++field) {
    if (!is_kept(*field)) continue;
    Column column = describe_column(table, *field);
    if (column.kind == ColumnKind::kFixed) {
      fixed_bytes_ += column.bytes;
      fixed_.push_back(column);
    } else {
      variable_.push_back(Variable{column, {}});
    }
  }
  values_.resize(variable_.size());
}

size_t RowCodec::row_bytes() const {
  size_t bytes = 1 + null_bytes_ + fixed_bytes_;
  for (const Value& value : values_) {
    bytes += value.external >= 0 ? varint_bytes(static_cast<uint64_t>(value.external) * 2 + 1)
                                 : varint_bytes(value.bytes.size() * 2) + value.bytes.size();
  }
  return bytes;
}

void RowCodec::write_row(const uchar* record, Bytes old_row, const MY_BITMAP* known) {
  row_.clear();
  row_.append_byte(kPlain);
  row_.append(record, null_bytes_);
  const uchar* old_fixed =
      old_row.empty() ? nullptr : reinterpret_cast<const uchar*>(old_row.data()) + 1 + null_bytes_;
  uchar* to = row_.grow(fixed_bytes_);
  for (const Column& column : fixed_) {
    const bool from_old = old_fixed != nullptr && !has(known, column);
    std::memcpy(to, from_old ? old_fixed : record + column.offset, column.bytes);
    to += column.bytes;
    if (old_fixed != nullptr) old_fixed += column.bytes;
  }
  for (const Value& value : values_) {
    if (value.external >= 0) {
      append_varint(&row_, static_cast<uint64_t>(value.external) * 2 + 1);
    } else {
      append_varint(&row_, value.bytes.size() * 2);
      row_.append(value.bytes.data(), value.bytes.size());
    }
  }
}

StatusOr<EncodedRow> RowCodec::finish(const uchar* record, size_t key_bytes, Bytes old_row,
                                      const MY_BITMAP* known) {
  const size_t limit = engine::kMaxRowBytes - std::min<size_t>(key_bytes, engine::kMaxRowBytes / 2);
  externals_.clear();
  for (Value& value : values_) {
    if (value.unchanged_from < 0) continue;
    value.external = static_cast<int32_t>(externals_.size());
    externals_.push_back({Bytes(), value.unchanged_from});
  }
  size_t bytes = row_bytes();
  while (bytes > limit && externals_.size() < kExternalsMost) {
    Value* longest = nullptr;
    for (Value& value : values_) {
      if (value.external < 0 && value.bytes.size() >= kExternalLeast &&
          (longest == nullptr || value.bytes.size() > longest->bytes.size()))
        longest = &value;
    }
    if (longest == nullptr) break;
    longest->external = static_cast<int32_t>(externals_.size());
    externals_.push_back({longest->bytes, -1});
    bytes = row_bytes();
  }
  write_row(record, old_row, known);
  EncodedRow out;
  out.inline_bytes = row_.bytes();
  if (row_.size() > limit) {
    outer_.clear();
    outer_.append_byte(kOutside);
    append_varint(&outer_, externals_.size());
    externals_.push_back({row_.bytes(), -1});
    out.inline_bytes = outer_.bytes();
  }
  out.externals = externals_.data();
  out.external_count = static_cast<uint32_t>(externals_.size());
  return out;
}

StatusOr<EncodedRow> RowCodec::encode(const uchar* record, size_t key_bytes) {
  for (size_t i = 0; i < variable_.size(); ++i) {
    const Column& column = variable_[i].column;
    values_[i] = {column.is_null(record) ? Bytes() : variable_value(column, record), -1, -1};
  }
  return finish(record, key_bytes, Bytes(), nullptr);
}

Status RowCodec::resolve_body(Bytes* row, const LoadExternal& load) {
  if (row->empty()) return malformed();
  if (static_cast<uchar>((*row)[0]) == kOutside) {
    const uchar* p = reinterpret_cast<const uchar*>(row->data()) + 1;
    uint64_t position = 0;
    if (!read_varint(&p, reinterpret_cast<const uchar*>(row->data()) + row->size(), &position))
      return malformed();
    STRATA_RETURN_IF_ERROR(load(static_cast<uint32_t>(position), &body_));
    *row = body_;
  }
  if (row->size() < 1 + null_bytes_ + fixed_bytes_ || static_cast<uchar>((*row)[0]) != kPlain)
    return malformed();
  return ok_status();
}

bool RowCodec::next_variable(const uchar** p, const uchar* end, Stored* out) {
  uint64_t tag = 0;
  if (!read_varint(p, end, &tag)) return false;
  out->bytes = Bytes();
  out->external = -1;
  if ((tag & 1) != 0) {
    out->external = static_cast<int32_t>(tag >> 1);
    return true;
  }
  const uint64_t length = tag >> 1;
  if (length > static_cast<size_t>(end - *p)) return false;
  out->bytes = Bytes(reinterpret_cast<const char*>(*p), length);
  *p += length;
  return true;
}

StatusOr<EncodedRow> RowCodec::encode_update(const uchar* record, size_t key_bytes, Bytes old_row,
                                             const MY_BITMAP* known, const MY_BITMAP* written,
                                             const LoadExternal& load_old) {
  Bytes old = old_row;
  STRATA_RETURN_IF_ERROR(resolve_body(&old, load_old));
  const uchar* p = reinterpret_cast<const uchar*>(old.data()) + 1 + null_bytes_ + fixed_bytes_;
  const uchar* const end = reinterpret_cast<const uchar*>(old.data()) + old.size();
  for (size_t i = 0; i < variable_.size(); ++i) {
    const Column& column = variable_[i].column;
    Stored stored;
    if (!next_variable(&p, end, &stored)) return malformed();
    Value& value = values_[i];
    value = Value{};
    if (column.is_null(record)) continue;
    if (has(known, column)) value.bytes = variable_value(column, record);
    if (stored.external >= 0) {
      // The very bytes that decode() gave out, or a column the statement cannot have changed.
      const bool same = has(known, column) && value.bytes.data() == variable_[i].loaded.data() &&
                        value.bytes.size() == variable_[i].loaded.size();
      if (same || !has(written, column) || !has(known, column))
        value.unchanged_from = stored.external;
    } else if (!has(known, column)) {
      value.bytes = stored.bytes;
    }
  }
  // body_ (where `old` may point to) lives on until the next resolve.
  return finish(record, key_bytes, old, known);
}

Status RowCodec::decode(Bytes row, const MY_BITMAP* wanted, const LoadExternal& load,
                        uchar* record) {
  STRATA_RETURN_IF_ERROR(resolve_body(&row, load));
  const uchar* p = reinterpret_cast<const uchar*>(row.data()) + 1;
  const uchar* const end = reinterpret_cast<const uchar*>(row.data()) + row.size();
  std::memcpy(record, p, null_bytes_);
  p += null_bytes_;
  for (const Column& column : fixed_) {
    if (has(wanted, column)) std::memcpy(record + column.offset, p, column.bytes);
    p += column.bytes;
  }
  for (Variable& variable : variable_) {
    const Column& column = variable.column;
    Stored stored;
    if (!next_variable(&p, end, &stored)) return malformed();
    if (!has(wanted, column) || column.is_null(record)) continue;
    Bytes value = stored.bytes;
    if (stored.external >= 0) {
      STRATA_RETURN_IF_ERROR(load(static_cast<uint32_t>(stored.external), &variable.loaded));
      value = variable.loaded;
    } else if (column.kind == ColumnKind::kBlob) {
      variable.loaded.assign(value);
      value = variable.loaded;
    }
    if (!store_variable_value(column, value, record)) return malformed();
  }
  return ok_status();
}

}  // namespace strata::glue
