// `strata-farmem serve`: a memory node until SIGTERM or SIGINT.
#pragma once

#include "settings.h"

namespace strata::farmem {

// Exit code: 0, 1 (failed, said why), 130 (second signal).
int serve(const ServeSettings& settings);

}  // namespace strata::farmem
