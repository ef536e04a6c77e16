// A server's half of row locks of several servers, as a state machine: what it has asked the memory
// node, what it has heard, what it has to say next. No I/O, no threads, no clock; not thread-safe.
// FusionLocks (fusion_locks.h) is its face for threads; the simulation drives it by itself.
//
//   FU26  A waiter is registered, then makes sure that its server will hear of the holder's end,
//         then looks whether that has ended: no wake-up is lost. Of a holder of its own server it
//         hears in any case (it is noted here at once, and both go to the memory node in their
//         order); of another server's by the word `waiters` in that one's table (tit_reader.h);
//         where there is no such word, or it is another's, the memory node tells the holder's
//         server. (A table is closed before anybody adopts its transactions, and whoever does is
//         told, FQ3.)
//   FC12  A wait that its own server has ended (timeout, KILL) is over at once. A turn that crosses
//         the message goes back (FQ8, RowLocks::cancel()).
//   FC13  A new memory node is told everything: shared locks and ranges, turns, waits with their
//         tickets, and what writers ask for. What had been asked and not answered is asked again.
//         A flag that says that writers ask stays until a memory node takes it back.
//   FC59  A deadlock is told once (FQ9), before what else the reply says is taken in: whoever is
//         its victim still waits.
//   FC14  Whoever got a turn is noted as waited for: the rest of the queue waits for it (L5).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "lock/key_range.h"
#include "lock/row_id.h"
#include "lock/row_wait.h"
#include "proto/fusion_locks.h"

namespace strata::clients {

// What may be read without the mutex of the RowLockClient that changes it.
struct RowLockHints {
  static constexpr size_t kHolders = 4096;  // power of two
  static constexpr size_t kIndexes = 1024;  // power of two
  static constexpr size_t kRows = 4096;     // power of two
  // Of those that somebody waits for, by hash. A waiter adds to it and then looks; an ending holder
  // publishes its outcome and then does a read-modify-write here. One comes second and sees.
  std::array<std::atomic<uint32_t>, kHolders> waited_for{};
  std::array<std::atomic<uint32_t>, kIndexes> consulted{};  // indexes whose writers ask
  std::array<std::atomic<uint32_t>, kRows> rows{};  // with waiters, a turn, or told of; by hash
  std::atomic<uint32_t> sharers{0};                 // transactions with shared locks or ranges
  [[nodiscard]] std::atomic<uint32_t>& of(TrxId trx) noexcept {
    return waited_for[mix64(trx.value) & (kHolders - 1)];
  }
  [[nodiscard]] std::atomic<uint32_t>& of(IndexId index) noexcept {
    return consulted[index.value & (kIndexes - 1)];
  }
  [[nodiscard]] std::atomic<uint32_t>& of(RowId row) noexcept {
    const uint64_t key = std::hash<std::string_view>{}(row.key);
    return rows[mix64(key + row.index.value) & (kRows - 1)];
  }
};

struct RowLockClientCounters {
  uint64_t waits = 0;  // for rows
  uint64_t looks = 0;
  uint64_t notes = 0;        // holders that the memory node had to tell
  uint64_t ends_told = 0;    // of holders that somebody waits for
  uint64_t polls_asked = 0;  // which found a holder that has ended; the memory node knows better
  uint64_t batches = 0;
};

class RowLockClient {
 public:
  // A question, and whoever waits for the answer. Outlives its entry here: until it is no longer
  // kAsleep or kLook, or cancel().
  class Call {
   public:
    enum class State : uint8_t {
      kAsleep,  // there is nothing to be done
      kLook,    // its owner makes sure (unless `told`), looks, and calls looked()
      kDone,
      kVictim,
      kEnded  // end()
    };
    Call() = default;
    virtual ~Call() = default;
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    virtual void changed() noexcept = 0;  // the state is
    [[nodiscard]] uint64_t number() const noexcept { return request_.number; }

    State state = State::kAsleep;
    TrxId look_at;  // whose end is to be heard of
    uint64_t look = 0;
    bool told = false;  // it will be heard of
    TrxId answer;       // of ask_shared()
    std::string text;   // of describe()

   private:
    friend class RowLockClient;
    proto::LockRequest request_;
  };

  RowLockClient(NodeId server, uint64_t life, RowLockHints* hints)
      : server_(server), life_(life), hints_(hints) {}

  // --- the memory node ---
  // From now on that of this epoch (FC13).
  void use(Epoch epoch);
  // It has heard what writers ask for: transactions may run (FQ5).
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  // What is to be sent, the same again until it is known to be accepted; one at a time.
  std::optional<proto::LockBatch> next_batch();
  [[nodiscard]] bool has_batch() const noexcept {
    return !epoch_.is_zero() && (in_flight_.has_value() || !outbox_.empty());
  }
  [[nodiscard]] proto::LockBatch poll() const;  // asks for events only
  // FC59. Those that the reply tells of, without owners. Before heard().
  std::vector<DeadlockReport> take_deadlocks(Epoch epoch, const proto::LockReply& reply);
  void heard(Epoch epoch, const proto::LockReply& reply);
  void end();  // this server may not answer any more: nobody waits
  [[nodiscard]] bool ended() const noexcept { return ended_; }

  // --- rows ---
  void wait(Call* call, TrxId trx, TrxId holder, RowId row, bool goes_first);
  // `look`: call->look, before it made sure. `announced`: the holder's server will see. Does
  // nothing if there is something new to be looked at by now.
  void looked(Call* call, uint64_t look, bool announced, bool held);
  void poll_found(Call* call);  // whom it looked at last has ended, and nobody has said so
  void cancel(Call* call);
  [[nodiscard]] bool has_waiters(RowId row) const;
  [[nodiscard]] bool has_turn(TrxId trx, RowId row) const;
  void settled(TrxId trx, RowId row, bool took);
  // `word`: the holder's own slot says that somebody waits.
  void holder_ended(TrxId holder, bool word);

  // --- shared locks and ranges ---
  void add_shared(Call* call, TrxId trx, RowId row);
  void add_range(Call* call, TrxId trx, IndexId index, const KeyRange& range);
  void drop_shared(TrxId trx, RowId row);
  void drop_range_key(TrxId trx, RowId row);
  void release_shared(TrxId trx);
  void wait_shared(Call* call, TrxId trx, RowId row);
  void ask_shared(Call* call, TrxId trx, RowId row);
  [[nodiscard]] size_t adds_in(TrxId trx, IndexId index) const;
  [[nodiscard]] bool has_whole(TrxId trx, IndexId index) const;

  void describe(Call* call, uint64_t limit);
  [[nodiscard]] const RowLockClientCounters& counters() const noexcept { return counters_; }

 private:
  using RowKey = std::pair<IndexId, std::string>;
  struct Row {
    uint32_t waits = 0, turns = 0;
    bool told = false;
  };
  struct Turn {
    RowKey row;
    uint64_t number = 0, ticket = 0;
  };
  struct Sharer {
    std::vector<proto::LockRequest> log;  // what was added and dropped, in this order
    std::map<IndexId, size_t> adds;
    std::set<IndexId> whole;
  };

  std::vector<proto::LockRequest> take_some();
  void ask(Call* call, proto::LockRequest request);
  void hear(const proto::LockEvent& event);
  void registered(Call* call, const proto::LockEvent& event);
  void let_look(Call* call, TrxId at, bool told);
  void forget_turn(TrxId trx);
  void over(Call* call, Call::State state);
  void note_waited_for(TrxId trx);
  bool forget_waited_for(TrxId trx);
  Row* row(IndexId index, const std::string& key);
  void tidy(IndexId index, const std::string& key);
  void log_shared(TrxId trx, const proto::LockRequest& request);
  void consult(IndexId index, bool on);
  [[nodiscard]] bool is_own(TrxId trx) const noexcept { return node_of(trx) == server_; }

  const NodeId server_;
  const uint64_t life_;
  RowLockHints* const hints_;
  Epoch epoch_;
  bool joined_ = false, ended_ = false;
  uint64_t last_batch_ = 0, heard_ = 0, last_number_ = 0;
  uint64_t deadlocks_told_ = 0;  // up to that event (FC59)
  std::optional<proto::LockBatch> in_flight_;
  std::vector<proto::LockRequest> outbox_;

  std::map<uint64_t, Call*> calls_;  // by number
  std::map<RowKey, Row> rows_;
  std::map<TrxId, Turn> turns_;
  std::set<TrxId> waited_for_;
  std::map<TrxId, Sharer> sharers_;
  std::set<IndexId> consulted_;
  RowLockClientCounters counters_;
};

}  // namespace strata::clients
