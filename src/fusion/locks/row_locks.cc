#include "fusion/locks/row_locks.h"

#include <algorithm>
#include <utility>

#include "proto/fusion_messages.h"

namespace strata::fusion {

using proto::LockBatch;
using proto::LockEvent;
using proto::LockEventKind;
using proto::LockReply;
using proto::LockRequest;
using proto::LockRequestKind;

RowLocks::RowLocks(Epoch epoch, const std::vector<NodeId>& expected, const RowLockOptions& options)
    : epoch_(epoch), options_(options), active_(expected.empty()) {
  for (const NodeId server : expected) expected_.insert(server.value);
}
RowLocks::~RowLocks() = default;

// --- servers ---

StatusOr<LockReply> RowLocks::exchange(const LockBatch& batch) {
  if (batch.epoch != epoch_) return error_withdrawn("row locks are kept under another epoch");
  auto session = sessions_.find(batch.server.value);
  if (session == sessions_.end()) {
    if (batch.number != 1) return error_withdrawn("this server has to report its row locks first");
    session = sessions_.emplace(batch.server.value, Session{.life = batch.life}).first;
  }
  Session& s = session->second;
  if (batch.life != s.life) return error_fenced("another life of this server is there");
  const bool heard_too_much = batch.heard >= s.first_event + s.events.size();
  if (batch.number > s.accepted + 1 || heard_too_much)
    return error_invalid_argument("messages about row locks are missing");
  if (batch.number == s.accepted + 1) {
    s.accepted = batch.number;
    for (const LockRequest& request : batch.requests) {
      // FQ6. A report is heard at once, what follows it waits.
      if (active_ || !s.reported) {
        process(batch.server, request);
      } else {
        backlog_.emplace_back(batch.server, request);
      }
    }
  }
  while (!s.events.empty() && s.first_event <= batch.heard) {
    s.events.pop_front();
    ++s.first_event;
  }
  LockReply reply;
  reply.accepted = s.accepted;
  reply.first_event = s.first_event;
  const size_t told = std::min(s.events.size(), options_.events_max);
  reply.events.assign(s.events.begin(), s.events.begin() + static_cast<ptrdiff_t>(told));
  reply.active = active_ && told == s.events.size();  // FQ5: who joins has heard all of it
  return reply;
}

bool RowLocks::has_events(NodeId server) const {
  const auto session = sessions_.find(server.value);
  return session != sessions_.end() && !session->second.events.empty();
}

void RowLocks::send(NodeId server, LockEvent event) {
  const auto session = sessions_.find(server.value);
  if (session != sessions_.end()) session->second.events.push_back(std::move(event));
}

void RowLocks::process(NodeId server, const LockRequest& request) {
  switch (request.kind) {
    case LockRequestKind::kWait:
      return wait(server, request);
    case LockRequestKind::kCancel:
      return cancel(server, request);
    case LockRequestKind::kGone:
      return holder_is_gone(server, request);
    case LockRequestKind::kNote:
      // Whoever adopts the place hears of it then.
      return send(owner_of(request.holder),
                  {.kind = LockEventKind::kWaitedFor, .trx = request.holder});
    case LockRequestKind::kNoted:
      return noted(request.holder);
    case LockRequestKind::kSettled:
      return settled(request);
    case LockRequestKind::kEnded:
      return ended(server, request.trx);
    case LockRequestKind::kWaitShared:
      return wait_shared(server, request);
    case LockRequestKind::kAddShared:
    case LockRequestKind::kAddRange:
      return add(server, request);
    case LockRequestKind::kDropShared:
      shared_.drop_row(request.trx, request.index, request.key);
      return shared_changed(request.index);
    case LockRequestKind::kDropRangeKey:
      shared_.drop_key(request.trx, request.index, request.key);
      return shared_changed(request.index);
    case LockRequestKind::kReleaseShared:
      for (const IndexId index : shared_.release(request.trx)) shared_changed(index);
      return;
    case LockRequestKind::kConsultHeard:
      return consult_heard(server, request.index, request.number);
    case LockRequestKind::kAskShared: {
      const std::vector<TrxId> holders =
          shared_.holders_of(request.index, request.key, request.trx);
      return send(server, {.kind = LockEventKind::kShared,
                           .number = request.number,
                           .trx = holders.empty() ? TrxId{} : holders.front()});
    }
    case LockRequestKind::kConfirmed:
      return confirmed(server, request.number, request.flag);
    case LockRequestKind::kDescribe:
      return send(server, {.kind = LockEventKind::kDescription,
                           .number = request.number,
                           .key = describe(request.ticket)});
    case LockRequestKind::kHasTurn:
      return has_turn(server, request);
    case LockRequestKind::kHeldConsult: {
      // It goes on asking until it hears otherwise, and is told to again, under this epoch's
      // number, with everybody else.
      Consult& consult = consults_[request.index];
      if (!active_) {
        consult.on = true;
      } else if (!consult.on) {
        send(server,
             {.kind = LockEventKind::kConsult, .number = consult.change, .index = request.index});
      }
      return;
    }
    case LockRequestKind::kReported:
      return report_ends(server);
  }
}

void RowLocks::report_ends(NodeId server) {
  Session& session = sessions_.find(server.value)->second;
  if (session.reported) return;
  session.reported = true;
  owners_[server.value] = server;
  if (active_) {
    for (auto& [index, consult] : consults_) {
      if (!consult.on) continue;
      consult.awaited.insert(server.value);
      send(server, {.kind = LockEventKind::kConsult,
                    .number = consult.change,
                    .index = index,
                    .flag = true});
    }
    return adopted(server, server);
  }
  expected_.erase(server.value);
  if (expected_.empty()) activate();
}

// FQ6
void RowLocks::activate() {
  active_ = true;
  for (auto& [index, consult] : consults_)
    if (consult.on) set_consult(index, &consult, true);
  std::vector<Queue*> all;
  for (auto& [row, queue] : queues_) all.push_back(queue.get());
  for (Queue* const queue : all) {
    if (!queue->retrier.is_zero()) continue;
    if (queue->waits.empty()) {
      erase_if_idle(queue);
      continue;
    }
    const Wait& first = *queue->waits.front();
    set_holder(queue, first.holder);
    tell_queued(queue);
    look(first, first.holder);
  }
  std::vector<TrxId> waiting;
  for (const auto& [trx, wait] : waiting_) waiting.push_back(trx);
  for (const TrxId trx : waiting) search(trx);
  std::vector<IndexId> waited_for;
  for (const auto& [index, waits] : shared_waits_) waited_for.push_back(index);
  for (const IndexId index : waited_for) shared_changed(index);
  const auto backlog = std::move(backlog_);
  backlog_.clear();
  for (const auto& [server, request] : backlog) process(server, request);
}

void RowLocks::gone(NodeId server) {
  sessions_.erase(server.value);
  for (auto it = owners_.begin(); it != owners_.end();)
    it = it->second == server ? owners_.erase(it) : std::next(it);
  std::erase_if(backlog_, [server](const auto& entry) { return entry.first == server; });
  for (auto& [index, consult] : consults_)
    std::erase_if(consult.deferred, [server](const auto& entry) { return entry.first == server; });
  std::vector<IndexId> changed;
  for (const TrxId holder : shared_.holders_of_node(server))
    for (const IndexId index : shared_.release(holder)) changed.push_back(index);
  std::vector<uint64_t> waits;
  for (const auto& [key, wait] : waits_)
    if (wait->server == server) waits.push_back(wait->number);
  for (const uint64_t number : waits)  // the turn may pass to one of them meanwhile
    if (Wait* const wait = find_wait(server, number)) give_up(wait);
  std::vector<RowKey> turns;
  for (auto& [row, queue] : queues_) {
    queue->told.erase(server.value);
    if (!queue->retrier.is_zero() && queue->turn.first == server.value) turns.push_back(row);
  }
  for (const RowKey& row : turns)
    if (Queue* const queue = find_queue(row)) pass_turn(queue);
  for (const IndexId index : changed) shared_changed(index);
  for (const auto& [holder, rows] : by_holder_) {
    if (!owner_of(holder).is_zero()) continue;
    for (const RowKey& row : rows) {
      const Queue* const queue = find_queue(row);
      if (queue->retrier.is_zero() && !queue->waits.empty()) look(*queue->waits.front(), holder);
    }
  }
  for (auto& [index, consult] : consults_) {
    if (consult.awaited.erase(server.value) == 0 || !consult.awaited.empty()) continue;
    run_deferred(&consult);
  }
  std::vector<uint64_t> answered;
  for (auto& [number, cycle] : cycles_) {
    if (cycle.awaited.erase(server.value) == 0) continue;
    cycle.refused = true;
    if (cycle.awaited.empty()) answered.push_back(number);
  }
  for (const uint64_t number : answered) conclude(number);
  if (expected_.erase(server.value) != 0 && expected_.empty() && !active_) activate();
}

// FQ3
void RowLocks::adopted(NodeId place, NodeId by) {
  owners_[place.value] = by;
  for (const auto& [holder, rows] : by_holder_)
    if (node_of(holder) == place) send(by, {.kind = LockEventKind::kWaitedFor, .trx = holder});
}

NodeId RowLocks::owner_of(TrxId trx) const {
  const auto owner = owners_.find(node_of(trx).value);
  return owner == owners_.end() ? NodeId{} : owner->second;
}

// --- rows ---

RowLocks::Queue* RowLocks::find_queue(const RowKey& row) {
  const auto it = queues_.find(row);
  return it == queues_.end() ? nullptr : it->second.get();
}

RowLocks::Queue* RowLocks::queue_of(const RowKey& row) {
  std::unique_ptr<Queue>& queue = queues_[row];
  if (queue == nullptr) {
    queue = std::make_unique<Queue>();
    queue->row = row;
  }
  return queue.get();
}

void RowLocks::set_holder(Queue* queue, TrxId holder) {
  if (queue->holder == holder) return;
  if (!queue->holder.is_zero()) {
    const auto it = by_holder_.find(queue->holder);
    it->second.erase(queue->row);
    if (it->second.empty()) by_holder_.erase(it);
  }
  queue->holder = holder;
  if (!holder.is_zero()) by_holder_[holder].insert(queue->row);
}

// Newcomers of the holder's server queue; those of the waiters' servers know by themselves.
void RowLocks::tell_queued(Queue* queue) {
  if (queue->waits.empty() || queue->holder.is_zero()) return;
  const NodeId server = owner_of(queue->holder);
  if (!sessions_.contains(server.value) || !queue->told.insert(server.value).second) return;
  send(server, {.kind = LockEventKind::kRowQueued,
                .index = queue->row.first,
                .key = queue->row.second,
                .flag = true});
}

void RowLocks::erase_if_idle(Queue* queue) {
  if (!queue->waits.empty() || !queue->retrier.is_zero()) return;
  set_holder(queue, TrxId{});
  for (const uint8_t server : queue->told)
    send(NodeId{server},
         {.kind = LockEventKind::kRowQueued, .index = queue->row.first, .key = queue->row.second});
  queues_.erase(RowKey(queue->row));
}

// FQ1
void RowLocks::insert(Queue* queue, Wait* wait) {
  auto at = queue->waits.begin();
  while (at != queue->waits.end() && ((*at)->goes_first && !wait->goes_first)) ++at;
  if (!wait->goes_first)
    while (at != queue->waits.end() && (*at)->ticket < wait->ticket) ++at;
  wait->at = queue->waits.insert(at, wait);
  wait->queue = queue;
}

void RowLocks::look(const Wait& wait, TrxId holder) {
  send(wait.server, {.kind = LockEventKind::kRegistered,
                     .number = wait.number,
                     .trx = holder,
                     .ticket = wait.ticket,
                     .flag = true});
}

RowLocks::Wait* RowLocks::find_wait(NodeId server, uint64_t number) {
  const auto it = waits_.find(WaitKey{server.value, number});
  return it == waits_.end() ? nullptr : it->second.get();
}

// The transaction waits for nothing any more. Its queue may be idle by then.
void RowLocks::forget(Wait* wait) {
  if (wait->queue != nullptr) {
    wait->queue->waits.erase(wait->at);
  } else {
    const auto waits = shared_waits_.find(wait->row.first);
    waits->second.erase(wait->at);
    if (waits->second.empty()) shared_waits_.erase(waits);
  }
  waiting_.erase(wait->trx);
  waits_.erase(WaitKey{wait->server.value, wait->number});
}

// It leaves without the turn. If it was next, the case of whoever follows may be another one: that
// one looks for itself.
void RowLocks::give_up(Wait* wait) {
  Queue* const queue = wait->queue;
  const bool was_first = queue != nullptr && queue->waits.front() == wait;
  forget(wait);
  if (queue == nullptr) return;
  if (was_first && queue->retrier.is_zero()) return pass_turn(queue);
  erase_if_idle(queue);
}

// The first one may try again; until it settles it counts as the holder.
void RowLocks::pass_turn(Queue* queue, NodeId releasing) {
  queue->retrier = TrxId{};
  if (queue->waits.empty()) return erase_if_idle(queue);
  if (!active_) return;
  Wait* next = queue->waits.front();
  if (!releasing.is_zero() && next->server != releasing && !next->goes_first &&
      next->overtaken < options_.overtaken_max) {  // FQ2
    const auto near = std::find_if(queue->waits.begin(), queue->waits.end(),
                                   [releasing](Wait* w) { return w->server == releasing; });
    if (near != queue->waits.end()) {
      ++next->overtaken;
      next = *near;
      ++counters_.overtaken;
    }
  }
  const NodeId server = next->server;
  const uint64_t number = next->number;
  const uint64_t ticket = next->ticket;
  const TrxId trx = next->trx;
  forget(next);
  queue->retrier = trx;
  queue->turn = WaitKey{server.value, number};
  set_holder(queue, trx);
  ++counters_.turns;
  send(server, {.kind = LockEventKind::kGranted, .number = number, .ticket = ticket});
}

void RowLocks::wait(NodeId server, const LockRequest& request) {
  if (find_wait(server, request.number) != nullptr) return;  // FQ8
  if (const auto other = waiting_.find(request.trx); other != waiting_.end())
    give_up(other->second);
  Queue* const queue = queue_of(RowKey{request.index, request.key});
  const bool again = queue->retrier == request.trx;
  if (again) queue->retrier = TrxId{};
  auto owned = std::make_unique<Wait>();
  Wait* const wait = owned.get();
  wait->server = server;
  wait->number = request.number;
  wait->trx = request.trx;
  wait->holder = request.holder;
  wait->row = queue->row;
  wait->goes_first = request.flag;
  wait->ticket = request.ticket != 0 ? request.ticket : last_ticket_ + 1;
  last_ticket_ = std::max(last_ticket_, wait->ticket);
  waits_.emplace(WaitKey{server.value, request.number}, std::move(owned));
  waiting_[wait->trx] = wait;
  insert(queue, wait);
  ++counters_.waits;
  if (!active_) return;
  if (queue->waits.front() == wait && queue->retrier.is_zero()) {
    if (request.holder.is_zero()) return pass_turn(queue);
    set_holder(queue, request.holder);
    if (!request.announced) {
      look(*wait, request.holder);
    } else {
      send(server,
           {.kind = LockEventKind::kRegistered, .number = wait->number, .ticket = wait->ticket});
    }
  } else {
    send(server,
         {.kind = LockEventKind::kRegistered, .number = wait->number, .ticket = wait->ticket});
    if (again) pass_turn(queue);  // it gave its turn up to one that must come first
  }
  // The turn may have changed hands, the queue is there: it waits in it.
  if (const auto still = waiting_.find(request.trx);
      still != waiting_.end() && still->second->queue != nullptr)
    tell_queued(still->second->queue);
  search(request.trx);
}

void RowLocks::has_turn(NodeId server, const LockRequest& request) {
  if (active_) return;  // of a report that nobody waited for: it looks for itself
  Queue* const queue = queue_of(RowKey{request.index, request.key});
  if (!queue->retrier.is_zero()) return;  // FQ8
  queue->retrier = request.trx;
  queue->turn = WaitKey{server.value, request.number};
  set_holder(queue, request.trx);
  last_ticket_ = std::max(last_ticket_, request.ticket);
}

void RowLocks::cancel(NodeId server, const LockRequest& request) {
  if (Wait* const wait = find_wait(server, request.number)) return give_up(wait);
  Queue* const queue = find_queue(RowKey{request.index, request.key});
  if (queue == nullptr || queue->retrier.is_zero()) return;
  if (queue->turn == WaitKey{server.value, request.number}) pass_turn(queue);
}

void RowLocks::holder_is_gone(NodeId server, const LockRequest& request) {
  Wait* const wait = find_wait(server, request.number);
  if (wait == nullptr || wait->queue == nullptr) return;
  Queue* const queue = wait->queue;
  if (queue->waits.front() != wait || !queue->retrier.is_zero()) return;
  if (queue->holder != request.holder) return;
  if (request.flag) ++counters_.polls_found;
  pass_turn(queue);
}

void RowLocks::settled(const LockRequest& request) {
  Queue* const queue = find_queue(RowKey{request.index, request.key});
  if (queue == nullptr) return;
  const bool had_turn = queue->retrier == request.trx;
  if (!request.flag) {
    // Another holder may end at any moment without seeing this queue: the next one looks for
    // itself.
    if (had_turn) pass_turn(queue);
    return;
  }
  if (had_turn) queue->retrier = TrxId{};
  if (!queue->retrier.is_zero()) return;
  set_holder(queue, request.trx);
  tell_queued(queue);
  erase_if_idle(queue);
}

void RowLocks::ended(NodeId server, TrxId holder) {
  const auto it = by_holder_.find(holder);
  if (it == by_holder_.end()) return;
  const std::vector<RowKey> rows(it->second.begin(), it->second.end());
  for (const RowKey& row : rows) pass_turn(find_queue(row), server);
}

void RowLocks::noted(TrxId holder) {
  const auto it = by_holder_.find(holder);
  if (it == by_holder_.end()) return;
  for (const RowKey& row : it->second) {
    const Queue* const queue = find_queue(row);
    if (!queue->retrier.is_zero() || queue->waits.empty()) continue;
    const Wait& first = *queue->waits.front();
    send(first.server, {.kind = LockEventKind::kLook, .number = first.number, .trx = holder});
  }
}

// --- shared locks ---

void RowLocks::set_consult(IndexId index, Consult* consult, bool on) {
  consult->on = on;
  consult->idle_since_us = 0;
  consult->awaited.clear();
  ++consult->change;
  ++counters_.consults;
  for (const auto& [server, session] : sessions_) {
    if (on) consult->awaited.insert(server);
    send(NodeId{server},
         {.kind = LockEventKind::kConsult, .number = consult->change, .index = index, .flag = on});
  }
}

void RowLocks::add(NodeId server, const LockRequest& request) {
  if (!active_) {  // of a report: it counts, and its writers ask
    consults_[request.index].on = true;
    return add_now(server, request);
  }
  Consult& consult = consults_[request.index];
  if (!consult.on) set_consult(request.index, &consult, true);
  if (consult.awaited.empty()) return add_now(server, request);
  consult.deferred.emplace_back(server, request);
}

void RowLocks::add_now(NodeId server, const LockRequest& request) {
  if (request.kind == LockRequestKind::kAddShared) {
    shared_.add_row(request.trx, request.index, request.key);
  } else {
    shared_.add_range(request.trx, request.index, request.key, request.high, request.infinite);
  }
  consults_[request.index].idle_since_us = 0;
  if (request.number != 0) send(server, {.kind = LockEventKind::kAdded, .number = request.number});
}

void RowLocks::run_deferred(Consult* consult) {
  const auto deferred = std::move(consult->deferred);
  consult->deferred.clear();
  for (const auto& [server, request] : deferred) add_now(server, request);
}

void RowLocks::consult_heard(NodeId server, IndexId index, uint64_t change) {
  const auto it = consults_.find(index);
  if (it == consults_.end() || it->second.change != change) return;
  if (it->second.awaited.erase(server.value) != 0 && it->second.awaited.empty())
    run_deferred(&it->second);
}

void RowLocks::wait_shared(NodeId server, const LockRequest& request) {
  if (find_wait(server, request.number) != nullptr) return;
  if (const auto other = waiting_.find(request.trx); other != waiting_.end())
    give_up(other->second);
  if (active_ && shared_.holders_of(request.index, request.key, request.trx).empty())
    return send(server, {.kind = LockEventKind::kGranted, .number = request.number});
  auto owned = std::make_unique<Wait>();
  Wait* const wait = owned.get();
  wait->server = server;
  wait->number = request.number;
  wait->trx = request.trx;
  wait->row = RowKey{request.index, request.key};
  wait->ticket = ++last_ticket_;
  waits_.emplace(WaitKey{server.value, request.number}, std::move(owned));
  waiting_[wait->trx] = wait;
  std::list<Wait*>& waits = shared_waits_[request.index];
  wait->at = waits.insert(waits.end(), wait);
  ++counters_.waits;
  search(request.trx);
}

void RowLocks::shared_changed(IndexId index) {
  if (!active_) return;
  const auto it = shared_waits_.find(index);
  if (it == shared_waits_.end()) return;
  const std::vector<Wait*> waits(it->second.begin(), it->second.end());
  for (Wait* const wait : waits) {
    if (!shared_.holders_of(index, wait->row.second, wait->trx).empty()) continue;
    send(wait->server, {.kind = LockEventKind::kGranted, .number = wait->number});
    forget(wait);
  }
}

void RowLocks::tick(uint64_t now_us) {
  if (!active_) return;
  for (auto& [index, consult] : consults_) {
    if (!consult.on) continue;
    if (shared_.any_in(index) || !consult.awaited.empty()) {
      consult.idle_since_us = 0;
    } else if (consult.idle_since_us == 0) {
      consult.idle_since_us = now_us;
    } else if (now_us - consult.idle_since_us >= options_.consult_idle_us) {
      set_consult(index, &consult, false);
    }
  }
}

// --- deadlocks ---

// Whom it waits for. Of a queue the holder and the first one: those between have no edges that
// these two have not.
std::vector<TrxId> RowLocks::edges_of(TrxId trx) const {
  const auto it = waiting_.find(trx);
  if (it == waiting_.end()) return {};
  const Wait& wait = *it->second;
  if (wait.queue == nullptr) return shared_.holders_of(wait.row.first, wait.row.second, trx);
  std::vector<TrxId> out;
  if (!wait.queue->holder.is_zero() && wait.queue->holder != trx) out.push_back(wait.queue->holder);
  if (wait.queue->waits.front() != &wait) out.push_back(wait.queue->waits.front()->trx);
  return out;
}

// Depth first. One cycle at a time: what else there is is found when this one is over.
void RowLocks::search(TrxId start) {
  if (!active_ || !waiting_.contains(start)) return;
  for (const auto& [number, cycle] : cycles_)
    if (cycle.start == start) return;
  struct Step {
    TrxId trx;
    std::vector<TrxId> edges;
    size_t next = 0;
  };
  std::map<TrxId, bool> seen;  // true while on the path
  std::vector<Step> path;
  const auto enter = [&](TrxId trx) {
    seen[trx] = true;
    path.push_back(Step{trx, edges_of(trx)});
  };
  enter(start);
  while (!path.empty()) {
    Step& step = path.back();
    if (step.next == step.edges.size()) {
      seen[step.trx] = false;
      path.pop_back();
      continue;
    }
    const TrxId to = step.edges[step.next++];
    const auto met = seen.find(to);
    if (met == seen.end()) {
      enter(to);
    } else if (met->second) {
      std::vector<TrxId> cycle;
      for (const Step& on : path)
        if (!cycle.empty() || on.trx == to) cycle.push_back(on.trx);
      return confirm(start, cycle, to == start ? start : cycle.back());
    }
  }
}

// FQ4
void RowLocks::confirm(TrxId start, const std::vector<TrxId>& path, TrxId victim) {
  const uint64_t number = ++last_cycle_;
  Cycle& cycle = cycles_[number];
  cycle.start = start;
  std::map<uint8_t, std::vector<uint64_t>> by_server;
  for (const TrxId trx : path) {
    const Wait& wait = *waiting_.find(trx)->second;
    if (trx == victim) cycle.victim = cycle.members.size();
    cycle.members.push_back({WaitKey{wait.server.value, wait.number}, trx});
    by_server[wait.server.value].push_back(wait.number);
  }
  for (auto& [server, waits] : by_server) {
    cycle.awaited.insert(server);
    LockEvent event;
    event.kind = LockEventKind::kConfirm;
    event.number = number;
    event.waits = std::move(waits);
    send(NodeId{server}, std::move(event));
  }
}

void RowLocks::confirmed(NodeId server, uint64_t number, bool yes) {
  const auto it = cycles_.find(number);
  if (it == cycles_.end() || it->second.awaited.erase(server.value) == 0) return;
  if (!yes) it->second.refused = true;
  if (it->second.awaited.empty()) conclude(number);
}

bool RowLocks::is_still_there(const Cycle& cycle) const {
  for (size_t i = 0; i < cycle.members.size(); ++i) {
    const DeadlockMember& member = cycle.members[i];
    const auto wait = waits_.find(member.wait);
    if (wait == waits_.end() || wait->second->trx != member.trx) return false;
    const std::vector<TrxId> edges = edges_of(member.trx);
    const TrxId next = cycle.members[(i + 1) % cycle.members.size()].trx;
    if (std::find(edges.begin(), edges.end(), next) == edges.end()) return false;
  }
  return true;
}

void RowLocks::conclude(uint64_t number) {
  const Cycle cycle = std::move(cycles_.find(number)->second);
  cycles_.erase(number);
  if (cycle.refused || !is_still_there(cycle)) {
    ++counters_.unconfirmed;
  } else {
    Wait* const victim = waits_.find(cycle.members[cycle.victim].wait)->second.get();
    tell_of(cycle);
    send(victim->server, {.kind = LockEventKind::kVictim, .number = victim->number});
    ++counters_.deadlocks;
    last_deadlock_ = cycle.members;
    give_up(victim);
  }
  // It may be there in another form by now, and whoever has found it not wait any more.
  search(cycle.start);
  for (const DeadlockMember& member : cycle.members) search(member.trx);
}

// FQ9
void RowLocks::tell_of(const Cycle& cycle) {
  if (cycle.members.size() > proto::kDeadlockWaitsMax) return;  // nobody reads that many
  std::vector<proto::DeadlockWait> waits;
  std::set<uint8_t> servers;
  for (const DeadlockMember& member : cycle.members) {
    const Wait& wait = *waits_.find(member.wait)->second;
    servers.insert(wait.server.value);
    waits.push_back(
        {member.trx, wait.row.first, wait.row.second.substr(0, proto::kDeadlockKeyBytesMax)});
  }
  const std::string bytes = proto::encode(waits);
  for (const uint8_t server : servers)
    send(NodeId{server},
         {.kind = LockEventKind::kDeadlock, .trx = cycle.members[cycle.victim].trx, .key = bytes});
}

// --- for people ---

std::string RowLocks::describe(uint64_t limit) const {
  std::string out;
  uint64_t shown = 0;
  for (const auto& [key, wait] : waits_) {
    if (shown++ == limit) break;
    out += "trx " + std::to_string(wait->trx.value) + " of server " +
           std::to_string(wait->server.value) + " waits for ";
    if (wait->queue == nullptr) {
      out += "who holds it shared";
    } else {
      out += "trx " + std::to_string(wait->queue->holder.value) + " of server " +
             std::to_string(node_of(wait->queue->holder).value);
    }
    out += ", index " + std::to_string(wait->row.first.value) + ", key ";
    constexpr char kHex[] = "0123456789abcdef";
    constexpr size_t kShownBytesMax = 32;
    for (size_t i = 0; i < std::min(wait->row.second.size(), kShownBytesMax); ++i) {
      const auto byte = static_cast<uint8_t>(wait->row.second[i]);
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
    out += wait->row.second.size() > kShownBytesMax ? "...\n" : "\n";
  }
  return out;
}

}  // namespace strata::fusion
