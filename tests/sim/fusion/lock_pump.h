// The memory node's row locks behind a mutex, and the threads of a server that carry its messages
// there and back, for tests with threads: messages are calls of functions.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "clients/fusion/fusion_locks.h"
#include "fusion/locks/row_locks.h"

namespace strata::sim {

// The memory node's row locks, and what brings messages to them and back.
class LockService {
 public:
  explicit LockService(Epoch epoch) : locks_(epoch, {}) {}
  StatusOr<proto::LockReply> exchange(const proto::LockBatch& batch) {
    const std::lock_guard lock(mutex_);
    StatusOr<proto::LockReply> reply = locks_.exchange(batch);
    changed_.notify_all();
    return reply;
  }
  // As exchange(), once there are events, or it is time to ask again.
  StatusOr<proto::LockReply> events(const proto::LockBatch& poll) {
    std::unique_lock lock(mutex_);
    proto::LockBatch batch = poll;
    for (int tries = 0; tries < 2; ++tries) {
      StatusOr<proto::LockReply> reply = locks_.exchange(batch);
      if (!reply.ok() || !reply->events.empty() || tries == 1) return reply;
      changed_.wait_for(lock, std::chrono::milliseconds(50));
    }
    return error_busy();
  }
  void gone(NodeId server) {
    const std::lock_guard lock(mutex_);
    locks_.gone(server);
    changed_.notify_all();
  }
  void tick(uint64_t now_us) {
    const std::lock_guard lock(mutex_);
    locks_.tick(now_us);
  }
  [[nodiscard]] fusion::RowLockCounters counters() {
    const std::lock_guard lock(mutex_);
    return locks_.counters();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  fusion::RowLocks locks_;
};

// A server's threads for its messages about row locks.
class LockPump {
 public:
  LockPump(clients::FusionLocks* locks, LockService* service, Epoch epoch)
      : locks_(locks), service_(service), epoch_(epoch) {
    locks_->use(epoch);
    sender_ = std::thread([this] { send(); });
    hearer_ = std::thread([this] { hear(); });
  }
  ~LockPump() { stop(); }
  void stop() {
    if (stopping_.exchange(true)) return;
    locks_->end();
    sender_.join();
    hearer_.join();
  }

 private:
  void send() {
    while (!stopping_.load()) {
      const auto batch = locks_->next_batch(20'000);
      if (!batch.has_value()) continue;
      const auto reply = service_->exchange(*batch);
      if (reply.ok()) locks_->heard(epoch_, *reply);
    }
  }
  void hear() {
    while (!stopping_.load()) {
      const proto::LockBatch batch = locks_->poll();
      const auto reply = service_->events(batch);
      if (reply.ok()) {
        locks_->heard(epoch_, *reply);
      } else {
        std::this_thread::yield();  // it has not reported yet, or has gone
      }
    }
  }
  clients::FusionLocks* const locks_;
  LockService* const service_;
  const Epoch epoch_;
  std::atomic<bool> stopping_{false};
  std::thread sender_, hearer_;
};

}  // namespace strata::sim
