// What the tasks of WriteSessions do, stage by stage; how they ask for sessions is in
// write_sessions_check.cc.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "clients/storage/write_sessions.h"
#include "proto/methods.h"

namespace strata::clients {

namespace {

constexpr uint64_t kCopyLookUs = 50'000;  // at how far a copy is

}  // namespace

uint16_t WriteSessions::Task::sync_method() noexcept { return proto::kSyncPages; }

WriteSessions::Task WriteSessions::call(uint16_t method) {
  Task task(Task::Kind::kCall, Task::Stage::kCheck);
  task.method_ = method;
  return task;
}

WriteSessions::Task WriteSessions::call_elsewhere() {
  Task task = call(proto::kWritePages);
  task.elsewhere_ = true;
  return task;
}

WriteSessions::Task WriteSessions::sync() { return {Task::Kind::kSync, Task::Stage::kTakeList}; }

WriteSessions::Task WriteSessions::check() { return {Task::Kind::kCheck, Task::Stage::kCheck}; }

WriteSessions::Task WriteSessions::come_back(NodeNumber node) {
  Task task(Task::Kind::kReturn, Task::Stage::kReturn);
  task.node_ = node;
  return task;
}

WriteSessions::Step WriteSessions::step(Task* task, uint64_t now_us) {
  for (;;)
    if (Next next = step_once(task, now_us); next.has_value()) return *std::move(next);
}

WriteSessions::Next WriteSessions::step_once(Task* task, uint64_t now_us) {
  switch (task->stage_) {
    case Task::Stage::kTakeList:
      return take_list(task, now_us);
    case Task::Stage::kCheck:
      return begin_check(task, now_us);
    case Task::Stage::kTellAgain:
      return tell_again(task, now_us);
    case Task::Stage::kCall:
      return begin_call(task, now_us);
    case Task::Stage::kReturn:
      return begin_return(task, now_us);
    case Task::Stage::kCopy:
      return begin_copy(task, now_us);
    case Task::Stage::kPublish:
      return publish(task, now_us);
    case Task::Stage::kDone: {
      Step step;
      step.kind = Step::Kind::kDone;
      step.status = task->status_;
      return step;
    }
    default:
      STRATA_ASSERT(false);  // an answer is missing
      return Step{};
  }
}

void WriteSessions::answered(Task* task, const std::vector<Answer>& answers, Bytes request,
                             uint64_t now_us) {
  STRATA_ASSERT(answers.size() == task->targets_.size());
  switch (task->stage_) {
    case Task::Stage::kAsked:
      return sessions_answered(task, answers, now_us);
    case Task::Stage::kTold:
      return told_again(task, answers, now_us);
    case Task::Stage::kCalled:
      if (call_answered(task, answers, now_us)) unsynced_.note(task->method_, request);
      return;
    case Task::Stage::kReturnBegun:
      return return_begun(task, answers.front(), now_us);
    case Task::Stage::kCopied:
      return copy_answered(task, answers.front(), now_us);
    case Task::Stage::kSyncReturned:
      return return_synced(task, answers.front(), now_us);
    default:
      STRATA_ASSERT(false);  // nothing was asked
  }
}

void WriteSessions::answered_elsewhere(Task* task, const std::vector<Answer>& answers,
                                       const std::vector<PageId>& pages, uint64_t now_us) {
  STRATA_ASSERT(answers.size() == task->targets_.size());
  STRATA_ASSERT(task->stage_ == Task::Stage::kCalled && task->elsewhere_);
  if (call_answered(task, answers, now_us)) unsynced_.note_elsewhere(pages);
}

WriteSessions::Step WriteSessions::ask(Step::What what, const std::vector<Target>& targets) {
  Step step;
  step.kind = Step::Kind::kAsk;
  step.what = what;
  step.targets = targets;
  return step;
}

WriteSessions::Next WriteSessions::wait(Task* task, uint64_t now_us, uint64_t until_us) {
  if (stopped_) {
    finish(task, error_peer_down("this node stops"), now_us);
    return std::nullopt;
  }
  Step step;
  step.until_us = until_us;
  return step;
}

// The first reason why nothing is written any more stays the reason.
void WriteSessions::finish(Task* task, const Status& status, uint64_t now_us) {
  if (task->asks_) asking_ = false;
  if (task->has_list_) list_taken_ = false;
  task->asks_ = task->has_list_ = false;
  if (task->kind_ == Task::Kind::kReturn) return_ended(task, status, now_us);
  task->status_ = ends_right(status) ? end(status) : status;
  task->stage_ = Task::Stage::kDone;
}

// --- calls to all (WN1), syncs (WN2) ---

WriteSessions::Next WriteSessions::begin_call(Task* task, uint64_t now_us) {
  if (asking_) return wait(task, now_us);
  if (!ended_.ok() || !enough()) {
    finish(task, ended_.ok() ? too_few() : ended_, now_us);
    return std::nullopt;
  }
  task->targets_.clear();
  for (const Node& node : nodes_)
    if (node.state != State::kOut)
      task->targets_.push_back({node.number, node.session, 0, node.state == State::kInSync});
  task->operation_ = ++operations_;
  under_way_.insert(task->operation_);
  task->syncs_ = task->has_list_;
  task->stage_ = Task::Stage::kCalled;
  Step step = ask(Step::What::kCall, task->targets_);
  step.elsewhere = task->elsewhere_ && !task->syncs_;
  return step;
}

bool WriteSessions::call_answered(Task* task, const std::vector<Answer>& answers, uint64_t now_us) {
  under_way_.erase(task->operation_);
  const Status status = judge(task->targets_, answers);
  if (status.ok() && task->syncs_) {
    task->stage_ = Task::Stage::kPublish;
    return false;
  }
  finish(task, status, now_us);
  return status.ok();
}

// WN1, WN3; of a node that is gone nothing counts (WN6).
Status WriteSessions::judge(const std::vector<Target>& targets,
                            const std::vector<Answer>& answers) {
  size_t have_it = 0;
  Status first_error, full;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Status& status = answers[i].status;
    if (ends_right(status)) return status;
    const Node* const node = find(targets[i].node);
    const bool in_sync = node != nullptr && targets[i].in_sync && node->state == State::kInSync &&
                         targets[i].session >= node->first_session;
    if (in_sync && status.ok()) ++have_it;
    if (in_sync && !status.ok() && first_error.ok()) first_error = status;
    if (in_sync && answers[i].answered && is_no_space(status)) full = status;
  }
  const bool give_up = have_it == 0 || (!full.ok() && have_it < write_quorum_);
  for (size_t i = 0; i < targets.size(); ++i) {
    Node* const node = find(targets[i].node);
    const Status& status = answers[i].status;
    if (node == nullptr || status.ok() || targets[i].session < node->first_session) continue;
    const bool in_sync = node->state == State::kInSync;
    // One that was put out and began again since waits for this call before it copies (WN5).
    if (!in_sync && node->session != targets[i].session) continue;
    if (in_sync && give_up) {
      // Nothing is acknowledged that it misses: it may stay, if it knows its session.
      node->suspected |= !is_no_space(status);
      continue;
    }
    put_out(node, cause_of(status));
  }
  if (give_up) {
    if (!full.ok()) return full;
    return first_error.ok() ? too_few() : error_peer_down(cause_of(first_error));
  }
  return enough() ? ok_status() : too_few();
}

WriteSessions::Next WriteSessions::take_list(Task* task, uint64_t now_us) {
  if (list_taken_ || stopped_) return wait(task, now_us);
  list_taken_ = task->has_list_ = true;
  task->covered_ = unsynced_.mark();
  if (task->kind_ != Task::Kind::kReturn) {
    task->stage_ = Task::Stage::kCheck;
    return std::nullopt;
  }
  Node* const node = find(task->node_);
  if (node == nullptr || node->state != State::kCopying) {
    finish(task, why_out(node), now_us);
    return std::nullopt;
  }
  ask_now(node);
  // No checkpoint passes between its sync and its place in the list.
  task->stage_ = Task::Stage::kSyncReturned;
  return ask(Step::What::kSync, task->targets_);
}

// list_taken_ is ours. WN2
WriteSessions::Next WriteSessions::publish(Task* task, uint64_t now_us) {
  StatusOr<std::vector<cluster::InSyncNode>> nodes = list();
  if (!nodes.ok()) {
    finish(task, task->kind_ == Task::Kind::kReturn ? ok_status() : nodes.status(), now_us);
    return std::nullopt;
  }
  task->stage_ = Task::Stage::kPublished;
  Step step;
  step.kind = Step::Kind::kPublish;
  step.list = *std::move(nodes);
  return step;
}

void WriteSessions::published(Task* task, const Status& status, uint64_t now_us) {
  STRATA_ASSERT(task->stage_ == Task::Stage::kPublished);
  // If it fails the next sync does it; until then the registry has fewer than there are.
  if (task->kind_ == Task::Kind::kReturn) return finish(task, ok_status(), now_us);
  if (!status.ok() || task->kind_ == Task::Kind::kLeave) return finish(task, status, now_us);
  unsynced_.forget(task->covered_);
  if (task->kind_ == Task::Kind::kSync) return finish(task, status, now_us);
  list_taken_ = task->has_list_ = task->syncs_ = false;
  task->stage_ = Task::Stage::kCheck;  // there is room for the call now
}

// --- coming back (WN5) ---

Status WriteSessions::why_out(const Node* node) {
  return error_peer_down(node == nullptr ? "it has lost its place in the group" : node->why);
}

WriteSessions::Next WriteSessions::begin_return(Task* task, uint64_t now_us) {
  if (find(task->node_) == nullptr) {
    finish(task, why_out(nullptr), now_us);
    return std::nullopt;
  }
  task->targets_ = {{task->node_, next_session(), 0, false}};
  task->stage_ = Task::Stage::kReturnBegun;
  return ask(Step::What::kBegin, task->targets_);
}

void WriteSessions::return_begun(Task* task, const Answer& answer, uint64_t now_us) {
  if (!answer.status.ok()) return finish(task, answer.status, now_us);
  Node* const node = find(task->node_);
  if (node == nullptr || node->state != State::kOut) return finish(task, why_out(node), now_us);
  node->store = answer.begun.store;
  node->session = task->targets_.front().session;
  node->state = State::kCopying;
  node->why = "it copies pages from another node";
  node->pages_copied = 0;
  task->operation_ = operations_;
  task->stage_ = Task::Stage::kCopy;
}

WriteSessions::Next WriteSessions::begin_copy(Task* task, uint64_t now_us) {
  const Node* const node = find(task->node_);
  if (node == nullptr || node->state != State::kCopying) {
    finish(task, why_out(node), now_us);
    return std::nullopt;
  }
  // What began without it has arrived at the others before the copy begins.
  if (!under_way_.empty() && *under_way_.begin() <= task->operation_) return wait(task, now_us);
  if (now_us < task->wait_until_us_) return wait(task, now_us, task->wait_until_us_);
  if (task->peers_.empty()) {
    task->peers_ = readers();
    if (task->peers_.empty()) {
      finish(task, error_peer_down("no storage node is in sync to copy from"), now_us);
      return std::nullopt;
    }
    const size_t first = node->failed_copies % task->peers_.size();  // WN8
    std::rotate(task->peers_.begin(), task->peers_.begin() + static_cast<std::ptrdiff_t>(first),
                task->peers_.end());
  }
  task->stage_ = Task::Stage::kCopied;
  Step step = ask(Step::What::kCopy, task->targets_);
  step.peers = task->peers_;
  return step;
}

void WriteSessions::copy_answered(Task* task, const Answer& answer, uint64_t now_us) {
  if (!answer.status.ok()) return finish(task, answer.status, now_us);
  using State = proto::CopyPagesReply::State;
  if (answer.copied.state == State::kFailed)
    return finish(
        task, error_peer_down("copying from another node failed: " + cause_of(answer.copied.why)),
        now_us);
  if (answer.copied.state == State::kDone) {
    task->stage_ = Task::Stage::kTakeList;
    return;
  }
  if (Node* const node = find(task->node_); node != nullptr)
    node->pages_copied = answer.copied.pages_seen;
  task->wait_until_us_ = now_us + kCopyLookUs;
  task->stage_ = Task::Stage::kCopy;
}

void WriteSessions::return_synced(Task* task, const Answer& answer, uint64_t now_us) {
  if (!answer.status.ok()) return finish(task, answer.status, now_us);
  Node* const node = find(task->node_);
  if (node == nullptr || node->state != State::kCopying) return finish(task, why_out(node), now_us);
  node->state = State::kInSync;
  node->suspected = lost_since(*node);
  node->pause_us = 0;
  node->why.clear();
  if (enough())
    task->stage_ = Task::Stage::kPublish;
  else
    finish(task, ok_status(), now_us);
}

void WriteSessions::return_ended(Task* task, const Status& status, uint64_t now_us) {
  Node* const node = find(task->node_);
  if (node == nullptr) return;
  if (status.ok()) {
    node->failed_copies = 0;
    if (node->state == State::kInSync) warn("storage node " + node->name + " is in sync again");
    return;
  }
  const uint64_t pause_us = 2 * node->pause_us;
  if (!task->peers_.empty()) ++node->failed_copies;
  put_out(node, cause_of(status));
  node->why = cause_of(status);
  node->pause_us = std::clamp(pause_us, kPauseUsMin, options_.come_back_us_max);
  node->next_try_us = now_us + node->pause_us;
}

}  // namespace strata::clients
