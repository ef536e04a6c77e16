// A memory node's status as others read it.
#pragma once

#include <string>

#include "base/status.h"
#include "memnode/node/node_status.h"

namespace strata::memnode {

[[nodiscard]] std::string status_json(const NodeStatus& status, const Status& health);
[[nodiscard]] std::string metrics_text(const NodeStatus& status, const Status& health);

}  // namespace strata::memnode
