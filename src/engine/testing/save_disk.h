// Writes a folder of a test disk into a real one, for a look at a failure.
#pragma once

#include <string>
#include <vector>

#include "io/file_system.h"

namespace strata::engine::testing {

inline Status save_disk(FileSystem* from, const std::string& folder, const std::string& to) {
  const std::unique_ptr<FileSystem> disk = make_posix_file_system();
  STRATA_RETURN_IF_ERROR(disk->make_directory(to));
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, from->list(folder));
  std::vector<char> chunk(64u << 10);
  const std::vector<char> zeroes(chunk.size(), 0);
  for (const std::string& name : names) {
    const std::string source_path = folder + "/" + name;
    const std::string target_path = to + "/" + name;
    if (from->list(source_path).ok()) {
      STRATA_RETURN_IF_ERROR(save_disk(from, source_path, target_path));
      continue;
    }
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> source, from->open(source_path, {}));
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> target,
                            disk->open(target_path, {.create = true}));
    STRATA_RETURN_IF_ERROR(target->truncate(0));
    STRATA_ASSIGN_OR_RETURN(const uint64_t size, source->size());
    STRATA_RETURN_IF_ERROR(target->truncate(size));
    for (uint64_t at = 0; at < size; at += chunk.size()) {
      size_t got = 0;
      STRATA_RETURN_IF_ERROR(source->read_at(at, chunk.data(), chunk.size(), &got));
      if (std::equal(chunk.begin(), chunk.begin() + static_cast<ptrdiff_t>(got), zeroes.begin()))
        continue;
      STRATA_RETURN_IF_ERROR(target->write_at(at, chunk.data(), got));
    }
  }
  return ok_status();
}

}  // namespace strata::engine::testing
