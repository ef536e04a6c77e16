// The nodes: who is in sync, the placement, the start. What tasks do is in write_sessions_tasks.cc.
#include "clients/storage/write_sessions.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::clients {

WriteSessions::WriteSessions(Options options)
    : options_(std::move(options)),
      write_quorum_(options_.write_quorum),
      generation_(options_.generation) {
  for (const Place& place : options_.places) {
    nodes_.emplace_back();
    nodes_.back().number = place.node;
    nodes_.back().name = place.name;
  }
}

// --- the start ---

std::vector<WriteSessions::Target> WriteSessions::starting(
    const std::vector<cluster::InSyncNode>& listed) {
  std::vector<Target> targets;
  for (Node& node : nodes_) {
    if (node.state == State::kInSync) continue;
    const bool named = std::any_of(listed.begin(), listed.end(),
                                   [&](const auto& one) { return one.name == node.name; });
    if (!options_.founding && !named) {
      node.why = "it was out of sync when this compute node started";
    } else if (node.store == 0) {  // else WS2 is not enough: another store in the old place
      ask_now(&node);
      targets.push_back({node.number, next_session(), 0, false});
    }
  }
  return targets;
}

Status WriteSessions::started(const Target& target, const std::vector<cluster::InSyncNode>& listed,
                              const Answer& answer) {
  if (ends_right(answer.status)) return answer.status;
  Node* const node = find(target.node);
  STRATA_ASSERT(node != nullptr);
  if (!answer.status.ok()) {
    node->why = "it did not answer when this compute node started: " + cause_of(answer.status);
    return ok_status();
  }
  node->store = answer.begun.store;
  const bool listed_store = std::any_of(listed.begin(), listed.end(), [&](const auto& one) {
    return one.name == node->name && one.store == node->store;
  });
  if (!options_.founding && !listed_store) {
    node->why = "it lost its pages: its store is another one";
    return ok_status();
  }
  node->session = target.session;
  node->state = State::kInSync;
  node->suspected = lost_since(*node);
  return ok_status();
}

bool WriteSessions::may_start() const {
  return in_sync_count() >= (options_.founding ? write_quorum_ : 1);
}

// --- the placement ---

// WN6
bool WriteSessions::follow(const std::vector<Place>& places, uint32_t write_quorum,
                           uint64_t generation) {
  if (generation <= generation_) return false;
  const NodeNumber preferred = preferred_ < nodes_.size() ? nodes_[preferred_].number : 0;
  std::vector<Node> now;
  for (const Place& place : places) {
    const auto known = std::find_if(nodes_.begin(), nodes_.end(),
                                    [&](const Node& node) { return node.number == place.node; });
    now.emplace_back();
    if (known != nodes_.end()) now.back() = *known;
    now.back().number = place.node;
    now.back().name = place.name;
  }
  now.swap(nodes_);
  for (const Node& old : now)
    if (find(old.number) == nullptr)
      warn("storage node " + old.name + " has lost its place in the group");
  preferred_ = 0;
  prefer(preferred);
  generation_ = generation;
  write_quorum_ = write_quorum;
  const bool stays = leaving_.has_value() &&
                     std::any_of(nodes_.begin(), nodes_.end(),
                                 [this](const Node& node) { return node.name == leaving_->name; });
  if (!stays) leaving_.reset();
  if (in_sync_count() == 0)  // kept: every later call hears it, nobody waits for it here
    (void)end(error_ended(
        "the storage nodes that had every page lost their places in the group before another one "
        "had copied them; to do: restart this server, it recovers from the log"));
  return true;
}

// WN7. The list is changed by one task at a time; a sync that is under way is not waited for.
std::optional<WriteSessions::Task> WriteSessions::begin_leave(const std::string& name,
                                                              uint64_t generation,
                                                              uint32_t write_quorum) {
  if (generation != generation_ || !ended_.ok() || stopped_) return std::nullopt;
  leaving_ = Leaving{name, write_quorum};
  if (list_taken_ || !enough()) return std::nullopt;
  Task task(Task::Kind::kLeave, Task::Stage::kPublish);
  list_taken_ = task.has_list_ = true;
  return task;
}

// --- the nodes ---

WriteSessions::Node* WriteSessions::find(NodeNumber number) {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const Node& node) { return node.number == number; });
  return found == nodes_.end() ? nullptr : &*found;
}

size_t WriteSessions::in_sync_count() const {
  return static_cast<size_t>(std::count_if(
      nodes_.begin(), nodes_.end(), [](const Node& node) { return node.state == State::kInSync; }));
}

// WN1, WN7
bool WriteSessions::enough() const {
  if (in_sync_count() < write_quorum_) return false;
  if (!leaving_.has_value()) return true;
  const auto others = std::count_if(nodes_.begin(), nodes_.end(), [this](const Node& node) {
    return node.state == State::kInSync && node.name != leaving_->name;
  });
  return static_cast<size_t>(others) >= leaving_->write_quorum;
}

// WN4: that many are told again. Nothing but what all nodes in sync have is acknowledged while
// there are too few of them, so then it takes all.
bool WriteSessions::enough(const std::vector<Target>& nodes) const {
  if (nodes.size() == in_sync_count()) return true;
  if (nodes.size() < write_quorum_) return false;
  if (!leaving_.has_value()) return true;
  const auto leaves = std::find_if(nodes_.begin(), nodes_.end(), [this](const Node& node) {
    return node.name == leaving_->name;
  });
  const auto stay = std::count_if(nodes.begin(), nodes.end(), [&](const Target& one) {
    return leaves == nodes_.end() || one.node != leaves->number;
  });
  return static_cast<size_t>(stay) >= leaving_->write_quorum;
}

Status WriteSessions::too_few() const {
  std::string why;
  for (const Node& node : nodes_)
    if (node.state != State::kInSync)
      why += (why.empty() ? "" : "; ") + node.name + ": " + node.why;
  return error_peer_down(
      "only " + std::to_string(in_sync_count()) + " of " + std::to_string(nodes_.size()) +
      " storage nodes are in sync, " + std::to_string(write_quorum_) + " are needed" +
      (leaving_.has_value()
           ? ", without " + leaving_->name + " " + std::to_string(leaving_->write_quorum)
           : "") +
      " (" + why + ")");
}

StatusOr<std::vector<cluster::InSyncNode>> WriteSessions::list() const {
  if (!enough()) return too_few();
  std::vector<cluster::InSyncNode> list;
  for (const Node& node : nodes_)
    if (node.state == State::kInSync) list.push_back({node.name, node.store});
  std::sort(list.begin(), list.end());
  return list;
}

void WriteSessions::put_out(Node* node, const std::string& why) {
  if (node->state == State::kOut) return;
  const bool was_in_sync = node->state == State::kInSync;
  node->state = State::kOut;
  node->suspected = false;
  node->why = why;
  node->next_try_us = 0;
  node->pause_us = kPauseUsMin;
  if (was_in_sync)
    warn("storage node " + node->name + " is out of sync: " + why +
         "; it copies what it misses as soon as it can be reached");
}

void WriteSessions::give_up(NodeNumber number, const std::string& why) {
  if (Node* const node = find(number); node != nullptr) put_out(node, why);
}

// Whether that was a restart is asked at once, not with the next write.
void WriteSessions::lost_connection(NodeNumber number) {
  Node* const node = find(number);
  if (node == nullptr) return;
  ++node->losses;
  if (node->state == State::kInSync) node->suspected = true;
}

void WriteSessions::suspect(NodeNumber number, uint64_t session) {
  Node* const node = find(number);
  if (node != nullptr && node->state == State::kInSync && node->session == session)
    node->suspected = true;
}

void WriteSessions::prefer(NodeNumber number) {
  const Node* const node = find(number);
  if (node != nullptr) preferred_ = static_cast<size_t>(node - nodes_.data());
}

std::vector<WriteSessions::Target> WriteSessions::readers() const {
  std::vector<Target> readers;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[(preferred_ + i) % nodes_.size()];
    if (node.state == State::kInSync) readers.push_back({node.number, node.session, 0, true});
  }
  return readers;
}

WriteSessions::Due WriteSessions::due(uint64_t now_us) const {
  Due due;
  if (!ended_.ok()) return due;
  for (const Node& node : nodes_) {
    due.suspected |= node.state == State::kInSync && node.suspected;
    if (node.state != State::kOut) continue;
    due.next_us = std::min(due.next_us, node.next_try_us);
    if (node.next_try_us <= now_us) due.out.push_back(node.number);
  }
  return due;
}

Status WriteSessions::end(const Status& why) {
  if (!ended_.ok()) return ended_;
  ended_ = why;
  notes_.push_back({true, cause_of(why)});
  return why;
}

std::vector<WriteSessions::NodeState> WriteSessions::states() const {
  std::vector<NodeState> states;
  for (const Node& node : nodes_) {
    const bool in_sync = node.state == State::kInSync && !node.suspected;
    std::string why = node.suspected ? "it is asked whether it was restarted" : node.why;
    if (in_sync) why.clear();
    states.push_back(
        {node.name, in_sync, node.state == State::kCopying, node.pages_copied, std::move(why)});
  }
  return states;
}

std::vector<WriteSessions::Note> WriteSessions::take_notes() {
  std::vector<Note> notes;
  notes.swap(notes_);
  return notes;
}

}  // namespace strata::clients
