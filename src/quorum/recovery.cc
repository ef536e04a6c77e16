#include "quorum/recovery.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"

namespace strata::quorum {

Recovery::Recovery(const QuorumOptions& options, Holder holder, std::optional<Lsn> new_stream_start,
                   bool wait_for_start)
    : options_(options),
      holder_(holder),
      new_stream_start_(new_stream_start),
      wait_for_start_(wait_for_start) {
  STRATA_ASSERT(options.write_quorum <= options.replicas);
  // Otherwise two holders of one epoch could both find a quorum.
  STRATA_ASSERT(2 * options.write_quorum > options.replicas);
  replicas_.resize(options.replicas);
  for (ReplicaIndex i = 0; i < options.replicas; ++i) send(i, i, SealRequest{holder_});
}

std::vector<Outgoing> Recovery::take_requests() { return std::exchange(outgoing_, {}); }

void Recovery::send(ReplicaIndex target, ReplicaIndex replica, decltype(Outgoing::body) body) {
  const uint64_t id = ++last_id_;
  asked_[id] = {target, replica};
  outgoing_.push_back({replica, id, std::move(body)});
}

void Recovery::on_reply(uint64_t id, Reply reply) {
  const auto it = asked_.find(id);
  if (it == asked_.end()) return;
  const Asked asked = it->second;
  asked_.erase(it);
  if (state_ == State::kDone || state_ == State::kFailed) return;
  Replica& replica = replicas_[asked.target];
  if (auto* sealed = std::get_if<SealReply>(&reply)) {
    on_seal(asked.target, std::move(*sealed));
  } else if (replica.catch_up != nullptr) {
    bool got_on = false;
    if (auto* read = std::get_if<ReadReply>(&reply)) {
      got_on = replica.catch_up->on_read(std::move(*read));
      if (!got_on) ++replica.source_tries;
    } else {
      got_on = replica.catch_up->on_target(std::get<ChangeReply>(reply));
    }
    on_step(asked.target, got_on);
  }
}

void Recovery::on_lost(uint64_t id) {
  const auto it = asked_.find(id);
  if (it == asked_.end()) return;
  Replica& replica = replicas_[it->second.target];
  if (it->second.target != it->second.replica) ++replica.source_tries;
  replica.resting = true;
  asked_.erase(it);
}

void Recovery::tick() {
  if (state_ == State::kDone || state_ == State::kFailed) return;
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i) {
    if (!std::exchange(replicas_[i].resting, false)) continue;
    if (replicas_[i].catch_up != nullptr) {
      advance(i);
    } else if (!replicas_[i].sealed.has_value()) {
      send(i, i, SealRequest{holder_});
    }
  }
}

// --- sealing ---

uint32_t Recovery::votes() const noexcept {
  return static_cast<uint32_t>(std::count_if(
      replicas_.begin(), replicas_.end(),
      [](const Replica& r) { return r.sealed.has_value() && r.sealed->state.voting; }));
}

void Recovery::on_seal(ReplicaIndex index, SealReply reply) {
  if (is_fenced(reply.status) && reply.state.promised >= holder_.epoch)
    return fail(reply.status, reply.state.promised);
  if (!reply.status.ok()) {
    replicas_[index].resting = true;
    return;
  }
  replicas_[index].sealed = std::move(reply);
  if (state_ == State::kSealing && votes() >= options_.recovery_quorum()) return choose();
  if (state_ == State::kCopying) {  // late: it is brought to what was chosen
    replicas_[index].catch_up = std::make_unique<CatchUp>(CatchUp::Options{
        *tenure_, tenure_->start, tenure_->start, options_.request_bytes_max, true});
    advance(index);
  }
}

void Recovery::choose() {
  const SealReply* best = nullptr;
  Lsn acknowledged;
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i) {
    const std::optional<SealReply>& vote = replicas_[i].sealed;
    if (!vote.has_value()) continue;
    acknowledged = std::max(acknowledged, vote->state.quorum_durable);
    if (!vote->state.voting) continue;
    if (best != nullptr &&
        !is_newer(vote->state.last_epoch, vote->state.end, best->state.last_epoch, best->state.end))
      continue;
    best = &*vote;
    chosen_ = i;
  }
  Tenure tenure{holder_, best->state.end, best->state.start, best->history};
  if (tenure.history.empty()) {
    if (!new_stream_start_.has_value())
      return fail(error_corruption("no replica that votes knows of any epoch of a stream that has "
                                   "been written to; bring the missing replicas back"),
                  {});
    tenure.start = tenure.base = std::max(tenure.start, *new_stream_start_);
  }
  if (acknowledged > tenure.start)
    return fail(
        error_corruption("a replica knows of acknowledged bytes up to lsn " +
                         std::to_string(acknowledged.value) +
                         ", the newest log that votes ends at lsn " +
                         std::to_string(tenure.start.value) + "; bring the missing replicas back"),
        {});
  tenure_ = std::move(tenure);
  chosen_log_ = {chosen_, tenure_->base, std::max(acknowledged, tenure_->base), tenure_->start,
                 same_until()};
  state_ = State::kChosen;
  if (!wait_for_start_) copy();
}

std::vector<Lsn> Recovery::same_until() const {
  const LogShape chosen{tenure_->base, tenure_->start, tenure_->history};
  std::vector<Lsn> until(replicas_.size());
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i) {
    if (!replicas_[i].sealed.has_value()) continue;
    const SealReply& sealed = *replicas_[i].sealed;
    const auto agreed = agreed_end(chosen, {sealed.state.start, sealed.state.end, sealed.history});
    if (agreed.ok() && agreed->has_value()) until[i] = **agreed;
  }
  return until;
}

// RC4
void Recovery::begin_at(Lsn start) {
  if (state_ != State::kChosen) return;  // it failed meanwhile
  STRATA_ASSERT(start >= chosen_log_.quorum_durable && start <= chosen_log_.end);
  tenure_->start = start;
  tenure_->history = clipped(std::move(tenure_->history), start);
  copy();
}

void Recovery::copy() {
  state_ = State::kCopying;
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i) {
    if (!replicas_[i].sealed.has_value()) continue;
    replicas_[i].catch_up = std::make_unique<CatchUp>(CatchUp::Options{
        *tenure_, tenure_->start, tenure_->start, options_.request_bytes_max, true});
    advance(i);
  }
}

// --- copying ---

// Who has the whole chosen log.
std::vector<ReplicaIndex> Recovery::sources() const {
  std::vector<ReplicaIndex> found = {chosen_};
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i)
    if (i != chosen_ && replicas_[i].catch_up != nullptr &&
        replicas_[i].catch_up->state() == CatchUp::State::kDone)
      found.push_back(i);
  return found;
}

void Recovery::advance(ReplicaIndex target) {
  Replica& replica = replicas_[target];
  CatchUp& step = *replica.catch_up;
  switch (step.state()) {
    case CatchUp::State::kBegin:
      return send(target, target, step.begin_request());
    case CatchUp::State::kFetch: {
      const std::vector<ReplicaIndex> from = sources();
      return send(target, from[replica.source_tries % from.size()], step.read_request());
    }
    case CatchUp::State::kStore:
      if (step.stores_as_append()) return send(target, target, step.append_request());
      return send(target, target, step.catch_up_request());
    case CatchUp::State::kDone:
    case CatchUp::State::kFailed:
      return;
  }
}

void Recovery::on_step(ReplicaIndex target, bool got_on) {
  const CatchUp& step = *replicas_[target].catch_up;
  if (!got_on) {
    replicas_[target].resting = true;
    return;
  }
  if (step.state() == CatchUp::State::kFailed && is_fenced(step.failure()))
    return fail(step.failure(), step.target().promised);
  advance(target);
  const auto begun = std::count_if(replicas_.begin(), replicas_.end(), [](const Replica& r) {
    return r.catch_up != nullptr && r.catch_up->state() == CatchUp::State::kDone;
  });
  if (static_cast<uint32_t>(begun) >= options_.write_quorum) state_ = State::kDone;  // RC3
}

void Recovery::fail(Status status, Epoch fenced_by) {
  state_ = State::kFailed;
  failure_ = std::move(status);
  fenced_by_ = fenced_by;
}

}  // namespace strata::quorum
