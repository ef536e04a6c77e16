// `strata-farmem replay`: what policies would have done with a recorded trace.
#pragma once

#include "settings.h"

namespace strata::farmem {

// Exit code: 0; 2 when the trace cannot be read (said why).
int replay_trace(const ReplaySettings& settings);

}  // namespace strata::farmem
