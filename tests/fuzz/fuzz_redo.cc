// Redo: groups that parse, and their sections on pages of each kind. A section that is refused
// leaves its page as it was; one that is applied leaves a valid page (RD2).
#include "pages.h"

namespace strata::fuzz {
namespace {

void apply(char* page, const redo::SectionView& section) {
  const auto before = std::make_unique<char[]>(kPageBytes);
  std::memcpy(before.get(), page, kPageBytes);
  const auto applied = redo::apply_section(page, Llsn{10}, section);
  if (!applied.ok()) {
    FUZZ_CHECK(std::memcmp(before.get(), page, kPageBytes) == 0);
  } else if (*applied == redo::Applied::kApplied) {
    FUZZ_CHECK(header_of(page)->llsn == 10);
    if (header_of(page)->type == static_cast<uint8_t>(PageType::kTree))
      FUZZ_CHECK(validate_tree_page(page).ok());
  }
  redo::for_each_dropped_space(section, [](SpaceId) {});
}

}  // namespace
}  // namespace strata::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  fuzz::Input input(data, size);
  const uint8_t kind = input.u8();
  const auto page = std::make_unique<char[]>(kPageBytes);
  fuzz::make_page(kind, page.get());
  const std::string rest(input.rest());
  if ((kind & 16) == 0) {
    fuzz::apply(page.get(), {fuzz::kPage, Llsn{5}, rest});
    return 0;
  }
  // The same inside a group, whose checksum is made right.
  std::string group(sizeof(redo::GroupHeader), '\0');
  group += rest;
  group.resize((group.size() + 7) / 8 * 8, '\0');
  redo::GroupHeader header{};
  header.magic = redo::kGroupMagic;
  header.length = static_cast<uint32_t>(group.size());
  header.lsn = 4096;
  header.llsn = 10;
  header.section_count = static_cast<uint16_t>(kind >> 5);
  std::memcpy(group.data(), &header, sizeof header);
  redo::seal_group(group.data());
  size_t need = 0;
  const auto parsed = redo::parse_group(group, Lsn{4096}, &need);
  if (!parsed.ok()) return 0;
  (void)redo::for_each_section(*parsed, [&](const redo::SectionView& section) {
    fuzz::apply(page.get(), section);
    return ok_status();
  });
  return 0;
}
