// The stamp and the lock of a data folder: what is not this node's is refused and stays as it is.
#include "daemon/data_folder.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "base/crc32c.h"
#include "io/testing/temporary_folder.h"

namespace strata::daemon {
namespace {

bool is_name(std::string_view text) noexcept {
  return !text.empty() && text.find_first_of(" \n") == std::string_view::npos;
}
constexpr FolderKind kKind{
    .what = "storage node", .is_name = is_name, .remedy_of_damage = "ask its peers"};
constexpr FolderKind kOtherKind{.what = "memory node",
                                .is_name = is_name,
                                .remedy_of_damage = "empty it",
                                .of_one_database = false};
const FolderStamp kStamp{"s1", 0xfedcba9876543210, 42, "logdb-mv-sr"};

std::string with_crc(const std::string& text) {
  char line[20];
  std::snprintf(line, sizeof line, "crc32c %08x\n", crc32c(text.data(), text.size()));
  return text + line;
}

class DataFolderTest : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    ASSERT_TRUE(files_->make_directory(path_).ok());
    const auto file = files_->open(path_ + "/" + name, {.create = true});
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->truncate(0).ok());
    ASSERT_TRUE((*file)->write_at(0, text.data(), text.size()).ok());
  }
  std::vector<std::string> names() { return *files_->list(path_); }
  Status refusal() { return DataFolder::open(files_.get(), kKind, path_).status(); }

  strata::testing::TemporaryFolder folder_;
  const std::string marker_ = folder_.path() + "/marker";
  std::string path_ = folder_.path() + "/data";
  std::unique_ptr<FileSystem> files_ = make_posix_file_system();
};

TEST(FolderStampTest, IsTextThatReadsBack) {
  const std::string text = encode(kKind, kStamp);
  EXPECT_EQ(text.substr(0, text.find("crc32c")),
            "strata storage node\nformat 1\nname s1\nidentity fedcba9876543210\n"
            "database 000000000000002a\nprofile logdb-mv-sr\n");
  const auto back = decode_stamp(kKind, text, "x");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, kStamp);
}

TEST(FolderStampTest, OfAFolderOfManyDatabasesNamesNone) {
  const FolderStamp stamp{.name = "m1", .identity = 7};
  const std::string text = encode(kOtherKind, stamp);
  EXPECT_EQ(text.substr(0, text.find("crc32c")),
            "strata memory node\nformat 1\nname m1\nidentity 0000000000000007\n");
  const auto back = decode_stamp(kOtherKind, text, "x");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, stamp);
  const std::string body = text.substr(0, text.find("crc32c"));
  const std::string more = with_crc(body + "database 000000000000002a\nprofile logdb\n");
  EXPECT_TRUE(is_corruption(decode_stamp(kOtherKind, more, "x").status()));
}

TEST(FolderStampTest, DamageOfAnyKindIsFound) {
  const std::string text = encode(kKind, kStamp);
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_TRUE(is_corruption(decode_stamp(kKind, text.substr(0, i), "x").status())) << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const auto read = decode_stamp(kKind, damaged, "x");
      // Only the case of the checksum's own digits does not matter.
      if (read.ok())
        EXPECT_TRUE(i > text.rfind(' ') && *read == kStamp) << i;
      else
        EXPECT_TRUE(is_corruption(read.status())) << read.status();
    }
  }
  EXPECT_TRUE(is_corruption(decode_stamp(kKind, text + text, "x").status()));
  // A right checksum says that someone wrote it so, not that it makes sense.
  for (const char* body :
       {"", "strata storage node\n", "strata storage node\nformat 0\n",
        "strata storage node\nformat 1\nname \nidentity 1\ndatabase 1\nprofile a\n",
        "strata storage node\nformat 1\nname a\nidentity 0\ndatabase 1\nprofile a\n",
        "strata storage node\nformat 1\nname a\nidentity 1\ndatabase 1\nprofile a\nmore 1\n"})
    EXPECT_TRUE(is_corruption(decode_stamp(kKind, with_crc(body), "x").status())) << body;
}

TEST(FolderStampTest, ANewerFormatIsSaidToBeOne) {
  const auto read =
      decode_stamp(kKind, with_crc("strata storage node\nformat 2\nwhatever\n"), "/a/b");
  EXPECT_TRUE(is_unsupported(read.status())) << read.status();
  EXPECT_NE(read.status().message().find("/a/b has format 2"), absl::string_view::npos);
}

TEST_F(DataFolderTest, ANewFolderIsStampedOnceAndKnownAgain) {
  {
    const auto made = DataFolder::open(files_.get(), kKind, path_);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_FALSE((*made)->stamp().has_value());
    EXPECT_TRUE((*made)->check("s1", "logdb").ok());
    ASSERT_TRUE((*made)->write(kStamp).ok());
  }
  const auto again = DataFolder::open(files_.get(), kKind, path_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->stamp(), kStamp);
  EXPECT_TRUE((*again)->check("s1", "logdb-mv-sr").ok());
  EXPECT_TRUE((*again)->check_database(42).ok());
  EXPECT_TRUE(is_wrong_database((*again)->check("s2", "logdb-mv-sr")));
  EXPECT_TRUE(is_wrong_database((*again)->check("s1", "logdb")));
  EXPECT_TRUE(is_wrong_database((*again)->check_database(43)));
}

TEST_F(DataFolderTest, ASecondUserIsRefused) {
  const auto first = DataFolder::open(files_.get(), kKind, path_);
  ASSERT_TRUE(first.ok());
  const Status second = refusal();
  EXPECT_TRUE(is_in_use(second)) << second;
  EXPECT_NE(second.message().find("in use by another process"), absl::string_view::npos);
}

TEST_F(DataFolderTest, SomebodyElsesFolderStaysAsItIs) {
  put("precious", "keep me");
  const Status refused = refusal();
  EXPECT_TRUE(is_wrong_database(refused)) << refused;
  EXPECT_NE(refused.message().find("precious"), absl::string_view::npos);
  EXPECT_EQ(names(), std::vector<std::string>{"precious"});
}

TEST_F(DataFolderTest, ADamagedStampIsRefused) {
  put("node.stamp", encode(kKind, kStamp).substr(0, 50));
  const Status refused = refusal();
  EXPECT_TRUE(is_corruption(refused)) << refused;
  EXPECT_NE(refused.message().find(path_ + "/node.stamp"), absl::string_view::npos);
}

TEST_F(DataFolderTest, AStartThatDidNotComeToItsEndIsBegunAgain) {
  put("lock", "");
  put("node.stamp.new", std::string(9000, 'x'));
  const auto folder = DataFolder::open(files_.get(), kKind, path_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->write(kStamp).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"lock", "node.stamp"}));
}

TEST(FolderStampTest, AnotherKindOfDaemonsIsSaidToBeOne) {
  const auto read = decode_stamp(kOtherKind, encode(kKind, kStamp), "/a/b");
  EXPECT_TRUE(is_wrong_database(read.status())) << read.status();
  EXPECT_NE(read.status().message().find("/a/b is a storage node's, not a memory node's"),
            absl::string_view::npos)
      << read.status();
}

TEST_F(DataFolderTest, GarbageIsNoStamp) {
  for (const std::string& text : {std::string(), std::string(4096, 'x'), std::string(9000, '\n'),
                                  std::string("strata "), std::string("strata storage node\n"),
                                  std::string("strata \ncrc32c 0\n"), std::string(50, '\0')}) {
    put("node.stamp", text);
    const Status refused = refusal();
    EXPECT_TRUE(is_corruption(refused)) << refused;
    EXPECT_NE(cause_and_remedy(refused).find("ask its peers"), std::string::npos) << refused;
    EXPECT_EQ(names(), (std::vector<std::string>{"lock", "node.stamp"})) << "nothing was changed";
  }
}

// The disk is full at the moment of the stamp: nothing says whose the folder is, and the next start
// finds a new folder, as often as it takes.
TEST_F(DataFolderTest, AFullDiskWhileStampingLeavesANewFolder) {  // DM12
  files_ = make_full_disk_file_system(make_posix_file_system(), marker_);
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto folder = DataFolder::open(files_.get(), kKind, path_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_FALSE((*folder)->stamp().has_value());
    { ASSERT_TRUE(make_posix_file_system()->open(marker_, {.create = true}).ok()); }
    const Status failed = (*folder)->write(kStamp);
    EXPECT_TRUE(is_no_space(failed)) << failed;
    EXPECT_FALSE((*folder)->stamp().has_value());
    ASSERT_TRUE(files_->remove(marker_).ok());
    if (attempt == 1) {
      EXPECT_TRUE((*folder)->write(kStamp).ok()) << "the same process may try again";
    }
  }
  EXPECT_EQ((*DataFolder::open(files_.get(), kKind, path_))->stamp(), kStamp);
}

TEST_F(DataFolderTest, AFullDiskBeforeThereIsAFolderSaysSo) {
  files_ = make_full_disk_file_system(make_posix_file_system(), marker_);
  { ASSERT_TRUE(make_posix_file_system()->open(marker_, {.create = true}).ok()); }
  EXPECT_TRUE(is_no_space(refusal())) << refusal();
}

// What the disk fails at is said with the path; a folder that cannot be read is not a new one.
TEST_F(DataFolderTest, AFolderThatCannotBeReadIsRefused) {
  {
    const auto made = DataFolder::open(files_.get(), kKind, path_);
    ASSERT_TRUE((*made)->write(kStamp).ok());
  }
  files_ = make_failing_disk_file_system(make_posix_file_system(), marker_);
  for (const char* what : {"read data", "name lock", "name node.stamp", "read node.stamp"}) {
    {
      const auto real = make_posix_file_system();
      const auto file = real->open(marker_, {.create = true});
      ASSERT_TRUE((*file)->truncate(0).ok());
      ASSERT_TRUE((*file)->write_at(0, what, strlen(what)).ok());
    }
    const Status refused = refusal();
    EXPECT_TRUE(is_io_error(refused)) << what << ": " << refused;
    EXPECT_NE(refused.message().find(path_), absl::string_view::npos) << refused;
    ASSERT_TRUE(make_posix_file_system()->remove(marker_).ok());
  }
  EXPECT_EQ((*DataFolder::open(files_.get(), kKind, path_))->stamp(), kStamp);
}

// Whenever the power goes, the folder is new or has its whole stamp.
TEST(DataFolderCrash, TheStampIsThereAsAWholeOrNotAtAll) {  // DM12
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const auto disk = make_sim_file_system();
    std::vector<std::unique_ptr<SimFileSystem>> moments;
    auto folder = DataFolder::open(disk.get(), kKind, "/data");
    ASSERT_TRUE(folder.ok()) << folder.status();
    disk->set_observer([&] { moments.push_back(disk->fork()); });
    ASSERT_TRUE((*folder)->write(kStamp).ok());
    disk->set_observer(nullptr);
    ASSERT_GE(moments.size(), 4u);
    for (const auto& moment : moments) {
      moment->crash(seed);
      const auto again = DataFolder::open(moment.get(), kKind, "/data");
      ASSERT_TRUE(again.ok()) << again.status();
      const bool last = moment == moments.back();
      if (last || (*again)->stamp().has_value()) {
        ASSERT_EQ((*again)->stamp(), kStamp);
      }
    }
    disk->crash(seed);  // frees the lock (DM13), although the folder is still there
    EXPECT_EQ((*DataFolder::open(disk.get(), kKind, "/data"))->stamp(), kStamp);
  }
}

}  // namespace
}  // namespace strata::daemon
