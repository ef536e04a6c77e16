// A server's pages where several servers write the same ones: the page locks (bufpool/page_lock.h)
// and the page source that its buffer pool has. Pages are got from the memory node's slots, or from
// storage where it knows none; changed ones are put into slots, and the memory node is told.
// Thread-safe.
//
//   FU21  Threads wait for a page lock where they would wait for the page's latch, and in that
//         order; who does not wait for a latch asks nobody.
//   FU22  Pages that are given up together share one persist, one batch of puts and one report.
//   FH6  A page is given up in this order: its log is durable (K9), its version is in a slot, the
//        report is answered. One that cannot be put stays the server's, and is tried again; a
//        report is repeated until it is answered, and the page is nobody's until then. The pool
//        thinks it written before; a checkpoint does not (sync_below(): FU17).
//   FU3  Nothing is put, and no grant is used, without a lease of the memory node's epoch. A
//        server that hears that it is fenced has no pages from then on.
//   FH9  Who waits for a slot has none and holds back no report: what is in slots storage can be
//        given, and that alone ends the wait (FU21). Pages are put as slots come, not all at once.
//   FH10  A memory node in the place of one that is gone has another pool. renew() tells what pages
//         the server has, while nothing is being given up; use() goes on with the pool. Whoever has
//         begun with the old pool meanwhile fails, and what it wanted to put stays changed. A page
//         that only the old pool had is read from storage, once its log is redone there: that is
//         waited for.
//   FH12  A thread whose own page is among those that it asks for waits for a grant in that call,
//        for a moment, unless many do: the grant then wakes this thread, and none that hears
//        events. Who asks for others only does not wait: its own page may come meanwhile.
//   FH14  Where storage makes pages from the logs (FusionPagesOptions::replayed) it is asked with
//         the places in them that the grant names, and with the end that this server's own log had
//         when it was opened. Which llsn a page has need not be known then. The pool is a cache: a
//         version that finds no slot is reported without one, and a checkpoint waits for none.
//   FH8  What was read is the version of the grant, or, where the memory node knew none, what
//        storage has; storage has all of it then (FU16).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/latch.h"
#include "bufpool/buffer_pool.h"
#include "bufpool/page_lock.h"
#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/page_holds.h"
#include "clients/fusion/page_slots.h"
#include "pagefile/page_source.h"
#include "pagefile/positioned_pages.h"
#include "transport/regions/remote_region.h"

namespace strata::clients {

// How the memory node is asked. Thread-safe. Blocks until there is an answer, or for as long as a
// call may take; errors are the calls', and those of fusion::Pages.
class PageService {
 public:
  virtual ~PageService() = default;
  // What can be granted at once, or, if that is nothing, the first that is within that time; the
  // rest comes by FusionPages::granted().
  virtual StatusOr<std::vector<proto::PageGrant>> ask(const std::vector<proto::PageAsk>& asks,
                                                      uint64_t wait_us) = 0;
  // `epoch`: what is said is of that one's pool; under another one nothing is done (fenced,
  // withdrawn).
  virtual Status report(const std::vector<proto::PageReport>& reports, Epoch epoch) = 0;
  // Waits so long for one at least. None: `request` is not answered yet, and may be asked again.
  virtual StatusOr<std::vector<uint32_t>> take_slots(uint64_t request, uint32_t wanted,
                                                     uint64_t wait_us, Epoch epoch) = 0;
  // Adopts this server's own place: the pages that its last life had exclusively.
  virtual StatusOr<std::vector<PageId>> adopt() = 0;
  // `end`: of this server's log, as it was found (FP7 of fusion/pages).
  virtual Status adoption_ended(const proto::StreamPosition& end) = 0;
  // Until storage has what the stream changed below that place, as far as slots have it.
  virtual Status write_back_below(StreamId stream, Lsn below) = 0;
  virtual Status forget_space(SpaceId space) = 0;
  // The server is fenced: what waits for the memory node ends. Does not block.
  virtual void end() {}
};

struct FusionPagesOptions {
  StreamId stream;  // this server's
  // FH14. Another face of the storage; null: it has what the memory node writes to it.
  PositionedPages* replayed = nullptr;
  // With it. How far this server's log is durable, for sure.
  std::function<Lsn()> durable = nullptr;
  PageHoldsOptions holds;
  uint64_t wait_us_max = 60'000'000;   // for a page; then timed_out
  uint64_t lease_us_max = 30'000'000;  // for the next lease, once a page was granted
  uint64_t io_us_max = 5'000'000;      // for a put or a get
  // For a slot; then busy. Less than statements wait for a frame (B3), which then know why.
  uint64_t slot_us_max = 8'000'000;
  uint64_t slot_call_us = 500'000;  // of that in one call; then it is looked at the lease again
  uint64_t look_us = 50'000;        // how often it is looked for what was not answered
  uint32_t slots_at_once = 64;
  // FH12. For a grant, in the call that asks for it: a statement that is killed waits as long. So
  // many threads do, each with a connection of its own.
  uint64_t ask_wait_us = 50'000;
  uint32_t ask_waits_max = 32;
};

struct FusionPagesCounters {
  std::atomic<uint64_t> gets{0}, puts{0}, storage_reads{0}, slots_changed{0}, reports{0},
      give_up_failures{0}, slot_waits{0};
  // Threads that had to wait for a page that other servers had, and how long.
  std::atomic<uint64_t> waits{0}, wait_us{0};
  // Pages given up, in so many rounds; of their time, until all were where others find them (the
  // log is made durable first), and until the memory node had heard of it.
  std::atomic<uint64_t> given_up{0}, rounds{0}, write_us{0}, report_us{0};
};

class FusionPages final : public PageLock {
 public:
  // `pool`: the memory node's slots; `storage`: where pages are that are in none.
  FusionPages(const FusionPagesOptions& options, Epoch epoch, const LeaseCheck* lease,
              PageService* service, std::shared_ptr<transport::RemoteRegion> pool,
              PageSource* storage);
  ~FusionPages() override;  // after the kernel has gone

  // Before the kernel is opened: what the last life of the server has left. Errors as the calls'.
  Status begin();
  // What goes into KernelSeams beside this.
  [[nodiscard]] PageSource* source() noexcept;

  // FH14. Where all is that this server has changed; of none: it serves nothing yet, or storage has
  // what the memory node wrote.
  [[nodiscard]] proto::StreamPosition log_end() const;

  // From the memory node, in any order, any number of times.
  void granted(const proto::PageGrant& grant) { holds_.granted(grant); }
  void asked_back(const proto::PageGiveUp& give_up) { holds_.asked_back(give_up); }
  // FU3.
  void fenced(const Status& why) {
    holds_.end(why);
    service_->end();
  }

  // FH10. False: this server is still redoing its last life's log, and cannot go on elsewhere.
  [[nodiscard]] bool may_renew();
  // What it has, from now on under that epoch. Nothing is given up until use(). Blocks for what is
  // being given up. May be called again.
  std::vector<proto::HeldPage> renew(Epoch epoch);
  void use(Epoch epoch, std::shared_ptr<transport::RemoteRegion> pool);

  // PageLock. Errors: fenced, lease_lost, timed_out, interrupted.
  Status acquire(PageId id, LatchMode mode, Llsn* newest) override;
  Status try_acquire(PageId id, LatchMode mode, Llsn* newest) override;
  void release(PageId id) noexcept override { holds_.release(id); }
  [[nodiscard]] bool awaits_release() const noexcept override { return true; }  // FU18
  [[nodiscard]] bool seems_held(PageId id, LatchMode mode) const noexcept override;
  void forget(PageId id) override { holds_.forget(id); }
  bool needs_redo(PageId id) override { return to_redo_.contains(id); }
  void serve(BufferPool* pool) override;

  [[nodiscard]] const PageHolds& holds() const noexcept { return holds_; }
  [[nodiscard]] const FusionPagesCounters& counters() const noexcept { return counters_; }

 private:
  class Source;
  class Sleeping;

  // What belongs to one memory node's pool.
  struct Pool {
    Epoch epoch;
    std::shared_ptr<transport::RemoteRegion> region;
    PageSlots slots;
    Mutex mutex{LatchRank::kPeers};
    CondVar asked;
    bool asks STRATA_GUARDED_BY(mutex) = false;     // one call for slots at a time
    uint64_t request STRATA_GUARDED_BY(mutex) = 0;  // the last one that was answered
  };
  using PoolRef = std::shared_ptr<Pool>;
  static PoolRef make_pool(Epoch epoch, std::shared_ptr<transport::RemoteRegion> region);
  PoolRef pool_now() const;

  void ask(const PageId* wanted);
  void work();  // its thread
  void give_up(BufferPool* pool);
  void report_given_up();
  void heard(const Status& status);
  [[nodiscard]] Status wait_for_lease() const;
  Status read(PageId id, Llsn at_least, char* page);
  Status write(const PageId* ids, const PageChanges* changes, uint32_t count, const char* pages,
               bool* ok);
  Status read_once(PageId id, Llsn at_least, char* page);
  Status read_stored(PageId id, Llsn wanted, const PageHolds::Version& version, char* page);
  Status report_unreported(const PageId* ids, uint32_t count, Epoch epoch);
  Status report_all(const std::vector<proto::PageReport>& reports, Epoch epoch);
  Status write_some(const PoolRef& pool, const std::vector<uint32_t>& which,
                    const std::vector<uint32_t>& slots, const PageId* ids,
                    const PageChanges* changes, const char* pages, bool* ok);
  Status take_slots(const PoolRef& pool, size_t count, std::vector<uint32_t>* slots);
  Status wait_for_slots(const PoolRef& pool);
  Status get_slots(const PoolRef& pool, uint64_t wait_us);
  Status put(const PoolRef& pool, const std::vector<uint32_t>& slots,
             const std::vector<uint32_t>& which, const char* pages);

  const FusionPagesOptions options_;
  const LeaseCheck* const lease_;
  PageService* const service_;
  PageSource* const storage_;
  const std::unique_ptr<Source> source_;
  std::set<PageId> to_redo_;            // constant once the kernel is opened
  std::atomic<uint64_t> log_found_{0};  // Lsn: where the own log ended when it was opened

  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  PoolRef slots_of_ STRATA_GUARDED_BY(mutex_);  // of now
  // FH10: the thread is to rest, and rests.
  bool renewing_ STRATA_GUARDED_BY(mutex_) = false;
  bool resting_ STRATA_GUARDED_BY(mutex_) = false;
  bool has_work_ STRATA_GUARDED_BY(mutex_) = false;
  bool stopping_ STRATA_GUARDED_BY(mutex_) = false;
  bool surrendering_ STRATA_GUARDED_BY(mutex_) = false;  // pages of pool_, at the moment
  BufferPool* pool_ STRATA_GUARDED_BY(mutex_) = nullptr;
  std::atomic<bool> adoption_ended_{false};  // set by serve()
  std::atomic<uint32_t> asking_{0};          // threads that wait for grants in their calls
  std::vector<PageId> given_up_;             // the thread's: their reports are not answered yet
  FusionPagesCounters counters_;
  PageHolds holds_;
  std::thread thread_;
};

}  // namespace strata::clients
