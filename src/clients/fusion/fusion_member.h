// A server's membership among several that write the same tables: joins at the memory node, renews
// its lease, hears who else is there, and has the kernel's seams over all of that. What a server's
// agent runs; thread-safe but for join(), serve(), leave() and stop().
//
//   join() -> make_pages() -> FusionPages::begin() -> serve() -> (the kernel) -> leave()
//
//   FC30  A renewal that tells of fences and of who is there is heeded in this order: tables of
//         those that are fenced or gone are closed, then the lease counts, then tables of newcomers
//         are opened (FC8). What could not be opened is asked for again.
//   FC31  A server that hears that it is fenced has no lease, no pages, no names and nobody that
//         waits for rows or names from then on, and tells its owner once; it stays so. A memory
//         node that is silent only lets the lease run out: when it answers again everything goes
//         on.
//   FC51  A memory node that has ended, or has another epoch, is followed by its successor, in this
//         order: that takes this server in as one that goes on, is told what it has (FH11, FC49),
//         and how far its log is durable, last; from then on all is under the new epoch, and the
//         next lease is asked for. Whatever fails is done again, from the start if there is yet
//         another epoch. Nothing is given up or put meanwhile. Who is refused, or has no kernel
//         that serves (its last life's log is not redone), is as if fenced.
//   FC60  While it has a lease, and may use anything of this membership, it keeps a connection to
//        the memory node that nothing else closes, its line: so its end tells there that the
//        process is gone (FV14), and nobody has to wait for the end of the lease. It holds up no
//        renewal for longer than these are apart. One that broke is replaced with the next renewal.
//        Where lines do not count, the lease alone tells. A line is one under an epoch: under the
//        next one another one is kept, and that one is closed.
//   FC61  Who hears of a fence says so at once: what the fenced server had waits for all to have
//        heard (FV4).
//   FC63  Each renewal says by which placement this server finds pages on storage nodes: the memory
//         node goes by no newer one before all do (FTM9 of memnode/host).
//   FC62  Who was let in and cannot begin says at once that it leaves again: nothing was used yet.
//   FC32  leave() ends the lease first, then says so: what the memory node gives to others
//         meanwhile nobody here uses. If the answer is lost, the server is fenced when its lease is
//         over.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "base/status.h"
#include "base/stop_flag.h"
#include "base/wait_interrupt.h"
#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/fusion_locks.h"
#include "clients/fusion/fusion_pages.h"
#include "clients/fusion/horizon_client.h"
#include "clients/fusion/name_locks.h"
#include "clients/fusion/oracle_client.h"
#include "clients/fusion/remote_calls.h"
#include "clients/fusion/remote_events.h"
#include "clients/fusion/remote_names.h"
#include "clients/fusion/remote_owners.h"
#include "clients/fusion/remote_pages.h"
#include "clients/fusion/remote_row_locks.h"
#include "clients/fusion/reuse_client.h"
#include "clients/fusion/tit_reader.h"
#include "clients/fusion/tit_region.h"
#include "proto/fusion_messages.h"
#include "transport/calls/blocking_channel.h"
#include "transport/regions/remote_region.h"

namespace strata::clients {

struct FusionMemberOptions {
  NodeId server;
  uint64_t life = 0;  // random, of the process; not 0
  // No earlier process of the server's is there any more, and nothing of it reaches the memory node
  // (whoever has its data folder's lock knows).
  bool alone = false;
  std::string token;  // the tenant's
  transport::RegionPath path = transport::RegionPath::kMapped;
  uint64_t join_us_max = 30'000'000;
  uint64_t call_us_max = 2'000'000;
  uint64_t open_us_max = 5'000'000;  // for a region
  uint64_t renew_us = 300'000;
  FusionLocksOptions locks = {};
  RemoteOwnersOptions owners = {};
  RemotePagesOptions pages = {};
  NameLocksOptions names = {};
  ReuseClientOptions reuse = {};
  // FC51. How far this server's log is durable, at least, for sure; may block for that. Null: it
  // has none, and whoever changes pages needs one.
  std::function<Lsn()> durable = nullptr;
  // FC63. Of FusionRenewRequest. Does not block. Null: no pages are read on storage nodes.
  std::function<uint64_t()> placement = nullptr;
  // FC31. In a thread of this; must not block for it.
  std::function<void(const Status&)> ended = nullptr;
  // Who is a member now, when that has changed, perhaps more than once. The same.
  std::function<void(const std::vector<proto::FusionServer>&)> members = nullptr;
};

struct FusionMemberCounters {
  std::atomic<uint64_t> renewals{0}, renewals_failed{0}, tables_opened{0}, tables_closed{0};
  std::atomic<uint64_t> resumed{0};  // memory nodes that were followed by another (FC51)
  std::atomic<uint64_t> lines{0};    // FC60: that the memory node has taken
};

class FusionMember {
 public:
  // Blocks until the server is a member and has its first lease, as long as join_us_max or until
  // the thread is interrupted. `channel`: to the memory node that has the authority, wherever that
  // is by now. Errors: the memory node's, in_use (an earlier process of this server is still a
  // member), peer_down, timed_out, interrupted.
  static StatusOr<std::unique_ptr<FusionMember>> join(
      const FusionMemberOptions& options,
      const std::shared_ptr<transport::BlockingChannel>& channel);
  ~FusionMember();  // stop()
  FusionMember(const FusionMember&) = delete;
  FusionMember& operator=(const FusionMember&) = delete;

  // Before serve(), at most once: pages that are shared, over `storage`, which outlives this.
  // Errors: unsupported (the memory node shares none), and why this has ended.
  StatusOr<FusionPages*> make_pages(const FusionPagesOptions& options, PageSource* storage);
  // From here on events are heard. Before the kernel is opened. Blocks until row locks can be asked
  // for. Errors: timed_out, and why this has ended.
  Status serve();
  // The kernel has gone: all that was held is given back. Errors: as the calls'; it has left
  // anyway.
  Status leave();
  // Nothing is said and heard from here on, as if the process had ended. Not by options.ended.
  // Again: nothing.
  void stop();

  [[nodiscard]] const FusionLease* lease() const noexcept { return &lease_; }
  [[nodiscard]] OracleClient* timestamps() noexcept { return &oracle_; }
  [[nodiscard]] HorizonClient* horizon() noexcept { return &horizon_; }
  [[nodiscard]] TitReader* others() noexcept { return &reader_; }
  [[nodiscard]] FusionLocks* locks() noexcept { return &locks_; }
  [[nodiscard]] NameLocks* names() noexcept { return &names_; }
  [[nodiscard]] ReuseClient* page_reuse() noexcept { return &reuse_; }
  [[nodiscard]] RemoteOwners* owners() noexcept { return &owners_; }
  [[nodiscard]] FusionPages* pages() noexcept { return pages_.get(); }  // null: not shared
  [[nodiscard]] Epoch epoch() const noexcept { return calls_.epoch(); }
  // Whether this server may answer: it has a lease of the memory node of now.
  [[nodiscard]] bool has_lease() const noexcept { return lease_.valid(epoch()); }
  // OK, or why it has ended (FC31).
  [[nodiscard]] Status status() const;
  // Hears what there is now, once that is possible; for tests, and who cannot wait for the next
  // renewal. Errors: as the calls'.
  Status renew();
  [[nodiscard]] const FusionMemberCounters& counters() const noexcept { return counters_; }

 private:
  struct Opened {
    std::shared_ptr<transport::RemoteRegion> times, pool, table;
  };
  FusionMember(const FusionMemberOptions& options,
               std::shared_ptr<transport::BlockingChannel> channel,
               const proto::FusionJoinReply& joined, const Opened& opened);
  static StatusOr<std::unique_ptr<FusionMember>> begin(
      const FusionMemberOptions& options,
      const std::shared_ptr<transport::BlockingChannel>& channel,
      const proto::FusionJoinReply& joined);
  static void take_back(const FusionMemberOptions& options, transport::BlockingChannel* channel,
                        Epoch epoch);
  static StatusOr<proto::FusionJoinReply> ask_to_join(const FusionMemberOptions& options,
                                                      transport::BlockingChannel* channel);
  static StatusOr<Opened> open_regions(const FusionMemberOptions& options,
                                       const std::shared_ptr<transport::BlockingChannel>& channel,
                                       const proto::FusionJoinReply& joined);
  static transport::RegionPath path_over(const transport::BlockingChannel& channel,
                                         transport::RegionPath wanted);
  void keep_renewing();
  void keep_line();
  Status offer_line();
  void go_on();
  Status try_go_on(FusionPages* pages) STRATA_REQUIRES(renewing_);
  Status say_all(const proto::PageCaller& caller, FusionPages* pages);
  Status say(uint16_t method, const std::string& request, Epoch epoch);
  void use(const proto::FusionJoinReply& joined, const Opened& opened, FusionPages* pages)
      STRATA_REQUIRES(renewing_);
  void close_tables(const proto::FusionRenewReply& reply) STRATA_REQUIRES(renewing_);
  bool open_tables(const proto::FusionRenewReply& reply) STRATA_REQUIRES(renewing_);
  void end(const Status& why);

  const FusionMemberOptions options_;
  const std::shared_ptr<transport::RemoteRegion> pool_region_;  // of the first memory node
  // This server's tables, the last one of now: it may still write to those before.
  std::vector<std::shared_ptr<transport::RemoteRegion>> table_regions_;
  const uint64_t table_slots_;
  RemoteCalls calls_;
  FusionLease lease_;
  std::unique_ptr<TitRegion> table_;  // null: it is reached by calls only, and shows nothing
  OracleClient oracle_;
  HorizonClient horizon_;
  RemoteOwners owners_;
  TitReader reader_;
  FusionLocks locks_;
  RemotePages page_service_;
  RemoteNames name_service_;
  NameLocks names_;
  ReuseClient reuse_;
  FusionMemberCounters counters_;

  Mutex renewing_{LatchRank::kServer};  // one renewal at a time: over a call, taken by nobody else
  uint64_t fences_heard_ STRATA_GUARDED_BY(renewing_) = 0;
  uint64_t members_heard_ STRATA_GUARDED_BY(renewing_) = 0;
  std::atomic<bool> news_of_fences_{false};                          // FC61: a renewal is to say so
  std::map<uint8_t, uint64_t> tables_ STRATA_GUARDED_BY(renewing_);  // of which life

  mutable Mutex mutex_{LatchRank::kLeaf};
  Status ended_ STRATA_GUARDED_BY(mutex_);
  std::unique_ptr<FusionPages> pages_;  // set under mutex_ while renewals run

  std::atomic<bool> serves_{false};  // serve() has returned
  std::unique_ptr<RemoteRowLocks> row_locks_;
  std::unique_ptr<RemoteEvents> events_;
  // FC60, the renewer's until that has ended. The last one is the line, or is to be; what may have
  // become of those before is not known.
  std::vector<std::unique_ptr<transport::KeptConnection>> lines_;
  Epoch lines_epoch_;        // of the memory node that they are to
  bool line_taken_ = false;  // by it
  bool line_unanswered_ = false;
  bool line_refused_ = false;  // none counts there
  StopFlag stopping_;
  WaitInterrupt interrupt_;
  std::thread renewer_;
};

}  // namespace strata::clients
