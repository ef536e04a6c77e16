// What has become of other servers' transactions, asked by way of the memory node, and what others
// ask about this server's (tit_reader.h, TitOwners). Thread-safe.
//
//   FC23  A question is answered while its server is there and has joined. Before and after that
//         nobody owns the place (not_found, MW8): its status pages tell, as soon as they are
//         redone.
//   FC24  What was not answered is asked again: by read() for read_us_max, by wait_decided() until
//         there is an outcome; until the thread is interrupted, or this server has lost its
//         membership, or has had no lease for lease_us_max. So none of them waits for one thread of
//         the other server only.
//   FC25  Questions of others run in threads of their own, those that wait apart from those that
//         read; more than fit are dropped, and asked again. When leave() has returned nobody asks
//         this server's transactions any more.
//   FC56  An answer goes to the memory node that has told the question: another one may have given
//         its number to a question about another transaction.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/remote_calls.h"
#include "clients/fusion/tit_reader.h"
#include "proto/fusion_messages.h"

namespace strata::clients {

struct RemoteOwnersOptions {
  uint32_t wait_us = 1'000'000;  // how long the memory node lets one question wait
  uint64_t pause_us = 10'000;    // before one is asked again
  uint64_t read_us_max = 30'000'000;
  uint64_t lease_us_max = 30'000'000;  // a memory node that is gone has a successor by then
  size_t readers = 2, waiters = 4;
  size_t questions_max = 1024;
};

struct RemoteOwnersCounters {
  std::atomic<uint64_t> asked{0}, asked_again{0}, answered{0}, dropped{0};
};

class RemoteOwners final : public TitOwners {
 public:
  // Both outlive this.
  RemoteOwners(RemoteCalls* calls, const LeaseCheck* lease,
               const RemoteOwnersOptions& options = {});
  ~RemoteOwners() override;

  Status join(NodeId node, OwnTransactions* own) override;
  void leave(NodeId node) noexcept override;
  StatusOr<TrxLookup> read(TrxId id) override;
  StatusOr<TrxLookup> wait_decided(TrxId id) override;

  // From the memory node of that epoch. Does not block.
  void asked(const proto::OwnerQuestion& question, Epoch asked_under);
  [[nodiscard]] uint64_t own_bound() const;  // 0: nobody has joined
  [[nodiscard]] const RemoteOwnersCounters& counters() const noexcept { return counters_; }

 private:
  struct Asked {
    proto::OwnerQuestion question;
    Epoch epoch;  // FC56
  };
  struct Queue {
    CondVar changed;
    std::deque<Asked> questions;
  };
  StatusOr<TrxLookup> ask(TrxId id, bool decided);
  StatusOr<TrxLookup> ask_again(TrxId id, bool decided, uint64_t deadline_us);
  void work(Queue* queue);
  void answer(const Asked& asked);
  OwnTransactions* begin_asking() const;  // null: there is none
  void end_asking() const;
  bool pause();  // false: interrupted

  RemoteCalls* const calls_;
  const LeaseCheck* const lease_;
  const RemoteOwnersOptions options_;
  RemoteOwnersCounters counters_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  mutable CondVar unused_;
  CondVar never_;
  Queue reads_ STRATA_GUARDED_BY(mutex_);
  Queue waits_ STRATA_GUARDED_BY(mutex_);
  OwnTransactions* own_ STRATA_GUARDED_BY(mutex_) = nullptr;
  mutable uint32_t asking_ STRATA_GUARDED_BY(mutex_) = 0;  // own_, at the moment
  bool stopping_ STRATA_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace strata::clients
