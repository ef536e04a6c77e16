#include "mariadb/key_codec.h"

namespace strata::glue {
namespace {

bool is_text(const Column& column) { return column.kind != ColumnKind::kFixed; }

KeyPart::Form form_of(const Column& column) {
  if (is_text(column)) return KeyPart::Form::kText;
  switch (column.field->real_type()) {
    case MYSQL_TYPE_TINY:
    case MYSQL_TYPE_SHORT:
    case MYSQL_TYPE_INT24:
    case MYSQL_TYPE_LONG:
    case MYSQL_TYPE_LONGLONG:
    case MYSQL_TYPE_YEAR:
    case MYSQL_TYPE_NEWDATE:
    case MYSQL_TYPE_ENUM:
    case MYSQL_TYPE_SET:
      return KeyPart::Form::kInteger;
    case MYSQL_TYPE_DATETIME2:
    case MYSQL_TYPE_TIMESTAMP2:
    case MYSQL_TYPE_TIME2:
    case MYSQL_TYPE_NEWDECIMAL:
    case MYSQL_TYPE_BIT:
      return KeyPart::Form::kBytes;
    case MYSQL_TYPE_STRING:  // BINARY(n); other types that store bytes have their own order
      return column.field->type_handler() == &type_handler_string ? KeyPart::Form::kBytes
                                                                  : KeyPart::Form::kServer;
    default:
      return KeyPart::Form::kServer;
  }
}

bool is_unsigned(const Field* field) {
  switch (field->real_type()) {
    case MYSQL_TYPE_YEAR:
    case MYSQL_TYPE_NEWDATE:
    case MYSQL_TYPE_ENUM:
    case MYSQL_TYPE_SET:
      return true;
    default:
      return (field->flags & UNSIGNED_FLAG) != 0;
  }
}

void complement(uchar* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uchar>(~bytes[i]);
}

KeyPart describe_part(const TABLE* table, const KEY& key, uint number, KeyForm form) {
  const KEY_PART_INFO& info = key.key_part[number];
  KeyPart part;
  Field* const field = table->field[info.fieldnr - 1];
  part.column = describe_column(table, field);
  part.form = form_of(part.column);
  part.descending = (info.key_part_flag & HA_REVERSE_SORT) != 0;
  part.length = info.length;
  part.store_length = info.store_length;
  const bool blob = part.column.kind == ColumnKind::kBlob;
  part.is_prefix = blob || info.length < field->key_length();
  switch (part.form) {
    case KeyPart::Form::kInteger:
      part.is_unsigned = is_unsigned(field);
      part.image_bytes = part.column.bytes;
      part.in_key = true;
      break;
    case KeyPart::Form::kBytes:
      part.image_bytes = part.is_prefix ? info.length : part.column.bytes;
      part.in_key = !part.is_prefix;
      break;
    case KeyPart::Form::kServer:
      part.image_bytes = field->sort_length();
      part.in_covering = true;
      break;
    case KeyPart::Form::kText:
      part.prefix_characters = info.length / part.column.charset->mbmaxlen;
      part.image = StringImage(part.column.charset, part.prefix_characters);
      part.in_covering = !part.is_prefix;
      part.counts_spaces = form != KeyForm::kFirst && (key.flags & HA_NOSAME) != 0 &&
                           part.column.kind == ColumnKind::kChar &&
                           (part.column.charset->state & MY_CS_NOPAD) != 0;
      break;
  }
  return part;
}

}  // namespace

KeyCodec::KeyCodec(const TABLE* table, const KEY& key, KeyForm form) {
  for (uint i = 0; i < key.user_defined_key_parts; ++i)
    parts_.push_back(describe_part(table, key, i, form));
  has_prefix_ =
      std::any_of(parts_.begin(), parts_.end(), [](const KeyPart& p) { return p.is_prefix; });
  describe_plain();
  const uint primary = table->s->primary_key;
  if (primary == MAX_KEY || &key == &table->key_info[primary]) return;
  const KEY& clustered = table->key_info[primary];
  for (uint i = 0; i < clustered.user_defined_key_parts; ++i) {
    Extension extension{describe_part(table, clustered, i, form), kNotInKey};
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (parts_[p].column.field_index == extension.part.column.field_index) extension.key_part = p;
    }
    extensions_.push_back(std::move(extension));
  }
}

void KeyCodec::describe_plain() {
  for (const KeyPart& part : parts_) {
    if (part.column.null_bit != 0 || part.descending || !part.in_key) {
      plain_.clear();
      return;
    }
    plain_.push_back({part.column.offset, part.image_bytes, part.form == KeyPart::Form::kInteger,
                      part.is_unsigned});
    plain_bytes_ += part.image_bytes;
  }
}

bool KeyCodec::has_prefix_of(const MY_BITMAP* columns) const {
  return has_prefix_ && std::any_of(parts_.begin(), parts_.end(), [columns](const KeyPart& p) {
           return p.is_prefix && bitmap_is_set(columns, p.column.field_index);
         });
}

void KeyCodec::append_value(KeyPart* part, const uchar* raw, Bytes text, Buffer* out) {
  switch (part->form) {
    case KeyPart::Form::kInteger: {
      const size_t n = part->image_bytes;
      uchar* const to = out->grow(n);
      for (size_t i = 0; i < n; ++i) to[i] = raw[n - 1 - i];
      if (!part->is_unsigned) to[0] ^= 0x80;
      return;
    }
    case KeyPart::Form::kBytes:
      out->append(raw, part->image_bytes);
      return;
    case KeyPart::Form::kServer: {
      Field* const field = part->column.field;
      uchar* const to = out->grow(part->image_bytes);
      uchar* const own = field->ptr;
      field->ptr = const_cast<uchar*>(raw);
      // Some types read through val_*(), which may look at the NULL flag of the record.
      uchar* const null_ptr = field->null_ptr;
      field->null_ptr = nullptr;
      field->sort_string(to, part->image_bytes);
      field->null_ptr = null_ptr;
      field->ptr = own;
      return;
    }
    case KeyPart::Form::kText: {
      if (part->is_prefix) {
        const size_t cut = part->column.charset->charpos(text.data(), text.data() + text.size(),
                                                         part->prefix_characters);
        if (cut < text.size()) text = text.substr(0, cut);
        if (part->counts_spaces)
          text = text.substr(0, part->column.charset->lengthsp(text.data(), text.size()));
      }
      part->image.append(reinterpret_cast<const uchar*>(text.data()), text.size(), out);
      if (part->counts_spaces) {
        const size_t characters =
            part->column.charset->numchars(text.data(), text.data() + text.size());
        const size_t missing =
            part->prefix_characters - std::min<size_t>(characters, part->prefix_characters);
        out->append_byte(static_cast<uchar>(missing));
      }
      return;
    }
  }
}

void KeyCodec::append(const uchar* record, Buffer* out, bool* has_null) {
  *has_null = false;
  for (KeyPart& part : parts_) {
    const size_t begin = out->size();
    const bool null = part.column.is_null(record);
    if (part.column.null_bit != 0) out->append_byte(null ? 0 : 1);
    if (null) {
      *has_null = true;
    } else {
      const Bytes text =
          part.form == KeyPart::Form::kText ? variable_value(part.column, record) : Bytes();
      append_value(&part, record + part.column.offset, text, out);
    }
    if (part.descending) complement(out->data() + begin, out->size() - begin);
  }
}

const uchar* KeyCodec::append_server_value(KeyPart* part, const uchar* key, uint32_t store_length,
                                           Buffer* out) {
  const size_t begin = out->size();
  const uchar* value = key;
  bool null = false;
  if (part->column.null_bit != 0) {
    null = *value++ != 0;
    out->append_byte(null ? 0 : 1);
  }
  if (!null) {
    Bytes text;
    if (part->column.kind == ColumnKind::kVarchar || part->column.kind == ColumnKind::kBlob) {
      text = Bytes(reinterpret_cast<const char*>(value) + HA_KEY_BLOB_LENGTH, load_u16(value));
    } else if (part->column.kind == ColumnKind::kChar) {
      const char* const chars = reinterpret_cast<const char*>(value);
      text = Bytes(chars, part->column.charset->lengthsp(chars, part->length));
    }
    append_value(part, value, text, out);
  }
  if (part->descending) complement(out->data() + begin, out->size() - begin);
  return key + store_length;
}

void KeyCodec::append_server_key(const uchar* key, uint length, Buffer* out, size_t* own_bytes) {
  *own_bytes = SIZE_MAX;
  const size_t start = out->size();
  const uchar* const begin = key;
  const uchar* const end = key + length;
  for (KeyPart& part : parts_) {
    if (key >= end) return;
    key = append_server_value(&part, key, part.store_length, out);
  }
  *own_bytes = out->size() - start;
  for (Extension& extension : extensions_) {
    if (key >= end) return;
    if (extension.key_part == kNotInKey) {
      key = append_server_value(&extension.part, key, extension.part.store_length, out);
      continue;
    }
    const uchar* value = begin;
    for (size_t p = 0; p < extension.key_part; ++p) value += parts_[p].store_length;
    append_server_value(&extension.part, value, 0, out);
  }
}

size_t KeyCodec::value_bytes(const KeyPart& part, Bytes image) {
  if (part.form == KeyPart::Form::kText) {
    const size_t bytes = part.image.measure(image, part.descending);
    if (!part.counts_spaces || bytes == 0) return bytes;
    return bytes < image.size() ? bytes + 1 : 0;
  }
  return image.size() < part.image_bytes ? 0 : part.image_bytes;
}

namespace {

// Back from KeyCodec::append_value(): big endian, the sign bit of signed numbers flipped.
inline void store_integer(const uchar* from, size_t bytes, bool is_unsigned, uchar* to) noexcept {
  if (bytes == 4) {
    uint32_t value = load_be32(reinterpret_cast<const char*>(from));
    if (!is_unsigned) value ^= uint32_t{1} << 31;
    store_u32(to, value);
    return;
  }
  if (bytes == 8) {
    uint64_t value = load_be64(reinterpret_cast<const char*>(from));
    if (!is_unsigned) value ^= uint64_t{1} << 63;
    store_u64(to, value);
    return;
  }
  for (size_t i = 0; i < bytes; ++i) to[bytes - 1 - i] = from[i];
  if (!is_unsigned) to[bytes - 1] ^= 0x80;
}

}  // namespace

bool KeyCodec::decode_plain(Bytes key, uchar* record) const noexcept {
  if (key.size() < plain_bytes_) return false;
  const uchar* from = reinterpret_cast<const uchar*>(key.data());
  for (const PlainPart& part : plain_) {
    uchar* const to = record + part.offset;
    if (part.integer) {
      store_integer(from, part.bytes, part.is_unsigned, to);
    } else {
      std::memcpy(to, from, part.bytes);
    }
    from += part.bytes;
  }
  return true;
}

bool KeyCodec::decode(Bytes key, uchar* record) const {
  if (!plain_.empty()) return decode_plain(key, record);
  for (const KeyPart& part : parts_) {
    const uchar flip = part.descending ? 0xff : 0;
    if (part.column.null_bit != 0) {
      if (key.empty()) return false;
      const bool null = (static_cast<uchar>(key[0]) ^ flip) == 0;
      key.remove_prefix(1);
      part.column.set_null(record, null);
      if (null) {
        store_null_value(part.column, record);
        continue;
      }
    }
    const size_t size = value_bytes(part, key);
    if (size == 0) return false;
    if (part.in_key) {
      uchar* const to = record + part.column.offset;
      const uchar* const from = reinterpret_cast<const uchar*>(key.data());
      if (part.form == KeyPart::Form::kInteger) {
        for (size_t i = 0; i < size; ++i) to[size - 1 - i] = from[i] ^ flip;
        if (!part.is_unsigned) to[size - 1] ^= 0x80;
      } else {
        for (size_t i = 0; i < size; ++i) to[i] = from[i] ^ flip;
      }
    }
    key.remove_prefix(size);
  }
  return true;
}

bool KeyCodec::part_ends(Bytes key, std::vector<uint32_t>* ends) const {
  ends->clear();
  size_t at = 0;
  for (const KeyPart& part : parts_) {
    bool null = false;
    if (part.column.null_bit != 0) {
      if (at >= key.size()) return false;
      null = (static_cast<uchar>(key[at]) ^ (part.descending ? 0xff : 0)) == 0;
      ++at;
    }
    if (!null) {
      const size_t size = value_bytes(part, key.substr(at));
      if (size == 0) return false;
      at += size;
    }
    ends->push_back(static_cast<uint32_t>(at));
  }
  return true;
}

size_t KeyCodec::most_bytes() const {
  size_t bytes = 0;
  for (const KeyPart& part : parts_)
    bytes += 2 + (part.form == KeyPart::Form::kText ? part.image.most_bytes(part.length)
                                                    : part.image_bytes);
  return bytes;
}

size_t KeyCodec::fixed_bytes() const {
  size_t bytes = 0;
  for (const KeyPart& part : parts_) {
    if (part.form == KeyPart::Form::kText || part.column.null_bit != 0) return 0;
    bytes += part.image_bytes;
  }
  return bytes;
}

bool keys_are_supported(const TABLE* table, bool raise_error) {
  for (uint i = 0; i < table->s->keys; ++i) {
    const KEY& key = table->key_info[i];
    for (uint p = 0; p < key.user_defined_key_parts; ++p) {
      const Field* const field = table->field[key.key_part[p].fieldnr - 1];
      CHARSET_INFO* const collation = field->charset();
      if (StringImage::supports(collation)) continue;
      if (!raise_error) return false;
      my_printf_error(
          ER_UNKNOWN_ERROR,
          "STRATA cannot index column '%s': collation %s has no order-preserving keys. Use another "
          "collation for the column or leave it out of key '%s'",
          MYF(0), field->field_name.str, collation->coll_name.str, key.name.str);
      return false;
    }
  }
  return true;
}

}  // namespace strata::glue
