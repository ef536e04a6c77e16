// When a program that waits for memory is helped, and when it is ended.
//
// A thread that finds memory full, and nothing that could be swapped at once, sleeps until memory
// becomes free. Pages whose copy is in the swap by now are free for the taking, but they count
// until somebody takes them, and the kernel wakes nobody when they have been written. So all
// threads may sleep beside memory that is there, for ever: the more easily the slower writes are.
//
//   FM49  A program that waits for memory is ended only after pages were taken from it, and its
//         threads woken, kTries times with growing pauses, and it still waits: nothing was swapped
//         for it in between. Whatever it may have meanwhile is never more than its limit.
#pragma once

#include <cstdint>

namespace strata::farmem {

enum class WhenStuck : uint8_t { kNothing, kTakePages, kEnd };

class StuckWatch {
 public:
  static constexpr uint64_t kFirstPauseUs = 200'000;  // doubled by every try
  static constexpr uint32_t kTries = 5;
  // From the moment it is seen to wait, over all the pauses.
  static constexpr uint64_t kEndsAfterUs = kFirstPauseUs * ((1u << (kTries + 1)) - 1);

  // To be called several times a second. `waits`: memory is full, and its threads wait for some.
  // `swapped`: pages, in both directions, so far.
  WhenStuck look(uint64_t now_us, bool waits, uint64_t swapped) noexcept;
  // After kTakePages, which swaps pages itself: that is not the program getting on.
  void has_taken(uint64_t now_us, uint64_t swapped) noexcept;

 private:
  bool waits_ = false;
  uint64_t since_us_ = 0;  // it was seen to wait, or pages were taken
  uint64_t swapped_ = 0;   // at that moment
  uint32_t tries_ = 0;
};

}  // namespace strata::farmem
