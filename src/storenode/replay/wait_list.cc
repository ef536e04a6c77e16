#include "storenode/replay/wait_list.h"

#include <algorithm>

#include "base/assert.h"

namespace strata::storenode {

// --- positions ---

bool WaitList::scanned_as_asked(const GetPageRequest& request) const {
  for (const GetPageRequest::Position& wanted : request.scanned_to) {
    const auto it = scanned_.find(wanted.stream);
    if (it == scanned_.end() || it->second.lsn < wanted.lsn) return false;
  }
  if (request.at_least == kNewestState) return true;  // GP3
  const bool several = streams_come_ || scanned_.size() > 1;
  if (several && !request.scanned_to.empty()) return true;  // GP1
  return std::any_of(scanned_.begin(), scanned_.end(),
                     [&request](const auto& it) { return it.second.llsn >= request.at_least; });
}

bool WaitList::replayed_as_asked(const GetPageRequest& request, Llsn llsn, bool positions) const {
  if (replayed_.empty()) return false;
  const StreamMark& mark = replayed_.begin()->second;
  if (mark.llsn < llsn) return false;
  return !positions || std::all_of(request.scanned_to.begin(), request.scanned_to.end(),
                                   [&mark](const auto& wanted) { return wanted.lsn <= mark.lsn; });
}

bool WaitList::holds(const Ticket& ticket, const WaitCondition& condition, Seen seen) const {
  if (seen.wake_ups != seen_.wake_ups) return true;
  switch (condition.kind) {
    case WaitCondition::Kind::kScanned:
      return scanned_as_asked(ticket.request);
    case WaitCondition::Kind::kMoreScanned:
      return seen.scans != seen_.scans;
    case WaitCondition::Kind::kReplayed:
      return replayed_as_asked(ticket.request, condition.llsn, condition.positions);
    case WaitCondition::Kind::kPage:
      return busy_.count(ticket.request.page) == 0;
  }
  return true;
}

void WaitList::wake(Parked* parked) {
  if (!replayed_.empty()) {
    const Lsn now = replayed_.begin()->second.lsn;
    STRATA_ASSERT(now >= parked->ticket->replayed_at_arrival);
    if (parked->condition.kind == WaitCondition::Kind::kReplayed)
      parked->ticket->waited_bytes = now.value - parked->ticket->replayed_at_arrival.value;
  }
  ready_.push_back(std::move(parked->ticket));
  ready_changed_.notify_one();
}

void WaitList::wake_those_that_may() {
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (holds(*it->ticket, it->condition, it->seen)) {
      wake(&*it);
      it = parked_.erase(it);
    } else {
      ++it;
    }
  }
}

void WaitList::publish_scanned(StreamId stream, StreamMark end) {
  const MutexLock lock(mutex_);
  StreamMark& mark = scanned_[stream];
  STRATA_ASSERT(mark.lsn <= end.lsn);
  mark = end;
  ++seen_.scans;
  wake_those_that_may();
}

void WaitList::publish_replayed(StreamId stream, StreamMark end) {
  const MutexLock lock(mutex_);
  STRATA_ASSERT(replayed_.empty() || replayed_.count(stream) != 0);
  StreamMark& mark = replayed_[stream];
  STRATA_ASSERT(mark.lsn <= end.lsn);
  mark = end;
  wake_those_that_may();
}

StreamMark WaitList::scanned(StreamId stream) const {
  const MutexLock lock(mutex_);
  const auto it = scanned_.find(stream);
  return it == scanned_.end() ? StreamMark{} : it->second;
}

StreamMark WaitList::replayed(StreamId stream) const {
  const MutexLock lock(mutex_);
  const auto it = replayed_.find(stream);
  return it == replayed_.end() ? StreamMark{} : it->second;
}

Llsn WaitList::newest_scanned() const {
  const MutexLock lock(mutex_);
  Llsn newest;
  for (const auto& [stream, mark] : scanned_) newest = std::max(newest, mark.llsn);
  return newest;
}

StreamMark WaitList::replayed() const {
  const MutexLock lock(mutex_);
  return replayed_.empty() ? StreamMark{} : replayed_.begin()->second;
}

bool WaitList::is_scanned(const GetPageRequest& request) const {
  const MutexLock lock(mutex_);
  return scanned_as_asked(request);
}

bool WaitList::is_replayed(const GetPageRequest& request, Llsn llsn, bool positions) const {
  const MutexLock lock(mutex_);
  return replayed_as_asked(request, llsn, positions);
}

bool WaitList::is_scanned_at_hand(const GetPageRequest& request) const {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  return scanned_as_asked(request);
}

bool WaitList::is_replayed_at_hand(const GetPageRequest& request, Llsn llsn, bool positions) const {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  return replayed_as_asked(request, llsn, positions);
}

std::optional<StreamMark> WaitList::replayed_at_hand(StreamId stream) const {
  if (!mutex_.try_lock()) return std::nullopt;
  const MutexLock lock(mutex_, std::adopt_lock);
  const auto it = replayed_.find(stream);
  return it == replayed_.end() ? StreamMark{} : it->second;
}

bool WaitList::may_come(Llsn llsn) const {
  const MutexLock lock(mutex_);
  return streams_come_ || std::any_of(scanned_.begin(), scanned_.end(),
                                      [llsn](const auto& it) { return it.second.llsn < llsn; });
}

void WaitList::wake_all() {
  const MutexLock lock(mutex_);
  ++seen_.wake_ups;
  for (Parked& parked : parked_) wake(&parked);
  parked_.clear();
}

WaitList::Seen WaitList::seen() const {
  const MutexLock lock(mutex_);
  return seen_;
}

// --- pages in work ---

bool WaitList::try_begin(PageId page) {
  const MutexLock lock(mutex_);
  return busy_.insert(page).second;
}

void WaitList::end(PageId page) {
  const MutexLock lock(mutex_);
  const size_t there = busy_.erase(page);
  STRATA_ASSERT(there == 1);
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (it->condition.kind == WaitCondition::Kind::kPage && it->ticket->request.page == page) {
      wake(&*it);
      it = parked_.erase(it);
    } else {
      ++it;
    }
  }
}

// --- requests ---

uint64_t WaitList::earliest() const {
  uint64_t found = UINT64_MAX;
  for (const Parked& parked : parked_) found = std::min(found, parked.ticket->request.deadline_us);
  return found;
}

WaitList::Park WaitList::park(TicketPtr* ticket, const WaitCondition& condition, Seen seen,
                              uint64_t now_us) {
  STRATA_ASSERT(*ticket != nullptr);
  std::function<void()> hook;
  {
    const MutexLock lock(mutex_);
    if (holds(**ticket, condition, seen)) return Park::kHolds;
    if ((*ticket)->request.deadline_us <= now_us) return Park::kTimeIsUp;
    (*ticket)->waited = true;
    if ((*ticket)->request.deadline_us < earliest()) hook = deadline_hook_;
    parked_.push_back(Parked{std::move(*ticket), condition, seen});
  }
  if (hook) hook();
  return Park::kParked;
}

void WaitList::make_ready(TicketPtr ticket) {
  STRATA_ASSERT(ticket != nullptr);
  const MutexLock lock(mutex_);
  ready_.push_back(std::move(ticket));
  ready_changed_.notify_one();
}

TicketPtr WaitList::take_ready() {
  const MutexLock lock(mutex_);
  if (ready_.empty()) return nullptr;
  TicketPtr ticket = std::move(ready_.front());
  ready_.pop_front();
  return ticket;
}

TicketPtr WaitList::wait_ready() {
  MutexLock lock(mutex_);
  ready_changed_.wait(lock,
                      [this]() STRATA_REQUIRES(mutex_) { return closed_ || !ready_.empty(); });
  if (ready_.empty()) return nullptr;
  TicketPtr ticket = std::move(ready_.front());
  ready_.pop_front();
  return ticket;
}

std::vector<TicketPtr> WaitList::take_expired(uint64_t now_us) {
  std::vector<TicketPtr> expired;
  const MutexLock lock(mutex_);
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (it->ticket->request.deadline_us <= now_us) {
      expired.push_back(std::move(it->ticket));
      it = parked_.erase(it);
    } else {
      ++it;
    }
  }
  return expired;
}

std::vector<TicketPtr> WaitList::take_all() {
  std::vector<TicketPtr> all;
  const MutexLock lock(mutex_);
  for (Parked& parked : parked_) all.push_back(std::move(parked.ticket));
  for (TicketPtr& ticket : ready_) all.push_back(std::move(ticket));
  parked_.clear();
  ready_.clear();
  return all;
}

uint64_t WaitList::next_deadline_us() const {
  const MutexLock lock(mutex_);
  return earliest();
}

void WaitList::set_deadline_hook(std::function<void()> hook) {
  const MutexLock lock(mutex_);
  deadline_hook_ = std::move(hook);
}

void WaitList::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  ready_changed_.notify_all();
}

void WaitList::reopen() {
  const MutexLock lock(mutex_);
  closed_ = false;
}

}  // namespace strata::storenode
