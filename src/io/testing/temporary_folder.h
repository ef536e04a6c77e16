// For tests: a folder on a real disk (direct I/O works there, but for tmpfs), or in memory where
// thousands of syncs would take too long. Gone, with what is in it, when the object goes.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace strata::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() : TemporaryFolder(std::filesystem::temp_directory_path().string()) {}
  static TemporaryFolder in_memory() {
    return std::filesystem::exists("/dev/shm") ? TemporaryFolder("/dev/shm") : TemporaryFolder();
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  explicit TemporaryFolder(const std::string& root) {
    std::string name = root + "/strata_test_XXXXXX";
    const char* const made = ::mkdtemp(name.data());
    if (made == nullptr) throw std::runtime_error("no temporary folder " + name);
    path_ = made;
  }
  std::string path_;
};

}  // namespace strata::testing
