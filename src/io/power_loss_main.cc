// strata_power_loss --journal FILE --seed N: see io/README.md.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "io/internal/power_loss_revert.h"

namespace {

int usage() {
  std::fprintf(stderr,
               "usage: strata_power_loss --journal FILE --seed N\n"
               "Undoes a random part of what a killed server had not synced.\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::string journal;
  const char* seed = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--journal") == 0) {
      journal = argv[i + 1];
    } else if (std::strcmp(argv[i], "--seed") == 0) {
      seed = argv[i + 1];
    } else {
      return usage();
    }
  }
  if (argc != 5 || journal.empty() || seed == nullptr) return usage();
  char* end = nullptr;
  const unsigned long long number = std::strtoull(seed, &end, 10);
  if (*seed == '\0' || *end != '\0') return usage();
  const auto report = strata::revert_unsynced(journal, number);
  if (!report.ok()) {
    std::fprintf(stderr, "strata_power_loss: %s\n", std::string(report.status().message()).c_str());
    return 1;
  }
  std::printf(
      "%llu records%s; %llu unsynced changes, %llu sectors reverted; "
      "%llu unsynced names, %llu reverted\n",
      static_cast<unsigned long long>(report->records), report->tail_cut ? " (last one cut)" : "",
      static_cast<unsigned long long>(report->unsynced_changes),
      static_cast<unsigned long long>(report->reverted_sectors),
      static_cast<unsigned long long>(report->unsynced_names),
      static_cast<unsigned long long>(report->reverted_names));
  return 0;
}
