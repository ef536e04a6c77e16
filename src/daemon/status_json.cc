#include "daemon/status_json.h"

#include <nlohmann/json.hpp>

namespace strata::daemon {

void add_values(nlohmann::json* out, const NodeValues& node) {
  for (const NodeValues::Value& value : node.values) (*out)["values"][value.name] = value.value;
  for (const NodeValues::Method& method : node.methods)
    for (const MethodValue& value : method_values())
      (*out)["methods"][method.name][value.name] = method.*value.of;
  for (const NodeValues::Refused& refused : node.refusals)
    (*out)["refused"][refused.why] = refused.count;
}

std::string text_of(const nlohmann::json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace strata::daemon
