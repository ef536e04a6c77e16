#include "memnode/host/live_log.h"

#include <algorithm>

#include "base/clock.h"
#include "base/latch.h"
#include "base/wait_interrupt.h"
#include "proto/calls/calls.h"
#include "proto/log_messages.h"
#include "proto/methods.h"

namespace strata::memnode {
namespace {

constexpr uint64_t kCallUs = 1'000'000;
constexpr uint64_t kPauseUs = 20'000;  // after all of them were asked

Status not_ours() { return error_unsupported("this log is another server's"); }

}  // namespace

LiveLog::LiveLog(const transport::Secret& secret, const clients::QuorumClientOptions& nodes,
                 Lsn from, Lsn end, uint64_t read_us_max)
    : secret_(secret), nodes_(nodes), from_(from), end_(end), read_us_max_(read_us_max) {
  for (const transport::Address& address : nodes_.addresses)
    channels_.push_back(std::make_unique<transport::BlockingChannel>(
        secret_, address, transport::BlockingChannelOptions{}));
}

StatusOr<size_t> LiveLog::read_from(size_t node, Lsn at, char* out, size_t bytes) {
  const quorum::ReadRequest request{
      at, static_cast<uint32_t>(std::min<size_t>(bytes, proto::kReadBytesMax)), false, {}};
  const auto call = proto::call_of(proto::kLogRead, monotonic_us() + kCallUs);
  transport::BlockingReply answer;
  STRATA_RETURN_IF_ERROR(
      channels_[node]->call(call, proto::encode(nodes_.stream, request), &answer));
  STRATA_ASSIGN_OR_RETURN(const quorum::ReadReply reply, proto::decode_read_reply(answer.payload));
  STRATA_RETURN_IF_ERROR(reply.status);
  if (reply.from != at || reply.bytes.size() > request.bytes_max)
    return error_corruption(locate(at) + ": a storage node answered with other bytes");
  if (reply.bytes.empty())
    return error_peer_down("a storage node does not know yet of all that is durable of " +
                           locate(at));
  return reply.bytes.copy(out, bytes);
}

// LVL1
StatusOr<size_t> LiveLog::read(Lsn at, char* out, size_t bytes) {
  if (at >= end_) return size_t{0};
  bytes = static_cast<size_t>(std::min<uint64_t>(bytes, end_.value - at.value));
  const uint64_t deadline_us = monotonic_us() + read_us_max_;
  Mutex mutex(LatchRank::kLeaf);
  CondVar never;
  for (;;) {
    Status last = error_peer_down("there are no storage nodes");
    for (size_t i = 0; i < channels_.size(); ++i) {
      const size_t node = (node_ + i) % channels_.size();
      const auto got = read_from(node, at, out, bytes);
      if (got.ok()) {
        node_ = node;
        return *got;
      }
      last = got.status();
    }
    if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
    if (monotonic_us() >= deadline_us) return last;
    MutexLock lock(mutex);
    never.wait_for_us(lock, kPauseUs);
  }
}

// LVL2
Status LiveLog::cut_at(Lsn end) {
  if (end <= end_) return ok_status();
  return error_corruption(locate(end) + " lies behind what its server has said to be durable");
}

Status LiveLog::prepare_room(Lsn) { return not_ours(); }
Status LiveLog::append(Lsn, Bytes) { return not_ours(); }
Status LiveLog::sync() { return not_ours(); }
Status LiveLog::truncate_below(Lsn) { return not_ours(); }

}  // namespace strata::memnode
