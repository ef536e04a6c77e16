#include "farmem/shared/shared_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "farmem/policy/prefetch.h"
#include "transport/clock.h"

namespace strata::farmem {
namespace {

const char kZeros[kPageBytes] = {};

void count(Counter& counter, uint64_t by = 1) noexcept {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace

StatusOr<std::unique_ptr<SharedPages>> SharedPages::make(std::unique_ptr<MemoryClient> client,
                                                         const PolicyOptions& policy,
                                                         SharedPagesOwner owner,
                                                         PagerCounters* counters) {
  STRATA_ASSIGN_OR_RETURN(auto pages, LocalPages::make(policy, client->pages()));
  STRATA_ASSIGN_OR_RETURN(auto states, MappedMemory::map(client->pages()));
  STRATA_ASSIGN_OR_RETURN(auto hold, MappedMemory::map(uint64_t{policy.frames} * kPageBytes));
  // A page here would take as much as a huge one, where the kernel makes those by itself.
  (void)::madvise(hold.get(), hold.bytes(), MADV_NOHUGEPAGE);
  return std::unique_ptr<SharedPages>(new SharedPages(std::move(client), policy, std::move(owner),
                                                      counters, std::move(pages), std::move(states),
                                                      std::move(hold)));
}

SharedPages::SharedPages(std::unique_ptr<MemoryClient> client, const PolicyOptions& policy,
                         SharedPagesOwner owner, PagerCounters* counters,
                         std::unique_ptr<LocalPages> pages, MappedMemory states, MappedMemory hold)
    : client_(std::move(client)),
      policy_(policy),
      owner_(std::move(owner)),
      counters_(*counters),
      pages_(std::move(pages)),
      states_(std::move(states)),
      hold_(std::move(hold)),
      buffer_(new char[kBatchPagesMax * kPageBytes]),
      behind_(new char[kBatchPagesMax * kPageBytes]),
      lost_(ok_status()) {
  behind_of_.reserve(kBatchPagesMax);
}

SharedPages::~SharedPages() = default;

uint8_t& SharedPages::state(uint64_t page) const noexcept {
  STRATA_ASSERT(page < client_->pages());
  return reinterpret_cast<uint8_t*>(states_.get())[page];
}

const char* SharedPages::behind(uint64_t page) const noexcept {
  const auto found = std::find(behind_of_.begin(), behind_of_.end(), page);
  return found == behind_of_.end() ? nullptr
                                   : behind_.get() + (found - behind_of_.begin()) * kPageBytes;
}

bool SharedPages::comes_from_node(uint64_t page) const noexcept {
  return !is(page, kInKernel | kHeld) && client_->is_far(page) && behind(page) == nullptr;
}

void SharedPages::read(uint64_t request, uint64_t page) {
  count(counters_.faults);
  Waiting waiting{.request = request, .page = page, .begin_ns = transport::monotonic_ns()};
  waiting.run = 1;
  if (!lost_.ok()) return owner_.refuse(request);
  if (pages_->place(page) == Place::kAway && comes_from_node(page))
    waiting.run += pages_to_prefetch(
        policy_, pages_->shares(), page, client_->pages(),
        [this](uint64_t p) { return pages_->place(p) == Place::kAway && comes_from_node(p); });
  // What it is in already, it stays in: nothing has to leave for it (FM51).
  const bool has_room = is(page, kInKernel | kHeld);
  for (uint32_t i = 0; i < waiting.run; i++)
    if (pages_->place(page + i) != Place::kMapped) bring(page + i);
  if (has_room) {
    answer(waiting, 1);
  } else {
    waiting_.push_back(waiting);
    answer_waiting();
  }
  note_places();
}

void SharedPages::bring(uint64_t page) {
  moves_.clear();
  pages_->bring(page, &moves_);
  for (const Framed& framed : moves_.evict) away(framed);
  send_leaves();
  for (const Framed& framed : moves_.stage) staged(framed);
  send_leaves();
}

// Its frame is another page's from now on.
void SharedPages::away(const Framed& framed) {
  if (is(framed.page, kHeld) && !is(framed.page, kWritten)) count_dropped(framed.page);
  drop_hold(framed.page, framed.frame);
  if (is(framed.page, kInKernel) && !is(framed.page, kLeaving)) leave(framed.page, false);
}

// Nobody is told when a page is used that the kernel has, so those that get a second chance must be
// here. With the other policies they are in line only, and stay where they are.
void SharedPages::staged(const Framed& framed) {
  if (policy_.replacement != Replacement::kSecondChance) return;
  if (is(framed.page, kInKernel) && !is(framed.page, kLeaving)) leave(framed.page, true);
}

void SharedPages::leave(uint64_t page, bool copy) {
  if (copy != leaves_copy_) send_leaves();
  leaves_copy_ = copy;
  leaves_.push_back(page);
  uint8_t& now = state(page);
  now = static_cast<uint8_t>((now | kLeaving) & ~(kAgain | kWritten));
  leaving_++;
}

void SharedPages::send_leaves() {
  std::sort(leaves_.begin(), leaves_.end());
  for (size_t i = 0; i < leaves_.size();) {
    Leave run{.first = leaves_[i], .count = 1, .copy = leaves_copy_};
    while (i + run.count < leaves_.size() && leaves_[i + run.count] == run.first + run.count)
      run.count++;
    i += run.count;
    owner_.leave(run);
  }
  leaves_.clear();
}

void SharedPages::drop_hold(uint64_t page, uint32_t frame) {
  if (!is(page, kHeld | kCopied)) return;
  (is(page, kHeld) ? held_ : copied_)--;
  state(page) &= static_cast<uint8_t>(~(kHeld | kCopied));
  (void)::madvise(hold(frame), kPageBytes, MADV_DONTNEED);
}

void SharedPages::count_dropped(uint64_t page) noexcept {
  const bool has_content = client_->is_far(page) || behind(page) != nullptr;
  count(has_content ? counters_.evicted_clean : counters_.evicted_zero);
}

// How many of those that were to come along still can.
uint32_t SharedPages::run_of(const Waiting& waiting) const {
  uint32_t run = 1;
  if (!comes_from_node(waiting.page)) return run;
  while (run < waiting.run && pages_->place(waiting.page + run) == Place::kMapped &&
         comes_from_node(waiting.page + run))
    run++;
  return run;
}

void SharedPages::answer_waiting() {
  while (!waiting_.empty() && lost_.ok()) {
    const Waiting first = waiting_.front();
    // It may have been a victim itself meanwhile, where a set has few ways.
    if (pages_->place(first.page) != Place::kMapped) bring(first.page);
    const uint32_t run = run_of(first);
    const uint32_t comes = is(first.page, kInKernel | kHeld) ? run - 1 : run;
    // FM50. All that is in nobody's frame is leaving, so there will be room.
    if (local() + comes > policy_.frames) return;
    waiting_.erase(waiting_.begin());
    answer(first, run);
  }
}

void SharedPages::answer(const Waiting& waiting, uint32_t run) {
  const uint64_t page = waiting.page;
  const char* bytes = behind(page);
  if (bytes == nullptr && is(page, kHeld)) bytes = hold(pages_->frame(page));
  if (bytes != nullptr) {
    count(counters_.soft_hits);
  } else if (client_->is_far(page)) {
    const Status fetched = client_->fetch(page, run, buffer_.get());
    if (!fetched.ok()) {
      owner_.refuse(waiting.request);
      return lose(fetched);
    }
    bytes = buffer_.get();
    count(counters_.fetched);
    hold_along(page, run);
  } else {
    bytes = kZeros;
    count(counters_.zero_filled);
  }
  give(waiting, bytes);
}

void SharedPages::hold_along(uint64_t first, uint32_t run) {
  for (uint32_t i = 1; i < run; i++) {
    std::memcpy(hold(pages_->frame(first + i)), buffer_.get() + i * kPageBytes, kPageBytes);
    state(first + i) = static_cast<uint8_t>((state(first + i) | kHeld) & ~kWritten);
    held_++;
  }
  count(counters_.prefetched, run - 1);
}

void SharedPages::give(const Waiting& waiting, const char* bytes) {
  const uint64_t page = waiting.page;
  owner_.answer(waiting.request, bytes);
  if (!is(page, kInKernel)) in_kernel_++;
  state(page) |= kInKernel;
  if (is(page, kHeld | kCopied)) drop_hold(page, pages_->frame(page));
  if (is(page, kLeaving)) {
    state(page) |= kAgain;
  } else {
    leave_again(page);
  }
  const uint64_t took_ns = transport::monotonic_ns() - waiting.begin_ns;
  count(counters_.service_ns, took_ns);
  const auto width = static_cast<size_t>(std::bit_width(took_ns | 1)) - 1;
  count(counters_.service_histogram[std::min(width, kHistogramBuckets - 1)]);
}

// A page that the kernel has and that nothing leaves for, though it has lost its place meanwhile.
void SharedPages::leave_again(uint64_t page) {
  const Place place = pages_->place(page);
  if (place == Place::kAway) leave(page, false);
  if (place == Place::kStaged && policy_.replacement == Replacement::kSecondChance)
    leave(page, true);
  send_leaves();
}

Status SharedPages::write(uint64_t first, uint64_t count, const char* bytes) {
  for (uint64_t i = 0; i < count; i++) {
    if (!lost_.ok()) return lost_;
    const uint64_t page = first + i;
    const char* const content = bytes + i * kPageBytes;
    state(page) |= kWritten;
    if (is(page, kHeld | kCopied)) std::memcpy(hold(pages_->frame(page)), content, kPageBytes);
    // It is one's own buffer.
    char* to = const_cast<char*>(behind(page));
    if (to == nullptr) {
      if (behind_of_.size() == kBatchPagesMax) STRATA_RETURN_IF_ERROR(store_behind());
      to = behind_.get() + behind_of_.size() * kPageBytes;
      behind_of_.push_back(page);
    }
    std::memcpy(to, content, kPageBytes);
  }
  return ok_status();
}

Status SharedPages::store_behind() {
  std::array<PageOut, kBatchPagesMax> out;
  std::array<Stored, kBatchPagesMax> outcome;
  const size_t pages = behind_of_.size();
  for (size_t i = 0; i < pages; i++) out[i] = {behind_of_[i], behind_.get() + i * kPageBytes};
  const Status stored = client_->store({out.data(), pages}, absl::MakeSpan(outcome.data(), pages));
  if (!stored.ok()) {
    lose(stored);
    return stored;
  }
  behind_of_.clear();
  for (size_t i = 0; i < pages; i++) {
    if (outcome[i] == Stored::kWritten) count(counters_.evicted_dirty);
    if (outcome[i] == Stored::kClean) count(counters_.evicted_clean);
    if (outcome[i] == Stored::kZero) count(counters_.evicted_zero);
  }
  return ok_status();
}

void SharedPages::copied(uint64_t page, const char* bytes) {
  // Given to the kernel again: it may have changed. And one that lost its place has no frame.
  if (!is(page, kLeaving) || is(page, kAgain | kCopied) || pages_->place(page) != Place::kStaged)
    return;
  if (local() == policy_.frames) return;  // no room for it twice (FM50): it has no second chance
  std::memcpy(hold(pages_->frame(page)), bytes, kPageBytes);
  state(page) |= kCopied;
  copied_++;
}

void SharedPages::forgotten(const Leave& leave) {
  for (uint64_t i = 0; i < leave.count; i++) left(leave.first + i);
  answer_waiting();
  note_places();
}

void SharedPages::left(uint64_t page) {
  STRATA_ASSERT(is(page, kLeaving) && is(page, kInKernel));
  state(page) &= static_cast<uint8_t>(~kLeaving);
  leaving_--;
  if (is(page, kAgain)) {
    state(page) &= static_cast<uint8_t>(~kAgain);
    return leave_again(page);
  }
  state(page) &= static_cast<uint8_t>(~kInKernel);
  in_kernel_--;
  if (is(page, kCopied) && pages_->place(page) == Place::kStaged) {
    state(page) = static_cast<uint8_t>((state(page) | kHeld) & ~kCopied);
    held_++;
    copied_--;
    return;
  }
  if (is(page, kCopied)) drop_hold(page, pages_->frame(page));
  if (!is(page, kWritten)) count_dropped(page);
}

void SharedPages::rest() {
  if (!lost_.ok()) return;
  moves_.clear();
  pages_->tidy(&moves_);
  for (const Framed& framed : moves_.evict) away(framed);
  send_leaves();
  // What leaves is written one by one: it waits for the others.
  if (leaving_ == 0 && !behind_of_.empty()) (void)store_behind();  // lose() has been called
  note_places();
}

void SharedPages::lose(const Status& why) {
  if (!lost_.ok()) return;
  lost_ = why;
  for (const Waiting& waiting : waiting_) owner_.refuse(waiting.request);
  waiting_.clear();
}

void SharedPages::note_places() noexcept {
  counters_.mapped.store(in_kernel_, std::memory_order_relaxed);
  counters_.staged.store(held_ + copied_, std::memory_order_relaxed);
  if (local() > counters_.local_max.load(std::memory_order_relaxed))
    counters_.local_max.store(local(), std::memory_order_relaxed);
}

}  // namespace strata::farmem
