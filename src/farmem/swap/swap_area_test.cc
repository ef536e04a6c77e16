// Goal: the head of a swap area is what the kernel's mkswap would have written; places that are in
// use are found; what was not written down is not undone (FM41), and what was is, from whatever
// point (FM40). Method: bytes and texts by hand, folders and files of the test's own. What needs
// the kernel and root is in tests/e2e/test_farmem_swap.py.
#include "farmem/swap/swap_area.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "farmem/swap/host_changes.h"
#include "farmem/swap/small_files.h"

namespace strata::farmem {
namespace {

TEST(SwapArea, HasTheHeadThatTheKernelLooksFor) {
  const SwapHeader header = swap_header(1000);
  EXPECT_EQ(std::string(header.data() + 4086, 10), "SWAPSPACE2");
  EXPECT_EQ(load_u32(header.data() + 1024), 1u);
  EXPECT_EQ(load_u32(header.data() + 1028), 999u);
  EXPECT_EQ(load_u32(header.data() + 1032), 0u);  // no bad pages
}

TEST(SwapArea, FindsThePlaceInUse) {
  EXPECT_EQ(swap_in_use("Filename\tType\tSize\tUsed\tPriority\n"), "");
  EXPECT_EQ(swap_in_use(""), "");
  EXPECT_EQ(swap_in_use("Filename Type Size Used Priority\n/dev/loop3   partition 10 0 -2\n"),
            "/dev/loop3");
}

TEST(SmallFiles, FiguresAreFoundByTheirWholeName) {
  const std::string text = "pgfault 5\npgmajfault 7\nswap 9\n";
  EXPECT_EQ(figure_of(text, "pgmajfault"), 7u);
  EXPECT_EQ(figure_of(text, "pgmaj"), 0u);
  EXPECT_EQ(figure_of(text, "none"), 0u);
  EXPECT_EQ(read_small("/no/such/file"), "");
  EXPECT_FALSE(write_small("/no/such/file", "1").ok());
}

TEST(HostChanges, NothingWrittenDownIsNothingUndone) {
  HostChanges changes;
  EXPECT_TRUE(put_back(&changes).ok());
}

TEST(HostChanges, WhatIsWrittenDownIsUndoneAndStruckOut) {
  char folder[] = "/tmp/swap_area_test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string group = std::string(folder) + "/group", file = std::string(folder) + "/file";
  std::filesystem::create_directory(group);
  std::ofstream(file) << "pages";
  HostChanges changes;
  ASSERT_TRUE(put_path(&changes.memory_group, group));
  ASSERT_TRUE(put_path(&changes.swap_file, file));
  // Was to be made, and never was.
  ASSERT_TRUE(put_path(&changes.io_group, std::string(folder) + "/never"));
  if (::geteuid() == 0) {
    ASSERT_TRUE(put_path(&changes.swap, "/no/such/device"));
  }
  EXPECT_TRUE(put_back(&changes).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_EQ(path_of(changes.memory_group), "");
  EXPECT_EQ(path_of(changes.swap), "");
  EXPECT_TRUE(put_back(&changes).ok());
  std::filesystem::remove(folder);
}

TEST(HostChanges, PathsThatDoNotFitAreRefused) {
  HostPath path{};
  EXPECT_FALSE(put_path(&path, std::string(kHostPathBytesMax, 'x')));
  EXPECT_TRUE(put_path(&path, std::string(kHostPathBytesMax - 1, 'x')));
  EXPECT_EQ(path_of(path).size(), kHostPathBytesMax - 1);
}

}  // namespace
}  // namespace strata::farmem
