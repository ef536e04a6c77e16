// The memory node's half of row locks: who waits for which row in which order, on all servers, who
// holds rows and ranges shared, and which waits would never end. The exclusive lock of whoever has
// written to a row is in the record; of it nothing is known here but what waiters say. A pure state
// machine: no I/O, no threads, no clock. Not thread-safe.
//
// Each server speaks to it through a numbered exchange (proto/fusion_locks.h, FW3). The owner hands
// batches in, sends replies, lets calls for events wait until has_events(), calls tick() each
// second, and says which servers are gone and who has adopted their transactions.
//
//   FQ1  A row's waiters are served in the order of their tickets. Whoever has the turn tries again
//        and keeps its ticket: if it finds another holder it waits in its old place (L1, L5). Who
//        holds the row shared goes first: nobody ahead of it could be served.
//   FQ2  When a holder ends, a waiter of the same server may go before the first one, whose page
//        would have to travel; but no first waiter is overtaken more than `overtaken_max` times.
//   FQ3  No wake-up is lost. Whoever becomes the first waiter for a holder is registered before its
//        server makes sure to hear of the holder's end, and looks after that. If it cannot make
//        sure by itself the holder's server is told from here, and says so, before the look. When
//        the holder's transactions are adopted, and when this memory node is a new one, it is told
//        and looks again.
//   FQ4  A cycle of waits is broken only once the server of each wait has said, when asked for this
//        very cycle, that the wait is still on: so there was a moment at which all of them were.
//        The victim is who closed the cycle; of a cycle that was closed without a new wait it is
//        one of the waiters. What is asked for is searched again afterwards.
//   FQ9  Before the victim hears that it is one, each server with a wait in the cycle hears of the
//        whole cycle, for people: so at that moment all waits are still on.
//   FQ5  A shared lock or a range counts once every server has said that its writers ask: the first
//        one in an index sets "consult" there, everywhere, and the others wait with it. A server
//        that comes later hears it with its first reply, before it runs anything. The changes of
//        an index are numbered: an answer to an earlier one counts for nothing.
//   FQ6  A new memory node gives no turn, lock or answer before every server that may hold
//        something has reported what it holds and waits for, or is gone.
//   FQ7  A server that is gone waits for nothing and holds nothing shared. Whoever waits for its
//        transactions looks again: what it had said last may not have come. Rows that its
//        transactions have changed stay theirs; whoever adopts those ends each and says so.
//   FQ8  What a server says is judged, never asserted: a message about what is over is nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "fusion/locks/shared_table.h"
#include "proto/fusion_locks.h"

namespace strata::fusion {

struct RowLockOptions {
  uint32_t overtaken_max = 8;             // FQ2
  uint64_t consult_idle_us = 10'000'000;  // how long writers ask after the last shared lock
  size_t events_max = SIZE_MAX;           // of one reply; the others come with the next ones (FW3)
};

struct RowLockCounters {
  uint64_t waits = 0, turns = 0, overtaken = 0, deadlocks = 0;
  uint64_t unconfirmed = 0;  // cycles that were none any more
  uint64_t polls_found = 0;  // wake-ups that were lost: never any
  uint64_t consults = 0;     // changes of what writers ask for
};

class RowLocks {
 public:
  // `expected`: servers that may hold something (FQ6): the members that the authority knows of.
  RowLocks(Epoch epoch, const std::vector<NodeId>& expected, const RowLockOptions& options = {});
  ~RowLocks();
  RowLocks(const RowLocks&) = delete;
  RowLocks& operator=(const RowLocks&) = delete;

  // Errors: withdrawn (another epoch, or a server that has to report first), fenced (an earlier
  // life), kInvalidArgument.
  StatusOr<proto::LockReply> exchange(const proto::LockBatch& batch);
  [[nodiscard]] bool has_events(NodeId server) const;
  void tick(uint64_t now_us);
  // Fenced and released, or left (FQ7). Before another life of it comes.
  void gone(NodeId server);
  // `by` ends the transactions of `place` from now on. A server that reports has its own place.
  void adopted(NodeId place, NodeId by);

  [[nodiscard]] bool active() const noexcept { return active_; }  // FQ6
  [[nodiscard]] const RowLockCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] std::string describe(uint64_t limit) const;
  // The last deadlock that was broken: each wait for the transaction of the next.
  using WaitKey = std::pair<uint8_t, uint64_t>;  // server, number
  struct DeadlockMember {
    WaitKey wait;
    TrxId trx;
  };
  [[nodiscard]] const std::vector<DeadlockMember>& last_deadlock() const noexcept {
    return last_deadlock_;
  }

 private:
  using RowKey = std::pair<IndexId, std::string>;
  struct Queue;
  struct Wait {
    NodeId server;
    uint64_t number = 0;
    TrxId trx;
    TrxId holder;
    RowKey row;
    uint64_t ticket = 0;
    bool goes_first = false;
    uint32_t overtaken = 0;
    Queue* queue = nullptr;  // null: waits for shared locks
    std::list<Wait*>::iterator at;
  };
  struct Queue {
    RowKey row;
    TrxId holder;   // whom the first waits for; who has the turn while somebody has
    TrxId retrier;  // has the turn, or zero
    WaitKey turn;   // the wait that got it
    std::list<Wait*> waits;
    std::set<uint8_t> told;  // servers whose newcomers queue
  };
  struct Session {
    uint64_t life = 0;
    uint64_t accepted = 0;
    bool reported = false;
    uint64_t first_event = 1;
    std::deque<proto::LockEvent> events = {};
  };
  struct Consult {
    uint64_t change = 0;
    bool on = false;
    std::set<uint8_t> awaited;
    std::vector<std::pair<NodeId, proto::LockRequest>> deferred;
    uint64_t idle_since_us = 0;  // 0: in use, or not looked at yet
  };
  struct Cycle {
    TrxId start;  // whose wait led to it
    std::vector<DeadlockMember> members;
    size_t victim = 0;
    std::set<uint8_t> awaited;
    bool refused = false;
  };

  void process(NodeId server, const proto::LockRequest& request);
  void report_ends(NodeId server);
  void activate();
  void send(NodeId server, proto::LockEvent event);

  // --- rows ---
  void wait(NodeId server, const proto::LockRequest& request);
  void has_turn(NodeId server, const proto::LockRequest& request);
  void cancel(NodeId server, const proto::LockRequest& request);
  void holder_is_gone(NodeId server, const proto::LockRequest& request);
  void settled(const proto::LockRequest& request);
  void ended(NodeId server, TrxId holder);
  void noted(TrxId holder);
  Queue* find_queue(const RowKey& row);
  Queue* queue_of(const RowKey& row);
  void set_holder(Queue* queue, TrxId holder);
  void tell_queued(Queue* queue);
  void pass_turn(Queue* queue, NodeId releasing = NodeId{});
  void erase_if_idle(Queue* queue);
  void insert(Queue* queue, Wait* wait);
  void look(const Wait& wait, TrxId holder);
  Wait* find_wait(NodeId server, uint64_t number);
  void give_up(Wait* wait);
  void forget(Wait* wait);
  [[nodiscard]] NodeId owner_of(TrxId trx) const;

  // --- shared locks ---
  void add(NodeId server, const proto::LockRequest& request);
  void add_now(NodeId server, const proto::LockRequest& request);
  void wait_shared(NodeId server, const proto::LockRequest& request);
  void shared_changed(IndexId index);
  void consult_heard(NodeId server, IndexId index, uint64_t change);
  void set_consult(IndexId index, Consult* consult, bool on);
  void run_deferred(Consult* consult);

  // --- deadlocks ---
  [[nodiscard]] std::vector<TrxId> edges_of(TrxId trx) const;
  void search(TrxId start);
  void confirm(TrxId start, const std::vector<TrxId>& path, TrxId victim);
  void confirmed(NodeId server, uint64_t number, bool yes);
  void conclude(uint64_t number);
  void tell_of(const Cycle& cycle);
  [[nodiscard]] bool is_still_there(const Cycle& cycle) const;

  const Epoch epoch_;
  const RowLockOptions options_;
  bool active_ = false;
  std::set<uint8_t> expected_;  // have not reported
  std::map<uint8_t, Session> sessions_;
  std::vector<std::pair<NodeId, proto::LockRequest>> backlog_;  // until active
  std::map<uint8_t, NodeId> owners_;                            // of places

  std::map<RowKey, std::unique_ptr<Queue>> queues_;
  std::map<TrxId, std::set<RowKey>> by_holder_;
  std::map<WaitKey, std::unique_ptr<Wait>> waits_;
  std::map<TrxId, Wait*> waiting_;  // a transaction waits once at most
  std::map<IndexId, std::list<Wait*>> shared_waits_;
  uint64_t last_ticket_ = 0;

  SharedTable shared_;
  std::map<IndexId, Consult> consults_;
  std::map<uint64_t, Cycle> cycles_;
  uint64_t last_cycle_ = 0;
  std::vector<DeadlockMember> last_deadlock_;
  RowLockCounters counters_;
};

}  // namespace strata::fusion
