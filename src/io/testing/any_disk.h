// For tests that hold for every kind of file system: a fixture with a folder of its own on each.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "io/file_system.h"
#include "io/testing/temporary_folder.h"

namespace strata::testing {

enum class Disk { kPosix, kPowerLoss, kFullDisk, kFailingDisk, kSim };

class AnyDisk : public ::testing::TestWithParam<Disk> {
 protected:
  AnyDisk() : dir_(GetParam() == Disk::kSim ? "/data" : folder_.path() + "/data") {
    fs_ = make(GetParam());
    EXPECT_TRUE(fs_->make_directory(dir_).ok());
  }
  [[nodiscard]] std::string at(const std::string& name) const { return dir_ + "/" + name; }

  TemporaryFolder folder_;  // a disk, for direct I/O
  const std::string dir_;
  std::unique_ptr<FileSystem> fs_;

 private:
  [[nodiscard]] std::unique_ptr<FileSystem> make(Disk which) const {
    auto real = make_posix_file_system();
    switch (which) {
      case Disk::kPosix:
        return real;
      case Disk::kFullDisk:
        return make_full_disk_file_system(std::move(real), folder_.path() + "/full");
      case Disk::kFailingDisk:
        return make_failing_disk_file_system(std::move(real), folder_.path() + "/failing");
      case Disk::kPowerLoss:
        return make_power_loss_file_system(std::move(real), folder_.path() + "/journal");
      case Disk::kSim:
        return make_sim_file_system();
    }
    return nullptr;
  }
};

}  // namespace strata::testing
