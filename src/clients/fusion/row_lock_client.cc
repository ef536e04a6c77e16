#include "clients/fusion/row_lock_client.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "proto/fusion_messages.h"

namespace strata::clients {

using proto::LockBatch;
using proto::LockEvent;
using proto::LockEventKind;
using proto::LockReply;
using proto::LockRequest;
using proto::LockRequestKind;

// --- the memory node ---

void RowLockClient::use(Epoch epoch) {
  if (epoch <= epoch_ || ended_) return;
  epoch_ = epoch;
  last_batch_ = heard_ = deadlocks_told_ = 0;
  in_flight_.reset();
  outbox_.clear();
  for (auto it = rows_.begin(); it != rows_.end();) {
    const RowKey key = (it++)->first;
    rows_[key].told = false;
    tidy(key.first, key.second);
  }
  for (const auto& [trx, sharer] : sharers_)
    outbox_.insert(outbox_.end(), sharer.log.begin(), sharer.log.end());
  for (const auto& [trx, turn] : turns_)
    outbox_.push_back({.kind = LockRequestKind::kHasTurn,
                       .number = turn.number,
                       .trx = trx,
                       .index = turn.row.first,
                       .key = turn.row.second,
                       .ticket = turn.ticket});
  for (const auto& [number, call] : calls_) {
    if (call->request_.kind != LockRequestKind::kWait) continue;
    call->request_.announced = false;  // FQ3: everybody looks again
    outbox_.push_back(call->request_);
  }
  for (const IndexId index : consulted_)
    outbox_.push_back({.kind = LockRequestKind::kHeldConsult, .index = index});
  outbox_.push_back({.kind = LockRequestKind::kReported});
  for (const auto& [number, call] : calls_)
    if (call->request_.kind != LockRequestKind::kWait) outbox_.push_back(call->request_);
}

std::optional<LockBatch> RowLockClient::next_batch() {
  if (!has_batch() || ended_) return std::nullopt;
  if (!in_flight_.has_value()) {
    in_flight_ = poll();
    in_flight_->number = ++last_batch_;
    in_flight_->requests = take_some();
    ++counters_.batches;
  }
  in_flight_->heard = heard_;
  return in_flight_;
}

// What fits into one message (FN3). A report may be several: it ends with kReported.
std::vector<LockRequest> RowLockClient::take_some() {
  size_t count = 0;
  size_t bytes = 0;
  while (count < outbox_.size() && count < proto::kLockRequestsMax) {
    bytes += proto::encoded_bytes(outbox_[count]);
    if (count != 0 && bytes > proto::kLockMessageBytesMax) break;
    ++count;
  }
  if (count == outbox_.size()) return std::exchange(outbox_, {});
  const auto end = outbox_.begin() + static_cast<ptrdiff_t>(count);
  std::vector<LockRequest> some(std::make_move_iterator(outbox_.begin()),
                                std::make_move_iterator(end));
  outbox_.erase(outbox_.begin(), end);
  return some;
}

LockBatch RowLockClient::poll() const {
  LockBatch batch;
  batch.server = server_;
  batch.life = life_;
  batch.epoch = epoch_;
  batch.heard = heard_;
  return batch;
}

namespace {

// Damaged waits are nothing: they are for people only.
std::optional<DeadlockReport> deadlock_of(const LockEvent& event) {
  const auto waits = proto::decode_deadlock(event.key);
  if (!waits.ok() || waits->empty()) return std::nullopt;
  DeadlockReport report;
  report.victim = event.trx;
  for (size_t i = 0; i < waits->size(); ++i) {
    RowWait wait;
    wait.waiter = (*waits)[i].trx;
    wait.holder = (*waits)[(i + 1) % waits->size()].trx;
    wait.index = (*waits)[i].index;
    wait.key = (*waits)[i].key;
    report.waits.push_back(std::move(wait));
  }
  return report;
}

}  // namespace

std::vector<DeadlockReport> RowLockClient::take_deadlocks(Epoch epoch, const LockReply& reply) {
  std::vector<DeadlockReport> out;
  if (epoch != epoch_ || ended_) return out;
  uint64_t number = reply.first_event;
  for (const LockEvent& event : reply.events) {
    if (event.kind == LockEventKind::kDeadlock && number > std::max(heard_, deadlocks_told_)) {
      deadlocks_told_ = number;
      if (auto report = deadlock_of(event)) out.push_back(*std::move(report));
    }
    ++number;
  }
  return out;
}

void RowLockClient::heard(Epoch epoch, const LockReply& reply) {
  if (epoch != epoch_ || ended_) return;
  if (in_flight_.has_value() && reply.accepted >= in_flight_->number) in_flight_.reset();
  uint64_t number = reply.first_event;
  for (const LockEvent& event : reply.events) {
    if (number == heard_ + 1) {  // the others were heard before, or come again
      ++heard_;
      hear(event);
    }
    ++number;
  }
  joined_ |= reply.accepted != 0 && reply.active;
}

void RowLockClient::end() {
  ended_ = true;
  outbox_.clear();
  in_flight_.reset();
  const std::map<uint64_t, Call*> calls = std::move(calls_);
  calls_.clear();
  for (const auto& [number, call] : calls) {
    call->state = Call::State::kEnded;
    call->changed();
  }
}

void RowLockClient::ask(Call* call, LockRequest request) {
  request.number = ++last_number_;
  call->request_ = std::move(request);
  if (ended_) {
    call->state = Call::State::kEnded;
    return;
  }
  calls_[last_number_] = call;
  outbox_.push_back(call->request_);
}

void RowLockClient::over(Call* call, Call::State state) {
  const LockRequest& request = call->request_;
  calls_.erase(request.number);
  if (request.kind == LockRequestKind::kWait) {
    --rows_[RowKey{request.index, request.key}].waits;
    tidy(request.index, request.key);
  }
  call->state = state;
  call->changed();
}

void RowLockClient::hear(const LockEvent& event) {
  const auto found = calls_.find(event.number);
  Call* const call = found == calls_.end() ? nullptr : found->second;
  switch (event.kind) {
    case LockEventKind::kRegistered:
      if (call != nullptr) registered(call, event);
      return;
    case LockEventKind::kLook:
      if (call == nullptr) return;
      return let_look(call, event.trx, true);
    case LockEventKind::kGranted: {
      if (call == nullptr) return;  // FC12
      const LockRequest& request = call->request_;
      if (request.kind == LockRequestKind::kWait) {
        note_waited_for(request.trx);  // FC14
        turns_[request.trx] =
            Turn{RowKey{request.index, request.key}, request.number, event.ticket};
        ++row(request.index, request.key)->turns;
      }
      return over(call, Call::State::kDone);
    }
    case LockEventKind::kVictim:
      if (call != nullptr) over(call, Call::State::kVictim);
      return;
    case LockEventKind::kAdded:
      if (call == nullptr) return;
      log_shared(call->request_.trx, call->request_);
      return over(call, Call::State::kDone);
    case LockEventKind::kShared:
      if (call == nullptr) return;
      call->answer = event.trx;
      return over(call, Call::State::kDone);
    case LockEventKind::kWaitedFor:
      note_waited_for(event.trx);
      outbox_.push_back({.kind = LockRequestKind::kNoted, .holder = event.trx});
      return;
    case LockEventKind::kConsult:
      consult(event.index, event.flag);
      if (event.flag)
        outbox_.push_back(
            {.kind = LockRequestKind::kConsultHeard, .number = event.number, .index = event.index});
      return;
    case LockEventKind::kConfirm: {
      bool all = true;
      for (const uint64_t number : event.waits) all &= calls_.contains(number);
      outbox_.push_back({.kind = LockRequestKind::kConfirmed, .number = event.number, .flag = all});
      return;
    }
    case LockEventKind::kRowQueued:
      row(event.index, event.key)->told = event.flag;
      return tidy(event.index, event.key);
    case LockEventKind::kDescription:
      if (call == nullptr) return;
      call->text = event.key;
      return over(call, Call::State::kDone);
    case LockEventKind::kDeadlock:
      return;  // FC59
  }
}

void RowLockClient::registered(Call* call, const LockEvent& event) {
  call->request_.ticket = event.ticket;
  if (!event.flag) return;
  if (is_own(event.trx)) note_waited_for(event.trx);
  let_look(call, event.trx, is_own(event.trx) || event.trx.is_zero());
}

void RowLockClient::let_look(Call* call, TrxId at, bool told) {
  call->look_at = at;
  call->told = told;
  ++call->look;
  call->state = Call::State::kLook;
  call->changed();
}

// --- rows ---

RowLockClient::Row* RowLockClient::row(IndexId index, const std::string& key) {
  const auto [it, is_new] = rows_.try_emplace(RowKey{index, key});
  if (is_new) hints_->of(RowId{index, key}).fetch_add(1, std::memory_order_acq_rel);
  return &it->second;
}

void RowLockClient::tidy(IndexId index, const std::string& key) {
  const auto it = rows_.find(RowKey{index, key});
  if (it == rows_.end()) return;
  if (it->second.waits != 0 || it->second.turns != 0 || it->second.told) return;
  rows_.erase(it);
  hints_->of(RowId{index, key}).fetch_sub(1, std::memory_order_acq_rel);
}

void RowLockClient::note_waited_for(TrxId trx) {
  if (waited_for_.insert(trx).second) hints_->of(trx).fetch_add(1, std::memory_order_acq_rel);
}

bool RowLockClient::forget_waited_for(TrxId trx) {
  if (waited_for_.erase(trx) == 0) return false;
  hints_->of(trx).fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

void RowLockClient::wait(Call* call, TrxId trx, TrxId holder, RowId row_id, bool goes_first) {
  LockRequest request;
  request.kind = LockRequestKind::kWait;
  request.trx = trx;
  request.holder = holder;
  request.index = row_id.index;
  request.key = std::string(row_id.key);
  request.flag = goes_first;
  if (has_turn(trx, row_id)) {
    request.ticket = turns_.find(trx)->second.ticket;
    forget_turn(trx);
  } else if (const auto turn = turns_.find(trx); turn != turns_.end()) {
    const RowKey other = turn->second.row;
    settled(trx, RowId{other.first, other.second}, false);
  }
  ++row(request.index, request.key)->waits;
  ++counters_.waits;
  call->state = Call::State::kAsleep;
  if (!holder.is_zero() && is_own(holder)) {  // FU26
    note_waited_for(holder);
    request.announced = true;
    call->look_at = holder;
    call->told = true;
    ++call->look;
    call->state = Call::State::kLook;
  }
  ask(call, std::move(request));
}

void RowLockClient::looked(Call* call, uint64_t look, bool announced, bool held) {
  if (call->state != Call::State::kLook || call->look != look) return;
  ++counters_.looks;
  const LockRequest& request = call->request_;
  if (!held) {
    outbox_.push_back({.kind = LockRequestKind::kGone,
                       .number = request.number,
                       .trx = request.trx,
                       .holder = call->look_at,
                       .index = request.index,
                       .key = request.key});
  } else if (!announced && !call->told) {
    ++counters_.notes;
    outbox_.push_back({.kind = LockRequestKind::kNote,
                       .number = request.number,
                       .trx = request.trx,
                       .holder = call->look_at,
                       .index = request.index,
                       .key = request.key});
  }
  call->state = Call::State::kAsleep;
}

void RowLockClient::poll_found(Call* call) {
  if (call->state != Call::State::kAsleep) return;
  const LockRequest& request = call->request_;
  ++counters_.polls_asked;
  outbox_.push_back({.kind = LockRequestKind::kGone,
                     .number = request.number,
                     .trx = request.trx,
                     .holder = call->look_at,
                     .index = request.index,
                     .key = request.key,
                     .flag = true});
}

void RowLockClient::cancel(Call* call) {
  const LockRequest& request = call->request_;
  if (!calls_.contains(request.number)) return;
  outbox_.push_back({.kind = LockRequestKind::kCancel,
                     .number = request.number,
                     .trx = request.trx,
                     .index = request.index,
                     .key = request.key});
  over(call, Call::State::kDone);
}

bool RowLockClient::has_waiters(RowId row_id) const {
  return rows_.contains(RowKey{row_id.index, std::string(row_id.key)});
}

bool RowLockClient::has_turn(TrxId trx, RowId row_id) const {
  const auto turn = turns_.find(trx);
  return turn != turns_.end() && turn->second.row.first == row_id.index &&
         Bytes(turn->second.row.second) == row_id.key;
}

void RowLockClient::settled(TrxId trx, RowId row_id, bool took) {
  if (!has_turn(trx, row_id)) return;
  outbox_.push_back({.kind = LockRequestKind::kSettled,
                     .trx = trx,
                     .index = row_id.index,
                     .key = std::string(row_id.key),
                     .flag = took});
  forget_turn(trx);
}

void RowLockClient::forget_turn(TrxId trx) {
  const auto turn = turns_.find(trx);
  if (turn == turns_.end()) return;
  const RowKey key = turn->second.row;
  turns_.erase(turn);
  --row(key.first, key.second)->turns;
  tidy(key.first, key.second);
}

void RowLockClient::holder_ended(TrxId holder, bool word) {
  const bool noted = forget_waited_for(holder);
  if (!noted && !word) return;
  forget_turn(holder);
  ++counters_.ends_told;
  outbox_.push_back({.kind = LockRequestKind::kEnded, .trx = holder});
}

// --- shared locks and ranges ---

void RowLockClient::log_shared(TrxId trx, const LockRequest& request) {
  const auto [it, is_new] = sharers_.try_emplace(trx);
  if (is_new) hints_->sharers.fetch_add(1, std::memory_order_acq_rel);
  Sharer& sharer = it->second;
  const bool is_add =
      request.kind == LockRequestKind::kAddShared || request.kind == LockRequestKind::kAddRange;
  if (is_add) {
    ++sharer.adds[request.index];
    if (request.infinite && request.key.empty()) {  // nothing before it matters any more
      std::erase_if(sharer.log, [&](const LockRequest& r) { return r.index == request.index; });
      sharer.whole.insert(request.index);
    }
  } else if (!sharer.log.empty() && sharer.log.back().kind == LockRequestKind::kAddShared &&
             request.kind == LockRequestKind::kDropShared &&
             sharer.log.back().index == request.index && sharer.log.back().key == request.key) {
    sharer.log.pop_back();  // registered in vain
    --sharer.adds[request.index];
    return;
  }
  sharer.log.push_back(request);
  sharer.log.back().number = 0;
}

void RowLockClient::add_shared(Call* call, TrxId trx, RowId row_id) {
  call->state = Call::State::kAsleep;
  ask(call, {.kind = LockRequestKind::kAddShared,
             .trx = trx,
             .index = row_id.index,
             .key = std::string(row_id.key)});
}

void RowLockClient::add_range(Call* call, TrxId trx, IndexId index, const KeyRange& range) {
  call->state = Call::State::kAsleep;
  ask(call, {.kind = LockRequestKind::kAddRange,
             .trx = trx,
             .index = index,
             .key = std::string(range.low),
             .high = std::string(range.high),
             .infinite = range.infinite});
}

void RowLockClient::drop_shared(TrxId trx, RowId row_id) {
  LockRequest request{.kind = LockRequestKind::kDropShared,
                      .trx = trx,
                      .index = row_id.index,
                      .key = std::string(row_id.key)};
  log_shared(trx, request);
  outbox_.push_back(std::move(request));
}

void RowLockClient::drop_range_key(TrxId trx, RowId row_id) {
  LockRequest request{.kind = LockRequestKind::kDropRangeKey,
                      .trx = trx,
                      .index = row_id.index,
                      .key = std::string(row_id.key)};
  log_shared(trx, request);
  outbox_.push_back(std::move(request));
}

void RowLockClient::release_shared(TrxId trx) {
  if (sharers_.erase(trx) == 0) return;
  hints_->sharers.fetch_sub(1, std::memory_order_acq_rel);
  outbox_.push_back({.kind = LockRequestKind::kReleaseShared, .trx = trx});
}

void RowLockClient::wait_shared(Call* call, TrxId trx, RowId row_id) {
  call->state = Call::State::kAsleep;
  ask(call, {.kind = LockRequestKind::kWaitShared,
             .trx = trx,
             .index = row_id.index,
             .key = std::string(row_id.key)});
}

void RowLockClient::ask_shared(Call* call, TrxId trx, RowId row_id) {
  call->state = Call::State::kAsleep;
  ask(call, {.kind = LockRequestKind::kAskShared,
             .trx = trx,
             .index = row_id.index,
             .key = std::string(row_id.key)});
}

size_t RowLockClient::adds_in(TrxId trx, IndexId index) const {
  const auto sharer = sharers_.find(trx);
  if (sharer == sharers_.end()) return 0;
  const auto adds = sharer->second.adds.find(index);
  return adds == sharer->second.adds.end() ? 0 : adds->second;
}

bool RowLockClient::has_whole(TrxId trx, IndexId index) const {
  const auto sharer = sharers_.find(trx);
  return sharer != sharers_.end() && sharer->second.whole.contains(index);
}

void RowLockClient::consult(IndexId index, bool on) {
  if (on && consulted_.insert(index).second) {
    hints_->of(index).fetch_add(1, std::memory_order_seq_cst);
  } else if (!on && consulted_.erase(index) != 0) {
    hints_->of(index).fetch_sub(1, std::memory_order_seq_cst);
  }
}

void RowLockClient::describe(Call* call, uint64_t limit) {
  call->state = Call::State::kAsleep;
  ask(call, {.kind = LockRequestKind::kDescribe, .ticket = limit});
}

}  // namespace strata::clients
