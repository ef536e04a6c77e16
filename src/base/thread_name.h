// Names for threads, as `top -H`, `perf` and debuggers show them. At most 15 bytes.
#pragma once

#include <pthread.h>

namespace strata {
inline void name_this_thread(const char* name) noexcept {
  (void)::pthread_setname_np(::pthread_self(), name);  // too long a name: it keeps the old one
}
}  // namespace strata
