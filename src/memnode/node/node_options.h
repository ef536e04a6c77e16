// What a memory node is told when it starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/stop_flag.h"
#include "daemon/data_folder.h"
#include "memnode/host/fusion_term.h"
#include "memnode/service/tenants.h"

namespace strata::memnode {

// Its data folder. docs/data_formats.md says what is in it.
extern const daemon::FolderKind kNodeFolder;

struct NodeOptions {
  std::string name;
  std::string cluster = "main";
  std::string directory;  // made when absent, in a folder that exists
  // Where the pools' files are: a folder on tmpfs, a DAX or an ordinary file system; made when
  // absent. Empty: the data folder.
  std::string pools;
  // That folder keeps what was synced over a power loss: an ordinary or DAX file system, not tmpfs.
  // Pages are warm after it then, and each call that changes the pool waits for the medium.
  bool persistent = false;
  uint64_t memory_bytes = 1ull << 30;  // for all pools
  std::vector<TenantOptions> tenants;  // none: everybody in the cluster may have all of it
  // Several servers that write the same tables share service.pages.slots pages here (memnode/host);
  // 0: none do. The name is the node's.
  FusionHostOptions fusion;
  std::string fusion_tenant;     // whose they are; empty: there are no tenants
  uint32_t reserve_slots = 256;  // of each pool: PSL8 in memnode/pool/pool.h
  // "127.0.0.1:7301" (port 0: any free one), "[::1]:7301" or "unix:/path".
  std::vector<std::string> listen = {"127.0.0.1:0"};
  std::string advertise;       // what others are told; empty: the first it listens on
  std::string status_address;  // only told to others
  std::string fabric;          // "tcp:127.0.0.1:0" or "verbs:10.0.0.1:0" (libfabric); empty: none
  uint32_t lease_s = 10;
  // As of storage nodes: how long it waits for the entry of one that had its name before.
  std::optional<uint64_t> name_wait_us;
  uint64_t start_timeout_us = 0;  // for the registry to answer; 0: until it does
  uint64_t call_timeout_us = 2'000'000;
  uint64_t storage_timeout_us = 3'000'000;  // for storage nodes to answer a write
  // A pool that the registry does not name is given back once nobody has used it for so long; 0:
  // never. Every tenth of it the node looks.
  uint64_t unused_us = 60'000'000;
  uint32_t connections_max = 4096;
  uint32_t workers = 4;
  StopFlag* stop = nullptr;  // raised: open() gives up soon
};

// kInvalidArgument: says what is wrong.
Status check_options(const NodeOptions& options);
// As the transport wants it: "127.0.0.1:7301" becomes "tcp:127.0.0.1:7301".
[[nodiscard]] std::string transport_address(std::string_view address);

}  // namespace strata::memnode
