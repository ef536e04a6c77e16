// The log of one node: buffer, Lsn/Llsn reservation, group commit. Thread-safe.
//
//   W1  Lsn and Llsn are reserved in one step (K7): llsn = end of group + bias; bias only grows.
//   W2  durable_lsn() only grows, and is a group boundary.
//   W3  reserve_capacity() is called with no latch held; reserve() and copy() never block on I/O.
//   W4  Groups become durable in Lsn order, and only once every group before them has been copied.
//   W5  A failed append or sync poisons the log: every later persist() fails with
//       ended, or fenced if that was why (after a failed fsync nobody knows what is on disk), and
//       the process must not acknowledge anything any more.
//   W8  While the sink waits for its sync longer than usual (LogSink::late()), persist() waits with
//       it, and no room is given but for what ends transactions: changes fail with that error, and
//       rollbacks still find room in the ring.
//   W10  persist() and a wait for a full ring end when the thread's InterruptScope is interrupted
//        (kCancelled); the batch goes on without them. Such a thread never leads one.
// Group commit without a thread hop: the first waiter becomes the leader, writes and syncs
// everything copied so far, and wakes the waiters it covered; the others elect the next leader.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "wal/log_sink.h"

namespace strata {

struct LogOptions {
  uint32_t buffer_bytes = 32u << 20;  // ring, power of two
  NodeId node{1};
  // Sink room kept ahead of the last reservation by a helper thread; 0 = buffer_bytes. The last
  // half of it is for urgent callers only.
  uint64_t room_ahead_bytes = 0;
};

struct LogReservation {
  Lsn start;
  Lsn end;
  Llsn llsn;
  Lsn durable;  // durable_lsn() at reservation, for the group's durable_delta
  uint64_t ticket = 0;
};

struct LogCounters {
  std::atomic<uint64_t> groups{0}, bytes{0}, syncs{0}, sync_us{0}, waits{0}, image_bytes{0};
};

class Log {
 public:
  // `start`: where the stream continues (recovery found the end); a multiple of 8. `bias` >= 0:
  // llsn - lsn.
  Log(const LogOptions& options, LogSink* sink, Lsn start, uint64_t bias);
  ~Log();  // does not persist anything by itself
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // --- mini-transactions ---
  // Sets `bytes` of ring space and log room aside. Blocks while the ring is full (persisting to
  // make room); no latch may be held. `urgent` (rollback, commit, what frees room) may use the last
  // room there is, and what the sink keeps in reserve (W9).
  // Errors: kResourceExhausted (disk full), ended (poisoned), kUnavailable (W8).
  // Asserts bytes <= buffer_bytes / 2.
  Status reserve_capacity(uint32_t bytes, bool urgent);
  void return_capacity(uint32_t bytes) noexcept;  // what was not used
  // Assigns Lsn and Llsn; llsn is greater than `above` (the largest llsn of the group's pages).
  // Returns false, assigning nothing, when image_floor() != expected_floor: the caller decides anew
  // which pages need full images. Never blocks on I/O.
  [[nodiscard]] bool reserve(uint32_t group_bytes, Lsn expected_floor, Llsn above,
                             LogReservation* out) noexcept;
  // Copies the sealed group into the ring.
  void copy(const LogReservation& reservation, Bytes group) noexcept;
  // The group is copied and its pages are listed dirty.
  void complete(const LogReservation& reservation) noexcept;

  // --- durability ---
  // Blocks until everything below `lsn` is durable (group commit). Errors: ended, fenced;
  // kCancelled (W10).
  Status persist(Lsn lsn);
  [[nodiscard]] Lsn durable_lsn() const noexcept;
  [[nodiscard]] Lsn next_lsn() const noexcept;    // end of the last reservation
  [[nodiscard]] Llsn last_llsn() const noexcept;  // no llsn above this has been given out or seen
  // A page with this llsn was read: later groups get larger ones (Lamport).
  void observe_llsn(Llsn llsn) noexcept;

  // --- checkpoints (see bufpool/checkpointer.h) ---
  // Pages whose last image lies below this Lsn need a full-page image at their next change.
  [[nodiscard]] Lsn image_floor() const noexcept;
  // Sets image_floor to next_lsn() in one step with reservations and returns it. *bias becomes the
  // bias (W1) in force there: no group from the floor on has a smaller one, none before it a larger
  // one.
  Lsn raise_image_floor(uint64_t* bias = nullptr) noexcept;
  // next_lsn() and the bias in force there, in one step with reservations.
  Lsn position(uint64_t* bias) noexcept;
  // Blocks until every group reserved below `lsn` is completed (copied and listed dirty).
  void wait_completed(Lsn lsn);
  Status truncate_below(Lsn lsn);
  // What the last attempt to get room ahead came to (W9): while it is an error only urgent callers
  // go on. Tried again every second, so it turns OK by itself.
  [[nodiscard]] Status room_state() const;
  // For a TRUNCATE on a full disk, which needs a little room to free much: the sink's reserve.
  // Until it is whole again only urgent callers go on.
  Status give_up_reserve();
  // Called after each attempt that failed, by any thread, with no latch held: a checkpoint may give
  // room back. It must not block. Null: no more calls, and none is running on return.
  void on_no_room(std::function<void()> call);

  [[nodiscard]] bool poisoned() const noexcept;
  [[nodiscard]] Status failure() const;  // why it is poisoned, with the remedy; OK: it is not
  [[nodiscard]] LogCounters& counters() noexcept { return counters_; }
  [[nodiscard]] NodeId node() const noexcept;

 private:
  struct Impl;
  LogCounters counters_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
