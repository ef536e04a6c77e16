#include "farmem/shared/shared_pager.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/thread_name.h"
#include "transport/clock.h"

namespace strata::farmem {
namespace {

constexpr long kCachestatCall = 451;  // newer than the C library's names
constexpr uint64_t kNsPerUs = 1000;

}  // namespace

uint64_t cached_pages(int file) {
  struct {
    uint64_t offset = 0;
    uint64_t bytes = 0;  // to the end
  } range;
  std::array<uint64_t, 5> counts{};  // cached, dirty, being written, evicted, evicted lately
  return ::syscall(kCachestatCall, file, &range, counts.data(), 0) == 0 ? counts[0] : 0;
}

StatusOr<std::unique_ptr<SharedPager>> SharedPager::start(std::unique_ptr<MemoryClient> client,
                                                          const SharedPagerOptions& options) {
  auto pager = std::unique_ptr<SharedPager>(new SharedPager(options));
  STRATA_RETURN_IF_ERROR(pager->set_up(std::move(client)));
  pager->start_threads();
  STRATA_ASSIGN_OR_RETURN(pager->file_fd_, pager->fuse_->open());
  return pager;
}

Status SharedPager::set_up(std::unique_ptr<MemoryClient> client) {
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return error_no_space("no file descriptor is left");
  FuseContent content{
      .pages = client->pages(),
      .read = nullptr,
      .write = [this](uint64_t first, uint64_t count,
                      const char* from) { return pages_->write(first, count, from); },
      .read_later = [this](uint64_t request, uint64_t page) { pages_->read(request, page); },
      .copied = [this](uint64_t page, const char* bytes) { pages_->copied(page, bytes); }};
  STRATA_ASSIGN_OR_RETURN(
      pages_,
      SharedPages::make(std::move(client), options_.policy,
                        {.answer = [this](uint64_t request,
                                          const char* page) { fuse_->answer_page(request, page); },
                         .refuse = [this](uint64_t request) { fuse_->refuse_page(request); },
                         .leave = [this](const Leave& leave) { post_leave(leave); }},
                        options_.counters));
  STRATA_ASSIGN_OR_RETURN(fuse_, FuseFile::make_unseen(std::move(content)));
  return ok_status();
}

void SharedPager::start_threads() {
  // They take no signal: they inherit that none is theirs.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  answerer_ = std::thread([this] { answer_kernel(); });
  forgetter_ = std::thread([this] { send_away(); });
  life_ = std::thread([this] { stay_alive(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SharedPager::~SharedPager() {
  if (answerer_.joinable()) {
    {
      const MutexLock lock(life_latch_);
      stop_living_ = true;
      stopping_.notify_all();
    }
    life_.join();
    fuse_->end();  // the forgetter waits for nobody any more
    {
      const MutexLock lock(latch_);
      stop_forgetting_ = true;
      posted_.notify_all();
    }
    forgetter_.join();
    stop_answering_.store(true);
    wake();
    answerer_.join();
  }
  if (file_fd_ >= 0) ::close(file_fd_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void SharedPager::wake() noexcept {
  const uint64_t one = 1;
  // Full: the thread has been woken already.
  (void)!::write(wake_fd_, &one, sizeof one);
}

void SharedPager::answer_kernel() {
  name_this_thread("fm-answer");
  std::array<pollfd, 2> watched{{{.fd = wake_fd_, .events = POLLIN, .revents = 0},
                                 {.fd = fuse_->fd(), .events = POLLIN, .revents = 0}}};
  while (!stop_answering_.load()) {
    // Once the kernel has no use for it, only the others have something to say.
    if (::poll(watched.data(), ended_ ? 1 : 2, -1) < 0) continue;
    if (watched[0].revents != 0) hear_others();
    hear_kernel();
    check_lost();
    pages_->rest();
    check_lost();
  }
}

void SharedPager::hear_kernel() {
  while (!ended_) {
    switch (fuse_->handle_one()) {
      case FuseFile::Heard::kRequest:
        continue;
      case FuseFile::Heard::kNothing:
        return;
      case FuseFile::Heard::kEnd:
        ended_ = true;
    }
  }
}

void SharedPager::hear_others() {
  uint64_t posted = 0;
  // Nothing to read: somebody else's wake-up was taken with ours.
  (void)!::read(wake_fd_, &posted, sizeof posted);
  heard_.clear();
  Status renewed = ok_status();
  {
    const MutexLock lock(latch_);
    heard_.swap(forgotten_);
    renewed = renewed_;
  }
  for (const Leave& leave : heard_) pages_->forgotten(leave);
  if (!renewed.ok()) pages_->lose(renewed);
  const uint64_t since_ns = pages_->waiting_since_ns();
  if (since_ns != 0 && transport::monotonic_ns() - since_ns > options_.stuck_us_max * kNsPerUs)
    pages_->lose(error_internal("the kernel does not give pages back"));
}

void SharedPager::check_lost() {
  if (told_ || pages_->lost().ok()) return;
  told_ = true;
  options_.on_lost(pages_->lost());
}

void SharedPager::post_leave(const Leave& leave) {
  const MutexLock lock(latch_);
  to_leave_.push_back(leave);
  if (to_leave_.size() == 1) posted_.notify_one();
}

void SharedPager::send_away() {
  name_this_thread("fm-forget");
  std::vector<Leave> taken;
  for (;;) {
    taken.clear();
    {
      MutexLock lock(latch_);
      posted_.wait(lock, [this]() STRATA_REQUIRES(latch_) {
        return !to_leave_.empty() || stop_forgetting_;
      });
      if (to_leave_.empty()) return;
      taken.swap(to_leave_);
    }
    for (const Leave& leave : taken) {
      if (leave.copy)
        for (uint64_t i = 0; i < leave.count; i++) fuse_->ask_for_copy(leave.first + i);
      fuse_->forget(leave.first, leave.count);
      bool first = false;
      {
        const MutexLock lock(latch_);
        first = forgotten_.empty();
        forgotten_.push_back(leave);
      }
      if (first) wake();
    }
  }
}

void SharedPager::stay_alive() {
  name_this_thread("fm-alive");
  MutexLock lock(life_latch_);
  while (!stopping_.wait_for_us(lock, options_.renew_us,
                                [this]() STRATA_REQUIRES(life_latch_) { return stop_living_; })) {
    lock.unlock();
    const Status renewed = client().renew();
    if (!renewed.ok()) {
      const MutexLock posting(latch_);
      if (renewed_.ok()) renewed_ = renewed;
    }
    wake();  // it looks, besides, whether somebody waits for too long
    lock.lock();
  }
}

}  // namespace strata::farmem
