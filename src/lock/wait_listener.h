// Who wants to hear which transaction waits for which: the server, whose replication must roll a
// later transaction back when an earlier one waits for it. Owners are what the listener knows
// transactions by (nullptr: it does not know this one); this library never looks into them.
#pragma once

#include <cstdint>
#include <string>

namespace strata {

// What people know an owner by.
struct WaitOwner {
  uint64_t connection = 0;  // number; 0: nobody knows
  std::string statement;    // which runs in it, or its beginning
};

class WaitListener {
 public:
  virtual ~WaitListener() = default;

  // On the waiter's thread, with no mutex held: it is about to sleep, it has slept.
  virtual void wait_begins(void* waiter) noexcept = 0;
  virtual void wait_ends(void* waiter) noexcept = 0;

  // The others come with the mutex of all waits held: no I/O, and no call into the kernel. Until
  // they return neither transaction ends or loses its owner (L14).

  // Whether waits_for() is wanted for the waits of this one.
  virtual bool wants_reports(void* waiter) noexcept = 0;
  // Once for everybody whom the waiter waits for or will wait for.
  virtual void waits_for(void* waiter, void* holder) noexcept = 0;
  // Which of two would better be a deadlock's victim: below zero the first, above zero the second.
  virtual int preferred_victim(void* first, void* second) noexcept = 0;
  // For a report. It may not wait for anything.
  virtual WaitOwner describe(void* /*owner*/) noexcept { return {}; }
};

}  // namespace strata
