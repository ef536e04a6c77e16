#include "mariadb/object_versions.h"

#include <random>

#include "mariadb/cluster.h"
#include "mariadb/connection.h"

namespace strata::glue {
namespace {

constexpr std::string_view kPrefix = "version/";
constexpr std::array<std::string_view, kSharedKinds> kNames = {"files", "accounts", "servers",
                                                               "routines", "events"};

std::string key_of(SharedKind kind) {
  return std::string(kPrefix) + std::string(kNames[static_cast<size_t>(kind)]);
}

// OV1: of this life of this server.
const std::string& own() {
  static const std::string begins = [] {
    std::random_device random;
    std::string bytes;
    append_u64(&bytes, uint64_t{random()} << 32 | random());
    append_u64(&bytes, uint64_t{random()} << 32 | random());
    return bytes;
  }();
  return begins;
}

}  // namespace

Status note_change(engine::Session* session, SharedKind kind) {
  static std::atomic<uint64_t> count{0};
  std::string value = own();
  append_u64(&value, ++count);
  return session->journal_put(key_of(kind), value);
}

StatusOr<std::array<std::string, kSharedKinds>> all_versions() {
  std::array<std::string, kSharedKinds> versions;
  STRATA_RETURN_IF_ERROR(kernel->for_each_journal(kPrefix, [&](Bytes key, Bytes value) {
    for (size_t i = 0; i < kSharedKinds; ++i)
      if (key.substr(kPrefix.size()) == kNames[i]) versions[i] = std::string(value);
  }));
  STRATA_RETURN_IF_ERROR(may_answer());
  return versions;
}

StatusOr<std::string> version_of(SharedKind kind) {
  STRATA_ASSIGN_OR_RETURN(auto versions, all_versions());
  return std::move(versions[static_cast<size_t>(kind)]);
}

bool is_own_version(std::string_view version) { return version.starts_with(own()); }

}  // namespace strata::glue
