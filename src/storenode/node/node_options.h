// What a storage node is told when it starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/stop_flag.h"
#include "daemon/data_folder.h"
#include "storenode/logstore/log_store.h"
#include "storenode/replay/page_store.h"

namespace strata::storenode {

// Where a stream begins, and the one that a cluster has which says nothing else.
constexpr StreamId kFirstStream{1};

// Its data folder. docs/data_formats.md says what is in it.
extern const daemon::FolderKind kNodeFolder;

struct InitialGroup {
  std::vector<std::string> nodes;  // names; of them this one
  uint32_t write_quorum = 0;
};

PageStoreOptions default_pages();
// As much log as workers may leave alone with these sizes of the log cache and the map.
uint64_t replay_lag_for(const PageStoreOptions& pages);
LogStoreOptions default_log();

// How a node that is in no group gets into one: it changes the placement itself, when it starts.
struct Joining {
  std::string replaces;       // in that node's place; empty: added at the end of a group
  uint32_t write_quorum = 0;  // then; 0: a majority
  uint32_t group = 0;         // the one it is added to; 0: the only one
};

struct NodeOptions {
  std::string name;
  std::string cluster = "main";
  std::string directory;  // made when absent, in a folder that exists
  // "127.0.0.1:7101" (port 0: any free one), "[::1]:7101" or "unix:/path".
  std::vector<std::string> listen = {"127.0.0.1:0"};
  std::string advertise;       // what others are told; empty: the first it listens on
  std::string status_address;  // only told to others
  std::string profile = "logdb-mv-sr";
  // The log streams whose changes are in the pages here; all of them at every node of a group.
  // Where several servers write it is not looked at (ND9).
  std::vector<StreamId> streams = {kFirstStream};
  std::optional<InitialGroup> initial_group;  // made if the cluster has no placement yet
  std::optional<Joining> joining;             // if the node is in no group yet
  uint32_t lease_s = 10;
  // How long a node waits for the entry of one that had its name before, with another folder, to
  // go; nothing: for twice the lease and some seconds.
  std::optional<uint64_t> name_wait_us;
  uint64_t start_timeout_us = 0;  // for the registry to answer; 0: until it does
  uint64_t call_timeout_us = 2'000'000;
  uint32_t connections_max = 4096;  // by which nodes may call this one, at a time
  uint32_t workers = 4;
  uint32_t workers_waiting_max = 1000;
  // Pages that compute writes go through the system's cache, which keeps them for readers.
  bool buffered_pages = false;
  // Folder, cluster id, file system and mode are filled in by open().
  LogStoreOptions log = default_log();
  PageStoreOptions pages = default_pages();
  StopFlag* stop = nullptr;  // raised: open() gives up soon
};

// kInvalidArgument: says what is wrong.
Status check_options(const NodeOptions& options);
// Compute writes the pages and the node keeps them (written/); else it makes them from the log.
[[nodiscard]] bool pages_are_written(std::string_view profile);
// Several servers write the same tables, and a memory node writes their pages.
[[nodiscard]] bool has_several_writers(std::string_view profile);
// Of the others. kInvalidArgument: there is no such profile.
StatusOr<ReplayMode> mode_of_profile(std::string_view profile);
// As the transport wants it: "127.0.0.1:7101" becomes "tcp:127.0.0.1:7101".
[[nodiscard]] std::string transport_address(std::string_view address);

}  // namespace strata::storenode
