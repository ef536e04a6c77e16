#include "daemon/node_values.h"

#include <string>

namespace strata::daemon {

void NodeValues::add_call(const char* method, const transport::MethodCounters& of) {
  methods.push_back({method, of.operations, of.errors, of.bytes_in, of.bytes_out, of.nanoseconds});
}

void NodeValues::add_connections(transport::Counters* counters) {
  count("connections_opened_total", "Connections authenticated.", counters->connections_opened);
  count("connections_closed_total", "Connections closed, of those.", counters->connections_closed);
  count("calls_of_other_builds_total",
        "Calls refused since the caller is of another build, which lays them out differently.",
        counters->other_layouts);
  for (size_t i = 0; i < static_cast<size_t>(transport::Refusal::count); ++i) {
    const auto why = static_cast<transport::Refusal>(i);
    refusals.push_back({transport::refusal_name(why), counters->refused(why)});
  }
}

const std::vector<MethodValue>& method_values() {
  using Method = NodeValues::Method;
  static const std::vector<MethodValue> values = {
      {"operations_total", "Requests answered.", &Method::operations},
      {"errors_total", "Requests answered with an error, of those.", &Method::errors},
      {"received_bytes_total", "Bytes of requests.", &Method::bytes_in},
      {"sent_bytes_total", "Bytes of answers.", &Method::bytes_out},
      {"nanoseconds_total", "Time from a request's arrival to its answer.", &Method::nanoseconds},
  };
  return values;
}

void add_values(MetricsText* out, const NodeValues& node) {
  for (const NodeValues::Value& value : node.values) {
    out->family(value.name, value.help, value.counter);
    out->sample(value.value);
  }
}

void add_calls(MetricsText* out, const NodeValues& node) {
  for (const MethodValue& value : method_values()) {
    out->family(std::string("rpc_") + value.name, value.help, true);
    for (const NodeValues::Method& method : node.methods)
      out->sample(method.*value.of, {{"method", method.name}});
  }
  out->family("rpc_refused_total", "Connections closed by this node, by the reason.", true);
  for (const NodeValues::Refused& refused : node.refusals)
    out->sample(refused.count, {{"why", refused.why}});
}

}  // namespace strata::daemon
