// SIGTERM and SIGINT: the first asks for an orderly end, the second ends the process at once.
//
//   DM3  These signals reach a thread of their own and no other, so that what they start may lock
//        and log. A peer that has gone ends no process (SIGPIPE is ignored).
#pragma once

#include <csignal>
#include <thread>

#include "base/stop_flag.h"

namespace strata::daemon {

class Signals {
 public:
  // Before any other thread is started: they all inherit that these signals are not theirs.
  explicit Signals(StopFlag* stop);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  void wait(StopFlag* stop);
  sigset_t set_;
  std::thread thread_;
};

}  // namespace strata::daemon
