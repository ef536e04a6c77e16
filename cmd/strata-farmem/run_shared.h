// `strata-farmem run --mode fuse`: a program of several processes, the memory that they share far.
#pragma once

#include "settings.h"

namespace strata::farmem {

// Ends when all processes of the program have. Returns the code to exit with: that of the process
// which was started; 2 when it was not, 74 when far memory was lost.
int run_shared(const RunSettings& settings);

}  // namespace strata::farmem
