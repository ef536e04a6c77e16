// Random operations on one tree page against a std::map, and random damage against the validator.
// STRATA_TEST_SEED=n repeats one run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "base/clock.h"
#include "base/rng.h"
#include "page/record.h"
#include "page/slotted.h"

namespace strata {
namespace {

uint64_t first_seed() {
  const char* given = std::getenv("STRATA_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : monotonic_us() % 1000000;
}
int runs(int usual) { return std::getenv("STRATA_TEST_SEED") != nullptr ? 1 : usual; }

class Model {
 public:
  explicit Model(uint64_t seed) : rng_(seed) {
    long_keys_ = rng_.one_in(4);
    alphabet_ = rng_.one_in(2) ? 3 : 256;
    level_ = rng_.one_in(4) ? 1 : 0;
    stem_ = random_bytes(rng_.below(20));
    const bool infinite = rng_.one_in(3);
    low_ = stem_;
    high_ = stem_ + std::string(8, '\xff');
    if (!infinite && rng_.one_in(2)) low_ += std::string(1, '\0');
    init_tree_page(page_,
                   TreePageInit{.page_id = PageId{256, 3},
                                .index_id = IndexId{1},
                                .level = level_,
                                .flags = static_cast<uint16_t>(infinite ? kHighIsInfinity : 0),
                                .low_fence = low_,
                                .high_key = high_});
  }

  void step() {
    switch (rng_.below(24)) {
      case 0:
        compact(page_);
        break;
      case 1:
        normalise_tree_page(page_);
        break;
      case 2:
        if (rng_.one_in(20)) truncate();
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        erase();
        break;
      case 7:
      case 8:
      case 9:
      case 10:
        replace();
        break;
      case 11:
      case 12:
        patch();
        break;
      default:
        insert();
    }
  }

  void check() {
    const Status status = validate_tree_page(page_);
    ASSERT_TRUE(status.ok()) << status;
    const TreePageView view(page_);
    ASSERT_EQ(view.slot_count(), rows_.size());
    ASSERT_EQ(view.low_fence(), low_);
    uint16_t slot = 0;
    std::string key;
    uint32_t used = 0;
    for (const auto& [want_key, want_value] : rows_) {
      view.copy_key(slot, &key);
      ASSERT_EQ(key, want_key);
      ASSERT_EQ(view.value(slot), want_value);
      used += view.bytes_needed(want_key, want_value.size());
      ++slot;
    }
    ASSERT_EQ(view.used_bytes(), used);
    check_search();
  }

  void check_search() {
    const TreePageView view(page_);
    for (int i = 0; i < 4; ++i) {
      const std::string key = random_key();
      if (!view.covers_left(key) || !view.covers_right(key)) continue;
      bool equal = false;
      const uint16_t slot = view.lower_bound(key, &equal);
      const auto it = rows_.lower_bound(key);
      ASSERT_EQ(slot, std::distance(rows_.begin(), it));
      ASSERT_EQ(equal, it != rows_.end() && it->first == key);
      if (rows_.empty()) continue;
      const uint16_t child = view.child_slot(key);
      ASSERT_EQ(child, equal ? slot : (slot == 0 ? 0 : slot - 1));
    }
  }

  char* page() { return page_; }
  Rng& rng() { return rng_; }

 private:
  std::string random_bytes(size_t n) {
    std::string s(n, '\0');
    for (char& c : s) c = static_cast<char>(rng_.below(alphabet_));
    return s;
  }
  std::string random_key() {
    if (!rows_.empty() && rng_.one_in(3)) {  // a neighbour of a present key
      std::string key = random_row()->first;
      if (rng_.one_in(2)) key += std::string(1 + rng_.below(3), '\0');
      return key;
    }
    return stem_ + random_bytes(rng_.below(long_keys_ ? 1200 : 12));
  }
  std::string random_value() {
    if (level_ > 0) return random_bytes(4);
    return random_bytes(kRecordHeaderBytes +
                        rng_.below(rng_.one_in(20) ? 2500 : (rng_.one_in(3) ? 300 : 30)));
  }
  std::map<std::string, std::string>::iterator random_row() {
    return std::next(rows_.begin(), static_cast<long>(rng_.below(rows_.size())));
  }
  uint16_t slot_of(const std::string& key) {
    bool equal = false;
    const uint16_t slot = TreePageView(page_).lower_bound(key, &equal);
    EXPECT_TRUE(equal);
    return slot;
  }

  void insert() {
    const TreePageView view(page_);
    const std::string key = random_key();
    const std::string value = random_value();
    if (!view.covers_left(key) || !view.covers_right(key) || rows_.count(key) > 0) return;
    if (!view.fits_insert(key, value.size())) return;
    bool equal = false;
    const uint16_t slot = view.lower_bound(key, &equal);
    insert_record(page_, slot, Bytes(key).substr(view.prefix().size()), value);
    rows_[key] = value;
  }
  void erase() {
    if (rows_.empty()) return;
    const auto it = random_row();
    erase_record(page_, slot_of(it->first));
    rows_.erase(it);
  }
  void replace() {
    if (rows_.empty()) return;
    const auto it = random_row();
    const std::string value = random_value();
    const uint16_t slot = slot_of(it->first);
    if (!TreePageView(page_).fits_replace(slot, value.size())) return;
    replace_value(page_, slot, value);
    it->second = value;
  }
  void patch() {
    if (rows_.empty()) return;
    const auto it = random_row();
    const size_t at = rng_.below(it->second.size() + 1);
    const std::string bytes = random_bytes(rng_.below(it->second.size() - at + 1));
    patch_value(page_, slot_of(it->first), static_cast<uint16_t>(at), bytes);
    it->second.replace(at, bytes.size(), bytes);
  }
  void truncate() {
    if (rows_.size() < 2) return;
    auto it = random_row();
    if (it == rows_.begin()) ++it;
    const std::string high = it->first;
    const auto keep = static_cast<uint16_t>(std::distance(rows_.begin(), it));
    ASSERT_TRUE(fits_truncate_right(page_, keep, high, kIncompleteSplit));
    truncate_right(page_, keep, high, 5, kIncompleteSplit);
    rows_.erase(it, rows_.end());
    high_ = high;
  }

  Rng rng_;
  bool long_keys_ = false;
  uint64_t alphabet_ = 256;
  uint8_t level_ = 0;
  std::string stem_;
  std::string low_;
  std::string high_;
  std::map<std::string, std::string> rows_;
  alignas(64) char page_[kPageBytes];
};

TEST(PageModel, BehavesLikeASortedMap) {
  const uint64_t seed = first_seed();
  for (int run = 0; run < runs(300); ++run) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed + run));
    Model model(seed + run);
    for (int i = 0; i < 1500; ++i) {
      model.step();
      if (i % 16 == 0) model.check();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Whatever the validator lets through must be safe to use.
void use_everything(char* page) {
  const TreePageView view(page);
  std::string key;
  uint64_t sum = 0;
  for (uint16_t i = 0; i < view.slot_count(); ++i) {
    view.copy_key(i, &key);
    bool equal = false;
    ASSERT_EQ(view.lower_bound(key, &equal), i);
    ASSERT_TRUE(equal);
    for (const char c : view.value(i)) sum += static_cast<uint8_t>(c);
  }
  (void)sum;
  if (view.slot_count() > 1) erase_record(page, 1);
  if (view.is_leaf() && view.slot_count() > 0) {  // uses up all the room the page claims to have
    const size_t bytes = view.value(0).size() + view.free_bytes();
    replace_value(page, 0, std::string(bytes, 'f'));
    ASSERT_EQ(view.free_bytes(), 0u);
    ASSERT_TRUE(validate_tree_page(page).ok());
  }
  compact(page);
  ASSERT_TRUE(validate_tree_page(page).ok());
}

TEST(PageModel, DamagedPagesAreRefusedOrHarmless) {
  const uint64_t seed = first_seed();
  int accepted = 0;
  for (int run = 0; run < runs(200); ++run) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed + run));
    Model model(seed + run);
    for (int i = 0; i < 300; ++i) model.step();
    // On the heap and of exact size, so that the sanitizer sees a read beyond the page.
    const auto copy = std::make_unique<char[]>(kPageBytes);
    for (int damage = 0; damage < 200; ++damage) {
      std::memcpy(copy.get(), model.page(), kPageBytes);
      Rng& rng = model.rng();
      for (uint64_t n = 1 + rng.below(3); n > 0; --n) {
        const uint64_t span = rng.one_in(2) ? kPageHeaderBytes : (rng.one_in(2) ? 600 : kPageBytes);
        copy[rng.below(span)] = static_cast<char>(rng.next());
      }
      const Status status = validate_tree_page(copy.get());
      ASSERT_TRUE(status.ok() || is_corruption(status));
      if (!status.ok()) continue;
      ++accepted;
      use_everything(copy.get());
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  RecordProperty("accepted", accepted);
}

TEST(PageModel, NoiseIsRefused) {
  Rng rng(first_seed());
  const auto page = std::make_unique<char[]>(kPageBytes);
  for (int i = 0; i < 200; ++i) {
    for (uint32_t at = 0; at < kPageBytes; at += 8) store_u64(page.get() + at, rng.next());
    if (rng.one_in(2)) {  // get past the first checks
      PageHeader* h = header_of(page.get());
      h->format = kPageFormat;
      h->type = static_cast<uint8_t>(PageType::kTree);
      h->slot_count = static_cast<uint16_t>(rng.below(2100));
      h->heap_top = static_cast<uint16_t>(rng.below(kPageBytes + 10));
      h->low_fence_bytes = static_cast<uint16_t>(rng.below(3000));
      h->high_key_bytes = static_cast<uint16_t>(rng.below(3000));
    }
    EXPECT_TRUE(is_corruption(validate_tree_page(page.get())));
  }
}

}  // namespace
}  // namespace strata
