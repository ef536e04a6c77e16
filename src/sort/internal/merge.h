// Reads several runs as one, by a binary heap over their first unread pairs.
#pragma once

#include <span>
#include <vector>

#include "sort/internal/run.h"

namespace strata {

class RunMerge {
 public:
  // The readers share `memory`: each gets its run's largest block and an equal part of the rest.
  // Runs and memory outlive the merge. Blocks.
  static StatusOr<std::unique_ptr<RunMerge>> open(FileSystem* files,
                                                  std::span<const std::unique_ptr<SortRun>> runs,
                                                  char* memory, size_t bytes);
  // Moves to the next pair, to the first one at first; false behind the last one. Blocks.
  StatusOr<bool> next();
  [[nodiscard]] const char* pair() const noexcept { return heap_.front().reader->pair(); }

 private:
  struct Entry {
    uint64_t head;  // of the reader's pair
    RunReader* reader;
  };
  static bool before(const Entry& a, const Entry& b) noexcept;
  Status move_top();
  void sift_down(size_t at) noexcept;

  std::vector<RunReader> readers_;
  std::vector<Entry> heap_;  // readers that have a pair
  bool started_ = false;
};

}  // namespace strata
