#include "clients/fusion/page_holds.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::clients {

using proto::PageAsk;
using proto::PageGiveUp;
using proto::PageGrant;
using proto::PageMode;
using proto::PageReport;

namespace {

bool is_enough(PageMode held, PageMode wanted) noexcept {
  return held == PageMode::kExclusive || wanted == PageMode::kShared;
}

}  // namespace

PageHolds::PageHolds(const PageHoldsOptions& options, std::function<void()> work, Epoch epoch)
    : options_(options), work_(std::move(work)), epoch_(epoch.value) {}

// --- threads of the server ---

void PageHolds::push(Hold* hold, Request* request) noexcept {
  request->next_ = nullptr;
  *hold->waiting_end = request;
  hold->waiting_end = &request->next_;
}

void PageHolds::ask(const Shard&, PageId page, Hold* hold, uint64_t now_us) {
  hold->state = State::kAsked;
  hold->mode = PageMode::kShared;
  for (const Request* r = hold->waiting; r != nullptr; r = r->next_)
    if (r->mode == PageMode::kExclusive) hold->mode = PageMode::kExclusive;
  hold->ask = last_ask_.fetch_add(1, std::memory_order_relaxed) + 1;
  hold->asked_us = now_us;
  counters_.asks.fetch_add(1, std::memory_order_relaxed);
  const MutexLock lock(mutex_);
  asks_.push_back({page, hold->mode, hold->ask, redo_.load(std::memory_order_relaxed)});
}

void PageHolds::come(Hold* hold) noexcept {
  ++hold->refs;
  counters_.held.fetch_add(1, std::memory_order_relaxed);
  if (is_free(*hold)) return;
  ++hold->late;
  counters_.late.fetch_add(1, std::memory_order_relaxed);
}

bool PageHolds::acquire(Request* request, uint64_t now_us) {
  Shard& shard = shard_of(request->page);
  bool is_ready = false;
  {
    const MutexLock lock(shard.mutex);
    if (ended_.load(std::memory_order_relaxed)) {
      const MutexLock end_lock(mutex_);
      request->status = end_;
      return true;
    }
    const auto [it, is_new] = shard.holds.try_emplace(request->page);
    Hold& hold = it->second;
    if (is_new) {
      hold.waiting_end = &hold.waiting;
      push(&hold, request);
      ask(shard, request->page, &hold, now_us);
      return false;
    }
    const bool held = hold.state == State::kHeld;
    if (held && may_come(hold) && is_enough(hold.mode, request->mode)) {
      come(&hold);
      return true;
    }
    push(&hold, request);
    if (held && !hold.wanted_back) {  // FU19
      hold.wanted_back = true;
      counters_.upgrades.fetch_add(1, std::memory_order_relaxed);
    }
    is_ready = held && list_if_ready(shard, request->page, &hold);
  }
  if (is_ready) work_();
  return false;
}

bool PageHolds::try_acquire(PageId page, PageMode mode) {
  Shard& shard = shard_of(page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(page);
  if (it == shard.holds.end() || ended_.load(std::memory_order_relaxed)) return false;
  Hold& hold = it->second;
  if (hold.state != State::kHeld || !may_come(hold) || !is_enough(hold.mode, mode)) return false;
  come(&hold);
  return true;
}

bool PageHolds::cancel(Request* request) {
  Shard& shard = shard_of(request->page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(request->page);
  if (it == shard.holds.end()) return false;
  Hold& hold = it->second;
  for (Request** at = &hold.waiting; *at != nullptr; at = &(*at)->next_) {
    if (*at != request) continue;
    *at = request->next_;
    if (hold.waiting_end == &request->next_) hold.waiting_end = at;
    return true;
  }
  return false;
}

// Whoever may have it now: FH7. Returns them, with references.
PageHolds::Request* PageHolds::admit(const Shard&, Hold* hold) {
  Request* admitted = nullptr;
  Request** admitted_end = &admitted;
  uint32_t count = 0;
  bool stronger = false;
  for (Request** at = &hold->waiting; *at != nullptr && count < options_.cohort_max;) {
    Request* const request = *at;
    if (!is_enough(hold->mode, request->mode)) {
      stronger = true;
      at = &request->next_;
      continue;
    }
    *at = request->next_;
    if (hold->waiting_end == &request->next_) hold->waiting_end = at;
    request->next_ = nullptr;
    *admitted_end = request;
    admitted_end = &request->next_;
    ++hold->refs;
    ++count;
  }
  if (stronger) hold->wanted_back = true;  // FU19
  return admitted;
}

void PageHolds::answer(Request* first) noexcept {
  while (first != nullptr) {  // may be gone once it is answered
    Request* const next = first->next_;
    first->answered();
    first = next;
  }
}

bool PageHolds::list_if_ready(const Shard&, PageId page, Hold* hold) {
  if (hold->state != State::kHeld || !hold->wanted_back || hold->refs != 0 || hold->ready)
    return false;
  hold->ready = true;
  const MutexLock lock(mutex_);
  ready_.push_back(page);
  return true;
}

void PageHolds::release(PageId page) {
  Shard& shard = shard_of(page);
  Request* admitted = nullptr;
  bool is_ready = false;
  {
    const MutexLock lock(shard.mutex);
    const auto it = shard.holds.find(page);
    if (it == shard.holds.end()) return;  // end() was called
    Hold& hold = it->second;
    STRATA_ASSERT(hold.refs != 0);
    --hold.refs;
    if (hold.waiting != nullptr && is_free(hold)) admitted = admit(shard, &hold);
    is_ready = list_if_ready(shard, page, &hold);
  }
  answer(admitted);
  if (is_ready) work_();
}

void PageHolds::forget(PageId page) {
  if (!serving_.load()) return;  // it could not be given up, and whoever redoes the log comes again
  Shard& shard = shard_of(page);
  bool is_ready = false;
  {
    const MutexLock lock(shard.mutex);
    const auto it = shard.holds.find(page);
    if (it == shard.holds.end() || it->second.state != State::kHeld || it->second.refs != 0) return;
    it->second.wanted_back = true;
    is_ready = list_if_ready(shard, page, &it->second);
  }
  if (is_ready) work_();
}

bool PageHolds::seems_held(PageId page, PageMode mode) const {
  Shard& shard = shard_of(page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(page);
  if (it == shard.holds.end()) return false;
  const Hold& hold = it->second;
  return hold.state == State::kHeld && !hold.wanted_back && is_enough(hold.mode, mode);
}

PageHolds::Version PageHolds::version(PageId page) const {
  Shard& shard = shard_of(page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(page);
  return it == shard.holds.end() ? Version{} : it->second.version;
}

uint64_t PageHolds::holds() const {
  uint64_t count = 0;
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    count += shard.holds.size();
  }
  return count;
}

std::string PageHolds::describe(PageId page) const {
  Shard& shard = shard_of(page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(page);
  if (it == shard.holds.end()) return "not here";
  const Hold& hold = it->second;
  const char* const state = hold.state == State::kAsked  ? "asked for by "
                            : hold.state == State::kHeld ? "held by "
                                                         : "being given up, was held by ";
  return state + std::to_string(hold.state == State::kAsked ? hold.ask : hold.number) +
         (hold.mode == PageMode::kExclusive ? " to write" : " to read") + ", used by " +
         std::to_string(hold.refs) + (hold.wanted_back ? ", wanted back" : "") +
         (hold.ready ? ", ready" : "") + (hold.waiting != nullptr ? ", waited for" : "");
}

uint64_t PageHolds::number(PageId page) const {
  Shard& shard = shard_of(page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(page);
  return it == shard.holds.end() || it->second.state == State::kAsked ? 0 : it->second.number;
}

// --- from the memory node ---

// `ask`: that the grant answers; 0: it is not known here.
void PageHolds::say_not_held(const Shard&, PageId page, uint64_t number, uint64_t ask, Hold* hold) {
  counters_.not_held.fetch_add(1, std::memory_order_relaxed);
  const MutexLock lock(mutex_);
  not_held_.push_back({.page = page, .number = number, .gives_up = true});
  if (hold == nullptr) return;
  hold->refused = std::max(hold->refused, number);
  // It may have been the answer to the ask that is under way: that is asked again.
  if (hold->state == State::kAsked && (ask == 0 || ask == hold->ask))
    asks_.push_back({page, hold->mode, hold->ask, redo_.load(std::memory_order_relaxed)});
}

void PageHolds::note_number(uint64_t number) noexcept {
  uint64_t last = last_number_.load(std::memory_order_relaxed);
  while (last < number && !last_number_.compare_exchange_weak(last, number)) {
  }
}

void PageHolds::granted(const PageGrant& grant, Epoch heard_under) {
  Shard& shard = shard_of(grant.page);
  Request* admitted = nullptr;
  bool has_work = false;
  {
    const MutexLock lock(shard.mutex);
    if (epoch_.load() != heard_under.value) return;  // FH11: its number may be another grant's now
    note_number(grant.number);
    const auto it = shard.holds.find(grant.page);
    Hold* const hold = it == shard.holds.end() ? nullptr : &it->second;
    const bool awaited = hold != nullptr && hold->state == State::kAsked &&
                         hold->ask == grant.ask && grant.number > hold->refused &&
                         is_enough(grant.mode, hold->mode);
    if (awaited) {
      hold->state = State::kHeld;
      hold->mode = grant.mode;
      hold->number = grant.number;
      hold->wanted_back = false;
      hold->late = 0;
      hold->version = {grant.known, grant.llsn, grant.slot, grant.floor};
      counters_.grants.fetch_add(1, std::memory_order_relaxed);
      admitted = admit(shard, hold);
      has_work = list_if_ready(shard, grant.page, hold);
    } else if (hold == nullptr || hold->state == State::kAsked || hold->number != grant.number) {
      // FH1. What there is already must not be said to be not held: it may be on its way with a
      // version.
      say_not_held(shard, grant.page, grant.number, grant.ask, hold);
      has_work = true;
    }
  }
  answer(admitted);
  if (has_work) work_();
}

void PageHolds::asked_back(const PageGiveUp& give_up) {
  note_number(give_up.number);
  Shard& shard = shard_of(give_up.page);
  bool has_work = false;
  {
    const MutexLock lock(shard.mutex);
    counters_.asked_back.fetch_add(1, std::memory_order_relaxed);
    const auto it = shard.holds.find(give_up.page);
    Hold* const hold = it == shard.holds.end() ? nullptr : &it->second;
    if (hold != nullptr && hold->state != State::kAsked && hold->number == give_up.number) {
      hold->wanted_back = true;
      has_work = list_if_ready(shard, give_up.page, hold);
    } else {
      say_not_held(shard, give_up.page, give_up.number, 0, hold);
      has_work = true;
    }
  }
  if (has_work) work_();
}

// --- to the memory node ---

std::vector<PageAsk> PageHolds::take_asks() {
  const MutexLock lock(mutex_);
  return std::exchange(asks_, {});
}

std::vector<PageReport> PageHolds::take_not_held() {
  const MutexLock lock(mutex_);
  return std::exchange(not_held_, {});
}

std::vector<PageHolds::Ready> PageHolds::take_ready(uint32_t pages_max) {
  std::vector<PageId> pages;
  if (!serving_.load() || ended_.load()) return {};
  {
    const MutexLock lock(mutex_);
    while (pages.size() < pages_max && !ready_.empty()) {
      pages.push_back(ready_.front());
      ready_.pop_front();
    }
  }
  std::vector<Ready> taken;
  for (const PageId page : pages) {
    Shard& shard = shard_of(page);
    const MutexLock lock(shard.mutex);
    const auto it = shard.holds.find(page);
    if (it == shard.holds.end()) continue;
    Hold& hold = it->second;
    hold.ready = false;
    if (hold.state != State::kHeld || !hold.wanted_back || hold.refs != 0) continue;
    hold.state = State::kGivingUp;
    taken.push_back({page, hold.number, hold.mode});
  }
  return taken;
}

bool PageHolds::is_giving_up(PageId page) const {
  Shard& shard = shard_of(page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(page);
  return it != shard.holds.end() && it->second.state == State::kGivingUp;
}

bool PageHolds::put(PageReport version, Epoch epoch) {
  Shard& shard = shard_of(version.page);
  const MutexLock lock(shard.mutex);
  if (epoch_.load() != epoch.value) return false;  // FH11
  const auto it = shard.holds.find(version.page);
  if (it == shard.holds.end()) return false;  // end() was called
  Hold& hold = it->second;
  STRATA_ASSERT(hold.state != State::kAsked && hold.mode == PageMode::kExclusive);
  STRATA_ASSERT(!hold.unreported.has_value());  // FH2
  version.number = hold.number;
  version.changed = true;
  version.gives_up = false;
  hold.version = {
      true, version.llsn, version.slot, {version.llsn, {{version.stream, version.end}}}};
  hold.unreported = version;
  return true;
}

std::optional<PageReport> PageHolds::unreported(PageId page) const {
  Shard& shard = shard_of(page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(page);
  return it == shard.holds.end() ? std::nullopt : it->second.unreported;
}

std::vector<PageReport> PageHolds::all_unreported() const {
  std::vector<PageReport> reports;
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    for (const auto& [page, hold] : shard.holds)
      if (hold.unreported.has_value()) reports.push_back(*hold.unreported);
  }
  return reports;
}

void PageHolds::reported(const PageReport& report) {
  Shard& shard = shard_of(report.page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(report.page);
  if (it == shard.holds.end() || !it->second.unreported.has_value()) return;
  if (it->second.unreported->llsn == report.llsn) it->second.unreported.reset();
}

PageReport PageHolds::last_report(PageId page) const {
  Shard& shard = shard_of(page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(page);
  if (it == shard.holds.end()) return {.page = page};
  const Hold& hold = it->second;
  PageReport report = hold.unreported.value_or(PageReport{.page = page, .number = hold.number});
  report.gives_up = true;
  return report;
}

void PageHolds::given_up(PageId page, uint64_t now_us) {
  Shard& shard = shard_of(page);
  {
    const MutexLock lock(shard.mutex);
    const auto it = shard.holds.find(page);
    if (it == shard.holds.end()) return;
    Hold& hold = it->second;
    STRATA_ASSERT(hold.state == State::kGivingUp && hold.refs == 0);
    counters_.given_up.fetch_add(1, std::memory_order_relaxed);
    if (hold.waiting == nullptr) {
      shard.holds.erase(it);
      return;
    }
    hold.refused = hold.number;
    hold.wanted_back = false;
    hold.version = {};
    hold.unreported.reset();
    ask(shard, page, &hold, now_us);
  }
  work_();
}

void PageHolds::give_up_failed(PageId page) {
  Shard& shard = shard_of(page);
  const MutexLock lock(shard.mutex);
  const auto it = shard.holds.find(page);
  if (it == shard.holds.end()) return;
  it->second.state = State::kHeld;
  list_if_ready(shard, page, &it->second);
}

// FH11
std::vector<proto::HeldPage> PageHolds::renew(Epoch epoch, uint64_t now_us) {
  std::vector<proto::HeldPage> held;
  epoch_.store(epoch.value);  // before any shard is looked at: put() looks at it under a mutex
  {
    const MutexLock lock(mutex_);
    asks_.clear();
    not_held_.clear();
  }
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    for (auto it = shard.holds.begin(); it != shard.holds.end();) {
      Hold& hold = it->second;
      hold.unreported.reset();
      hold.version.slot = proto::kNoPageSlot;
      if (hold.state == State::kHeld) {
        held.push_back({it->first, hold.number, hold.mode});
        ++it;
        continue;
      }
      if (hold.state == State::kGivingUp && hold.waiting == nullptr) {
        it = shard.holds.erase(it);
        continue;
      }
      if (hold.state == State::kGivingUp) {
        hold.refused = hold.number;
        hold.wanted_back = false;
        hold.version = {};
      }
      ask(shard, it->first, &hold, now_us);
      ++it;
    }
  }
  work_();
  return held;
}

void PageHolds::serve(bool on) {
  serving_.store(on);
  if (on) work_();
}

void PageHolds::repeat(uint64_t now_us) {
  bool any = false;
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    for (auto& [page, hold] : shard.holds) {
      if (hold.state != State::kAsked || now_us < hold.asked_us + options_.ask_again_us) continue;
      hold.asked_us = now_us;
      any = true;
      const MutexLock list(mutex_);
      asks_.push_back({page, hold.mode, hold.ask, redo_.load(std::memory_order_relaxed)});
    }
  }
  if (any) work_();
}

Status PageHolds::ended() const {
  const MutexLock lock(mutex_);
  return end_;
}

void PageHolds::end(const Status& status) {
  {
    const MutexLock lock(mutex_);
    if (ended_.load()) return;
    end_ = status;
    ended_.store(true);
    asks_.clear();
    not_held_.clear();
    ready_.clear();
  }
  for (Shard& shard : shards_) {
    Request* waiting = nullptr;
    {
      const MutexLock lock(shard.mutex);
      Request** end = &waiting;
      for (auto& [page, hold] : shard.holds) {
        *end = std::exchange(hold.waiting, nullptr);
        while (*end != nullptr) {
          (*end)->status = status;
          end = &(*end)->next_;
        }
      }
      shard.holds.clear();
    }
    answer(waiting);
  }
}

}  // namespace strata::clients
