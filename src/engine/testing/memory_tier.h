// Pages in two tiers, as a memory node before storage nodes has them (LegoBase, §5): a pool that
// outlives the kernel unless it is lost, and storage whose unsynced writes a power loss takes. It
// does late and at random what the real one does by itself. One thread.
//
// It proves on the way that a page is never older than what was given to it, in whatever tier it
// is, and that everything below a checkpoint is where that checkpoint says.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/rng.h"
#include "io/file_system.h"
#include "page/page.h"
#include "pagefile/local_page_source.h"

namespace strata::engine::testing {

class MemoryTier final : public PageSource {
 public:
  explicit MemoryTier(uint64_t seed) : rng_(seed) { open_storage(); }

  // The kernel dies, and perhaps the pool or the storage's power with it.
  void crash(uint64_t seed) {
    if (dead_) return;
    dead_ = true;
    Rng rng(seed);
    if (rng.one_in(3)) {
      disk_->crash(seed);
      disk_lost_ = true;
    }
    pool_lost_ = rng.one_in(4);
  }
  void revive() {
    dead_ = false;
    known_.clear();  // what a crash could take back is in the log
    if (disk_lost_) open_storage();
    disk_lost_ = false;
    for (auto& [id, slot] : pool_) slot.written = false;  // storage may have lost it
    if (!pool_lost_) return;
    pool_.clear();
    checkpoint_.reset();
    pool_lost_ = false;
    ++pools_lost;
  }
  uint64_t pools_lost = 0, memory_starts = 0, direct_writes = 0;

  Status read(PageId id, Llsn at_least, char* page) override {
    STRATA_RETURN_IF_ERROR(alive());
    if (const auto slot = pool_.find(id); slot != pool_.end()) {
      std::memcpy(page, slot->second.bytes.data(), kPageBytes);
      return verify_page(page, id);
    }
    const Status status = storage_->read(id, at_least, page);
    if (const auto known = known_.find(id); status.ok() && known != known_.end()) {
      EXPECT_GE(Llsn{header_of(page)->llsn}, known->second) << id.space << ":" << id.number;
    }
    return status;
  }
  Status write(PageId, const char*) override {
    ADD_FAILURE() << "a page without the place of its changes";
    return error_internal("not for this source");
  }
  Status write_changed(const PageId* ids, const PageChanges* changes, uint32_t count,
                       const char* pages, bool* ok) override {
    for (uint32_t i = 0; i < count; ++i) {
      const Status status = take(ids[i], changes[i], pages + size_t{i} * kPageBytes);
      ok[i] = status.ok();
      STRATA_RETURN_IF_ERROR(status);
    }
    return ok_status();
  }
  Status sync() override {
    STRATA_RETURN_IF_ERROR(alive());
    return storage_->sync();
  }
  Status sync_below(Lsn floor) override {
    STRATA_RETURN_IF_ERROR(alive());
    EXPECT_TRUE(checkpoint_.has_value() && checkpoint_->lsn >= floor);
    for (auto& [id, slot] : pool_)
      if (slot.dirty_from < floor) STRATA_RETURN_IF_ERROR(write_slot(id, &slot));
    STRATA_RETURN_IF_ERROR(sync_storage());
    for (const auto& [id, slot] : pool_) EXPECT_GE(slot.dirty_from, floor);
    return ok_status();
  }
  [[nodiscard]] bool has_memory_tier() const override { return true; }
  StatusOr<bool> publish_memory_checkpoint(const MemoryCheckpoint& at) override {
    STRATA_RETURN_IF_ERROR(alive());
    if (wrote_directly_) STRATA_RETURN_IF_ERROR(sync_storage());
    checkpoint_ = at;
    STRATA_RETURN_IF_ERROR(work_a_little());
    return true;
  }
  std::optional<MemoryCheckpoint> memory_checkpoint() override {
    if (checkpoint_.has_value()) ++memory_starts;
    return checkpoint_;
  }
  Status create_space(SpaceId space) override {
    STRATA_RETURN_IF_ERROR(alive());
    return storage_->create_space(space);
  }
  Status delete_space(SpaceId space) override {
    STRATA_RETURN_IF_ERROR(alive());
    const auto of_space = [space](const auto& page) { return page.first.space == space.value; };
    std::erase_if(pool_, of_space);
    std::erase_if(known_, of_space);
    return storage_->delete_space(space);
  }
  StatusOr<bool> space_exists(SpaceId space) override {
    STRATA_RETURN_IF_ERROR(alive());
    return storage_->space_exists(space);
  }
  StatusOr<std::vector<SpaceId>> list_spaces() override {
    STRATA_RETURN_IF_ERROR(alive());
    return storage_->list_spaces();
  }
  Status grow_space(SpaceId space, uint32_t pages) override {
    STRATA_RETURN_IF_ERROR(alive());
    return storage_->grow_space(space, pages);
  }
  [[nodiscard]] bool needs_page_images() const override { return false; }

 private:
  static constexpr size_t kSlots = 60;
  struct Slot {
    std::string bytes;
    Lsn dirty_from{UINT64_MAX};  // the largest: storage has it
    bool written = false;        // and not synced
  };

  [[nodiscard]] Status alive() const {
    return dead_ ? error_peer_down("this node is dead") : ok_status();
  }
  void open_storage() {
    storage_.reset();
    if (disk_ == nullptr) {
      disk_ = make_sim_file_system();
      EXPECT_TRUE(disk_->make_directory("/storage").ok());
    }
    LocalPageSourceOptions options;
    options.directory = "/storage";
    auto opened = open_local_page_source(disk_.get(), options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    storage_ = std::move(opened).value();
    wrote_directly_ = false;
  }
  Status take(PageId id, const PageChanges& changes, const char* page) {
    STRATA_RETURN_IF_ERROR(alive());
    EXPECT_LE(changes.first, changes.end);
    const Llsn llsn{header_of(page)->llsn};
    const auto found = pool_.find(id);
    if (found == pool_.end() && (pool_.size() >= kSlots || rng_.one_in(10))) {
      STRATA_RETURN_IF_ERROR(store(id, page));
      wrote_directly_ = true;
      ++direct_writes;
      known_[id] = llsn;
      return work_a_little();
    }
    Slot& slot = pool_[id];
    if (!slot.bytes.empty()) {
      EXPECT_GE(llsn, Llsn{header_of(slot.bytes.data())->llsn});
    }
    slot.bytes.assign(page, kPageBytes);
    slot.dirty_from = std::min(slot.dirty_from, changes.first);
    slot.written = false;
    known_[id] = llsn;
    return work_a_little();
  }
  Status store(PageId id, const char* page) {
    const AlignedBytes copy(kPageBytes);
    std::memcpy(copy.get(), page, kPageBytes);
    return storage_->write(id, copy.get());
  }
  Status write_slot(PageId id, Slot* slot) {
    STRATA_RETURN_IF_ERROR(store(id, slot->bytes.data()));
    slot->written = true;
    return ok_status();
  }
  Status sync_storage() {
    STRATA_RETURN_IF_ERROR(storage_->sync());
    wrote_directly_ = false;
    for (auto& [id, slot] : pool_)
      if (slot.written) slot = {std::move(slot.bytes)};
    return ok_status();
  }
  // Writes some slot, syncs, or drops a clean one.
  Status work_a_little() {
    if (pool_.empty() || !rng_.one_in(4)) return ok_status();
    auto one = pool_.begin();
    std::advance(one, static_cast<ptrdiff_t>(rng_.below(pool_.size())));
    if (rng_.one_in(10)) return sync_storage();
    if (one->second.dirty_from == Lsn{UINT64_MAX}) {
      pool_.erase(one);
      return ok_status();
    }
    return write_slot(one->first, &one->second);
  }

  Rng rng_;
  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<PageSource> storage_;
  std::map<PageId, Slot> pool_;
  std::map<PageId, Llsn> known_;  // given to this source in this life
  std::optional<MemoryCheckpoint> checkpoint_;
  bool wrote_directly_ = false;
  std::atomic<bool> dead_{false};
  bool disk_lost_ = false, pool_lost_ = false;
};

}  // namespace strata::engine::testing
