// Keeps a range of this process's memory mostly in a memory node: a thread serves the faults of all
// other threads, with at most so many pages local.
//
//   FM20  Pages of far memory that are local, whether the program sees them or not, are at most
//         policy.frames. Besides, the pager has buffers of kPrefetchMax+1 pages and messages of up
//         to kBatchPagesMax pages: under 1 MiB.
//   FM21  A page that was discarded reads as zeros; one that was not reads as it was written last.
//   FM22  When far memory fails, in whatever way, `on_lost` is called once, with the reason, and
//         ends the process: a thread that waits for a page cannot be told of an error.
//   FM23  The pager's threads touch no far memory, take no latch that is held while far memory is
//         touched, and no signal.
//   FM24  A forked child does not have far memory: touching it there is a segmentation fault, never
//         another content.
// Eviction moves a page away from under the program in one step (UFFDIO_MOVE): no write is lost.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "farmem/node/memory_client.h"
#include "farmem/pager/counters.h"
#include "farmem/pager/userfault.h"
#include "farmem/policy/local_pages.h"
#include "farmem/trace/trace_writer.h"

namespace strata::farmem {

struct PagerOptions {
  PolicyOptions policy;
  int userfault_device = -1;      // see Userfault::open()
  uint64_t renew_us = 1'000'000;  // between signs of life
  // A device takes its time, but not for ever: so long no page can go before that is the end.
  uint64_t pinned_us_max = 5'000'000;
  PagerCounters* counters = nullptr;             // outlives the pager
  std::shared_ptr<TraceWriter> trace = nullptr;  // null: none; the pager's thread writes it
  std::function<void(const Status&)> on_lost;    // in a thread of the pager's; does not return
  // First thing in each thread of the pager's. What it allocates must never be far memory (FM23).
  std::function<void()> on_thread;
  // Pages given to discard_later() can be used for something else. In the pager's thread.
  std::function<void(uint64_t first, uint64_t count)> on_discarded;
};

class Pager {
 public:
  // For all pages of the client's region. Errors: those of Userfault::open(), kResourceExhausted,
  // kInvalidArgument, kInternal.
  static StatusOr<std::unique_ptr<Pager>> start(std::unique_ptr<MemoryClient> client,
                                                const PagerOptions& options);
  ~Pager();  // no thread may touch far memory any more
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  [[nodiscard]] char* base() const noexcept { return base_; }
  [[nodiscard]] uint64_t pages() const noexcept { return pages_; }
  [[nodiscard]] uint64_t page_of(const void* address) const noexcept {
    return static_cast<uint64_t>(static_cast<const char*>(address) - base_) / kPageBytes;
  }
  // Returns at once; on_discarded is called when it has been done.
  void discard_later(uint64_t first, uint64_t count);
  // Returns when it has been done; on_discarded is not called.
  void discard(uint64_t first, uint64_t count);
  // Around fork(): no other thread is inside the queue's latch then.
  void before_fork() STRATA_ACQUIRE(queue_latch_) { queue_latch_.lock(); }
  void after_fork() STRATA_RELEASE(queue_latch_) { queue_latch_.unlock(); }

 private:
  struct Discard {
    uint64_t first = 0;
    uint64_t count = 0;
    Parker* waiting = nullptr;
  };
  Pager(std::unique_ptr<MemoryClient> client, const PagerOptions& options);
  Status set_up();
  void run();
  void stay_alive();
  void post(const Discard& discard);
  void wake_thread() noexcept;
  void do_discards();
  void do_discard(const Discard& discard);
  void serve(const Fault& fault);
  bool serve_mapped(uint64_t page);
  void take_back(uint64_t page);
  void serve_staged(uint64_t page);
  void serve_new(uint64_t page);
  uint32_t serve_far(uint64_t page);  // how many came along
  void bring(uint64_t first, uint32_t pages);
  void stage(Framed victim);
  void evict(const std::vector<Framed>& gone);
  void count_outcome(uint64_t page, Stored stored) noexcept;
  void note(TraceKind kind, uint64_t page, uint64_t pages = 0, uint8_t flags = 0) const noexcept;
  void note_places() noexcept;
  void check(int error, const char* what);
  [[noreturn]] void lose(const Status& why);
  [[nodiscard]] char* at(uint64_t page) const noexcept { return base_ + page * kPageBytes; }
  [[nodiscard]] char* staging(uint32_t frame) const noexcept {
    return staging_ + uint64_t{frame} * kPageBytes;
  }

  const std::unique_ptr<MemoryClient> client_;
  const PagerOptions options_;
  const uint64_t pages_;
  std::unique_ptr<Userfault> userfault_;
  std::unique_ptr<LocalPages> local_;  // the pager thread's
  char* base_ = nullptr;
  char* staging_ = nullptr;
  std::unique_ptr<char[]> buffer_;  // kPrefetchMax + 1 pages
  Moves moves_;
  Moves instead_;              // of moves_.stage, where a page cannot go
  uint64_t coming_first_ = 0;  // pages that have their frames and are not mapped yet
  uint32_t coming_pages_ = 0;
  int wake_fd_ = -1;

  Mutex queue_latch_{LatchRank::kLeaf};
  std::vector<Discard> queue_;  // under queue_latch_
  std::vector<Discard> taken_;
  std::atomic<bool> stop_{false};
  Mutex stop_latch_{LatchRank::kLeaf};
  CondVar stopping_;
  std::atomic<bool> lost_{false};
  std::thread thread_;
  std::thread life_;
};

}  // namespace strata::farmem
