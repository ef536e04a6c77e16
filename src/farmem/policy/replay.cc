#include "farmem/policy/replay.h"

#include <string>
#include <vector>

#include "farmem/policy/local_pages.h"
#include "farmem/policy/prefetch.h"

namespace strata::farmem {
namespace {

class Replay {
 public:
  Replay(const PolicyOptions& options, uint64_t pages, LocalPages* local)
      : options_(options),
        pages_(pages),
        local_(local),
        stored_(pages),
        dirty_(pages),
        zero_(pages) {}

  void take(const Access& access) {
    switch (access.event) {
      case Event::kTouch:
        touch(access);
        return;
      case Event::kChange:
        if (local_->place(access.page) != Place::kAway) change(access);
        return;
      case Event::kDiscard:
        for (uint64_t page = access.page; page < access.page + access.pages; page++) discard(page);
        return;
    }
  }
  [[nodiscard]] const PageCounts& counts() const { return counts_; }

 private:
  void touch(const Access& access) {
    if (local_->place(access.page) != Place::kMapped) {
      fault(access.page);
      if (access.quiet) {
        moves_.clear();
        local_->tidy(&moves_);
        evict();
      }
    }
    change(access);
  }
  void change(const Access& access) {
    if (access.change == Change::kNone) return;
    dirty_[access.page] = true;
    zero_[access.page] = access.change == Change::kCleared;
  }
  void discard(uint64_t page) {
    local_->forget(page);
    stored_[page] = dirty_[page] = zero_[page] = false;
  }
  void fault(uint64_t page) {
    counts_.faults++;
    if (local_->place(page) == Place::kStaged) {
      counts_.soft_hits++;
      bring(page);
      return;
    }
    const bool fetched = stored_[page];
    (fetched ? counts_.fetched : counts_.zero_filled)++;
    if (!fetched) {
      bring(page);
      zero_[page] = true;
      return;
    }
    const uint32_t along = pages_to_prefetch(
        options_, local_->shares(), page, pages_,
        [this](uint64_t p) { return local_->place(p) == Place::kAway && stored_[p]; });
    bring(page);
    for (uint32_t i = 1; i <= along; i++) {
      // Those brought before may have pushed out what was local when they were counted, never one
      // of these, which were away.
      bring(page + i);
      counts_.prefetched++;
    }
  }
  void bring(uint64_t page) {
    moves_.clear();
    local_->bring(page, &moves_);
    evict();
  }
  void evict() {
    for (const auto& [gone, frame] : moves_.evict) {
      if (zero_[gone]) {
        counts_.evicted_zero++;
        stored_[gone] = false;
      } else if (dirty_[gone]) {
        counts_.evicted_dirty++;
        stored_[gone] = true;
      } else {
        counts_.evicted_clean++;
      }
      dirty_[gone] = zero_[gone] = false;
    }
  }

  const PolicyOptions& options_;
  const uint64_t pages_;
  LocalPages* const local_;
  std::vector<bool> stored_;  // far memory has content of it
  std::vector<bool> dirty_;   // local content is newer
  std::vector<bool> zero_;    // local content is zeros
  Moves moves_;
  PageCounts counts_;
};

}  // namespace

StatusOr<PageCounts> replay(absl::Span<const Access> trace, const PolicyOptions& options,
                            uint64_t pages) {
  STRATA_ASSIGN_OR_RETURN(const auto local, LocalPages::make(options, pages));
  Replay run(options, pages, local.get());
  for (const Access& access : trace) {
    const uint64_t last = access.page + (access.pages > 0 ? access.pages - 1 : 0);
    if (last >= pages) return error_out_of_range("page " + std::to_string(last) + " of the trace");
    run.take(access);
  }
  return run.counts();
}

}  // namespace strata::farmem
