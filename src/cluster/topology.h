// What the cluster is: the database's identity, made once, and the placement of its data on groups
// of storage nodes. Thread-safe.
//
//   TP1  The identity is made once and never changes; whoever has another is told so.
//   TP2  Placements follow each other one by one: a new one is made only in place of the one its
//        maker has read, and its generation is the next.
//   TP3  A placement that is invalid is neither written nor returned.
//   TP4  A group changes by one step at a time: one node takes another one's place, or one is added
//        at the end and the write quorum stays or grows by one. That is as much as one placement
//        can change without a holder of the old one and a holder of the new one acknowledging and
//        recovering past each other (docs/adr/2026-11-23-changing-storage-nodes.md). Or one is
//        taken out and the others have a majority as write quorum: by the stream's writer only,
//        with take_out(), which the group remembers.
//   TP5  Who has lost its place never gets one again: a process that slept meanwhile is not taken
//        for somebody who came later. A place remembers in which generation its node came.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "cluster/keys.h"
#include "registry/registry.h"

namespace strata::cluster {

// So many a group keeps when a node is taken out: of fewer none may be lost.
constexpr size_t kGroupNodesMin = 3;

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
  // TP5; change_placement() fills these in. By place: the generation in which the node came into
  // the group, 0: with it; empty: all 0. And the names that had a place.
  std::vector<uint64_t> joined = {};
  std::vector<std::string> retired = {};
  // The epoch of the stream's holder that took a node out last; zero: none did. Holders of lower
  // epochs are none any more, whether they know it or not (PR6 of that document).
  Epoch taken_out_by = {};
  bool operator==(const StorageGroup&) const = default;

  [[nodiscard]] std::optional<size_t> place_of(std::string_view node) const;
  [[nodiscard]] uint64_t joined_at(size_t place) const {
    return joined.empty() ? 0 : joined[place];
  }
};

struct Placement {
  uint64_t generation = 0;  // 1, 2, 3 ...
  std::vector<StorageGroup> groups;
  Version version;  // of the key

  // The group that holds a space. A group that is added takes only its share of the spaces, all
  // others stay (rendezvous hashing).
  [[nodiscard]] const StorageGroup& group_of(SpaceId space) const;
  // The group that keeps a stream's log, found in the same way.
  [[nodiscard]] const StorageGroup& group_of(StreamId stream) const;
  // The group in which a node has a place; null: it has none.
  [[nodiscard]] const StorageGroup* group_with(std::string_view node) const;
  // For whoever needs all pages and the log of every stream in one place, as everybody does yet: a
  // group whose log is not all of the log could not make its pages. unsupported: there are several
  // groups, which the message names.
  [[nodiscard]] StatusOr<const StorageGroup*> only_group() const;
};

// kInvalidArgument: says what is wrong.
Status check_placement(const Placement& placement);

// The groups with `replacement` in the place of `node`. Errors: kNotFound (no such node),
// kInvalidArgument.
StatusOr<std::vector<StorageGroup>> with_replaced(const Placement& placement, std::string_view node,
                                                  const std::string& replacement);
// The groups with one more node in that group. `write_quorum` 0: a majority. Errors: kNotFound (no
// such group), kInvalidArgument (TP4).
StatusOr<std::vector<StorageGroup>> with_added(const Placement& placement, uint32_t group,
                                               const std::string& node, uint32_t write_quorum);

// The groups without that node; the write quorum is a majority of those that stay. Errors:
// kNotFound (no such node), kInvalidArgument (too few would stay).
StatusOr<std::vector<StorageGroup>> with_taken_out(const Placement& placement,
                                                   std::string_view node);

// unsupported, with the remedy, when this program cannot read that database's pages and
// log.
Status check_data_format(const DatabaseIdentity& identity, std::string_view cluster);

class Topology {
 public:
  // Not OK: what is there cannot be read (kDataLoss).
  using Handler = absl::AnyInvocable<void(const StatusOr<Placement>&)>;

  Topology(Registry* registry, ClusterKeys keys) : registry_(registry), keys_(std::move(keys)) {}

  // Makes the identity, or compares it with the one there is. OK: the registry holds this one.
  // Blocks. Errors: wrong_database (another one; the message says how it differs),
  // kInvalidArgument, kDataLoss, the registry's (ask again).
  Status create_identity(const DatabaseIdentity& identity, uint64_t deadline_us);
  // Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::optional<DatabaseIdentity>> identity(uint64_t deadline_us);
  // wrong_database unless the registry holds exactly this identity. Blocks.
  Status check_identity(const DatabaseIdentity& identity, uint64_t deadline_us);

  // Nothing: none was made yet. Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::optional<Placement>> placement(uint64_t deadline_us);
  // Makes `groups` the placement after `current` (nothing: the first one). Returns what is there
  // then; also OK when exactly that was made by a call whose outcome was unknown. Blocks. Errors:
  // conflict (another one was made meanwhile), kInvalidArgument, the registry's; after
  // kUnknown it may come to be later. `with`: what else has to hold, or is changed with it.
  StatusOr<Placement> change_placement(const std::optional<Placement>& current,
                                       std::vector<StorageGroup> groups, uint64_t deadline_us,
                                       absl::Span<const Change> with = {});
  // The placement after `current` without that node, made by the stream's holder of epoch `holder`
  // (TP4). `with`: changes that are made with it, and what has to hold for that. Blocks. Errors:
  // conflict (one of them, or the placement, was changed meanwhile; it may also have
  // been made and replaced), kInvalidArgument, kNotFound (nothing was changed); after any other it
  // may come to be later, as long as what has to hold does.
  StatusOr<Placement> take_out(const Placement& current, std::string_view node, Epoch holder,
                               absl::Span<const Change> with, uint64_t deadline_us);
  // The handler gets the placement, first if there is one and whenever it changes.
  std::unique_ptr<Watch> watch_placement(Handler handler);

 private:
  // Makes `next` in the place of the placement of that version.
  StatusOr<Placement> make(Placement next, Version current, absl::Span<const Change> with,
                           uint64_t deadline_us);
  Registry* const registry_;
  const ClusterKeys keys_;
};

}  // namespace strata::cluster
