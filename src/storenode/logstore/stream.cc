// A stream's changes: promises, epochs, appends. See internal/stream.h.
#include "storenode/logstore/internal/stream.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/fault.h"

namespace strata::logstore {
namespace {

using quorum::ChangeReply;
using quorum::Holder;
using quorum::Tenure;

std::string fenced_text(Epoch promised) {
  return "fenced: epoch " + std::to_string(promised.value) + " is promised here";
}

Status check_tenure(const Tenure& tenure) {
  const quorum::History& h = tenure.history;
  // A history need not reach down to the base (LG13).
  const bool sound = !tenure.holder.epoch.is_zero() && check_history(h).ok() &&
                     last_epoch(h) < tenure.holder.epoch &&
                     (h.empty() ? tenure.base >= tenure.start : h.back().start <= tenure.start);
  return sound ? ok_status() : error_invalid_argument("the tenure makes no sense");
}

}  // namespace

Stream::Stream(StoreContext* context, StreamId id)
    : context_(context),
      id_(id),
      control_file_(context->fs, context->options.directory,
                    context->options.directory + "/" + control_name(id),
                    context->options.cluster_id, id) {}

// --- answers ---

quorum::ReplicaState Stream::state_locked() const noexcept {
  quorum::ReplicaState s;
  s.promised = control_.promised.epoch;
  s.last_epoch = quorum::epoch_at(control_.history, durable_end_);  // entries up to the end count
  if (s.last_epoch.is_zero() && !control_.history.empty()) s.last_epoch = Epoch{1};  // LG13
  s.start = control_.start;
  s.end = durable_end_;
  s.quorum_durable = readable_end();
  s.voting = durable_end_ >= control_.voter_end;
  STRATA_ASSERT(s.quorum_durable <= s.end);
  return s;
}

quorum::ReplicaState Stream::state() const {
  const MutexLock lock(mutex_);
  return state_locked();
}

ChangeReply Stream::reply(Status status) const {
  if (is_no_space(status)) ++context_->counters.disk_full;
  return {std::move(status), state(), durable_end_};
}

ChangeReply Stream::refuse(Status status, Lsn next) const {
  if (is_out_of_range(status)) ++context_->counters.gaps;
  return {std::move(status), state(), next};
}

Status Stream::check_holder(const Holder& holder) const {
  const Holder& promised = control_.promised;
  if (holder.epoch > promised.epoch || holder == promised) return ok_status();
  ++context_->counters.fenced;
  if (holder.epoch < promised.epoch) return error_fenced(fenced_text(promised.epoch));
  return error_fenced("epoch " + std::to_string(holder.epoch.value) +
                      " is promised to another holder");
}

// --- durable state ---

// SC2: once a publish failed, nothing else changes until one succeeded.
Status Stream::make_durable(ControlState* next) {
  STRATA_ASSERT(next->promised.epoch >= control_.promised.epoch);  // a promise is kept
  next->quorum_durable = std::max(next->quorum_durable, quorum_durable_);
  quorum::forget_below(&next->history, next->start);
  const size_t entries_max = context_->options.history_entries_max;
  if (next->history.size() > entries_max)  // LG13
    quorum::forget_oldest(&next->history, entries_max / 2);
  const Status published = control_file_.publish(*next);
  control_trusted_ = published.ok();
  return published;
}

Status Stream::publish(ControlState next) {
  STRATA_RETURN_IF_ERROR(make_durable(&next));
  const MutexLock lock(mutex_);
  control_ = std::move(next);
  return ok_status();
}

Status Stream::ensure_control() { return control_trusted_ ? ok_status() : publish(control_); }

// One write of the control file changes promise, history and where the log ends (or, for a reset,
// where it starts): bytes from the cut on in segments of lower numbers do not count from then on.
Status Stream::cut(ControlState next, const Fit& fit) {
  STRATA_ASSERT(staged_.empty());
  STRATA_ASSERT(fit.reset || fit.next <= durable_end_);            // a cut adds nothing
  if (durable_end_ >= control_.voter_end) next.voter_end = Lsn{};  // who votes goes on voting
  const Lsn cut_lsn = fit.reset ? Lsn{} : fit.next;
  if (fit.reset) next.start = fit.next;
  next.cut_sequence = next_sequence_;
  next.cut_lsn = cut_lsn;
  size_t kept = segments_.size();
  while (kept > 0 && segments_[kept - 1]->info.start >= cut_lsn) --kept;
  next.last_sequence = kept == 0 ? 0 : segments_[kept - 1]->info.sequence;
  STRATA_RETURN_IF_ERROR(make_durable(&next));
  close_active();
  {
    const MutexLock lock(mutex_);  // LG12: all of it at once
    control_ = std::move(next);
    for (size_t i = kept; i < segments_.size(); ++i) garbage_.push_back(segments_[i]->path);
    segments_.resize(kept);
    std::erase_if(holes_, [&](const LogDamage& d) { return d.from >= cut_lsn; });
    if (fit.next < durable_end_ || fit.reset) ++cuts_;
    durable_end_ = fit.next;
    recent_.clear();
    if (fit.reset) quorum_durable_ = std::max(quorum_durable_, fit.next);
  }
  remove_garbage();
  return ok_status();
}

void Stream::close_active() {
  if (active_ != nullptr) active_->close(context_->options.segment_bytes);
  active_ = nullptr;
}

// Files nothing refers to. What cannot be removed now is void all the same and goes at the next
// start.
void Stream::remove_garbage() {
  for (const std::string& path : garbage_) context_->fs->remove(path).IgnoreError();
  garbage_.clear();
}

// --- seal, begin, catch up ---

// Everything below the last epoch given is refused; token 0 is nobody's, so that epoch's holder is
// the first who may come.
Status Stream::make(const quorum::StreamOrigin& origin) {
  ControlState first;
  if (!origin.last_given.is_zero()) first.promised.epoch = Epoch{origin.last_given.value - 1};
  if (origin.never_begun) first.voter_end = Lsn{};
  return publish(std::move(first));
}

quorum::SealReply Stream::seal(const quorum::SealRequest& request) {
  const auto answer = [this](Status status) {
    const MutexLock lock(mutex_);
    return quorum::SealReply{std::move(status), state_locked(),
                             quorum::clipped(control_.history, durable_end_)};
  };
  if (request.holder.epoch.is_zero()) return answer(error_invalid_argument("epoch 0"));
  Status done = ensure_control();
  if (done.ok()) done = check_holder(request.holder);
  if (done.ok() && request.holder != control_.promised) {
    ControlState next = control_;
    next.promised = request.holder;
    done = publish(std::move(next));
  }
  return answer(std::move(done));
}

// LG13: early epochs were forgotten, so that none is common. Up to where this log holds the same as
// the chosen one, if that can be known all the same.
StatusOr<std::optional<Lsn>> Stream::agreed_without_epoch(const quorum::LogShape& chosen) const {
  // A log that is being filled may end before the first entry it has adopted. Then it is a part of
  // the log that has the entry.
  if (!control_.history.empty() && control_.history.front().start > durable_end_) {
    STRATA_ASSIGN_OR_RETURN(
        const auto agreed,
        quorum::agreed_end({control_.start, control_.history.back().start, control_.history},
                           chosen));
    if (agreed.has_value()) return std::optional<Lsn>(std::min(*agreed, durable_end_));
  }
  // What was acknowledged is in every log that a recovery chooses, what is cut off here included: a
  // log of which nothing is left goes on where it was, rather than from the chosen one's base. Its
  // vote says where it ends, so it must not end before what it has had.
  const Lsn acknowledged = readable_end();
  if (acknowledged > chosen.end) return std::optional<Lsn>();
  return std::optional<Lsn>(acknowledged);
}

// How this log fits the one the epoch stands on.
Stream::Fit Stream::fit(const Tenure& tenure) const {
  const quorum::LogShape own{control_.start, durable_end_,
                             quorum::clipped(control_.history, durable_end_)};
  const quorum::LogShape chosen{tenure.base, tenure.start, tenure.history};
  auto agreed = quorum::agreed_end(own, chosen);
  Fit fit;
  if (agreed.ok() && !agreed->has_value()) {
    fit.strangers = true;
    agreed = agreed_without_epoch(chosen);
  }
  if (!agreed.ok()) return {agreed.status(), {}, false, false};
  fit.reset = !agreed->has_value() || **agreed < tenure.base;
  fit.next = fit.reset ? tenure.base : **agreed;
  // LG5. A log that holds nothing acknowledged, since it was cut off up to there, loses nothing.
  if (readable_end() > std::max(fit.next, control_.start))
    fit.status = error_corruption(
        "epoch " + std::to_string(tenure.holder.epoch.value) + " would cut off bytes from lsn " +
        std::to_string(fit.next.value) + " on that are known to be acknowledged up to lsn " +
        std::to_string(readable_end().value) + "; its recovery chose a wrong log");
  return fit;
}

quorum::History Stream::adopted(const Tenure& tenure, const Fit& fit) const {
  // Without a common epoch our own ones could name bytes that are of others in that log.
  if (fit.reset || fit.strangers) return tenure.history;
  return quorum::joined(quorum::clipped(control_.history, durable_end_), tenure.history);
}

ChangeReply Stream::begin(const quorum::BeginRequest& request) {
  const Tenure& tenure = request.tenure;
  Status sound = check_tenure(tenure);
  if (sound.ok()) sound = ensure_control();
  if (sound.ok()) sound = check_holder(tenure.holder);
  if (!sound.ok()) return reply(std::move(sound));
  ControlState next = control_;
  const bool begun = state().last_epoch == tenure.holder.epoch;
  if (begun && control_.history.back().start != tenure.start)
    return reply(error_corruption("the epoch was begun at lsn " +
                                  std::to_string(control_.history.back().start.value)));
  if (tenure.base > tenure.start && !(begun && durable_end_ >= tenure.base))
    return begin_later(request);
  if (begun) {
    if (state().voting || request.voter_end >= control_.voter_end) return reply(ok_status());
    next.voter_end = request.voter_end;
    return reply(publish(std::move(next)));
  }
  const Fit fit = this->fit(tenure);
  if (!fit.status.ok()) return reply(fit.status);
  if (fit.next < tenure.start)
    return refuse(error_out_of_range("bytes before the epoch's start are missing"), fit.next);
  next.promised = tenure.holder;
  next.history = quorum::begun(adopted(tenure, fit), tenure.holder.epoch, tenure.start);
  next.voter_end = request.voter_end;
  return reply(cut(std::move(next), fit));
}

// The peers' logs begin behind the epoch's start, and so does this one from now on (CU3): what it
// held is below that and not needed any more, or of another log.
ChangeReply Stream::begin_later(const quorum::BeginRequest& request) {
  const Tenure& tenure = request.tenure;
  Fit fit;
  fit.next = tenure.base;
  fit.reset = true;
  if (readable_end() > std::max(fit.next, control_.start))  // LG5
    return reply(error_corruption("the log would begin at lsn " + std::to_string(fit.next.value) +
                                  ", but bytes up to lsn " + std::to_string(readable_end().value) +
                                  " are known to be acknowledged"));
  ControlState next = control_;
  next.promised = tenure.holder;
  next.history = quorum::begun(tenure.history, tenure.holder.epoch, tenure.start);
  next.voter_end = request.voter_end;
  return reply(cut(std::move(next), fit));
}

ChangeReply Stream::prepare_catch_up(const quorum::CatchUpRequest& request) {
  const Tenure& tenure = request.tenure;
  Status sound = check_tenure(tenure);
  if (sound.ok() && (tenure.base > tenure.start || request.at > tenure.start ||
                     request.bytes.size() > tenure.start.value - request.at.value))
    sound = error_invalid_argument("catch-up ends where the epoch starts");
  if (sound.ok()) sound = ensure_control();
  if (sound.ok()) sound = check_holder(tenure.holder);
  if (!sound.ok()) return reply(std::move(sound));
  if (state().last_epoch == tenure.holder.epoch) return reply(ok_status());  // late: stage compares
  const Fit fit = this->fit(tenure);
  if (!fit.status.ok()) return reply(fit.status);
  if (request.at > fit.next)
    return refuse(error_out_of_range("bytes before these are missing"), fit.next);
  ControlState next = control_;
  next.promised = tenure.holder;
  next.history = adopted(tenure, fit);
  quorum::forget_below(&next.history, fit.reset ? fit.next : next.start);
  if (next == control_ && !fit.reset && fit.next == durable_end_) return reply(ok_status());
  return reply(cut(std::move(next), fit));
}

// --- appends ---

ChangeReply Stream::check_append(const quorum::AppendRequest& request) {
  Status sound = ensure_control();
  if (!sound.ok()) return reply(std::move(sound));
  if (request.epoch < control_.promised.epoch) {
    ++context_->counters.fenced;
    return reply(error_fenced(fenced_text(control_.promised.epoch)));
  }
  if (request.epoch.is_zero() || request.epoch != state().last_epoch)
    return reply(
        error_conflict("epoch " + std::to_string(request.epoch.value) + " was not begun here"));
  return reply(ok_status());
}

ChangeReply Stream::stage(Lsn at, Bytes bytes, Lsn quorum_durable) {
  if (at.value + bytes.size() < at.value)
    return reply(error_invalid_argument("beyond the last lsn"));
  const Lsn news = std::max(staged_quorum_durable_, quorum_durable);
  if (at > staged_end()) {
    staged_quorum_durable_ = news;
    return refuse(error_out_of_range("a gap"), staged_end());
  }
  const size_t known = std::min<uint64_t>(bytes.size(), staged_end().value - at.value);
  if (known > 0) {
    Status failure;
    if (!same_bytes(at, bytes.substr(0, known), &failure)) return reply(std::move(failure));
  }
  staged_quorum_durable_ = news;
  staged_.append(bytes.substr(known));
  return reply(ok_status());
}

// What lies below the start cannot be compared any more.
bool Stream::same_bytes(Lsn at, Bytes bytes, Status* failure) {
  if (at < control_.start) {
    const size_t below = std::min<uint64_t>(bytes.size(), control_.start.value - at.value);
    bytes.remove_prefix(below);
    at.value += below;
  }
  if (bytes.empty()) return true;
  std::string here;
  if (at < durable_end_) {
    const Lsn to{std::min(durable_end_.value, at.value + bytes.size())};
    *failure = read_range(at, to, &here);
    if (!failure->ok()) return false;
  }
  if (here.size() < bytes.size()) {
    const uint64_t from = at.value + here.size() - durable_end_.value;
    STRATA_ASSERT(from + (bytes.size() - here.size()) <= staged_.size());
    here.append(staged_, from, bytes.size() - here.size());
  }
  if (here == bytes) return true;
  *failure = error_corruption("bytes at lsn " + std::to_string(at.value) +
                              " differ from those that are here under the same epoch");
  return false;
}

Status Stream::write_staged() {
  Bytes rest(staged_);
  Lsn lsn = durable_end_;
  while (!rest.empty()) {
    const Epoch epoch = quorum::epoch_at(control_.history, lsn);
    const Lsn limit = quorum::next_boundary(control_.history, lsn, Lsn{lsn.value + rest.size()});
    size_t bytes = std::min<uint64_t>(limit.value - lsn.value, context_->options.chunk_bytes_max);
    if (active_ == nullptr || active_->info.epoch != epoch || room_in_active() == 0)
      STRATA_RETURN_IF_ERROR(roll(lsn, epoch));
    bytes = std::min<uint64_t>(bytes, room_in_active());
    STRATA_ASSERT(bytes != 0);
    std::string chunk;
    encode_chunk(&chunk, active_->salt, lsn, durable_end_,
                 std::max(quorum_durable_, staged_quorum_durable_), rest.substr(0, bytes));
    const uint64_t offset = active_->write_offset();
    STRATA_RETURN_IF_ERROR(active_->write(chunk));
    active_->note_chunk(lsn, offset);
    rest.remove_prefix(bytes);
    lsn.value += bytes;
  }
  STRATA_ASSERT(lsn == staged_end());
  return ok_status();
}

// Bytes a further chunk could hold. A handful is not worth a chunk.
uint64_t Stream::room_in_active() const noexcept {
  constexpr uint64_t kRoomMin = 64;
  const uint64_t used = active_->write_offset() + sizeof(ChunkHeader) + 8;
  const uint64_t size = context_->options.segment_bytes;
  return used + kRoomMin <= size ? size - used : 0;
}

Status Stream::sync_staged() {
  if (active_ == nullptr || !active_->dirty()) return ok_status();
  const uint64_t began = context_->options.now_us();
  const Status synced = active_->sync();
  ++context_->counters.syncs;
  context_->counters.sync_us += context_->options.now_us() - began;
  if (!synced.ok()) ++context_->counters.failed_syncs;
  return synced;
}

std::vector<std::function<void()>> Stream::commit_staged() {
  context_->counters.bytes += staged_.size();
  std::vector<std::function<void()>> ready;
  const MutexLock lock(mutex_);
  durable_end_ = staged_end();
  quorum_durable_ = std::max(quorum_durable_, staged_quorum_durable_);
  remember_locked(staged_);
  staged_.clear();
  for (auto it = tails_.begin(); it != tails_.end();) {
    if (it->second.first >= readable_end()) {
      ++it;
      continue;
    }
    ready.push_back(std::move(it->second.second));
    it = tails_.erase(it);
  }
  return ready;
}

// Whoever applies the log reads what has just been appended. From the file he would have to read,
// and verify, all chunks from the nearest entry of its index on, each time for a few bytes.
void Stream::remember_locked(Bytes appended) {
  const size_t most = context_->options.recent_bytes_max;
  if (appended.size() >= most) {
    recent_.assign(appended.substr(appended.size() - most));
    return;
  }
  // Twice as much at most, so that what is kept is moved seldom.
  if (recent_.size() + appended.size() > 2 * most)
    recent_.erase(0, recent_.size() + appended.size() - most);
  recent_.append(appended);
  STRATA_ASSERT(recent_.size() <= 2 * most && recent_.size() <= durable_end_.value);
}

// LG8. The next append makes a new segment at what was durable before.
void Stream::drop_staged() {
  staged_.clear();
  if (active_ == nullptr) return;
  const SegmentPtr suspect = active_;
  suspect->distrust();
  close_active();
  if (suspect->info.start >= durable_end_) return;
  const Status whole = suspect->verify(durable_end_);
  if (!whole.ok())
    diag(Severity::kError, "stream %u: after a failed write: %s", id_.value,
         std::string(whole.message()).c_str());
}

// --- segments ---

// What stands in older segments from `lsn` on does not count once the new one exists.
Status Stream::roll(Lsn lsn, Epoch epoch) {
  if (active_ != nullptr && active_->dirty()) STRATA_RETURN_IF_ERROR(sync_staged());
  size_t kept = segments_.size();
  while (kept > 0 && segments_[kept - 1]->info.start >= lsn) --kept;
  SegmentInfo info;
  info.cluster_id = context_->options.cluster_id;
  info.stream = id_;
  info.sequence = next_sequence_++;
  info.previous = kept == 0 ? 0 : segments_[kept - 1]->info.sequence;
  info.epoch = epoch;
  info.start = lsn;
  STRATA_ASSERT(info.previous < info.sequence && info.sequence > control_.last_sequence);
  STRATA_ASSIGN_OR_RETURN(const SegmentPtr made, make_segment(info));
  ControlState next = control_;
  next.last_sequence = info.sequence;
  STRATA_RETURN_IF_ERROR(publish(std::move(next)));
  if (kept > 0) segments_[kept - 1]->close(context_->options.segment_bytes);
  {
    const MutexLock lock(mutex_);
    for (size_t i = kept; i < segments_.size(); ++i) garbage_.push_back(segments_[i]->path);
    segments_.resize(kept);
    segments_.push_back(made);
  }
  active_ = made;
  remove_garbage();
  return ok_status();
}

// Header durable, then the name: a name log-* stands for a file with a header.
StatusOr<SegmentPtr> Stream::make_segment(const SegmentInfo& info) {
  FileSystem* const fs = context_->fs;
  STRATA_ASSIGN_OR_RETURN(const std::string spare, context_->spares->take());
  const std::string& folder = context_->options.directory;
  const std::string path = folder + "/" + segment_name({info.stream, info.sequence, info.start});
  uint32_t salt = 0;
  const std::string header = encode_segment_header(info, &salt);
  const auto prepare = [&]() -> Status {
    STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs->open(spare, {}));
    STRATA_RETURN_IF_ERROR(file->write_at(0, header.data(), header.size()));
    return file->sync_data();
  };
  const Status prepared = prepare();
  if (!prepared.ok()) {
    fs->remove(spare).IgnoreError();
    return prepared;
  }
  if (fault(FaultPoint::node_log_segment)) return error_internal("fault point");
  STRATA_RETURN_IF_ERROR(fs->rename(spare, path));
  STRATA_RETURN_IF_ERROR(fs->sync_directory(folder));
  ++context_->counters.segments_made;
  return std::make_shared<Segment>(fs, path, info, salt);
}

ChangeReply Stream::truncate_prefix(Lsn lsn) {
  if (lsn > readable_end()) return reply(error_out_of_range("not known to be quorum-durable here"));
  Status done = ensure_control();
  if (!done.ok() || lsn <= control_.start) return reply(std::move(done));
  ControlState next = control_;
  next.start = lsn;
  done = publish(std::move(next));
  if (!done.ok()) return reply(std::move(done));
  fault(FaultPoint::node_log_truncated);
  std::vector<SegmentPtr> dropped;
  {
    const MutexLock lock(mutex_);
    std::erase_if(holes_, [&](const LogDamage& d) { return d.to <= lsn; });
    while (segments_.size() > 1 && segments_[1]->info.start <= lsn) {
      dropped.push_back(std::move(segments_.front()));
      segments_.erase(segments_.begin());
    }
  }
  drop_segments(dropped);
  return reply(ok_status());
}

// Reused unless somebody still reads them. A failure only wastes room: the files lie below the
// durable start.
void Stream::drop_segments(const std::vector<SegmentPtr>& dropped) {
  std::vector<std::string> unused;
  for (const SegmentPtr& segment : dropped) {
    if (segment.use_count() == 1) {
      unused.push_back(segment->path);
    } else {
      garbage_.push_back(segment->path);
    }
  }
  remove_garbage();
  if (unused.empty()) return;
  uint64_t recycled = 0;
  context_->spares->give(unused, &recycled).IgnoreError();
  context_->counters.segments_recycled += recycled;
}

Status Stream::close() {
  if (!failure_.ok() || segments_.empty() ||
      segments_.back()->info.sequence < control_.cut_sequence)
    return ok_status();
  STRATA_RETURN_IF_ERROR(ensure_control());
  return cut(control_, Fit{ok_status(), durable_end_, false});
}

bool Stream::wants_spare() const noexcept {
  return active_ != nullptr && active_->write_offset() > context_->options.segment_bytes / 2;
}

}  // namespace strata::logstore
