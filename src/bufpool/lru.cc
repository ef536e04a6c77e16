#include "bufpool/lru.h"

#include <time.h>

namespace strata {

uint64_t coarse_now_us() noexcept {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000 + static_cast<uint64_t>(t.tv_nsec) / 1000;
}

void Lru::configure(Frame* frames, uint64_t old_time_us, uint32_t old_percent) noexcept {
  frames_ = frames;
  old_time_us_ = old_time_us;
  old_percent_ = old_percent;
}

void Lru::push_front(List* list, Frame* frame) noexcept {
  const uint32_t self = static_cast<uint32_t>(frame - frames_);
  frame->lru_prev = kNoFrame;
  frame->lru_next = list->head;
  (list->head == kNoFrame ? list->tail : frames_[list->head].lru_prev) = self;
  list->head = self;
  list->count.store(list->count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Lru::unlink(List* list, Frame* frame) noexcept {
  (frame->lru_prev == kNoFrame ? list->head : frames_[frame->lru_prev].lru_next) = frame->lru_next;
  (frame->lru_next == kNoFrame ? list->tail : frames_[frame->lru_next].lru_prev) = frame->lru_prev;
  list->count.store(list->count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
}

void Lru::insert(Frame* frame, uint64_t now_us) noexcept {
  frame->first_use_us.store(now_us, std::memory_order_relaxed);
  frame->place.store(LruPlace::kOld, std::memory_order_relaxed);
  push_front(&old_, frame);
}

void Lru::remove(Frame* frame) noexcept {
  const LruPlace place = frame->place.load(std::memory_order_relaxed);
  if (place == LruPlace::kNone) return;
  unlink(place == LruPlace::kYoung ? &young_ : &old_, frame);
  frame->place.store(LruPlace::kNone, std::memory_order_relaxed);
  rebalance();
}

void Lru::make_young(Frame* frame) noexcept {
  const LruPlace place = frame->place.load(std::memory_order_relaxed);
  if (place == LruPlace::kNone) return;
  unlink(place == LruPlace::kYoung ? &young_ : &old_, frame);
  frame->place.store(LruPlace::kYoung, std::memory_order_relaxed);
  const uint32_t clock = young_clock_.load(std::memory_order_relaxed) + 1;
  young_clock_.store(clock, std::memory_order_relaxed);
  frame->lru_stamp.store(clock, std::memory_order_relaxed);
  push_front(&young_, frame);
  rebalance();
}

void Lru::rebalance() noexcept {  // LU2
  const uint64_t total = uint64_t{young_count()} + old_count();
  while (young_.tail != kNoFrame && uint64_t{old_count()} * 100 < total * old_percent_) {
    Frame* frame = &frames_[young_.tail];
    unlink(&young_, frame);
    frame->place.store(LruPlace::kOld, std::memory_order_relaxed);
    push_front(&old_, frame);
  }
}

bool Lru::needs_touch(const Frame* frame) const noexcept {
  if (frame->place.load(std::memory_order_relaxed) == LruPlace::kYoung) {
    const uint32_t passed = young_clock_.load(std::memory_order_relaxed) -
                            frame->lru_stamp.load(std::memory_order_relaxed);
    return passed > young_count() / 4 + 1;
  }
  const uint64_t first_use_us = frame->first_use_us.load(std::memory_order_relaxed);
  return old_time_us_ == 0 || first_use_us == 0 || coarse_now_us() - first_use_us >= old_time_us_;
}

uint32_t Lru::warmer(uint32_t index) const noexcept {
  const Frame& frame = frames_[index];
  if (frame.lru_prev != kNoFrame) return frame.lru_prev;
  return frame.place.load(std::memory_order_relaxed) == LruPlace::kOld ? young_.tail : kNoFrame;
}

}  // namespace strata
