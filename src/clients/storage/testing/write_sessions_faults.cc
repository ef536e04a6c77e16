// What happens to messages, storage nodes, the registry and the placement.
#include <algorithm>
#include <utility>

#include "clients/storage/testing/write_sessions_model.h"

namespace strata::clients::testing {

namespace {

using Kind = WriteSessions::Step::Kind;

WriteSessions::Answer no_answer() {
  WriteSessions::Answer answer;
  answer.status = error_peer_down("no answer");
  return answer;
}

}  // namespace

void WriteSessionsModel::step() {
  now_us_ += rng_.below(20'000);
  if (rng_.below(100) < faults_) {
    switch (rng_.below(12)) {
      case 0:
      case 1:
        return node_fault();
      case 2:
        return restart_many();
      case 3:
      case 4:
      case 5:
        return miss_answer();
      case 6:
      case 7:
        return miss_all_answers();
      case 8:
        return placement_change();
      case 9:
        return begin_leave();
      case 10:
        if (rng_.one_in(2)) start_compute(false);
        return;
      default:
        if (rng_.one_in(2)) machine_->lost_connection(random_member()->number);
        return;
    }
  }
  if (told_generation_ != generation_ && rng_.one_in(20)) tell();
  switch (rng_.below(20)) {
    case 0:
    case 1:
    case 2:
      return start_write();
    case 3:
      if (rng_.one_in(2)) start_sync();
      return;
    case 4:
    case 5:
      return keep();
    case 6:
      if (late_list_.has_value() && rng_.one_in(4)) {
        if (late_list_->version == list_version_) {
          list_ = late_list_->list;
          ++list_version_;
        }
        late_list_.reset();
      }
      return;
    case 7:
      if (!machine_->ended().ok()) {
        ++seen_.ended;
        start_compute(false);
      }
      return;
    case 8:
      if (rng_.one_in(10)) begin_leave();
      return;
    default:
      if (!progress()) return rng_.one_in(2) ? start_write() : keep();
  }
}

// One thing that is on its way arrives. False: nothing is.
bool WriteSessionsModel::progress() {
  std::vector<uint64_t> publishing;
  for (const auto& [id, one] : tasks_)
    if (one.step.kind == Kind::kPublish) publishing.push_back(id);
  std::vector<NodeNumber> copying;
  for (const auto& [number, node] : nodes_)
    if (node.up && node.copy.session != 0 && node.copy.next < kSimPages && !node.copy.failed)
      copying.push_back(number);
  const size_t all = messages_.size() + replies_.size() + publishing.size() + copying.size();
  if (all == 0) return false;
  size_t i = rng_.below(all);
  if (i < messages_.size()) {
    deliver(i);
    return true;
  }
  i -= messages_.size();
  if (i < replies_.size()) {
    const Reply reply = replies_[i];
    replies_.erase(replies_.begin() + static_cast<ptrdiff_t>(i));
    answer(reply.task, reply.round, reply.slot, reply.answer);
    return true;
  }
  i -= replies_.size();
  if (i < publishing.size()) {
    publish(&tasks_.at(publishing[i]));
    return true;
  }
  SimNode& node = nodes_.at(copying[i - publishing.size()]);
  node.go_on_copying(find(node.copy.from.node));
  return true;
}

void WriteSessionsModel::deliver(size_t index) {
  const Message message = messages_[index];
  SimNode* const node = find(message.to);
  const bool repeats = message.what == What::kBegin || message.what == What::kCopy;
  if (repeats && rng_.one_in(20))
    messages_[index].life = node->life;
  else
    messages_.erase(messages_.begin() + static_cast<ptrdiff_t>(index));
  if (message.life != 0 && message.life != node->life) return;
  const WriteSessions::Answer answer_of = node->up ? execute(node, message) : no_answer();
  replies_.push_back({message.task, message.round, message.slot, answer_of});
}

WriteSessions::Answer WriteSessionsModel::execute(SimNode* node, const Message& message) {
  if (message.what == What::kBegin) return node->begin(message);
  WriteSessions::Answer answer_of;
  answer_of.answered = true;
  answer_of.status = node->check(message);
  if (ends_right(answer_of.status)) answer_of.status = error_peer_down("an old epoch");
  if (message.epoch == epoch_ && ends_right(node->check(message))) fail("this epoch is refused");
  if (!answer_of.status.ok()) return answer_of;
  if (message.what == What::kCopy) {
    answer_of.copied = node->order_copy(message);
  } else if (message.what == What::kSync || message.method == proto::kSyncPages) {
    node->durable = node->memory;
  } else if (message.method == proto::kWritePages) {
    if (node->full)
      answer_of.status = error_no_space("its disk is full");
    else
      land(node, message);
  }
  return answer_of;
}

// WN3: nothing old lands over something newer. What is told again may, over what was not
// acknowledged; on a node that is out the copy it will need puts that right.
void WriteSessionsModel::land(SimNode* node, const Message& message) {
  const auto task = tasks_.find(message.task);
  if (task != tasks_.end())
    task->second.done_by.insert(node->number);
  else
    ++seen_.late;
  for (const auto& [page, version] : message.pages) {
    Version& there = node->memory[page];
    const bool may = message.what == What::kTellAgain && there > version_in(acknowledged_, page);
    if (version < there && !may && message.epoch == epoch_ && !is_out(*node))
      fail("a late write landed over a newer one on " + node->name + " (WN3)");
    there = version;
  }
}

bool WriteSessionsModel::is_out(const SimNode& node) const {
  for (const WriteSessions::Target& reader : machine_->readers())
    if (reader.node == node.number) return false;
  for (const WriteSessions::NodeState& state : machine_->states())
    if (state.name == node.name) return !state.copying;
  return true;
}

// None of those that it still waits for is heard of in time; what was sent to them may arrive late.
void WriteSessionsModel::miss_all_answers() {
  std::vector<uint64_t> asking;
  for (const auto& [id, one] : tasks_)
    if (one.step.kind == Kind::kAsk && one.purpose == Purpose::kWrite) asking.push_back(id);
  if (asking.empty()) return;
  const uint64_t id = asking[rng_.below(asking.size())];
  const uint64_t round = tasks_.at(id).round;
  for (size_t slot = 0; slot < tasks_.at(id).answers.size(); ++slot)
    answer(id, round, slot, no_answer());
}

// Its message may still arrive.
void WriteSessionsModel::miss_answer() {
  if (messages_.empty() && replies_.empty()) return;
  const size_t i = rng_.below(messages_.size() + replies_.size());
  if (i >= messages_.size()) {
    const Reply reply = replies_[i - messages_.size()];
    replies_.erase(replies_.begin() + static_cast<ptrdiff_t>(i - messages_.size()));
    return answer(reply.task, reply.round, reply.slot, no_answer());
  }
  const Message message = messages_[i];
  if (rng_.one_in(2)) messages_.erase(messages_.begin() + static_cast<ptrdiff_t>(i));
  answer(message.task, message.round, message.slot, no_answer());
}

void WriteSessionsModel::publish(Running* one) {
  const List list = one->step.list;
  one->step = {};
  Status status;
  if (in_doubt_ || list != known_) {
    in_doubt_ = true;
    const uint64_t outcome = rng_.below(100) < 4 * faults_ ? rng_.below(3) : 3;
    if (outcome == 2) late_list_ = Late{list_version_, list};
    if (outcome == 1 || outcome == 3) {
      list_ = list;
      ++list_version_;
    }
    if (outcome == 3) {
      known_ = list;
      in_doubt_ = false;
    } else {
      status = error_peer_down("the registry does not answer");
    }
  }
  machine_->published(&one->task, status, now_us_);
}

// --- faults of nodes ---

void WriteSessionsModel::node_fault() {
  SimNode* const node = random_member();
  const bool was_up = node->up;
  switch (rng_.below(6)) {
    case 0:
      node->full = !node->full;
      return;
    case 1:
    case 2:
      lose_disk(node);
      break;
    case 3:
      if (node->up) node->restart(&rng_, rng_.one_in(2));
      node->up = !node->up;
      break;
    default:
      node->restart(&rng_, !rng_.one_in(3));
      node->up = true;
      break;
  }
  if (was_up && rng_.one_in(2)) notice(node);
}

// Once for each time that it ended.
void WriteSessionsModel::notice(SimNode* node) {
  if (!node->noticed) machine_->lost_connection(node->number);
  node->noticed = true;
}

// All, or a write quorum while others are away.
void WriteSessionsModel::restart_many() {
  size_t away = rng_.one_in(2) ? 0 : members_.size() - quorum_of(members_.size());
  for (const NodeNumber member : members_) {
    SimNode* const node = find(member);
    node->restart(&rng_, !rng_.one_in(4));
    node->up = away == 0;
    if (away != 0) --away;
    if (rng_.one_in(2)) notice(node);
  }
}

// Not of the last one that has everything, for this compute node and for the next one.
void WriteSessionsModel::lose_disk(SimNode* node) {
  const std::vector<WriteSessions::Target> in_sync = machine_->readers();
  const bool others = std::any_of(in_sync.begin(), in_sync.end(), [&](const auto& reader) {
    const SimNode* const other = find(reader.node);
    return other != node && listed(*other) &&
           std::find(members_.begin(), members_.end(), other->number) != members_.end();
  });
  if (!others || !all_listed(node->number)) return;
  node->lose_disk(++stores_);
  if (rng_.one_in(4)) return start_compute(false);
  if (!rng_.one_in(3)) return;
  for (const NodeNumber member : members_)  // the others do not lose theirs
    if (member != node->number) find(member)->restart(&rng_, true);
}

// --- the placement ---

void WriteSessionsModel::placement_change() {
  SimNode* const node = random_member();
  if (rng_.one_in(2)) {
    if (members_.size() == 5 || !all_listed(0)) return;
    members_.push_back(add_node()->number);
  } else {
    if (!all_listed(node->number)) return;
    std::replace(members_.begin(), members_.end(), node->number, add_node()->number);
  }
  ++generation_;
  if (rng_.one_in(2)) tell();
}

void WriteSessionsModel::begin_leave() {
  if (told_generation_ != generation_ || members_.size() == 3 || !machine_->ended().ok() ||
      runs(Purpose::kLeave))
    return;
  if (!leaving_.empty() && rng_.one_in(3)) {
    leaving_.clear();
    return machine_->cancel_leave();
  }
  leaving_ = random_member()->name;
  leaving_quorum_ = quorum_of(members_.size() - 1);
  auto task = machine_->begin_leave(leaving_, told_generation_, leaving_quorum_);
  if (task.has_value()) start(Purpose::kLeave, *std::move(task), {}, 0, leaving_);
}

void WriteSessionsModel::tell() {
  std::vector<WriteSessions::Place> places;
  for (const NodeNumber member : members_) places.push_back({member, find(member)->name});
  (void)machine_->follow(places, quorum_of(members_.size()), generation_);
  told_ = members_;
  told_generation_ = generation_;
  const bool stays = std::any_of(members_.begin(), members_.end(),
                                 [&](NodeNumber member) { return find(member)->name == leaving_; });
  if (!stays) leaving_.clear();
}

// --- the end: once nothing fails any more all is well ---

bool WriteSessionsModel::settled() {
  if (machine_->in_sync_count() != members_.size() || machine_->due(now_us_).suspected)
    return false;
  return std::all_of(members_.begin(), members_.end(), [&](NodeNumber member) {
    const SimNode* const node = find(member);
    return node->has(acknowledged_, node->durable) && listed(*node);
  });
}

void WriteSessionsModel::finish() {
  faults_ = 0;
  for (auto& [number, node] : nodes_) {
    node.up = true;
    node.full = false;
    notice(&node);  // at the latest
  }
  machine_->cancel_leave();
  leaving_.clear();
  for (int i = 0; i < 20'000 && fault_.empty(); ++i) {
    if (told_generation_ != generation_) tell();
    if (!machine_->ended().ok()) start_compute(false);
    now_us_ += 20'000;
    keep();
    if (tasks_.empty()) {
      if (settled()) return;
      start_sync();
    }
    (void)progress();  // if nothing is on its way somebody waits for the time
    poll();
    check();
  }
  if (fault_.empty())
    fail("it does not become well again: " + std::string(machine_->too_few().message()));
}

// --- what there is ---

SimNode* WriteSessionsModel::add_node() {
  SimNode node;
  node.number = nodes_.size() + 1;
  node.name = "s" + std::to_string(node.number);
  node.store = ++stores_;
  return &nodes_.emplace(node.number, node).first->second;
}

SimNode* WriteSessionsModel::find(NodeNumber number) { return &nodes_.at(number); }

SimNode* WriteSessionsModel::named(const std::string& name) {
  for (auto& [number, node] : nodes_)
    if (node.name == name) return &node;
  return nullptr;
}

SimNode* WriteSessionsModel::random_member() { return find(members_[rng_.below(members_.size())]); }

bool WriteSessionsModel::listed(const SimNode& node) const {
  return std::find(list_.begin(), list_.end(), cluster::InSyncNode{node.name, node.store}) !=
         list_.end();
}

// ND8 of storenode/node, for a change of `but`.
bool WriteSessionsModel::all_listed(NodeNumber but) const {
  return std::all_of(members_.begin(), members_.end(),
                     [&](NodeNumber member) { return member == but || listed(nodes_.at(member)); });
}

}  // namespace strata::clients::testing
