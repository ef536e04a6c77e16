#include "base/wait_interrupt.h"

#include <utility>

namespace strata {
namespace {
thread_local WaitInterrupt* current_interrupt = nullptr;
}  // namespace

WaitInterrupt::Asleep::Asleep(WaitInterrupt* interrupt, Sleep* sleep) noexcept
    : interrupt_(interrupt) {
  if (interrupt_ == nullptr) return;
  const MutexLock guard(interrupt_->mutex_);
  before_ = std::exchange(interrupt_->sleep_, sleep);
}

WaitInterrupt::Asleep::~Asleep() {
  if (interrupt_ == nullptr) return;
  const MutexLock guard(interrupt_->mutex_);
  interrupt_->sleep_ = before_;
}

void WaitInterrupt::interrupt() noexcept {
  flag_.store(true, std::memory_order_release);
  const MutexLock guard(mutex_);
  if (sleep_ != nullptr) sleep_->wake();
}

WaitInterrupt* WaitInterrupt::current() noexcept { return current_interrupt; }

InterruptScope::InterruptScope(WaitInterrupt* interrupt) noexcept
    : before_(std::exchange(current_interrupt, interrupt)) {}

InterruptScope::~InterruptScope() { current_interrupt = before_; }

}  // namespace strata
