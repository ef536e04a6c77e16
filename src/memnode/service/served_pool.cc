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
  enter(*newcomer);
  count(&counters_->attached);
  proto::PoolAttachReply reply;
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
  }
  newcomer->to->reply(proto::encode(reply));
}

void ServedPool::enter(const Newcomer& newcomer) {
  const MutexLock lock(mutex_);
  if (newcomer.request.fresh && !made_) {
    file_->discard();
    made_ = true;
    trouble_.clear();
    count(&counters_->discarded);
  }
  file_->pool()->doubt_written();
  attached_ = true;
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
  proto::PoolPutReply reply;
  reply.taken.reserve(request.images.size());
  for (size_t i = 0; i < request.images.size(); ++i) {
    const StatusOr<Pool::Slot> slot =
        take(request.images[i], request.durable, request.pages.data() + i * kPageBytes);
    if (slot.ok())
      reply.taken.push_back({ok_status(), slot->number, slot->generation});
    else
      reply.taken.push_back({slot.status(), 0, 0});
  }
  if (fault(FaultPoint::memnode_before_reply))
    return to->fail(error_outcome_unknown("asked for by a test"));
  to->reply(proto::encode(reply));
}

// PUS3
Status ServedPool::check_image(const proto::PoolImage& image, Lsn durable, const char* page) {
  const Status sound = verify_page(page, image.id);
  // That page is damaged, not this node's data: the caller is to hear that what it sent is wrong.
  if (!sound.ok()) return error_invalid_argument(std::string(sound.message()));
  if (header_of(page)->llsn == 0) return error_invalid_argument("a page without an llsn");
  if (!image.dirty) return ok_status();
  if (image.first > image.end || image.end > durable)
    return error_invalid_argument("a changed page whose log is not durable");
  return ok_status();
}

void ServedPool::fill(const Pool& pool, uint32_t slot, const char* page) { pool.fill(slot, page); }

StatusOr<Pool::Slot> ServedPool::take(const proto::PoolImage& image, Lsn durable,
                                      const char* page) {
  if (Status sound = check_image(image, durable, page); !sound.ok()) {
    count(&counters_->images_rejected);
    return sound;
  }
  const Llsn llsn{header_of(page)->llsn};
  Pool::Slot there;
  StatusOr<uint32_t> slot = uint32_t{0};
  {
    const MutexLock lock(mutex_);
    slot = file_->pool()->begin_fill(image.id, llsn, image.dirty, image.dirty ? image.first : Lsn{},
                                     &there);
  }
  StatusOr<Pool::Slot> taken = there;  // if it is there already
  if (slot.ok())
    taken = take_new(*slot, page);
  else if (!is_duplicate_key(slot.status()))
    taken = slot.status();
  if (taken.ok())
    count(&counters_->images_taken);
  else if (is_conflict(taken.status()))
    count(&counters_->images_older);
  else if (is_no_space(taken.status()))
    count(&counters_->images_no_slot);
  else
    count(&counters_->images_rejected);
  return taken;
}

StatusOr<Pool::Slot> ServedPool::take_new(uint32_t slot, const char* page) {
  const Pool* pool = nullptr;
  {
    const MutexLock lock(mutex_);
    pool = file_->pool();
  }
  fill(*pool, slot, page);
  const bool broken = fault(FaultPoint::memnode_put_half);
  const MutexLock lock(mutex_);
  if (!broken) return file_->pool()->publish(slot);
  file_->pool()->abandon(slot);
  return error_io_error("asked for by a test");
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
  proto::PoolDropReply reply;
  {
    const MutexLock lock(mutex_);
    for (const PageId id : request.pages) reply.dropped.push_back(file_->pool()->drop(id));
  }
  for (const Status& dropped : reply.dropped)
    count(dropped.ok() ? &counters_->dropped : &counters_->drops_refused);
  to->reply(proto::encode(reply));
}

// PUS4
void ServedPool::forget(const proto::PoolForgetRequest& request, const To& to) {
  if (const Status known = check_user(request.user); !known.ok()) return to->fail(known);
  count(&counters_->forgotten);
  {
    const MutexLock lock(mutex_);
    file_->pool()->forget_space(request.space);
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
    if (all_ok && !batch.writes.empty()) trouble_.clear();
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
