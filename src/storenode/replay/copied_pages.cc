#include "storenode/replay/copied_pages.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "pagefile/local_page_source.h"

namespace strata::storenode {
namespace {

constexpr const char* kFlagName = "copying";
constexpr size_t kBatchBytes = 1u << 20;

std::string page_folder(const PageStoreOptions& options) { return options.directory + "/pages"; }
std::string flag_path(const PageStoreOptions& options) {
  return options.directory + "/" + kFlagName;
}

Status remove_files(FileSystem* files, const std::string& directory) {
  STRATA_ASSIGN_OR_RETURN(const bool present, files->exists(directory));
  if (!present) return ok_status();
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->list(directory));
  const std::string folder = directory + "/";
  for (const std::string& name : names) STRATA_RETURN_IF_ERROR(files->remove(folder + name));
  return files->sync_directory(directory);
}

}  // namespace

VersionDbOptions version_db_options(const PageStoreOptions& options) {
  VersionDbOptions versions;
  versions.directory = options.directory + "/versions";
  versions.files = options.rocksdb_on_files ? options.files : nullptr;
  versions.cluster_id = options.cluster_id;
  versions.layout =
      options.mode == ReplayMode::kSingle ? StoreLayout::kInPlace : StoreLayout::kVersions;
  versions.memtable_bytes = options.memtable_bytes;
  versions.open_files_max = options.open_files_max;
  versions.device_errors_us = options.device_errors_us;
  return versions;
}

StatusOr<std::unique_ptr<PageSource>> open_page_files(const PageStoreOptions& options) {
  LocalPageSourceOptions files;
  files.directory = page_folder(options);
  files.open_files = options.open_files_max;
  return open_local_page_source(options.files, files);
}

StatusOr<uint32_t> page_file_pages(const PageStoreOptions& options, SpaceId space) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "/space-%08x.pages", space.value);
  auto file = options.files->open(page_folder(options) + name.data(), {.read_only = true});
  if (is_not_found(file.status())) return uint32_t{0};  // dropped meanwhile
  STRATA_RETURN_IF_ERROR(file.status());
  STRATA_ASSIGN_OR_RETURN(const uint64_t bytes, (*file)->size());
  return static_cast<uint32_t>(bytes / kPageBytes);
}

// --- the flag ---

StatusOr<bool> is_being_copied(const PageStoreOptions& options) {
  return options.files->exists(flag_path(options));
}

Status note_being_copied(const PageStoreOptions& options) {
  {
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                            options.files->open(flag_path(options), {.create = true}));
    STRATA_RETURN_IF_ERROR(file->sync_data());
  }
  return options.files->sync_directory(options.directory);
}

Status note_copied(const PageStoreOptions& options) {
  STRATA_RETURN_IF_ERROR(options.files->remove(flag_path(options)));
  return options.files->sync_directory(options.directory);
}

// --- filling ---

StatusOr<std::unique_ptr<CopiedPages>> CopiedPages::begin(const PageStoreOptions& options) {
  auto made = std::unique_ptr<CopiedPages>(new CopiedPages(options));
  STRATA_RETURN_IF_ERROR(made->open());
  return made;
}

Status CopiedPages::open() {
  const VersionDbOptions versions = version_db_options(options_);
  STRATA_RETURN_IF_ERROR(options_.files->make_directory(versions.directory));
  STRATA_RETURN_IF_ERROR(VersionDb::destroy(versions));
  STRATA_RETURN_IF_ERROR(remove_files(options_.files, page_folder(options_)));
  STRATA_ASSIGN_OR_RETURN(db_, VersionDb::open(versions));
  batch_ = db_->new_batch();
  if (!in_place()) return ok_status();
  STRATA_ASSIGN_OR_RETURN(page_files_, open_page_files(options_));
  in_place_ = std::make_unique<InPlacePages>(page_files_.get(), options_.page_cache_bytes);
  return ok_status();
}

Status CopiedPages::write_batch() {
  STRATA_RETURN_IF_ERROR(db_->write(&batch_));
  batch_.clear();
  return ok_status();
}

Status CopiedPages::put(PageId page, const PageRef& ref) {
  const Llsn llsn{header_of(ref->bytes)->llsn};
  newest_ = std::max(newest_, llsn);
  ++pages_;
  if (in_place()) return in_place_->put(page, ref);
  Version version;
  version.llsn = llsn;
  version.flags = kMaterialized | kOldestKept;
  batch_.put_version(page, version);
  batch_.put_page(page, llsn, ref->bytes);
  return batch_.bytes() < kBatchBytes ? ok_status() : write_batch();
}

Status CopiedPages::put_broken(PageId page, const CopyMark& mark) {
  ++pages_;
  if (in_place()) {
    batch_.put_broken({page, mark.replayed.llsn, mark.stream, mark.replayed.lsn});
    return ok_status();
  }
  Version version;  // without a page, and nobody knows its section
  version.llsn = mark.replayed.llsn;
  version.stream = mark.stream;
  version.lsn = mark.replayed.lsn;
  version.flags = kOldestKept;
  batch_.put_version(page, version);
  return ok_status();
}

Status CopiedPages::finish(const std::vector<CopyMark>& at, const CopyOffer& last) {
  Llsn horizon = std::max(last.horizon, newest_);
  for (const CopyMark& mark : at) {
    // Up to the newest page quick scan meets sections whose versions are stored: it must look
    // (IN3). A group's llsn is never below the lsn of its sections.
    const Lsn known_to = std::max(mark.replayed.lsn, Lsn{newest_.value});
    batch_.put_mark(Mark::kScanned, mark.stream, {known_to, mark.replayed.llsn});
    batch_.put_mark(Mark::kReplayed, mark.stream, mark.replayed);
    horizon = std::max(horizon, mark.replayed.llsn);
  }
  for (const DroppedSpace& dropped : last.dropped) {
    batch_.put_dropped(dropped);
    if (!dropped.reclaimed) continue;
    // Its pages went while they were copied: what is here may be half of them.
    batch_.remove_space(dropped.space);
    horizon = std::max(horizon, dropped.llsn);
    if (in_place()) STRATA_RETURN_IF_ERROR(in_place_->delete_space(dropped.space));
  }
  batch_.put_horizon(horizon);
  if (in_place()) STRATA_RETURN_IF_ERROR(in_place_->checkpoint());
  STRATA_RETURN_IF_ERROR(write_batch());
  return db_->flush();
}

}  // namespace strata::storenode
