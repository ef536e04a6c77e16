// Hears what the memory node has to say to this server about pages, names of tables and rounds of
// page reuse, and what others ask about its transactions: a thread that asks for events again and
// again, and is answered once there are some.
//
//   FC26  What is heard is handed on without blocking, in the order of its coming; what is lost on
//         the way is said again when it is asked for again (FW5).
//   FC27  When the memory node says that this server is fenced, `ended` is told, once, and the
//         thread ends. One that serves no more is asked again, until there is another one.
//   FC57  Nothing is handed on that a memory node has said under an epoch that is over
//         (epoch_is_over()): its numbers may stand for something else by then.
#pragma once

#include <functional>
#include <thread>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "base/stop_flag.h"
#include "base/wait_interrupt.h"
#include "clients/fusion/fusion_pages.h"
#include "clients/fusion/name_locks.h"
#include "clients/fusion/remote_calls.h"
#include "clients/fusion/remote_owners.h"
#include "clients/fusion/reuse_client.h"
#include "proto/fusion_messages.h"

namespace strata::clients {

class RemoteEvents {
 public:
  // What is null hears nothing; the others outlive this.
  struct Hearers {
    FusionPages* pages = nullptr;
    RemoteOwners* owners = nullptr;
    NameLocks* names = nullptr;
    ReuseClient* reuse = nullptr;
  };
  // `ended` runs in the thread of this.
  RemoteEvents(RemoteCalls* calls, const Hearers& hearers, std::function<void(const Status&)> ended,
               uint32_t wait_us = 2'000'000);
  ~RemoteEvents();  // stop()
  // Blocks for what is being handed on. Again: nothing. Not by `ended`.
  void stop();
  // FC57. Blocks for what is being handed on.
  void epoch_is_over(Epoch epoch);

 private:
  void work();
  void hand_on(const proto::FusionEventsReply& reply, Epoch epoch);
  RemoteCalls* const calls_;
  const Hearers hearers_;
  const std::function<void(const Status&)> ended_;
  const uint32_t wait_us_;
  Mutex handing_{LatchRank::kServer};  // over what is handed on, which does not block
  Epoch over_ STRATA_GUARDED_BY(handing_);
  StopFlag stopping_;
  WaitInterrupt interrupt_;
  std::thread thread_;
};

}  // namespace strata::clients
