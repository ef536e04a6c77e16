#include "storenode/service/stream_log_view.h"

#include "base/assert.h"

namespace strata::storenode {

Lsn StreamLogView::begin_lsn() const {
  const auto state = store_->state(stream_);
  return state.ok() && !state->last_epoch.is_zero() ? state->start : begin_;
}

Lsn StreamLogView::durable_lsn() const {
  const auto state = store_->state(stream_);
  return state.ok() && !state->last_epoch.is_zero() ? state->quorum_durable : begin_;
}

Status StreamLogView::read(Lsn from, char* out, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const quorum::ReadReply reply = store_->read(
        stream_, {Lsn{from.value + done}, static_cast<uint32_t>(bytes - done), false, {}});
    STRATA_RETURN_IF_ERROR(reply.status);
    STRATA_ASSERT(reply.from.value == from.value + done);
    if (reply.bytes.empty() || reply.bytes.size() > bytes - done)
      return error_internal("the log store gave " + std::to_string(reply.bytes.size()) +
                            " bytes for " + std::to_string(bytes - done));
    done += reply.bytes.copy(out + done, bytes - done);
  }
  return ok_status();
}

void StreamLogView::notify_beyond(Lsn beyond, std::function<void()> notify) {
  if (store_->state(stream_).ok()) {
    // The stream is there, and streams stay: it is not refused. The ticket is of no use here.
    store_->tail(stream_, beyond, notify).IgnoreError();
    return;
  }
  {
    const MutexLock lock(mutex_);
    waiters_.emplace_back(beyond, std::move(notify));
  }
  // It may have been made in between, and told nobody.
  if (store_->state(stream_).ok()) stream_made();
}

void StreamLogView::stream_made() {
  std::vector<Waiter> waiters;
  {
    const MutexLock lock(mutex_);
    waiters.swap(waiters_);
  }
  for (Waiter& waiter : waiters) notify_beyond(waiter.first, std::move(waiter.second));
}

}  // namespace strata::storenode
