// What compute does, and the oracle; the world is in write_sessions_faults.cc.
#include "clients/storage/testing/write_sessions_model.h"

#include <algorithm>
#include <utility>

namespace strata::clients::testing {

namespace {

using Kind = WriteSessions::Step::Kind;

}  // namespace

WriteSessionsModel::WriteSessionsModel(uint64_t seed) : rng_(seed), faults_(rng_.below(8)) {
  for (uint64_t n = 3 + rng_.below(3); n > 0; --n) members_.push_back(add_node()->number);
  start_compute(true);
}

void WriteSessionsModel::run(int steps) {
  for (int i = 0; i < steps && fault_.empty(); ++i) {
    step();
    poll();
    check();
  }
  if (fault_.empty()) finish();
}

// --- compute ---

void WriteSessionsModel::start_compute(bool founding) {
  tasks_.clear();
  busy_.clear();
  elsewhere_.clear();
  replies_.clear();
  late_list_.reset();  // its writer is another one
  ++epoch_.value;
  WriteSessions::Options options;
  for (const NodeNumber member : members_) options.places.push_back({member, find(member)->name});
  options.write_quorum = quorum_of(members_.size());
  options.generation = told_generation_ = generation_;
  options.founding = founding;
  options.unsynced_bytes_max = size_t{5} * kPageBytes;
  machine_ = std::make_unique<WriteSessions>(std::move(options));
  told_ = members_;
  leaving_.clear();
  known_ = list_;
  in_doubt_ = false;
  for (int tries = 0; tries < 4; ++tries) begin_all(tries);
  if (!machine_->may_start()) return fail("no listed node has its store");
  if (founding) known_ = list_ = *machine_->list();
  acknowledged_ = checkpoint_;  // the rest is in the log, and is written again
}

void WriteSessionsModel::begin_all(int tries) {
  for (const WriteSessions::Target& target : machine_->starting(list_)) {
    SimNode* const node = find(target.node);
    if (tries == 3 && !machine_->may_start()) node->up = true;
    WriteSessions::Answer answer;
    answer.status = error_peer_down("no answer");
    Message message;
    message.epoch = epoch_;
    message.session = target.session;
    if (node->up) {
      answer = node->begin(message);
      node->noticed = true;
    }
    if (tries < 3 && rng_.one_in(6)) answer.status = error_peer_down("no answer");
    if (!machine_->started(target, list_, answer).ok()) fail("the start was refused");
  }
}

void WriteSessionsModel::start(Purpose purpose, WriteSessions::Task task, const Pages& pages,
                               NodeNumber node, const std::string& leaves) {
  Running one{purpose, std::move(task)};
  one.pages = pages;
  one.covers = acknowledged_;
  one.report = reports_;
  one.leaves = leaves;
  one.done_by = {};
  (void)node;
  tasks_.emplace(++ids_, std::move(one));
}

void WriteSessionsModel::start_write() {
  if (machine_->in_sync_count() < quorum_of(told_.size()) && !rng_.one_in(10)) return;
  Pages pages;
  const bool elsewhere = rng_.one_in(3);
  for (uint64_t n = 1 + rng_.below(2); n > 0; --n) {
    const auto page = static_cast<uint32_t>(rng_.below(kSimPages));
    if (!elsewhere && elsewhere_.count(page) != 0) continue;
    if (!busy_.insert(page).second) continue;
    pages[page] = ++last_version_;
  }
  if (pages.empty()) return;
  start(Purpose::kWrite,
        elsewhere ? WriteSessions::call_elsewhere() : WriteSessions::call(proto::kWritePages),
        pages, 0, "");
  tasks_.at(ids_).elsewhere = elsewhere;
}

void WriteSessionsModel::start_sync() {
  if (!runs(Purpose::kSync)) start(Purpose::kSync, WriteSessions::sync(), {}, 0, "");
}

bool WriteSessionsModel::runs(Purpose purpose) const {
  return std::any_of(tasks_.begin(), tasks_.end(),
                     [&](const auto& one) { return one.second.purpose == purpose; });
}

// As the keeper's thread: one thing at a time.
void WriteSessionsModel::keep() {
  const WriteSessions::Due due = machine_->due(now_us_);
  if (runs(Purpose::kReturn) || runs(Purpose::kCheck)) return;
  if (!due.out.empty()) {
    const NodeNumber node = due.out[rng_.below(due.out.size())];
    start(Purpose::kReturn, WriteSessions::come_back(node), {}, node, "");
  } else if (due.suspected) {
    start(Purpose::kCheck, WriteSessions::check(), {}, 0, "");
  }
}

// Whoever waits looks again, in any order, until nobody goes on any more.
void WriteSessionsModel::poll() {
  for (bool more = true; more && fault_.empty();) {
    more = false;
    std::vector<uint64_t> waiting;
    for (const auto& [id, one] : tasks_)
      if (one.step.kind == Kind::kWait) waiting.push_back(id);
    while (!waiting.empty()) {
      const size_t i = rng_.below(waiting.size());
      more |= advance(waiting[i]);
      waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

// False: it waits.
bool WriteSessionsModel::advance(uint64_t id) {
  Running& one = tasks_.at(id);
  one.step = machine_->step(&one.task, now_us_);
  if (one.step.kind == Kind::kWait) return false;
  if (one.step.kind == Kind::kAsk) send(id, &one);
  if (one.step.kind == Kind::kPublish) {
    one.published_generation = told_generation_;
    for (const auto& [other_id, other] : tasks_)
      if (other_id != id && other.step.kind == Kind::kPublish)
        fail("two change the registry's list at once");
  }
  if (one.step.kind == Kind::kDone) {
    done(&one);
    tasks_.erase(id);
  }
  return true;
}

void WriteSessionsModel::send(uint64_t id, Running* one) {
  ++one->round;
  one->answers.assign(one->step.targets.size(), std::nullopt);
  if (one->step.what == What::kTellAgain) ++seen_.told_again;
  for (size_t i = 0; i < one->step.targets.size(); ++i) {
    const WriteSessions::Target& target = one->step.targets[i];
    Message message;
    message.to = target.node;
    message.what = one->step.what;
    message.epoch = epoch_;
    message.session = target.session;
    message.before = target.before;
    message.peers = one->step.peers;
    message.task = id;
    message.round = one->round;
    message.slot = i;
    if (message.what == What::kCall) {
      message.method = one->task.method();
      if (message.method == proto::kWritePages) message.pages = one->pages;
    } else if (message.what == What::kTellAgain) {
      message.method = one->step.call->method;
      if (message.method == proto::kWritePages) message.pages = pages_of(*one->step.call);
      if (message.method == UnsyncedPages::kElsewhere) {
        message.method = proto::kWritePages;
        for (const auto& [page, of] : elsewhere_) message.pages[page] = of.first;
        ++seen_.again;
      }
    }
    messages_.push_back(std::move(message));
  }
}

void WriteSessionsModel::answer(uint64_t task, uint64_t round, size_t slot,
                                const WriteSessions::Answer& answer) {
  const auto found = tasks_.find(task);
  if (found == tasks_.end()) return;
  Running& one = found->second;
  if (one.step.kind != Kind::kAsk || one.round != round || one.answers[slot].has_value()) return;
  one.answers[slot] = answer;
  std::vector<WriteSessions::Answer> answers;
  for (const auto& each : one.answers) {
    if (!each.has_value()) return;
    answers.push_back(*each);
  }
  if (one.step.elsewhere) {
    std::vector<PageId> pages;
    for (const auto& [page, version] : one.pages) pages.push_back({kSimSpace.value, page});
    machine_->answered_elsewhere(&one.task, answers, pages, now_us_);
  } else {
    std::string request;
    if (one.step.what == What::kCall && one.task.method() == proto::kWritePages)
      request = encode_write({kFirstSimStream, epoch_, 1}, one.pages);
    machine_->answered(&one.task, answers, request, now_us_);
  }
  one.step = {};
}

void WriteSessionsModel::done(Running* one) {
  const bool ok = one->step.status.ok();
  switch (one->purpose) {
    case Purpose::kWrite:
      for (const auto& [page, version] : one->pages) busy_.erase(page);
      ++(ok ? seen_.writes : seen_.refused);
      if (!ok) return;
      for (const auto& [page, version] : one->pages) acknowledged_[page] = version;
      if (one->elsewhere) {
        ++seen_.elsewhere;
        ++reports_;
        for (const auto& [page, version] : one->pages) elsewhere_[page] = {version, reports_};
      }
      return check_acknowledged(*one);
    case Purpose::kSync:
      if (!ok) return;
      ++seen_.syncs;
      checkpoint_ = one->covers;
      std::erase_if(elsewhere_, [&](const auto& of) { return of.second.second <= one->report; });
      return check_synced(*one);
    case Purpose::kLeave:
      if (ok) check_may_leave(*one);
      return;
    case Purpose::kReturn:
      if (ok) ++seen_.returned;
      return;
    case Purpose::kCheck:
      return;
  }
}

// --- the oracle ---

void WriteSessionsModel::fail(const std::string& what) {
  if (fault_.empty()) fault_ = what;
}

void WriteSessionsModel::check() {
  // WN1, WN4, WN5: whoever is in sync, and was not restarted since, has all that was acknowledged.
  for (const WriteSessions::Target& reader : machine_->readers()) {
    const SimNode& node = nodes_.at(reader.node);
    if (node.knows(epoch_, reader.session) && !node.has(acknowledged_, node.memory))
      fail(node.name + " is in sync and lacks what was acknowledged");
    if (std::find(told_.begin(), told_.end(), reader.node) == told_.end())
      fail(node.name + " is in sync without a place (WN6)");
  }
  // WN2: whoever the registry names has on its disk what the last checkpoint relies on.
  bool any = false;
  for (const cluster::InSyncNode& one : list_) {
    const SimNode* const node = named(one.name);
    if (node->store != one.store) continue;
    any = true;
    if (!node->has(checkpoint_, node->durable))
      fail(node->name + " is in the list and lacks what was synced (WN2)");
  }
  if (!any) fail("nobody whom the list names has its pages");
}

// WN1, WN6, WN7
void WriteSessionsModel::check_acknowledged(const Running& one) {
  size_t have = 0, others = 0;
  for (const NodeNumber member : told_) {
    if (one.done_by.count(member) == 0) continue;
    ++have;
    if (nodes_.at(member).name != leaving_) ++others;
  }
  if (have < quorum_of(told_.size()))
    fail("acknowledged by " + std::to_string(have) + " nodes of the placement only");
  if (!leaving_.empty() && others < leaving_quorum_)
    fail("acknowledged by too few nodes without the one that leaves (WN7)");
}

// WN6
void WriteSessionsModel::check_synced(const Running& one) {
  if (one.published_generation != told_generation_) return;
  for (const cluster::InSyncNode& named_one : list_)
    if (std::find(told_.begin(), told_.end(), named(named_one.name)->number) == told_.end())
      fail(named_one.name + " has no place and is in the list after a sync (WN6)");
  if (list_.size() < quorum_of(told_.size())) fail("a checkpoint relies on too few nodes");
}

// WN7
void WriteSessionsModel::check_may_leave(const Running& one) {
  if (leaving_ != one.leaves || told_generation_ != one.published_generation) return;
  const auto others = static_cast<size_t>(std::count_if(
      list_.begin(), list_.end(), [&](const auto& each) { return each.name != leaving_; }));
  if (others < leaving_quorum_) return fail("it may leave, but the list has too few others (WN7)");
  if (told_generation_ != generation_) return;
  ++seen_.left;
  std::erase_if(members_, [&](NodeNumber member) { return nodes_.at(member).name == leaving_; });
  ++generation_;
}

}  // namespace strata::clients::testing
