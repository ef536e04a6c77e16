#include "replay_trace.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "farmem/policy/replay.h"
#include "farmem/trace/trace_reader.h"

namespace strata::farmem {
namespace {

constexpr int kRefused = 2;
constexpr double kMebi = 1024.0 * 1024.0;

struct Row {
  std::string what;  // "recorded" or "replayed"
  PolicyOptions policy;
  PageCounts counts;

  [[nodiscard]] uint64_t bytes_in() const {
    return (counts.fetched + counts.prefetched) * kPageBytes;
  }
  [[nodiscard]] uint64_t bytes_out() const { return counts.evicted_dirty * kPageBytes; }
};

nlohmann::ordered_json json_of(const Row& row) {
  const PageCounts& counts = row.counts;
  return {{"what", row.what},
          {"policy", policy_name(row.policy)},
          {"local_pages_cap", row.policy.frames},
          {"prefetch", row.policy.prefetch},
          {"faults", counts.faults},
          {"soft_hits", counts.soft_hits},
          {"zero_filled", counts.zero_filled},
          {"fetched", counts.fetched},
          {"prefetched", counts.prefetched},
          {"evicted_dirty", counts.evicted_dirty},
          {"evicted_clean", counts.evicted_clean},
          {"evicted_zero", counts.evicted_zero},
          {"bytes_in", row.bytes_in()},
          {"bytes_out", row.bytes_out()}};
}

void print_json(const Trace& trace, const std::vector<Row>& rows) {
  nlohmann::ordered_json out{{"program", trace.program},
                             {"pid", trace.pid},
                             {"pinned", trace.pinned},
                             {"complete", trace.error == 0}};
  out["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) out["rows"].push_back(json_of(row));
  std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void print_table(const Trace& trace, const std::vector<Row>& rows) {
  std::printf("%s, process %llu: %llu faults\n", trace.program.c_str(),
              static_cast<unsigned long long>(trace.pid),
              static_cast<unsigned long long>(trace.recorded.faults));
  if (trace.error != 0)
    std::printf("the recording ended before the program: %s\n", std::strerror(trace.error));
  if (trace.pinned > 0)
    std::printf("%llu times a page could not go because the kernel was using it: not replayed\n",
                static_cast<unsigned long long>(trace.pinned));
  std::printf("%-9s %-14s %9s %9s %9s %9s %9s %9s %9s %8s %8s\n", "", "policy", "local MiB",
              "prefetch", "faults", "fetched", "along", "new", "soft", "MiB in", "MiB out");
  for (const Row& row : rows) {
    const PageCounts& counts = row.counts;
    std::printf("%-9s %-14s %9.1f %9u %9llu %9llu %9llu %9llu %9llu %8.1f %8.1f\n",
                row.what.c_str(), policy_name(row.policy).c_str(),
                static_cast<double>(row.policy.frames) * kPageBytes / kMebi, row.policy.prefetch,
                static_cast<unsigned long long>(counts.faults),
                static_cast<unsigned long long>(counts.fetched),
                static_cast<unsigned long long>(counts.prefetched),
                static_cast<unsigned long long>(counts.zero_filled),
                static_cast<unsigned long long>(counts.soft_hits),
                static_cast<double>(row.bytes_in()) / kMebi,
                static_cast<double>(row.bytes_out()) / kMebi);
  }
}

int refuse(const Status& why) {
  std::fprintf(stderr, "strata-farmem: %s\n", std::string(why.message()).c_str());
  return kRefused;
}

}  // namespace

int replay_trace(const ReplaySettings& settings) {
  const auto trace = read_trace(settings.trace_file);
  if (!trace.ok()) return refuse(trace.status());
  std::vector<Row> rows{{"recorded", trace->policy, trace->recorded}};
  // The recording's own first: that it comes to the same counts says how far replay can be
  // believed.
  std::vector<PolicyOptions> policies{trace->policy};
  policies.insert(policies.end(), settings.policies.begin(), settings.policies.end());
  for (const PolicyOptions& policy : policies) {
    const auto counts = replay(trace->accesses, policy, std::max<uint64_t>(trace->pages_end, 1));
    if (!counts.ok()) return refuse(counts.status());
    rows.push_back({"replayed", policy, *counts});
  }
  settings.json ? print_json(*trace, rows) : print_table(*trace, rows);
  return 0;
}

}  // namespace strata::farmem
