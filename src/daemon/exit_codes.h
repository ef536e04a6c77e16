// How daemons end, for scripts (CD2 in cmd/README.md).
#pragma once

namespace strata::daemon {

constexpr int kFailed = 1;
constexpr int kUsage = 2;           // settings that cannot be
constexpr int kSecondSignal = 130;  // by the second signal, at once

}  // namespace strata::daemon
