// What a page store gives to peers, takes from them page by page (RP6), and how all of it is
// replaced by a copy of theirs (RP5).
#include <algorithm>
#include <cstring>
#include <string>

#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"
#include "storenode/replay/internal/page_store_impl.h"

namespace strata::storenode {
namespace {

// What a peer sent for a page, as a page of ours.
StatusOr<PageRef> verified(PageId page, const char* sealed_page) {
  STRATA_RETURN_IF_ERROR(verify_page(sealed_page, page));
  auto copy = std::make_shared<PageBuffer>();
  std::memcpy(copy->bytes, sealed_page, kPageBytes);
  return PageRef(std::move(copy));
}

}  // namespace

// --- mending single pages ---

// Which version of the page answers is known here, though not how far peers know its streams: they
// are asked for that one. Nothing: damage of more than the page keeps it from being known.
std::optional<Llsn> PageStore::Impl::version_wanted(const GetPageRequest& request) {
  if (single != nullptr) return request.at_least;
  Choice choice;
  const Status seen = map->inspect(request.page, [&](VersionList list) {
    choice = choose(list, request.at_least, request.at_most);
  });
  if (!seen.ok() || choice.kind != Choice::Kind::kFound) return std::nullopt;
  return choice.version.llsn;
}

// The request is answered with what a peer has; what is damaged here is mended beside it.
void PageStore::Impl::ask_peers(TicketPtr ticket, const Status& damage) {
  GetPageRequest request = ticket->request;
  const std::optional<Llsn> version = version_wanted(request);
  if (!version.has_value() && !request.scanned_to.empty()) return finish(std::move(ticket), damage);
  request.at_least = version.value_or(request.at_least);
  const bool exact = version.has_value() && single == nullptr;
  const auto asked = std::make_shared<TicketPtr>(std::move(ticket));
  mend(request.page, request.at_least);
  options.ask_peers(request, [weak = weak_from_this(), asked, damage, request,
                              exact](StatusOr<PageAnswer> copy) {
    const auto self = weak.lock();
    if (self == nullptr) return (*asked)->done(error_peer_down("the page store stops"));
    const bool fits = copy.ok() && verify_page(copy->page->bytes, request.page).ok() &&
                      header_of(copy->page->bytes)->llsn == copy->llsn.value &&
                      copy->llsn <= request.at_most && (!exact || copy->llsn >= request.at_least);
    self->finish(std::move(*asked), fits ? std::move(copy) : StatusOr<PageAnswer>(damage));
  });
}

// One question at a time for each page.
void PageStore::Impl::mend(PageId page, Llsn damaged) {
  const Llsn as_of = replay->repair_from(page, damaged);
  {
    const MutexLock lock(mutex_);
    const auto [it, is_new] = mending_.try_emplace(page, as_of);
    it->second = std::max(it->second, as_of);
    if (!is_new) return;
  }
  GetPageRequest request;
  request.page = page;
  request.at_least = as_of;
  options.ask_peers(request,
                    [weak = weak_from_this(), page, as_of](const StatusOr<PageAnswer>& copy) {
                      if (const auto self = weak.lock(); self != nullptr)
                        self->on_copy(page, as_of, copy);
                    });
}

void PageStore::Impl::on_copy(PageId page, Llsn as_of, const StatusOr<PageAnswer>& copy) {
  Llsn wanted;
  {
    const MutexLock lock(mutex_);
    const auto it = mending_.find(page);
    if (it == mending_.end()) return;
    wanted = it->second;
    STRATA_ASSERT(wanted >= as_of);
    mending_.erase(it);
  }
  Status done = copy.status();
  StatusOr<PageRef> page_of_ours =
      copy.ok() ? verified(page, copy->page->bytes) : StatusOr<PageRef>(copy.status());
  if (done.ok()) done = page_of_ours.status();
  if (done.ok()) done = replay->repair(page, as_of, *std::move(page_of_ours));
  if (is_not_found(done)) return;  // not a version of ours: there is nothing to be mended with it
  if (!done.ok()) {
    diag(Severity::kWarning, "%s is damaged here, and no peer could mend it: %s",
         name_of(page).c_str(), std::string(done.message()).c_str());
    return;
  }
  counters.pages_repaired.fetch_add(1, std::memory_order_relaxed);
  diag(Severity::kWarning, "%s was damaged here; a peer's copy has taken its place",
       name_of(page).c_str());
  if (wanted > as_of && wanted > copy->llsn) return mend(page, wanted);
  if (options.mode == ReplayMode::kSmart) replay->retry();  // pages that were put off
}

Status PageStore::repair_version(PageId page, Llsn llsn, const char* sealed_page) {
  STRATA_ASSIGN_OR_RETURN(PageRef copy, verified(page, sealed_page));
  if (header_of(sealed_page)->llsn != llsn.value)
    return error_corruption("the copy of " + name_of(page) + " has llsn " +
                            std::to_string(header_of(sealed_page)->llsn) + ", not " +
                            std::to_string(llsn.value));
  const auto impl = shell_->impl();
  if (impl == nullptr) return Shell::being_copied();
  return impl->replay->repair(page, llsn, std::move(copy));
}

// --- what peers copy ---

// Marks first (CO1): what they stand for is in the map, or in the page files, by then.
StatusOr<CopyOffer> PageStore::Impl::offer_copy() {
  if (Status status = ingest != nullptr ? ingest->failure() : replay->failure(); !status.ok())
    return error_peer_down("its own replay has stopped: " + std::string(status.message()));
  CopyOffer offer;
  STRATA_ASSIGN_OR_RETURN(const StreamMarks marks, replay->prepare_checkpoint());
  for (const auto& [stream, mark] : marks) offer.marks.push_back({stream, mark});
  offer.newest = waits.newest_scanned();
  offer.horizon = map->horizon();
  STRATA_ASSIGN_OR_RETURN(offer.dropped, db->read_dropped());
  offer.pages = db->pages_estimate();
  if (single == nullptr) return offer;
  offer.pages = 0;
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> spaces, single->list_spaces());
  for (const SpaceId space : spaces) {
    STRATA_ASSIGN_OR_RETURN(const uint32_t pages, page_file_pages(options, space));
    offer.pages += pages;
  }
  return offer;
}

// The pages first: one that is reclaimed in between is in either list.
StatusOr<PageListing> PageStore::Impl::list_pages(PageId from, uint32_t pages_max,
                                                  const std::vector<CopyMark>& marks) {
  Llsn as_of;
  for (const CopyMark& mark : marks) {
    as_of = std::max(as_of, mark.replayed.llsn);
    if (replay->replayed_to(mark.stream).lsn >= mark.replayed.lsn) continue;
    replay->ripen_all();
    return error_peer_down("it has not replayed so far");
  }
  PageListing listing;
  STRATA_ASSIGN_OR_RETURN(listing.pages, single == nullptr ? db->list_pages(from, pages_max)
                                                           : list_page_files(from, pages_max));
  listing.gone = map->reclaimed_behind(as_of);
  return listing;
}

StatusOr<std::vector<PageId>> PageStore::Impl::list_page_files(PageId from, uint32_t pages_max) {
  std::vector<PageId> pages;
  STRATA_ASSIGN_OR_RETURN(std::vector<SpaceId> spaces, single->list_spaces());
  std::sort(spaces.begin(), spaces.end());
  for (const SpaceId space : spaces) {
    if (space.value < from.space) continue;
    STRATA_ASSIGN_OR_RETURN(const uint32_t count, page_file_pages(options, space));
    for (uint32_t number = space.value == from.space ? from.number : 0;
         number < count && pages.size() < pages_max; ++number)
      pages.push_back(PageId{space.value, number});
  }
  return pages;
}

// Nothing is cut off below needed_from(), so this is a log that was lost, or began anew.
bool PageStore::Impl::lacks_log(const std::map<StreamId, Lsn>& lost) const {
  for (const Streams::Stream& stream : streams.all()) {
    const Lsn needed = replay->replayed_to(stream.id).lsn;
    const auto unusable = lost.find(stream.id);
    if (stream.log->begin_lsn() > needed) return true;
    if (unusable != lost.end() && unusable->second > needed) return true;
  }
  return false;
}

// CO2
StatusOr<CopyOffer> PageStore::offer_copy() {
  const auto impl = shell_->impl();
  if (impl == nullptr) return Shell::being_copied();
  if (impl->lacks_log(shell_->lost()) || impl->db->is_damaged())
    return error_peer_down("it is to be copied from a peer itself");
  return impl->offer_copy();
}

StatusOr<PageListing> PageStore::list_pages(PageId from, uint32_t pages_max,
                                            const std::vector<CopyMark>& marks) {
  const auto impl = shell_->impl();
  if (impl == nullptr) return Shell::being_copied();
  return impl->list_pages(from, pages_max, marks);
}

// --- being replaced ---

bool PageStore::needs_copy() const {
  const auto impl = shell_->impl();
  if (impl == nullptr || impl->lacks_log(shell_->lost())) return true;
  return shell_->options.copy_when_damaged && impl->db->is_damaged();
}

void PageStore::note_lost(StreamId stream, Lsn to) { shell_->note_lost(stream, to); }

Status PageStore::check_marks(const std::vector<CopyMark>& marks) const {
  return shell_->check_marks(marks);
}

Status PageStore::begin_copy(uint64_t pages) { return shell_->begin_copy(pages); }

Status PageStore::put_copied(PageId page, const char* sealed_page) {
  if (shell_->copy == nullptr) return error_invalid_argument("no copy was begun");
  STRATA_ASSIGN_OR_RETURN(const PageRef copy, verified(page, sealed_page));
  STRATA_RETURN_IF_ERROR(shell_->copy->put(page, copy));
  shell_->pages_copied.fetch_add(1, std::memory_order_relaxed);
  return ok_status();
}

Status PageStore::put_broken(PageId page, const CopyMark& mark) {
  if (shell_->copy == nullptr) return error_invalid_argument("no copy was begun");
  return shell_->copy->put_broken(page, mark);
}

Status PageStore::finish_copy(const std::vector<CopyMark>& at, const CopyOffer& last) {
  return shell_->finish_copy(at, last);
}

Status PageStore::Shell::being_copied() {
  return error_peer_down("the pages of this node are being copied from a peer");
}

std::vector<PageStore::Shell::StreamHere> PageStore::Shell::streams() const {
  const MutexLock lock(mutex_);
  return streams_;
}

Status PageStore::Shell::open() {
  STRATA_RETURN_IF_ERROR(options.files->make_directory(options.directory));
  STRATA_ASSIGN_OR_RETURN(const bool unfinished, is_being_copied(options));
  if (unfinished) {
    diag(Severity::kWarning, "page store in %s: a copy of a peer's pages did not come to its end",
         options.directory.c_str());
    return ok_status();
  }
  return copied_if_damaged(open_impl());
}

// Nothing serves. Nothing is removed either before a peer offers a copy (begin_copy()).
Status PageStore::Shell::copied_if_damaged(const Status& status) const {
  if (!is_corruption(status) || !options.copy_when_damaged) return status;
  diag(Severity::kError, "%s: the pages are to be copied from a peer",
       std::string(status.message()).c_str());
  return note_being_copied(options);
}

// Whoever drops the last reference says so, and may be a thread that must not wait: somebody else
// deletes it.
Status PageStore::Shell::open_impl() {
  std::shared_ptr<Impl> made(new Impl(options, &counters), [this](Impl* impl) {
    const MutexLock lock(mutex_);
    left_.reset(impl);
    gone_.notify_all();
  });
  {
    const MutexLock lock(mutex_);
    exists_ = true;
  }
  Status opened = made->open();
  size_t added = 0;
  if (opened.ok()) opened = add_streams(made.get(), &added);
  if (opened.ok() && is_running()) made->start();
  while (opened.ok()) {
    {
      const MutexLock lock(mutex_);
      if (added == streams_.size()) {
        impl_ = std::move(made);
        return ok_status();
      }
    }
    opened = add_streams(made.get(), &added);  // somebody has brought one meanwhile
  }
  made->stop();
  made.reset();
  delete_impl();
  return opened;
}

// Those behind the first *added.
Status PageStore::Shell::add_streams(Impl* impl, size_t* added) const {
  const std::vector<StreamHere> all = streams();
  for (; *added < all.size(); ++*added) {
    const StreamHere& one = all[*added];
    STRATA_RETURN_IF_ERROR(impl->add_stream(one.id, one.log, one.begin));
  }
  return ok_status();
}

// Once nobody has a reference to it.
void PageStore::Shell::delete_impl() {
  std::unique_ptr<Impl> last;
  MutexLock lock(mutex_);
  gone_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !exists_ || left_ != nullptr; });
  last = std::move(left_);
  exists_ = false;
  lock.unlock();
  last.reset();
}

void PageStore::Shell::close_impl() {
  std::shared_ptr<Impl> last;
  {
    const MutexLock lock(mutex_);
    last = std::move(impl_);
    impl_ = nullptr;
  }
  if (last != nullptr) last->stop();
  last.reset();
  delete_impl();
}

// What serves may be replaced meanwhile: then the stream is in the list before the next one is in
// place, or that one gets it, too.
Status PageStore::Shell::add_stream(StreamId stream, LogView* log, Lsn begin) {
  for (std::shared_ptr<Impl> serving;;) {
    {
      const MutexLock lock(mutex_);
      if (impl_ == serving || impl_ == nullptr) {
        streams_.push_back({stream, log, begin});
        return ok_status();
      }
      serving = impl_;
    }
    Status added = serving->add_stream(stream, log, begin);
    if (is_corruption(added) && options.copy_when_damaged) {  // its marks: as if it were not opened
      serving = nullptr;
      close_impl();
      added = copied_if_damaged(added);
    }
    STRATA_RETURN_IF_ERROR(added);
  }
}

PageStore::Shell::~Shell() { close_impl(); }

bool PageStore::Shell::is_running() const {
  const MutexLock lock(mutex_);
  return running_;
}

void PageStore::Shell::start() {
  {
    const MutexLock lock(mutex_);
    running_ = true;
  }
  if (const auto serving = impl(); serving != nullptr) serving->start();
}

void PageStore::Shell::stop() {
  std::shared_ptr<Impl> serving;
  {
    const MutexLock lock(mutex_);
    running_ = false;
    serving = impl_;
  }
  if (serving != nullptr) serving->stop();
}

Status PageStore::Shell::check_marks(const std::vector<CopyMark>& marks) const {
  const std::map<StreamId, Lsn> useless = lost();
  for (const StreamHere& stream : streams()) {
    const auto mark = std::find_if(marks.begin(), marks.end(),
                                   [&](const CopyMark& m) { return m.stream == stream.id; });
    const auto unusable = useless.find(stream.id);
    const Lsn begin =
        std::max(stream.log->begin_lsn(), unusable == useless.end() ? Lsn{} : unusable->second);
    if (mark == marks.end() || mark->replayed.lsn < begin)
      return error_peer_down("the log of stream " + std::to_string(stream.id.value) +
                             " begins here at lsn " + std::to_string(begin.value) +
                             ", and the peer has not replayed so far");
  }
  return ok_status();
}

Status PageStore::Shell::begin_copy(uint64_t pages) {
  copy.reset();
  close_impl();
  pages_copied = 0;
  pages_to_copy = pages;
  STRATA_RETURN_IF_ERROR(note_being_copied(options));  // CF1
  if (fault(FaultPoint::node_copy_begun)) return error_internal("fault point");
  STRATA_ASSIGN_OR_RETURN(copy, CopiedPages::begin(options));
  return ok_status();
}

Status PageStore::Shell::finish_copy(const std::vector<CopyMark>& at, const CopyOffer& last) {
  if (copy == nullptr) return error_invalid_argument("no copy was begun");
  const Status finished = copy->finish(at, last);
  copy.reset();
  STRATA_RETURN_IF_ERROR(finished);
  if (fault(FaultPoint::node_copy_whole)) return error_internal("fault point");
  STRATA_RETURN_IF_ERROR(note_copied(options));  // CF1
  return open_impl();
}

void PageStore::Shell::note_lost(StreamId stream, Lsn to) {
  const MutexLock lock(mutex_);
  Lsn& known = lost_[stream];
  known = std::max(known, to);
}

std::map<StreamId, Lsn> PageStore::Shell::lost() const {
  const MutexLock lock(mutex_);
  return lost_;
}

uint64_t PageStore::Shell::backlog_bytes() const {
  uint64_t bytes = 0;
  for (const StreamHere& stream : streams())
    bytes += stream.log->durable_lsn().value -
             std::min(stream.log->durable_lsn(), stream.log->begin_lsn()).value;
  return bytes;
}

void PageStore::Shell::fill_status(PageStoreStatus* status) const {
  status->copying = true;
  for (const StreamHere& stream : streams()) {
    PageStoreStatus::Stream one;
    one.stream = stream.id;
    one.durable = stream.log->durable_lsn();
    status->streams.push_back(one);
  }
  status->backlog_bytes = status->scan_lag_bytes = backlog_bytes();
  // Nobody knows how many there are before the peer's first answer.
  const uint64_t all = pages_to_copy.load();
  status->failure =
      error_peer_down("copying pages from a peer: " + std::to_string(pages_copied.load()) +
                      (all == 0 ? "" : " of about " + std::to_string(all)));
}

}  // namespace strata::storenode
