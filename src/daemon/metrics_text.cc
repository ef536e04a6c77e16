#include "daemon/metrics_text.h"

namespace strata::daemon {
namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out.push_back('\\');
    if (c == '\n')
      out.append("\\n");
    else
      out.push_back(c);
  }
  return out;
}

}  // namespace

void MetricsText::family(const std::string& name, const std::string& help, bool counter) {
  name_ = "strata_" + name;
  text_ +=
      "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + (counter ? " counter\n" : " gauge\n");
}

void MetricsText::sample(uint64_t value, const Labels& labels) {
  text_ += name_;
  for (size_t i = 0; i < labels.size(); ++i)
    text_ += (i == 0 ? "{" : ",") + labels[i].first + "=\"" + escaped(labels[i].second) + "\"";
  text_ += (labels.empty() ? " " : "} ") + std::to_string(value) + "\n";
}

}  // namespace strata::daemon
