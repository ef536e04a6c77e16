// The pools of a memory node as calls (proto/memory_messages.h). Thread-safe.
//   PV1  Only attach() makes a pool, for a tenant who shows its token, within its quota (TN1, TN2),
//        and only after the registry was asked whose the stream is: while it does not answer,
//        nobody is attached. All other calls are of the user who was told the pool's incarnation.
//   PV2  A request that makes no sense, or is of nobody, changes nothing and is counted.
//   PV3  Nothing here blocks the server's thread. One pool's calls run in the order in which they
//        came; pools do not wait for each other.
//   PV4  A pool that the registry, asked for its latest word, does not name, and that nobody has
//        used for a while before, is given back with its memory (LG12): no recovery would believe
//        it, and whoever names it later finds that it is gone. Without the registry none is.
//   PV5  A file of another memory node, cluster or stream is never served, written or removed: it
//        is put aside under another name, with a line in the log.
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
    std::string folder;       // of the pools' files; it is there
    uint64_t node = 0;        // whose they are; not 0
    bool persistent = false;  // the folder's medium keeps what was synced (MF7)
    uint32_t reserve_slots = 256;
    // MY3: OK if the stream has no later holder than that one. Blocks. fenced; peer_down: it cannot
    // be said now.
    std::function<Status(StreamId stream, Epoch epoch)> check_epoch;
    // PV4: whether the registry names that content of this node for the stream. Blocks. Null: no
    // pool is ever given back.
    std::function<StatusOr<bool>(StreamId stream, uint64_t incarnation)> is_named;
    // Peers can open that region under the name from now on, until it is withdrawn. Block.
    std::function<void(const std::string& name, std::shared_ptr<transport::Region> region,
                       transport::RegionAccess access)>
        expose;
    std::function<void(const std::string& name)> withdraw;
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

  // PV4: gives back what was unused for so long, of the times at which this was called. By one
  // thread at a time. Blocks for the registry.
  void give_back_unused(uint64_t now_us, uint64_t unused_us);

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
  void pool_put_staged(Bytes payload, const To& to);
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
  void refuse_too_much(const To& to);
  using PoolPtr = std::shared_ptr<ServedPool>;
  PoolPtr find(const proto::PoolUser& user) const;
  Status attach(const proto::PoolAttachRequest& request, const To& to);
  StatusOr<PoolPtr> pool_for(const Key& key, const proto::PoolAttachRequest& request);
  StatusOr<PoolPtr> make_pool(const Key& key, uint32_t slots_max);
  // Opens or makes the file's pool, exposes it and puts it into the table.
  StatusOr<PoolPtr> enter(const Key& key, uint32_t slots);
  std::shared_ptr<Staging> stage(uint32_t places);
  void open_pool(const Key& key, const std::string& path);
  Status put_aside(const std::string& path);
  void give_back(const Key& key, uint64_t incarnation, uint64_t uses);
  void forget_ended();
  [[nodiscard]] std::string path_of(const Key& key) const;
  [[nodiscard]] std::optional<Key> key_of(std::string_view file) const;

  const Parts parts_;
  PoolCounters counters_;
  mutable Mutex mutex_{LatchRank::kPeers};
  std::map<Key, PoolPtr> pools_ STRATA_GUARDED_BY(mutex_);
  // Given back; they go once no thread has them and nothing runs for them.
  std::vector<PoolPtr> ended_ STRATA_GUARDED_BY(mutex_);
  std::set<Key> being_made_ STRATA_GUARDED_BY(mutex_);
  // Of who gives back: since when a pool is as it was.
  struct Seen {
    uint64_t incarnation = 0, uses = 0, since_us = 0;
  };
  std::map<Key, Seen> seen_;
};

}  // namespace strata::memnode
