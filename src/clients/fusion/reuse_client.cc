#include "clients/fusion/reuse_client.h"

#include <algorithm>

#include "base/thread_name.h"

namespace strata::clients {

void ReuseMarks::asked(uint64_t round) noexcept {
  again_ = again_ || (round != 0 && round <= reported_);
  asked_ = std::max(asked_, round);
}

std::optional<uint64_t> ReuseMarks::due(OwnOperations* own) noexcept {
  if (again_) return reported_;
  if (is_idle()) return std::nullopt;
  if (own == nullptr) return asked_;
  if (marked_ == 0) {
    marked_ = asked_;
    mark_ = own->mark();
  }
  if (!own->ended(mark_)) return std::nullopt;
  return marked_;
}

void ReuseMarks::reported(uint64_t round) noexcept {
  reported_ = std::max(reported_, round);
  again_ = false;
  if (marked_ <= reported_) marked_ = 0;
}

ReuseClient::ReuseClient(const ReuseClientOptions& options, ReuseService* service)
    : options_(options), service_(service) {
  thread_ = std::thread([this] { work(); });
}

ReuseClient::~ReuseClient() { stop(); }

void ReuseClient::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  interrupt_.interrupt();
  if (thread_.joinable()) thread_.join();
}

void ReuseClient::asked(const proto::ReuseAsk& ask) {
  const MutexLock lock(mutex_);
  marks_.asked(ask.round);
  (void)marks_.due(own_);  // takes the mark now: what begins later is not waited for
  changed_.notify_all();
}

StatusOr<uint64_t> ReuseClient::begin_round() {
  STRATA_ASSIGN_OR_RETURN(const uint64_t round, service_->begin_round());
  const MutexLock lock(mutex_);
  begun_ = std::max(begun_, round);
  return round;
}

uint64_t ReuseClient::last_round() const {
  const MutexLock lock(mutex_);
  return std::max(begun_, marks_.last_asked());
}

Status ReuseClient::join(NodeId, OwnOperations* own) {
  const MutexLock lock(mutex_);
  own_ = own;
  return ok_status();
}

void ReuseClient::leave(NodeId) noexcept {
  const MutexLock lock(mutex_);
  own_ = nullptr;
  changed_.notify_all();
}

void ReuseClient::work() {
  name_this_thread("page-reuse");
  const InterruptScope scope(&interrupt_);
  MutexLock lock(mutex_);
  while (!stopping_) {
    const std::optional<uint64_t> round = marks_.due(own_);
    if (!round.has_value()) {
      if (marks_.is_idle())
        changed_.wait(lock);
      else
        changed_.wait_for_us(lock, options_.look_us);
      continue;
    }
    lock.unlock();
    const Status reported = service_->report_round(*round);
    lock.lock();
    if (reported.ok())
      marks_.reported(*round);
    else if (!stopping_)
      changed_.wait_for_us(lock, options_.look_us);
  }
}

}  // namespace strata::clients
