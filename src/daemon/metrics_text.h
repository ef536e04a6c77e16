// Metrics in Prometheus' text format: each name once with HELP and TYPE, then its samples.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace strata::daemon {

class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  // Of the samples that follow; "strata_" is put before the name. A counter only grows.
  void family(const std::string& name, const std::string& help, bool counter);
  void sample(uint64_t value, const Labels& labels = {});
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

}  // namespace strata::daemon
