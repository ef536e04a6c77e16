#include "farmem/swap/stuck.h"

namespace strata::farmem {

WhenStuck StuckWatch::look(uint64_t now_us, bool waits, uint64_t swapped) noexcept {
  if (!waits || !waits_ || swapped != swapped_) {
    waits_ = waits;
    since_us_ = now_us;
    swapped_ = swapped;
    tries_ = 0;
    return WhenStuck::kNothing;
  }
  if (now_us - since_us_ < kFirstPauseUs << tries_) return WhenStuck::kNothing;
  return tries_ < kTries ? WhenStuck::kTakePages : WhenStuck::kEnd;
}

void StuckWatch::has_taken(uint64_t now_us, uint64_t swapped) noexcept {
  ++tries_;
  since_us_ = now_us;
  swapped_ = swapped;
}

}  // namespace strata::farmem
