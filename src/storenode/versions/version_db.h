// What a page store keeps in RocksDB: the version map, stored versions and progress marks, one
// column family each (docs/data_formats.md). Thread-safe.
//
//   VD1  No write-ahead log: the quorum's log is the log. A crash leaves what the last flush made
//        durable, a prefix of the batches in the order of write(), the same for all families.
//   VD2  So a mark that is written after (or with) what it stands for is never durable before it.
//   VD3  A batch is there as a whole or not at all.
//   VD4  Every page read is verified: checksum, identity, llsn, layout. kDataLoss names page and
//        llsn.
//   VD5  A map that is lost is rebuilt from the keys of the stored versions; what was not stored
//        comes from the log (storenode/replay).
//   VD6  Damage of anything but a page is remembered (is_damaged()): no read and no write of the
//        same place will go better, so only another store in its place is a remedy.
//   VD7  So is a place of the disk that goes on refusing to be read or written (device_errors.h). A
//        page that cannot be read is damaged like one whose bytes are wrong (VD4).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "io/file_system.h"
#include "page/page.h"
#include "storenode/versions/version.h"

namespace rocksdb {
class WriteBatch;
}

namespace strata::storenode {

// What the folder was made for; opening it for the other is refused.
enum class StoreLayout : uint8_t {
  kInPlace = 1,   // one version per page, in page files; only marks are kept here
  kVersions = 2,  // many versions per page, kept here
};

// How far a stream has come: the end of a group, and its llsn.
struct StreamMark {
  Lsn lsn;
  Llsn llsn;
  auto operator<=>(const StreamMark&) const = default;
};
enum class Mark : uint8_t {
  kScanned,   // no entry of the map is of a section at or above it; it runs ahead of quick scan
  kReplayed,  // every version of a section below it is stored, or not needed any more, or its entry
              // is in the map; the rest comes from the log, scanned from here on (VM7)
};

struct DroppedSpace {
  SpaceId space;
  Llsn llsn;  // of the group that dropped it
  bool reclaimed = false;
};

// Single mode: a page whose replay failed. It stays so until a section restarts its chain.
struct BrokenPage {
  PageId page_id;
  Llsn llsn;  // of the section that could not be applied
  StreamId stream;
  Lsn lsn;
};

struct VersionDbOptions {
  std::string directory;
  FileSystem* files = nullptr;  // null: RocksDB's own POSIX files
  uint64_t cluster_id = 0;      // stamped; a folder of another cluster is refused
  StoreLayout layout = StoreLayout::kVersions;
  uint64_t memtable_bytes = 64u << 20;  // written together when full; twice that may be in memory
  uint64_t block_cache_bytes = 32u << 20;
  uint32_t background_jobs = 2;
  uint32_t open_files_max = 512;           // kept open
  uint64_t device_errors_us = 10'000'000;  // so long an error of the disk may pass (VD7)
  bool compress_pages = false;             // LZ4
};

class VersionDb {
 public:
  // A list of changes, applied together. Not thread-safe.
  class Batch {
   public:
    Batch();
    ~Batch();
    Batch(Batch&&) noexcept;
    Batch& operator=(Batch&&) noexcept;
    void put_version(PageId page, const Version& version);
    void put_page(PageId page, Llsn llsn, const char* sealed_page);
    void remove_version(PageId page, const Version& version);  // its page, too, if stored
    void remove_space(SpaceId space);                          // versions and pages
    void put_mark(Mark kind, StreamId stream, const StreamMark& mark);
    void put_dropped(const DroppedSpace& dropped);
    void put_horizon(Llsn horizon);
    void put_broken(const BrokenPage& broken);
    void remove_broken(PageId page);
    [[nodiscard]] bool empty() const;
    [[nodiscard]] size_t bytes() const;
    void clear();

   private:
    friend class VersionDb;
    std::unique_ptr<rocksdb::WriteBatch> batch_;
    const VersionDb* db_ = nullptr;
  };

  // Opens or makes the folder. Rebuilds the map if it is lost (VD5). Blocks. Errors: kDataLoss (the
  // folder is damaged; the message says what to do), wrong_database or unsupported (another
  // cluster, another layout, a newer format), kResourceExhausted.
  static StatusOr<std::unique_ptr<VersionDb>> open(const VersionDbOptions& options);
  // Removes all files of a folder that nobody has open, whatever state they are in. Blocks.
  static Status destroy(const VersionDbOptions& options);
  ~VersionDb();
  VersionDb(const VersionDb&) = delete;
  VersionDb& operator=(const VersionDb&) = delete;

  [[nodiscard]] Batch new_batch() const;
  // Applies the batch in memory; durable after flush(), or earlier. May block for RocksDB to keep
  // up, and for disk. Errors: kResourceExhausted, kInternal; call try_resume() before trying again.
  Status write(Batch* batch);
  // Everything written so far is durable after OK. Blocks.
  Status flush();
  // After a failed write whose reason may be gone (a full disk).
  Status try_resume();
  // VD6: the map or the marks could not be read, or a write or flush was refused since compaction
  // had met damage. It stays so, and a store that is opened anew meets it again. Damage of a page
  // that read_page() meets does not count: write() can put another copy in its place. Thread-safe.
  [[nodiscard]] bool is_damaged() const noexcept;
  // VD7, for work that uses other files of the store, too, and is tried again when it fails: what
  // became of it. Thread-safe.
  void note_work(Bytes what, const Status& done);

  // Versions of a page in the order of llsns. Blocks.
  Status read_versions(PageId page, std::vector<Version>* versions);
  // VD4. kNotFound: no such version is stored. kDataLoss also if the file it lies in is gone. The
  // body of a tree page is checked, too: redo may be applied to it. Blocks.
  Status read_page(PageId page, Llsn llsn, char* out);
  // Visits up to `pages_max` pages of the map from `from` on, with all their versions. The id
  // behind the last one; nullopt at the end of the map. Blocks.
  using VisitPage = std::function<Status(PageId, const std::vector<Version>&)>;
  StatusOr<std::optional<PageId>> scan(PageId from, uint32_t pages_max, const VisitPage& visit);

  // Pages of which the map here has a version, in their order, at most `pages_max` from `from` on.
  // Blocks.
  StatusOr<std::vector<PageId>> list_pages(PageId from, uint32_t pages_max);
  // Spaces of which the map here has a page. Blocks.
  StatusOr<std::vector<SpaceId>> list_spaces();
  StatusOr<std::optional<StreamMark>> read_mark(Mark kind, StreamId stream);
  // Streams that have a replayed mark.
  StatusOr<std::vector<StreamId>> list_marked();
  StatusOr<std::vector<DroppedSpace>> read_dropped();
  StatusOr<std::vector<BrokenPage>> read_broken();
  StatusOr<Llsn> read_horizon();

  [[nodiscard]] uint64_t disk_bytes() const;      // files of versions and map
  [[nodiscard]] uint64_t pages_estimate() const;  // stored versions, about
  [[nodiscard]] bool map_was_rebuilt() const noexcept;
  // For tests and repair: forgets the map, as if its files were lost; call before closing.
  Status lose_map();

 private:
  class Impl;
  explicit VersionDb(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::storenode
