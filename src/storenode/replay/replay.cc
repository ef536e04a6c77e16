#include "storenode/replay/replay.h"

#include <cstring>
#include <string>

#include "base/crc32c.h"

namespace strata::storenode {
namespace {

std::string version_name(PageId page, const Version& version) {
  return name_of(page) + " at llsn " + std::to_string(version.llsn.value) + " (" +
         name_of(version.stream, version.lsn) + ")";
}

// Whether the map says that the version is stored.
StatusOr<bool> is_missing(const ReplayParts& parts, PageId page, Llsn llsn) {
  bool should_be_there = false;
  STRATA_RETURN_IF_ERROR(parts.map->inspect(page, [&](VersionList list) {
    const ptrdiff_t at = newest_at(list, llsn);
    should_be_there = at >= 0 && list[at].llsn == llsn && list[at].is(kMaterialized);
  }));
  return should_be_there;
}

}  // namespace

Choice choose(VersionList list, Llsn at_least, Llsn at_most) noexcept {
  const ptrdiff_t at = newest_at(list, at_least);
  if (at >= 0) return {Choice::Kind::kFound, list[at]};
  if (list.empty() || !list.front().is(kOldestKept)) return {Choice::Kind::kNeverWritten, {}};
  if (list.front().llsn > at_most) return {Choice::Kind::kCollected, {}};
  return {Choice::Kind::kFound, list.front()};
}

Status dropped_space(PageId page, Llsn dropped, const GetPageRequest& request) {
  if (request.at_least >= dropped) return error_not_found(name_of(page) + ": its space is dropped");
  return error_out_of_range(name_of(page) + ": its space was dropped at llsn " +
                            std::to_string(dropped.value) + " and is collected");
}

StatusOr<Version> find_version(const ReplayParts& parts, const GetPageRequest& request) {
  const PageId page = request.page;
  if (const Llsn dropped = parts.map->reclaimed_at(SpaceId{page.space}); !dropped.is_zero())
    return dropped_space(page, dropped, request);
  Choice choice;
  STRATA_RETURN_IF_ERROR(parts.map->inspect(
      page, [&](VersionList list) { choice = choose(list, request.at_least, request.at_most); }));
  switch (choice.kind) {
    case Choice::Kind::kFound:
      return choice.version;
    case Choice::Kind::kNeverWritten:
      return error_not_found(name_of(page) + (request.at_least == kNewestState
                                                  ? " was never written"
                                                  : " was not written at or below llsn " +
                                                        std::to_string(request.at_least.value)));
    case Choice::Kind::kCollected:
      break;
  }
  return error_out_of_range(name_of(page) + ": versions at llsn " +
                            std::to_string(request.at_most.value) + " are collected");
}

StatusOr<std::optional<PageAnswer>> read_stored(const ReplayParts& parts, PageId page,
                                                const Version& version) {
  StatusOr<PageRef> read = parts.store->read(page, version.llsn);
  if (read.ok()) return std::optional<PageAnswer>({*std::move(read), version.llsn});
  if (!is_not_found(read.status())) return read.status();
  STRATA_ASSIGN_OR_RETURN(const bool missing, is_missing(parts, page, version.llsn));
  if (!missing) return std::optional<PageAnswer>();
  return error_corruption("the stored version of " + version_name(page, version) +
                          " is missing in the version store");
}

std::optional<PageAnswer> stored_at_hand(const ReplayParts& parts, const GetPageRequest& request) {
  Choice choice;
  const bool seen = parts.map->inspect_at_hand(request.page, [&](VersionList list) {
    choice = choose(list, request.at_least, request.at_most);
  });
  if (!seen || choice.kind != Choice::Kind::kFound || !choice.version.is(kMaterialized))
    return std::nullopt;
  PageRef page = parts.store->at_hand(request.page, choice.version.llsn);
  if (page == nullptr) return std::nullopt;
  return PageAnswer{std::move(page), choice.version.llsn};
}

StatusOr<PageRef> read_base(const ReplayParts& parts, PageId page, Llsn llsn) {
  StatusOr<PageRef> read = parts.store->read(page, llsn);
  if (!is_not_found(read.status())) return read;
  STRATA_ASSIGN_OR_RETURN(const bool missing, is_missing(parts, page, llsn));
  if (!missing) return read;
  return error_corruption("the stored version of llsn " + std::to_string(llsn.value) +
                          ", from which it is made, is missing in the version store");
}

Status read_section(const ReplayParts& parts, const Version& version, std::string* section) {
  LogView* const log = parts.streams->find(version.stream);
  if (log == nullptr || version.section_bytes == 0)
    return error_corruption("its section in the log is not known");
  section->resize(version.section_bytes);
  const Lsn from{version.lsn.value + version.section_offset};
  for (int tried = 0; tried < 2; ++tried) {
    STRATA_RETURN_IF_ERROR(
        parts.log_cache->read(version.stream, log, from, section->data(), section->size()));
    if (crc32c(section->data(), section->size()) == version.section_crc32c) return ok_status();
    parts.log_cache->clear();  // what is cached may be from before the log was repaired
  }
  return error_corruption("its section in the log is damaged (checksum)");
}

Status not_replayed(PageId page, const Version& version) {
  return error_corruption(version_name(page, version) +
                          " could not be made from the log: a section, or the version before it, "
                          "is damaged");
}

Status apply_to(PageBuffer* buffer, PageId page, const Version& version,
                const redo::SectionView& section) {
  if (section.page_id != page || section.prev_llsn != version.prev_llsn)
    return error_corruption(version_name(page, version) + ": the log holds a section of " +
                            name_of(section.page_id) + " there");
  const StatusOr<redo::Applied> applied = redo::apply_section(buffer->bytes, version.llsn, section);
  if (!applied.ok())
    return error_corruption(version_name(page, version) + ": " +
                            std::string(applied.status().message()));
  if (*applied == redo::Applied::kApplied) return ok_status();
  return error_corruption(
      version_name(page, version) + ": the page misses an earlier change (it has llsn " +
      std::to_string(header_of(buffer->bytes)->llsn) + ", the change follows llsn " +
      std::to_string(version.prev_llsn.value) + ")");
}

StatusOr<PageRef> apply_to_copy(const PageBuffer* base, PageId page, const Version& version,
                                const redo::SectionView& section) {
  auto made = std::make_shared<PageBuffer>();
  if (base == nullptr) {
    std::memset(made->bytes, 0, kPageBytes);
  } else {
    std::memcpy(made->bytes, base->bytes, kPageBytes);
  }
  STRATA_RETURN_IF_ERROR(apply_to(made.get(), page, version, section));
  seal_page(made->bytes);
  return PageRef(std::move(made));
}

}  // namespace strata::storenode
