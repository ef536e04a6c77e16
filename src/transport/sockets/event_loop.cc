#include "transport/sockets/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/latch.h"
#include "transport/clock.h"
#include "transport/internal/file_descriptor.h"

namespace strata::transport {
namespace {

constexpr size_t kReadBufferBytes = 128u << 10;
constexpr int kEventsMax = 64;  // fetched at a time
constexpr uint64_t kWakeId = 0;
constexpr int kRounds = 2;  // of tasks that tasks have posted, in one turn

}  // namespace

struct EventLoop::Impl {
  struct Watch {
    int fd;
    Watcher* watcher;
  };

  FileDescriptor epoll{::epoll_create1(EPOLL_CLOEXEC)};
  FileDescriptor wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<std::thread::id> runner{};  // default: nobody; whose turn it is
  std::thread::id loop_thread;            // in run(); whom it is given back to
  std::atomic<bool> stopping{false};
  std::vector<char> buffer = std::vector<char>(kReadBufferBytes);

  Mutex mutex{LatchRank::kLeaf};
  std::vector<Task> posted STRATA_GUARDED_BY(mutex);
  bool asleep STRATA_GUARDED_BY(mutex) = false;       // the loop needs a wake-up to see `posted`
  uint64_t wakes_at_ns STRATA_GUARDED_BY(mutex) = 0;  // for a timer, by itself, if asleep
  bool lent STRATA_GUARDED_BY(mutex) = false;         // another thread is in the loop's place (EX3)
  CondVar returned;

  std::vector<Task> lent_posts;  // in the thread it is lent to: what its task has posted
  // In the loop's thread, or the one it is lent to.
  uint64_t next_id = kWakeId + 1;
  std::unordered_map<WatchId, Watch> watches;
  std::map<std::pair<uint64_t, TimerId>, Task> timers;  // by time, then in the order they were set
  std::unordered_map<TimerId, uint64_t> timer_times;

  void wake_up() {
    const uint64_t one = 1;
    const ssize_t written = ::write(wake.get(), &one, sizeof one);
    STRATA_ASSERT(written == sizeof one || errno == EAGAIN);
  }
  bool take_posted(std::vector<Task>* out) {
    const MutexLock lock(mutex);
    out->swap(posted);
    return !out->empty();
  }
  // True: nothing is posted, and whoever posts wakes the loop.
  bool fall_asleep(uint64_t* until_ns) {
    const MutexLock lock(mutex);
    wakes_at_ns = *until_ns = timers.empty() ? UINT64_MAX : timers.begin()->first.first;
    return asleep = posted.empty();
  }
  void stay_awake() {
    MutexLock lock(mutex);
    returned.wait(lock, [this]() STRATA_REQUIRES(mutex) { return !lent; });
    asleep = false;
  }
  bool borrow();
  void give_back();
  int wait(std::array<epoll_event, kEventsMax>* events, bool may_sleep, uint64_t until_ns);
  void dispatch(const epoll_event& event);
  void run_timers();
  void turn(std::vector<Task>* tasks);
};

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {
  STRATA_ASSERT(impl_->epoll.valid() && impl_->wake.valid());
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;  // each write wakes once, and nobody needs to read
  event.data.u64 = kWakeId;
  STRATA_ASSERT(::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_ADD, impl_->wake.get(), &event) == 0);
}

EventLoop::~EventLoop() {
  STRATA_ASSERT(in_thread());
  // Destroying a task may post another (a link gives its stream to be destroyed later).
  std::vector<Task> tasks;
  while (impl_->take_posted(&tasks)) tasks.clear();
  std::exchange(impl_->timers, {}).clear();
  while (impl_->take_posted(&tasks)) tasks.clear();
}

void EventLoop::run() {
  STRATA_ASSERT(impl_->runner.load() == std::thread::id());
  impl_->runner = impl_->loop_thread = std::this_thread::get_id();
  // Timers are exact to a microsecond instead of 50: modelled links need it, nothing else minds.
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  std::vector<Task> tasks;
  while (!impl_->stopping.exchange(false)) impl_->turn(&tasks);
  impl_->runner = std::thread::id();
}

void EventLoop::stop() {
  impl_->stopping = true;
  impl_->wake_up();
}

// Events first: what has arrived counts before the timer that would call its sender dead. Tasks
// that tasks have posted run in the same turn, once: what one sends is written (Link::write_soon())
// without another look at the sockets.
void EventLoop::Impl::turn(std::vector<Task>* tasks) {
  std::array<epoll_event, kEventsMax> events;
  uint64_t until_ns = 0;
  const bool may_sleep = fall_asleep(&until_ns);
  const int count = wait(&events, may_sleep, until_ns);
  stay_awake();
  for (int i = 0; i < count; i++) dispatch(events[static_cast<size_t>(i)]);
  for (int round = 0; round < kRounds && take_posted(tasks); round++) {
    for (Task& task : *tasks) {
      task();
      task = nullptr;  // frees what it holds before the next one runs
    }
    tasks->clear();
  }
  run_timers();
}

int EventLoop::Impl::wait(std::array<epoll_event, kEventsMax>* events, bool may_sleep,
                          uint64_t until_ns) {
  timespec timeout{};
  const timespec* limit = &timeout;
  if (may_sleep && until_ns == UINT64_MAX) {
    limit = nullptr;
  } else if (may_sleep) {
    const uint64_t now_ns = monotonic_ns();
    const uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    timeout = {static_cast<time_t>(left_ns / 1'000'000'000),
               static_cast<long>(left_ns % 1'000'000'000)};
  }
  const int count = ::epoll_pwait2(epoll.get(), events->data(), kEventsMax, limit, nullptr);
  STRATA_ASSERT(count >= 0 || errno == EINTR);
  return std::max(count, 0);
}

void EventLoop::Impl::dispatch(const epoll_event& event) {
  if (event.data.u64 == kWakeId) return;
  const auto watch = watches.find(event.data.u64);
  if (watch != watches.end()) watch->second.watcher->on_events(event.events);
}

void EventLoop::Impl::run_timers() {
  const uint64_t now_ns = monotonic_ns();
  while (!timers.empty() && timers.begin()->first.first <= now_ns) {
    auto entry = timers.extract(timers.begin());
    timer_times.erase(entry.key().second);
    entry.mapped()();
  }
}

uint64_t EventLoop::now_ns() const { return monotonic_ns(); }

// --- work by other threads (EX3) ---

namespace {
// The loop that is lent to this thread. An EventLoop::Impl.
thread_local const void* borrowed = nullptr;
}  // namespace

// Only while nothing is posted: what was posted before runs before.
bool EventLoop::Impl::borrow() {
  if (borrowed != nullptr) return false;
  const MutexLock lock(mutex);
  if (!asleep || lent || !posted.empty()) return false;
  lent = true;
  runner = std::this_thread::get_id();
  borrowed = this;
  return true;
}

void EventLoop::Impl::give_back() {
  borrowed = nullptr;
  bool wake = false;
  {
    const MutexLock lock(mutex);
    for (Task& task : lent_posts) posted.push_back(std::move(task));
    lent_posts.clear();
    runner = loop_thread;
    lent = false;
    const bool has_work =
        !posted.empty() || (!timers.empty() && timers.begin()->first.first < wakes_at_ns);
    wake = asleep && has_work;
    if (wake) asleep = false;
  }
  returned.notify_all();
  if (wake) wake_up();
}

void EventLoop::run_or_post(Task task) {
  if (!impl_->borrow()) return post(std::move(task));
  task();
  task = nullptr;
  std::vector<Task> tasks;
  for (int round = 0; round < kRounds && !impl_->lent_posts.empty(); round++) {
    tasks.swap(impl_->lent_posts);
    for (Task& one : tasks) {
      one();
      one = nullptr;
    }
    tasks.clear();
  }
  impl_->give_back();
}

void EventLoop::post(Task task) {
  if (borrowed == impl_.get()) {
    impl_->lent_posts.push_back(std::move(task));
    return;
  }
  bool wake = false;
  {
    const MutexLock lock(impl_->mutex);
    impl_->posted.push_back(std::move(task));
    wake = std::exchange(impl_->asleep, false);
  }
  if (wake) impl_->wake_up();
}

bool EventLoop::in_thread() const {
  const std::thread::id runner = impl_->runner.load();
  return runner == std::thread::id() || runner == std::this_thread::get_id();
}

Executor::TimerId EventLoop::run_at(uint64_t when_ns, Task task) {
  STRATA_DASSERT(in_thread());
  const TimerId id = impl_->next_id++;
  impl_->timers.emplace(std::pair(when_ns, id), std::move(task));
  impl_->timer_times.emplace(id, when_ns);
  return id;
}

void EventLoop::cancel(TimerId id) {
  STRATA_DASSERT(in_thread());
  const auto place = impl_->timer_times.find(id);
  if (place == impl_->timer_times.end()) return;
  const auto entry = impl_->timers.extract({place->second, id});  // destroyed last
  impl_->timer_times.erase(place);
}

EventLoop::WatchId EventLoop::watch(int fd, uint32_t events, Watcher* watcher) {
  STRATA_DASSERT(in_thread());
  const WatchId id = impl_->next_id++;
  impl_->watches.emplace(id, Impl::Watch{fd, watcher});
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  STRATA_ASSERT(::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  return id;
}

void EventLoop::change(WatchId id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  const int fd = impl_->watches.at(id).fd;
  STRATA_ASSERT(::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void EventLoop::unwatch(WatchId id) {
  const auto place = impl_->watches.find(id);
  STRATA_ASSERT(place != impl_->watches.end());
  STRATA_ASSERT(::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_DEL, place->second.fd, nullptr) == 0);
  impl_->watches.erase(place);
}

absl::Span<char> EventLoop::read_buffer() noexcept { return absl::MakeSpan(impl_->buffer); }

struct IoThread::Impl {
  EventLoop loop;
  std::thread thread;
};

IoThread::IoThread(const char* name) : impl_(std::make_unique<Impl>()) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  impl_->thread = std::thread([this] { impl_->loop.run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(impl_->thread.native_handle(), name);
  // From now on in_thread() tells the threads apart.
  Parker running;
  impl_->loop.post([&running] { running.unpark(1); });
  running.wait();
}

IoThread::~IoThread() {
  impl_->loop.stop();
  impl_->thread.join();
}

EventLoop* IoThread::loop() noexcept { return &impl_->loop; }

}  // namespace strata::transport
