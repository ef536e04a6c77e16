// A frame's descriptor and the rules for its fields. Internal to bufpool.
//
// State (written under the exclusive latch, or while owned):
//
//   kFree ----take----> kLoading ----load----> kReady ---evict, discard---> kFree
//                          |  \--new, redo--> kBlank --note_modified--> kReady
//                          |                     |
//                          +----load failed------+-----> kDetached ---last unpin---> kFree
//                                                kReady --surrender--^
//
// With page locks between nodes, kLocking (acquire() not answered yet) comes before kLoading; a
// surrender() meanwhile makes it kLockRevoked: acquire again. Both under the partition mutex; and
// neither where the service awaits releases (PL6), since the page is locked already then.
// kBlank: the bytes are zeroes that were never read; only fix_new() and fix_for_redo() may see
// them. kDetached: not in the hash table any more; whoever latches it lets go and looks the page up
// again.
//
//   F1  pins = kOwned (one owner: the free list, an evictor, a loader before it publishes the
//       frame) plus the number of pins. Ownership is taken only from 0, so a pinned frame keeps its
//       page. A pin that meets kOwned is taken back at once and means nothing.
//   F2  page_id and the hash and LRU links change only while owned, or under the exclusive latch
//       when a frame is detached; always under the mutex of the page's partition (B1).
//   F3  dirty: kListed is set under the exclusive latch (note_modified) or after a failed write,
//       and cleared under the shared latch (begin_write); both under the dirty list's mutex.
//       kWriting is set under the shared latch by the one writer of the page and cleared when its
//       write ended.
//   F4  A frame with dirty != 0 is never evicted.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ids.h"
#include "base/latch.h"
#include "bufpool/page_lock.h"

namespace strata {

enum class FrameState : uint8_t {
  kFree,
  kLocking,
  kLockRevoked,
  kLoading,
  kReady,
  kBlank,
  kBlankDamaged,
  kDetached
};
enum class LruPlace : uint8_t { kNone, kYoung, kOld };

constexpr uint32_t kNoFrame = 0xffffffffu;
constexpr uint64_t kNoPageId = ~uint64_t{0};
constexpr uint32_t kOwned = 1u << 31;
constexpr uint8_t kListed = 1;
constexpr uint8_t kWriting = 2;

struct alignas(64) Frame {
  // Touched by every hit.
  std::atomic<uint64_t> page_id{kNoPageId};  // packed
  std::atomic<uint32_t> pins{kOwned};
  RwLatch latch;
  std::atomic<uint32_t> hash_next{kNoFrame};
  std::atomic<FrameState> state{FrameState::kFree};
  std::atomic<LruPlace> place{LruPlace::kNone};
  std::atomic<uint8_t> dirty{0};
  std::atomic<uint32_t> lru_stamp{0};     // young clock of the partition when it became young
  char* page = nullptr;                   // constant
  std::atomic<uint64_t> first_use_us{0};  // 0: read ahead, not used yet
  uint32_t lru_prev = kNoFrame;           // partition mutex
  uint32_t lru_next = kNoFrame;           // also links the free list

  // Touched by changes and write-back.
  alignas(64) uint64_t newest_end = 0;  // end of the last group; page latch
  uint64_t image_lsn = 0;               // page latch
  std::atomic<uint64_t> first_lsn{0};   // while kListed; dirty mutex to write
  uint64_t writing_lsn = 0;             // while kWriting; dirty mutex
  uint32_t dirty_prev = kNoFrame;       // dirty mutex, while kListed
  uint32_t dirty_next = kNoFrame;
  uint32_t writing_prev = kNoFrame;  // dirty mutex, while kWriting
  uint32_t writing_next = kNoFrame;

  // Of a latch that is handed on: to whoever gets a PageGuard, to whoever loads the page, to
  // another thread. The analysis cannot follow such a latch, so it does not look at these three;
  // what is given back in the same function uses `latch` itself and is checked.
  void lock_to_hand_on(LatchMode mode) noexcept STRATA_NO_THREAD_SAFETY_ANALYSIS {
    mode == LatchMode::kShared ? latch.lock_shared() : latch.lock();
  }
  bool try_lock_to_hand_on(LatchMode mode) noexcept STRATA_NO_THREAD_SAFETY_ANALYSIS {
    return mode == LatchMode::kShared ? latch.try_lock_shared() : latch.try_lock();
  }
  void unlock_handed_on(LatchMode mode) noexcept STRATA_NO_THREAD_SAFETY_ANALYSIS {
    mode == LatchMode::kShared ? latch.unlock_shared() : latch.unlock();
  }

  [[nodiscard]] PageId id() const noexcept {
    return PageId::unpack(page_id.load(std::memory_order_relaxed));
  }
};
static_assert(sizeof(Frame) == 128);

}  // namespace strata
