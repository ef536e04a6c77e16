// A page whose checksum is right and whose content is not: what validate_tree_page() lets through
// can be searched and read.
#include "page/slotted.h"
#include "pages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  fuzz::Input input(data, size);
  const uint8_t kind = input.u8();
  std::unique_ptr<char[]> page;
  std::string probe;
  if (kind < 4) {
    probe = input.take_some(input.u8() % 16);
    page = std::make_unique<char[]>(kPageBytes);
    fuzz::make_page(kind, page.get());
    fuzz::patch_page(&input, page.get());
  } else {
    page = fuzz::page_from(&input);
  }
  seal_page(page.get());
  (void)verify_page(page.get(), page_id_of(page.get()));
  if (header_of(page.get())->type == static_cast<uint8_t>(PageType::kSystem))
    (void)redo::read_pending_deletes(page.get());
  if (header_of(page.get())->type != static_cast<uint8_t>(PageType::kTree)) return 0;
  if (!validate_tree_page(page.get()).ok()) return 0;
  const TreePageView view(page.get());
  std::string key;
  std::string previous;
  for (uint16_t slot = 0; slot < view.slot_count(); ++slot) {
    view.copy_key(slot, &key);
    FUZZ_CHECK(slot == 0 || previous < key);                      // SL1
    FUZZ_CHECK(view.covers_left(key) && view.covers_right(key));  // SL1
    bool equal = false;
    FUZZ_CHECK(view.lower_bound(key, &equal) == slot && equal);
    FUZZ_CHECK(view.compare_key(slot, key) == 0);
    if (!view.is_leaf()) {
      FUZZ_CHECK(view.child_slot(key) == slot);
      (void)view.child(slot);
    }
    (void)view.value(slot);
    previous = key;
  }
  if (view.covers_left(probe) && view.covers_right(probe)) {
    bool equal = false;
    const uint16_t slot = view.lower_bound(probe, &equal);
    FUZZ_CHECK(slot <= view.slot_count());
    FUZZ_CHECK(slot == view.slot_count() || (view.compare_key(slot, probe) >= 0));
    FUZZ_CHECK(slot == 0 || view.compare_key(static_cast<uint16_t>(slot - 1), probe) < 0);
    FUZZ_CHECK(equal == (slot < view.slot_count() && view.compare_key(slot, probe) == 0));
    if (!view.is_leaf() && view.slot_count() > 0)
      FUZZ_CHECK(view.child_slot(probe) < view.slot_count());
  }
  FUZZ_CHECK(view.used_bytes() <= kPageBytes && view.free_bytes() <= kPageBytes);
  // Its image, applied to an empty page, gives the same page.
  std::string ops;
  redo::encode_image(&ops, page.get());
  const auto copy = std::make_unique<char[]>(kPageBytes);
  std::memset(copy.get(), 0, kPageBytes);
  const auto applied = redo::apply_section(copy.get(), Llsn{header_of(page.get())->llsn + 1},
                                           {page_id_of(page.get()), Llsn{0}, ops});
  if (applied.ok() && *applied == redo::Applied::kApplied)
    FUZZ_CHECK(std::memcmp(copy.get() + 64, page.get() + 64, kPageBytes - 64) == 0);
  return 0;
}
