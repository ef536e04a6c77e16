// A server's locks on names of tables, and the spaces that are dropped, where several servers write
// the same tables (dict/schema_changes.h), by way of a memory node. Thread-safe.
//
//   FC39  What others want back is forgotten in a thread that may block (SchemaUser::give_up()),
//         for try_us at a time: whoever uses it meanwhile is waited for, whoever comes waits. There
//         are `threads` of them, so that one table that is in use keeps others waiting for no other
//         one.
//   FC40  A wait ends with its grant, its time, its statement (interrupt), or its server's fence.
//         Then the memory node hears that nobody waits here any more.
//   FC45  Nothing is used without a lease of the memory node's epoch: who has got a name waits for
//         one, as long as for the name. A server that hears that it
//         is fenced has no names from then on.
//   FC41  What the server's last life had exclusively is let go when the kernel joins: it has
//         undone or finished what that was for (NL4).
//   FC42  A space is said to be left once the kernel has left it, and so often as it is asked.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/latch.h"
#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/name_holds.h"
#include "dict/schema_changes.h"
#include "proto/name_locks.h"

namespace strata::clients {

// How the memory node is asked. Thread-safe. Blocks until there is an answer, or for as long as a
// call may take; errors are the calls', and those of fusion::Names and fusion::DroppedSpaces. What
// it has to say comes by NameLocks::granted() and its neighbours.
class NameService {
 public:
  virtual ~NameService() = default;
  virtual Status ask(const std::vector<proto::NameAsk>& asks) = 0;
  virtual Status report(const std::vector<proto::NameReport>& reports) = 0;
  // Adopts this server's own place, if that is dead, and lets its names go.
  virtual Status adoption_ended() = 0;
  virtual StatusOr<bool> space_dropped(SpaceId space) = 0;
  virtual Status has_left(const std::vector<SpaceId>& spaces) = 0;
};

struct NameLocksOptions {
  NameHoldsOptions holds;
  uint64_t try_us = 1'000'000;          // FC39
  uint64_t space_wait_us = 10'000'000;  // for all others to leave a space; then peer_down
  uint64_t look_us = 50'000;            // how often it is looked for what was not answered
  uint32_t threads = 4;
};

class NameLocks final : public SchemaChanges {
 public:
  NameLocks(const NameLocksOptions& options, Epoch epoch, const LeaseCheck* lease,
            NameService* service);
  ~NameLocks() override;  // after leave(), if join() was called

  // From the memory node, in any order, any number of times.
  void granted(const proto::NameGrant& grant) { holds_.granted(grant, monotonic_us()); }
  void asked_back(const proto::NameGiveUp& give_up) { holds_.asked_back(give_up); }
  void asked_to_leave(const proto::SpaceLeave& leave);
  void is_left(const proto::SpaceIsLeft& left);
  // FC45.
  void fenced(const Status& why);
  // FC49. What it has; from now on under that epoch. May be called again.
  std::vector<proto::HeldName> renew(Epoch epoch);

  // SchemaChanges; `node` is this server. use() and its like: fenced, lease_lost too. leave(): what
  // this server had is others' once the memory node hears that it has ended, or its lease has.
  Status join(NodeId node, SchemaUser* user) override;
  Status has_recovered(NodeId node) override;
  void leave(NodeId node) noexcept override;
  Status use(NodeId node, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) override;
  Status lock(NodeId node, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) override;
  Status share(NodeId node, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) override;
  void unlock(NodeId node, Bytes name) noexcept override;
  Status space_dropped(NodeId node, SpaceId space) override;

  [[nodiscard]] const NameHolds& holds() const noexcept { return holds_; }

 private:
  class Sleeping;
  Status wait_for_lease(uint64_t end_us, WaitInterrupt* interrupt);
  Status acquire(Bytes name, proto::NameMode mode, uint64_t timeout_us, WaitInterrupt* interrupt);
  void heard(const Status& status);
  void ask();
  void report();
  void send();     // a thread: asks and reports
  void give_up();  // threads: what may block
  void leave_one(SchemaUser* user, SpaceId space);
  void stop();

  const NameLocksOptions options_;
  std::atomic<uint64_t> epoch_;
  const LeaseCheck* const lease_;
  NameService* const service_;
  NameHolds holds_;
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  CondVar to_give_up_;
  CondVar space_is_left_;
  SchemaUser* user_ STRATA_GUARDED_BY(mutex_) = nullptr;
  bool has_work_ STRATA_GUARDED_BY(mutex_) = false;
  uint64_t work_ STRATA_GUARDED_BY(mutex_) = 0;  // grows with what there is for those who give up
  bool stopping_ STRATA_GUARDED_BY(mutex_) = false;
  std::set<SpaceId> to_leave_ STRATA_GUARDED_BY(mutex_);
  std::set<SpaceId> leaving_ STRATA_GUARDED_BY(mutex_);
  uint64_t spaces_heard_ STRATA_GUARDED_BY(mutex_) = 0;  // grows with each that all have left
  std::vector<std::thread> threads_;
};

}  // namespace strata::clients
