// A run: sorted pairs in a file, in blocks with a checksum each. One writer, then one reader.
//
//   block = crc32c u32 | payload bytes u32 | run number u32 | block number u32 | pair...
//
// The checksum covers the rest of the block. Run and block number tell a block from one that stands
// elsewhere. A pair lies in one block; one that is too long for a usual block has a longer one to
// itself.
#pragma once

#include <memory>
#include <string>

#include "io/file_system.h"
#include "sort/internal/pair.h"

namespace strata {

constexpr size_t kBlockHeaderBytes = 16;

struct SortRun {
  std::string path;
  uint32_t number = 0;
  uint64_t bytes = 0;        // written
  size_t largest_block = 0;  // bytes; what a reader's buffer has to hold
};

class RunWriter {
 public:
  // Replaces the file. `buffer` holds `block_bytes`.
  static StatusOr<RunWriter> create(FileSystem* files, SortRun* run, char* buffer,
                                    size_t block_bytes);
  Status add(const char* pair);  // not before its predecessor in key order. Blocks.
  Status finish();               // nothing may be added any more

 private:
  RunWriter(SortRun* run, std::unique_ptr<File> file, char* buffer, size_t block_bytes)
      : run_(run), file_(std::move(file)), buffer_(buffer), block_bytes_(block_bytes) {}
  Status write_buffered();
  Status write_alone(Bytes pair);
  void fill_header(Bytes payload) noexcept;
  Status write(Bytes bytes);

  SortRun* run_;
  std::unique_ptr<File> file_;
  char* buffer_;  // a header's room, then pairs
  size_t block_bytes_;
  size_t used_ = kBlockHeaderBytes;
  uint32_t block_ = 0;
};

// Believes nothing it reads: kDataLoss names file and offset.
class RunReader {
 public:
  // `capacity` is at least run->largest_block. Run and buffer outlive the reader.
  static StatusOr<RunReader> open(FileSystem* files, const SortRun* run, char* buffer,
                                  size_t capacity);
  // Moves to the next pair, to the first one at first. What pair() returned is gone. Blocks.
  Status next();
  [[nodiscard]] const char* pair() const noexcept { return pair_; }  // nullptr behind the last one

 private:
  RunReader(const SortRun* run, std::unique_ptr<File> file, char* buffer, size_t capacity)
      : run_(run), file_(std::move(file)), buffer_(buffer), capacity_(capacity) {}
  Status read_block();
  Status have(size_t bytes);
  [[nodiscard]] size_t buffered() const noexcept { return filled_ - at_; }
  [[nodiscard]] uint64_t offset() const noexcept { return read_ - buffered(); }
  [[nodiscard]] Status damaged(const char* what) const;

  const SortRun* run_;
  std::unique_ptr<File> file_;
  char* buffer_;
  size_t capacity_;
  size_t at_ = 0;         // in the buffer: what comes next
  size_t block_end_ = 0;  // in the buffer: verified up to here
  size_t filled_ = 0;     // in the buffer: read up to here
  uint64_t read_ = 0;     // in the file: read up to here
  uint32_t block_ = 0;    // the number of the next block
  const char* pair_ = nullptr;
};

}  // namespace strata
