// Where a page is split (README, "Arithmetic").
#include <algorithm>
#include <vector>

#include "base/assert.h"
#include "btree/internal/split.h"

namespace strata::btree_internal {
namespace {

// The records of the page with the pending one in its place.
class Items {
 public:
  Items(const TreePageView& view, const Pending& pending)
      : view_(view),
        pending_(pending),
        count_(view.slot_count() + (pending.replaces ? 0u : 1u)),
        sums_(count_ + 1) {
    const uint32_t prefix_bytes = view.header()->prefix_bytes;
    for (uint32_t i = 0; i < count_; ++i) {
      const uint32_t bytes =
          i == pending_.slot
              ? kRecordOverhead + static_cast<uint32_t>(pending_.key.size() + pending_.value_bytes)
              : kRecordOverhead + prefix_bytes +
                    static_cast<uint32_t>(view.suffix(slot_of(i)).size() +
                                          view.value(slot_of(i)).size());
      sums_[i + 1] = sums_[i] + bytes;
    }
  }
  [[nodiscard]] uint32_t count() const noexcept { return count_; }
  // Bytes of the first i records with whole keys.
  [[nodiscard]] uint32_t sum(uint32_t i) const noexcept { return sums_[i]; }
  // Records of the page itself among the first i.
  [[nodiscard]] uint16_t kept(uint32_t i) const noexcept {
    return static_cast<uint16_t>(!pending_.replaces && i > pending_.slot ? i - 1 : i);
  }
  void copy_key(uint32_t i, std::string* out) const {
    if (i == pending_.slot)
      out->assign(pending_.key);
    else
      view_.copy_key(slot_of(i), out);
  }

 private:
  [[nodiscard]] uint16_t slot_of(uint32_t i) const noexcept { return kept(i); }
  const TreePageView& view_;
  const Pending& pending_;
  const uint32_t count_;
  std::vector<uint32_t> sums_;
};

// BT5. Inner pages: the first key of the right page, which must equal its low fence.
void find_separator(const TreePageView& view, const Items& items, uint32_t cut, std::string* out) {
  items.copy_key(cut, out);
  if (!view.is_leaf()) return;
  std::string left;
  items.copy_key(cut - 1, &left);
  out->resize(common_prefix(left, *out) + 1);
}

// Whether both pages hold their parts when the first `cut` records go left.
bool fits(const TreePageView& view, const Items& items, uint32_t cut, Bytes separator) {
  const Bytes low = view.low_fence();
  const bool infinite = view.has_flag(kHighIsInfinity);
  const Bytes high = infinite ? Bytes() : view.high_key();
  const uint32_t left_prefix = common_prefix(low, separator);
  const uint32_t right_prefix = infinite ? 0 : common_prefix(separator, high);
  const uint64_t left = low.size() + separator.size() + items.sum(cut) - cut * left_prefix;
  const uint64_t right = separator.size() + high.size() + items.sum(items.count()) -
                         items.sum(cut) - (items.count() - cut) * right_prefix;
  return left <= kTreeBodyBytes && right <= kTreeBodyBytes;
}

uint32_t wanted_cut(const Items& items, const Pending& pending, Growth growth,
                    uint16_t slot_count) {
  switch (growth) {
    case Growth::kAscending:  // the pending record alone, or as the last one on the left
      return pending.slot == slot_count ? items.count() - 1 : pending.slot + 1u;
    case Growth::kNearlyAscending:
      return items.count() - 1 - items.count() / kLateFraction;
    case Growth::kDescending:
      return 1;
    case Growth::kRandom:
      break;
  }
  const uint32_t half = items.sum(items.count()) / 2;
  uint32_t cut = 1;
  while (cut + 1 < items.count() && items.sum(cut) < half) ++cut;
  return cut;
}

}  // namespace

uint32_t common_prefix(Bytes a, Bytes b) noexcept {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first -
                               a.begin());
}

SplitPlan plan_split(const TreePageView& view, const Pending& pending, Growth growth) {
  const Items items(view, pending);
  const uint32_t count = items.count();
  STRATA_ASSERT(count >= 2);
  const uint32_t wanted =
      std::clamp(wanted_cut(items, pending, growth, view.slot_count()), 1u, count - 1);
  SplitPlan plan;
  for (uint32_t distance = 0; distance < count; ++distance) {
    for (const bool below : {true, false}) {
      if (distance == 0 && !below) continue;
      if (below ? wanted < distance + 1 : wanted + distance > count - 1) continue;
      const uint32_t cut = below ? wanted - distance : wanted + distance;
      find_separator(view, items, cut, &plan.separator);
      if (!fits(view, items, cut, plan.separator)) continue;
      plan.keep = items.kept(cut);
      plan.pending_left = cut > pending.slot;
      return plan;
    }
  }
  STRATA_ASSERT(!"a page can always be split");
  return plan;
}

uint32_t records_bytes(const TreePageView& view, uint32_t from, uint32_t to,
                       uint32_t prefix_bytes) {
  uint32_t bytes = 0;
  for (uint32_t i = from; i < to; ++i) {
    const auto slot = static_cast<uint16_t>(i);
    bytes += kRecordOverhead + view.header()->prefix_bytes - prefix_bytes +
             static_cast<uint32_t>(view.suffix(slot).size() + view.value(slot).size());
  }
  return bytes;
}

void append_records(char* page, const TreePageView& view, uint16_t from, uint16_t to) {
  const uint32_t had = view.header()->prefix_bytes;
  const uint32_t has = header_of(page)->prefix_bytes;
  std::string longer;
  for (uint16_t i = from; i < to; ++i) {
    Bytes suffix = view.suffix(i);
    if (has >= had) {
      suffix.remove_prefix(has - had);
    } else {
      longer.assign(view.prefix().substr(has)).append(suffix);
      suffix = longer;
    }
    insert_record(page, header_of(page)->slot_count, suffix, view.value(i));
  }
}

// --- runs of inserts at ascending places ---
// A hint word: page tag 32 bits | slot of the last insert 16 | length of the run 16.

namespace {
constexpr uint64_t kRunMin = 2;
uint32_t tag_of(PageId page) noexcept {
  return static_cast<uint32_t>(mix64(page.packed()) >> 32) | 1;
}
}  // namespace

void note_insert(SpaceManager* spaces, PageId leaf, uint16_t slot) noexcept {
  // relaxed: a hint; a lost update only shortens a run.
  std::atomic<uint64_t>* hint = spaces->page_hint(leaf);
  const uint64_t word = hint->load(std::memory_order_relaxed);
  const uint64_t tag = uint64_t{tag_of(leaf)} << 32;
  uint64_t run = word & 0xffff;
  if ((word & ~uint64_t{0xffffffff}) != tag || ((word >> 16) & 0xffff) + 1 != slot)
    run = 0;
  else if (run < 0xffff)
    ++run;
  hint->store(tag | (uint64_t{slot} << 16) | run, std::memory_order_relaxed);
}

bool continues_run(SpaceManager* spaces, PageId leaf, uint16_t slot) noexcept {
  const uint64_t word = spaces->page_hint(leaf)->load(std::memory_order_relaxed);
  return (word >> 32) == tag_of(leaf) && ((word >> 16) & 0xffff) + 1 == slot &&
         (word & 0xffff) >= kRunMin;
}

}  // namespace strata::btree_internal
