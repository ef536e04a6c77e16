#include "clients/compute/node_identity.h"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "io/file_system.h"
#include "transport/secret.h"

namespace strata::clients {

namespace {

// "strata-node 1 <identity, 16 hex digits> <crc32c of what is before it, 8 hex digits>\n"
constexpr size_t kIdentityEnd = 14 + 16;
constexpr size_t kFileBytes = kIdentityEnd + 1 + 8 + 1;
using Line = std::array<char, kFileBytes + 1>;

Line line_of(uint64_t identity) {
  Line line{};
  std::snprintf(line.data(), line.size(), "strata-node 1 %016" PRIx64, identity);
  std::snprintf(line.data() + kIdentityEnd, line.size() - kIdentityEnd, " %08" PRIx32 "\n",
                crc32c(line.data(), kIdentityEnd));
  return line;
}

Status damaged(const std::string& path) {
  return error_corruption(
      path +
      " is damaged. It tells this node from others and holds nothing else: with "
      "the node stopped it may be removed; a new one is made at the next start");
}

StatusOr<uint64_t> read_identity(File* file) {
  Line line{};
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file->read_at(0, line.data(), line.size(), &got));
  uint64_t identity = 0;
  if (got != kFileBytes || std::sscanf(line.data(), "strata-node 1 %16" SCNx64, &identity) != 1 ||
      std::memcmp(line.data(), line_of(identity).data(), kFileBytes) != 0)
    return damaged(file->path());
  return identity;
}

}  // namespace

StatusOr<uint64_t> node_identity(FileSystem* files, const std::string& directory) {
  STRATA_RETURN_IF_ERROR(files->make_directory(directory));
  const std::string path = directory + "/node-identity";
  auto there = files->open(path, {});
  if (there.ok()) return read_identity(there->get());
  if (!is_not_found(there.status())) return there.status();
  uint64_t identity = 0;
  while (identity == 0)
    transport::system_entropy()->fill(reinterpret_cast<char*>(&identity), sizeof identity);
  const std::string written = path + ".new";
  STRATA_RETURN_IF_ERROR(files->remove(written));
  STRATA_ASSIGN_OR_RETURN(auto file, files->open(written, {.create = true, .exclusive = true}));
  STRATA_RETURN_IF_ERROR(file->write_at(0, line_of(identity).data(), kFileBytes));
  STRATA_RETURN_IF_ERROR(file->sync_data());
  STRATA_RETURN_IF_ERROR(files->rename(written, path));
  STRATA_RETURN_IF_ERROR(files->sync_directory(directory));
  return identity;
}

}  // namespace strata::clients
