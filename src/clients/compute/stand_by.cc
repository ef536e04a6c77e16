#include "clients/compute/stand_by.h"

#include <algorithm>
#include <utility>

#include "base/diag.h"

namespace strata::clients {

namespace {

// A folder's lock can be waited for only by a thread that nothing could stop, so it is looked at:
// so late a stand-by hears of a process's end.
constexpr uint64_t kFolderLookUs = 25'000;
constexpr uint64_t kLookUsMax = 500'000;

std::string text(const Status& status) { return cause_of(status); }

}  // namespace

void RegistryPatience::answered(uint64_t sent_us, uint64_t now_us) noexcept {
  if (!answers_ || now_us - last_us_ > pause_us_max_) since_us_ = now_us;
  answers_ = true;
  last_us_ = sent_us;
}

// A writer renews its lease every third of its time: a pause of half of it loses none. One that has
// lost its lease asks for another again and again, with pauses below half of its time.
StandBy::StandBy(registry::Registry* registry, const cluster::ClusterKeys& keys,
                 StandByOptions options)
    : registry_(registry),
      options_(std::move(options)),
      lease_us_(uint64_t{options_.lease_seconds} * 1'000'000),
      look_us_(std::min(lease_us_ / 10, kLookUsMax)),
      epochs_(registry, keys),
      patience_(lease_us_ + lease_us_ / 2, lease_us_ / 2) {
  watch_ = registry->watch(keys.writer(options_.stream), [this](const registry::WatchBatch&) {
    const MutexLock lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  });
}

StatusOr<StandBy::Turn> StandBy::wait() {
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<HeldIdentity> own,
                          HeldIdentity::of(options_.directory, lease_us_));
  own_suffix_ = own->suffix();
  do {
    auto turn = look();
    if (turn.ok() && !turn->has_value()) turn = after_the_dead();
    if (!turn.ok()) return turn.status();
    if (turn->has_value()) return **std::move(turn);
  } while (pause());
  return error_interrupted("told to stop while it stood by");
}

StatusOr<StandBy::Holder> StandBy::current() {
  const uint64_t sent_us = registry_->now_us();
  auto holder = epochs_.current(options_.stream, sent_us + lease_us_);
  const uint64_t now_us = registry_->now_us();
  next_look_us_ = now_us + look_us_;
  if (!holder.ok()) return holder;
  patience_.answered(sent_us, now_us);
  seen_ = *holder;
  return holder;
}

StatusOr<std::optional<StandBy::Turn>> StandBy::look() {
  {
    const MutexLock lock(mutex_);
    if (!std::exchange(woken_, false) && registry_->now_us() < next_look_us_)
      return std::optional<Turn>();
  }
  const StatusOr<Holder> holder = current();
  if (!holder.ok()) {
    if (!may_be_repeated(holder.status())) return holder.status();
    tell_silence(holder.status());
    return std::optional<Turn>();
  }
  tell(*holder);
  const std::string last = holder->has_value() ? (*holder)->holder : std::string();
  if (holder->has_value() && last.ends_with(own_suffix_))  // SB3
    return std::optional(Turn{(*holder)->writer, last, "this node had it last"});
  if (holder->has_value() && (*holder)->held) return std::optional<Turn>();
  if (!patience_.enough(registry_->now_us())) return std::optional<Turn>();  // SB2
  return std::optional(Turn{{}, last, "nobody holds it: its lease has ended, or it has left"});
}

// SB1
StatusOr<std::optional<StandBy::Turn>> StandBy::after_the_dead() {
  if (!seen_.has_value()) return std::optional<Turn>();
  for (const std::string& folder : options_.neighbours) {
    const auto held = HeldIdentity::left_behind(folder);
    if (!held.ok() || !seen_->holder.ends_with((*held)->suffix())) continue;
    // Who holds the stream from that folder now got it before the lock was taken.
    const StatusOr<Holder> now = current();
    if (!now.ok()) {
      if (!may_be_repeated(now.status())) return now.status();
      tell_silence(now.status());
      return std::optional<Turn>();
    }
    if (now->has_value() && (*now)->holder.ends_with((*held)->suffix()))
      return std::optional(Turn{(*now)->writer, (*now)->holder, "its process has ended"});
  }
  return std::optional<Turn>();
}

void StandBy::tell(const Holder& holder) {
  if (std::exchange(told_silence_, false))
    diag(Severity::kInfo, "stand-by: the registry answers again");
  const std::string now = !holder.has_value() ? "nobody"
                          : holder->held      ? holder->holder
                                         : "nobody any more (" + holder->holder + " was the last)";
  if (now == told_) return;
  told_ = now;
  diag(Severity::kInfo, "stand-by: the database is held by %s; this node waits for its turn",
       now.c_str());
}

void StandBy::tell_silence(const Status& why) {
  if (!std::exchange(told_silence_, true))
    diag(Severity::kWarning,
         "stand-by: the registry does not answer, so this node takes nothing over: %s",
         text(why).c_str());
}

bool StandBy::pause() {
  if (options_.stop != nullptr && options_.stop()) return false;
  MutexLock lock(mutex_);
  changed_.wait_for_us(lock, options_.neighbours.empty() ? look_us_ : kFolderLookUs,
                       [this]() STRATA_REQUIRES(mutex_) { return woken_; });
  return true;
}

}  // namespace strata::clients
