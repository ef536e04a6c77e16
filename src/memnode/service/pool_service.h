// The pools of a memory node as calls (proto/memory_messages.h). Thread-safe.
//   PV1  Only attach() makes a pool, for a tenant who shows its token, within its quota (TN1, TN2),
//        and only after the registry was asked whose the stream is: while it does not answer,
//        nobody is attached. All other calls are of the user who was told the pool's incarnation.
//   PV2  A request that makes no sense, or is of nobody, changes nothing and is counted.
//   PV3  Nothing here blocks the server's thread. One pool's calls run in the order in which they
//        came; pools do not wait for each other.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/latch.h"
#include "memnode/service/served_pool.h"
#include "memnode/service/tenants.h"
#include "transport/calls/rpc_server.h"
#include "transport/regions/region.h"

namespace strata::memnode {

struct ServiceStatus {
  std::vector<PoolStatus> pools;
  std::vector<Tenants::Use> tenants;
};

class PoolService {
 public:
  struct Parts {
    std::string folder;  // of the pools' files; it is there
    uint32_t reserve_slots = 256;
    // MY3: OK if the stream has no later holder than that one. Blocks. fenced; peer_down: it cannot
    // be said now.
    std::function<Status(StreamId stream, Epoch epoch)> check_epoch;
    // Peers can open that region under the name from now on. Blocks.
    std::function<void(const std::string& name, std::shared_ptr<transport::Region> region)> expose;
    daemon::Offload offload;  // refuses nothing until it is stopped
    // Of threads of their own: what waits for the registry, or for a file of many gigabytes to get
    // its blocks, keeps nobody's pages waiting.
    daemon::Offload offload_attach;
    // Both outlive the service.
    Tenants* tenants = nullptr;
    StorageWriter* writer = nullptr;
  };
  explicit PoolService(Parts parts);
  PoolService(const PoolService&) = delete;
  PoolService& operator=(const PoolService&) = delete;

  // Once, before register_on(): the pools that an earlier process left. A file that cannot be read
  // is made anew when its stream attaches. Blocks. Errors: the folder's.
  Status open_pools();
  // Once, before the server listens.
  void register_on(transport::RpcServer* server);

  [[nodiscard]] const PoolCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] ServiceStatus status() const;
  // Why not all is well with the pages here.
  [[nodiscard]] Status trouble() const;

 private:
  using To = ServedPool::To;
  struct Key {
    Tenants::Number tenant = 0;
    StreamId stream;
    auto operator<=>(const Key&) const = default;
  };
  // Handlers have their methods' names.
  void pool_attach(Bytes payload, const To& to);
  void pool_list(Bytes payload, const To& to);
  void pool_put(Bytes payload, const To& to);
  void pool_lookup(Bytes payload, const To& to);
  void pool_drop(Bytes payload, const To& to);
  void pool_forget(Bytes payload, const To& to);
  void pool_write(Bytes payload, const To& to);
  void pool_write_again(Bytes payload, const To& to);
  void pool_synced(Bytes payload, const To& to);
  void pool_stored(Bytes payload, const To& to);
  void pool_checkpoint(Bytes payload, const To& to);

  template <class Message>
  void serve(const StatusOr<Message>& request, void (ServedPool::*run)(const Message&, const To&),
             const To& to);
  void refuse(const Status& why, const To& to);
  ServedPool* find(const proto::PoolUser& user) const;
  Status attach(const proto::PoolAttachRequest& request, const To& to);
  StatusOr<ServedPool*> pool_for(const Key& key, const proto::PoolAttachRequest& request);
  StatusOr<ServedPool*> make_pool(const Key& key, uint32_t slots_max);
  // Opens or makes the file's pool, exposes it and puts it into the table.
  StatusOr<ServedPool*> enter(const Key& key, uint32_t slots);
  void open_pool(const Key& key, const std::string& path);
  [[nodiscard]] std::string path_of(const Key& key) const;
  [[nodiscard]] std::optional<Key> key_of(std::string_view file) const;

  const Parts parts_;
  PoolCounters counters_;
  mutable Mutex mutex_{LatchRank::kPeers};
  std::map<Key, std::unique_ptr<ServedPool>> pools_ STRATA_GUARDED_BY(mutex_);  // none goes
  std::set<Key> being_made_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::memnode
