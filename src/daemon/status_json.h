// What all nodes say of themselves, as JSON. For programs only: the library throws.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "daemon/node_values.h"

namespace strata::daemon {

// As "values", "methods" and "refused".
void add_values(nlohmann::json* out, const NodeValues& node);
// With what is no UTF-8 replaced, and a line feed.
[[nodiscard]] std::string text_of(const nlohmann::json& json);

}  // namespace strata::daemon
