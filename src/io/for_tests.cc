// The disks of crash tests, one on top of the other.
#include <cstdlib>
#include <utility>

#include "io/file_system.h"

namespace strata {

std::unique_ptr<FileSystem> make_file_system_for_tests() {
  const char* const journal = std::getenv("STRATA_POWER_LOSS_JOURNAL");
  const char* const full = std::getenv("STRATA_FULL_DISK");
  const char* const failing = std::getenv("STRATA_FAILING_DISK");
  if (journal == nullptr && full == nullptr && failing == nullptr) return nullptr;
  auto files = make_posix_file_system();
  if (journal != nullptr) files = make_power_loss_file_system(std::move(files), journal);
  if (full != nullptr) files = make_full_disk_file_system(std::move(files), full);
  if (failing != nullptr) files = make_failing_disk_file_system(std::move(files), failing);
  return files;
}

}  // namespace strata
