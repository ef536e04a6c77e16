#include "farmem/pager/pager.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/thread_name.h"
#include "farmem/policy/prefetch.h"
#include "transport/clock.h"

namespace strata::farmem {
namespace {

constexpr auto kWaitForKernel = std::chrono::microseconds(200);
constexpr size_t kFaultsAtOnceMax = 16;
const char kZeros[kPageBytes] = {};

void count(Counter& counter, uint64_t by = 1) noexcept {
  counter.fetch_add(by, std::memory_order_relaxed);
}

// Memory that a fork does not inherit (FM24), nor a core dump ask for.
StatusOr<char*> reserve(uint64_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return error_no_space("cannot reserve " + std::to_string(bytes) + " bytes of addresses");
  // Huge pages would come and go as a whole; without them in the kernel this is refused, and well.
  (void)::madvise(memory, bytes, MADV_NOHUGEPAGE);
  (void)::madvise(memory, bytes, MADV_DONTDUMP);  // a larger core dump is the worst
  if (::madvise(memory, bytes, MADV_DONTFORK) != 0) {
    ::munmap(memory, bytes);
    return error_internal("cannot keep memory from forked children");
  }
  return static_cast<char*>(memory);
}

}  // namespace

Pager::Pager(std::unique_ptr<MemoryClient> client, const PagerOptions& options)
    : client_(std::move(client)),
      options_(options),
      pages_(client_->pages()),
      buffer_(new char[(kPrefetchMax + 1) * kPageBytes]) {}

StatusOr<std::unique_ptr<Pager>> Pager::start(std::unique_ptr<MemoryClient> client,
                                              const PagerOptions& options) {
  auto pager = std::unique_ptr<Pager>(new Pager(std::move(client), options));
  STRATA_RETURN_IF_ERROR(pager->set_up());
  // The threads take no signal (FM23): they inherit that none is theirs.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pager->thread_ = std::thread([p = pager.get()] { p->run(); });
  pager->life_ = std::thread([p = pager.get()] { p->stay_alive(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pager;
}

Status Pager::set_up() {
  STRATA_ASSIGN_OR_RETURN(local_, LocalPages::make(options_.policy, pages_));
  STRATA_ASSIGN_OR_RETURN(userfault_, Userfault::open(options_.userfault_device));
  STRATA_ASSIGN_OR_RETURN(base_, reserve(pages_ * kPageBytes));
  STRATA_RETURN_IF_ERROR(userfault_->watch(base_, pages_ * kPageBytes));
  const uint64_t staging_bytes = uint64_t{options_.policy.frames} * kPageBytes;
  STRATA_ASSIGN_OR_RETURN(staging_, reserve(staging_bytes));
  STRATA_RETURN_IF_ERROR(userfault_->watch(staging_, staging_bytes));
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return error_no_space("no file descriptor is left");
  return ok_status();
}

Pager::~Pager() {
  stop_.store(true);
  {
    const MutexLock lock(stop_latch_);
    stopping_.notify_all();
  }
  if (thread_.joinable()) {
    wake_thread();
    thread_.join();
    life_.join();
  }
  if (base_ != nullptr) ::munmap(base_, pages_ * kPageBytes);
  if (staging_ != nullptr) ::munmap(staging_, uint64_t{options_.policy.frames} * kPageBytes);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void Pager::lose(const Status& why) {
  if (lost_.exchange(true)) {
    for (;;) ::pause();  // the other thread is ending the process
  }
  options_.on_lost(why);
  std::abort();
}

void Pager::check(int error, const char* what) {
  if (error != 0)
    lose(error_internal(std::string("userfaultfd: ") + what + ": " + std::strerror(error)));
}

void Pager::stay_alive() {
  name_this_thread("fm-alive");
  if (options_.on_thread) options_.on_thread();
  MutexLock lock(stop_latch_);
  while (!stopping_.wait_for_us(lock, options_.renew_us,
                                [this]() STRATA_REQUIRES(stop_latch_) { return stop_.load(); })) {
    lock.unlock();
    const Status status = client_->renew();
    if (!status.ok() && !stop_.load()) lose(status);
    lock.lock();
  }
}

void Pager::run() {
  name_this_thread("fm-pager");
  if (options_.on_thread) options_.on_thread();
  std::array<pollfd, 2> watched{{{.fd = userfault_->fd(), .events = POLLIN, .revents = 0},
                                 {.fd = wake_fd_, .events = POLLIN, .revents = 0}}};
  std::array<Fault, kFaultsAtOnceMax> waiting;
  while (!stop_.load()) {
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[1].revents != 0) {
      uint64_t posted = 0;
      // Nothing to read: somebody else's wake-up was taken with ours.
      (void)!::read(wake_fd_, &posted, sizeof posted);
      do_discards();
    }
    if (watched[0].revents == 0) continue;
    const size_t faults = userfault_->read(absl::MakeSpan(waiting));
    for (size_t i = 0; i < faults; i++) serve(waiting[i]);
    if (faults == 0) continue;
    if (options_.trace != nullptr) options_.trace->mark_quiet();
    moves_.clear();
    local_->tidy(&moves_);
    evict(moves_.evict);
    note_places();
  }
}

void Pager::note(TraceKind kind, uint64_t page, uint64_t pages, uint8_t flags) const noexcept {
  if (options_.trace != nullptr) options_.trace->add(kind, page, pages, flags);
}

void Pager::serve(const Fault& fault) {
  const uint64_t begin_ns = transport::monotonic_ns();
  const uint8_t flags = fault.write ? kTraceWrite : 0;
  const uint64_t offset = fault.address - reinterpret_cast<uint64_t>(base_);
  STRATA_ASSERT(offset < pages_ * kPageBytes);  // FM23: nobody touches the staging area
  const uint64_t page = offset / kPageBytes;
  switch (local_->place(page)) {
    case Place::kMapped:
      if (!serve_mapped(page)) return;
      note(TraceKind::kNew, page, 0, flags);
      break;
    case Place::kStaged:
      serve_staged(page);
      note(TraceKind::kSoft, page, 0, flags);
      break;
    case Place::kAway:
      if (client_->is_far(page)) {
        note(TraceKind::kFetched, page, serve_far(page), flags);
      } else {
        serve_new(page);
        note(TraceKind::kNew, page, 0, flags);
      }
      break;
  }
  PagerCounters& counters = *options_.counters;
  const uint64_t took_ns = transport::monotonic_ns() - begin_ns;
  count(counters.faults);
  count(counters.service_ns, took_ns);
  const auto width = static_cast<size_t>(std::bit_width(took_ns | 1)) - 1;
  count(counters.service_histogram[std::min(width, kHistogramBuckets - 1)]);
}

// False: there was nothing to do.
bool Pager::serve_mapped(uint64_t page) {
  const int error = userfault_->copy(at(page), kZeros, kPageBytes);
  if (error == EEXIST) {  // two threads had touched it
    check(userfault_->wake(at(page), kPageBytes), "wake");
    return false;
  }
  check(error, "zeros");
  // The program has given the page back by a way we do not see (FM21).
  take_back(page);
  moves_.clear();
  local_->bring(page, &moves_);
  STRATA_ASSERT(moves_.stage.empty());  // it had a place
  count(options_.counters->zero_filled);
  return true;
}

void Pager::take_back(uint64_t page) {
  local_->forget(page);
  note(TraceKind::kDiscarded, page, 1);
  const Status status = client_->discard(page, 1);
  if (!status.ok()) lose(status);
}

void Pager::serve_staged(uint64_t page) {
  const uint32_t frame = local_->frame(page);
  bring(page, 1);
  check(userfault_->move(at(page), staging(frame)), "move back");
  count(options_.counters->soft_hits);
}

void Pager::serve_new(uint64_t page) {
  bring(page, 1);
  check(userfault_->copy(at(page), kZeros, kPageBytes), "zeros");
  count(options_.counters->zero_filled);
}

uint32_t Pager::serve_far(uint64_t page) {
  const uint32_t along = pages_to_prefetch(
      options_.policy, local_->shares(), page, pages_,
      [this](uint64_t p) { return local_->place(p) == Place::kAway && client_->is_far(p); });
  bring(page, along + 1);
  const Status status = client_->fetch(page, along + 1, buffer_.get());
  if (!status.ok()) lose(status);
  check(userfault_->copy(at(page), buffer_.get(), (along + 1) * kPageBytes), "copy");
  count(options_.counters->fetched);
  count(options_.counters->prefetched, along);
  return along;
}

void Pager::bring(uint64_t first, uint32_t pages) {
  coming_first_ = first;
  coming_pages_ = pages;
  for (uint64_t page = first; page < first + pages; page++) {
    moves_.clear();
    local_->bring(page, &moves_);
    evict(moves_.evict);
    for (const Framed& framed : moves_.stage) stage(framed);
  }
}

void Pager::stage(Framed victim) {
  uint64_t waiting_since_us = 0;
  for (uint32_t tried = 1;; tried++) {
    // What is coming is not there yet.
    const bool is_coming = victim.page - coming_first_ < coming_pages_;
    const int error = is_coming ? EBUSY : userfault_->move(staging(victim.frame), at(victim.page));
    if (error == 0) return;
    if (error == ENOENT) {
      // As in serve_mapped(). Nobody has touched it since.
      take_back(victim.page);
      return;
    }
    // EBUSY: the kernel is reading or writing it, for a device (a database reads ahead hundreds of
    // pages at once): the next one in line has to go instead.
    if (error != EBUSY && error != EAGAIN) check(error, "move");
    if (!is_coming) {
      count(options_.counters->pinned);
      note(TraceKind::kPinned, victim.page);
    }
    if (tried % local_->shares().ways == 0) {  // all that could make room
      const uint64_t now_us = monotonic_us();
      if (waiting_since_us == 0) waiting_since_us = now_us;
      if (now_us - waiting_since_us > options_.pinned_us_max)
        lose(
            error_no_space("the kernel is using all local pages for input and output: the program "
                           "needs more local memory"));
      std::this_thread::sleep_for(kWaitForKernel);
    }
    instead_.clear();
    local_->bring(victim.page, &instead_);
    evict(instead_.evict);
    if (instead_.stage.empty()) return;
    victim = instead_.stage.front();
  }
}

void Pager::evict(const std::vector<Framed>& gone) {
  if (gone.empty()) return;
  STRATA_ASSERT(gone.size() <= kBatchPagesMax);
  std::array<PageOut, kBatchPagesMax> out;
  std::array<Stored, kBatchPagesMax> outcome;
  for (size_t i = 0; i < gone.size(); i++) out[i] = {gone[i].page, staging(gone[i].frame)};
  const Status status =
      client_->store({out.data(), gone.size()}, absl::MakeSpan(outcome.data(), gone.size()));
  if (!status.ok()) lose(status);
  for (size_t i = 0; i < gone.size(); i++) count_outcome(gone[i].page, outcome[i]);
  // Frames that were filled one after the other are neighbours, most of the time.
  for (size_t i = 0; i < gone.size();) {
    uint32_t low = gone[i].frame, high = low;
    for (i++; i < gone.size() && (gone[i].frame + 1 == low || gone[i].frame == high + 1); i++) {
      low = std::min(low, gone[i].frame);
      high = std::max(high, gone[i].frame);
    }
    check(::madvise(staging(low), uint64_t{high - low + 1} * kPageBytes, MADV_DONTNEED) == 0
              ? 0
              : errno,
          "release");
  }
}

void Pager::count_outcome(uint64_t page, Stored stored) noexcept {
  PagerCounters& counters = *options_.counters;
  switch (stored) {
    case Stored::kWritten:
      note(TraceKind::kLeftWritten, page);
      return count(counters.evicted_dirty);
    case Stored::kClean:
      note(TraceKind::kLeftClean, page);
      return count(counters.evicted_clean);
    case Stored::kZero:
      note(TraceKind::kLeftZero, page);
      return count(counters.evicted_zero);
  }
}

void Pager::note_places() noexcept {
  PagerCounters& counters = *options_.counters;
  counters.mapped.store(local_->mapped(), std::memory_order_relaxed);
  counters.staged.store(local_->staged(), std::memory_order_relaxed);
  const uint64_t local = local_->mapped() + local_->staged();
  if (local > counters.local_max.load(std::memory_order_relaxed))
    counters.local_max.store(local, std::memory_order_relaxed);
}

void Pager::wake_thread() noexcept {
  const uint64_t one = 1;
  // Full: the thread has been woken already.
  (void)!::write(wake_fd_, &one, sizeof one);
}

void Pager::post(const Discard& discard) {
  bool first = false;
  {
    const MutexLock lock(queue_latch_);
    first = queue_.empty();
    queue_.push_back(discard);
  }
  if (first) wake_thread();
}

void Pager::discard_later(uint64_t first, uint64_t count) { post({first, count, nullptr}); }

void Pager::discard(uint64_t first, uint64_t count) {
  Parker done;
  post({first, count, &done});
  done.wait();
}

void Pager::do_discards() {
  taken_.clear();
  {
    const MutexLock lock(queue_latch_);
    taken_.swap(queue_);
  }
  for (const Discard& discard : taken_) do_discard(discard);
  note_places();
}

void Pager::do_discard(const Discard& discard) {
  STRATA_ASSERT(discard.first <= pages_ && discard.count <= pages_ - discard.first);
  note(TraceKind::kDiscarded, discard.first, discard.count);
  for (uint64_t page = discard.first; page < discard.first + discard.count; page++) {
    const Place place = local_->place(page);
    if (place == Place::kAway) continue;
    if (place == Place::kStaged)
      check(::madvise(staging(local_->frame(page)), kPageBytes, MADV_DONTNEED) == 0 ? 0 : errno,
            "release");
    local_->forget(page);
    count(options_.counters->discarded);
  }
  check(::madvise(at(discard.first), discard.count * kPageBytes, MADV_DONTNEED) == 0 ? 0 : errno,
        "discard");
  const Status status = client_->discard(discard.first, discard.count);
  if (!status.ok()) lose(status);
  if (discard.waiting != nullptr) {
    discard.waiting->unpark(1);
  } else if (options_.on_discarded) {
    options_.on_discarded(discard.first, discard.count);
  }
}

}  // namespace strata::farmem
