// What the cluster is: the database's identity, made once, and the placement of its data on groups
// of storage nodes. Thread-safe.
//
//   TP1  The identity is made once and never changes; whoever has another is told so.
//   TP2  Placements follow each other one by one: a new one is made only in place of the one its
//        maker has read, and its generation is the next.
//   TP3  A placement that is invalid is neither written nor returned.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "registry/keys.h"
#include "registry/registry.h"

namespace strata::registry {

struct DatabaseIdentity {
  uint64_t database_id = 0;  // not 0
  std::string profile;       // e.g. "logdb-mv-sr"
  uint32_t data_format = 0;
  bool operator==(const DatabaseIdentity&) const = default;
};

struct StorageGroup {
  uint32_t id = 0;                 // not 0; never used again for another group
  std::vector<std::string> nodes;  // members' names; every one holds all pages of the group
  uint32_t write_quorum = 0;       // of them
  bool operator==(const StorageGroup&) const = default;
};

struct Placement {
  uint64_t generation = 0;  // 1, 2, 3 ...
  std::vector<StorageGroup> groups;
  Version version;  // of the key

  // The group that holds a space. A group that is added takes only its share of the spaces, all
  // others stay (rendezvous hashing).
  [[nodiscard]] const StorageGroup& group_of(SpaceId space) const;
};

// kInvalidArgument: says what is wrong.
Status check_placement(const Placement& placement);

class Topology {
 public:
  // Not OK: what is there cannot be read (kDataLoss).
  using Handler = absl::AnyInvocable<void(const StatusOr<Placement>&)>;

  Topology(Registry* registry, ClusterKeys keys) : registry_(registry), keys_(std::move(keys)) {}

  // Makes the identity, or compares it with the one there is. OK: the registry holds this one.
  // Blocks. Errors: kFailedPrecondition (another one; the message says how it differs),
  // kInvalidArgument, kDataLoss, the registry's (ask again).
  Status create_identity(const DatabaseIdentity& identity, uint64_t deadline_us);
  // Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::optional<DatabaseIdentity>> identity(uint64_t deadline_us);
  // kFailedPrecondition unless the registry holds exactly this identity. Blocks.
  Status check_identity(const DatabaseIdentity& identity, uint64_t deadline_us);

  // Nothing: none was made yet. Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::optional<Placement>> placement(uint64_t deadline_us);
  // Makes `groups` the placement after `current` (nothing: the first one). Returns what is there
  // then; also OK when exactly that was made by a call whose outcome was unknown. Blocks. Errors:
  // kFailedPrecondition (another one was made meanwhile), kInvalidArgument, the registry's; after
  // kUnknown it may come to be later.
  StatusOr<Placement> change_placement(const std::optional<Placement>& current,
                                       std::vector<StorageGroup> groups, uint64_t deadline_us);
  // The handler gets the placement, first if there is one and whenever it changes.
  std::unique_ptr<Watch> watch_placement(Handler handler);

 private:
  Registry* const registry_;
  const ClusterKeys keys_;
};

}  // namespace strata::registry
