// Appends to files in whole, aligned blocks, as direct I/O asks for. What an append leaves of its
// last block is kept, so that the next one writes that block again without reading it.
//   BW1  The bytes of a write are in the file exactly; those behind them, up to the end of their
//        block, are undefined.
//   BW2  Bytes before a write, in its first block, are written again unchanged: a torn write cannot
//        harm them.
// One thread at a time. Writes block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/aligned.h"
#include "base/bytes.h"
#include "base/status.h"
#include "io/file_system.h"

namespace strata {

class BlockWriter {
 public:
  static constexpr size_t kBlock = kDirectIoAlignment;
  // Files are told apart by `direct`; `buffered` is another handle of the same file and is read
  // when a write does not continue the last one.
  Status write(File* direct, File* buffered, uint64_t at, Bytes bytes);
  // The next write continues nothing: its handle may be another file's at the same address.
  void forget() noexcept { file_ = nullptr; }

 private:
  static constexpr size_t kStaged = 256u << 10;
  Status load(File* buffered, uint64_t block);
  Status write_staged(size_t filled);

  AlignedBytes staged_{kStaged, kBlock};
  File* file_ = nullptr;
  uint64_t block_ = 0;  // offset in the file of staged_[0]
  size_t kept_ = 0;     // bytes of staged_ that lie before the next write; less than a block
};

}  // namespace strata
