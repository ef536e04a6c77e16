#include "clients/fusion/name_holds.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::clients {

using proto::NameAsk;
using proto::NameGiveUp;
using proto::NameGrant;
using proto::NameMode;
using proto::NameReport;

NameHolds::NameHolds(const NameHoldsOptions& options, std::function<void()> work)
    : options_(options), work_(std::move(work)) {}

void NameHolds::finish(bool has_work, const Answered& answered) {
  for (Request* const request : answered) request->answered();  // it may be gone then
  if (has_work) work_();
}

// --- threads of the server ---

bool NameHolds::acquire(Request* request, uint64_t now_us) {
  Answered answered;
  bool has_work = false;
  {
    const MutexLock lock(mutex_);
    if (end_.has_value()) {
      request->status = *end_;
      return true;
    }
    const auto it = holds_.try_emplace(request->name).first;
    Hold& hold = it->second;
    if (request->mode == NameMode::kUse && may_use(hold)) {
      ++counters_.held;
      return true;
    }
    hold.waiting.push_back(request);
    has_work = settle(it, now_us, &answered);
  }
  finish(has_work, answered);  // this one at most: others of this server have it shared
  return false;
}

bool NameHolds::cancel(Request* request, uint64_t now_us) {
  Answered answered;
  bool has_work = false;
  {
    const MutexLock lock(mutex_);
    const auto it = holds_.find(request->name);
    if (it == holds_.end()) return false;
    std::list<Request*>& waiting = it->second.waiting;
    const auto at = std::find(waiting.begin(), waiting.end(), request);
    if (at == waiting.end()) return false;
    waiting.erase(at);
    has_work = settle(it, now_us, &answered);
  }
  finish(has_work, answered);
  return true;
}

void NameHolds::unlock(Bytes name, uint64_t now_us) {
  Answered answered;
  bool has_work = false;
  {
    const MutexLock lock(mutex_);
    const auto it = holds_.find(std::string(name));
    if (it == holds_.end() || it->second.takers == 0) return;  // end() was called
    if (--it->second.takers != 0) return;
    release_exclusive(&it->second, it->first);
    settle(it, now_us, &answered);
    has_work = true;
  }
  finish(has_work, answered);
}

void NameHolds::release_exclusive(Hold* hold, const std::string& name) {
  if (std::exchange(hold->shared, false)) {
    hold->refused = std::max(hold->refused, hold->exclusive);
    reports_.push_back({name, std::exchange(hold->exclusive, 0), NameMode::kNone});
    return;
  }
  reports_.push_back({name, hold->exclusive, NameMode::kUse});
  hold->use = std::exchange(hold->exclusive, 0);
  hold->wanted_back = false;  // that was the one before
}

// Null: nobody.
const NameHolds::Request* NameHolds::first_waiting(const Hold& hold, bool for_use) noexcept {
  const auto at = std::find_if(
      hold.waiting.begin(), hold.waiting.end(),
      [=](const Request* request) { return (request->mode == NameMode::kUse) == for_use; });
  return at == hold.waiting.end() ? nullptr : *at;
}

void NameHolds::answer(Hold* hold, const std::string& name, Answered* answered) {
  if (hold->giving_up) return;  // FC36
  if (hold->exclusive != 0) {
    const NameMode mode = hold->shared ? NameMode::kShared : NameMode::kExclusive;
    for (auto at = hold->waiting.begin();
         at != hold->waiting.end() && (hold->shared || hold->takers == 0);) {
      const auto request = at++;
      if ((*request)->mode != mode) continue;
      ++hold->takers;
      answered->push_back(*request);
      hold->waiting.erase(request);
    }
    if (hold->takers == 0) release_exclusive(hold, name);  // FC37
  }
  if (!may_use(*hold)) return;
  for (auto at = hold->waiting.begin(); at != hold->waiting.end();) {
    const auto request = at++;
    if ((*request)->mode != NameMode::kUse) continue;
    answered->push_back(*request);
    hold->waiting.erase(request);
  }
}

void NameHolds::ask(Hold* hold, const std::string& name, NameMode mode, uint64_t* number,
                    uint64_t now_us) {
  *number = ++last_ask_;
  hold->asked_us = now_us;
  ++counters_.asks;
  asks_.push_back({name, mode, *number});
}

void NameHolds::take_back(const std::string& name, uint64_t* number) {
  asks_.push_back({name, NameMode::kNone, std::exchange(*number, 0)});
}

bool NameHolds::settle(Holds::iterator it, uint64_t now_us, Answered* answered) {
  Hold& hold = it->second;
  const std::string& name = it->first;
  const size_t asks = asks_.size(), reports = reports_.size();
  answer(&hold, name, answered);
  const Request* const strong = first_waiting(hold, false);
  if (strong == nullptr && hold.exclusive_ask != 0) take_back(name, &hold.exclusive_ask);
  if (strong != nullptr && hold.exclusive == 0 && hold.exclusive_ask == 0) {
    hold.strong_mode = strong->mode;
    ask(&hold, name, strong->mode, &hold.exclusive_ask, now_us);
  }
  // Whoever waits to use it has it with the exclusive grant, too.
  const bool wants_use =
      first_waiting(hold, true) != nullptr && hold.use == 0 && (hold.exclusive == 0 || hold.shared);
  if (!wants_use && hold.use_ask != 0) take_back(name, &hold.use_ask);
  if (wants_use && hold.use_ask == 0 &&
      (hold.exclusive_ask == 0 || hold.strong_mode == NameMode::kShared))
    ask(&hold, name, NameMode::kUse, &hold.use_ask, now_us);
  if (hold.use_ask != 0 || hold.exclusive_ask != 0 || hold.wanted_back)
    unsettled_.insert(name);
  else
    unsettled_.erase(name);
  const bool to_give_up = hold.wanted_back && hold.use != 0 && (hold.exclusive == 0 || hold.shared);
  if (to_give_up && !hold.giving_up && !hold.listed && now_us >= hold.try_at_us) {
    hold.listed = true;
    ready_.push_back(name);
    return true;
  }
  const bool has_work = asks_.size() != asks || reports_.size() != reports;
  if (hold.waiting.empty() && hold.use == 0 && hold.exclusive == 0 && !hold.giving_up &&
      !hold.listed)
    holds_.erase(it);
  return has_work;
}

// --- from the memory node ---

// `ask`: that the grant answers; 0: it is not known here.
void NameHolds::say_not_held(const std::string& name, uint64_t number, Hold* hold, uint64_t ask) {
  ++counters_.not_held;
  reports_.push_back({name, number, NameMode::kNone});
  if (hold == nullptr) return;
  hold->refused = std::max(hold->refused, number);
  // It may have been the answer to an ask that is under way: that is asked again.
  if (hold->use_ask != 0 && (ask == 0 || ask == hold->use_ask))
    asks_.push_back({name, NameMode::kUse, hold->use_ask});
  if (hold->exclusive_ask != 0 && (ask == 0 || ask == hold->exclusive_ask))
    asks_.push_back({name, hold->strong_mode, hold->exclusive_ask});
}

void NameHolds::granted(const NameGrant& grant, uint64_t now_us) {
  Answered answered;
  bool has_work = false;
  {
    const MutexLock lock(mutex_);
    if (end_.has_value()) return;
    last_number_ = std::max(last_number_, grant.number);
    const auto it = holds_.find(grant.name);
    Hold* const hold = it == holds_.end() ? nullptr : &it->second;
    const bool exclusive = grant.mode != NameMode::kUse;
    const bool awaited = hold != nullptr && grant.number > hold->refused && grant.ask != 0 &&
                         grant.ask == (exclusive ? hold->exclusive_ask : hold->use_ask) &&
                         (!exclusive || grant.mode == hold->strong_mode);
    if (awaited) {
      ++counters_.grants;
      if (exclusive) {
        hold->exclusive = grant.number;
        hold->shared = grant.mode == NameMode::kShared;
        hold->exclusive_ask = 0;
      } else {
        hold->use = grant.number;
        hold->use_ask = 0;
        hold->wanted_back = false;
      }
      has_work = settle(it, now_us, &answered);
    } else if (hold == nullptr || (hold->use != grant.number && hold->exclusive != grant.number)) {
      say_not_held(grant.name, grant.number, hold, grant.ask);  // FC34
      has_work = true;
    }
  }
  finish(has_work, answered);
}

void NameHolds::asked_back(const NameGiveUp& give_up) {
  bool has_work = false;
  {
    const MutexLock lock(mutex_);
    if (end_.has_value()) return;
    ++counters_.asked_back;
    last_number_ = std::max(last_number_, give_up.number);
    const auto it = holds_.find(give_up.name);
    Hold* const hold = it == holds_.end() ? nullptr : &it->second;
    if (hold != nullptr && hold->exclusive == give_up.number) return;  // its thread unlocks it
    if (hold != nullptr && hold->use == give_up.number) {
      if (give_up.mode == NameMode::kExclusive) {  // it has become one to use it: that was lost
        reports_.push_back({give_up.name, give_up.number, NameMode::kUse});
        has_work = true;
      } else if (hold->wanted_again = true; !hold->wanted_back) {
        hold->wanted_back = true;
        hold->try_at_us = 0;
        Answered answered;
        has_work = settle(it, 0, &answered);
        STRATA_ASSERT(answered.empty());
      }
    } else {
      say_not_held(give_up.name, give_up.number, hold, 0);
      has_work = true;
    }
  }
  if (has_work) work_();
}

// --- to the memory node ---

std::vector<NameAsk> NameHolds::take_asks() {
  const MutexLock lock(mutex_);
  return std::exchange(asks_, {});
}

std::vector<NameReport> NameHolds::take_reports() {
  const MutexLock lock(mutex_);
  return std::exchange(reports_, {});
}

void NameHolds::reports_failed(std::vector<NameReport> reports) {
  const MutexLock lock(mutex_);
  if (end_.has_value()) return;
  reports_.insert(reports_.begin(), std::make_move_iterator(reports.begin()),
                  std::make_move_iterator(reports.end()));
}

std::optional<std::string> NameHolds::take_ready() {
  const MutexLock lock(mutex_);
  while (!ready_.empty()) {
    const std::string name = std::move(ready_.front());
    ready_.pop_front();
    const auto it = holds_.find(name);
    if (it == holds_.end()) continue;
    Hold& hold = it->second;
    hold.listed = false;
    if (!hold.wanted_back || hold.use == 0 || (hold.exclusive != 0 && !hold.shared) ||
        hold.giving_up)
      continue;
    hold.giving_up = true;
    return name;
  }
  return std::nullopt;
}

void NameHolds::gave_up(const std::string& name, bool is_forgotten, uint64_t now_us) {
  Answered answered;
  bool has_work = false;
  {
    const MutexLock lock(mutex_);
    const auto it = holds_.find(name);
    if (it == holds_.end()) return;  // end() was called
    Hold& hold = it->second;
    STRATA_ASSERT(hold.giving_up && hold.use != 0);
    hold.giving_up = false;
    if (is_forgotten) {
      ++counters_.given_up;
      hold.refused = std::max(hold.refused, hold.use);
      reports_.push_back({name, std::exchange(hold.use, 0), NameMode::kNone});
      hold.wanted_back = false;
      has_work = true;
    } else {
      ++counters_.in_use;
      hold.try_at_us = now_us + options_.try_again_us;
    }
    has_work = settle(it, now_us, &answered) || has_work;
  }
  finish(has_work, answered);
}

// FC53. Asked before the first look counts as asked at that look.
void NameHolds::look_whether_wanted(Hold* hold, uint64_t now_us) const noexcept {
  if (std::exchange(hold->wanted_again, false))
    hold->wanted_us = now_us;
  else if (now_us >= hold->wanted_us + options_.wanted_us)
    hold->wanted_back = false;
}

void NameHolds::repeat(uint64_t now_us) {
  bool any = false;
  Answered answered;
  {
    const MutexLock lock(mutex_);
    const std::vector<std::string> names(unsettled_.begin(), unsettled_.end());
    for (const std::string& name : names) {
      const auto at = holds_.find(name);
      STRATA_ASSERT(at != holds_.end());
      Hold& hold = at->second;
      if ((hold.use_ask != 0 || hold.exclusive_ask != 0) &&
          now_us >= hold.asked_us + options_.ask_again_us) {
        hold.asked_us = now_us;
        any = true;
        if (hold.use_ask != 0) asks_.push_back({at->first, NameMode::kUse, hold.use_ask});
        if (hold.exclusive_ask != 0)
          asks_.push_back({at->first, hold.strong_mode, hold.exclusive_ask});
      }
      look_whether_wanted(&hold, now_us);
      any = settle(at, now_us, &answered) || any;
    }
  }
  STRATA_ASSERT(answered.empty());
  finish(any, answered);
}

// FC49
std::vector<proto::HeldName> NameHolds::renew(uint64_t now_us) {
  std::vector<proto::HeldName> held;
  {
    const MutexLock lock(mutex_);
    asks_.clear();
    reports_.clear();
    for (auto& [name, hold] : holds_) {
      if (hold.use != 0 || hold.exclusive != 0)
        held.push_back({name, hold.use, hold.exclusive, hold.shared});
      if (hold.use_ask != 0) ask(&hold, name, NameMode::kUse, &hold.use_ask, now_us);
      if (hold.exclusive_ask != 0) ask(&hold, name, hold.strong_mode, &hold.exclusive_ask, now_us);
    }
  }
  work_();
  return held;
}

uint64_t NameHolds::last_number() const {
  const MutexLock lock(mutex_);
  return last_number_;
}

Status NameHolds::ended() const {
  const MutexLock lock(mutex_);
  return end_.value_or(ok_status());
}

void NameHolds::end(const Status& status) {
  Answered answered;
  {
    const MutexLock lock(mutex_);
    if (end_.has_value()) return;
    end_ = status;
    for (auto& [name, hold] : holds_)
      for (Request* const request : hold.waiting) {
        request->status = status;
        answered.push_back(request);
      }
    holds_.clear();
    unsettled_.clear();
    asks_.clear();
    reports_.clear();
    ready_.clear();
  }
  finish(false, answered);
}

// --- for people, and for tests ---

NameHoldsCounters NameHolds::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

uint64_t NameHolds::names() const {
  const MutexLock lock(mutex_);
  return holds_.size();
}

bool NameHolds::has(Bytes name, NameMode mode) const {
  const MutexLock lock(mutex_);
  const auto it = holds_.find(std::string(name));
  if (it == holds_.end()) return false;
  const Hold& hold = it->second;
  if (mode == NameMode::kUse) return may_use(hold);
  return hold.takers != 0 && hold.shared == (mode == NameMode::kShared);
}

bool NameHolds::has_grant(Bytes name, uint64_t number) const {
  const MutexLock lock(mutex_);
  const auto it = holds_.find(std::string(name));
  return it != holds_.end() && (it->second.use == number || it->second.exclusive == number);
}

std::string NameHolds::describe(Bytes name) const {
  const MutexLock lock(mutex_);
  const auto it = holds_.find(std::string(name));
  if (it == holds_.end()) return "not here";
  const Hold& hold = it->second;
  std::string text = "use " + std::to_string(hold.use) + ", exclusive " +
                     std::to_string(hold.exclusive) + (hold.takers != 0 ? " taken" : "") +
                     (hold.shared ? " shared" : "");
  if (hold.use_ask != 0) text += ", asks to use it";
  if (hold.exclusive_ask != 0)
    text +=
        hold.strong_mode == NameMode::kShared ? ", asks to share it" : ", asks for it exclusively";
  if (hold.wanted_back) text += ", wanted back";
  if (hold.giving_up) text += ", being given up";
  return text + ", " + std::to_string(hold.waiting.size()) + " wait";
}

}  // namespace strata::clients
