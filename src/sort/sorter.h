// External merge sort of (key, value) pairs: what fits in memory is sorted there, the rest goes
// through sorted runs on disk. For one thread at a time.
//
//   SO1  next() returns every pair added exactly once, in key order, or an error.
//   SO2  Pairs, references and merge buffers lie in one block of `memory_bytes` (at least 4 KiB).
//   SO3  Behind the first error only that error comes; destroying the object is what is left to do.
//   SO4  Runs are temporary: never synced, gone with the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/mapped_memory.h"
#include "base/status.h"

namespace strata {

class FileSystem;
class RunMerge;
class RunWriter;
struct PairRef;
struct SortRun;

class Sorter {
 public:
  // Runs that do not fit in `memory_bytes` are files `prefix` + number, made on demand through
  // `files`, removed by the destructor. A file of that name left by a process that was killed is
  // replaced; two sorters alive at a time need two prefixes.
  Sorter(FileSystem* files, std::string prefix, size_t memory_bytes);
  ~Sorter();
  Sorter(const Sorter&) = delete;
  Sorter& operator=(const Sorter&) = delete;

  // Copies both. May write a run (blocks): kResourceExhausted when the disk is full.
  // kInvalidArgument when key and value together exceed a quarter of the memory.
  Status add(Bytes key, Bytes value);
  // No more pairs are added; next() may be called. Blocks: may merge runs. Errors as of add() and
  // next().
  Status finish();
  // The next pair in key order (memcmp order, shorter first when one is a prefix of the other;
  // equal keys in any order); false behind the last one. Valid until the next call. Blocks.
  // kDataLoss, naming file and offset, when a run read back is damaged.
  StatusOr<bool> next(Bytes* key, Bytes* value);

  [[nodiscard]] uint64_t count() const noexcept { return count_; }  // pairs added
  // Written to runs, merging in several passes included.
  [[nodiscard]] uint64_t spilled_bytes() const noexcept { return spilled_bytes_; }

 private:
  //   kAdding --finish()--> kFromMemory (no runs) or kFromRuns
  enum class Phase : uint8_t { kAdding, kFromMemory, kFromRuns };

  [[nodiscard]] PairRef* refs_end() const noexcept;
  [[nodiscard]] char* write_buffer() const noexcept;
  Status make_room();
  void empty_memory() noexcept;
  void sort_batch() noexcept;
  Status write_batch();
  Status merge_to_one_pass();
  [[nodiscard]] size_t runs_to_merge() const noexcept;
  Status merge_first(size_t runs);
  template <typename Fill>
  Status write_run(const Fill& fill);
  Status do_finish();
  Status fail(Status status) noexcept;

  FileSystem* const files_;
  const std::string prefix_;
  const size_t memory_bytes_;  // a multiple of 16
  const size_t block_bytes_;
  const size_t pair_bytes_max_;

  // Pairs grow up from the start, references grow down from refs_end(), where the buffer for
  // writing begins. While runs are merged the readers have all below refs_end().
  MappedMemory memory_;
  char* pairs_end_ = nullptr;
  PairRef* refs_ = nullptr;
  bool ascending_ = true;  // the batch was added in key order: the references are in reverse

  std::vector<std::unique_ptr<SortRun>> runs_;  // those that have a file; oldest first
  std::unique_ptr<RunMerge> merge_;             // kFromRuns
  const PairRef* next_ref_ = nullptr;           // kFromMemory
  Phase phase_ = Phase::kAdding;
  Status broken_;  // SO3
  uint64_t count_ = 0;
  uint64_t spilled_bytes_ = 0;
  uint32_t runs_made_ = 0;
};

}  // namespace strata
