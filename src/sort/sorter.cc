#include "sort/sorter.h"

#include <algorithm>

#include "base/assert.h"
#include "base/diag.h"
#include "sort/internal/merge.h"
#include "sort/internal/pair_ref.h"

namespace strata {
namespace {

constexpr size_t kMemoryBytesMin = 4096;
constexpr size_t kMemoryBytesMax = size_t{8} << 30;  // a pair's lengths have 32 bits
constexpr size_t kBlockBytesMax = 64u << 10;
constexpr size_t kRunsPerMergeMax = 128;  // files open at a time

// A multiple of 16, so that references at the end are aligned.
size_t memory_for(size_t wanted) noexcept {
  return std::clamp(wanted, kMemoryBytesMin, kMemoryBytesMax) & ~size_t{15};
}
// Small memory, small blocks: several runs have to fit beside each other.
size_t block_for(size_t memory_bytes) noexcept {
  return std::min(memory_bytes / 16, kBlockBytesMax) & ~size_t{15};
}

}  // namespace

Sorter::Sorter(FileSystem* files, std::string prefix, size_t memory_bytes)
    : files_(files),
      prefix_(std::move(prefix)),
      memory_bytes_(memory_for(memory_bytes)),
      block_bytes_(block_for(memory_bytes_)),
      pair_bytes_max_(memory_bytes_ / 4) {}

Sorter::~Sorter() {
  merge_.reset();  // closes the files
  for (const auto& run : runs_) {
    const Status status = files_->remove(run->path);
    if (!status.ok())
      diag(Severity::kWarning, "a temporary file stays behind: %.*s",
           static_cast<int>(status.message().size()), status.message().data());
  }
}

PairRef* Sorter::refs_end() const noexcept { return reinterpret_cast<PairRef*>(write_buffer()); }

char* Sorter::write_buffer() const noexcept {
  return memory_.get() + (memory_bytes_ - block_bytes_);
}

Status Sorter::add(Bytes key, Bytes value) {
  STRATA_RETURN_IF_ERROR(broken_);
  STRATA_ASSERT(phase_ == Phase::kAdding);
  if (key.size() > pair_bytes_max_ || value.size() > pair_bytes_max_ - key.size())
    return fail(error_invalid_argument("a pair too long for the memory of the sort"));
  const size_t needed = kPairHeaderBytes + key.size() + value.size() + sizeof(PairRef);
  if (static_cast<size_t>(reinterpret_cast<char*>(refs_) - pairs_end_) < needed)
    STRATA_RETURN_IF_ERROR(fail(make_room()));
  STRATA_ASSERT(refs_ != nullptr);  // there is room, hence memory
  const PairRef ref{key_head(key), pairs_end_};
  pairs_end_ = write_pair(pairs_end_, key, value);
  if (ascending_ && refs_ != refs_end()) ascending_ = !(ref < *refs_);
  *--refs_ = ref;
  ++count_;
  return ok_status();
}

// Memory that is only touched as far as it is used.
Status Sorter::make_room() {
  if (memory_.get() == nullptr) {
    STRATA_ASSIGN_OR_RETURN(memory_, MappedMemory::map(memory_bytes_));
  } else {
    STRATA_RETURN_IF_ERROR(write_batch());
  }
  empty_memory();
  return ok_status();
}

void Sorter::empty_memory() noexcept {
  pairs_end_ = memory_.get();
  refs_ = refs_end();
  ascending_ = true;
}

void Sorter::sort_batch() noexcept {
  if (ascending_) {
    std::reverse(refs_, refs_end());
  } else {
    sort_refs(refs_, refs_end());
  }
}

Status Sorter::write_batch() {
  sort_batch();
  return write_run([this](RunWriter* writer) {
    for (const PairRef* ref = refs_; ref != refs_end(); ++ref)
      STRATA_RETURN_IF_ERROR(writer->add(ref->pair));
    return ok_status();
  });
}

// The run is in runs_ before its file exists, so that the destructor removes it in any case.
template <typename Fill>
Status Sorter::write_run(const Fill& fill) {
  const uint32_t number = runs_made_++;
  SortRun* const run = runs_.emplace_back(std::make_unique<SortRun>()).get();
  run->path = prefix_ + std::to_string(number);
  run->number = number;
  STRATA_ASSIGN_OR_RETURN(auto writer,
                          RunWriter::create(files_, run, write_buffer(), block_bytes_));
  STRATA_RETURN_IF_ERROR(fill(&writer));
  STRATA_RETURN_IF_ERROR(writer.finish());
  spilled_bytes_ += run->bytes;
  return ok_status();
}

Status Sorter::finish() {
  STRATA_RETURN_IF_ERROR(broken_);
  STRATA_ASSERT(phase_ == Phase::kAdding);
  return fail(do_finish());
}

Status Sorter::do_finish() {
  if (runs_.empty()) {
    phase_ = Phase::kFromMemory;
    if (memory_.get() == nullptr) return ok_status();  // nothing was added
    sort_batch();
    next_ref_ = refs_;
    return ok_status();
  }
  phase_ = Phase::kFromRuns;
  STRATA_RETURN_IF_ERROR(write_batch());
  empty_memory();
  STRATA_RETURN_IF_ERROR(merge_to_one_pass());
  STRATA_ASSIGN_OR_RETURN(
      merge_, RunMerge::open(files_, runs_, memory_.get(), memory_bytes_ - block_bytes_));
  return ok_status();
}

// Merges just as many runs as it takes until those left can be merged at once.
Status Sorter::merge_to_one_pass() {
  for (size_t runs = runs_to_merge(); runs != 0; runs = runs_to_merge())
    STRATA_RETURN_IF_ERROR(merge_first(runs));
  return ok_status();
}

// 0: all of them fit beside each other. Else the fewest of the oldest after whose merge they would,
// or as many as fit. Two always do: no block is longer than the longest pair, a quarter of the
// memory, and two headers.
size_t Sorter::runs_to_merge() const noexcept {
  const size_t room = memory_bytes_ - block_bytes_;
  size_t left = 0;
  for (const auto& run : runs_) left += run->largest_block;
  if (left <= room && runs_.size() <= kRunsPerMergeMax) return 0;
  size_t taken = 0;
  size_t largest = 0;
  size_t runs = 0;
  while (runs < std::min(runs_.size(), kRunsPerMergeMax)) {
    const size_t block = runs_[runs]->largest_block;
    if (taken + block > room) break;
    taken += block;
    left -= block;
    largest = std::max(largest, block);
    ++runs;
    if (runs >= 2 && left + largest <= room && runs_.size() - runs + 1 <= kRunsPerMergeMax) break;
  }
  STRATA_ASSERT(runs >= 2);
  return runs;
}

Status Sorter::merge_first(size_t runs) {
  {
    STRATA_ASSIGN_OR_RETURN(
        const auto merge,
        RunMerge::open(files_, {runs_.data(), runs}, memory_.get(), memory_bytes_ - block_bytes_));
    STRATA_RETURN_IF_ERROR(write_run([&merge](RunWriter* writer) -> Status {
      for (;;) {
        STRATA_ASSIGN_OR_RETURN(const bool found, merge->next());
        if (!found) return ok_status();
        STRATA_RETURN_IF_ERROR(writer->add(merge->pair()));
      }
    }));
  }
  for (size_t i = 0; i < runs; ++i) STRATA_RETURN_IF_ERROR(files_->remove(runs_[i]->path));
  runs_.erase(runs_.begin(), runs_.begin() + static_cast<ptrdiff_t>(runs));
  return ok_status();
}

StatusOr<bool> Sorter::next(Bytes* key, Bytes* value) {
  STRATA_RETURN_IF_ERROR(broken_);
  STRATA_ASSERT(phase_ != Phase::kAdding);
  const char* pair = nullptr;
  if (phase_ == Phase::kFromMemory) {
    if (memory_.get() == nullptr || next_ref_ == refs_end()) return false;
    pair = next_ref_++->pair;
  } else {
    const StatusOr<bool> found = merge_->next();
    if (!found.ok()) return fail(found.status());
    if (!*found) return false;
    pair = merge_->pair();
  }
  *key = pair_key(pair);
  *value = pair_value(pair);
  return true;
}

Status Sorter::fail(Status status) noexcept {
  if (!status.ok()) broken_ = status;
  return status;
}

}  // namespace strata
