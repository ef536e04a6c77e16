// The executor of real nodes: one thread, epoll, timers, tasks from other threads by eventfd. It
// sleeps whenever there is nothing to do.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/world.h"

namespace strata::transport {

class EventLoop final : public Executor {
 public:
  EventLoop();  // asserts that the system gives the few descriptors it needs
  // After run() has returned, or without it. Destroys what was posted and not run.
  ~EventLoop() override;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void run();   // until stop(); may be called again after it
  void stop();  // thread-safe; run() returns after the turn at hand

  [[nodiscard]] uint64_t now_ns() const override;
  void post(Task task) override;
  void run_or_post(Task task) override;
  [[nodiscard]] bool in_thread() const override;
  TimerId run_at(uint64_t when_ns, Task task) override;
  void cancel(TimerId id) override;

  // --- for streams and listeners, where in_thread() ---
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void on_events(uint32_t events) = 0;  // of epoll
  };
  using WatchId = uint64_t;
  // Level-triggered. The descriptor stays the caller's, who unwatches it before closing it.
  WatchId watch(int fd, uint32_t events, Watcher* watcher);
  void change(WatchId id, uint32_t events);
  void unwatch(WatchId id);  // no event after this, not even one already fetched
  // Where streams read to; contents last until the next read.
  [[nodiscard]] absl::Span<char> read_buffer() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// An EventLoop with a thread of its own, in which no signal is handled.
class IoThread {
 public:
  explicit IoThread(const char* name = "strata-io");
  ~IoThread();  // after everything that uses the loop is gone; blocks for the thread
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;
  [[nodiscard]] EventLoop* loop() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::transport
