// How tasks of WriteSessions find out whether nodes know their sessions, and what they do if not.
#include <algorithm>
#include <utility>

#include "clients/storage/write_sessions.h"
#include "proto/methods.h"

namespace strata::clients {

// WN3, WN4
WriteSessions::Next WriteSessions::begin_check(Task* task, uint64_t now_us) {
  if (task->kind_ == Task::Kind::kCall && !task->fits_) {
    task->fits_ = true;  // what has to be remembered for WN4 is bounded
    if (task->method_ == proto::kWritePages && unsynced_.bytes() >= options_.unsynced_bytes_max) {
      task->stage_ = Task::Stage::kTakeList;
      return std::nullopt;
    }
  }
  if (asking_) return wait(task, now_us);
  if (!ended_.ok()) {
    finish(task, ended_, now_us);
    return std::nullopt;
  }
  task->targets_.clear();
  for (Node& node : nodes_) {
    if (node.state != State::kInSync || !node.suspected) continue;
    ask_now(&node);
    task->targets_.push_back({node.number, next_session(), node.session, true});
  }
  if (task->targets_.empty()) {
    end_check(task, ok_status(), now_us);
    return std::nullopt;
  }
  asking_ = task->asks_ = true;
  task->stage_ = Task::Stage::kAsked;
  return ask(Step::What::kBegin, task->targets_);
}

void WriteSessions::sessions_answered(Task* task, const std::vector<Answer>& answers,
                                      uint64_t now_us) {
  const Status status = judge_sessions(task, answers);
  if (status.ok() && !task->targets_.empty())
    task->stage_ = Task::Stage::kTellAgain;
  else
    end_check(task, status, now_us);
}

// Those that know their session go on; of the others, none is needed if one does. If
// none does, those that were restarted may have to be told again: they stay targets.
Status WriteSessions::judge_sessions(Task* task, const std::vector<Answer>& answers) {
  const std::vector<Target> asked = std::exchange(task->targets_, {});
  Status missing;
  std::vector<Target> forgot;
  std::vector<Node*> lost;  // their stores are other ones
  for (size_t i = 0; i < asked.size(); ++i) {
    const Answer& answer = answers[i];
    if (ends_right(answer.status)) return answer.status;
    Node* const node = find(asked[i].node);
    if (node == nullptr || node->state != State::kInSync) continue;
    if (answer.status.ok() && answer.begun.continued) {
      node->session = asked[i].session;
      node->suspected = lost_since(*node);
    } else if (answer.status.ok() && answer.begun.store == node->store) {
      forgot.push_back(asked[i]);
    } else if (answer.status.ok()) {
      lost.push_back(node);
    } else {
      missing = answer.status;
    }
  }
  // They never have them again (WN6): the others are not kept waiting for them.
  if (!lost.empty() && lost.size() == in_sync_count())
    return error_ended(
        "all storage nodes that had every page lost their page stores before another one had "
        "copied them; to do: restart this server, it recovers from the log");
  for (Node* const node : lost) put_out(node, "it lost its pages");
  const bool one_is_well = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return node.state == State::kInSync && !node.suspected;
  });
  if (one_is_well) {
    for (size_t i = 0; i < asked.size(); ++i) {
      Node* const node = find(asked[i].node);
      if (node == nullptr || node->state != State::kInSync || !node->suspected) continue;
      put_out(node, answers[i].status.ok() ? "it was restarted" : cause_of(answers[i].status));
    }
    return ok_status();
  }
  if (!forgot.empty() && enough(forgot)) {
    task->targets_ = std::move(forgot);
    return ok_status();
  }
  return missing.ok() ? ok_status() : error_peer_down(cause_of(missing));
}

// WN4. asking_ is ours: no call begins meanwhile.
WriteSessions::Next WriteSessions::tell_again(Task* task, uint64_t now_us) {
  if (task->told_ == 0 && !under_way_.empty()) return wait(task, now_us);
  if (task->told_ == 0) {
    task->status_ = error_peer_down("none of them answers");
    task->calls_ = unsynced_.calls();
    warn(
        "all storage nodes that had every page were restarted at once: they are told again what "
        "was written since the last sync");
  }
  if (task->told_ == task->calls_.size()) {
    end_check(task, all_told(task), now_us);
    return std::nullopt;
  }
  task->stage_ = Task::Stage::kTold;
  Step step = ask(Step::What::kTellAgain, task->targets_);
  step.call = &task->calls_[task->told_];
  return step;
}

void WriteSessions::told_again(Task* task, const std::vector<Answer>& answers, uint64_t now_us) {
  Status& error = task->status_;  // of the last that failed
  for (size_t i = task->targets_.size(); i-- > 0;) {
    if (answers[i].status.ok()) continue;
    error = answers[i].status;
    if (ends_right(error)) return end_check(task, error, now_us);
    task->targets_.erase(task->targets_.begin() + static_cast<ptrdiff_t>(i));
  }
  if (task->targets_.empty())
    return end_check(task, is_no_space(error) ? error : error_peer_down(cause_of(error)), now_us);
  ++task->told_;
  task->stage_ = Task::Stage::kTellAgain;
}

Status WriteSessions::all_told(Task* task) {
  std::erase_if(task->targets_, [this](const Target& one) {
    const Node* const node = find(one.node);
    return node == nullptr || node->state != State::kInSync;
  });
  if (task->targets_.empty() || !enough(task->targets_)) {
    const Status& error = task->status_;
    return is_no_space(error) ? error : error_peer_down(cause_of(error));
  }
  for (Node& node : nodes_) {
    if (node.state != State::kInSync) continue;
    const auto told = std::find_if(task->targets_.begin(), task->targets_.end(),
                                   [&](const Target& one) { return one.node == node.number; });
    if (told != task->targets_.end()) {
      node.session = node.first_session = told->session;
      node.suspected = lost_since(node);
    } else if (node.suspected) {
      put_out(&node, "it was away when the others were restarted");
    }
  }
  return ok_status();
}

void WriteSessions::end_check(Task* task, const Status& status, uint64_t now_us) {
  if (task->asks_) asking_ = task->asks_ = false;
  task->told_ = 0;
  if (!status.ok() || task->kind_ == Task::Kind::kCheck) return finish(task, status, now_us);
  task->stage_ = Task::Stage::kCall;
}

}  // namespace strata::clients
