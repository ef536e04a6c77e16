#include "clients/memory/pool_set.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "clients/memory/rest_of_batch.h"

namespace strata::clients {

namespace {

// Pages next to each other are read together, so many of them are in one place.
constexpr uint32_t kPagesTogether = 16;

}  // namespace

uint32_t place_of(PageId id, uint32_t pools) noexcept {
  const uint64_t group = (uint64_t{id.space} << 32) | (id.number / kPagesTogether);
  return static_cast<uint32_t>(((mix64(group) >> 32) * pools) >> 32);
}

// --- storage, as each pool sees it ---

class PoolSet::Share final : public StorageBelow {
 public:
  explicit Share(StorageBelow* storage) : storage_(storage) {}
  PageSource* pages() override { return storage_->pages(); }
  Status to_all_through(Through write) override { return storage_->to_all_through(write); }
  void note_written(PageId id, Llsn llsn) override { storage_->note_written(id, llsn); }
  void set_write_again(WriteAgain write_again) override {
    MutexLock lock(mutex_);
    used_ = true;
    write_again_ = std::move(write_again);
    ended_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return under_way_ == 0; });
  }
  proto::PoolAnswer write_again(const proto::PoolTarget& target) {
    WriteAgain write_again;
    {
      const MutexLock lock(mutex_);
      if (!used_) return {true, ok_status()};  // it is not open yet, and has written nothing
      if (!write_again_) return {false, error_peer_down("this node stops")};
      write_again = write_again_;
      ++under_way_;
    }
    proto::PoolAnswer answer = write_again(target);
    const MutexLock lock(mutex_);  // also while it notifies: who waits may end this
    --under_way_;
    ended_.notify_all();
    return answer;
  }

 private:
  StorageBelow* const storage_;
  Mutex mutex_{LatchRank::kLeaf};
  CondVar ended_;
  bool used_ STRATA_GUARDED_BY(mutex_) = false;
  WriteAgain write_again_ STRATA_GUARDED_BY(mutex_);
  uint32_t under_way_ STRATA_GUARDED_BY(mutex_) = 0;  // calls of it
};

// PST5
proto::PoolAnswer PoolSet::write_again(const proto::PoolTarget& target) {
  for (const auto& share : shares_) {
    proto::PoolAnswer answer = share->write_again(target);
    if (!answer.answered || !answer.status.ok()) return answer;
  }
  return {true, ok_status()};
}

// --- begin and end ---

PoolSet::PoolSet(StorageBelow* storage) : storage_(storage), below_(storage->pages()) {}

StatusOr<std::unique_ptr<PoolSet>> PoolSet::open(const MemoryPagesOptions& options,
                                                 const std::vector<Member>& members,
                                                 StorageBelow* storage) {
  STRATA_ASSERT(!members.empty());
  auto set = std::unique_ptr<PoolSet>(new PoolSet(storage));
  PoolSet* const self = set.get();
  for (size_t i = 0; i < members.size(); ++i)
    set->shares_.push_back(std::make_unique<Share>(storage));
  storage->set_write_again([self](const proto::PoolTarget& target) {  //
    return self->write_again(target);
  });
  for (size_t i = 0; i < members.size(); ++i) {
    STRATA_ASSIGN_OR_RETURN(
        auto pool,
        MemoryPageSource::open(options, members[i].pool, members[i].naming, set->shares_[i].get()));
    set->pools_.push_back(std::move(pool));
  }
  return set;
}

PoolSet::~PoolSet() {
  STRATA_ASSERT(batches_under_way_.load() == 0);  // they speak of this
  stop();
}

void PoolSet::stop() {
  for (const auto& pool : pools_) pool->stop();
  storage_->set_write_again(nullptr);
}

void PoolSet::do_work() {
  for (const auto& pool : pools_) pool->do_work();
}

void PoolSet::look_after_pools() {
  for (const auto& pool : pools_) pool->look_after_pool();
}

Status PoolSet::ended() const {
  for (const auto& pool : pools_) STRATA_RETURN_IF_ERROR(pool->ended());
  return ok_status();
}

// --- reading ---

Status PoolSet::read(PageId id, Llsn at_least, char* page) {
  return pool_of(id)->read(id, at_least, page);
}

void PoolSet::read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) {
  start_read_batch(ids, count, pages, results, nullptr);
}

void PoolSet::start_read_batch(const PageId* ids, uint32_t count, char* pages, Status* results,
                               ReadBatchDone done) {
  STRATA_ASSERT(count <= kReadBatchPages);
  const auto pools = static_cast<uint32_t>(pools_.size());
  std::array<uint32_t, kReadBatchPages> place, which, missing;
  for (uint32_t i = 0; i < count; ++i) place[i] = place_of(ids[i], pools);
  uint32_t missing_count = 0;
  for (uint32_t at = 0; at < pools; ++at) {
    uint32_t own = 0;
    for (uint32_t i = 0; i < count; ++i)
      if (place[i] == at) which[own++] = i;
    if (own == 0) continue;
    const uint32_t rest = pools_[at]->read_from_pool(ids, which.data(), own, pages, results,
                                                     missing.data() + missing_count);
    pools_[at]->count_from_storage(rest);
    missing_count += rest;
  }
  if (missing_count == 0) {
    if (done) done();
    return;
  }
  std::sort(missing.begin(), missing.begin() + missing_count);
  if (done) {
    batches_under_way_.fetch_add(1);
    done = [this, done = std::move(done)]() mutable {
      batches_under_way_.fetch_sub(1);
      done();  // after it this may be gone
    };
  }
  read_rest(
      below_, {ids, count, pages, results}, {missing.data(), missing_count},
      [this](PageId id, const char* page) { pool_of(id)->keep_copy(id, page); }, std::move(done));
}

// --- writing ---

Status PoolSet::write_batch(const PageId* ids, uint32_t count, const char* pages, bool* ok) {
  std::array<PageChanges, kWriteBatchPages> changes;
  STRATA_ASSERT(count <= changes.size());
  changes.fill({Lsn{1}, Lsn{1}});
  return write_changed(ids, changes.data(), count, pages, ok);
}

// One call to each memory node that has some of them.
Status PoolSet::write_changed(const PageId* ids, const PageChanges* changes, uint32_t count,
                              const char* pages, bool* ok) {
  STRATA_ASSERT(count <= kWriteBatchPages);
  const auto pools = static_cast<uint32_t>(pools_.size());
  std::array<uint32_t, kWriteBatchPages> place;
  for (uint32_t i = 0; i < count; ++i) place[i] = place_of(ids[i], pools);
  if (std::all_of(place.begin(), place.begin() + count,
                  [&](uint32_t at) { return at == place[0]; }))
    return count == 0 ? ok_status()
                      : pools_[place[0]]->write_changed(ids, changes, count, pages, ok);
  std::fill(ok, ok + count, false);
  const AlignedBytes bytes(size_t{count} * kPageBytes);
  std::array<PageId, kWriteBatchPages> some;
  std::array<PageChanges, kWriteBatchPages> some_changes;
  Status first_error;
  for (uint32_t at = 0; at < pools; ++at) {
    std::array<bool, kWriteBatchPages> written{};
    uint32_t own = 0;
    for (uint32_t i = 0; i < count; ++i) {
      if (place[i] != at) continue;
      some[own] = ids[i];
      some_changes[own] = changes[i];
      std::copy_n(pages + size_t{i} * kPageBytes, kPageBytes,
                  bytes.get() + size_t{own} * kPageBytes);
      ++own;
    }
    if (own == 0) continue;
    const Status status = pools_[at]->write_changed(some.data(), some_changes.data(), own,
                                                    bytes.get(), written.data());
    if (first_error.ok()) first_error = status;
    own = 0;
    for (uint32_t i = 0; i < count; ++i)
      if (place[i] == at) ok[i] = written[own++];
  }
  return first_error;
}

// --- checkpoints ---

Status PoolSet::sync() {
  for (const auto& pool : pools_) STRATA_RETURN_IF_ERROR(pool->sync());
  return ok_status();
}

// PST3
Status PoolSet::sync_below(Lsn floor) {
  for (const auto& pool : pools_) STRATA_RETURN_IF_ERROR(pool->sync_below(floor));
  return ok_status();
}

// PST2. What went past the pools is durable before any of them notes anything: one that is not
// named any more has no say at the next start.
StatusOr<bool> PoolSet::publish_memory_checkpoint(const MemoryCheckpoint& at) {
  STRATA_RETURN_IF_ERROR(ended());
  for (const auto& pool : pools_) STRATA_RETURN_IF_ERROR(pool->sync_direct_writes());
  bool any = false;
  for (const auto& pool : pools_) {
    STRATA_ASSIGN_OR_RETURN(const bool kept, pool->publish_memory_checkpoint(at));
    any = any || kept;
  }
  return any;
}

// PST2. A pool that was not named has no page that counts. One that was, and is lost, has made the
// notes of the others void.
std::optional<MemoryCheckpoint> PoolSet::memory_checkpoint() {
  std::optional<MemoryCheckpoint> least;
  for (const auto& pool : pools_) {
    if (!pool->attachment().found()) continue;
    const std::optional<MemoryCheckpoint> found = pool->memory_checkpoint();
    if (!found.has_value()) return std::nullopt;
    if (!least.has_value() || found->lsn < least->lsn) least = found;
  }
  return least;
}

// Storage deletes it once, when nothing of it is in any pool or on its way from there.
Status PoolSet::delete_space(SpaceId space) {
  for (const auto& pool : pools_) STRATA_RETURN_IF_ERROR(pool->forget_space(space));
  return below_->delete_space(space);
}

}  // namespace strata::clients
