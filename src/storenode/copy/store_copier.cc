#include "storenode/copy/store_copier.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/page_name.h"
#include "base/thread_name.h"
#include "page/page.h"

namespace strata::storenode {
namespace {

constexpr int kBackgroundNice = 10;

// Whether the peer is at all these positions, or behind them.
bool has_replayed(const CopyOffer& offer, const std::vector<CopyMark>& marks) {
  return std::all_of(marks.begin(), marks.end(), [&](const CopyMark& wanted) {
    return std::any_of(offer.marks.begin(), offer.marks.end(), [&](const CopyMark& mark) {
      return mark.stream == wanted.stream && mark.replayed.lsn >= wanted.replayed.lsn;
    });
  });
}

}  // namespace

StoreCopier::StoreCopier(PageStore* store, StoreCopierOptions options)
    : store_(store), options_(std::move(options)) {}

StoreCopier::~StoreCopier() { stop(); }

// --- one piece of work ---

StatusOr<bool> StoreCopier::step() {
  if (!begun_ && !store_->needs_copy()) return false;
  Status done;
  if (peer_ == nullptr) {
    done = choose_peer();
  } else if (!listed_.empty() || cursor_.has_value()) {
    done = copy_some();
  } else {
    done = finish();
  }
  if (done.ok()) return true;
  say(std::string(done.message()));
  leave_peer();
  return done;
}

void StoreCopier::leave_peer() {
  peer_ = nullptr;
  ++next_peer_;
}

Status StoreCopier::choose_peer() {
  if (options_.peers.empty()) return error_peer_down("there is no peer to copy the pages from");
  const std::shared_ptr<CopyPeer> peer = options_.peers[next_peer_ % options_.peers.size()];
  StatusOr<CopyOffer> offer = peer->offer();
  if (!offer.ok())
    return error_peer_down("copying pages from " + peer->name() + ": " +
                           std::string(offer.status().message()));
  if (begun_) {
    if (!has_replayed(*offer, marks_))  // PC1
      return error_peer_down("copying pages from " + peer->name() +
                             ": it has not replayed as far as the one before");
  } else {
    STRATA_RETURN_IF_ERROR(begin(*offer));
  }
  peer_ = peer;
  say("copying pages from " + peer->name());
  diag(Severity::kInfo, "copying pages from %s", peer->name().c_str());
  return ok_status();
}

Status StoreCopier::begin(const CopyOffer& offer) {
  STRATA_ASSERT(!begun_ && peer_ == nullptr);
  STRATA_RETURN_IF_ERROR(store_->check_marks(offer.marks));  // PC3
  STRATA_RETURN_IF_ERROR(store_->begin_copy(offer.pages));
  marks_ = offer.marks;
  cursor_ = PageId{};
  listed_.clear();
  gone_.clear();
  begun_ = true;
  return ok_status();
}

// All modes answer as of there without waiting for anything.
Llsn StoreCopier::as_of() const {
  Llsn newest;
  for (const CopyMark& mark : marks_) newest = std::max(newest, mark.replayed.llsn);
  return newest;
}

Status StoreCopier::copy_some() {
  STRATA_ASSERT(begun_ && peer_ != nullptr);
  if (listed_.empty()) {
    STRATA_ASSERT(cursor_.has_value());
    STRATA_ASSIGN_OR_RETURN(PageListing listing,
                            peer_->list(*cursor_, options_.pages_listed, marks_));
    for (const DroppedSpace& gone : listing.gone) gone_[gone.space] = gone.llsn;
    listed_ = std::move(listing.pages);
    cursor_.reset();
    if (listed_.size() == options_.pages_listed) {
      cursor_ = PageId::unpack(listed_.back().packed() + 1);
      if (*cursor_ < listed_.back()) cursor_.reset();  // that was the last one there can be
    }
    std::reverse(listed_.begin(), listed_.end());  // taken from the end
    return ok_status();
  }
  const size_t count = std::min<size_t>(options_.pages_at_once, listed_.size());
  const std::vector<PageId> pages(listed_.rbegin(),
                                  listed_.rbegin() + static_cast<ptrdiff_t>(count));
  STRATA_ASSERT(count != 0);
  STRATA_RETURN_IF_ERROR(take(pages));
  listed_.resize(listed_.size() - count);
  if (fault(FaultPoint::node_copy_pages)) return error_peer_down("fault point node_copy_pages");
  return ok_status();
}

Status StoreCopier::take(const std::vector<PageId>& pages) {
  STRATA_ASSIGN_OR_RETURN(std::vector<StatusOr<PageAnswer>> answers,
                          peer_->get(pages, as_of(), Llsn{UINT64_MAX}));
  if (answers.size() != pages.size())
    return error_corruption("a reply for another number of pages");
  for (size_t i = 0; i < pages.size(); ++i)
    STRATA_RETURN_IF_ERROR(take_one(pages[i], std::move(answers[i])));
  return ok_status();
}

Status StoreCopier::take_one(PageId page, StatusOr<PageAnswer> answer) {
  if (is_not_found(answer.status())) return ok_status();  // not yet there at M: the log brings it
  if (is_out_of_range(answer.status())) {                 // its space is reclaimed
    gone_.try_emplace(SpaceId{page.space}, Llsn{});
    return ok_status();
  }
  if (is_corruption(answer.status())) return take_damaged(page);
  STRATA_RETURN_IF_ERROR(answer.status());
  const Status put = store_->put_copied(page, answer->page->bytes);
  return is_corruption(put) ? take_damaged(page) : stored(put);
}

// The own disk is full, or fails: what is there may not take anything any more.
Status StoreCopier::stored(const Status& status) {
  if (!status.ok()) begun_ = false;
  return status;
}

// PC4
Status StoreCopier::take_damaged(PageId page) {
  for (const std::shared_ptr<CopyPeer>& other : options_.peers) {
    if (other == peer_) continue;
    const auto offer = other->offer();
    if (!offer.ok() || !has_replayed(*offer, marks_)) continue;  // PC1
    const auto answers = other->get({page}, as_of(), Llsn{UINT64_MAX});
    if (!answers.ok() || answers->size() != 1 || !answers->front().ok()) continue;
    const Status put = store_->put_copied(page, answers->front()->page->bytes);
    if (!is_corruption(put)) return stored(put);
  }
  diag(Severity::kError, "%s is damaged on %s, and no other node has it: it stays damaged here",
       name_of(page).c_str(), peer_->name().c_str());
  return stored(store_->put_broken(page, marks_.empty() ? CopyMark{} : marks_.front()));
}

Status StoreCopier::finish() {
  STRATA_ASSERT(begun_ && listed_.empty() && !cursor_.has_value());  // nothing is left
  STRATA_ASSIGN_OR_RETURN(const CopyOffer last, peer_->offer());
  if (!has_replayed(last, marks_)) return error_peer_down(peer_->name() + " has gone back");
  CopyOffer known = last;
  for (const auto& [space, llsn] : gone_) {  // PC2
    const auto dropped =
        std::find_if(known.dropped.begin(), known.dropped.end(),
                     [space = space](const DroppedSpace& d) { return d.space == space; });
    if (dropped != known.dropped.end()) {
      dropped->reclaimed = true;
    } else if (!llsn.is_zero()) {
      known.dropped.push_back({space, llsn, true});
    } else {
      return error_peer_down(peer_->name() + " does not know yet that space " +
                             std::to_string(space.value) + " is dropped");
    }
  }
  const Status finished = store_->finish_copy(marks_, known);
  begun_ = false;  // if it failed, from the beginning
  STRATA_RETURN_IF_ERROR(finished);
  diag(Severity::kInfo, "the pages were copied from %s", peer_->name().c_str());
  peer_ = nullptr;
  const MutexLock lock(mutex_);
  doing_.clear();
  ++completed_;
  return ok_status();
}

// --- the thread ---

void StoreCopier::say(std::string what) {
  const MutexLock lock(mutex_);
  doing_ = std::move(what);
}

std::string StoreCopier::doing() const {
  const MutexLock lock(mutex_);
  return doing_;
}

uint64_t StoreCopier::completed() const {
  const MutexLock lock(mutex_);
  return completed_;
}

void StoreCopier::start() {
  STRATA_ASSERT(!thread_.joinable());
  {
    const MutexLock lock(mutex_);
    stop_ = false;
  }
  thread_ = std::thread([this] { run(); });
}

void StoreCopier::stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Commits and reads go first, here and, by the pace, at the peer.
void StoreCopier::run() {
  name_this_thread("store-copier");
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kBackgroundNice);
  std::string last_said;
  for (;;) {
    const StatusOr<bool> some = step();
    uint64_t pause_us = options_.look_interval_us;
    if (some.ok() && *some)
      pause_us = options_.pages_per_s_max == 0
                     ? 0
                     : 1'000'000 * options_.pages_at_once / options_.pages_per_s_max;
    if (!some.ok() && std::exchange(last_said, std::string(some.status().message())) !=
                          std::string(some.status().message()))
      diag(Severity::kWarning, "%s", last_said.c_str());
    MutexLock lock(mutex_);
    if (changed_.wait_for_us(lock, pause_us, [this]() STRATA_REQUIRES(mutex_) { return stop_; }))
      return;
  }
}

}  // namespace strata::storenode
