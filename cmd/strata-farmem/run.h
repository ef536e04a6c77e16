// `strata-farmem run`: starts a program with our library in front of the C library's allocator,
// waits for it and shows what its memory did.
#pragma once

#include "settings.h"

namespace strata::farmem {

// Exit code: the program's, or 128 and its signal; 2 when it was not started (said why).
int run(const RunSettings& settings);

}  // namespace strata::farmem
