#include "storenode/versions/version_db.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/diag.h"
#include "base/page_name.h"
#include "page/slotted.h"
#include "rocksdb/cache.h"
#include "rocksdb/db.h"
#include "rocksdb/filter_policy.h"
#include "rocksdb/slice_transform.h"
#include "rocksdb/table.h"
#include "rocksdb/write_batch.h"
#include "storenode/versions/device_errors.h"
#include "storenode/versions/internal/keys.h"
#include "storenode/versions/rocks_file_system.h"

namespace strata::storenode {
namespace {

using rocksdb::Slice;

enum Family : uint32_t { kMarks, kMap, kPages, kFamilies };
constexpr const char* kFamilyNames[kFamilies] = {"default", "map", "pages"};
constexpr uint64_t kPagesPerRebuildBatch = 4096;
constexpr uint32_t kPageReadsMax = 3;  // of a page whose place in the disk says EIO

// Places of DeviceErrors. Those of pages, which are read one by one, are page ids; no page has
// these.
enum Place : uint64_t {
  kWriting = UINT64_MAX,
  kFlushing = UINT64_MAX - 1,
  kMarkReading = UINT64_MAX - 2,
  kListing = UINT64_MAX - 3,
  kWork = UINT64_MAX - 4
};

Slice slice_of(Bytes bytes) { return {bytes.data(), bytes.size()}; }
Bytes bytes_of(const Slice& slice) { return {slice.data(), slice.size()}; }

std::string name_of(PageId page, Llsn llsn) {
  return name_of(page) + " at llsn " + std::to_string(llsn.value);
}

// RocksDB removes a file only when nothing refers to it any more: one that is missing is as bad as
// one whose bytes are wrong, and as lasting. Other errors of the disk may pass (VD7).
bool is_damage(const rocksdb::Status& status) {
  return status.IsCorruption() || status.IsPathNotFound();
}

Status from_rocks(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return ok_status();
  const std::string text = what + ": " + status.ToString();
  if (is_damage(status)) return error_corruption(text);
  if (status.IsNotFound()) return error_not_found(text);
  if (status.IsNoSpace()) return error_no_space(text);
  if (status.IsBusy() || status.IsTryAgain()) return error_busy(text);
  return status.IsIOError() ? error_io_error(text) : error_internal(text);
}

// RocksDB's own messages: what it warns of goes to the operator, the rest nowhere.
class DiagLogger final : public rocksdb::Logger {
 public:
  DiagLogger() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}
  using Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    std::array<char, 400> text;  // some go on with pages of details
    std::vsnprintf(text.data(), text.size(), format, arguments);
    diag(Severity::kWarning, "version store: %s", text.data());
  }
};

rocksdb::ColumnFamilyOptions family_options(Family family, const VersionDbOptions& options,
                                            const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.cache_index_and_filter_blocks = true;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.whole_key_filtering = family == kPages;
  rocksdb::ColumnFamilyOptions made;
  made.write_buffer_size = options.memtable_bytes;
  made.max_write_buffer_number = 4;
  made.compression = rocksdb::kNoCompression;
  if (family != kMarks) {
    made.prefix_extractor.reset(rocksdb::NewFixedPrefixTransform(internal::kPagePrefixBytes));
    made.memtable_prefix_bloom_size_ratio = 0.02;
  }
  if (family == kPages) {
    // Pages lie in files of their own: compaction moves keys only, and old versions, which die in
    // about the order in which they were made, free whole files.
    made.enable_blob_files = true;
    made.min_blob_size = 1024;
    made.blob_file_size = 64u << 20;
    made.blob_compression_type =
        options.compress_pages ? rocksdb::kLZ4Compression : rocksdb::kNoCompression;
    made.enable_blob_garbage_collection = true;
    made.blob_garbage_collection_age_cutoff = 0.25;
    made.blob_garbage_collection_force_threshold = 0.5;
  }
  made.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return made;
}

rocksdb::DBOptions db_options(const VersionDbOptions& options, rocksdb::Env* env) {
  rocksdb::DBOptions made;
  if (env != nullptr) made.env = env;
  made.create_if_missing = true;
  made.atomic_flush = true;  // VD1
  made.db_write_buffer_size = options.memtable_bytes;
  made.max_background_jobs = static_cast<int>(options.background_jobs);
  made.info_log = std::make_shared<DiagLogger>();
  made.max_open_files = static_cast<int>(options.open_files_max);
  made.keep_log_file_num = 1;
  made.stats_dump_period_sec = 0;
  made.stats_persist_period_sec = 0;
  made.wal_recovery_mode = rocksdb::WALRecoveryMode::kAbsoluteConsistency;
  return made;
}

rocksdb::ReadOptions total_order() {
  rocksdb::ReadOptions options;
  options.total_order_seek = true;
  options.fill_cache = false;
  return options;
}

rocksdb::WriteOptions without_wal() {
  rocksdb::WriteOptions options;
  options.disableWAL = true;  // VD1
  return options;
}

}  // namespace

class VersionDb::Impl {
 public:
  explicit Impl(const VersionDbOptions& options)
      : options_(options), device_errors_(options.device_errors_us) {}
  ~Impl() { close(); }

  Status open();
  Status open_rocks();
  Status check_identity();
  Status rebuild_map_if_lost();
  Status rebuild_map();
  void close();

  // What became of anything but reading a page (VD6). A write or flush reads nothing: what it says
  // of damage was met by work in the background.
  Status noted(const rocksdb::Status& status, uint64_t place, const std::string& what) {
    if (is_damage(status)) is_damaged_ = true;
    return note_device(place, from_rocks(status, what));
  }
  // VD7
  Status note_device(uint64_t place, Status status) {
    if (status.ok()) {
      device_errors_.succeeded(place);
      return status;
    }
    if (!is_device_error(status) || !device_errors_.failed(place, monotonic_us())) return status;
    if (!is_damaged_.exchange(true))
      diag(Severity::kError,
           "version store in %s: its disk goes on refusing (%s); it counts as damaged from now on",
           options_.directory.c_str(), std::string(status.message()).c_str());
    return status;
  }
  Status put_mark(const std::string& key, const std::string& payload) {
    return from_rocks(
        db_->Put(without_wal(), families_[kMarks], key, internal::seal_value(key, payload)),
        "version store: a mark could not be written");
  }
  StatusOr<std::optional<std::string>> get_mark(const std::string& key);
  template <typename Visit>
  Status for_each_mark(Bytes prefix, const Visit& visit);
  // VD6: what was read does not decode.
  [[nodiscard]] Status damaged(const std::string& what) {
    is_damaged_ = true;
    return error_corruption("the version store in " + options_.directory + " is damaged: " + what +
                            "; remove the folder and the node rebuilds it from the log, or "
                            "copies it from another storage node");
  }

  const VersionDbOptions options_;
  std::unique_ptr<rocksdb::Env> env_;
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kFamilies> families_{};
  bool map_was_rebuilt_ = false;
  std::atomic<bool> is_damaged_{false};
  DeviceErrors device_errors_;
};

// A family that is missing is made: RocksDB tells by the list what a folder has.
Status VersionDb::Impl::open_rocks() {
  if (options_.files != nullptr) {
    STRATA_RETURN_IF_ERROR(options_.files->make_directory(options_.directory));
    env_ = make_rocks_env(options_.files);
  }
  rocksdb::DBOptions db = db_options(options_, env_.get());
  db.create_missing_column_families = true;
  // Compaction can wait, writing memtables not: whoever changes a page would wait for it. Where it
  // is not allowed, it is not.
  (void)db.env->LowerThreadPoolCPUPriority(rocksdb::Env::LOW, rocksdb::CpuPriority::kLow);
  const auto cache = rocksdb::NewLRUCache(options_.block_cache_bytes);
  std::vector<rocksdb::ColumnFamilyDescriptor> wanted;
  for (uint32_t i = 0; i < kFamilies; ++i)
    wanted.emplace_back(kFamilyNames[i], family_options(static_cast<Family>(i), options_, cache));
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(db, options_.directory, wanted, &handles, &opened);
  if (is_damage(status)) return damaged(status.ToString());
  STRATA_RETURN_IF_ERROR(from_rocks(status, "version store in " + options_.directory));
  db_.reset(opened);
  std::copy(handles.begin(), handles.end(), families_.begin());
  STRATA_RETURN_IF_ERROR(check_identity());
  return rebuild_map_if_lost();
}

// VD7: whoever opens it waits until it is clear whether an error of the disk passes.
Status VersionDb::Impl::open() {
  const uint64_t give_up_us = monotonic_us() + options_.device_errors_us;
  for (uint32_t tries = 1;; ++tries) {
    const Status opened = open_rocks();
    if (!is_device_error(opened)) return opened;
    close();
    if (tries >= DeviceErrors::kTriesMin && monotonic_us() >= give_up_us)
      return damaged(std::string(opened.message()));
    std::this_thread::sleep_for(
        std::chrono::microseconds(options_.device_errors_us / DeviceErrors::kTriesMin));
  }
}

void VersionDb::Impl::close() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle*& family : families_) {
    // Frees memory only; its error is of handles that are not RocksDB's.
    if (family != nullptr) (void)db_->DestroyColumnFamilyHandle(family);
    family = nullptr;
  }
  (void)db_->Close();  // nothing becomes durable by it (VD1): an error takes nothing away
  db_.reset();
}

StatusOr<std::optional<std::string>> VersionDb::Impl::get_mark(const std::string& key) {
  std::string value;
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), families_[kMarks], key, &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  STRATA_RETURN_IF_ERROR(noted(status, kMarkReading, "version store: mark " + key));
  const std::optional<Bytes> payload = internal::open_value(key, value);
  if (!payload.has_value()) return damaged("mark " + key);
  return std::optional<std::string>(*payload);
}

template <typename Visit>
Status VersionDb::Impl::for_each_mark(Bytes prefix, const Visit& visit) {
  const std::unique_ptr<rocksdb::Iterator> it(
      db_->NewIterator(rocksdb::ReadOptions(), families_[kMarks]));
  for (it->Seek(slice_of(prefix)); it->Valid(); it->Next()) {
    const Bytes key = bytes_of(it->key());
    if (!key.starts_with(prefix)) break;
    const std::optional<Bytes> payload = internal::open_value(key, bytes_of(it->value()));
    if (!payload.has_value() || !visit(key, *payload)) return damaged("a mark");
  }
  return noted(it->status(), kMarkReading, "version store: marks");
}

Status VersionDb::Impl::check_identity() {
  const std::string key = internal::identity_key();
  STRATA_ASSIGN_OR_RETURN(const std::optional<std::string> stored, get_mark(key));
  if (!stored.has_value()) {
    const std::unique_ptr<rocksdb::Iterator> any(
        db_->NewIterator(total_order(), families_[kPages]));
    any->SeekToFirst();
    STRATA_RETURN_IF_ERROR(from_rocks(any->status(), "version store"));
    if (any->Valid()) return damaged("it holds pages but no identity");
    STRATA_RETURN_IF_ERROR(put_mark(
        key,
        internal::encode_identity({internal::kStoreFormat, options_.cluster_id, options_.layout})));
    return put_mark(internal::map_whole_key(), "");
  }
  internal::Identity found;
  if (!internal::decode_identity(*stored, &found)) return damaged("its identity");
  if (found.format != internal::kStoreFormat)
    return error_unsupported("the version store in " + options_.directory + " has format " +
                             std::to_string(found.format) + "; this build uses " +
                             std::to_string(internal::kStoreFormat));
  if (found.cluster_id != options_.cluster_id)
    return error_wrong_database("the version store in " + options_.directory +
                                " belongs to cluster " + std::to_string(found.cluster_id) +
                                ", not to " + std::to_string(options_.cluster_id));
  if (found.layout != options_.layout)
    return error_wrong_database(
        "the page store in " + options_.directory +
        (found.layout == StoreLayout::kInPlace
             ? " keeps one version of each page; this profile needs many"
             : " keeps many versions of each page; this profile keeps one") +
        ": the profile of a database does not change");
  return ok_status();
}

Status VersionDb::Impl::rebuild_map_if_lost() {
  if (options_.layout != StoreLayout::kVersions) return ok_status();
  STRATA_ASSIGN_OR_RETURN(const auto whole, get_mark(internal::map_whole_key()));
  if (whole.has_value()) {
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(total_order(), families_[kMap]));
    it->SeekToFirst();
    STRATA_RETURN_IF_ERROR(from_rocks(it->status(), "version map"));
    if (it->Valid()) return ok_status();
    const std::unique_ptr<rocksdb::Iterator> pages(
        db_->NewIterator(total_order(), families_[kPages]));
    pages->SeekToFirst();
    STRATA_RETURN_IF_ERROR(from_rocks(pages->status(), "version store"));
    if (!pages->Valid()) return ok_status();  // both empty
  }
  diag(Severity::kWarning, "the version map in %s is lost; it is rebuilt from the stored pages",
       options_.directory.c_str());
  return rebuild_map();
}

// VD5. A first version at or below the horizon may have had older ones that were collected.
Status VersionDb::Impl::rebuild_map() {
  Llsn horizon;
  STRATA_ASSIGN_OR_RETURN(const auto stored, get_mark(internal::horizon_key()));
  if (stored.has_value() && !internal::decode_llsn(*stored, &horizon)) return damaged("horizon");
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(total_order(), families_[kPages]));
  rocksdb::WriteBatch batch;
  std::optional<PageId> previous;
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    PageId page;
    Version version;
    if (!internal::parse_version_key(bytes_of(it->key()), &page, &version.llsn))
      return damaged("a key of the stored pages");
    version.flags = kMaterialized;
    if (previous != page && version.llsn <= horizon) version.flags |= kOldestKept;
    previous = page;
    batch.Put(families_[kMap], it->key(), internal::encode_version(version));
    if (batch.Count() < kPagesPerRebuildBatch) continue;
    STRATA_RETURN_IF_ERROR(from_rocks(db_->Write(without_wal(), &batch), "version map"));
    batch.Clear();
  }
  if (is_damage(it->status())) return damaged(it->status().ToString());
  STRATA_RETURN_IF_ERROR(from_rocks(it->status(), "stored pages"));
  const std::string key = internal::map_whole_key();
  batch.Put(families_[kMarks], key, internal::seal_value(key, ""));
  STRATA_RETURN_IF_ERROR(from_rocks(db_->Write(without_wal(), &batch), "version map"));
  map_was_rebuilt_ = true;
  return ok_status();
}

// --- batch ---
//
// Building a batch in memory has no error: those of its functions are for batches with a limit of
// bytes or with protection of their keys, and ours have neither.

VersionDb::Batch::Batch() : batch_(std::make_unique<rocksdb::WriteBatch>()) {}
VersionDb::Batch::~Batch() = default;
VersionDb::Batch::Batch(Batch&&) noexcept = default;
VersionDb::Batch& VersionDb::Batch::operator=(Batch&&) noexcept = default;

VersionDb::Batch VersionDb::new_batch() const {
  Batch batch;
  batch.db_ = this;
  return batch;
}

void VersionDb::Batch::put_version(PageId page, const Version& version) {
  (void)batch_->Put(db_->impl_->families_[kMap], internal::version_key(page, version.llsn),
                    internal::encode_version(version));
}

void VersionDb::Batch::put_page(PageId page, Llsn llsn, const char* sealed_page) {
  STRATA_ASSERT(page_id_of(sealed_page) == page);
  STRATA_ASSERT(header_of(sealed_page)->llsn == llsn.value);
  STRATA_DASSERT(verify_page(sealed_page, page).ok());
  (void)batch_->Put(db_->impl_->families_[kPages], internal::version_key(page, llsn),
                    Slice(sealed_page, kPageBytes));
}

void VersionDb::Batch::remove_version(PageId page, const Version& version) {
  const std::string key = internal::version_key(page, version.llsn);
  (void)batch_->Delete(db_->impl_->families_[kMap], key);
  if (version.is(kMaterialized)) (void)batch_->Delete(db_->impl_->families_[kPages], key);
}

void VersionDb::Batch::remove_space(SpaceId space) {
  const std::string begin = internal::version_key(PageId{space.value, 0}, Llsn{});
  std::string end = internal::version_key(PageId{space.value, UINT32_MAX}, Llsn{UINT64_MAX});
  end.push_back('\0');  // behind the last key
  for (const Family family : {kMap, kPages})
    (void)batch_->DeleteRange(db_->impl_->families_[family], begin, end);
}

void VersionDb::Batch::put_mark(Mark kind, StreamId stream, const StreamMark& mark) {
  const std::string key = internal::mark_key(kind, stream);
  (void)batch_->Put(db_->impl_->families_[kMarks], key,
                    internal::seal_value(key, internal::encode_mark(mark)));
}

void VersionDb::Batch::put_dropped(const DroppedSpace& dropped) {
  const std::string key = internal::dropped_key(dropped.space);
  (void)batch_->Put(db_->impl_->families_[kMarks], key,
                    internal::seal_value(key, internal::encode_dropped(dropped)));
}

void VersionDb::Batch::put_horizon(Llsn horizon) {
  const std::string key = internal::horizon_key();
  (void)batch_->Put(db_->impl_->families_[kMarks], key,
                    internal::seal_value(key, internal::encode_llsn(horizon)));
}

void VersionDb::Batch::put_broken(const BrokenPage& broken) {
  const std::string key = internal::broken_key(broken.page_id);
  (void)batch_->Put(db_->impl_->families_[kMarks], key,
                    internal::seal_value(key, internal::encode_broken(broken)));
}

void VersionDb::Batch::remove_broken(PageId page) {
  (void)batch_->Delete(db_->impl_->families_[kMarks], internal::broken_key(page));
}

bool VersionDb::Batch::empty() const { return batch_->Count() == 0; }
size_t VersionDb::Batch::bytes() const { return batch_->GetDataSize(); }
void VersionDb::Batch::clear() { batch_->Clear(); }

// --- the store ---

VersionDb::VersionDb(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VersionDb::~VersionDb() = default;

StatusOr<std::unique_ptr<VersionDb>> VersionDb::open(const VersionDbOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  STRATA_RETURN_IF_ERROR(impl->open());
  return std::unique_ptr<VersionDb>(new VersionDb(std::move(impl)));
}

Status VersionDb::write(Batch* batch) {
  if (batch->empty()) return ok_status();
  return impl_->noted(impl_->db_->Write(without_wal(), batch->batch_.get()), kWriting,
                      "version store: write failed");
}

Status VersionDb::flush() {
  rocksdb::FlushOptions options;
  options.wait = true;
  options.allow_write_stall = true;  // waiting for compaction here would keep marks old
  const std::vector<rocksdb::ColumnFamilyHandle*> all(impl_->families_.begin(),
                                                      impl_->families_.end());
  return impl_->noted(impl_->db_->Flush(options, all), kFlushing, "version store: flush failed");
}

bool VersionDb::is_damaged() const noexcept { return impl_->is_damaged_; }

void VersionDb::note_work(Bytes what, const Status& done) {
  const uint64_t place = kWork - (crc32c(what.data(), what.size()) & 0xffff);
  impl_->note_device(place, done).IgnoreError();  // the caller has it
}

Status VersionDb::try_resume() {
  return from_rocks(impl_->db_->Resume(), "version store: it cannot be written to");
}

Status VersionDb::read_versions(PageId page, std::vector<Version>* versions) {
  versions->clear();
  rocksdb::ReadOptions options;
  options.prefix_same_as_start = true;
  const std::unique_ptr<rocksdb::Iterator> it(
      impl_->db_->NewIterator(options, impl_->families_[kMap]));
  for (it->Seek(internal::version_key(page, Llsn{})); it->Valid(); it->Next()) {
    PageId found;
    Version version;
    if (!internal::parse_version_key(bytes_of(it->key()), &found, &version.llsn))
      return impl_->damaged("a key of the map");
    if (found != page) break;
    if (!internal::decode_version(bytes_of(it->value()), version.llsn, &version))
      return impl_->damaged("the map entry of " + name_of(page, version.llsn));
    versions->push_back(version);
  }
  return impl_->noted(it->status(), page.packed(), "version map of " + name_of(page, Llsn{}));
}

Status VersionDb::read_page(PageId page, Llsn llsn, char* out) {
  rocksdb::PinnableSlice value;
  Status found;
  for (uint32_t tries = 0; tries < kPageReadsMax; ++tries) {
    value.Reset();
    found = from_rocks(impl_->db_->Get(rocksdb::ReadOptions(), impl_->families_[kPages],
                                       internal::version_key(page, llsn), &value),
                       "stored version of " + name_of(page, llsn));
    if (!is_device_error(found)) break;
  }
  if (is_device_error(found)) return error_corruption(std::string(found.message()));  // VD7
  STRATA_RETURN_IF_ERROR(found);
  if (value.size() != kPageBytes)
    return error_corruption("stored version of " + name_of(page, llsn) + ": it has " +
                            std::to_string(value.size()) + " bytes");
  std::memcpy(out, value.data(), kPageBytes);
  Status status = verify_page(out, page);
  if (status.ok() && header_of(out)->llsn != llsn.value)
    status = error_corruption("it has llsn " + std::to_string(header_of(out)->llsn));
  if (status.ok() && header_of(out)->type == static_cast<uint8_t>(PageType::kTree))
    status = validate_tree_page(out);
  if (status.ok()) return status;
  return error_corruption("stored version of " + name_of(page, llsn) +
                          " is damaged: " + std::string(status.message()));
}

StatusOr<std::optional<PageId>> VersionDb::scan(PageId from, uint32_t pages_max,
                                                const VisitPage& visit) {
  const std::unique_ptr<rocksdb::Iterator> it(
      impl_->db_->NewIterator(total_order(), impl_->families_[kMap]));
  std::vector<Version> versions;
  std::optional<PageId> current;
  uint32_t visited = 0;
  for (it->Seek(internal::version_key(from, Llsn{})); it->Valid(); it->Next()) {
    PageId page;
    Version version;
    if (!internal::parse_version_key(bytes_of(it->key()), &page, &version.llsn) ||
        !internal::decode_version(bytes_of(it->value()), version.llsn, &version))
      return impl_->damaged("an entry of the map");
    if (current.has_value() && *current != page) {
      STRATA_RETURN_IF_ERROR(visit(*current, versions));
      versions.clear();
      if (++visited == pages_max) return std::optional<PageId>(page);
    }
    current = page;
    versions.push_back(version);
  }
  STRATA_RETURN_IF_ERROR(impl_->noted(it->status(), from.packed(), "version map"));
  if (current.has_value()) STRATA_RETURN_IF_ERROR(visit(*current, versions));
  return std::optional<PageId>();
}

StatusOr<std::vector<SpaceId>> VersionDb::list_spaces() {
  std::vector<SpaceId> spaces;
  const std::unique_ptr<rocksdb::Iterator> it(
      impl_->db_->NewIterator(total_order(), impl_->families_[kMap]));
  for (it->SeekToFirst(); it->Valid();) {
    PageId page;
    Llsn llsn;
    if (!internal::parse_version_key(bytes_of(it->key()), &page, &llsn))
      return impl_->damaged("a key of the map");
    spaces.push_back(SpaceId{page.space});
    if (page.space == UINT32_MAX) break;
    it->Seek(internal::version_key(PageId{page.space + 1, 0}, Llsn{}));
  }
  STRATA_RETURN_IF_ERROR(impl_->noted(it->status(), kListing, "version map"));
  return spaces;
}

StatusOr<std::vector<PageId>> VersionDb::list_pages(PageId from, uint32_t pages_max) {
  std::vector<PageId> pages;
  const std::unique_ptr<rocksdb::Iterator> it(
      impl_->db_->NewIterator(total_order(), impl_->families_[kMap]));
  for (it->Seek(internal::version_key(from, Llsn{})); it->Valid() && pages.size() < pages_max;) {
    PageId page;
    Llsn llsn;
    if (!internal::parse_version_key(bytes_of(it->key()), &page, &llsn))
      return impl_->damaged("a key of the map");
    pages.push_back(page);
    // The next page's first version; a page with many is passed over at once.
    std::string behind = internal::version_key(page, Llsn{UINT64_MAX});
    behind.push_back('\0');
    it->Seek(behind);
  }
  STRATA_RETURN_IF_ERROR(impl_->noted(it->status(), from.packed(), "version map"));
  return pages;
}

StatusOr<std::optional<StreamMark>> VersionDb::read_mark(Mark kind, StreamId stream) {
  STRATA_ASSIGN_OR_RETURN(const auto payload, impl_->get_mark(internal::mark_key(kind, stream)));
  if (!payload.has_value()) return std::optional<StreamMark>();
  StreamMark mark;
  if (!internal::decode_mark(*payload, &mark)) return impl_->damaged("the mark of a stream");
  return std::optional<StreamMark>(mark);
}

StatusOr<std::vector<StreamId>> VersionDb::list_marked() {
  std::vector<StreamId> all;
  STRATA_RETURN_IF_ERROR(
      impl_->for_each_mark(internal::replayed_prefix(), [&all](Bytes key, Bytes /*payload*/) {
        return internal::decode_marked(key, &all.emplace_back());
      }));
  return all;
}

StatusOr<std::vector<DroppedSpace>> VersionDb::read_dropped() {
  std::vector<DroppedSpace> all;
  STRATA_RETURN_IF_ERROR(
      impl_->for_each_mark(internal::dropped_prefix(), [&all](Bytes key, Bytes payload) {
        return internal::decode_dropped(key, payload, &all.emplace_back());
      }));
  return all;
}

StatusOr<std::vector<BrokenPage>> VersionDb::read_broken() {
  std::vector<BrokenPage> all;
  STRATA_RETURN_IF_ERROR(
      impl_->for_each_mark(internal::broken_prefix(), [&all](Bytes key, Bytes payload) {
        return internal::decode_broken(key, payload, &all.emplace_back());
      }));
  return all;
}

StatusOr<Llsn> VersionDb::read_horizon() {
  STRATA_ASSIGN_OR_RETURN(const auto payload, impl_->get_mark(internal::horizon_key()));
  Llsn horizon;
  if (payload.has_value() && !internal::decode_llsn(*payload, &horizon))
    return impl_->damaged("the horizon");
  return horizon;
}

uint64_t VersionDb::disk_bytes() const {
  uint64_t total = 0;
  for (const Family family : {kMap, kPages}) {
    for (const char* property : {"rocksdb.total-sst-files-size", "rocksdb.total-blob-file-size"}) {
      uint64_t bytes = 0;
      if (impl_->db_->GetIntProperty(impl_->families_[family], property, &bytes)) total += bytes;
    }
  }
  return total;
}

uint64_t VersionDb::pages_estimate() const {
  uint64_t keys = 0;
  (void)impl_->db_->GetIntProperty(impl_->families_[kPages], "rocksdb.estimate-num-keys", &keys);
  return keys;
}

Status VersionDb::destroy(const VersionDbOptions& options) {
  const std::unique_ptr<rocksdb::Env> own =
      options.files == nullptr ? nullptr : make_rocks_env(options.files);
  rocksdb::Env* const env = own == nullptr ? rocksdb::Env::Default() : own.get();
  std::vector<std::string> names;
  const rocksdb::Status listed = env->GetChildren(options.directory, &names);
  if (listed.IsNotFound() || listed.IsPathNotFound()) return ok_status();
  STRATA_RETURN_IF_ERROR(from_rocks(listed, "version store in " + options.directory));
  for (const std::string& name : names) {
    if (name == "." || name == "..") continue;
    STRATA_RETURN_IF_ERROR(from_rocks(env->DeleteFile(options.directory + "/" + name),
                                      "version store: " + name + " cannot be removed"));
  }
  // A power loss does not bring them back among the files of the next store.
  std::unique_ptr<rocksdb::Directory> directory;
  rocksdb::Status synced = env->NewDirectory(options.directory, &directory);
  if (synced.ok()) synced = directory->Fsync();
  return from_rocks(synced, "version store in " + options.directory);
}

bool VersionDb::map_was_rebuilt() const noexcept { return impl_->map_was_rebuilt_; }

Status VersionDb::lose_map() {
  const std::string key = internal::map_whole_key();
  STRATA_RETURN_IF_ERROR(
      from_rocks(impl_->db_->Delete(without_wal(), impl_->families_[kMarks], key), "version map"));
  STRATA_RETURN_IF_ERROR(flush());
  STRATA_RETURN_IF_ERROR(
      from_rocks(impl_->db_->DropColumnFamily(impl_->families_[kMap]), "version map"));
  (void)impl_->db_->DestroyColumnFamilyHandle(impl_->families_[kMap]);
  impl_->families_[kMap] = nullptr;
  return ok_status();
}

}  // namespace strata::storenode
