// A database for tests: one table kind with a unique and a non-unique secondary index, on any file
// system.
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
  EntryImage entries[2];
  RowImage image;

  OwnedImage(uint64_t id, const Row& row) {
    key = be64(id);
    append_u64(&inline_bytes, row.unique_value);
    append_u32(&inline_bytes, row.group);
    inline_bytes += row.text;
    value_key = be64(row.unique_value);
    group_key = be32(row.group);
    entries[0] = {1, value_key, true, Bytes()};
    entries[1] = {2, group_key, false, row.text.size() < 100 ? Bytes(row.text) : Bytes()};
    external.value = row.blob;
    image.key = key;
    image.inline_bytes = inline_bytes;
    image.externals = &external;
    image.external_count = row.blob.empty() ? 0 : 1;
    image.entries = entries;
    image.entry_count = 2;
    image.auto_increment_used = id;
  }
};

inline Status insert(Session* s, const TableRef& t, uint64_t id, const Row& row) {
  const OwnedImage image(id, row);
  uint32_t duplicate = 0;
  return s->insert_row(t.get(), image.image, &duplicate);
}
inline Status update(Session* s, const TableRef& t, uint64_t id, const Row& before, uint64_t new_id,
                     const Row& after) {
  const OwnedImage old_image(id, before);
  const OwnedImage new_image(new_id, after);
  uint32_t duplicate = 0;
  return s->update_row(t.get(), old_image.key, new_image.image, old_image.entries, 2, &duplicate);
}
inline Status remove(Session* s, const TableRef& t, uint64_t id, const Row& before) {
  const OwnedImage old_image(id, before);
  return s->delete_row(t.get(), old_image.key, old_image.entries, 2);
}

inline Status decode(TableCursor* cursor, Row* row) {
  ByteReader in(cursor->row());
  row->unique_value = in.u64();
  row->group = in.u32();
  if (!in.ok()) return error_corruption("row too short");
  row->text.assign(in.bytes(in.remaining()));
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

inline Status entries_of(Bytes clustered_key, Bytes row,
                         const std::function<Status(uint32_t, std::string*)>&,
                         const Kernel::EmitEntry& emit) {
  ByteReader in(row);
  const uint64_t value = in.u64();
  const uint32_t group = in.u32();
  if (!in.ok()) return error_corruption("row too short");
  emit(1, be64(value));
  emit(2, be32(group));
  return ok_status();
}

inline void expect_consistent(Kernel* kernel, const TableRef& table) {
  auto session = kernel->new_session();
  session->begin(Isolation::kRepeatableRead);
  CheckResult result;
  const Status status = kernel->check_table(session.get(), table, true, entries_of, &result);
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
  options.lock_directory = false;
  options.background = false;
  options.direct_io = false;
  options.buffer_pool_bytes = 4u << 20;
  options.log_segment_bytes = 4u << 20;
  options.log_buffer_bytes = 1u << 20;
  options.log_checkpoint_bytes = 4u << 20;
  return options;
}

}  // namespace strata::engine::testing
