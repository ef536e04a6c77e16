// A storage node's status as others read it.
#pragma once

#include <string>

#include "base/status.h"
#include "storenode/node/node_status.h"

namespace strata::daemon {

[[nodiscard]] std::string status_json(const storenode::NodeStatus& status, const Status& health);
// Prometheus' text format: each name once with HELP and TYPE, then its samples.
[[nodiscard]] std::string metrics_text(const storenode::NodeStatus& status, const Status& health);

}  // namespace strata::daemon
