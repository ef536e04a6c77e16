#include "quorum/catch_up.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::quorum {

BeginRequest CatchUp::begin_request() const {
  STRATA_ASSERT(state_ == State::kBegin);
  return {options_.tenure, options_.voter_end};
}

ReadRequest CatchUp::read_request() const {
  STRATA_ASSERT(state_ == State::kFetch);
  const Lsn to = begun_ ? options_.goal : options_.tenure.start;
  const uint64_t bytes = std::min<uint64_t>(to.value - position_.value, options_.bytes_max);
  return {position_, static_cast<uint32_t>(bytes), options_.recovery, options_.tenure.holder.epoch};
}

CatchUpRequest CatchUp::catch_up_request() const {
  STRATA_ASSERT(state_ == State::kStore);
  STRATA_ASSERT(!begun_);  // CU1
  return {options_.tenure, position_, bytes_, quorum_durable_};
}

AppendRequest CatchUp::append_request() const {
  STRATA_ASSERT(state_ == State::kStore);
  STRATA_ASSERT(begun_);
  return {options_.tenure.holder.epoch, position_, bytes_, quorum_durable_};
}

void CatchUp::go_on() {
  if (!begun_) {
    state_ = position_ < options_.tenure.start ? State::kFetch : State::kBegin;
  } else {
    state_ = position_ < options_.goal ? State::kFetch : State::kDone;
  }
}

bool CatchUp::on_target(const ChangeReply& reply) {
  if (state_ != State::kBegin && state_ != State::kStore) return false;
  if (reply.status.ok()) {
    target_ = reply.state;
    if (state_ == State::kBegin) begun_ = true;
    position_ = reply.state.end;
    bytes_.clear();
    go_on();
    return true;
  }
  if (is_out_of_range(reply.status)) {
    target_ = reply.state;
    // A replica that needs bytes from behind the epoch's start has begun it since.
    if (reply.next > options_.tenure.start && !begun_) return false;
    position_ = reply.next;
    bytes_.clear();
    go_on();
    return true;
  }
  const bool higher = reply.state.promised > options_.tenure.holder.epoch;
  if ((is_fenced(reply.status) && higher) || is_corruption(reply.status)) {
    state_ = State::kFailed;
    failure_ = reply.status;
    target_ = reply.state;
    return true;
  }
  if (is_fenced(reply.status) ||
      is_conflict(reply.status)) {  // not begun after all: it was replaced
    begun_ = false;
    bytes_.clear();
    state_ = State::kBegin;
  }
  return false;
}

bool CatchUp::on_read(ReadReply reply) {
  if (state_ != State::kFetch) return false;
  const Lsn to = begun_ ? options_.goal : options_.tenure.start;
  if (!reply.status.ok() || reply.bytes.empty() || reply.from != position_ ||
      reply.bytes.size() > to.value - position_.value)
    return false;
  bytes_ = std::move(reply.bytes);
  // CU2: the source may have begun a later epoch, of whose bytes the rest speaks.
  const Lsn read_to{position_.value + bytes_.size()};
  quorum_durable_ = std::max(quorum_durable_, std::min(reply.quorum_durable, read_to));
  state_ = State::kStore;
  return true;
}

bool CatchUp::raise_base(Lsn base) {
  if (state_ != State::kFetch || options_.recovery) return false;
  if (base <= position_ || base > options_.goal) return false;
  options_.tenure.base = base;
  begun_ = false;
  state_ = State::kBegin;
  return true;
}

}  // namespace strata::quorum
