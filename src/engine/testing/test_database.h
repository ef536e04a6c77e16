// A database for tests: one table kind with a unique and a non-unique secondary index, and more of
// either kind when they are added, on any file system.
//   clustered key: id u64 big endian; row: unique value u64 | group u32 | text
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/testing/wait_until.h"
#include "engine/kernel.h"
#include "engine/kernel_seams.h"
#include "io/file_system.h"

namespace strata::engine::testing {

struct Row {
  uint64_t unique_value = 0;
  uint32_t group = 0;
  std::string text;
  std::string blob;  // kept outside when not empty
  bool operator==(const Row&) const = default;
};
using Rows = std::map<uint64_t, Row>;

inline std::string be64(uint64_t v) {
  std::string s;
  append_be64(&s, v);
  return s;
}
inline std::string be32(uint32_t v) {
  std::string s(4, '\0');
  store_be32(s.data(), v);
  return s;
}

inline TableSpec table_spec(const std::string& name) {
  TableSpec spec;
  spec.schema = "test";
  spec.name = name;
  spec.definition = std::string(3000, 'f') + name;
  spec.version = std::string(16, 'v');
  spec.indexes = {
      {"PRIMARY", true, "", 0, 0}, {"by_value", true, "", 0, 0}, {"by_group", false, "", 0, 0}};
  return spec;
}

// Row image with the buffers it points into.
struct OwnedImage {
  std::string key, inline_bytes, value_key, group_key;
  ExternalImage external;
  std::vector<EntryImage> entries;
  RowImage image;

  OwnedImage(uint64_t id, const Row& row, const TableSpec& spec) {
    key = be64(id);
    append_u64(&inline_bytes, row.unique_value);
    append_u32(&inline_bytes, row.group);
    inline_bytes += row.text;
    value_key = be64(row.unique_value);
    group_key = be32(row.group);
    for (uint32_t i = 1; i < spec.indexes.size(); ++i) {
      if (spec.indexes[i].unique) {
        entries.push_back({i, value_key, true, Bytes()});
      } else {
        entries.push_back({i, group_key, false, covering_of(row)});
      }
    }
    external.value = row.blob;
    image.key = key;
    image.inline_bytes = inline_bytes;
    image.externals = &external;
    image.external_count = row.blob.empty() ? 0 : 1;
    image.entries = entries.data();
    image.entry_count = static_cast<uint32_t>(entries.size());
    image.auto_increment_used = id;
  }
  static Bytes covering_of(const Row& row) {
    return row.text.size() < 100 ? Bytes(row.text) : Bytes();
  }
};

inline Status insert(Session* s, const TableRef& t, uint64_t id, const Row& row) {
  const OwnedImage image(id, row, t->spec());
  uint32_t duplicate = 0;
  return s->insert_row(t.get(), image.image, &duplicate);
}
inline Status update(Session* s, const TableRef& t, uint64_t id, const Row& before, uint64_t new_id,
                     const Row& after) {
  const OwnedImage old_image(id, before, t->spec());
  const OwnedImage new_image(new_id, after, t->spec());
  uint32_t duplicate = 0;
  return s->update_row(t.get(), old_image.key, new_image.image, old_image.entries.data(),
                       old_image.image.entry_count, &duplicate);
}
inline Status remove(Session* s, const TableRef& t, uint64_t id, const Row& before) {
  const OwnedImage old_image(id, before, t->spec());
  return s->delete_row(t.get(), old_image.key, old_image.entries.data(),
                       old_image.image.entry_count);
}

inline Status decode(Bytes bytes, Row* row) {
  ByteReader in(bytes);
  row->unique_value = in.u64();
  row->group = in.u32();
  if (!in.ok()) return error_corruption("row too short");
  row->text.assign(in.bytes(in.remaining()));
  return ok_status();
}

inline Status decode(TableCursor* cursor, Row* row) {
  STRATA_RETURN_IF_ERROR(decode(cursor->row(), row));
  row->blob.clear();
  return cursor->external_count() == 0 ? ok_status() : cursor->external(0, &row->blob);
}

inline constexpr const char* kReturnedTwice = "a row was returned twice";

// Everything the session sees, through the given index.
inline StatusOr<Rows> scan(Session* s, const TableRef& t, uint32_t index = 0,
                           bool backwards = false) {
  Rows rows;
  TableCursor cursor(s, t, index);
  STRATA_RETURN_IF_ERROR(backwards ? cursor.seek_before(Bytes()) : cursor.seek(Bytes()));
  while (cursor.valid()) {
    bool gone = false;
    STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
    if (!gone) {
      Row row;
      STRATA_RETURN_IF_ERROR(decode(&cursor, &row));
      if (!rows.emplace(load_be64(cursor.clustered_key().data()), row).second) {
        return error_corruption(kReturnedTwice);
      }
    }
    STRATA_RETURN_IF_ERROR(backwards ? cursor.prev() : cursor.next());
  }
  return rows;
}

// For check_table().
inline Kernel::RowEntries entries_of(const TableRef& table) {
  return [table](Bytes clustered_key, Bytes bytes, const IndexBuild::External&,
                 const Kernel::EmitEntry& emit) -> Status {
    Row row;
    STRATA_RETURN_IF_ERROR(decode(bytes, &row));
    const OwnedImage image(load_be64(clustered_key.data()), row, table->spec());
    for (const EntryImage& entry : image.entries) emit(entry.index, entry.key);
    return ok_status();
  };
}

// Builds what the definition has more than the table, in the session's transaction.
inline Status build_indexes(Session* s, const TableRef& table, TableSpec* spec, IndexBuild* build) {
  build->entries_of = [spec](Bytes clustered_key, Bytes bytes, const IndexBuild::External&,
                             const IndexBuild::Emit& emit) -> Status {
    Row row;
    STRATA_RETURN_IF_ERROR(decode(bytes, &row));
    const OwnedImage image(load_be64(clustered_key.data()), row, *spec);
    for (const EntryImage& entry : image.entries) STRATA_RETURN_IF_ERROR(emit(entry));
    return ok_status();
  };
  return s->build_indexes(table, spec, build);
}
inline IndexSpec new_index(const std::string& name, bool unique) {
  IndexSpec index;
  index.name = name;
  index.unique = unique;
  return index;
}
inline Status add_index(Session* s, const std::string& name, bool unique,
                        uint64_t memory_bytes = 64u << 10) {
  STRATA_ASSIGN_OR_RETURN(const TableRef table, s->open_table("test", name));
  TableSpec spec = table->spec();
  const std::string index = "added_" + std::to_string(spec.indexes.size());
  spec.indexes.push_back(new_index(index, unique));
  IndexBuild build;
  build.memory_bytes = memory_bytes;
  STRATA_RETURN_IF_ERROR(build_indexes(s, table, &spec, &build));
  return s->alter_table(spec);
}
inline Status drop_index(Session* s, const std::string& name, size_t position) {
  STRATA_ASSIGN_OR_RETURN(const TableRef table, s->open_table("test", name));
  TableSpec spec = table->spec();
  spec.indexes.erase(spec.indexes.begin() + static_cast<ptrdiff_t>(position));
  return s->alter_table(spec);
}

inline void expect_consistent(Kernel* kernel, const TableRef& table) {
  auto session = kernel->new_session();
  session->begin(Isolation::kRepeatableRead);
  CheckResult result;
  const Status status = kernel->check_table(session.get(), table, true, entries_of(table), &result);
  EXPECT_TRUE(status.ok()) << status;
  for (const std::string& problem : result.problems) ADD_FAILURE() << problem;
  EXPECT_TRUE(session->rollback().ok());
}

// A number from the environment: seeds, and how much of a test.
inline uint64_t environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

using strata::testing::wait_until;

inline uint64_t counter_of(Kernel* kernel, std::string_view name) {
  for (const Kernel::Counter& counter : kernel->counters())
    if (name == counter.name) return counter.value;
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

inline KernelOptions options_on(FileSystem* fs, const std::string& directory = "/db") {
  KernelOptions options;
  options.directory = directory;
  options.file_system = fs;
  options.background = false;
  options.direct_io = false;
  options.buffer_pool_bytes = 4u << 20;
  options.log_segment_bytes = 4u << 20;
  options.log_buffer_bytes = 1u << 20;
  options.log_checkpoint_bytes = 4u << 20;
  return options;
}

}  // namespace strata::engine::testing
