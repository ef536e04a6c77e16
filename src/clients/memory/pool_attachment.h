// Whether there is a remote pool, who may call it, and what to do when it does not answer.
// Thread-safe; no latch is held over calls.
//
//          open()                     a call that was lost, refused, or not answered
//   (start) ───> kAttached ────────────────────────────────────────────> kUnsettled
//      │             ^  ^                   attach() again: the same content │ │
//      │             │  └─────────────────────────────────────────────────────┘ │
//      │             │ another pool is there                                   │ it is lost
//      └──────> kBypass <───────────────────────────── storage lacks nothing ──┤
//                                                                              v
//                                            kEnded <────────── a page is dirty, or fenced
//
//   PAT1  Before the pool is attached again no call of the attachment before is under way, and
//         pages of which a call had an unknown end are looked up before the next call.
//   PAT2  A pool is used only while the registry names it, and pages go past it only once the
//         registry does not. If it was asked to forget a pool and its answer was lost, the pool is
//         named again before it is used. An attachment to a copy elsewhere makes what was known of
//         slots void.
//   PAT3  Pages go past a pool only if everything in it is clean. Otherwise this process ends its
//         work: what storage lacks is in the log, and recovery's to find.
//   PAT4  How a call to the pool ended says something of the pool. To who reads or writes pages
//         not_found says that a page was never written, corruption that it is damaged, and fenced
//         that this process is to end: that is told of the page itself, and by kEnded, alone. What
//         a call ended with is told as peer_down where it would be taken for one of these.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "base/stop_flag.h"
#include "clients/memory/remote_directory.h"
#include "clients/memory/remote_pool.h"
#include "clients/memory/storage_below.h"
#include "pagefile/page_source.h"

namespace strata::clients {

class PoolAttachment {
 public:
  struct Options {
    uint64_t timeout_us = 5'000'000;  // for the memory node to answer
    uint64_t pause_us = 50'000;       // between two tries
    bool copies = false;              // storage lacks nothing of what the pool has, ever
  };
  // All of them outlive it. `renewed` is called, without latches, after each attach() that went
  // well and before any other call.
  PoolAttachment(const Options& options, RemotePool* pool, PoolNaming* naming,
                 RemoteDirectory* directory, std::function<void()> renewed);

  // The pool that the registry names, a new one, or none for now. Blocks. Errors: fenced, those of
  // the registry.
  Status open();
  // Whether the pool that the registry named was found whole at the start.
  [[nodiscard]] bool found() const { return found_whole_; }
  // The last one of that pool, if it counts.
  [[nodiscard]] std::optional<MemoryCheckpoint> found_checkpoint() const;

  // A call to the pool, or one past it, is under way while it lives.
  class Use {
   public:
    Use(Use&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)), number_(other.number_), bypass_(other.bypass_) {}
    Use& operator=(Use&&) = delete;
    ~Use() { end(); }
    void end() {
      if (of_ != nullptr) std::exchange(of_, nullptr)->leave();
    }
    [[nodiscard]] bool bypass() const noexcept { return bypass_; }
    [[nodiscard]] uint64_t number() const noexcept { return number_; }
    // How the call ended for these is not known.
    void doubt(const std::vector<PageId>& pages) { of_->doubt(pages); }

   private:
    friend class PoolAttachment;
    Use(PoolAttachment* of, uint64_t number, bool bypass)
        : of_(of), number_(number), bypass_(bypass) {}
    PoolAttachment* of_;
    const uint64_t number_;
    const bool bypass_;
  };
  // Blocks while the pool is being attached again. Errors: ended, fenced; kUnavailable: neither the
  // pool nor the registry can be had.
  StatusOr<Use> use();
  // A call made with that number ended so, and its Use has ended. OK: it may be made once more.
  // Otherwise what to return. `begun_us`: since when somebody waits. Blocks.
  Status settle(uint64_t number, const Status& why, uint64_t begun_us);
  // The pool is not to believe what it was told in that attachment.
  Status renew(uint64_t number);
  // Has the registry forget the pool, and an empty one take its place if it can be had. Blocks.
  Status discard();
  // Nothing is read or written any more, and why. Returns it.
  Status give_up(const Status& why) { return end(why); }
  // Tries to have a pool again. Blocks. OK: there is one.
  Status try_again();

  [[nodiscard]] bool attached() const noexcept {
    return state_now_.load(std::memory_order_acquire) == State::kAttached;
  }
  [[nodiscard]] bool bypassed() const noexcept {
    return state_now_.load(std::memory_order_acquire) == State::kBypass;
  }
  [[nodiscard]] Status ended() const;  // why; OK: it has not
  [[nodiscard]] uint64_t number() const;
  void stop() { stop_.raise(); }  // tries end

  struct Counters {
    std::atomic<uint64_t> attached{0}, bypassed{0}, doubtful_pages{0};
  };
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

 private:
  enum class State : uint8_t { kAttached, kUnsettled, kBypass, kEnded };
  void leave();
  void doubt(const std::vector<PageId>& pages);
  void set(State state) STRATA_REQUIRES(mutex_);
  Status attach_again(uint64_t begun_us);
  Status name_again(uint64_t incarnation);
  Status look_up_doubtful();
  Status lost(const Status& why);
  Status end(const Status& why);
  Status have_new_pool();
  bool claim(uint64_t number, Status* result) STRATA_EXCLUDES(mutex_);
  Status work(uint64_t begun_us);

  const Options options_;
  RemotePool* const pool_;
  PoolNaming* const naming_;
  RemoteDirectory* const directory_;
  const std::function<void()> renewed_;
  StopFlag stop_;
  bool found_whole_ = false;
  std::optional<MemoryCheckpoint> found_;
  Epoch found_epoch_;  // of it
  std::atomic<State> state_now_{State::kBypass};
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  State state_ STRATA_GUARDED_BY(mutex_) = State::kBypass;
  bool working_ STRATA_GUARDED_BY(mutex_) = false;  // somebody attaches
  uint32_t uses_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t number_ STRATA_GUARDED_BY(mutex_) = 0;  // of attachments that went well
  uint64_t incarnation_ STRATA_GUARDED_BY(mutex_) = 0;
  bool may_be_unnamed_ STRATA_GUARDED_BY(mutex_) = false;  // the registry was asked to forget it
  std::vector<PageId> doubtful_ STRATA_GUARDED_BY(mutex_);
  Status ended_ STRATA_GUARDED_BY(mutex_);
  Counters counters_;
};

// The pool does not answer, or not to this user: attach() says more.
[[nodiscard]] bool is_trouble(const Status& status);
// What a call to the pool ended with, as who reads or writes pages is told (PAT4).
[[nodiscard]] Status told_above(const Status& why);

}  // namespace strata::clients
