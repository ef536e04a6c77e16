#include "daemon/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <string>

#include "daemon/exit_codes.h"
#include "daemon/log.h"

namespace strata::daemon {

constexpr int kEnd = SIGUSR1;  // to our own thread

Signals::Signals(StopFlag* stop) {
  sigemptyset(&set_);
  for (const int signal : {SIGTERM, SIGINT, kEnd}) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([this, stop] { wait(stop); });
}

Signals::~Signals() {
  pthread_kill(thread_.native_handle(), kEnd);
  thread_.join();
}

void Signals::wait(StopFlag* stop) {
  bool asked = false;
  for (;;) {
    int signal = 0;
    if (sigwait(&set_, &signal) != 0) continue;
    if (signal == kEnd) return;
    if (asked) {
      log_event(Level::kWarning, "second_signal", {{"signal", std::to_string(signal)}});
      _exit(kSecondSignal);
    }
    asked = true;
    log_event(Level::kInfo, "stopping", {{"signal", std::to_string(signal)}});
    stop->raise();
  }
}

}  // namespace strata::daemon
