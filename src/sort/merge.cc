#include "sort/internal/merge.h"

#include "base/assert.h"

namespace strata {

StatusOr<std::unique_ptr<RunMerge>> RunMerge::open(FileSystem* files,
                                                   std::span<const std::unique_ptr<SortRun>> runs,
                                                   char* memory, size_t bytes) {
  size_t needed = 0;
  for (const auto& run : runs) needed += run->largest_block;
  STRATA_ASSERT(!runs.empty() && needed <= bytes);
  const size_t extra = (bytes - needed) / runs.size();
  auto merge = std::make_unique<RunMerge>();
  merge->readers_.reserve(runs.size());  // entries of the heap point to them
  merge->heap_.reserve(runs.size());
  for (const auto& run : runs) {
    const size_t capacity = run->largest_block + extra;
    STRATA_ASSIGN_OR_RETURN(auto reader, RunReader::open(files, run.get(), memory, capacity));
    memory += capacity;
    STRATA_RETURN_IF_ERROR(reader.next());
    if (reader.pair() == nullptr) continue;
    RunReader* const kept = &merge->readers_.emplace_back(std::move(reader));
    merge->heap_.push_back({key_head(pair_key(kept->pair())), kept});
  }
  for (size_t i = merge->heap_.size() / 2; i-- > 0;) merge->sift_down(i);
  return merge;
}

StatusOr<bool> RunMerge::next() {
  if (started_ && !heap_.empty()) STRATA_RETURN_IF_ERROR(move_top());
  started_ = true;
  return !heap_.empty();
}

Status RunMerge::move_top() {
  RunReader* const reader = heap_.front().reader;
  STRATA_RETURN_IF_ERROR(reader->next());
  if (reader->pair() != nullptr) {
    heap_.front().head = key_head(pair_key(reader->pair()));
  } else {
    heap_.front() = heap_.back();
    heap_.pop_back();
  }
  sift_down(0);
  return ok_status();
}

void RunMerge::sift_down(size_t at) noexcept {
  if (at >= heap_.size()) return;
  const Entry entry = heap_[at];
  for (size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
    if (!before(heap_[child], entry)) break;
    heap_[at] = heap_[child];
    at = child;
  }
  heap_[at] = entry;
}

bool RunMerge::before(const Entry& a, const Entry& b) noexcept {
  if (a.head != b.head) return a.head < b.head;
  return pair_key(a.reader->pair()) < pair_key(b.reader->pair());
}

}  // namespace strata
