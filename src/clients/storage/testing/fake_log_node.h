// A storage node's log service with one stream in memory, that does what the test says. It follows
// what quorum/messages.h asks of a replica, as far as logs that differ in their length only need.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/latch.h"
#include "proto/calls/calls.h"
#include "proto/calls/testing/other_build.h"
#include "proto/log_messages.h"
#include "transport/calls/rpc_server.h"
#include "transport/calls/testing/connections.h"

namespace strata::clients::testing {

class FakeLogNode {
 public:
  // `others`: methods that it lays out as another build does.
  FakeLogNode(const transport::World& world, const std::string& address,
              std::set<uint16_t> others = {})
      : others_(std::move(others)),
        server_(world, transport::test::secret_of('s'), transport::ServerOptions{}) {
    serve(proto::kLogSeal, [this](const transport::Request& call, Answer to) {
      answer(std::move(to), [&] { return seal(proto::decode_log_seal(call.payload)->request); });
    });
    serve(proto::kLogBegin, [this](const transport::Request& call, Answer to) {
      answer(std::move(to), [&] { return begin(proto::decode_log_begin(call.payload)->request); });
    });
    serve(proto::kLogCatchUp, [this](const transport::Request& call, Answer to) {
      answer(std::move(to),
             [&] { return catch_up(proto::decode_log_catch_up(call.payload)->request); });
    });
    serve(proto::kLogAppend, [this](const transport::Request& call, Answer to) {
      answer(std::move(to),
             [&] { return append(proto::decode_log_append(call.payload)->request); });
    });
    serve(proto::kLogRead, [this](const transport::Request& call, Answer to) {
      answer(std::move(to), [&] { return read(proto::decode_log_read(call.payload)->request); });
    });
    serve(proto::kLogTruncate, [this](const transport::Request& call, Answer to) {
      answer(std::move(to), [&] {
        const Lsn below = proto::decode_log_truncate(call.payload)->request.below;
        log_.erase(0, below.value - state_.start.value);
        state_.start = below;
        return std::string();
      });
    });
    serve(proto::kLogOrder, [this](const transport::Request& call, Answer to) {
      const quorum::CatchUpOrder order = proto::decode_log_order(call.payload)->request;
      const FakeLogNode* const from = peer(order.sources.front());
      if (from != nullptr) copy_from(*from, order.until);
      to.reply({});
    });
    EXPECT_TRUE(server_.listen(address).ok());
    state_.voting = true;
  }

  // --- what the test says ---

  void set_log(Lsn start, const std::string& log, Lsn quorum_durable, Epoch epoch) {
    const MutexLock lock(mutex_);
    log_ = log;
    state_.start = start;
    state_.end = Lsn{start.value + log.size()};
    state_.quorum_durable = quorum_durable;
    state_.last_epoch = epoch;
    history_ = {{epoch, start}};
  }
  void set_mute(bool mute) {  // requests get no answer, and are not carried out
    const MutexLock lock(mutex_);
    mute_ = mute;
  }
  void set_voting(bool voting) {  // false: until it has what a writer gives it
    const MutexLock lock(mutex_);
    state_.voting = voting;
  }
  void set_error(const Status& error) {  // of begins and appends
    const MutexLock lock(mutex_);
    error_ = error;
  }
  // Who is meant by a replica's number in orders to catch up; without it they are passed over.
  void set_peers(std::function<const FakeLogNode*(quorum::ReplicaIndex)> peer) {
    const MutexLock lock(mutex_);
    peer_ = std::move(peer);
  }
  void set_damaged(Lsn at) {  // nobody reads what begins before and ends behind it
    const MutexLock lock(mutex_);
    damaged_ = at;
  }

  // --- what there is ---

  [[nodiscard]] std::string log() const {
    const MutexLock lock(mutex_);
    return log_;
  }
  [[nodiscard]] quorum::ReplicaState state() const {
    const MutexLock lock(mutex_);
    return state_;
  }
  [[nodiscard]] std::vector<Lsn> told() const {  // to be quorum-durable
    const MutexLock lock(mutex_);
    return told_;
  }
  [[nodiscard]] int reads() const {
    const MutexLock lock(mutex_);
    return reads_;
  }

 private:
  using Answer = transport::Responder;
  void serve(uint16_t method, transport::Handler handler) {
    if (others_.contains(method))
      proto::testing::serve_as_other_build(&server_, method, std::move(handler));
    else
      proto::serve(&server_, method, std::move(handler));
  }
  const FakeLogNode* peer(quorum::ReplicaIndex number) const {
    const MutexLock lock(mutex_);
    return peer_ ? peer_(number) : nullptr;
  }
  void copy_from(const FakeLogNode& peer, Lsn until) {
    const std::string log = peer.log();
    const quorum::ReplicaState state = peer.state();
    const MutexLock lock(mutex_);
    if (mute_ || !error_.ok() || state.promised != state_.promised) return;
    log_ = log.substr(0, until.value - state.start.value);
    state_ = state;
    state_.end = state_.quorum_durable = until;
    history_ = quorum::begun({}, state.last_epoch, state.start);
  }
  template <class Run>
  void answer(Answer to, Run run) {
    std::string reply;
    {
      const MutexLock lock(mutex_);
      if (mute_) return mute_answers_.push_back(std::move(to));
      reply = run();
    }
    to.reply(std::move(reply));
  }
  std::string changed(const Status& status, Lsn next = {}) STRATA_REQUIRES(mutex_) {
    return proto::encode(quorum::ChangeReply{status, state_, next});
  }
  std::string seal(const quorum::SealRequest& request) STRATA_REQUIRES(mutex_) {
    Status status;
    if (request.holder.epoch < state_.promised)
      status = error_fenced("a higher epoch was promised");
    else
      state_.promised = request.holder.epoch;
    return proto::encode(quorum::SealReply{status, state_, history_});
  }
  std::string begin(const quorum::BeginRequest& request) STRATA_REQUIRES(mutex_) {
    const quorum::Tenure& tenure = request.tenure;
    if (tenure.holder.epoch < state_.promised) return changed(error_fenced("it was promised away"));
    if (!error_.ok()) return changed(error_);
    state_.promised = tenure.holder.epoch;
    if (state_.last_epoch == tenure.holder.epoch) return changed(ok_status());
    if (state_.end.value == 0) state_.start = state_.end = tenure.base;
    if (state_.end < tenure.start)
      return changed(error_out_of_range("bytes are missing"), state_.end);
    log_.resize(tenure.start.value - state_.start.value);
    state_.end = tenure.start;
    state_.last_epoch = tenure.holder.epoch;
    history_ = quorum::begun(tenure.history, tenure.holder.epoch, tenure.start);
    return changed(ok_status());
  }
  std::string catch_up(const quorum::CatchUpRequest& request) STRATA_REQUIRES(mutex_) {
    return add(request.at, request.bytes, request.quorum_durable);
  }
  std::string append(const quorum::AppendRequest& request) STRATA_REQUIRES(mutex_) {
    if (request.epoch < state_.promised) return changed(error_fenced("it was promised away"));
    if (request.epoch != state_.last_epoch) return changed(error_conflict("it has not begun here"));
    if (!error_.ok()) return changed(error_);
    told_.push_back(request.quorum_durable);
    return add(request.at, request.bytes, request.quorum_durable);
  }
  std::string add(Lsn at, const std::string& bytes, Lsn durable) STRATA_REQUIRES(mutex_) {
    if (at > state_.end) return changed(error_out_of_range("bytes are missing"), state_.end);
    const size_t known = state_.end.value - at.value;
    if (bytes.size() > known) log_ += bytes.substr(known);
    state_.end = Lsn{state_.start.value + log_.size()};
    state_.quorum_durable = std::max(state_.quorum_durable, std::min(durable, state_.end));
    state_.voting = true;
    return changed(ok_status());
  }
  std::string read(const quorum::ReadRequest& request) STRATA_REQUIRES(mutex_) {
    ++reads_;
    quorum::ReadReply reply;
    reply.from = request.from;
    reply.quorum_durable = state_.quorum_durable;
    reply.start = state_.start;
    reply.votes = state_.voting;
    const Lsn end = request.recovery ? state_.end : state_.quorum_durable;
    if (request.recovery && request.epoch != state_.promised) {
      reply.status = error_fenced("it was promised away");
    } else if (request.from < state_.start || request.from > end) {
      reply.status = error_out_of_range("it is not kept here");
    } else {
      reply.bytes =
          log_.substr(request.from.value - state_.start.value,
                      std::min<uint64_t>(request.bytes_max, end.value - request.from.value));
      const Lsn read_end{request.from.value + reply.bytes.size()};
      if (damaged_.value != 0 && request.from <= damaged_ && damaged_ < read_end) {
        reply.status = error_corruption("the log is damaged here");
        reply.bytes.clear();
      }
    }
    return proto::encode(reply);
  }

  std::function<const FakeLogNode*(quorum::ReplicaIndex)> peer_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  bool mute_ STRATA_GUARDED_BY(mutex_) = false;
  Status error_ STRATA_GUARDED_BY(mutex_);
  Lsn damaged_ STRATA_GUARDED_BY(mutex_);
  std::string log_ STRATA_GUARDED_BY(mutex_);
  quorum::ReplicaState state_ STRATA_GUARDED_BY(mutex_);
  quorum::History history_ STRATA_GUARDED_BY(mutex_);
  std::vector<Lsn> told_ STRATA_GUARDED_BY(mutex_);
  int reads_ STRATA_GUARDED_BY(mutex_) = 0;
  std::vector<transport::Responder> mute_answers_ STRATA_GUARDED_BY(mutex_);
  const std::set<uint16_t> others_;
  transport::RpcServer server_;  // first to end: its handlers use the rest
};

}  // namespace strata::clients::testing
