// For tests: the files of a version store, damaged on purpose.
#pragma once

#include <gtest/gtest.h>

#include <cstdarg>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_system.h"
#include "rocksdb/db.h"
#include "storenode/versions/rocks_file_system.h"

namespace strata::storenode::testing {

class SilentLogger final : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Writes past VersionDb, whose folder nobody has open. `put(family, key, value)`; RocksDB's own
// checksums fit then.
using PutRaw =
    std::function<void(const std::string& family, const std::string& key, std::string_view value)>;
inline void write_raw(SimFileSystem* disk, const std::string& directory,
                      const std::function<void(const PutRaw& put)>& write) {
  const auto env = make_rocks_env(disk);
  rocksdb::DBOptions plain;
  plain.env = env.get();
  plain.info_log = std::make_shared<SilentLogger>();
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const char* name : {"default", "map", "pages"})
    families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open(plain, directory, families, &handles, &raw).ok());
  const std::unique_ptr<rocksdb::DB> db(raw);
  write([&](const std::string& family, const std::string& key, std::string_view value) {
    for (rocksdb::ColumnFamilyHandle* const handle : handles) {
      if (handle->GetName() != family) continue;
      ASSERT_TRUE(db->Put({}, handle, key, rocksdb::Slice(value.data(), value.size())).ok());
    }
  });
  ASSERT_TRUE(db->Flush({}, handles).ok());
  for (rocksdb::ColumnFamilyHandle* const handle : handles)
    ASSERT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
}

inline std::string whole_file(SimFileSystem* disk, const std::string& path) {
  const auto file = disk->open(path, {.read_only = true});
  if (!file.ok()) return {};
  std::string bytes((*file)->size().value_or(0), '\0');
  size_t got = 0;
  EXPECT_TRUE((*file)->read_at(0, bytes.data(), bytes.size(), &got).ok());
  return bytes;
}

inline std::vector<std::string> files_of(SimFileSystem* disk, const std::string& directory,
                                         std::string_view ending) {
  std::vector<std::string> paths;
  const auto names = disk->list(directory);
  EXPECT_TRUE(names.ok());
  for (const std::string& name : *names)
    if (name.ends_with(ending)) paths.push_back(directory + "/" + name);
  return paths;
}

// A bit in each block of the map's tables but for their first ones, which are read when the store
// is opened. How many.
inline uint32_t damage_map(SimFileSystem* disk, const std::string& directory) {
  constexpr uint64_t kBlockBytes = 4096;
  uint32_t flipped = 0;
  for (const std::string& path : files_of(disk, directory, ".sst")) {
    const std::string bytes = whole_file(disk, path);
    // The name of the column family is among the properties of each table.
    if (bytes.find("namemap") == std::string::npos) continue;
    for (uint64_t at = kBlockBytes * 3 / 2; at < bytes.size() * 3 / 4; at += kBlockBytes, ++flipped)
      disk->flip_bit(path, at * 8);
  }
  return flipped;
}

// The oldest file of pages.
inline void lose_pages(SimFileSystem* disk, const std::string& directory) {
  const std::vector<std::string> paths = files_of(disk, directory, ".blob");
  ASSERT_FALSE(paths.empty());
  ASSERT_TRUE(disk->remove(paths.front()).ok());
}

}  // namespace strata::storenode::testing
