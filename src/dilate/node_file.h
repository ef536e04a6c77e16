// The file that an emulated node's processes share (node_state.h): made, or checked and mapped.
//   TD7  Whoever is first makes the file; the others find a whole one, or wait. A file that says
//        otherwise than the settings, or is none of ours, is refused.
#pragma once

#include <string>

#include "dilate/node_state.h"
#include "dilate/settings.h"

namespace strata::dilate {

struct MappedNode {
  NodeState* state = nullptr;  // null: see `problem`; stays mapped until the process ends
  std::string problem;         // one line
};
// `now`: the clocks, for a file that is made.
MappedNode map_node(const Settings& settings, Origin now);

}  // namespace strata::dilate
