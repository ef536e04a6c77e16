// Reading and writing. Checkpoints, the memory node's writes to storage, and what is done in the
// background are in memory_page_source_tasks.cc.
#include "clients/memory/memory_page_source.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/page_name.h"
#include "clients/memory/rest_of_batch.h"
#include "proto/methods.h"

namespace strata::clients {

namespace {

constexpr uint32_t kRoundsMax = 16;  // of reading a page that moves from slot to slot

void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

Status lost_page(PageId id, const char* what) {
  return error_corruption(name_of(id) + " " + what +
                          " on the memory node, and storage lacks changes of it" +
                          std::string(kRemedyMark) +
                          "restart this server and the memory node's pool: recovery makes it "
                          "from storage and the log");
}

}  // namespace

MemoryPageSource::MemoryPageSource(MemoryPagesOptions options, RemotePool* pool, PoolNaming* naming,
                                   StorageBelow* storage)
    : options_(std::move(options)),
      pool_(pool),
      storage_(storage),
      below_(storage->pages()),
      copies_(below_->replays_log()),
      staged_(options_.staged_pages_max),
      attachment_(
          {.timeout_us = options_.timeout_us, .pause_us = options_.pause_us, .copies = copies_},
          pool, naming, &directory_, [this] { attached_anew(); }),
      batch_(size_t{proto::kPoolImagesMax} * kPageBytes) {}

StatusOr<std::unique_ptr<MemoryPageSource>> MemoryPageSource::open(MemoryPagesOptions options,
                                                                   RemotePool* pool,
                                                                   PoolNaming* naming,
                                                                   StorageBelow* storage) {
  auto source = std::unique_ptr<MemoryPageSource>(
      new MemoryPageSource(std::move(options), pool, naming, storage));
  MemoryPageSource* const self = source.get();
  STRATA_RETURN_IF_ERROR(self->attachment_.open());
  storage->set_write_again([self](const proto::PoolTarget& target) {  //
    return self->write_again(target);
  });
  // MS10: a list would bring back what is dropped meanwhile.
  if (!self->copies_ || self->options_.founding) self->start_threads();
  return source;
}

void MemoryPageSource::start_threads() {
  if (!options_.keeps_up || registrar_.joinable()) return;
  register_wanted_.store(true);  // there is a list to be read
  registrar_ = std::thread([this] { register_main(); });
  reliever_ = std::thread([this] { relieve_main(); });
}

MemoryPageSource::~MemoryPageSource() {
  STRATA_ASSERT(batches_under_way_.load() == 0);  // they speak of this
  stop();
}

void MemoryPageSource::stop() {
  {
    const MutexLock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
  }
  attachment_.stop();
  changed_.notify_all();
  if (registrar_.joinable()) registrar_.join();
  if (reliever_.joinable()) reliever_.join();
  storage_->set_write_again(nullptr);
}

Status MemoryPageSource::settle(PoolAttachment::Use* use, const Status& why, uint64_t begun_us) {
  const uint64_t number = use->number();
  use->end();
  STRATA_RETURN_IF_ERROR(attachment_.settle(number, why, begun_us));
  const bool late = monotonic_us() - begun_us > options_.timeout_us;
  return late && !attachment_.bypassed() ? told_above(why) : ok_status();
}

// --- where a page is ---

// As the memory node knows it.
Status MemoryPageSource::look_up(const std::vector<PageId>& ids,
                                 std::vector<proto::PoolLookupReply::Found>* found, bool* bypass) {
  const uint64_t begun_us = monotonic_us();
  count(counters_.lookups, ids.size());
  for (;;) {
    auto use = attachment_.use();
    if (!use.ok()) return use.status();
    *bypass = use->bypass();
    if (*bypass) {
      found->assign(ids.size(), {});
      return ok_status();
    }
    std::vector<Located> before;
    before.reserve(ids.size());
    for (const PageId id : ids) before.push_back(directory_.find(id));
    auto answer = pool_->lookup(ids);
    if (answer.ok()) {
      for (size_t i = 0; i < ids.size(); ++i) {
        // MS1: nothing but the loss of the pool's content takes a dirty page from it.
        if (!(*answer)[i].there && before[i].has_value() && before[i]->dirty) continue;
        directory_.looked_up(ids[i], before[i], (*answer)[i]);
      }
      *found = *std::move(answer);
      return ok_status();
    }
    STRATA_RETURN_IF_ERROR(settle(&*use, answer.status(), begun_us));
  }
}

// at[i]: its slot, if it has one. `ask`: whatever is known here.
Status MemoryPageSource::locate(const PageId* ids, uint32_t count, bool ask, Located* at) {
  STRATA_RETURN_IF_ERROR(attachment_.ended());
  std::vector<PageId> unknown;
  std::array<uint32_t, kReadBatchPages> which;
  uint64_t resets = 0;
  do {
    unknown.clear();
    resets = directory_.resets();
    const bool complete = directory_.complete();
    for (uint32_t i = 0; i < count; ++i) {
      at[i] = directory_.find(ids[i]);
      if (!ask && (at[i].has_value() || complete)) continue;
      which[unknown.size()] = i;
      unknown.push_back(ids[i]);
    }
  } while (directory_.resets() != resets);  // another copy of the pool is used by now
  if (unknown.empty() || attachment_.bypassed()) return ok_status();
  std::vector<proto::PoolLookupReply::Found> found;
  bool bypass = false;
  STRATA_RETURN_IF_ERROR(look_up(unknown, &found, &bypass));
  for (size_t i = 0; i < unknown.size(); ++i) {
    Located& one = at[which[i]];
    if (!bypass && !found[i].there && one.has_value() && one->dirty)
      return lost_page(unknown[i], "is missing");
    one = found[i].there ? Located(found[i].at) : std::nullopt;
  }
  return ok_status();
}

// --- reading ---

void MemoryPageSource::read_located(absl::Span<SlotRead> reads) {
  const uint64_t begin_us = monotonic_us();
  pool_->read_slots(reads);
  count(counters_.get_ns, (monotonic_us() - begin_us) * 1000);
  for (const SlotRead& read : reads) {
    if (read.status.ok()) {
      directory_.used(read.id);
      count(counters_.from_pool);
    } else if (is_conflict(read.status) || is_corruption(read.status)) {
      count(counters_.mismatches);
    }
  }
}

// *elsewhere: the pool does not have it; storage has, with at least *known.
Status MemoryPageSource::read_slot(PageId id, Llsn at_least, char* page, bool* elsewhere,
                                   Llsn* known) {
  const uint64_t begun_us = monotonic_us();
  *elsewhere = false;
  bool ask = !options_.remote_addresses;
  uint32_t mismatches = 0;
  uint64_t resets_then = directory_.resets();
  Located before;
  for (uint32_t round = 0; round < kRoundsMax; ++round) {
    const uint64_t resets = directory_.resets();
    Located at;
    STRATA_RETURN_IF_ERROR(locate(&id, 1, ask, &at));
    if (!at.has_value()) {
      *elsewhere = true;
      return ok_status();
    }
    // PAT2: another copy of the pool, where the page may be in a slot of the same number and
    // generation: what was read before says nothing of this one.
    if (std::exchange(resets_then, resets) != resets || directory_.resets() != resets) {
      mismatches = 0;
      before.reset();
    }
    // The memory node says that this is the page, and has been read so often.
    const bool is_it = ask && before.has_value() && before->slot == at->slot &&
                       before->generation == at->generation;
    if (is_it && mismatches >= kMismatchesMax) {
      count(at->dirty ? counters_.damaged_dirty : counters_.damaged_clean);
      if (at->dirty) return lost_page(id, "is damaged");
      drop_damaged(id, *at);
      *known = at->llsn;
      *elsewhere = true;
      return ok_status();
    }
    ask = !options_.remote_addresses;
    before = at;
    const uint64_t number = attachment_.number();
    SlotRead read{id, *at, page, {}};
    read_located(absl::MakeSpan(&read, 1));
    if (read.status.ok()) {
      if (at->llsn >= at_least) return ok_status();
      return error_corruption(name_of(id) + " is an old version on the memory node, of llsn " +
                              std::to_string(at->llsn.value) + " where " +
                              std::to_string(at_least.value) + " was written");
    }
    if (is_conflict(read.status) || is_corruption(read.status)) {
      if (++mismatches >= kMismatchesMax) ask = true;
      continue;
    }
    STRATA_RETURN_IF_ERROR(attachment_.settle(number, read.status, begun_us));
    if (monotonic_us() - begun_us > options_.timeout_us) return told_above(read.status);
  }
  return error_busy(name_of(id) + " goes from slot to slot of the memory node");
}

// Storage has it. If this does not work out, the next reader finds it damaged once more.
void MemoryPageSource::drop_damaged(PageId id, const proto::PoolSlot& at) {
  if (!staged_.try_begin(id)) return;
  storage_->note_written(id, at.llsn);
  if (auto use = attachment_.use(); use.ok() && !use->bypass()) {
    const auto dropped = pool_->drop({id});
    if (dropped.ok() && (dropped->front().ok() || is_not_found(dropped->front())))
      directory_.erase(id, at);
    if (is_outcome_unknown(dropped.status())) {
      use->doubt({id});
      // The next caller of the pool hears of it, too, and does what is to be done.
      (void)settle(&*use, dropped.status(), monotonic_us());
    }
  }
  staged_.end(&id, 1);
}

Status MemoryPageSource::read_storage(PageId id, Llsn at_least, char* page) {
  count(counters_.from_storage);
  STRATA_RETURN_IF_ERROR(below_->read(id, at_least, page));
  stage(id, page, /*out_of_use=*/false);
  return ok_status();
}

Status MemoryPageSource::read(PageId id, Llsn at_least, char* page) {
  bool elsewhere = false;
  Llsn known;
  STRATA_RETURN_IF_ERROR(read_slot(id, at_least, page, &elsewhere, &known));
  if (!elsewhere) return ok_status();
  return read_storage(id, std::max(at_least, known), page);
}

Status MemoryPageSource::read_version(PageId id, Llsn at_least, Llsn at_most, char* page) {
  if (at_most == Llsn{UINT64_MAX}) return read(id, at_least, page);
  return below_->read_version(id, at_least, at_most, page);
}

// --- batches ---

uint32_t MemoryPageSource::read_from_pool(const PageId* ids, const uint32_t* which, uint32_t count,
                                          char* pages, Status* results, uint32_t* missing) {
  STRATA_ASSERT(count <= kReadBatchPages);
  std::array<PageId, kReadBatchPages> wanted;
  for (uint32_t i = 0; i < count; ++i) wanted[i] = ids[which[i]];
  std::array<Located, kReadBatchPages> at;
  if (const Status status = locate(wanted.data(), count, !options_.remote_addresses, at.data());
      !status.ok()) {
    for (uint32_t i = 0; i < count; ++i) results[which[i]] = status;
    return 0;
  }
  std::array<SlotRead, kReadBatchPages> reads;
  std::array<uint32_t, kReadBatchPages> read;
  uint32_t reads_count = 0, missing_count = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t n = which[i];
    if (!at[i].has_value()) {
      missing[missing_count++] = n;
      continue;
    }
    read[reads_count] = n;
    reads[reads_count++] = {ids[n], *at[i], pages + size_t{n} * kPageBytes, {}};
  }
  if (reads_count != 0) read_located(absl::MakeSpan(reads.data(), reads_count));
  for (uint32_t i = 0; i < reads_count; ++i) results[read[i]] = told_above(reads[i].status);
  return missing_count;
}

void MemoryPageSource::count_from_storage(uint32_t pages) noexcept {
  count(counters_.from_storage, pages);
}

void MemoryPageSource::read_batch(const PageId* ids, uint32_t count_of, char* pages,
                                  Status* results) {
  start_read_batch(ids, count_of, pages, results, nullptr);
}

// Without `done` it blocks until all is read.
void MemoryPageSource::start_read_batch(const PageId* ids, uint32_t count_of, char* pages,
                                        Status* results, ReadBatchDone done) {
  STRATA_ASSERT(count_of <= kReadBatchPages);
  std::array<uint32_t, kReadBatchPages> all;
  std::iota(all.begin(), all.begin() + count_of, 0);
  std::array<uint32_t, kReadBatchPages> missing;
  const uint32_t missing_count =
      read_from_pool(ids, all.data(), count_of, pages, results, missing.data());
  if (missing_count == 0) {
    if (done) done();
    return;
  }
  count_from_storage(missing_count);
  if (done) {
    batches_under_way_.fetch_add(1);
    done = [this, done = std::move(done)]() mutable {
      batches_under_way_.fetch_sub(1);
      done();  // after it this may be gone
    };
  }
  read_rest(
      below_, {ids, count_of, pages, results}, {missing.data(), missing_count},
      [this](PageId id, const char* page) { keep_copy(id, page); }, std::move(done));
}

// MS5
void MemoryPageSource::stage(PageId id, const char* page, bool out_of_use) noexcept {
  if (!attachment_.attached()) return;
  // It would find no slot; those that are dropped make room for what is read later.
  if (is_short() || !staged_.add(id, page, out_of_use)) {
    count(counters_.not_staged);
    if (is_short()) wake(&relief_wanted_);
    return;
  }
  count(counters_.staged);
  wake(&register_wanted_);
}

void MemoryPageSource::evicted(PageId id, const char* page) noexcept {
  if (!attachment_.attached()) return;
  if (directory_.evicted(id)) {
    if (is_short()) wake(&relief_wanted_);
    return;
  }
  if (directory_.complete()) stage(id, page, /*out_of_use=*/true);
}

// --- writing ---

Status MemoryPageSource::write(PageId id, const char* page) {
  bool ok = false;
  return write_batch(&id, 1, page, &ok);
}

Status MemoryPageSource::write_batch(const PageId* ids, uint32_t count_of, const char* pages,
                                     bool* ok) {
  std::array<PageChanges, kWriteBatchPages> changes;
  STRATA_ASSERT(count_of <= changes.size());
  changes.fill({Lsn{1}, Lsn{1}});
  return write_changed(ids, changes.data(), count_of, pages, ok);
}

Status MemoryPageSource::write_changed(const PageId* ids, const PageChanges* changes,
                                       uint32_t count_of, const char* pages, bool* ok) {
  STRATA_ASSERT(count_of <= proto::kPoolImagesMax);
  std::fill(ok, ok + count_of, false);
  if (copies_) {
    std::array<bool, kWriteBatchPages> noted;
    STRATA_RETURN_IF_ERROR(below_->write_batch(ids, count_of, pages, noted.data()));
  }
  staged_.begin(ids, count_of);  // SGP2
  const Status status = put_begun(ids, changes, count_of, pages, ok);
  staged_.end(ids, count_of);
  if (is_short() || directory_.dirty() > directory_.slots() / 2) wake(&relief_wanted_);
  return status;
}

Status MemoryPageSource::put_begun(const PageId* ids, const PageChanges* changes, uint32_t count_of,
                                   const char* pages, bool* ok) {
  const uint64_t begun_us = monotonic_us();
  std::vector<uint32_t> all(count_of);
  std::iota(all.begin(), all.end(), 0);
  std::vector<proto::PoolImage> images;
  images.reserve(count_of);
  for (uint32_t i = 0; i < count_of; ++i)
    images.push_back(copies_ ? proto::PoolImage{ids[i], /*dirty=*/false, {}, {}}
                             : proto::PoolImage{ids[i], true, changes[i].first, changes[i].end});
  for (;;) {
    auto use = attachment_.use();
    if (!use.ok()) return use.status();
    if (use->bypass()) {
      // Storage may have to be told again meanwhile what the pool wrote (write_again()).
      use->end();
      return write_directly(ids, pages, all, ok);
    }
    const auto taken =
        pool_->put(images, Bytes(pages, size_t{count_of} * kPageBytes), options_.durable());
    if (taken.ok()) {
      std::vector<uint32_t> without_slot;
      Status status = take_answers(*taken, ids, pages, all, ok, &without_slot);
      use->end();
      if (without_slot.empty()) return status;
      const Status written = write_without_slot(ids, pages, without_slot, ok);
      return status.ok() ? written : status;
    }
    if (!is_trouble(taken.status())) return told_above(taken.status());
    if (is_outcome_unknown(taken.status())) use->doubt({ids, ids + count_of});
    // What was taken already is taken again: with an equal llsn nothing happens.
    STRATA_RETURN_IF_ERROR(settle(&*use, taken.status(), begun_us));
    count(counters_.put_again);
  }
}

// The first error of those that are neither taken nor without a slot.
Status MemoryPageSource::take_answers(const std::vector<proto::PoolPutReply::Taken>& taken,
                                      const PageId* ids, const char* pages,
                                      const std::vector<uint32_t>& asked, bool* ok,
                                      std::vector<uint32_t>* without_slot) {
  Status first_error;
  for (size_t i = 0; i < asked.size(); ++i) {
    const uint32_t n = asked[i];
    if (taken[i].status.ok()) {
      const Llsn llsn{header_of(pages + size_t{n} * kPageBytes)->llsn};
      directory_.put(ids[n], {taken[i].slot, taken[i].generation, llsn, /*dirty=*/!copies_},
                     /*out_of_use=*/false);
      ok[n] = true;
      count(counters_.put);
    } else if (is_no_space(taken[i].status)) {
      without_slot->push_back(n);
    } else if (first_error.ok()) {
      first_error = is_conflict(taken[i].status)
                        ? error_corruption("the memory node has a newer version of " +
                                           name_of(ids[n]) + " than this server")
                        : told_above(taken[i].status);
    }
  }
  return first_error;
}

// MS2: the pool is full. Whether it has the page, too, it alone knows for certain.
Status MemoryPageSource::write_without_slot(const PageId* ids, const char* pages,
                                            const std::vector<uint32_t>& which, bool* ok) {
  std::vector<PageId> asked;
  asked.reserve(which.size());
  for (const uint32_t n : which) asked.push_back(ids[n]);
  std::vector<proto::PoolLookupReply::Found> found;
  bool bypass = false;
  STRATA_RETURN_IF_ERROR(look_up(asked, &found, &bypass));
  Status status;
  std::vector<uint32_t> elsewhere;
  for (size_t i = 0; i < which.size(); ++i) {
    if (found[i].there)
      status = error_busy("the memory node has no slot free for another version of a page");
    else if (const auto known = directory_.find(asked[i]); known.has_value() && known->dirty)
      return lost_page(asked[i], "is missing");
    else
      elsewhere.push_back(which[i]);
  }
  if (elsewhere.empty()) return status;
  const Status written = write_directly(ids, pages, elsewhere, ok);
  return written.ok() ? status : written;
}

Status MemoryPageSource::write_directly(const PageId* ids, const char* pages,
                                        const std::vector<uint32_t>& which, bool* ok) {
  const auto count_of = static_cast<uint32_t>(which.size());
  std::array<PageId, kWriteBatchPages> some;
  std::array<bool, kWriteBatchPages> written{};
  const AlignedBytes bytes(size_t{count_of} * kPageBytes);
  for (uint32_t i = 0; i < count_of; ++i) {
    some[i] = ids[which[i]];
    std::copy_n(pages + size_t{which[i]} * kPageBytes, kPageBytes,
                bytes.get() + size_t{i} * kPageBytes);
  }
  const Status status = below_->write_batch(some.data(), count_of, bytes.get(), written.data());
  for (uint32_t i = 0; i < count_of; ++i) {
    if (!written[i]) continue;
    ok[which[i]] = true;
    count(counters_.written_directly);
  }
  direct_writes_.fetch_add(1);  // MS3: some may have been written whatever the status says
  return status;
}

}  // namespace strata::clients
