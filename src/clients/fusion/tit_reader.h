// What has become of other servers' transactions (txn/tit_source.h): read from their tables by
// themselves where that tells, asked of them where it does not. Thread-safe.
//
//   FC8  A slot is believed if sequence and tag fit (FU9), the lease is valid afterwards, and after
//        that the server's table is still the one that was read: a table is closed before the fence
//        of its server is confirmed, and before a lease that was told of the fence is used (FU4).
//        So nobody goes by what a fenced server has last shown once another decides for it.
//   FC9  What a slot says of a commit that is not durable is "committing" (MW20): who needs to know
//        asks its server, which makes it durable.
//   FC16  Whoever wants to hear of a transaction's end adds to the word `waiters` of its slot, then
//         reads the slot: if it is that transaction's, its owner will see (FC15); and after
//         a crash whoever adopts its transactions is told of who waits (FQ3).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/latch.h"
#include "clients/fusion/fusion_lease.h"
#include "transport/regions/remote_region.h"
#include "txn/tit_source.h"

namespace strata::clients {

// How a server is asked, and is asked by others. Thread-safe. As TitSource's functions of the same
// names.
class TitOwners {
 public:
  virtual ~TitOwners() = default;
  virtual Status join(NodeId node, OwnTransactions* own) = 0;
  virtual void leave(NodeId node) noexcept = 0;
  virtual StatusOr<TrxLookup> read(TrxId id) = 0;
  virtual StatusOr<TrxLookup> wait_decided(TrxId id) = 0;
};

struct TitCounters {
  std::atomic<uint64_t> gets{0};  // slots read
  std::atomic<uint64_t> calls{
      0};  // their servers asked: another sequence, an open commit, no table
};

class TitReader final : public TitSource {
 public:
  // `own`: what this server shows; may be null.
  TitReader(const LeaseCheck* lease, TitOwners* owners, PublishedSlots* own,
            std::function<uint64_t()> now_us = monotonic_us, uint64_t read_us_max = 500'000);
  ~TitReader() override;

  // A server's table, of `slots` slots, for as long as it is not closed.
  void opened(NodeId server, std::shared_ptr<transport::RemoteRegion> region, uint64_t slots);
  void closed(NodeId server);  // FC8
  void heard_bound(NodeId server, uint64_t bound) noexcept { raise_bound(server, bound); }

  // FC16. False: the table does not show it, or there is none. A commit that is not durable is made
  // so by its server: then nobody waits for it any more. No latch held.
  bool announce_waiter(TrxId holder);

  Status join(NodeId node, OwnTransactions* own) override { return owners_->join(node, own); }
  void leave(NodeId node) noexcept override { owners_->leave(node); }
  StatusOr<TrxLookup> read(TrxId id) override;
  StatusOr<TrxLookup> read_told(TrxId id) override;
  StatusOr<TrxLookup> wait_decided(TrxId id) override;
  [[nodiscard]] PublishedSlots* published() noexcept override { return own_; }
  [[nodiscard]] const TitCounters& counters() const noexcept { return counters_; }

 private:
  struct Table {
    std::shared_ptr<transport::RemoteRegion> region;
    uint64_t slots = 0;
  };
  // False: it does not tell. `ended`: committed, and perhaps not durable.
  bool read_slot(TrxId id, TrxLookup* out, bool* ended);
  std::shared_ptr<const Table> table_of(NodeId server) const;

  const LeaseCheck* const lease_;
  TitOwners* const owners_;
  PublishedSlots* const own_;
  const std::function<uint64_t()> now_us_;
  const uint64_t read_us_max_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::array<std::shared_ptr<const Table>, 256> tables_ STRATA_GUARDED_BY(mutex_);
  TitCounters counters_;
};

}  // namespace strata::clients
