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
      : options_(options), pages_(pages), local_(local), stored_(pages), dirty_(pages) {}

  void access(const Access& access) {
    if (local_->place(access.page) != Place::kMapped) {
      fault(access.page);
      moves_.clear();
      local_->tidy(&moves_);
      evict();
    }
    if (access.write) dirty_[access.page] = true;
  }
  [[nodiscard]] const PageCounts& counts() const { return counts_; }

 private:
  void fault(uint64_t page) {
    counts_.faults++;
    if (local_->place(page) == Place::kStaged) {
      counts_.soft_hits++;
      bring(page);
      return;
    }
    const bool fetched = stored_[page];
    (fetched ? counts_.fetched : counts_.zero_filled)++;
    bring(page);
    if (!fetched) return;
    const uint32_t along = pages_to_prefetch(
        options_, local_->shares(), page, pages_,
        [this](uint64_t p) { return local_->place(p) == Place::kAway && stored_[p]; });
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
      (dirty_[gone] ? counts_.evicted_dirty : counts_.evicted_clean)++;
      if (dirty_[gone]) stored_[gone] = true;
      dirty_[gone] = false;
    }
  }

  const PolicyOptions& options_;
  const uint64_t pages_;
  LocalPages* const local_;
  std::vector<bool> stored_;  // far memory has content of it
  std::vector<bool> dirty_;   // local content is newer
  Moves moves_;
  PageCounts counts_;
};

}  // namespace

StatusOr<PageCounts> replay(absl::Span<const Access> trace, const PolicyOptions& options,
                            uint64_t pages) {
  STRATA_ASSIGN_OR_RETURN(const auto local, LocalPages::make(options, pages));
  Replay run(options, pages, local.get());
  for (const Access& access : trace) {
    if (access.page >= pages)
      return error_out_of_range("page " + std::to_string(access.page) + " of the trace");
    run.access(access);
  }
  return run.counts();
}

}  // namespace strata::farmem
