// What one change of a tree page costs: search, encode, apply; and replay, images, validation.
//   strata_redo_bench [repetitions]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/rng.h"
#include "page/record.h"
#include "redo/redo.h"

namespace strata::redo {
namespace {

constexpr PageId kId{300, 7};
constexpr size_t kPayloadBytes = 100;

uint64_t nanoseconds() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

struct alignas(64) Page {
  char bytes[kPageBytes] = {};
};

std::string key_of(uint64_t n) {
  std::string key(8, '\0');
  store_be64(key.data(), n);
  return key;
}

void init(Page* page) {
  std::string ops;
  encode_init_tree(&ops, TreePageInit{.page_id = kId,
                                      .index_id = IndexId{1},
                                      .low_fence = key_of(0x1000),
                                      .high_key = key_of(0x2000)});
  STRATA_ASSERT(apply_ops(page->bytes, ops).ok());
}

// Fills the page in random order; returns the sections that did it.
std::vector<std::string> fill(Page* page, Rng* rng) {
  std::vector<std::string> log;
  const std::string value(kRecordHeaderBytes + kPayloadBytes, 'v');
  init(page);
  for (;;) {
    const std::string key = key_of(0x1000 + rng->below(0x1000));
    const TreePageView view(page->bytes);
    if (!view.fits_insert(key, value.size())) return log;
    bool equal = false;
    const uint16_t slot = view.lower_bound(key, &equal);
    if (equal) continue;
    std::string ops;
    encode_insert(&ops, slot, Bytes(key).substr(view.prefix().size()), value);
    STRATA_ASSERT(apply_ops(page->bytes, ops).ok());
    log.push_back(ops);
  }
}

template <typename Work>
void report(const char* what, int repetitions, size_t per_repetition, Work work) {
  const uint64_t began = nanoseconds();
  for (int i = 0; i < repetitions; ++i) work();
  const double total = static_cast<double>(nanoseconds() - began);
  std::printf("%-28s %8.0f ns\n", what,
              total / static_cast<double>(repetitions) / static_cast<double>(per_repetition));
}

void run(int repetitions) {
  Rng rng(1);
  Page page;
  const std::vector<std::string> log = fill(&page, &rng);
  const TreePageView view(page.bytes);
  std::printf("%u records of %zu bytes\n", view.slot_count(), kPayloadBytes);

  report("search and insert", repetitions, log.size(), [&] { fill(&page, &rng); });
  std::vector<std::string> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back(key_of(0x1000 + rng.below(0x1000)));
  uint64_t sum = 0;
  report("lower_bound", repetitions, keys.size(), [&] {
    for (const std::string& key : keys) {
      bool equal = false;
      sum += view.lower_bound(key, &equal);
    }
  });
  std::string ops;
  std::string after(view.value(5));
  report("change 24 bytes of a record", repetitions, 1000, [&] {
    for (int i = 0; i < 1000; ++i) {
      ops.clear();
      for (int at = 0; at < 24; at += 8) store_u64(after.data() + at, rng.next());
      encode_value_change(&ops, 5, view.value(5), after);
      STRATA_ASSERT(apply_ops(page.bytes, ops).ok());
    }
  });
  report("replay an insert", repetitions, log.size(), [&] {
    Page replayed;
    init(&replayed);
    uint64_t llsn = 0;
    for (const std::string& section : log) {
      const auto applied =
          apply_section(replayed.bytes, Llsn{llsn + 8}, SectionView{kId, Llsn{llsn}, section});
      STRATA_ASSERT(applied.ok());
      STRATA_ASSERT(*applied == Applied::kApplied);
      llsn += 8;
    }
  });
  report("encode an image", repetitions, 10, [&] {
    for (int i = 0; i < 10; ++i) {
      ops.clear();
      encode_image(&ops, page.bytes);
    }
  });
  Page copy;
  report("apply an image", repetitions, 10, [&] {
    for (int i = 0; i < 10; ++i) STRATA_ASSERT(apply_ops(copy.bytes, ops).ok());
  });
  report("validate_tree_page", repetitions, 10, [&] {
    for (int i = 0; i < 10; ++i) STRATA_ASSERT(validate_tree_page(page.bytes).ok());
  });
  report("seal_page", repetitions, 10, [&] {
    for (int i = 0; i < 10; ++i) seal_page(page.bytes);
  });
  report("compact", repetitions, 10, [&] {
    for (int i = 0; i < 10; ++i) compact(page.bytes);
  });
  if (sum == 1) std::printf("\n");  // keeps the searches alive
}

}  // namespace
}  // namespace strata::redo

int main(int argc, char** argv) { strata::redo::run(argc > 1 ? std::atoi(argv[1]) : 1000); }
