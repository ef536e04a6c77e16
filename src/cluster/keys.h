// Where in the registry a cluster keeps what (docs/data_formats.md), and which names are allowed.
#pragma once

#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/status.h"
#include "registry/registry.h"

namespace strata::cluster {

// The registry's words, of which everything here is made.
using registry::Change;
using registry::KeyValue;
using registry::Lease;
using registry::LeaseId;
using registry::Listing;
using registry::Registry;
using registry::Version;
using registry::Watch;
using registry::WatchBatch;
using registry::WatchedKeys;
using registry::WatchEvent;

constexpr size_t kNameBytesMax = 64;

// Streams by number. A server's own log has the server's number, 1 to 254.
constexpr StreamId log_stream_of(NodeId server) noexcept { return StreamId{server.value}; }
// Where the memory node that several servers share writes down whom it serves; its holder is that
// memory node (memnode/host). No server has its number.
constexpr StreamId kAuthorityStream{256};

// Letters, digits, '.', '_' and '-', not beginning with '.' or '-': of clusters, nodes, profiles.
[[nodiscard]] bool is_name(std::string_view text) noexcept;
// kInvalidArgument unless is_name(); `what` is for the message.
Status check_name(std::string_view what, std::string_view text);

// The keys of one cluster. A registry may serve several.
class ClusterKeys {
 public:
  // kInvalidArgument: not a name.
  static StatusOr<ClusterKeys> of(std::string_view cluster);

  [[nodiscard]] std::string identity() const { return root_ + "identity"; }
  [[nodiscard]] std::string placement() const { return root_ + "placement"; }
  [[nodiscard]] std::string members() const { return root_ + "members/"; }  // a prefix
  [[nodiscard]] std::string member(std::string_view name) const;
  [[nodiscard]] std::string streams() const { return root_ + "streams/"; }  // a prefix
  [[nodiscard]] std::string stream(StreamId stream) const;  // a prefix; of those that follow
  [[nodiscard]] std::string epoch(StreamId id) const { return stream(id) + "epoch"; }
  [[nodiscard]] std::string writer(StreamId id) const { return stream(id) + "writer"; }
  [[nodiscard]] std::string control(StreamId id) const { return stream(id) + "control"; }
  [[nodiscard]] std::string in_sync(StreamId id) const { return stream(id) + "in-sync"; }
  [[nodiscard]] std::string removal(StreamId id) const { return stream(id) + "removal"; }
  [[nodiscard]] std::string places() const { return root_ + "places/"; }  // a prefix
  [[nodiscard]] std::string place(NodeId number) const;
  [[nodiscard]] std::string memory(StreamId id) const { return stream(id) + "memory"; }

 private:
  explicit ClusterKeys(std::string root) : root_(std::move(root)) {}
  std::string root_;
};

}  // namespace strata::cluster
