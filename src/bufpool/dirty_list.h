// Which frames hold changes that are not in the page source yet, oldest first. Internal to bufpool.
// Thread-safe; O(1) per change because first-change Lsns arrive almost in order: a new entry walks
// back from the tail over the few groups that were reserved later but listed earlier.
//   DL1  The list is sorted by first_lsn, so its head is the exact minimum.
//   DL2  A page being written is off the list but counted by oldest() until end_write (B5). A
//        change during the write lists it again at its own Lsn (B4).
//   DL3  At most one write of a page is in flight: an older copy can never land on a newer one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "base/latch.h"
#include "bufpool/frame.h"

namespace strata {

class DirtyList {
 public:
  explicit DirtyList(Frame* frames) noexcept : frames_(frames) {}

  // The caller holds the exclusive latch.
  void add(Frame* frame, uint64_t lsn) noexcept;
  // The caller holds a latch and a pin. False: clean, or somebody else is writing it.
  bool begin_write(Frame* frame) noexcept;
  // Pins still held. `ok` false: the frame is listed again at its old Lsn.
  void end_write(Frame* const* frames, const bool* ok, size_t count) noexcept;
  // Takes a frame off the list. The caller owns it (F1), so no write is in flight.
  void drop(Frame* frame) noexcept;

  // Pins up to `max` frames first changed below `lsn` that nobody is writing, oldest first.
  size_t pin_below(uint64_t lsn, Frame** out, size_t max) noexcept;
  // True: nothing below `lsn` is listed or being written.
  [[nodiscard]] bool clean_below(uint64_t lsn) noexcept;
  // Waits until some write ends, or a short while.
  void wait_for_write(const Frame* frame_or_null) noexcept;
  [[nodiscard]] uint64_t oldest() noexcept;  // UINT64_MAX: none
  [[nodiscard]] uint32_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  uint32_t index_of(const Frame* f) const noexcept { return static_cast<uint32_t>(f - frames_); }
  uint64_t oldest_locked() const noexcept STRATA_REQUIRES(mutex_);
  void link(Frame* frame, uint64_t lsn, bool from_head) noexcept STRATA_REQUIRES(mutex_);
  void unlink(Frame* frame) noexcept STRATA_REQUIRES(mutex_);
  void set_bits(Frame* frame, uint8_t bits) noexcept STRATA_REQUIRES(mutex_);

  Mutex mutex_{LatchRank::kDirtyList};
  CondVar write_ended_;
  Frame* const frames_;
  uint32_t head_ STRATA_GUARDED_BY(mutex_) = kNoFrame;
  uint32_t tail_ STRATA_GUARDED_BY(mutex_) = kNoFrame;
  uint32_t writing_head_ STRATA_GUARDED_BY(mutex_) = kNoFrame;
  uint32_t waiters_ STRATA_GUARDED_BY(mutex_) = 0;
  std::atomic<uint32_t> count_{0};  // frames with dirty != 0
};

}  // namespace strata
