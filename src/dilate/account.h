// A thread's account: what it has used of a processor, and what it owes for that. Pure; used by its
// thread only.
//   TD5  A thread that used c of CPU time since it was last charged owes factor * c of a virtual
//        core, beginning where its last charge ended, or where it came back from waiting if that is
//        later. Time that has passed meanwhile counts towards it, whatever it passed with.
//   TD6  Nothing is lost by rounding: debts too small to sleep for, and sleeps that end early or
//        late, move where the next charge begins.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dilate/dilated_clock.h"
#include "dilate/node_state.h"
#include "dilate/virtual_cores.h"

namespace strata::dilate {

constexpr int64_t kSleepNsMin = 20'000;       // a shorter sleep costs more than it is worth
constexpr int64_t kWaitNsMin = 10'000;        // a call that takes less has not waited
constexpr int64_t kCarriedNsMax = 5'000'000;  // so far behind, a thread gives up catching up
constexpr int64_t kLeadNsMax = 60'000;
constexpr int64_t kSleepErrorNs = 25'000;

struct Account {
  int64_t cpu_ns = 0;   // the thread's CPU clock when it was last charged
  int64_t due_ns = 0;   // real time at which everything charged so far is over
  int64_t lead_ns = 0;  // by how much sleeps usually end too late
  uint64_t slices = 0;  // how often it was charged in the middle of a burst

  void begin(int64_t now_ns, int64_t now_cpu_ns) noexcept {
    cpu_ns = now_cpu_ns;
    due_ns = now_ns;
  }

  // What is used since the last charge, without what charging itself takes. Below zero: this is
  // another thread (a child of vfork() works with its parent's account).
  [[nodiscard]] int64_t used_ns(int64_t now_cpu_ns, int64_t charging_ns) const noexcept {
    const int64_t used = now_cpu_ns - cpu_ns;
    return used < 0 ? used : std::max<int64_t>(0, used - charging_ns);
  }

  void charge(int64_t used_ns, int64_t now_cpu_ns, Factor factor, NodeState* node) noexcept;

  // When to wake up, 0: no need to sleep.
  [[nodiscard]] int64_t sleep_until(int64_t now_ns) const noexcept {
    return due_ns - now_ns < kSleepNsMin + lead_ns ? 0 : due_ns - lead_ns;
  }
  void woke(int64_t now_ns, int64_t now_cpu_ns) noexcept {
    cpu_ns = now_cpu_ns;  // sleeping is our expense
    const int64_t late_ns = std::clamp(now_ns - due_ns, -kLeadNsMax, kLeadNsMax);
    lead_ns = std::clamp<int64_t>(lead_ns + late_ns / 8, 0, kLeadNsMax);
  }

  // A call that might wait has taken from one moment to the other.
  void waited(int64_t from_ns, int64_t to_ns, NodeState* node) noexcept {
    if (to_ns - from_ns < kWaitNsMin) return;
    if (from_ns - due_ns > kSleepErrorNs) be_late(from_ns - due_ns, node);
    due_ns = std::max(due_ns, to_ns);
  }
  // Instead of waited(), where the thread did not: how far it may be behind.
  void bound_lateness(int64_t now_ns, NodeState* node) noexcept {
    if (now_ns - due_ns <= kCarriedNsMax) return;
    be_late(now_ns - due_ns - kCarriedNsMax, node);
    due_ns = now_ns - kCarriedNsMax;
  }

 private:
  static void be_late(int64_t by_ns, NodeState* node) noexcept;
};

}  // namespace strata::dilate
