// Which versions each page has: in memory those of the pages used lately, in RocksDB those that
// are stored and whatever memory had no room for. Thread-safe; one thread at a time may add() and
// reclaim_space() (ingest).
//
//   VM1  A version is in the map before the scanned llsn of its stream says so (S3): whoever
//        sees that a group is scanned finds its versions.
//   VM2  kMaterialized is set only once the page can be read; it is never cleared.
//   VM3  A page's versions are a suffix of all it ever had: only the oldest ones go. What a late
//        stream adds below the oldest kept one (it is behind a restart of the chain) is not seen.
//   VM4  Trimming at horizon h removes the versions older than the newest one at or below h, and
//        only those. While that one is not stored yet, what it is made from stays, too. The oldest
//        kept one says that there were others, in RocksDB no later than they are gone.
//   VM5  The horizon only grows, and is written before anything is removed by it.
//   VM6  The lists in memory take about `memory_bytes`; a list may leave memory at any time, once
//        its entries are written. Those with entries to be written take three quarters at most.
//   VM7  An entry is written when its page is stored, when it becomes the oldest kept one, by
//        settle(), or when its list leaves memory; until then it is in memory only. A crash loses
//        it, and quick scan finds it again: so the replayed mark of its stream must not be written
//        beyond its section before it is stored, collected or settled.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "storenode/versions/page_cache.h"
#include "storenode/versions/version.h"
#include "storenode/versions/version_db.h"

namespace strata::storenode {

using VersionList = std::span<const Version>;  // ascending llsn

// --- pure functions over a page's versions ---

// Index of the newest version at or below `at`; -1: none.
[[nodiscard]] ptrdiff_t newest_at(VersionList list, Llsn at) noexcept;
// How many of the oldest versions may go (VM4).
[[nodiscard]] size_t collectable(VersionList list, Llsn horizon) noexcept;

struct VersionMapCounters {
  std::atomic<uint64_t> hits{0}, misses{0};   // lists found in memory, or read
  std::atomic<uint64_t> added{0};             // versions
  std::atomic<uint64_t> stored{0};            // versions whose pages were written
  std::atomic<uint64_t> collected{0};         // versions removed by the horizon
  std::atomic<uint64_t> collected_stored{0};  // of these, stored ones
  std::atomic<uint64_t> spaces_reclaimed{0};
  std::atomic<uint64_t> written{0};  // entries put into the version db
  std::atomic<uint64_t> settled{0};  // of these, by settle() or to make room
};

class VersionMap {
 public:
  struct NewVersion {
    PageId page;
    Version version;
  };
  struct MadeVersion {
    Llsn llsn;
    PageRef page;  // sealed
  };

  VersionMap(VersionDb* db, uint64_t memory_bytes);
  ~VersionMap();
  VersionMap(const VersionMap&) = delete;
  VersionMap& operator=(const VersionMap&) = delete;

  // Reads horizon and dropped spaces. Once, before anything else. Blocks.
  Status open();

  // Adds versions the map does not have, in memory (VM7); those of a page in their order. Appends
  // each page to *pages once, in any order, but for those of reclaimed spaces. Blocks when room has
  // to be made; on failure nothing is added.
  Status add(std::span<const NewVersion> versions, std::vector<PageId>* pages);

  // Calls `look` with the page's versions, under a latch: it must be short and call nothing.
  // Blocks when they are not in memory.
  Status inspect(PageId page, absl::FunctionRef<void(VersionList)> look);

  // The same for a thread that must not wait. False: the versions are not in memory, somebody has a
  // latch, or the space is reclaimed; `look` was not called.
  [[nodiscard]] bool inspect_at_hand(PageId page, absl::FunctionRef<void(VersionList)> look);

  // Stores pages of versions that are in the map (others are passed over) and trims the page's
  // list, or lets that wait until it is worth while. Blocks. On failure nothing is changed.
  enum class Trim { kNever, kNow, kWhenWorthwhile };
  Status store(PageId page, std::span<const MadeVersion> made, Trim trim);
  // Trims the page's list at the horizon (VM4). Blocks.
  Status trim(PageId page);
  // Writes the page's entries up to `to` that are in memory only (VM7). Blocks.
  Status settle(PageId page, Llsn to);

  [[nodiscard]] Llsn horizon() const noexcept { return Llsn{horizon_.load()}; }
  // VM5; a lower one than before is ignored. Blocks.
  Status raise_horizon(Llsn horizon);

  // --- dropped spaces ---
  // Remembers that the group with `llsn` drops the space, if it is not known yet. The caller puts
  // what is returned into his batch.
  DroppedSpace note_dropped(SpaceId space, Llsn llsn);
  // Spaces whose drop is at or below the horizon and that are not reclaimed yet. Costs nothing as
  // long as neither horizon nor drops have changed since the last call that found all reclaimed.
  [[nodiscard]] std::vector<DroppedSpace> reclaimable();
  // Removes everything of the space. Blocks. What add() brings of it later is not seen any more.
  Status reclaim_space(const DroppedSpace& dropped);
  [[nodiscard]] bool is_reclaimed(SpaceId space) const;
  // Not reclaimed, without waiting: false also if somebody has the latch.
  [[nodiscard]] bool is_surely_there(SpaceId space) const;
  // Of a reclaimed space: the llsn of its drop. Zero: it is not reclaimed.
  [[nodiscard]] Llsn reclaimed_at(SpaceId space) const;

  [[nodiscard]] bool is_dropped(SpaceId space) const;
  // Reclaimed spaces that were dropped behind `llsn`.
  [[nodiscard]] std::vector<DroppedSpace> reclaimed_behind(Llsn llsn) const;

  // Overwrites the stored page of a version that is damaged by a peer's; or stores one that could
  // not be made. kNotFound: there is no such version. Blocks.
  Status replace(PageId page, const MadeVersion& good);

  // Spaces of which the map has a page. Blocks.
  StatusOr<std::vector<SpaceId>> list_spaces();

  Status drop_memory();  // for tests: writes and forgets all lists
  [[nodiscard]] uint64_t memory_bytes() const noexcept { return bytes_.load(); }
  // Entries that are in memory only.
  [[nodiscard]] uint64_t unwritten() const noexcept { return unwritten_.load(); }
  [[nodiscard]] const VersionMapCounters& counters() const noexcept { return counters_; }

 private:
  struct PageEntry {
    explicit PageEntry(PageId page) : page(page) {}
    const PageId page;
    std::vector<Version> list;
    bool whole = false;      // not: the version db may have more of its versions
    bool loading = false;    // somebody reads them
    bool changing = false;   // somebody writes; they take turns
    uint32_t unwritten = 0;  // versions with kUnwritten
    // As accounted for:
    bool dirty = false;  // has unwritten ones
    uint64_t bytes = 0;
    std::list<PageEntry*>::iterator place;
  };
  struct Shard {
    Mutex mutex{LatchRank::kVersionMap};
    CondVar changed;  // an entry is loaded, or not changing any more
    absl::flat_hash_map<PageId, std::unique_ptr<PageEntry>, std::hash<PageId>> entries
        STRATA_GUARDED_BY(mutex);
    std::list<PageEntry*> clean STRATA_GUARDED_BY(mutex);  // used last in front
    std::list<PageEntry*> dirty STRATA_GUARDED_BY(mutex);  // likewise
    uint64_t bytes STRATA_GUARDED_BY(mutex) = 0;
    uint64_t dirty_bytes STRATA_GUARDED_BY(mutex) = 0;  // of these
  };
  static constexpr size_t kShards = 16;

  static size_t shard_number(PageId page) { return std::hash<PageId>()(page) >> 60; }
  Shard& shard_of(PageId page) { return shards_[shard_number(page)]; }
  // --- lists in memory ---
  PageEntry* make_entry(Shard* shard, PageId page) STRATA_REQUIRES(shard->mutex);
  void account(Shard* shard, PageEntry* held) STRATA_REQUIRES(shard->mutex);
  void forget(Shard* shard, PageEntry* held) STRATA_REQUIRES(shard->mutex);
  void evict(Shard* shard) STRATA_REQUIRES(shard->mutex);
  StatusOr<PageEntry*> loaded(Shard* shard, PageId page) STRATA_REQUIRES(shard->mutex);
  Status load(Shard* shard, PageEntry* held) STRATA_REQUIRES(shard->mutex);
  struct PageVersions;
  static std::vector<PageVersions> by_shard_and_page(std::span<const NewVersion> versions,
                                                     std::vector<const Version*>* in_order);
  static void warm(Shard* shard, std::span<const PageVersions> pages) STRATA_REQUIRES(shard->mutex);
  void add_to_page(Shard* shard, const PageVersions& added) STRATA_REQUIRES(shard->mutex);
  bool place_version(PageEntry* held, const Version& version);
  struct Spill;
  Status make_room(Shard* shard, uint64_t dirty_bytes_max) STRATA_REQUIRES(shard->mutex);
  Spill plan_spill(Shard* shard, uint64_t dirty_bytes_max) STRATA_REQUIRES(shard->mutex);
  void finish_spill(Shard* shard, const Spill& spill, const Status& status)
      STRATA_REQUIRES(shard->mutex);
  void mark_written(PageEntry* held, std::span<const Llsn> written);
  void count_written(PageEntry* held, uint32_t entries);
  void count_unwritten(PageEntry* held);
  // --- changes of a page ---
  struct Wish {
    std::span<const MadeVersion> made = {};
    Trim trim = Trim::kNever;
    Llsn settle_to = {};
  };
  struct Change;
  Status change(PageId page, const Wish& wish);
  StatusOr<PageEntry*> begin_change(Shard* shard, PageId page) STRATA_REQUIRES(shard->mutex);
  Status end_change(Shard* shard, PageEntry* held, Change* change) STRATA_REQUIRES(shard->mutex);
  Change plan_change(PageEntry* held, const Wish& wish);
  void finish_change(PageEntry* held, const Change& change, const Status& status);
  bool set_reclaimed(SpaceId space, bool reclaimed);
  void wait_until_idle(SpaceId space);
  void forget_space(SpaceId space);

  VersionDb* const db_;
  const uint64_t shard_bytes_max_;
  std::array<Shard, kShards> shards_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> unwritten_{0};
  std::atomic<uint64_t> horizon_{0};
  mutable Mutex dropped_mutex_{LatchRank::kLeaf};
  std::unordered_map<SpaceId, DroppedSpace> dropped_ STRATA_GUARDED_BY(dropped_mutex_);
  std::atomic<uint64_t> reclaimed_{0};  // of these; most databases have none
  std::atomic<bool> reclaim_due_{true};
  VersionMapCounters counters_;
};

}  // namespace strata::storenode
