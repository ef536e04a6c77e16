#include "mariadb/row_codec.h"

namespace strata::glue {
namespace {

constexpr uchar kPlain = 0;
constexpr uchar kOutside = 1;
// Moving a value outside costs a page of its own: short ones stay as long as anything longer is
// left.
constexpr size_t kExternalLeast = 40;
// A row that is itself outside: kOutside, a position, and the references.
constexpr size_t kOuterBytes = 1 + 2;

bool has(const MY_BITMAP* columns, const Column& column) {
  return columns == nullptr || bitmap_is_set(columns, column.field_index);
}

Status too_large() { return error_out_of_range(); }
Status malformed() { return error_corruption("a row does not parse"); }

}  // namespace

void RowCodec::open(const TABLE* table) {
  fixed_.clear();
  variable_.clear();
  fixed_bytes_ = 0;
  generated_.clear();
  null_bytes_ = table->s->null_bytes;
  kept_nulls_.assign(null_bytes_, 0xff);
  for (Field** field = table->field; *field != nullptr; ++field) {
    Column column = describe_column(table, *field);
    if ((*field)->vcol_info != nullptr && column.null_bit != 0) generated_.push_back(column);
    if (!is_kept(*field)) {
      // The server computes the column after each read.
      if (column.null_bit != 0)
        kept_nulls_[column.null_offset] &= static_cast<uchar>(~column.null_bit);
      continue;
    }
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
  size_t bytes = 1 + null_bytes_ + fixed_bytes_ + externals_.size() * engine::kExternalBytes;
  for (const Value& value : values_) {
    bytes += value.external >= 0 ? varint_bytes(static_cast<uint64_t>(value.external) * 2 + 1)
                                 : varint_bytes(value.bytes.size() * 2) + value.bytes.size();
  }
  return bytes;
}

void RowCodec::write_row(const uchar* record, Bytes old_row, const MY_BITMAP* known) {
  row_.clear();
  row_.append_byte(kPlain);
  uchar* const nulls = row_.grow(null_bytes_);
  for (size_t i = 0; i < null_bytes_; ++i) nulls[i] = record[i] & kept_nulls_[i];
  const uchar* old_fixed =
      old_row.empty() ? nullptr : reinterpret_cast<const uchar*>(old_row.data()) + 1 + null_bytes_;
  uchar* to = row_.grow(fixed_bytes_);
  for (const Column& column : fixed_) {
    const bool from_old = old_fixed != nullptr && !has(known, column);
    if (column.is_null(record)) {
      std::memset(to, 0, column.bytes);  // RF6
    } else {
      std::memcpy(to, from_old ? old_fixed : record + column.offset, column.bytes);
    }
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

// Unchanged outside values come first, in the order of the old row: when nothing changes, each
// keeps its position, whatever order the values were moved outside in.
void RowCodec::place_unchanged() {
  externals_.clear();
  for (const Value& value : values_) {
    if (value.unchanged_from >= 0) externals_.push_back({Bytes(), value.unchanged_from});
  }
  const auto before = [](const engine::ExternalImage& external, int32_t from) {
    return external.unchanged_from < from;
  };
  std::sort(externals_.begin(), externals_.end(),
            [&](const auto& a, const auto& b) { return before(a, b.unchanged_from); });
  for (Value& value : values_) {
    if (value.unchanged_from < 0) continue;
    const auto at =
        std::lower_bound(externals_.begin(), externals_.end(), value.unchanged_from, before);
    value.external = static_cast<int32_t>(at - externals_.begin());
  }
}

StatusOr<EncodedRow> RowCodec::finish(const uchar* record, size_t key_bytes, Bytes old_row,
                                      const MY_BITMAP* known) {
  if (key_bytes > engine::kMaxKeyLength) return too_large();
  const size_t limit = engine::kMaxRowBytes - key_bytes;
  // One reference is left for the row itself.
  const size_t externals_most = (limit - kOuterBytes) / engine::kExternalBytes - 1;
  place_unchanged();
  if (externals_.size() > externals_most) return too_large();
  while (row_bytes() > limit && externals_.size() < externals_most) {
    Value* longest = nullptr;
    for (Value& value : values_) {
      if (value.external < 0 && value.bytes.size() >= kExternalLeast &&
          (longest == nullptr || value.bytes.size() > longest->bytes.size()))
        longest = &value;
    }
    if (longest == nullptr) break;
    longest->external = static_cast<int32_t>(externals_.size());
    externals_.push_back({longest->bytes, -1});
  }
  write_row(record, old_row, known);
  EncodedRow out;
  out.inline_bytes = row_.bytes();
  if (row_bytes() > limit) {
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

// A long value written again as it was stays where it is: no new pages, and the row may be
// unchanged.
Status RowCodec::keep_equal_external(size_t variable, uint32_t position,
                                     const LoadExternal& load_old) {
  Value& value = values_[variable];
  STRATA_RETURN_IF_ERROR(load_old(position, &old_value_));
  if (value.bytes == Bytes(old_value_)) value.unchanged_from = static_cast<int32_t>(position);
  return ok_status();
}

// Whether the outside values are those of the old row, at the same positions.
bool RowCodec::externals_kept() const {
  return std::all_of(values_.begin(), values_.end(), [](const Value& value) {
    return value.external < 0 || value.external == value.unchanged_from;
  });
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
      if (same || !has(written, column) || !has(known, column)) {
        value.unchanged_from = stored.external;
      } else {
        STRATA_RETURN_IF_ERROR(
            keep_equal_external(i, static_cast<uint32_t>(stored.external), load_old));
      }
    } else if (!has(known, column)) {
      value.bytes = stored.bytes;
    }
  }
  // body_ (where `old` may point to) lives on until the next resolve.
  STRATA_ASSIGN_OR_RETURN(EncodedRow out, finish(record, key_bytes, old, known));
  out.unchanged = row_.bytes() == old && externals_kept();
  return out;
}

void RowCodec::reset_generated_nulls(const MY_BITMAP* wanted, uchar* record) const {
  for (const Column& column : generated_) {
    if (has(wanted, column)) continue;
    column.set_null(record, column.is_null(column.field->table->s->default_values));
  }
}

Status RowCodec::decode(Bytes row, const MY_BITMAP* wanted, const LoadExternal& load,
                        uchar* record) {
  STRATA_RETURN_IF_ERROR(resolve_body(&row, load));
  const uchar* p = reinterpret_cast<const uchar*>(row.data()) + 1;
  const uchar* const end = reinterpret_cast<const uchar*>(row.data()) + row.size();
  std::memcpy(record, p, null_bytes_);
  p += null_bytes_;
  for (const Column& column : fixed_) {
    if (has(wanted, column)) {
      if (column.is_null(record)) {
        store_null_value(column, record);
      } else {
        std::memcpy(record + column.offset, p, column.bytes);
      }
    }
    p += column.bytes;
  }
  for (Variable& variable : variable_) {
    const Column& column = variable.column;
    Stored stored;
    if (!next_variable(&p, end, &stored)) return malformed();
    if (!has(wanted, column)) continue;
    if (column.is_null(record)) {
      store_null_value(column, record);
      continue;
    }
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
