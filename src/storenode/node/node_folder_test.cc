// The stamp and the lock of a data folder: what is not this node's is refused and stays as it is.
#include "storenode/node/node_folder.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "base/crc32c.h"
#include "transport/calls/testing/io_node.h"

namespace strata::storenode {
namespace {

const NodeStamp kStamp{"s1", 0xfedcba9876543210, 42, "logdb-mv-sr"};

std::string with_crc(const std::string& text) {
  char line[20];
  std::snprintf(line, sizeof line, "crc32c %08x\n", crc32c(text.data(), text.size()));
  return text + line;
}

class NodeFolderTest : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    ASSERT_TRUE(files_->make_directory(path_).ok());
    const auto file = files_->open(path_ + "/" + name, {.create = true});
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->truncate(0).ok());
    ASSERT_TRUE((*file)->write_at(0, text.data(), text.size()).ok());
  }
  std::vector<std::string> names() { return *files_->list(path_); }
  Status refusal() { return NodeFolder::open(files_.get(), path_).status(); }

  transport::test::Folder folder_;
  std::string path_ = folder_ / "data";
  std::unique_ptr<FileSystem> files_ = make_posix_file_system();
};

TEST(NodeStamp, IsTextThatReadsBack) {
  const std::string text = encode(kStamp);
  EXPECT_EQ(text.substr(0, text.find("crc32c")),
            "strata storage node\nformat 1\nname s1\nidentity fedcba9876543210\n"
            "database 000000000000002a\nprofile logdb-mv-sr\n");
  const auto back = decode_stamp(text, "x");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, kStamp);
}

TEST(NodeStamp, DamageOfAnyKindIsFound) {
  const std::string text = encode(kStamp);
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_TRUE(is_corruption(decode_stamp(text.substr(0, i), "x").status())) << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const auto read = decode_stamp(damaged, "x");
      // Only the case of the checksum's own digits does not matter.
      if (read.ok())
        EXPECT_TRUE(i > text.rfind(' ') && *read == kStamp) << i;
      else
        EXPECT_TRUE(is_corruption(read.status())) << read.status();
    }
  }
  EXPECT_TRUE(is_corruption(decode_stamp(text + text, "x").status()));
  // A right checksum says that someone wrote it so, not that it makes sense.
  for (const char* body :
       {"", "strata storage node\n", "strata storage node\nformat 0\n",
        "strata storage node\nformat 1\nname \nidentity 1\ndatabase 1\nprofile a\n",
        "strata storage node\nformat 1\nname a\nidentity 0\ndatabase 1\nprofile a\n",
        "strata storage node\nformat 1\nname a\nidentity 1\ndatabase 1\nprofile a\nmore 1\n"})
    EXPECT_TRUE(is_corruption(decode_stamp(with_crc(body), "x").status())) << body;
}

TEST(NodeStamp, ANewerFormatIsSaidToBeOne) {
  const auto read = decode_stamp(with_crc("strata storage node\nformat 2\nwhatever\n"), "/a/b");
  EXPECT_TRUE(is_unsupported(read.status())) << read.status();
  EXPECT_NE(read.status().message().find("/a/b has format 2"), absl::string_view::npos);
}

TEST_F(NodeFolderTest, ANewFolderIsStampedOnceAndKnownAgain) {
  {
    const auto made = NodeFolder::open(files_.get(), path_);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_FALSE((*made)->stamp().has_value());
    EXPECT_TRUE((*made)->check("s1", "logdb").ok());
    ASSERT_TRUE((*made)->write(kStamp).ok());
  }
  const auto again = NodeFolder::open(files_.get(), path_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->stamp(), kStamp);
  EXPECT_TRUE((*again)->check("s1", "logdb-mv-sr").ok());
  EXPECT_TRUE((*again)->check_database(42).ok());
  EXPECT_TRUE(is_wrong_database((*again)->check("s2", "logdb-mv-sr")));
  EXPECT_TRUE(is_wrong_database((*again)->check("s1", "logdb")));
  EXPECT_TRUE(is_wrong_database((*again)->check_database(43)));
}

TEST_F(NodeFolderTest, ASecondUserIsRefused) {
  const auto first = NodeFolder::open(files_.get(), path_);
  ASSERT_TRUE(first.ok());
  const Status second = refusal();
  EXPECT_TRUE(is_in_use(second)) << second;
  EXPECT_NE(second.message().find("in use by another process"), absl::string_view::npos);
}

TEST_F(NodeFolderTest, SomebodyElsesFolderStaysAsItIs) {
  put("precious", "keep me");
  const Status refused = refusal();
  EXPECT_TRUE(is_wrong_database(refused)) << refused;
  EXPECT_NE(refused.message().find("precious"), absl::string_view::npos);
  EXPECT_EQ(names(), std::vector<std::string>{"precious"});
}

TEST_F(NodeFolderTest, ADamagedStampIsRefused) {
  put("node.stamp", encode(kStamp).substr(0, 50));
  const Status refused = refusal();
  EXPECT_TRUE(is_corruption(refused)) << refused;
  EXPECT_NE(refused.message().find(path_ + "/node.stamp"), absl::string_view::npos);
}

TEST_F(NodeFolderTest, AStartThatDidNotComeToItsEndIsBegunAgain) {
  put("lock", "");
  put("node.stamp.new", std::string(9000, 'x'));
  const auto folder = NodeFolder::open(files_.get(), path_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->write(kStamp).ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"lock", "node.stamp"}));
}

}  // namespace
}  // namespace strata::storenode
