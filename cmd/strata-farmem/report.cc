#include "report.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace strata::farmem {
namespace {

constexpr double kMebi = 1024.0 * 1024.0;

uint64_t value(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

nlohmann::ordered_json json_of(const ProcessReport& process) {
  nlohmann::ordered_json out{{"pid", process.pid},
                             {"runs", process.runs},
                             {"lost", process.lost},
                             {"far_bytes", process.far_bytes},
                             {"far_bytes_refused", process.far_bytes_refused},
                             {"outside_bytes_max", process.outside_bytes_max},
                             {"outside_anonymous_bytes_max", process.outside_anonymous_bytes_max},
                             {"faults", process.faults},
                             {"soft_hits", process.soft_hits},
                             {"zero_filled", process.zero_filled},
                             {"fetched", process.fetched},
                             {"prefetched", process.prefetched},
                             {"evicted_dirty", process.evicted_dirty},
                             {"evicted_clean", process.evicted_clean},
                             {"evicted_zero", process.evicted_zero},
                             {"discarded", process.discarded},
                             {"pinned", process.pinned},
                             {"local_pages", process.local_pages},
                             {"local_pages_max", process.local_pages_max},
                             {"cached_pages_max", process.cached_pages_max},
                             {"bytes_in", process.bytes_in()},
                             {"bytes_out", process.bytes_out()},
                             {"service_ns", process.service_ns}};
  // Of each bucket its lower bound in nanoseconds.
  auto& histogram = out["service_histogram_ns"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < process.service_histogram.size(); i++)
    if (process.service_histogram[i] > 0)
      histogram[std::to_string(1ull << i)] = process.service_histogram[i];
  return out;
}

template <typename... Values>
std::string line(const char* format, Values... values) {
  std::array<char, 256> text;
  const int bytes = std::snprintf(text.data(), text.size(), format, values...);
  return {text.data(), std::min(static_cast<size_t>(std::max(bytes, 0)), text.size() - 1)};
}

}  // namespace

ProcessReport report_of(const ProcessCounters& counters) {
  const PagerCounters& pager = counters.pager;
  ProcessReport out;
  out.pid = counters.pid.load();
  if (counters.lost.load() != 0) out.lost = text_of(counters.message);
  out.far_bytes = value(counters.far_bytes_allocated);
  out.far_bytes_refused = value(counters.far_bytes_refused);
  out.faults = value(pager.faults);
  out.soft_hits = value(pager.soft_hits);
  out.zero_filled = value(pager.zero_filled);
  out.fetched = value(pager.fetched);
  out.prefetched = value(pager.prefetched);
  out.evicted_dirty = value(pager.evicted_dirty);
  out.evicted_clean = value(pager.evicted_clean);
  out.evicted_zero = value(pager.evicted_zero);
  out.discarded = value(pager.discarded);
  out.pinned = value(pager.pinned);
  out.local_pages = value(pager.mapped) + value(pager.staged);
  out.local_pages_max = value(pager.local_max);
  out.service_ns = value(pager.service_ns);
  for (const Counter& bucket : pager.service_histogram)
    out.service_histogram.push_back(value(bucket));
  return out;
}

std::string json_of(const RunReport& run) {
  nlohmann::ordered_json out{{"mode", run.mode},
                             {"seconds", run.seconds},
                             {"ended", run.ended},
                             {"exit_code", run.exit_code},
                             {"memory_node", run.memory_node},
                             {"policy", run.policy},
                             {"prefetch", run.prefetch},
                             {"local_pages_cap", run.local_pages_cap},
                             {"link_round_trip_ns", run.link_round_trip_ns},
                             {"link_bytes_per_second", run.link_bytes_per_second}};
  if (run.has_files)
    out["files"] = {{"fetched", run.file_pages_fetched},
                    {"from_disk", run.file_pages_from_disk},
                    {"stored", run.file_pages_stored},
                    {"bytes_in", run.file_pages_fetched * kPageBytes},
                    {"bytes_written", run.file_bytes_written}};
  out["processes"] = nlohmann::ordered_json::array();
  for (const ProcessReport& process : run.processes) out["processes"].push_back(json_of(process));
  // Names of programs and messages may be bytes of any kind.
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void write_stats(const std::string& file, const RunReport& run) {
  const std::string draft = file + ".new";
  std::ofstream out(draft, std::ios::trunc);
  out << json_of(run);
  out.close();
  if (!out || std::rename(draft.c_str(), file.c_str()) != 0)
    std::fprintf(stderr, "strata-farmem: cannot write %s\n", file.c_str());
}

std::string table_of(const std::vector<ProcessReport>& processes, double seconds) {
  std::string out = line("%8s %8s %9s %9s %9s %9s %9s %8s %8s %8s\n", "pid", "seconds", "faults",
                         "fetched", "prefetch", "new", "soft", "MiB in", "MiB out", "us/fault");
  for (const ProcessReport& p : processes) {
    const double us = p.faults == 0 ? 0 : static_cast<double>(p.service_ns) / 1e3 / p.faults;
    out += line(
        "%8llu %8.1f %9llu %9llu %9llu %9llu %9llu %8.1f %8.1f %8.1f\n",
        static_cast<unsigned long long>(p.pid), seconds, static_cast<unsigned long long>(p.faults),
        static_cast<unsigned long long>(p.fetched), static_cast<unsigned long long>(p.prefetched),
        static_cast<unsigned long long>(p.zero_filled),
        static_cast<unsigned long long>(p.soft_hits), p.bytes_in() / kMebi, p.bytes_out() / kMebi,
        us);
    if (p.far_bytes_refused > 0)
      out += line("%8s %.1f MiB found no room in far memory and were local\n", "",
                  p.far_bytes_refused / kMebi);
    if (!p.lost.empty()) out += "         ended: " + p.lost + "\n";
  }
  return out;
}

}  // namespace strata::farmem
