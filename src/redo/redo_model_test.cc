// Random changes to tree pages, made the way compute makes them (encode, then apply the very
// bytes), and replayed the way storage replays them. STRATA_TEST_SEED=n repeats one run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "page/record.h"
#include "redo/redo.h"

namespace strata::redo {
namespace {

constexpr PageId kId{300, 7};

uint64_t first_seed() {
  const char* given = std::getenv("STRATA_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : monotonic_us() % 1000000;
}
int runs(int usual) { return std::getenv("STRATA_TEST_SEED") != nullptr ? 1 : usual; }

struct alignas(64) TestPage {
  char bytes[kPageBytes] = {};
  [[nodiscard]] Bytes body() const { return Bytes(bytes + 4, kPageBytes - 4); }  // without crc32c
};

struct LoggedSection {
  Llsn llsn;
  Llsn prev;
  std::string ops;
  [[nodiscard]] SectionView view() const { return SectionView{kId, prev, ops}; }
};

// The compute side of one page.
class Writer {
 public:
  explicit Writer(uint64_t seed) : rng_(seed) {
    std::string ops;
    encode_init_tree(
        &ops,
        TreePageInit{
            .page_id = kId, .index_id = IndexId{1}, .flags = kHighIsInfinity, .low_fence = "a"});
    start();
    change(ops);
    publish();
  }

  // One mini-transaction of a few changes.
  void mini_transaction() {
    start();
    for (uint64_t n = 1 + rng_.below(5); n > 0; --n) one_change();
    if (rng_.one_in(15)) replace_ops_by_image();
    publish();
  }

  TestPage page;
  std::vector<LoggedSection> log;
  std::vector<std::string> bodies;  // after each section

 private:
  void start() {
    ops_.clear();
    prev_ = header_of(page.bytes)->llsn;
  }
  void change(const std::string& ops) {  // RD1
    const Status status = apply_ops(page.bytes, ops);
    ASSERT_TRUE(status.ok()) << status;
    ops_ += ops;
  }
  void replace_ops_by_image() {
    normalise_tree_page(page.bytes);
    ops_.clear();
    encode_image(&ops_, page.bytes);
  }
  void publish() {
    llsn_ += 8 * (1 + rng_.below(20));
    header_of(page.bytes)->llsn = llsn_;
    log.push_back(LoggedSection{Llsn{llsn_}, Llsn{prev_}, ops_});
    bodies.emplace_back(page.body());
  }

  std::string random_bytes(size_t n) {
    std::string s(n, '\0');
    for (char& c : s) c = static_cast<char>(rng_.next());
    return s;
  }
  std::string random_value() {
    return random_bytes(kRecordHeaderBytes + rng_.below(rng_.one_in(8) ? 2000 : 120));
  }
  void one_change() {
    const TreePageView view(page.bytes);
    const uint16_t count = view.slot_count();
    std::string ops;
    const uint64_t what = count == 0 ? 0 : rng_.below(20);
    const auto slot = static_cast<uint16_t>(count == 0 ? 0 : rng_.below(count));
    if (what < 9) {
      insert(&ops);
    } else if (what < 12) {
      encode_erase(&ops, slot);
    } else if (what < 14) {
      const std::string value = random_value();
      if (view.fits_replace(slot, value.size())) encode_replace(&ops, slot, value);
    } else if (what < 17) {
      std::string after(view.value(slot));
      for (uint64_t n = rng_.below(7); n > 0; --n)
        after[rng_.below(after.size())] = static_cast<char>(rng_.next());
      encode_value_change(&ops, slot, view.value(slot), after);
    } else if (what < 18) {
      encode_set_right(&ops, static_cast<uint32_t>(rng_.next()));
    } else if (what < 19) {
      encode_set_flags(&ops, static_cast<uint16_t>((view.header()->flags & kHighIsInfinity) |
                                                   (rng_.one_in(2) ? kIncompleteSplit : 0)));
    } else if (slot > 0 && rng_.one_in(4)) {
      std::string high;
      view.copy_key(slot, &high);
      encode_truncate_right(&ops, slot, high, 77, kIncompleteSplit);
    } else if (rng_.one_in(4)) {  // what a merge does: the page widens
      encode_truncate_right(&ops, count, "", kNoPage, kHighIsInfinity);
      if (!fits_truncate_right(page.bytes, count, "", kHighIsInfinity)) ops.clear();
    }
    change(ops);
  }
  void insert(std::string* ops) {
    const TreePageView view(page.bytes);
    const std::string key = "a" + std::string(rng_.below(4), 'b') + random_bytes(rng_.below(6));
    const std::string value = random_value();
    if (!view.covers_left(key) || !view.covers_right(key)) return;
    bool equal = false;
    const uint16_t slot = view.lower_bound(key, &equal);
    if (equal || !view.fits_insert(key, value.size())) return;
    encode_insert(ops, slot, Bytes(key).substr(view.prefix().size()), value);
  }

  Rng rng_;
  std::string ops_;
  uint64_t prev_ = 0;
  uint64_t llsn_ = 0;
};

TEST(RedoModel, ReplayMakesTheSameBytes) {
  const uint64_t seed = first_seed();
  for (int run = 0; run < runs(80); ++run) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed + run));
    Writer writer(seed + run);
    for (int i = 0; i < 150; ++i) writer.mini_transaction();
    ASSERT_TRUE(validate_tree_page(writer.page.bytes).ok());
    TestPage replayed;
    for (size_t i = 0; i < writer.log.size(); ++i) {
      const LoggedSection& section = writer.log[i];
      const auto applied = apply_section(replayed.bytes, section.llsn, section.view());
      ASSERT_TRUE(applied.ok()) << applied.status();
      ASSERT_EQ(*applied, Applied::kApplied);
      ASSERT_EQ(replayed.body(), writer.bodies[i]) << "section " << i;
      const auto again = apply_section(replayed.bytes, section.llsn, section.view());
      ASSERT_EQ(*again, Applied::kAlreadyThere);
      ASSERT_EQ(replayed.body(), writer.bodies[i]);
    }
  }
}

// Replay may begin at any image, whatever the page held, and may meet sections that are there
// already.
TEST(RedoModel, ReplayFromAnyImage) {
  const uint64_t seed = first_seed();
  for (int run = 0; run < runs(40); ++run) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed + run));
    Writer writer(seed + run);
    for (int i = 0; i < 120; ++i) writer.mini_transaction();
    for (size_t from = 0; from < writer.log.size(); ++from) {
      if (!writer.log[from].view().restarts_chain()) continue;
      TestPage page;
      Rng noise(seed + from);
      for (uint32_t at = 16; at < kPageBytes; at += 8) store_u64(page.bytes + at, noise.next());
      for (size_t i = from; i < writer.log.size(); ++i)
        ASSERT_EQ(*apply_section(page.bytes, writer.log[i].llsn, writer.log[i].view()),
                  Applied::kApplied);
      ASSERT_EQ(page.body(), writer.page.body());
      for (const LoggedSection& s : writer.log)
        ASSERT_EQ(*apply_section(page.bytes, s.llsn, s.view()), Applied::kAlreadyThere);
      ASSERT_EQ(page.body(), writer.page.body());
    }
  }
}

TEST(RedoModel, AMissingSectionIsAGap) {
  Writer writer(first_seed());
  for (int i = 0; i < 60; ++i) writer.mini_transaction();
  for (size_t missing = 1; missing + 1 < writer.log.size(); ++missing) {
    if (writer.log[missing + 1].view().restarts_chain()) continue;
    TestPage page;
    for (size_t i = 0; i < missing; ++i)
      ASSERT_TRUE(apply_section(page.bytes, writer.log[i].llsn, writer.log[i].view()).ok());
    const LoggedSection& next = writer.log[missing + 1];
    ASSERT_EQ(*apply_section(page.bytes, next.llsn, next.view()), Applied::kGap);
    ASSERT_EQ(page.body(), writer.bodies[missing - 1]);
  }
}

// Damaged ops are refused or leave a valid page; the sanitizer watches the bounds.
TEST(RedoModel, DamagedOpsNeverBreakAPage) {
  const uint64_t seed = first_seed();
  for (int run = 0; run < runs(60); ++run) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed + run));
    Writer writer(seed + run);
    for (int i = 0; i < 60; ++i) writer.mini_transaction();
    Rng rng(seed + run);
    const auto page = std::make_unique<char[]>(kPageBytes);
    for (int damage = 0; damage < 300; ++damage) {
      const size_t victim = 1 + rng.below(writer.log.size() - 1);
      std::memcpy(page.get() + 4, writer.bodies[victim - 1].data(), kPageBytes - 4);
      const std::string& whole = writer.log[victim].ops;
      const auto bytes = std::make_unique<char[]>(whole.size() + 1);
      std::memcpy(bytes.get(), whole.data(), whole.size());
      for (uint64_t n = 1 + rng.below(3); n > 0 && !whole.empty(); --n)
        bytes[rng.below(std::min<size_t>(whole.size(), rng.one_in(2) ? 16 : whole.size()))] =
            static_cast<char>(rng.next());
      const std::string before(page.get(), kPageBytes);
      const SectionView section{kId, writer.log[victim].prev, Bytes(bytes.get(), whole.size())};
      const auto applied = apply_section(page.get(), writer.log[victim].llsn, section);
      if (!applied.ok()) {
        ASSERT_TRUE(is_corruption(applied.status()));
        ASSERT_EQ(Bytes(page.get(), kPageBytes), before);  // RD2
      } else if (header_of(page.get())->type == static_cast<uint8_t>(PageType::kTree)) {
        ASSERT_TRUE(validate_tree_page(page.get()).ok());
      }
    }
  }
}

TEST(RedoModel, NoiseIsNoGroup) {
  Rng rng(first_seed());
  for (int i = 0; i < 20000; ++i) {
    const size_t size = rng.below(200);
    const auto bytes = std::make_unique<char[]>(size + 1);
    for (size_t at = 0; at < size; ++at) bytes[at] = static_cast<char>(rng.next());
    if (size >= sizeof(GroupHeader) && rng.one_in(2)) {
      store_u16(bytes.get(), kGroupMagic);
      store_u32(bytes.get() + 4, static_cast<uint32_t>(rng.below(size / 8 + 2) * 8));
      store_u64(bytes.get() + 16, 4096);
      const uint32_t length = load_u32(bytes.get() + 4);
      if (rng.one_in(2) && length >= sizeof(GroupHeader) && length <= size) seal_group(bytes.get());
    }
    size_t need = 0;
    const auto group = parse_group(Bytes(bytes.get(), size), Lsn{4096}, &need);
    ASSERT_TRUE(group.ok() || is_corruption(group.status()) || is_out_of_range(group.status()));
    if (!group.ok()) continue;
    const Status status = for_each_section(*group, [](const SectionView& s) {
      for_each_dropped_space(s, [](SpaceId) {});
      return ok_status();
    });
    ASSERT_TRUE(status.ok());
  }
}

}  // namespace
}  // namespace strata::redo
