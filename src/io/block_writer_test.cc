// Goal: whatever is appended, the file holds exactly that (BW1), in whole aligned blocks. Method: a
// file in memory that refuses what direct I/O would, beside a string.
#include "io/block_writer.h"

#include <gtest/gtest.h>

#include <string>

#include "base/rng.h"

namespace strata {
namespace {

constexpr size_t kFileBytes = 4u << 20;

class StrictFile final : public File {
 public:
  Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
    ++reads;
    *got = offset >= content.size() ? 0 : std::min<size_t>(bytes, content.size() - offset);
    std::memcpy(data, content.data() + offset, *got);
    return ok_status();
  }
  Status write_at(uint64_t offset, const void* data, size_t bytes) override {
    constexpr size_t kBlock = BlockWriter::kBlock;
    if (offset % kBlock != 0 || bytes % kBlock != 0 || bytes == 0 ||
        reinterpret_cast<uintptr_t>(data) % kBlock != 0 || offset + bytes > content.size())
      return error_invalid_argument("not a write for direct I/O");
    if (fails) return error_internal("scripted");
    std::memcpy(content.data() + offset, data, bytes);
    return ok_status();
  }
  Status sync_data() override { return ok_status(); }
  StatusOr<uint64_t> size() override { return content.size(); }
  Status allocate(uint64_t) override { return ok_status(); }
  Status truncate(uint64_t) override { return ok_status(); }
  [[nodiscard]] const std::string& path() const override { return path_; }

  std::string content = std::string(kFileBytes, 'x');
  int reads = 0;
  bool fails = false;

 private:
  std::string path_ = "strict";
};

TEST(BlockWriter, RandomAppendsAndJumps) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    StrictFile file;
    BlockWriter writer;
    std::string expected(kFileBytes, 'x');
    uint64_t at = rng.below(20000);
    const uint64_t begin = at;
    for (int n = 0; n < 300 && at < kFileBytes - 600000; ++n) {
      const size_t bytes = 1 + (rng.one_in(20) ? rng.below(600000) : rng.below(9000));
      const std::string piece(bytes, static_cast<char>('a' + rng.below(26)));
      const Status status = writer.write(&file, &file, at, piece);
      ASSERT_TRUE(status.ok()) << status << ", seed " << seed;
      expected.replace(at, bytes, piece);
      at += bytes;
      ASSERT_EQ(Bytes(file.content).substr(0, at), Bytes(expected).substr(0, at))
          << "seed " << seed;
      if (rng.one_in(30)) at = begin + rng.below(at - begin);  // a jump back, as recovery does
      if (rng.one_in(30)) writer.forget();
      // Behind the append the block is undefined.
      const size_t block_end = (at + BlockWriter::kBlock - 1) & ~(BlockWriter::kBlock - 1);
      expected.replace(at, block_end - at, file.content, at, block_end - at);
    }
  }
}

TEST(BlockWriter, ContinuesWithoutReading) {
  StrictFile file;
  BlockWriter writer;
  ASSERT_TRUE(writer.write(&file, &file, 4096, "abc").ok());
  ASSERT_TRUE(writer.write(&file, &file, 4099, std::string(10000, 'd')).ok());
  EXPECT_EQ(file.reads, 0);
  ASSERT_TRUE(writer.write(&file, &file, 4100, "e").ok());  // elsewhere
  EXPECT_EQ(file.reads, 1);
  EXPECT_EQ(file.content.substr(4096, 5), "abcde") << "BW2: bytes of the block behind stay";
}

TEST(BlockWriter, SaysWhatIsWrong) {
  StrictFile file;
  BlockWriter writer;
  file.fails = true;
  EXPECT_FALSE(writer.write(&file, &file, 4096, "abc").ok());
  file.content.resize(5000);
  EXPECT_TRUE(is_corruption(writer.write(&file, &file, 4097, "abc")));
}

}  // namespace
}  // namespace strata
