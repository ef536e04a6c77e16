// What every node says of itself beside what only its kind has: values, its calls, and whom it has
// refused. For /status, /metrics and tests.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/metrics_text.h"
#include "transport/counters.h"

namespace strata::daemon {

struct NodeValues {
  struct Value {
    const char* name;  // as in metrics: snake_case, the unit last
    const char* help;
    bool counter = false;  // grows; otherwise it goes up and down
    uint64_t value = 0;
  };
  std::vector<Value> values;

  struct Method {
    const char* name;
    uint64_t operations = 0, errors = 0, bytes_in = 0, bytes_out = 0, nanoseconds = 0;
  };
  std::vector<Method> methods;
  struct Refused {
    const char* why;
    uint64_t count = 0;
  };
  std::vector<Refused> refusals;

  void gauge(const char* name, const char* help, uint64_t value) {
    values.push_back({name, help, false, value});
  }
  void count(const char* name, const char* help, uint64_t value) {
    values.push_back({name, help, true, value});
  }
  void add_call(const char* method, const transport::MethodCounters& of);
  // Connections made, closed and refused.
  void add_connections(transport::Counters* counters);
};

// A number of each method, as JSON and metrics name it.
struct MethodValue {
  const char* name;
  const char* help;
  uint64_t NodeValues::Method::*of;
};
[[nodiscard]] const std::vector<MethodValue>& method_values();

// The values, then calls and refusals.
void add_values(MetricsText* out, const NodeValues& node);
void add_calls(MetricsText* out, const NodeValues& node);

}  // namespace strata::daemon
