#include "pagefile/double_write.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/diag.h"
#include "page/page.h"

namespace strata {
namespace {

struct Copy {
  uint64_t offset = 0;
  uint64_t llsn = 0;
};
using Copies = std::unordered_map<PageId, Copy>;

// The newest copy of each page in the ring; `offsets`: where any copy lies.
StatusOr<Copies> newest_copies(File* file, char* page, std::vector<uint64_t>* offsets) {
  Copies newest;
  STRATA_ASSIGN_OR_RETURN(const uint64_t bytes, file->size());
  for (uint64_t offset = 0; offset + kPageBytes <= bytes; offset += kPageBytes) {
    size_t got = 0;
    STRATA_RETURN_IF_ERROR(file->read_at(offset, page, kPageBytes, &got));
    // A torn copy belongs to a write in place that has not begun.
    if (got != kPageBytes || !verify_page(page, page_id_of(page)).ok()) continue;
    offsets->push_back(offset);
    const Copy copy{offset, header_of(page)->llsn};
    const auto [at, added] = newest.emplace(page_id_of(page), copy);
    if (!added && at->second.llsn <= copy.llsn) at->second = copy;
  }
  return newest;
}

Status restore(File* file, const DoubleWriteRepair& repair, std::vector<uint64_t>* offsets) {
  const AlignedBytes page(kPageBytes);
  STRATA_ASSIGN_OR_RETURN(const Copies newest, newest_copies(file, page.get(), offsets));
  for (const auto& [id, copy] : newest) {
    const Status found = repair.read(id, page.get());
    if (found.ok() || is_not_found(found)) continue;
    if (!is_corruption(found)) return found;
    size_t got = 0;
    STRATA_RETURN_IF_ERROR(file->read_at(copy.offset, page.get(), kPageBytes, &got));
    STRATA_RETURN_IF_ERROR(repair.write(id, page.get()));
    diag(Severity::kInfo, "page %u of space %u was torn when the last life ended: restored from %s",
         id.number, id.space, file->path().c_str());
  }
  return newest.empty() ? ok_status() : repair.sync();
}

// Without giving up the room that the ring is promised.
Status empty(File* file, const std::vector<uint64_t>& offsets, uint64_t bytes_min) {
  const AlignedBytes zeroes(kDirectIoAlignment);
  std::memset(zeroes.get(), 0, kDirectIoAlignment);
  for (const uint64_t offset : offsets) {
    if (offset < bytes_min)
      STRATA_RETURN_IF_ERROR(file->write_at(offset, zeroes.get(), kDirectIoAlignment));
  }
  STRATA_ASSIGN_OR_RETURN(const uint64_t bytes, file->size());
  if (bytes > bytes_min) STRATA_RETURN_IF_ERROR(file->truncate(bytes_min));
  STRATA_RETURN_IF_ERROR(file->allocate(bytes_min));
  return file->sync_data();
}

// In the place of a page whose space was deleted.
constexpr PageId kGone{0, kNoPage};

bool have_common(const std::vector<PageId>& some, const std::vector<PageId>& others) {
  return std::find_first_of(some.begin(), some.end(), others.begin(), others.end()) != some.end();
}

}  // namespace

DoubleWrite::DoubleWrite(std::unique_ptr<File> file, uint32_t pages,
                         std::function<Status()> sync_in_place,
                         std::function<Status(PageId id, const char* page)> write_in_place)
    : file_(std::move(file)),
      sync_in_place_(std::move(sync_in_place)),
      write_in_place_(std::move(write_in_place)),
      capacity_(pages) {}

StatusOr<std::unique_ptr<DoubleWrite>> DoubleWrite::open(FileSystem* fs, const std::string& path,
                                                         uint32_t pages, bool direct_io,
                                                         const DoubleWriteRepair& repair,
                                                         std::function<Status()> sync_in_place) {
  STRATA_ASSERT(pages >= kPagesMin);
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                          fs->open(path, OpenOptions{.create = true, .direct = direct_io}));
  std::vector<uint64_t> copies;
  STRATA_RETURN_IF_ERROR(restore(file.get(), repair, &copies));
  STRATA_RETURN_IF_ERROR(empty(file.get(), copies, uint64_t{kPagesMin} * kPageBytes));  // DW4
  STRATA_RETURN_IF_ERROR(fs->sync_directory(path.substr(0, path.rfind('/'))));
  return std::unique_ptr<DoubleWrite>(
      new DoubleWrite(std::move(file), pages, std::move(sync_in_place), repair.write));
}

DoubleWrite::~DoubleWrite() {
  free_durable();
  if (!batches_.empty()) return;
  std::vector<uint64_t> used;
  for (uint64_t place = 0; place < std::min<uint64_t>(head_, kPagesMin); ++place)
    used.push_back(place * kPageBytes);
  if (!used.empty()) (void)empty(file_.get(), used, uint64_t{kPagesMin} * kPageBytes);
}

// --- room ---

void DoubleWrite::free_durable() {
  while (!batches_.empty() && batches_.front().state == State::kDurable) {
    tail_ += batches_.front().count;
    batches_.pop_front();
  }
}

bool DoubleWrite::has_failed(const std::vector<PageId>& pages) const {
  return std::any_of(batches_.begin(), batches_.end(), [&pages](const Batch& batch) {
    return (batch.state == State::kFailed || batch.state == State::kRetrying) &&
           have_common(batch.left, pages);
  });
}

bool DoubleWrite::is_retrying(const std::vector<PageId>& pages) const {
  return std::any_of(batches_.begin(), batches_.end(), [&pages](const Batch& batch) {
    return batch.state == State::kRetrying && have_common(batch.left, pages);
  });
}

// Its pages that no later batch has a durable copy of. What that one is to write in place, or has
// written, is the newer version.
std::vector<PageId> DoubleWrite::newest_of(const Batch& batch) const {
  std::unordered_set<uint64_t> newer;
  for (auto later = batches_.rbegin(); later->ticket != batch.ticket; ++later)
    if (later->state != State::kCopying)
      for (const PageId page : later->pages) newer.insert(page.packed());
  std::vector<PageId> newest;
  for (const PageId page : batch.pages)
    if (page != kGone && newer.count(page.packed()) == 0) newest.push_back(page);
  return newest;
}

void DoubleWrite::end_doubt(Batch* batch) {
  if (!batch->in_doubt) return;
  batch->in_doubt = false;
  --doubted_;
}

// Whatever of it is the newest version.
void DoubleWrite::put_in_doubt(Batch* batch) {
  std::vector<PageId> left = newest_of(*batch);
  if (left.empty()) {
    end_doubt(batch);
  } else if (!batch->in_doubt) {
    batch->in_doubt = true;
    ++doubted_;
  }
  set_left(batch, std::move(left));
}

// `left`: what is not whole in its place. Of a batch that is not being written, or was until now.
void DoubleWrite::set_left(Batch* batch, std::vector<PageId> left) {
  const bool had_failed = batch->state == State::kFailed || batch->state == State::kRetrying;
  batch->left = std::move(left);
  batch->state = batch->left.empty() ? State::kWritten : State::kFailed;
  batch->written_at = ++clock_;
  if (had_failed) --failed_;
  if (batch->state == State::kFailed) ++failed_;
}

// Only in the first round, when a position is its place. With no room on the disk the ring ends
// here, which changes nothing for what lies in it.
void DoubleWrite::grow(uint64_t end) {
  while (allocated_ < capacity_ && end > allocated_) {
    const uint32_t wanted = std::min(capacity_, allocated_ * 2);
    mutex_.unlock();
    const Status status = file_->allocate(uint64_t{wanted} * kPageBytes);
    mutex_.lock();
    if (status.ok()) {
      allocated_ = std::max(allocated_, wanted);
    } else if (wanted > allocated_) {
      capacity_ = allocated_;
    }
  }
}

// A batch that failed keeps its place until its pages are tried again. So that this is possible,
// room for one batch is kept for such tries.
Status DoubleWrite::make_room(uint32_t count, bool is_retry) {
  for (;;) {
    // Others may have moved on while it grew: the ring must not end before what lies in it (DW3).
    while (allocated_ < capacity_ && head_ + count > allocated_) grow(head_ + count);
    free_durable();
    const uint64_t limit = failed_ == 0 || is_retry ? capacity_ : capacity_ - kBatchPagesMax;
    if (head_ + count - tail_ <= limit) return ok_status();
    switch (batches_.front().state) {
      case State::kCopying:
      case State::kWriting:
      case State::kRetrying:
        changed_.wait(mutex_);
        break;
      case State::kFailed:
        STRATA_RETURN_IF_ERROR(retry(&batches_.front()));
        break;
      case State::kWritten:
      case State::kDurable: {
        mutex_.unlock();
        const Status status = sync_in_place_();
        mutex_.lock();
        STRATA_RETURN_IF_ERROR(status);
        break;
      }
    }
  }
}

// DW6, DW7. Its copies stay where they are meanwhile, for the batch keeps its place. They are still
// the newest ones, or protect() waits until this is over.
Status DoubleWrite::retry(Batch* batch) {
  // It stays where it is in memory: only its own end removes it.
  batch->state = State::kRetrying;
  const uint64_t place = batch->position % capacity_;
  const auto until_end = static_cast<uint32_t>(capacity_ - place);
  const uint64_t failures = sync_failures_;
  std::vector<PageId> left = batch->left;
  mutex_.unlock();
  const Status status = write_again(place, until_end, batch->count, &left);
  mutex_.lock();
  if (left.empty()) end_doubt(batch);
  set_left(batch, std::move(left));
  if (failures != sync_failures_) put_in_doubt(batch);
  changed_.notify_all();
  if (status.ok()) return ok_status();
  return with_message(status, file_->path() + " holds pages that cannot be written in place (" +
                                  cause_of(status) +
                                  "); to do: mend the disk; they are tried again with every write");
}

// Removes from `left` what it could write.
Status DoubleWrite::write_again(uint64_t place, uint32_t until_end, uint32_t count,
                                std::vector<PageId>* left) const {
  const AlignedBytes pages(size_t{count} * kPageBytes);
  STRATA_RETURN_IF_ERROR(read_copies(place, until_end, count, pages.get()));
  for (uint32_t i = 0; i < count; ++i) {
    const char* const page = pages.get() + size_t{i} * kPageBytes;
    const auto at = std::find(left->begin(), left->end(), page_id_of(page));
    if (at == left->end()) continue;
    STRATA_RETURN_IF_ERROR(verify_page(page, *at));
    const Status status = write_in_place_(*at, page);
    if (!status.ok() && !is_not_found(status)) return status;
    left->erase(at);
  }
  if (left->empty()) return ok_status();
  return error_corruption("the copy of page " + std::to_string(left->front().number) +
                          " of space " + std::to_string(left->front().space) + " is damaged");
}

// --- a batch ---

// In up to two pieces: without a gap at the end of the ring, DW3 holds there, too.
Status DoubleWrite::write_copies(uint64_t place, uint32_t until_end, const char* pages,
                                 uint32_t count) const {
  const uint32_t first = std::min(count, until_end);
  STRATA_RETURN_IF_ERROR(file_->write_at(place * kPageBytes, pages, size_t{first} * kPageBytes));
  if (first == count) return ok_status();
  return file_->write_at(0, pages + size_t{first} * kPageBytes, size_t{count - first} * kPageBytes);
}

// What is not there is zero, which is no page.
Status DoubleWrite::read_copies(uint64_t place, uint32_t until_end, uint32_t count,
                                char* pages) const {
  const size_t first = size_t{std::min(count, until_end)} * kPageBytes;
  const size_t rest = size_t{count} * kPageBytes - first;
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file_->read_at(place * kPageBytes, pages, first, &got));
  std::memset(pages + got, 0, first - got);
  if (rest == 0) return ok_status();
  STRATA_RETURN_IF_ERROR(file_->read_at(0, pages + first, rest, &got));
  std::memset(pages + first + got, 0, rest - got);
  return ok_status();
}

// Until a sync that has begun after this call has ended. One at a time: of two at once only one
// might hear of a failure.
void DoubleWrite::sync_ring() {
  const uint64_t needed = syncs_begun_ + 1;
  while (syncs_ended_ < needed) {
    if (syncing_) {
      changed_.wait(mutex_);
      continue;
    }
    syncing_ = true;
    const uint64_t number = ++syncs_begun_;
    mutex_.unlock();
    const Status status = file_->sync_data();
    mutex_.lock();
    syncing_ = false;
    syncs_ended_ = number;
    note_ring_sync(status);
    changed_.notify_all();
  }
}

// One message per episode of failures.
void DoubleWrite::note_ring_sync(const Status& status) {
  if (status.ok()) {
    if (ring_failing_) diag(Severity::kInfo, "%s can be synced again", file_->path().c_str());
    ring_failing_ = false;
    return;
  }
  ++ring_failures_;
  last_ring_failure_ = with_message(
      status, file_->path() + " could not be synced (" + cause_of(status) +
                  "): no page is written back until it can be; to do: look at the disk; they are "
                  "tried again");
  if (!ring_failing_)
    diag(Severity::kError, "%s", std::string(last_ring_failure_.message()).c_str());
  ring_failing_ = true;
}

// Copies that are worth nothing any more need not be kept.
template <typename Worthless>
void DoubleWrite::drop_failed(const Worthless& worthless) {
  if (failed_ == 0) return;
  for (Batch& batch : batches_) {
    if (batch.state != State::kFailed) continue;
    std::vector<PageId> left = batch.left;
    if (std::erase_if(left, worthless) == 0) continue;
    if (left.empty()) end_doubt(&batch);
    set_left(&batch, std::move(left));
  }
}

StatusOr<DoubleWrite::Ticket> DoubleWrite::protect(const char* pages, uint32_t count) {
  STRATA_ASSERT(count > 0 && count <= kBatchPagesMax);
  Batch batch;
  batch.count = count;
  for (uint32_t i = 0; i < count; ++i)
    batch.pages.push_back(page_id_of(pages + size_t{i} * kPageBytes));
  uint64_t place = 0;
  uint32_t until_end = 0;
  uint64_t ring_failures = 0;
  {
    MutexLock lock(mutex_);
    STRATA_RETURN_IF_ERROR(make_room(count, failed_ != 0 && has_failed(batch.pages)));
    place = head_ % capacity_;
    until_end = capacity_ - static_cast<uint32_t>(place);
    batch.ticket = next_ticket_++;
    batch.position = head_;
    head_ += count;
    ring_failures = ring_failures_;
    batches_.push_back(batch);
  }
  Status status = write_copies(place, until_end, pages, count);
  MutexLock lock(mutex_);
  if (status.ok()) {
    sync_ring();
    // Even of one that had begun before: it may have dropped the copies, and then told nobody else.
    if (ring_failures != ring_failures_) status = last_ring_failure_;
  }
  if (status.ok()) {
    changed_.wait(lock, [this, &batch]()
                            STRATA_REQUIRES(mutex_) { return !is_retrying(batch.pages); });  // DW6
    drop_failed([&batch](PageId id) {
      return std::find(batch.pages.begin(), batch.pages.end(), id) != batch.pages.end();
    });
    find(batch.ticket)->state = State::kWriting;
    return batch.ticket;
  }
  Batch* const made = find(batch.ticket);
  made->state = State::kDurable;  // nothing was written in place
  made->pages.clear();
  changed_.notify_all();
  return status;
}

DoubleWrite::Batch* DoubleWrite::find(Ticket ticket) {
  const auto found = std::find_if(batches_.begin(), batches_.end(),
                                  [ticket](const Batch& batch) { return batch.ticket == ticket; });
  STRATA_ASSERT(found != batches_.end());
  return &*found;
}

void DoubleWrite::written(Ticket ticket, const bool* ok) {
  const MutexLock lock(mutex_);
  Batch* const batch = find(ticket);
  STRATA_ASSERT(batch->state == State::kWriting);
  std::vector<PageId> failed;
  for (uint32_t i = 0; i < batch->count; ++i)
    if ((!ok[i] || batch->in_doubt) && batch->pages[i] != kGone) failed.push_back(batch->pages[i]);
  batch->in_doubt = batch->in_doubt && !failed.empty();
  if (batch->in_doubt) ++doubted_;
  set_left(batch, std::move(failed));
  changed_.notify_all();
}

void DoubleWrite::forget(SpaceId space) {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) {
    return std::none_of(batches_.begin(), batches_.end(),
                        [](const Batch& batch) { return batch.state == State::kRetrying; });
  });
  drop_failed([space](PageId id) { return id.space == space.value; });
  for (Batch& batch : batches_)
    for (PageId& page : batch.pages)
      if (page.space == space.value) page = kGone;
}

// --- syncing ---

StatusOr<uint64_t> DoubleWrite::begin_sync() {
  MutexLock lock(mutex_);
  for (size_t i = 0; i < batches_.size();) {
    Batch* const batch = &batches_[i];
    if (!batch->in_doubt || batch->state == State::kWriting) {
      ++i;
    } else if (batch->state == State::kRetrying) {
      changed_.wait(lock);
      i = 0;  // others may have gone meanwhile
    } else {
      STRATA_RETURN_IF_ERROR(retry(batch));
      i = 0;
    }
  }
  return clock_;
}

bool DoubleWrite::synced(uint64_t mark) {
  const MutexLock lock(mutex_);
  for (Batch& batch : batches_)
    if (batch.state == State::kWritten && batch.written_at <= mark) batch.state = State::kDurable;
  free_durable();
  changed_.notify_all();
  return doubted_ == 0;
}

void DoubleWrite::sync_failed() {
  const MutexLock lock(mutex_);
  ++sync_failures_;
  for (Batch& batch : batches_) {
    if (batch.state == State::kWriting) {
      batch.in_doubt = true;  // written() puts it among those that failed
      continue;
    }
    if (batch.state == State::kWritten || batch.state == State::kFailed) put_in_doubt(&batch);
  }
  changed_.notify_all();
}

bool DoubleWrite::read_copy(PageId id, char* page) const {
  if (failed_.load(std::memory_order_acquire) == 0) return false;
  uint64_t place = 0;
  {
    const MutexLock lock(mutex_);
    const auto batch = std::find_if(batches_.begin(), batches_.end(), [id](const Batch& b) {
      return std::find(b.left.begin(), b.left.end(), id) != b.left.end();
    });
    if (batch == batches_.end()) return false;
    const auto at = std::find(batch->pages.begin(), batch->pages.end(), id);
    place = (batch->position + static_cast<uint64_t>(at - batch->pages.begin())) % capacity_;
  }
  // If its place has been used again meanwhile, the page is whole where it belongs, too.
  size_t got = 0;
  return file_->read_at(place * kPageBytes, page, kPageBytes, &got).ok() && got == kPageBytes &&
         verify_page(page, id).ok();
}

}  // namespace strata
