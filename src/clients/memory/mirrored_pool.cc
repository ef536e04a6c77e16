#include "clients/memory/mirrored_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "clients/memory/pool_attachment.h"

namespace strata::clients {

namespace {

// What the used copy has done and the backup has not: nobody can say that it was not done.
Status half_done(const Status& why) {
  return error_outcome_unknown("the backup of the memory node's pool: " + cause_of(why));
}

}  // namespace

// --- the registry ---

class MirroredPool::Naming final : public PoolNaming {
 public:
  Naming(MirroredPool* of, CopiesNaming* names) : of_(*of), names_(names) {}
  StatusOr<std::optional<uint64_t>> named() override {
    STRATA_ASSIGN_OR_RETURN(const std::optional<NamedCopies> found, names_->named());
    if (!found.has_value()) return std::optional<uint64_t>();
    const MutexLock lock(of_.mutex_);
    of_.now_.used = found->used;
    of_.now_.incarnations = found->incarnations;
    of_.may_be_named_ = found->incarnations[1 - found->used] != 0;
    of_.now_.backup = of_.may_be_named_ ? Backup::kCounts : Backup::kNone;
    return std::optional<uint64_t>(found->incarnations[found->used]);
  }
  Status name(uint64_t incarnation) override {
    NamedCopies copies;
    {
      const MutexLock lock(of_.mutex_);
      STRATA_ASSERT(of_.now_.incarnations[of_.now_.used] == incarnation);
      copies.used = of_.now_.used;
      copies.incarnations[copies.used] = incarnation;
      if (of_.now_.backup == Backup::kCounts) {
        copies.incarnations[1 - copies.used] = of_.now_.incarnations[1 - copies.used];
        of_.may_be_named_ = true;
      }
    }
    return names_->name(copies);
  }
  Status remove(PoolLoss loss) override {
    STRATA_RETURN_IF_ERROR(names_->remove(loss));
    const MutexLock lock(of_.mutex_);
    of_.now_.backup = Backup::kNone;
    of_.may_be_named_ = false;
    return ok_status();
  }
  [[nodiscard]] Epoch since() const override { return names_->since(); }

 private:
  MirroredPool& of_;
  CopiesNaming* const names_;
};

MirroredPool::MirroredPool(MirrorOptions options, const std::array<RemotePool*, 2>& copies,
                           CopiesNaming* names)
    : options_(std::move(options)),
      copies_(copies),
      names_(names),
      naming_(std::make_unique<Naming>(this, names)) {}

MirroredPool::~MirroredPool() = default;

PoolNaming* MirroredPool::naming() const { return naming_.get(); }

MirroredPool::Now MirroredPool::now() const {
  const MutexLock lock(mutex_);
  return now_;
}

MirroredPool::Backup MirroredPool::backup() const { return now().backup; }

// --- attaching: whatever is done about a copy that is lost or comes back ---

bool MirroredPool::heard(uint32_t copy, const Status& status, uint64_t begun_us) {
  if (!is_trouble(status)) return status.ok();
  const MutexLock lock(mutex_);
  uint64_t& since_us = failing_since_us_[copy];
  if (since_us == 0) since_us = begun_us;
  return false;
}

// It has had its time, or whoever waits has no more of it.
bool MirroredPool::is_gone(uint32_t copy, const Status& status, uint64_t deadline_us) const {
  if (is_not_found(status)) return true;
  const uint64_t now_us = monotonic_us();
  const MutexLock lock(mutex_);
  const uint64_t since_us = failing_since_us_[copy];
  return now_us + attempt_us() >= deadline_us ||
         (since_us != 0 && now_us - since_us >= options_.timeout_us / 2);
}

StatusOr<AttachedPool> MirroredPool::attach_copy(uint32_t copy, bool fresh, uint64_t deadline_us) {
  const uint64_t begun_us = monotonic_us();
  const uint64_t incarnation = fresh ? 0 : now().incarnations[copy];
  auto attached =
      copies_[copy]->attach(incarnation, fresh, std::min(deadline_us, begun_us + attempt_us()));
  if (!attached.ok()) {
    // Told again by whoever needs it.
    heard(copy, attached.status(), begun_us);
    return attached;
  }
  const MutexLock lock(mutex_);
  failing_since_us_[copy] = 0;
  return attached;
}

StatusOr<AttachedPool> MirroredPool::attach(uint64_t incarnation, bool fresh,
                                            uint64_t deadline_us) {
  bool new_life = false;
  {
    const MutexLock lock(mutex_);
    reported_.clear();  // the used copy takes them for dirty again
    new_life = new_life_;
  }
  if (fresh || incarnation == 0) return attach_new(deadline_us);
  const uint32_t copy = now().used;
  auto attached = attach_copy(copy, /*fresh=*/false, deadline_us);
  if (!attached.ok()) {
    if (is_fenced(attached.status()) || !is_gone(copy, attached.status(), deadline_us))
      return attached;
    return switch_over(attached.status(), deadline_us);
  }
  {
    const MutexLock lock(mutex_);
    slots_ = attached->slots;
  }
  if (new_life) {  // MIR5
    STRATA_RETURN_IF_ERROR(leave_backup(ok_status()));
  } else if (now().backup != Backup::kNone) {
    STRATA_RETURN_IF_ERROR(attach_backup(deadline_us));
  }
  take_prepared(*attached);
  const MutexLock lock(mutex_);
  new_life_ = false;
  return attached;
}

// Of both, or of one that can be had. Both are empty, so the other one counts at once.
StatusOr<AttachedPool> MirroredPool::attach_new(uint64_t deadline_us) {
  uint32_t copy = now().used;
  auto attached = attach_copy(copy, /*fresh=*/true, deadline_us);
  if (is_fenced(attached.status())) return attached;
  auto second = attach_copy(1 - copy, /*fresh=*/true, deadline_us);
  if (!attached.ok() && !second.ok()) return attached;
  // A backup has no fewer slots than what it stands for.
  if (!attached.ok() || (second.ok() && second->slots < attached->slots)) {
    std::swap(attached, second);
    copy = 1 - copy;
  }
  const MutexLock lock(mutex_);
  new_life_ = false;
  broken_ = false;
  untold_.clear();
  undropped_.clear();
  prepared_.reset();
  slots_ = attached->slots;
  now_.used = copy;
  now_.incarnations[copy] = attached->incarnation;
  now_.incarnations[1 - copy] = second.ok() ? second->incarnation : 0;
  now_.backup = second.ok() ? Backup::kCounts : Backup::kNone;
  return attached;
}

// MIR2: the backup is what there is.
StatusOr<AttachedPool> MirroredPool::switch_over(const Status& why, uint64_t deadline_us) {
  const Now now = this->now();
  if (now.backup != Backup::kCounts) return why;
  auto attached = attach_copy(now.other(), /*fresh=*/false,
                              std::max(deadline_us, monotonic_us() + attempt_us()));
  if (!attached.ok()) return is_fenced(attached.status()) ? attached.status() : why;
  NamedCopies copies;
  copies.used = now.other();
  copies.incarnations[copies.used] = now.incarnations[copies.used];
  STRATA_RETURN_IF_ERROR(names_->name(copies));
  switches_.fetch_add(1, std::memory_order_relaxed);
  diag(Severity::kWarning,
       "a memory node's pool is lost (%s): its backup has taken over, and nothing is lost",
       std::string(why.message()).c_str());
  attached->elsewhere = true;
  const MutexLock lock(mutex_);
  new_life_ = false;
  broken_ = false;
  may_be_named_ = false;
  untold_.clear();
  undropped_.clear();
  slots_ = attached->slots;
  retry_at_us_ = 0;
  now_.used = copies.used;
  now_.backup = Backup::kNone;
  return attached;
}

// OK: it is there and has missed nothing, or there is none any more.
Status MirroredPool::attach_backup(uint64_t deadline_us) {
  const Now now = this->now();
  Status status = attach_copy(now.other(), /*fresh=*/false, deadline_us).status();
  std::vector<PageId> undropped;
  {
    const MutexLock lock(mutex_);
    if (status.ok() && broken_) status = error_not_found("it has missed a page");
    undropped = undropped_;
  }
  if (status.ok() && !undropped.empty()) {
    const auto gone = gone_from_used(now, undropped);
    // What is wrong with the used copy is no reason to give up this one: attach() tells next time.
    if (!gone.ok()) return error_peer_down(cause_of(gone.status()));
    status = drop_from_backup(now, undropped, *gone);
  }
  if (status.ok() || is_fenced(status)) return status;
  if (!is_gone(now.other(), status, deadline_us)) return status;
  return leave_backup(status);
}

// `why`, if there is something to be said.
Status MirroredPool::leave_backup(const Status& why) {
  const Now now = this->now();
  NamedCopies copies;
  copies.used = now.used;
  copies.incarnations[now.used] = now.incarnations[now.used];
  bool named = false;
  {
    const MutexLock lock(mutex_);
    named = may_be_named_;
  }
  if (named) STRATA_RETURN_IF_ERROR(names_->name(copies));
  if (!why.ok())
    diag(Severity::kWarning, "the backup of a memory node's pool is lost (%s): there is none now",
         std::string(why.message()).c_str());
  const MutexLock lock(mutex_);
  may_be_named_ = false;
  broken_ = false;
  untold_.clear();
  undropped_.clear();
  now_.backup = Backup::kNone;
  retry_at_us_ = 0;
  return ok_status();
}

// MIR4. In any thread, beside other calls: nothing of the other copy is in use.
bool MirroredPool::wants_attach() {
  const Now now = this->now();
  const uint64_t begun_us = monotonic_us();
  if (now.backup != Backup::kNone) {
    const auto answer = copies_[now.other()]->lookup({PageId{1, 0}});
    return !heard(now.other(), answer.status(), begun_us);
  }
  uint32_t slots = 0;
  {
    const MutexLock lock(mutex_);
    if (new_life_ || prepared_.has_value() || begun_us < retry_at_us_) return prepared_.has_value();
    retry_at_us_ = begun_us + options_.retry_us;
    slots = slots_;
  }
  auto attached =
      copies_[now.other()]->attach(0, /*fresh=*/true, begun_us + options_.timeout_us / 2);
  if (!attached.ok()) return false;
  if (attached->slots < slots) {
    diag(Severity::kWarning,
         "a memory node has %u places where %u are wanted: it cannot be the other one's backup",
         attached->slots, slots);
    return false;
  }
  const MutexLock lock(mutex_);
  prepared_ = *std::move(attached);
  return true;
}

void MirroredPool::take_prepared(const AttachedPool& used) {
  const Lsn durable = options_.durable();
  const MutexLock lock(mutex_);
  if (!prepared_.has_value() || now_.backup != Backup::kNone) return prepared_.reset();
  STRATA_ASSERT(prepared_->slots >= used.slots);
  now_.incarnations[now_.other()] = prepared_->incarnation;
  now_.backup = Backup::kJoining;
  failing_since_us_[now_.other()] = 0;
  joined_at_ = durable;
  prepared_.reset();
}

Lsn MirroredPool::wants_stored_below() const {
  const MutexLock lock(mutex_);
  return now_.backup == Backup::kJoining ? joined_at_ : Lsn{};
}

// MIR4
Status MirroredPool::name_backup(const Now& now, Lsn oldest) {
  {
    const MutexLock lock(mutex_);
    if (now_.backup != Backup::kJoining || oldest < joined_at_) return ok_status();
    may_be_named_ = true;
  }
  const Status named = names_->name({now.used, now.incarnations});
  if (is_fenced(named)) return named;
  if (!named.ok()) return ok_status();  // the next time, then
  diag(Severity::kInfo, "a memory node's pool has a backup again");
  const MutexLock lock(mutex_);
  now_.backup = Backup::kCounts;
  return ok_status();
}

// --- calls to the used copy alone ---

StatusOr<proto::PoolListReply> MirroredPool::list(uint32_t from) {
  const uint64_t begun_us = monotonic_us();
  const uint32_t copy = now().used;
  auto reply = copies_[copy]->list(from);
  heard(copy, reply.status(), begun_us);
  return reply;
}

StatusOr<std::vector<proto::PoolLookupReply::Found>> MirroredPool::lookup(
    const std::vector<PageId>& pages) {
  const uint64_t begun_us = monotonic_us();
  const uint32_t copy = now().used;
  auto reply = copies_[copy]->lookup(pages);
  heard(copy, reply.status(), begun_us);
  return reply;
}

void MirroredPool::read_slots(absl::Span<SlotRead> reads) { used()->read_slots(reads); }

Status MirroredPool::stored(const std::vector<StoredPage>& pages) { return used()->stored(pages); }

StatusOr<proto::PoolWriteReply> MirroredPool::write(Lsn below, uint32_t pages_max,
                                                    const std::vector<proto::PoolTarget>& targets) {
  const uint64_t begun_us = monotonic_us();
  const Now now = this->now();
  auto reply = copies_[now.used]->write(below, pages_max, targets);
  if (!heard(now.used, reply.status(), begun_us)) return reply;
  const bool all_ok = std::all_of(
      reply->answers.begin(), reply->answers.end(),
      [](const proto::PoolAnswer& answer) { return answer.answered && answer.status.ok(); });
  if (now.backup == Backup::kNone || reply->answers.empty() || !all_ok) return reply;
  const MutexLock lock(mutex_);
  std::vector<StoredPage>& pages = reported_[reply->report];
  for (const proto::PoolWriteReply::Page& page : reply->pages)
    pages.push_back({page.id, page.llsn});
  return reply;
}

StatusOr<proto::PoolWriteAgainReply> MirroredPool::write_again(uint32_t from,
                                                               const proto::PoolTarget& target) {
  const uint64_t begun_us = monotonic_us();
  const uint32_t copy = now().used;
  auto reply = copies_[copy]->write_again(from, target);
  heard(copy, reply.status(), begun_us);
  return reply;
}

// --- calls to both ---

StatusOr<std::vector<proto::PoolPutReply::Taken>> MirroredPool::put(
    const std::vector<proto::PoolImage>& images, Bytes pages, Lsn durable) {
  const uint64_t begun_us = monotonic_us();
  const Now now = this->now();
  auto taken = copies_[now.used]->put(images, pages, durable);
  if (!heard(now.used, taken.status(), begun_us) || now.backup == Backup::kNone) return taken;
  STRATA_RETURN_IF_ERROR(put_to_backup(now, images, pages, durable, *taken));
  return taken;
}

// MIR1. A clean page may be missing there: storage has it.
Status MirroredPool::put_to_backup(const Now& now, const std::vector<proto::PoolImage>& images,
                                   Bytes pages, Lsn durable,
                                   const std::vector<proto::PoolPutReply::Taken>& taken) {
  std::vector<proto::PoolImage> some;
  std::optional<AlignedBytes> bytes;
  Bytes sent = pages;
  for (size_t i = 0; i < images.size(); ++i)
    if (taken[i].status.ok()) some.push_back(images[i]);
  if (some.empty()) return ok_status();
  if (some.size() != images.size()) {
    bytes.emplace(some.size() * kPageBytes);
    size_t at = 0;
    for (size_t i = 0; i < images.size(); ++i)
      if (taken[i].status.ok())
        std::copy_n(pages.data() + i * kPageBytes, kPageBytes, bytes->get() + at++ * kPageBytes);
    sent = Bytes(bytes->get(), some.size() * kPageBytes);
  }
  const uint64_t begun_us = monotonic_us();
  const auto copied = copies_[now.other()]->put(some, sent, durable);
  if (!heard(now.other(), copied.status(), begun_us)) return half_done(copied.status());
  for (size_t i = 0; i < some.size(); ++i) {
    const Status& status = (*copied)[i].status;
    if (status.ok() || (!some[i].dirty && is_no_space(status))) continue;
    const MutexLock lock(mutex_);
    broken_ = true;
    return half_done(status);
  }
  return ok_status();
}

StatusOr<std::vector<Status>> MirroredPool::drop(const std::vector<PageId>& pages) {
  const uint64_t begun_us = monotonic_us();
  const Now now = this->now();
  auto dropped = copies_[now.used]->drop(pages);
  const bool in_doubt = is_outcome_unknown(dropped.status());
  if (now.backup == Backup::kNone || (!heard(now.used, dropped.status(), begun_us) && !in_doubt))
    return dropped;
  std::vector<PageId> gone;
  for (size_t i = 0; i < pages.size() && dropped.ok(); ++i)
    if ((*dropped)[i].ok() || is_not_found((*dropped)[i])) gone.push_back(pages[i]);
  if (in_doubt) {
    const MutexLock lock(mutex_);
    undropped_.insert(undropped_.end(), pages.begin(), pages.end());
    return dropped;
  }
  if (gone.empty()) return dropped;
  const Status status = drop_from_backup(now, gone, gone);
  if (status.ok()) return dropped;
  const MutexLock lock(mutex_);
  undropped_.insert(undropped_.end(), gone.begin(), gone.end());
  return half_done(status);
}

StatusOr<std::vector<PageId>> MirroredPool::gone_from_used(const Now& now,
                                                           const std::vector<PageId>& pages) {
  const uint64_t begun_us = monotonic_us();
  const auto found = copies_[now.used]->lookup(pages);
  if (!heard(now.used, found.status(), begun_us)) return found.status();
  std::vector<PageId> gone;
  for (size_t i = 0; i < pages.size(); ++i)
    if (!(*found)[i].there) gone.push_back(pages[i]);
  return gone;
}

// `gone`: of them, what the used copy has no more. It had what was dropped there clean, so storage
// has at least the version that the backup has, whether the backup knows or not. OK: they are not
// there.
Status MirroredPool::drop_from_backup(const Now& now, const std::vector<PageId>& pages,
                                      const std::vector<PageId>& gone) {
  RemotePool* const backup = copies_[now.other()];
  const uint64_t begun_us = monotonic_us();
  if (!gone.empty()) {
    const auto found = backup->lookup(gone);
    if (!heard(now.other(), found.status(), begun_us)) return found.status();
    std::vector<StoredPage> there;
    std::vector<PageId> ids;
    for (size_t i = 0; i < gone.size(); ++i) {
      if (!(*found)[i].there) continue;
      ids.push_back(gone[i]);
      if ((*found)[i].at.dirty) there.push_back({gone[i], (*found)[i].at.llsn});
    }
    if (!there.empty()) {
      const Status told = backup->stored(there);
      if (!heard(now.other(), told, begun_us)) return told;
    }
    if (!ids.empty()) {
      const auto dropped = backup->drop(ids);
      if (!heard(now.other(), dropped.status(), begun_us)) return dropped.status();
      for (const Status& status : *dropped)
        if (!status.ok() && !is_not_found(status)) return error_not_found("it keeps a page");
    }
  }
  const MutexLock lock(mutex_);
  std::erase_if(undropped_, [&](PageId id) {
    return std::find(pages.begin(), pages.end(), id) != pages.end();
  });
  return ok_status();
}

Status MirroredPool::forget_space(SpaceId space) {
  const uint64_t begun_us = monotonic_us();
  const Now now = this->now();
  const Status status = copies_[now.used]->forget_space(space);
  if (!heard(now.used, status, begun_us) || now.backup == Backup::kNone) return status;
  const Status copied = copies_[now.other()]->forget_space(space);
  heard(now.other(), copied, begun_us);
  return copied;
}

StatusOr<proto::PoolSyncedReply> MirroredPool::synced(uint64_t report) {
  const uint64_t begun_us = monotonic_us();
  const Now now = this->now();
  auto reply = copies_[now.used]->synced(report);
  if (!heard(now.used, reply.status(), begun_us) || now.backup == Backup::kNone) return reply;
  {
    const MutexLock lock(mutex_);
    const auto end = reported_.upper_bound(report);
    for (auto at = reported_.begin(); at != end; at = reported_.erase(at))
      untold_.insert(untold_.end(), at->second.begin(), at->second.end());
  }
  STRATA_RETURN_IF_ERROR(tell_backup(now));
  STRATA_RETURN_IF_ERROR(name_backup(now, reply->oldest));
  return reply;
}

// MIR3. Several threads may tell it, each something else.
Status MirroredPool::tell_backup(const Now& now) {
  for (;;) {
    std::vector<StoredPage> some;
    {
      const MutexLock lock(mutex_);
      const size_t rest = untold_.size() - std::min<size_t>(untold_.size(), proto::kPagesMax);
      some.assign(untold_.begin() + static_cast<ptrdiff_t>(rest), untold_.end());
      untold_.resize(rest);
    }
    if (some.empty()) return ok_status();
    const uint64_t begun_us = monotonic_us();
    const Status told = copies_[now.other()]->stored(some);
    if (heard(now.other(), told, begun_us)) continue;
    const MutexLock lock(mutex_);
    untold_.insert(untold_.end(), some.begin(), some.end());
    return half_done(told);
  }
}

Status MirroredPool::checkpoint(Lsn lsn, uint64_t bias) {
  const uint64_t begun_us = monotonic_us();
  const Now now = this->now();
  const Status status = copies_[now.used]->checkpoint(lsn, bias);
  if (!heard(now.used, status, begun_us) || now.backup == Backup::kNone) return status;
  const Status copied = copies_[now.other()]->checkpoint(lsn, bias);
  return heard(now.other(), copied, begun_us) ? copied : half_done(copied);
}

}  // namespace strata::clients
