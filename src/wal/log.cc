#include "wal/log.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/fault.h"
#include "base/thread_name.h"
#include "base/wait_interrupt.h"

namespace strata {
namespace {

constexpr uint64_t kTicketCount = 1u << 14;
constexpr uint64_t kRoomRetryUs = 100000;  // after a failed prepare_room
constexpr uint64_t kRoomLookUs = 1000000;  // how often a full disk is asked again
constexpr uint64_t kRingWaitUs = 10000;    // backstop of a wait for credits to come back

// Waits that are bounded by a memcpy of another thread: spin, then let it run.
class Backoff {
 public:
  void pause() noexcept {
    if (++rounds_ < 64) {
      __builtin_ia32_pause();
    } else if (rounds_ < 128) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  uint32_t rounds_ = 0;
};

}  // namespace

// Capacity. used = credits handed out + bytes reserved and not yet durable, so that
//   W6  next_lsn - durable_lsn <= used <= buffer_bytes (nothing in the ring is overwritten), and
//   W7  durable_lsn + used <= room_end (an append never lacks room).
//   W9  Callers that are not urgent stay within common_end, the room that was made while the sink
//       kept its reserve: what is made of the reserve is for the urgent ones.
// Completion. Reservation number t owns tickets[t % kTicketCount]; complete() stores the group's
// end there; whoever completes also moves first_open_ticket over the completed prefix.
struct Log::Impl {
  Impl(const LogOptions& o, LogSink* s, Lsn start, uint64_t first_bias, LogCounters* c)
      : options(o), sink(s), counters(c), ring_bytes(o.buffer_bytes), ring(o.buffer_bytes) {
    STRATA_ASSERT((ring_bytes & (ring_bytes - 1)) == 0);
    STRATA_ASSERT(ring_bytes >= kDirectIoAlignment);
    STRATA_ASSERT(start.value % 8 == 0);
    room_ahead = o.room_ahead_bytes != 0 ? o.room_ahead_bytes : ring_bytes;
    tickets = std::make_unique<std::atomic<uint64_t>[]>(kTicketCount);
    for (uint64_t i = 0; i < kTicketCount; i++) tickets[i].store(0, std::memory_order_relaxed);
    bias = first_bias;
    next_lsn.store(start.value);
    last_llsn.store(start.value + bias);
    // A page never imaged since it was read has image_lsn 0, which has to lie below the floor.
    image_floor.store(start.value == 0 ? 1 : start.value);
    completed.store(start.value);
    durable.store(start.value);
    written = start.value;
    room_end.store(sink->room_end().value);
    common_end.store(room_end.load());
    room_thread = std::thread([this] { run_room_thread(); });
    lead_thread = std::thread([this] { run_lead_thread(); });
  }

  ~Impl() {
    {
      MutexLock lock(room_mutex);
      stopping = true;
    }
    {
      MutexLock lock(lead_mutex);
      lead_stops = true;
    }
    room_changed.notify_all();
    lead_wanted.notify_all();
    sink->hurry();
    room_thread.join();
    lead_thread.join();
  }

  Status poisoned_error() const {
    const MutexLock lock(write_mutex);
    const std::string text = "the log cannot be written any more (" + cause_of(poisoned_by) + ")";
    if (is_fenced(poisoned_by)) return error_fenced(text);  // a restart would not help
    return error_ended(text + "; to do: restart this server, it recovers from the log");
  }

  // --- capacity ---
  bool take_credits(uint64_t bytes, uint64_t* used_after) noexcept {
    uint64_t now = used.load(std::memory_order_relaxed);
    do {
      if (now + bytes > ring_bytes) return false;
      // Acquire pairs with the release in give_back(): the ring bytes freed there were read before.
    } while (!used.compare_exchange_weak(now, now + bytes, std::memory_order_acq_rel,
                                         std::memory_order_relaxed));
    *used_after = now + bytes;
    return true;
  }

  void give_back(uint64_t bytes) noexcept {
    used.fetch_sub(bytes, std::memory_order_seq_cst);
    if (credit_waiters.load(std::memory_order_seq_cst) == 0) return;
    { MutexLock lock(credit_mutex); }
    credits_returned.notify_all();
  }

  // The ring is full: persists what is in it, or waits for credits to come back.
  Status wait_for_ring(uint64_t bytes) {
    const uint64_t target = next_lsn.load(std::memory_order_acquire);
    if (target > durable.load(std::memory_order_acquire)) return persist(Lsn{target});
    if (poisoned.load(std::memory_order_acquire)) return poisoned_error();
    MutexLock lock(credit_mutex);
    credit_waiters.fetch_add(1, std::memory_order_seq_cst);
    if (used.load(std::memory_order_seq_cst) + bytes > ring_bytes)
      credits_returned.wait_for_us(lock, kRingWaitUs);
    credit_waiters.fetch_sub(1, std::memory_order_relaxed);
    return ok_status();
  }

  // `bound`: where the log ends if every credit out now is used.
  Status check_room(uint64_t bound, bool urgent) {
    const std::atomic<uint64_t>& end = urgent ? room_end : common_end;
    const uint64_t margin = urgent ? 0 : room_ahead / 2;
    if (__builtin_expect(bound + room_ahead <= end.load(std::memory_order_relaxed), 1))
      return ok_status();
    wake_room_thread();
    if (bound + margin <= end.load(std::memory_order_relaxed)) return ok_status();
    sink->hurry();
    Status made = make_room(bound + room_ahead);
    if (bound + margin <= end.load(std::memory_order_relaxed)) return ok_status();
    if (urgent) {
      made = make_reserved_room(bound);
      if (bound <= room_end.load(std::memory_order_relaxed)) return ok_status();
    }
    return made.ok() ? error_no_space() : made;
  }

  Status reserve_capacity(uint32_t bytes, bool urgent) {
    STRATA_ASSERT(bytes <= ring_bytes / 2);
    if (poisoned.load(std::memory_order_relaxed)) return poisoned_error();
    if (!urgent) STRATA_RETURN_IF_ERROR(sink->late());  // W8
    uint64_t used_after = 0;
    while (!take_credits(bytes, &used_after)) {
      if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
      STRATA_RETURN_IF_ERROR(wait_for_ring(bytes));
    }
    const Status room = check_room(durable.load(std::memory_order_acquire) + used_after, urgent);
    if (__builtin_expect(!room.ok(), 0)) give_back(bytes);
    return room;
  }

  // --- room in the sink ---
  Status make_room(uint64_t end) {
    Status made;
    bool failed_before = false;
    {
      MutexLock lock(make_room_mutex);
      if (room_error.ok() && common_end.load(std::memory_order_relaxed) >= end) return ok_status();
      if (!room_error.ok() && monotonic_us() < room_retry_at) return room_error;
      failed_before = !room_error.ok();
      made = room_error = sink->prepare_room(Lsn{end});
      const uint64_t now = sink->room_end().value;
      room_end.store(now, std::memory_order_relaxed);
      if (made.ok()) {
        common_end.store(now, std::memory_order_relaxed);
      } else {
        room_retry_at = monotonic_us() + kRoomRetryUs;
      }
      const MutexLock shown(room_mutex);
      shown_error = made;
    }
    if (made.ok() == failed_before) {
      diag(made.ok() ? Severity::kInfo : Severity::kWarning, "log: %s",
           made.ok() ? "there is room again"
                     : ("no room for the next segment: " + std::string(made.message()) +
                        "; free disk space. Until then only what frees room goes on")
                           .c_str());
    }
    if (!made.ok()) {
      const MutexLock calling(no_room_mutex);
      if (no_room) no_room();
    }
    return made;
  }

  Status make_reserved_room(uint64_t end) {
    MutexLock lock(make_room_mutex);
    if (room_end.load(std::memory_order_relaxed) >= end) return ok_status();
    const Status made = sink->prepare_reserved_room(Lsn{end});
    room_end.store(sink->room_end().value, std::memory_order_relaxed);
    return made;
  }

  Status give_up_reserve() {
    {
      MutexLock lock(make_room_mutex);
      STRATA_RETURN_IF_ERROR(sink->give_up_reserve());
      common_end.store(0, std::memory_order_relaxed);
      room_error = error_no_space("the reserve is in use");
      room_retry_at = monotonic_us() + kRoomRetryUs;
      const MutexLock shown(room_mutex);
      shown_error = room_error;
    }
    wake_room_thread();
    return ok_status();
  }

  Status room_state() {
    const MutexLock lock(room_mutex);
    return shown_error;
  }

  void wake_room_thread() noexcept {
    if (room_wanted.exchange(true, std::memory_order_acq_rel)) return;
    { MutexLock lock(room_mutex); }
    room_changed.notify_one();
  }

  void run_room_thread() {
    name_this_thread("log-room");
    MutexLock lock(room_mutex);
    while (!stopping) {
      if (!room_wanted.load(std::memory_order_acquire)) {
        room_changed.wait(lock);
        continue;
      }
      lock.unlock();
      const uint64_t bound =
          durable.load(std::memory_order_acquire) + used.load(std::memory_order_acquire);
      const Status made = make_room(bound + room_ahead);
      lock.lock();
      room_wanted.store(false, std::memory_order_release);
      // Not at once again: the disk stays full for a while. But again, though nobody may ask: what
      // is refused meanwhile has to go on by itself.
      if (!made.ok() && !stopping) {
        room_changed.wait_for_us(lock, kRoomLookUs,
                                 [this]() STRATA_REQUIRES(room_mutex) { return stopping; });
        room_wanted.store(true, std::memory_order_release);
      }
    }
  }

  // --- reservation ---
  bool reserve(uint32_t bytes, Lsn expected_floor, Llsn above, LogReservation* out) noexcept {
    STRATA_ASSERT(bytes % 8 == 0 && bytes != 0);
    Backoff backoff;
    for (;;) {
      {
        MutexLock lock(reserve_mutex);
        if (image_floor.load(std::memory_order_relaxed) != expected_floor.value) return false;
        if (next_ticket - first_open_ticket.load(std::memory_order_acquire) < kTicketCount) {
          assign(bytes, above, out);
          return true;
        }
      }
      backoff.pause();  // a thread is late with a copy while 16383 others overtook it
    }
  }

  void assign(uint32_t bytes, Llsn above, LogReservation* out) noexcept
      STRATA_REQUIRES(reserve_mutex) {
    const uint64_t start = next_lsn.load(std::memory_order_relaxed);
    const uint64_t end = start + bytes;
    if (end + bias <= above.value) bias = above.value + 1 - end;  // W1
    out->start = Lsn{start};
    out->end = Lsn{end};
    out->llsn = Llsn{end + bias};
    out->durable = Lsn{durable.load(std::memory_order_acquire)};
    STRATA_ASSERT(end - out->durable.value <= ring_bytes);  // W6
    out->ticket = next_ticket++;
    last_llsn.store(end + bias, std::memory_order_release);
    next_lsn.store(end, std::memory_order_release);
    counters->groups.fetch_add(1, std::memory_order_relaxed);
    counters->bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  void observe_llsn(Llsn llsn) noexcept {
    if (llsn.value <= last_llsn.load(std::memory_order_acquire)) return;
    MutexLock lock(reserve_mutex);
    const uint64_t end = next_lsn.load(std::memory_order_relaxed);
    if (llsn.value <= end + bias) return;
    bias = llsn.value - end;
    last_llsn.store(llsn.value, std::memory_order_release);
  }

  void copy(const LogReservation& r, Bytes group) noexcept {
    STRATA_ASSERT(group.size() == r.end.value - r.start.value);
    const uint64_t at = r.start.value & (ring_bytes - 1);
    const size_t first = std::min<size_t>(group.size(), ring_bytes - at);
    std::memcpy(ring.get() + at, group.data(), first);
    std::memcpy(ring.get(), group.data() + first, group.size() - first);
  }

  void complete(const LogReservation& r) noexcept {
    // Sequentially consistent with advance(): either the running advance() sees this store when it
    // looks again after unlocking, or our try-lock succeeds.
    tickets[r.ticket % kTicketCount].store(r.end.value, std::memory_order_seq_cst);
    advance();
  }

  void advance() noexcept {
    for (;;) {
      uint64_t ticket = first_open_ticket.load(std::memory_order_seq_cst);
      if (tickets[ticket % kTicketCount].load(std::memory_order_seq_cst) == 0) return;
      if (advancing.exchange(true, std::memory_order_seq_cst)) return;
      ticket = first_open_ticket.load(std::memory_order_seq_cst);
      uint64_t end = 0;
      for (;; ticket++) {
        const uint64_t value = tickets[ticket % kTicketCount].load(std::memory_order_acquire);
        if (value == 0) break;
        tickets[ticket % kTicketCount].store(0, std::memory_order_relaxed);
        end = value;
      }
      // Releases the cleared tickets to the next owners, and the copied bytes to the leader.
      if (end != 0) completed.store(end, std::memory_order_release);
      first_open_ticket.store(ticket, std::memory_order_seq_cst);
      advancing.store(false, std::memory_order_seq_cst);
    }
  }

  void wait_completed(Lsn lsn) noexcept {
    STRATA_ASSERT(lsn.value <= next_lsn.load(std::memory_order_acquire));
    Backoff backoff;
    while (completed.load(std::memory_order_acquire) < lsn.value) backoff.pause();
  }

  // --- durability ---
  // A thread that waits for somebody else's batch. It ends up durable (or poisoned), or leads.
  struct Waiter {
    uint64_t lsn = 0;
    bool may_lead = true;
    Waiter* next = nullptr;
    Parker parker;
  };
  static constexpr uint32_t kDone = 1;
  static constexpr uint32_t kLead = 2;
  static constexpr uint32_t kInterrupted = 3;

  Status persist(Lsn lsn) {
    if (poisoned.load(std::memory_order_acquire)) return poisoned_error();
    if (durable.load(std::memory_order_acquire) >= lsn.value) return ok_status();
    STRATA_ASSERT(lsn.value <= next_lsn.load(std::memory_order_acquire));
    if (WaitInterrupt* const interrupt = WaitInterrupt::current(); interrupt != nullptr)
      return follow(lsn, interrupt);
    if (!take_lead(lsn)) return result_of(lsn);
    lead(lsn);
    hand_over();
    return result_of(lsn);
  }

  // W10: who may be interrupted leads no batch, whose I/O cannot be left half-way. Whoever does is
  // mostly there: the committer that is waited for.
  Status follow(Lsn lsn, WaitInterrupt* interrupt) {
    Waiter waiter;
    waiter.lsn = lsn.value;
    waiter.may_lead = false;
    struct Follower final : WaitInterrupt::Sleep {
      Impl* log;
      Waiter* waiter;
      Follower(Impl* l, Waiter* w) : log(l), waiter(w) {}
      void wake() noexcept override { log->interrupt(waiter); }
    } follower(this, &waiter);
    const WaitInterrupt::Asleep asleep(interrupt, &follower);
    bool is_led = false;
    {
      MutexLock lock(write_mutex);
      if (settled(lsn.value)) return result_of(lsn);
      if (interrupt->interrupted()) return error_interrupted();
      enqueue(&waiter);
      is_led = leader_active;
    }
    if (!is_led) ask_for_lead(lsn.value);
    return waiter.parker.wait() == kInterrupted ? error_interrupted() : result_of(lsn);
  }

  // Nothing happens if somebody has taken the waiter out of the queue to wake it.
  void interrupt(Waiter* waiter) noexcept {
    {
      MutexLock lock(write_mutex);
      Waiter** at = &waiters;
      while (*at != nullptr && *at != waiter) at = &(*at)->next;
      if (*at == nullptr) return;
      *at = waiter->next;
      if (waiters_end == &waiter->next) waiters_end = at;
    }
    waiter->parker.unpark(kInterrupted);
  }

  void enqueue(Waiter* waiter) noexcept STRATA_REQUIRES(write_mutex) {
    *waiters_end = waiter;
    waiters_end = &waiter->next;
    counters->waits.fetch_add(1, std::memory_order_relaxed);
  }

  // Of followers without a leader: a thread leads for them.
  void ask_for_lead(uint64_t lsn) noexcept {
    {
      MutexLock lock(lead_mutex);
      lead_until = std::max(lead_until, lsn);
    }
    lead_wanted.notify_one();
  }

  void run_lead_thread() {
    name_this_thread("log-lead");
    for (;;) {
      uint64_t lsn = 0;
      {
        MutexLock lock(lead_mutex);
        lead_wanted.wait(
            lock, [this]() STRATA_REQUIRES(lead_mutex) { return lead_until != 0 || lead_stops; });
        if (lead_stops) return;
        lsn = std::exchange(lead_until, 0);
      }
      (void)persist(Lsn{lsn});  // the followers see for themselves what came of it
    }
  }

  // False: another leader has made it durable, or failed.
  bool take_lead(Lsn lsn) {
    Waiter waiter;
    waiter.lsn = lsn.value;
    {
      MutexLock lock(write_mutex);
      if (settled(lsn.value)) return false;
      if (!leader_active) {
        leader_active = true;
        return true;
      }
      enqueue(&waiter);
    }
    return waiter.parker.wait() == kLead;
  }

  [[nodiscard]] bool settled(uint64_t lsn) const noexcept {
    return poisoned.load(std::memory_order_acquire) ||
           durable.load(std::memory_order_acquire) >= lsn;
  }
  [[nodiscard]] Status result_of(Lsn lsn) const {
    if (durable.load(std::memory_order_acquire) >= lsn.value) return ok_status();
    return poisoned_error();
  }

  // Wakes who is settled, after the first who is not and may lead: that one does, and its I/O
  // starts at once.
  void hand_over() {
    Waiter* leader = nullptr;
    Waiter* done = nullptr;
    uint64_t followed = 0;
    {
      MutexLock lock(write_mutex);
      Waiter** at = &waiters;
      Waiter** done_end = &done;
      while (Waiter* const waiter = *at) {
        if (!settled(waiter->lsn) && (leader != nullptr || !waiter->may_lead)) {
          followed = std::max(followed, waiter->lsn);
          at = &waiter->next;
          continue;
        }
        *at = waiter->next;
        waiter->next = nullptr;
        if (settled(waiter->lsn)) {
          *done_end = waiter;
          done_end = &waiter->next;
        } else {
          leader = waiter;
        }
      }
      waiters_end = at;
      leader_active = leader != nullptr;
    }
    if (leader != nullptr) leader->parker.unpark(kLead);
    if (leader == nullptr && followed != 0) ask_for_lead(followed);
    while (done != nullptr) {
      Waiter* const next = done->next;  // it is gone after unpark()
      done->parker.unpark(kDone);
      done = next;
    }
  }

  // One batch: everything completed by now, at least up to `lsn`.
  void lead(Lsn lsn) {
    wait_completed(lsn);
    const uint64_t target = completed.load(std::memory_order_acquire);
    const Status status = write_batch(target);
    if (!status.ok()) {
      {
        const MutexLock lock(write_mutex);
        poisoned_by = status;
      }
      poisoned.store(true, std::memory_order_release);  // W5
      diag(Severity::kError, "log: persist of [%llu, %llu) failed, the node stops writing: %s",
           static_cast<unsigned long long>(durable.load()), static_cast<unsigned long long>(target),
           status.ToString().c_str());
      return;
    }
    const uint64_t freed = target - durable.load(std::memory_order_relaxed);
    durable.store(target, std::memory_order_release);
    give_back(freed);  // after durable: W7's bound may be too high for a moment, never too low
  }

  Status write_batch(uint64_t target) {
    if (fault(FaultPoint::wal_before_write)) return error_internal("fault wal_before_write");
    while (written < target) {
      const uint64_t at = written & (ring_bytes - 1);
      const uint64_t piece = std::min<uint64_t>(target - written, ring_bytes - at);
      STRATA_RETURN_IF_ERROR(sink->append(Lsn{written}, Bytes(ring.get() + at, piece)));
      written += piece;
    }
    if (fault(FaultPoint::wal_after_write)) return error_internal("fault wal_after_write");
    const uint64_t began = monotonic_us();
    STRATA_RETURN_IF_ERROR(sink->sync());
    counters->sync_us.fetch_add(monotonic_us() - began, std::memory_order_relaxed);
    counters->syncs.fetch_add(1, std::memory_order_relaxed);
    if (fault(FaultPoint::wal_after_sync)) return error_internal("fault wal_after_sync");
    return ok_status();
  }

  const LogOptions options;
  LogSink* const sink;
  LogCounters* const counters;
  const uint64_t ring_bytes;
  const AlignedBytes ring;
  uint64_t room_ahead = 0;

  alignas(64) Mutex reserve_mutex{LatchRank::kLogReserve};
  uint64_t bias STRATA_GUARDED_BY(reserve_mutex) = 0;
  uint64_t next_ticket STRATA_GUARDED_BY(reserve_mutex) = 0;
  // Written under reserve_mutex, read anywhere.
  std::atomic<uint64_t> next_lsn{0}, last_llsn{0}, image_floor{0};

  std::unique_ptr<std::atomic<uint64_t>[]> tickets;  // 0 = not completed
  alignas(64) std::atomic<uint64_t> first_open_ticket{0};
  std::atomic<uint64_t> completed{0};
  std::atomic<bool> advancing{false};

  alignas(64) std::atomic<uint64_t> used{0};
  std::atomic<uint32_t> credit_waiters{0};
  Mutex credit_mutex{LatchRank::kLeaf};
  CondVar credits_returned;

  alignas(64) std::atomic<uint64_t> durable{0};
  std::atomic<bool> poisoned{false};
  mutable Mutex write_mutex{LatchRank::kLogWrite};  // never held over I/O
  Status poisoned_by STRATA_GUARDED_BY(write_mutex);
  bool leader_active STRATA_GUARDED_BY(write_mutex) = false;
  Waiter* waiters STRATA_GUARDED_BY(write_mutex) = nullptr;
  Waiter** waiters_end STRATA_GUARDED_BY(write_mutex) = &waiters;
  uint64_t written = 0;  // owned by the leader

  std::atomic<uint64_t> room_end{0};
  std::atomic<uint64_t> common_end{0};     // W9; <= room_end
  Mutex no_room_mutex{LatchRank::kPurge};  // held over the call, which takes what a caller may
  std::function<void()> no_room STRATA_GUARDED_BY(no_room_mutex);
  std::atomic<bool> room_wanted{false};
  Mutex make_room_mutex{LatchRank::kLogReserve};  // held over I/O; serialises prepare_room only
  Status room_error STRATA_GUARDED_BY(make_room_mutex);
  uint64_t room_retry_at STRATA_GUARDED_BY(make_room_mutex) = 0;
  Mutex room_mutex{LatchRank::kLeaf};
  CondVar room_changed;
  Status shown_error STRATA_GUARDED_BY(room_mutex);  // what room_error was last
  bool stopping STRATA_GUARDED_BY(room_mutex) = false;
  std::thread room_thread;

  Mutex lead_mutex{LatchRank::kLeaf};
  CondVar lead_wanted;
  uint64_t lead_until STRATA_GUARDED_BY(lead_mutex) = 0;  // 0: nobody asks
  bool lead_stops STRATA_GUARDED_BY(lead_mutex) = false;
  std::thread lead_thread;
};

Log::Log(const LogOptions& options, LogSink* sink, Lsn start, uint64_t bias)
    : impl_(std::make_unique<Impl>(options, sink, start, bias, &counters_)) {}
Log::~Log() = default;

Status Log::reserve_capacity(uint32_t bytes, bool urgent) {
  return impl_->reserve_capacity(bytes, urgent);
}
void Log::return_capacity(uint32_t bytes) noexcept {
  if (bytes != 0) impl_->give_back(bytes);
}
bool Log::reserve(uint32_t group_bytes, Lsn expected_floor, Llsn above,
                  LogReservation* out) noexcept {
  return impl_->reserve(group_bytes, expected_floor, above, out);
}
void Log::copy(const LogReservation& reservation, Bytes group) noexcept {
  impl_->copy(reservation, group);
}
void Log::complete(const LogReservation& reservation) noexcept { impl_->complete(reservation); }
Status Log::persist(Lsn lsn) { return impl_->persist(lsn); }
Lsn Log::durable_lsn() const noexcept {
  return Lsn{impl_->durable.load(std::memory_order_acquire)};
}
Lsn Log::next_lsn() const noexcept { return Lsn{impl_->next_lsn.load(std::memory_order_acquire)}; }
Llsn Log::last_llsn() const noexcept {
  return Llsn{impl_->last_llsn.load(std::memory_order_acquire)};
}
void Log::observe_llsn(Llsn llsn) noexcept { impl_->observe_llsn(llsn); }
Lsn Log::image_floor() const noexcept {
  return Lsn{impl_->image_floor.load(std::memory_order_acquire)};
}
Lsn Log::raise_image_floor(uint64_t* bias) noexcept {
  MutexLock lock(impl_->reserve_mutex);
  if (bias != nullptr) *bias = impl_->bias;
  const uint64_t floor = impl_->next_lsn.load(std::memory_order_relaxed);
  impl_->image_floor.store(floor == 0 ? 1 : floor, std::memory_order_release);
  return Lsn{floor};
}
Lsn Log::position(uint64_t* bias) noexcept {
  const MutexLock lock(impl_->reserve_mutex);
  *bias = impl_->bias;
  return Lsn{impl_->next_lsn.load(std::memory_order_relaxed)};
}
void Log::wait_completed(Lsn lsn) { impl_->wait_completed(lsn); }
Status Log::truncate_below(Lsn lsn) {
  STRATA_ASSERT(lsn <= durable_lsn());
  return impl_->sink->truncate_below(lsn);
}
Status Log::give_up_reserve() { return impl_->give_up_reserve(); }
Status Log::room_state() const { return impl_->room_state(); }
void Log::on_no_room(std::function<void()> call) {
  const MutexLock lock(impl_->no_room_mutex);
  impl_->no_room = std::move(call);
}
bool Log::poisoned() const noexcept { return impl_->poisoned.load(std::memory_order_acquire); }
Status Log::failure() const { return poisoned() ? impl_->poisoned_error() : ok_status(); }
NodeId Log::node() const noexcept { return impl_->options.node; }

}  // namespace strata
