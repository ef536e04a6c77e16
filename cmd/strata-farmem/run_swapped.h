// `strata-farmem run --mode swap|disk|zram`: starts a program that has so much memory and no more,
// and a place to swap to; what the kernel does then is what other ways are compared with.
#pragma once

#include "settings.h"

namespace strata::farmem {

// Exit code: the program's, or 128 and its signal; 2 when it was not started (said why); 74 when
// far memory was lost, or full.
int run_swapped(const SwapSettings& settings);

}  // namespace strata::farmem
