#include "memnode/service/served_pool.h"

#include <algorithm>
#include <compare>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"
#include "page/page.h"
#include "transport/secret.h"

namespace strata::memnode {
namespace {

StateRecords::User place_of(const proto::PoolUser& user) { return {user.epoch, user.number}; }

void count(std::atomic<uint64_t>* counter, uint64_t n = 1) {
  counter->fetch_add(n, std::memory_order_relaxed);
}

template <class Reply>
void answer(const ServedPool::To& to, const StatusOr<Reply>& reply) {
  reply.ok() ? to->reply(proto::encode(*reply)) : to->fail(reply.status());
}

proto::PoolSlot told(const Pool::Slot& slot) {
  return {slot.number, slot.generation, slot.llsn, slot.dirty};
}

proto::PoolPutReply::Taken told(const StatusOr<Pool::Slot>& slot) {
  if (!slot.ok()) return {slot.status(), 0, 0};
  return {ok_status(), slot->number, slot->generation};
}

// PUS3: it is that page, and whole. If not, what was sent is wrong, not this node's data.
Status check_bytes(const char* page, PageId id) {
  const Status sound = verify_page(page, id);
  if (!sound.ok()) return error_invalid_argument(std::string(sound.message()));
  if (header_of(page)->llsn == 0) return error_invalid_argument("a page without an llsn");
  return ok_status();
}

// PUS3, K9
Status check_log(const proto::PoolImage& image, Lsn durable) {
  if (!image.dirty || (image.first <= image.end && image.end <= durable)) return ok_status();
  return error_invalid_argument("a changed page whose log is not durable");
}

std::vector<proto::PoolAnswer> nobody(size_t targets, const Status& why) {
  return std::vector<proto::PoolAnswer>(targets, {false, why});
}

}  // namespace

ServedPool::ServedPool(Parts parts)
    : tenant_(std::move(parts.tenant)),
      stream_(parts.stream),
      region_(std::move(parts.region)),
      place_(parts.file.get()),
      offload_(parts.offload),
      stage_(std::move(parts.stage)),
      writer_(parts.writer),
      counters_(parts.counters),
      file_(std::move(parts.file)),
      made_(!place_->found()),
      tasks_(std::move(parts.offload), {}) {}

// --- who uses it ---

bool ServedPool::found() const {
  const MutexLock lock(mutex_);
  return file_->found();
}

uint64_t ServedPool::incarnation() const {
  const MutexLock lock(mutex_);
  return file_->incarnation();
}

uint64_t ServedPool::uses() const {
  const MutexLock lock(mutex_);
  return uses_;
}

Status ServedPool::check_user(const proto::PoolUser& user) {
  const MutexLock lock(mutex_);
  const auto order = place_of(user) <=> file_->user();
  if (order == 0 && attached_ && user.incarnation == file_->incarnation()) {
    ++uses_;
    return ok_status();
  }
  count(&counters_->stale_calls);
  if (order < 0) return error_fenced("another one has the pool now");
  return error_not_found("nobody is attached to such a pool; to do: attach to it first");
}

Status ServedPool::check_newcomer(const proto::PoolAttachRequest& request) const {
  const MutexLock lock(mutex_);
  if (ended_) return error_busy("the pool was given back just now; to do: ask again in a moment");
  if (place_of(request.user) <= file_->user())
    return error_fenced("a later user has been attached to the pool");
  const bool another =
      request.user.incarnation != 0 && request.user.incarnation != file_->incarnation();
  if (another && !request.fresh) return error_not_found("the pool has lost that content");
  return ok_status();
}

void ServedPool::attach(const proto::PoolAttachRequest& request, const To& to) {
  Status accepted = check_newcomer(request);
  To before;  // whom this one has overtaken while he waited
  if (accepted.ok()) {
    const MutexLock lock(mutex_);
    accepted = file_->accept(place_of(request.user));
    if (accepted.ok()) {
      ++uses_;
      attached_ = false;
      if (newcomer_.has_value()) before = newcomer_->to;
      newcomer_ = Newcomer{request, to};
    }
  }
  if (!accepted.ok()) {
    count(&counters_->attach_refused);
    return to->fail(accepted);
  }
  if (before != nullptr) before->fail(error_fenced("a later user has been attached to the pool"));
  finish_attach();
}

// PUS2
void ServedPool::finish_attach() {
  std::optional<Newcomer> newcomer;
  {
    const MutexLock lock(mutex_);
    if (!batches_.empty() || !newcomer_.has_value()) return;
    newcomer.swap(newcomer_);
  }
  if (const Status entered = enter(*newcomer); !entered.ok()) {
    count(&counters_->attach_refused);
    return newcomer->to->fail(entered);
  }
  count(&counters_->attached);
  proto::PoolAttachReply reply;
  std::shared_ptr<Staging> staging;  // STG1; the old one goes without the mutex
  if (newcomer->request.places_max != 0 && newcomer->to->carries_descriptors())
    staging = stage_(newcomer->request.places_max);
  if (staging != nullptr) {
    reply.staging = staging->name();
    reply.places = staging->places();
  }
  reply.region = region_;
  reply.slots = place_->slots();
  reply.headers_at = place_->headers_at();
  reply.pages_at = place_->pages_at();
  {
    const MutexLock lock(mutex_);
    reply.incarnation = file_->incarnation();
    reply.made = std::exchange(made_, false);
    reply.report = file_->pool()->last_report();
    const StateRecords::Checkpoint checkpoint = file_->checkpoint();
    reply.checkpoint_epoch = checkpoint.epoch;
    reply.checkpoint = checkpoint.lsn;
    reply.bias = checkpoint.bias;
    staging.swap(staging_);
  }
  newcomer->to->reply(proto::encode(reply));
}

Status ServedPool::enter(const Newcomer& newcomer) {
  bool fresh = false;
  {
    const MutexLock lock(mutex_);
    fresh = (newcomer.request.fresh && !made_) || file_->incarnation() == 0;
    if (fresh) file_->end_content();
  }
  Status durable = fresh ? begin_content() : place_->persist();  // PUS1: who was accepted
  const MutexLock lock(mutex_);
  if (!durable.ok()) {
    end_undurable(durable);
    return durable;
  }
  file_->pool()->doubt_written();
  attached_ = true;
  return ok_status();
}

// After end_content().
Status ServedPool::begin_content() {
  STRATA_RETURN_IF_ERROR(place_->persist());
  {
    const MutexLock lock(mutex_);
    file_->begin_content();
  }
  STRATA_RETURN_IF_ERROR(place_->persist());
  {
    const MutexLock lock(mutex_);
    file_->name_content();
    made_ = true;
    trouble_.clear();
  }
  count(&counters_->discarded);
  return place_->persist();
}

// PUS9
Status ServedPool::make_durable() {
  const Status durable = place_->persist();
  const MutexLock lock(mutex_);
  if (file_->incarnation() == 0) return error_outcome_unknown(trouble_);  // it has ended already
  if (durable.ok()) {
    file_->pool()->persisted();
    return ok_status();
  }
  end_undurable(durable);
  return error_outcome_unknown(trouble_);
}

// PUS9. Slots may be on their way to storage: the next user begins another content.
void ServedPool::end_undurable(const Status& why) {
  file_->end_content();
  attached_ = false;
  trouble_ = std::string(why.message());
  count(&counters_->not_durable);
  diag(Severity::kError, "the pool of stream %u is lost: %s", stream_.value, trouble_.c_str());
}

// PSL9: before pages go for good.
Status ServedPool::settle() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (file_->pool()->unsettled() == 0) return ok_status();
    }
    STRATA_RETURN_IF_ERROR(make_durable());
  }
}

// --- pages ---

void ServedPool::list(const proto::PoolListRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  proto::PoolListReply reply;
  const uint32_t slots = place_->slots();
  const uint32_t from = std::min(request.from, slots);
  reply.next = from + std::min(request.slots_max, slots - from);
  {
    const MutexLock lock(mutex_);
    for (uint32_t slot = from; slot < reply.next; ++slot) {
      const std::optional<PageId> id = file_->pool()->page_at(slot);
      if (!id.has_value()) continue;
      const std::optional<Pool::Slot> at = file_->pool()->lookup(*id);
      if (at.has_value() && at->number == slot) reply.pages.push_back({*id, told(*at)});
    }
  }
  count(&counters_->listed, reply.pages.size());
  to->reply(proto::encode(reply));
}

void ServedPool::put(const proto::PoolPutRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  Takes takes;
  takes.reply.taken.reserve(request.images.size());
  for (size_t i = 0; i < request.images.size(); ++i)
    takes.reply.taken.push_back(told(take_carried(request.images[i], request.durable,
                                                  request.pages.data() + i * kPageBytes, &takes)));
  end_put(&takes, to);
}

void ServedPool::put_staged(const proto::PoolPutStagedRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  std::shared_ptr<Staging> staging;
  {
    const MutexLock lock(mutex_);
    staging = staging_;
  }
  Takes takes;
  takes.reply.taken.reserve(request.images.size());
  for (const proto::PoolStagedImage& staged : request.images)
    takes.reply.taken.push_back(told(pull(staged, request.durable, staging.get(), &takes)));
  end_put(&takes, to);
}

void ServedPool::end_put(Takes* takes, const To& to) {
  if (const Status published = publish(takes); !published.ok()) return to->fail(published);
  if (fault(FaultPoint::memnode_before_reply))
    return to->fail(error_outcome_unknown("asked for by a test"));
  to->reply(proto::encode(takes->reply));
}

// PSL9: bytes, headers, answers.
Status ServedPool::publish(Takes* takes) {
  if (takes->filled.empty() && !takes->lowered) return ok_status();
  if (!takes->filled.empty()) STRATA_RETURN_IF_ERROR(make_durable());
  {
    const MutexLock lock(mutex_);
    for (const Takes::Filled& filled : takes->filled) {
      const StatusOr<Pool::Slot> taken = file_->pool()->publish(filled.slot);
      count_taken(taken.status());
      takes->reply.taken[filled.image] = told(taken);
    }
  }
  takes->filled.clear();
  takes->lowered = false;
  return make_durable();
}

// PUS3
Status ServedPool::rejected(Status why) {
  count(&counters_->images_rejected);
  return why;
}

StatusOr<Pool::Slot> ServedPool::take_carried(const proto::PoolImage& image, Lsn durable,
                                              const char* page, Takes* takes) {
  Status sound = check_bytes(page, image.id);
  if (sound.ok()) sound = check_log(image, durable);
  if (!sound.ok()) return rejected(std::move(sound));
  const auto copy = [page](const Pool& pool, uint32_t slot) {
    pool.fill(slot, page);
    return ok_status();
  };
  return take(image, Llsn{header_of(page)->llsn}, copy, takes);
}

// What is copied may be changed meanwhile by who put it there: the copy is looked at (STG3).
StatusOr<Pool::Slot> ServedPool::pull(const proto::PoolStagedImage& staged, Lsn durable,
                                      const Staging* staging, Takes* takes) {
  if (staging == nullptr || staged.place >= staging->places()) {
    count(&counters_->places_refused);
    return rejected(error_invalid_argument("a place outside of the staging memory"));
  }
  if (Status sound = check_log(staged.image, durable); !sound.ok())
    return rejected(std::move(sound));
  const auto pull = [&](const Pool& pool, uint32_t slot) -> Status {
    pool.fill(slot, staging->page(staged.place));
    count(&counters_->images_pulled);
    if (fault(FaultPoint::memnode_pull_half)) return error_io_error("asked for by a test");
    const char* const page = pool.bytes_of(slot);
    STRATA_RETURN_IF_ERROR(check_bytes(page, staged.image.id));
    if (header_of(page)->llsn == staged.llsn.value) return ok_status();
    return error_invalid_argument("a staged page has another llsn than was said");
  };
  return take(staged.image, staged.llsn, pull, takes);
}

void ServedPool::count_taken(const Status& taken) {
  if (taken.ok())
    count(&counters_->images_taken);
  else if (is_conflict(taken))
    count(&counters_->images_older);
  else if (is_no_space(taken))
    count(&counters_->images_no_slot);
  else
    count(&counters_->images_rejected);
}

StatusOr<uint32_t> ServedPool::begin_fill(const proto::PoolImage& image, Llsn llsn, Takes* takes,
                                          Pool::Slot* there) {
  const auto begin = [&] {
    const MutexLock lock(mutex_);
    return file_->pool()->begin_fill(image.id, llsn, image.dirty, image.dirty ? image.first : Lsn{},
                                     there);
  };
  StatusOr<uint32_t> slot = begin();
  if (!is_no_space(slot.status()) || !place_->persistent()) return slot;
  // PSL9: slots that are free once something is durable. Replaced ones take two rounds.
  STRATA_RETURN_IF_ERROR(publish(takes));
  STRATA_RETURN_IF_ERROR(make_durable());
  return begin();
}

StatusOr<Pool::Slot> ServedPool::end_fill(uint32_t slot, const Status& filled) {
  const MutexLock lock(mutex_);
  if (filled.ok()) return file_->pool()->publish(slot);
  file_->pool()->abandon(slot);
  return filled;
}

// On a persistent medium what is said of an image that was filled is replaced by publish().
StatusOr<Pool::Slot> ServedPool::take(const proto::PoolImage& image, Llsn llsn, Fill fill,
                                      Takes* takes) {
  Pool::Slot there;
  const StatusOr<uint32_t> slot = begin_fill(image, llsn, takes, &there);
  if (!slot.ok()) {
    const bool is_there = is_duplicate_key(slot.status());
    takes->lowered = takes->lowered || is_there;
    count_taken(is_there ? ok_status() : slot.status());
    return is_there ? StatusOr<Pool::Slot>(there) : slot.status();
  }
  const Pool* pool = nullptr;
  {
    const MutexLock lock(mutex_);
    pool = file_->pool();
  }
  Status filled = fill(*pool, *slot);
  if (filled.ok() && fault(FaultPoint::memnode_put_half))
    filled = error_io_error("asked for by a test");
  if (filled.ok() && place_->persistent()) {  // PSL9
    takes->filled.push_back({takes->reply.taken.size(), *slot});
    return Pool::Slot{};
  }
  const StatusOr<Pool::Slot> taken = end_fill(*slot, filled);
  count_taken(taken.status());
  return taken;
}

void ServedPool::lookup(const proto::PoolPagesRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  proto::PoolLookupReply reply;
  {
    const MutexLock lock(mutex_);
    for (const PageId id : request.pages) {
      const std::optional<Pool::Slot> at = file_->pool()->lookup(id);
      reply.found.push_back({at.has_value(), at.has_value() ? told(*at) : proto::PoolSlot{}});
    }
  }
  count(&counters_->lookups, request.pages.size());
  to->reply(proto::encode(reply));
}

void ServedPool::drop(const proto::PoolPagesRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  if (const Status settled = settle(); !settled.ok()) return to->fail(settled);
  proto::PoolDropReply reply;
  {
    const MutexLock lock(mutex_);
    for (const PageId id : request.pages) reply.dropped.push_back(file_->pool()->drop(id));
  }
  if (const Status durable = make_durable(); !durable.ok()) return to->fail(durable);
  for (const Status& dropped : reply.dropped)
    count(dropped.ok() ? &counters_->dropped : &counters_->drops_refused);
  to->reply(proto::encode(reply));
}

// PUS4
void ServedPool::forget(const proto::PoolForgetRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  if (const Status settled = settle(); !settled.ok()) return to->fail(settled);
  count(&counters_->forgotten);
  {
    const MutexLock lock(mutex_);
    file_->pool()->forget_space(request.space);
  }
  if (const Status durable = make_durable(); !durable.ok()) return to->fail(durable);
  {
    const MutexLock lock(mutex_);
    if (under_way(request.space)) return forgetting_.push_back({request.space, to});
  }
  to->reply({});
}

bool ServedPool::under_way(SpaceId space) const {
  if (file_->pool()->writes_of(space)) return true;
  // What is written again is in nobody's way in the pool.
  return std::any_of(batches_.begin(), batches_.end(), [&](const BatchPtr& batch) {
    return std::any_of(batch->writes.begin(), batch->writes.end(),
                       [&](const Pool::Write& write) { return write.id.space == space.value; });
  });
}

// --- to storage ---

void ServedPool::write(const proto::PoolWriteRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  auto batch = std::make_shared<Batch>();
  batch->user = request.user;
  batch->targets = request.targets;
  batch->to = to;
  {
    const MutexLock lock(mutex_);
    batch->writes = file_->pool()->take_writes(request.below, request.pages_max);
  }
  if (batch->writes.empty()) return end_write(*batch, ok_status(), {});
  begin(batch);
}

void ServedPool::write_again(const proto::PoolWriteAgainRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  auto batch = std::make_shared<Batch>();
  batch->user = request.user;
  batch->targets = {request.target};
  batch->again = true;
  batch->to = to;
  {
    const MutexLock lock(mutex_);
    batch->writes =
        file_->pool()->written_since_sync(request.from, proto::kPoolImagesMax, &batch->next);
  }
  if (batch->writes.empty()) return end_again(*batch, ok_status(), {{true, ok_status()}});
  // Nothing keeps these slots as they are, but that no other call runs meanwhile.
  const Status copied = copy_pages(batch.get());
  if (!copied.ok()) return end_again(*batch, copied, {});
  begin(batch);
}

void ServedPool::begin(const BatchPtr& batch) {
  {
    const MutexLock lock(mutex_);
    batches_.push_back(batch);
  }
  // Copying is for another thread: calls go on meanwhile, and slots being written stay as they are.
  if (offload_([this, batch] { send(batch); })) return;
  const Status stops = error_peer_down("the memory node stops");
  tasks_.post_always(
      [this, batch, stops] { end(batch, ok_status(), nobody(batch->targets.size(), stops)); });
}

void ServedPool::send(const BatchPtr& batch) {
  const Status copied = batch->again ? ok_status() : copy_pages(batch.get());
  if (!copied.ok()) {
    tasks_.post_always([this, batch, copied] { end(batch, copied, {}); });
    return;
  }
  writer_->write(batch->pages, batch->targets,
                 [this, batch](std::vector<proto::PoolAnswer> answers) {
                   tasks_.post_always([this, batch, answers = std::move(answers)]() mutable {
                     end(batch, ok_status(), std::move(answers));
                   });
                 });
}

// What memory has kept for long may not be what was put there.
Status ServedPool::copy_pages(Batch* batch) {
  batch->pages.stream = stream_;
  batch->pages.epoch = batch->user.epoch;
  batch->pages.ids.reserve(batch->writes.size());
  batch->pages.pages.reserve(batch->writes.size() * kPageBytes);
  for (const Pool::Write& write : batch->writes) {
    const char* page =
        place_->region()->data() + place_->pages_at() + uint64_t{write.slot} * kPageBytes;
    Status sound = verify_page(page, write.id);
    if (!sound.ok()) sound = error_corruption(std::string(sound.message()));
    if (sound.ok() && header_of(page)->llsn != write.llsn.value)
      sound = error_corruption("a slot holds another version of its page");
    if (!sound.ok()) {
      note_trouble(sound);
      return sound;
    }
    batch->pages.ids.push_back(write.id);
    batch->pages.pages.append(page, kPageBytes);
  }
  return ok_status();
}

void ServedPool::note_trouble(const Status& trouble) {
  count(&counters_->damaged);
  diag(Severity::kError, "a changed page in the pool of stream %u is damaged: %s", stream_.value,
       std::string(trouble.message()).c_str());
  const MutexLock lock(mutex_);
  trouble_ = std::string(trouble.message());
}

void ServedPool::end(const BatchPtr& batch, const Status& sent,
                     std::vector<proto::PoolAnswer> answers) {
  {
    const MutexLock lock(mutex_);
    batches_.remove(batch);
  }
  batch->again ? end_again(*batch, sent, std::move(answers))
               : end_write(*batch, sent, std::move(answers));
  end_waits();
}

// PUS5
void ServedPool::end_write(const Batch& batch, const Status& sent,
                           std::vector<proto::PoolAnswer> answers) {
  const bool lost = !batch.writes.empty() && fault(FaultPoint::memnode_write_sent);
  const bool all_ok =
      sent.ok() && !lost && std::all_of(answers.begin(), answers.end(), [](const auto& answer) {
        return answer.answered && answer.status.ok();
      });
  proto::PoolWriteReply reply;
  {
    const MutexLock lock(mutex_);
    if (!batch.writes.empty())
      all_ok ? static_cast<void>(file_->pool()->wrote(batch.writes))
             : file_->pool()->failed(batch.writes);
    // That of a content that was lost stays.
    if (all_ok && !batch.writes.empty() && file_->incarnation() != 0) trouble_.clear();
    reply.report = file_->pool()->last_report();
    reply.oldest = file_->pool()->oldest_dirty();
    reply.dirty = file_->pool()->unclean();
  }
  if (!batch.writes.empty()) {
    count(&counters_->writes);
    if (!all_ok) count(&counters_->writes_failed);
    if (all_ok) count(&counters_->pages_written, batch.writes.size());
  }
  if (!sent.ok()) return batch.to->fail(sent);
  if (lost) return batch.to->fail(error_outcome_unknown("asked for by a test"));
  for (const Pool::Write& write : batch.writes) reply.pages.push_back({write.id, write.llsn});
  reply.answers = std::move(answers);
  batch.to->reply(proto::encode(reply));
}

void ServedPool::end_again(const Batch& batch, const Status& sent,
                           std::vector<proto::PoolAnswer> answers) {
  if (!sent.ok()) return batch.to->fail(sent);
  STRATA_ASSERT(answers.size() == 1);
  if (answers.front().answered && answers.front().status.ok())
    count(&counters_->pages_written_again, batch.writes.size());
  batch.to->reply(
      proto::encode(proto::PoolWriteAgainReply{batch.next, std::move(answers.front())}));
}

// A write has ended: whoever waited for that.
void ServedPool::end_waits() {
  std::vector<To> forgotten;
  {
    const MutexLock lock(mutex_);
    const auto done = std::stable_partition(
        forgetting_.begin(), forgetting_.end(),
        [this](const Forgetting& one) STRATA_REQUIRES(mutex_) { return under_way(one.space); });
    for (auto it = done; it != forgetting_.end(); ++it) forgotten.push_back(it->to);
    forgetting_.erase(done, forgetting_.end());
  }
  for (const To& to : forgotten) to->reply({});
  finish_attach();
}

// --- what storage has ---

void ServedPool::synced(const proto::PoolSyncedRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  StatusOr<proto::PoolSyncedReply> reply = proto::PoolSyncedReply{};
  {
    const MutexLock lock(mutex_);
    if (request.report > file_->pool()->last_report()) {
      reply = error_invalid_argument("a report that was never made");
    } else {
      file_->pool()->synced(request.report);
      reply->oldest = file_->pool()->oldest_dirty();
      reply->dirty = file_->pool()->unclean();
    }
  }
  if (reply.ok()) count(&counters_->syncs);
  answer(to, reply);
}

void ServedPool::stored(const proto::PoolStoredRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  {
    const MutexLock lock(mutex_);
    for (const proto::StoredPage& page : request.pages) file_->pool()->stored(page.id, page.llsn);
  }
  to->reply({});
}

// PUS6
void ServedPool::checkpoint(const proto::PoolCheckpointRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  if (request.lsn.is_zero()) return to->fail(error_invalid_argument("a checkpoint at no place"));
  Status kept;
  {
    const MutexLock lock(mutex_);
    kept = file_->set_checkpoint({request.user.epoch, request.lsn, request.bias});
  }
  if (kept.ok()) kept = make_durable();
  if (!kept.ok()) return to->fail(kept);
  count(&counters_->checkpoints);
  to->reply({});
}

// PUS8
bool ServedPool::end_unused(uint64_t incarnation, uint64_t uses) {
  const MutexLock lock(mutex_);
  const bool unused = !ended_ && uses_ == uses && file_->incarnation() == incarnation;
  if (!unused || !batches_.empty() || newcomer_.has_value()) return false;
  ended_ = true;
  attached_ = false;
  return true;
}

PoolStatus ServedPool::status() const {
  PoolStatus status;
  status.tenant = tenant_;
  status.stream = stream_;
  status.bytes = bytes();
  const MutexLock lock(mutex_);
  status.incarnation = file_->incarnation();
  status.attached = attached_;
  status.epoch = file_->user().epoch;
  status.number = file_->user().number;
  status.counts = file_->pool()->counts();
  status.oldest_dirty = file_->pool()->oldest_dirty();
  status.last_report = file_->pool()->last_report();
  status.writes_under_way = batches_.size();
  status.checkpoint_epoch = file_->checkpoint().epoch;
  status.checkpoint = file_->checkpoint().lsn;
  status.trouble = trouble_;
  return status;
}

}  // namespace strata::memnode
