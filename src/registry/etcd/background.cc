#include "registry/etcd/internal/background.h"

#include <algorithm>

#include "base/assert.h"
#include "base/clock.h"

namespace strata::registry::internal {
namespace {

constexpr int kSleepMsMax = 60'000;

CURLM* make_multi() {
  init_curl();
  CURLM* multi = curl_multi_init();
  STRATA_ASSERT(multi != nullptr);
  return multi;
}

}  // namespace

Background::Background() : multi_(make_multi()), thread_([this] { run(); }) {}

Background::~Background() {
  STRATA_ASSERT(!in_thread());
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  curl_multi_wakeup(multi_);
  thread_.join();
  while (!transfers_.empty()) take_out(transfers_.begin()->first).reset();
  canceled_.clear();
  curl_multi_cleanup(multi_);
}

bool Background::in_thread() const noexcept {
  return std::this_thread::get_id() == thread_.get_id();
}

void Background::post(Task task) {
  {
    const MutexLock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  curl_multi_wakeup(multi_);
}

void Background::run_and_wait(Task task) {
  if (in_thread()) return task();
  bool ran = false;
  post([&] {
    task();
    const MutexLock lock(mutex_);
    ran = true;
    ran_.notify_all();
  });
  MutexLock lock(mutex_);
  ran_.wait(lock, [&]() STRATA_REQUIRES(mutex_) { return ran; });
}

Background::Id Background::run_at(uint64_t when_us, Task task) {
  timers_.emplace(when_us, std::pair(++last_id_, std::move(task)));
  return last_id_;
}

Background::Id Background::start(HttpRequest request, Done done, Lines lines) {
  auto transfer = std::make_unique<Transfer>();
  transfer->done = std::move(done);
  transfer->lines = std::move(lines);
  transfer->exchange.prepare(std::move(request));
  STRATA_ASSERT(curl_multi_add_handle(multi_, transfer->exchange.handle()) == CURLM_OK);
  transfers_.emplace(++last_id_, std::move(transfer));
  return last_id_;
}

void Background::cancel(Id* id) {
  if (*id == 0) return;
  if (auto transfer = take_out(*id)) {
    canceled_.push_back(std::move(transfer));
  } else {
    std::erase_if(timers_, [&](const auto& timer) { return timer.second.first == *id; });
  }
  *id = 0;
}

std::unique_ptr<Background::Transfer> Background::take_out(Id id) {
  const auto at = transfers_.find(id);
  if (at == transfers_.end()) return nullptr;
  std::unique_ptr<Transfer> transfer = std::move(at->second);
  transfers_.erase(at);
  curl_multi_remove_handle(multi_, transfer->exchange.handle());
  return transfer;
}

void Background::run() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
    }
    run_posted();
    run_timers();
    canceled_.clear();
    int running = 0;
    curl_multi_perform(multi_, &running);
    pass_on_lines();
    pass_on_ends();
    curl_multi_poll(multi_, nullptr, 0, sleep_ms(), nullptr);
  }
}

void Background::run_posted() {
  std::vector<Task> tasks;
  {
    const MutexLock lock(mutex_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
}

void Background::run_timers() {
  const uint64_t now = monotonic_us();  // once: timers set meanwhile wait for their turn
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Task task = std::move(timers_.begin()->second.second);
    timers_.erase(timers_.begin());
    task();
  }
}

void Background::pass_on_lines() {
  std::vector<Id> streams;
  for (const auto& [id, transfer] : transfers_)
    if (transfer->lines) streams.push_back(id);
  for (const Id id : streams) {
    const auto at = transfers_.find(id);
    if (at == transfers_.end()) continue;  // canceled by a callback before
    std::vector<std::string> lines = at->second->exchange.take_lines();
    if (!lines.empty()) at->second->lines(std::move(lines));
  }
}

void Background::pass_on_ends() {
  std::vector<std::pair<CURL*, CURLcode>> ended;
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_, &left))
    if (message->msg == CURLMSG_DONE)
      ended.emplace_back(message->easy_handle, message->data.result);
  for (const auto& end : ended) {
    const auto at = std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& entry) {
      return entry.second->exchange.handle() == end.first;
    });
    if (at == transfers_.end()) continue;  // canceled by a callback before
    const auto transfer = take_out(at->first);
    transfer->done(transfer->exchange.finish(end.second));
  }
}

int Background::sleep_ms() const {
  if (timers_.empty()) return kSleepMsMax;
  const uint64_t now = monotonic_us();
  const uint64_t when = timers_.begin()->first;
  if (when <= now) return 0;
  return static_cast<int>(std::min<uint64_t>((when - now + 999) / 1000, kSleepMsMax));
}

}  // namespace strata::registry::internal
