#include <algorithm>

#include "space/number_source.h"

namespace strata {
namespace {

class HeaderNumbers final : public NumberSource {
 public:
  HeaderNumbers(BufferPool* pool, Log* log, SpaceManager* spaces) noexcept
      : pool_(pool), log_(log), spaces_(spaces) {}

  StatusOr<NumberRange> reserve(SpaceId space, HeaderSlot slot, uint64_t at_least,
                                uint64_t count) override {
    Mtr mtr(pool_, log_);
    STRATA_RETURN_IF_ERROR(mtr.begin_write(Mtr::kGroupLogBytes + Mtr::kPageLogBytesMax));
    // Latched exclusively before it is looked at.
    STRATA_RETURN_IF_ERROR(mtr.fix(PageId{space.value, 0}, LatchMode::kExclusive).status());
    STRATA_ASSIGN_OR_RETURN(const uint64_t taken, spaces_->read_slot_in(&mtr, space, slot));
    if (taken == UINT64_MAX) return NumberRange{};
    const uint64_t first = std::max(taken + 1, at_least);
    const uint64_t end = UINT64_MAX - first < count ? UINT64_MAX : first + count;
    if (first == end) return NumberRange{};
    STRATA_RETURN_IF_ERROR(spaces_->write_slot(&mtr, space, slot, end - 1));
    mtr.publish();
    return NumberRange{first, end};
  }

 private:
  BufferPool* const pool_;
  Log* const log_;
  SpaceManager* const spaces_;
};

}  // namespace

std::unique_ptr<NumberSource> make_header_numbers(BufferPool* pool, Log* log,
                                                  SpaceManager* spaces) {
  return std::make_unique<HeaderNumbers>(pool, log, spaces);
}

}  // namespace strata
