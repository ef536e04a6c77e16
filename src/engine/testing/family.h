// Tables with foreign keys for tests, and what the server does for rows that the kernel changes by
// itself.
// Every table has the columns id, a and b: numbers, of which a and b may be NULL.
//   indexes: PRIMARY (id), a, b (descending in some tables), ab (a, b)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/table_codec.h"
#include "engine/testing/test_database.h"

namespace strata::engine::testing {

using Number = std::optional<uint64_t>;
struct Member {
  uint64_t id = 0;
  Number a = std::nullopt;
  Number b = std::nullopt;
  bool operator==(const Member&) const = default;
};

inline Number& column_of(Member* m, const std::string& name, Number* id) {
  if (name == "a") return m->a;
  if (name == "b") return m->b;
  *id = m->id;
  return *id;
}

inline TableSpec family_spec(const std::string& name, bool descending = false) {
  TableSpec spec;
  spec.schema = "test";
  spec.name = name;
  spec.internal_name = name.compare(0, 4, "#sql") == 0;
  spec.definition = descending ? "d" : "a";
  spec.version = std::string(16, 'v');
  spec.indexes = {{"PRIMARY", true, "", 0, 0},
                  {"a", false, "", 0, 0},
                  {"b", false, "", 0, 0},
                  {"ab", false, "", 0, 0}};
  const KeyPartSpec id{"id", "number", false, false, false, 8, ""};
  const KeyPartSpec a{"a", "number", true, false, false, 8, ""};
  KeyPartSpec b{"b", "number", true, false, false, 8, ""};
  spec.indexes[0].parts = {id};
  spec.indexes[1].parts = {a};
  spec.indexes[3].parts = {a, b};
  b.descending = descending;
  spec.indexes[2].parts = {b};
  for (IndexSpec& index : spec.indexes) index.whole = true;
  return spec;
}

inline ForeignKeySpec refers(const std::string& name, std::vector<std::string> columns,
                             const std::string& parent, std::vector<std::string> parent_columns,
                             ReferentialAction on_delete = ReferentialAction::kRestrict,
                             ReferentialAction on_update = ReferentialAction::kRestrict) {
  return {name,      std::move(columns), table_key("test", parent), std::move(parent_columns),
          on_delete, on_update};
}

inline void append_number(std::string* out, const Number& n, bool descending = false) {
  std::string image(1, n.has_value() ? '\1' : '\0');
  if (n.has_value()) image += be64(*n);
  if (descending)
    for (char& c : image) c = static_cast<char>(~c);
  *out += image;
}

struct MemberImage {
  std::string key, row;
  std::string keys[4];
  std::vector<EntryImage> entries;
  RowImage image;

  MemberImage() = default;
  MemberImage(const Member& m, const TableSpec& spec) { make(m, spec); }
  MemberImage(const MemberImage&) = delete;
  MemberImage& operator=(const MemberImage&) = delete;
  void make(const Member& m, const TableSpec& spec) {
    key = be64(m.id);
    row.clear();
    append_number(&row, m.id);
    append_number(&row, m.a);
    append_number(&row, m.b);
    for (std::string& k : keys) k.clear();
    append_number(&keys[1], m.a);
    append_number(&keys[2], m.b, spec.definition == "d");
    append_number(&keys[3], m.a);
    append_number(&keys[3], m.b);
    entries.clear();
    for (uint32_t i = 1; i < 4; ++i) entries.push_back({i, keys[i], false, Bytes()});
    image = RowImage{};
    image.key = key;
    image.inline_bytes = row;
    image.entries = entries.data();
    image.entry_count = 3;
  }
};

inline Member member_of(Bytes row) {
  Member m;
  ByteReader in(row);
  const auto number = [&in]() -> Number {
    if (in.u8() == 0) return std::nullopt;
    return load_be64(in.bytes(8).data());
  };
  m.id = number().value_or(0);
  m.a = number();
  m.b = number();
  EXPECT_TRUE(in.ok());
  return m;
}

// The call after which a codec fails; 0: none does.
struct CodecFailure {
  int in = 0;
  Status next() {
    return in != 0 && --in == 0 ? error_internal("the codec was to fail here") : ok_status();
  }
};

class FamilyCodec final : public TableCodec {
 public:
  FamilyCodec(const TableSpec& spec, CodecFailure* failure) : spec_(spec), failure_(failure) {}
  Status remove(TableCursor* at, Row* out) override {
    STRATA_RETURN_IF_ERROR(failure_->next());
    before_.make(member_of(at->row()), spec_);
    *out = Row{{}, before_.key, before_.entries.data(), 3, false};
    return ok_status();
  }
  Status set_null(TableCursor* at, const ForeignKeySpec& key, Row* out) override {
    STRATA_RETURN_IF_ERROR(failure_->next());
    Member m = member_of(at->row());
    before_.make(m, spec_);
    Number id;
    for (const std::string& c : key.columns) column_of(&m, c, &id) = std::nullopt;
    return changed(m, out);
  }
  Status copy_from(TableCodec*, TableCursor* parent_at, TableCursor* at, const ForeignKeySpec& key,
                   Row* out) override {
    STRATA_RETURN_IF_ERROR(failure_->next());
    Member parent = member_of(parent_at->row());
    Member m = member_of(at->row());
    before_.make(m, spec_);
    for (size_t i = 0; i < key.columns.size(); ++i) {
      Number from_id;
      Number id;
      const Number value = column_of(&parent, key.parent_columns[i], &from_id);
      column_of(&m, key.columns[i], &id) = value;
      if (key.columns[i] == "id") m.id = value.value_or(0);
    }
    return changed(m, out);
  }

 private:
  Status changed(const Member& m, Row* out) {
    after_.make(m, spec_);
    *out = Row{after_.image, before_.key, before_.entries.data(), 3, after_.row == before_.row};
    return ok_status();
  }
  TableSpec spec_;
  CodecFailure* const failure_;
  MemberImage before_, after_;
};

class FamilyCodecs final : public TableCodecs {
 public:
  CodecFailure failure;  // for one thread
  void about_to_change(const TableSpec&) override {}
  StatusOr<std::unique_ptr<TableCodec>> open(const TableSpec& spec) override {
    return std::unique_ptr<TableCodec>(new FamilyCodec(spec, &failure));
  }
  Status describe(TableSpec* spec) override {
    const TableSpec with = family_spec(spec->name, spec->definition == "d");
    for (size_t i = 0; i < spec->indexes.size(); ++i) {
      spec->indexes[i].parts = with.indexes[i].parts;
      spec->indexes[i].whole = true;
    }
    return ok_status();
  }
  // `@0023p` is `#p`, as in the server.
  std::string shown_name(Bytes name) override {
    return name.substr(0, 5) == "@0023" ? "#" + std::string(name.substr(5)) : std::string(name);
  }
};

inline Status insert(Session* s, const TableRef& t, const Member& m) {
  const MemberImage image(m, t->spec());
  uint32_t duplicate = 0;
  return s->insert_row(t.get(), image.image, &duplicate);
}
inline Status update(Session* s, const TableRef& t, const Member& before, const Member& after) {
  const MemberImage old_image(before, t->spec());
  const MemberImage new_image(after, t->spec());
  uint32_t duplicate = 0;
  return s->update_row(t.get(), old_image.key, new_image.image, old_image.entries.data(), 3,
                       &duplicate);
}
inline Status remove(Session* s, const TableRef& t, const Member& m) {
  const MemberImage image(m, t->spec());
  return s->delete_row(t.get(), image.key, image.entries.data(), 3);
}

using Members = std::map<uint64_t, Member>;
inline StatusOr<Members> members(Session* s, const TableRef& t, uint32_t index = 0) {
  Members out;
  TableCursor cursor(s, t, index);
  STRATA_RETURN_IF_ERROR(cursor.seek(Bytes()));
  while (cursor.valid()) {
    bool gone = false;
    STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
    if (!gone) {
      const Member m = member_of(cursor.row());
      if (!out.emplace(m.id, m).second) return error_corruption(kReturnedTwice);
    }
    STRATA_RETURN_IF_ERROR(cursor.next());
  }
  return out;
}

inline void expect_whole(Kernel* kernel, const TableRef& table) {
  auto session = kernel->new_session();
  session->begin(Isolation::kRepeatableRead);
  CheckResult result;
  const auto entries = [&](Bytes, Bytes row, const IndexBuild::External&,
                           const Kernel::EmitEntry& emit) -> Status {
    const MemberImage image(member_of(row), table->spec());
    for (const EntryImage& entry : image.entries) emit(entry.index, entry.key);
    return ok_status();
  };
  const Status status = kernel->check_table(session.get(), table, true, entries, &result);
  EXPECT_TRUE(status.ok()) << status;
  for (const std::string& problem : result.problems) ADD_FAILURE() << problem;
  EXPECT_TRUE(session->rollback().ok());
}

}  // namespace strata::engine::testing
