// Carries a server's messages about row locks to the memory node and back (fusion_locks.h): a
// thread that sends, and one that asks for events and is answered once there are some.
//
//   FC28  A batch is sent again until it is answered (FW3); what is heard twice, or too late, is
//         nobody's (FusionLocks::heard()).
//   FC29  When the memory node says that this server is fenced, whoever waits is told
//         (FusionLocks::end()), and both threads end. Another memory node is told everything, once
//         FusionLocks::use() has named its epoch (FC13); what was sent under the one before, and
//         what is heard of it, is nobody's.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "base/stop_flag.h"
#include "base/wait_interrupt.h"
#include "clients/fusion/fusion_locks.h"
#include "clients/fusion/remote_calls.h"

namespace strata::clients {

class RemoteRowLocks {
 public:
  // Both outlive this. Begins to report to the memory node of the calls' epoch. `refused` is
  // told, in a thread of this, that the memory node is of another build (FC64); may be null.
  RemoteRowLocks(RemoteCalls* calls, FusionLocks* locks,
                 std::function<void(const Status&)> refused = nullptr,
                 uint32_t wait_us = 2'000'000);
  ~RemoteRowLocks();  // stop()
  // Nothing is sent or heard any more; who waits is told (FusionLocks::end()). Again: nothing.
  void stop();
  // Blocks until it is known what writers ask for: transactions may run (FQ5). False: not in time,
  // or never.
  [[nodiscard]] bool wait_joined(uint64_t wait_us);

 private:
  void send();
  void hear();
  void end();
  void end_because(const Status& why);

  RemoteCalls* const calls_;
  FusionLocks* const locks_;
  const std::function<void(const Status&)> refused_;
  const uint32_t wait_us_;
  StopFlag stopping_;
  StopFlag reported_;  // the first batch was answered, or never will be
  StopFlag joined_;    // the same, of FusionLocks::joined()
  WaitInterrupt sender_interrupt_, hearer_interrupt_;
  std::thread sender_, hearer_;
};

}  // namespace strata::clients
