// Sees to it that every storage node gets the logs of servers that are not there any more. A node
// that was away, lost its folder, or has come in another one's place hears of a log from its
// writer; of a server that has left there is none. Without that log the node cannot vote when the
// place is used again, and, where storage makes pages from the logs, could not make a page in whose
// chain that server's changes are. Has a thread of its own.
//
//   LKP1  Only the log of a place that is settled (PLC4) is taken, and only while nobody holds it;
//         it is settled again afterwards. Whoever comes for it meanwhile waits as for any holder.
//         If this ends in the middle the place is one that is to be recovered, of which nothing is.
//   LKP2  Nothing is written: an epoch is begun where the log ends, which every node hears of that
//         answers, and which copies what it lacks from the others (quorum/README.md).
//   LKP3  Nodes are asked first whether they vote in a log, as one that came later does only once
//         it has all of it, and, where they make pages from the logs, how far they know it. A log
//         of which none of those who answer lacks anything is left alone. One that could not be
//         completed is tried again after pauses that grow.
//   LKP4  Why a log could not be completed is said once, and again when it is for another reason.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "base/stop_flag.h"
#include "base/wait_interrupt.h"
#include "cluster/places.h"
#include "memnode/host/log_sealer.h"
#include "transport/calls/blocking_channel.h"

namespace strata::memnode {

struct LogKeeperOptions {
  uint64_t look_us = 2'000'000;       // between two looks
  uint64_t complete_us = 20'000'000;  // for nodes to copy what they lack
  uint64_t pause_us_max = 60'000'000;
  bool ends_matter = true;  // LKP3: storage nodes make pages from the logs
};

class LogKeeper {
 public:
  // `there`: servers that are members now; their logs have writers.
  LogKeeper(LogSealer::Parts parts, std::function<std::set<uint8_t>()> there,
            LogKeeperOptions options = {});
  ~LogKeeper();  // stop()
  LogKeeper(const LogKeeper&) = delete;
  LogKeeper& operator=(const LogKeeper&) = delete;

  // What is under way is given up. Blocks.
  void stop();

  // For tests: one look. Blocks. Not beside the thread. Errors: the registry's; those of a log
  // whose completion failed.
  Status look();
  [[nodiscard]] uint64_t completed() const noexcept { return completed_.load(); }

 private:
  struct Failed {
    std::string said;  // LKP4
    uint64_t pause_us = 0;
    uint64_t until_us = 0;
  };
  void work();
  bool lacks(StreamId stream);
  struct Known {
    Lsn end;             // of what is acknowledged; zero: the node has no such log
    bool votes = false;  // LKP3
  };
  StatusOr<Known> known_at(size_t node, StreamId stream);
  void note_failure(NodeId server, const Status& why);
  Status complete(const cluster::KnownPlace& place);
  Status complete_log(const cluster::EpochGrant& grant);
  [[nodiscard]] uint64_t deadline() const {
    return parts_.registry->now_us() + parts_.call_timeout_us;
  }

  const LogSealer::Parts parts_;
  const std::function<std::set<uint8_t>()> there_;
  const LogKeeperOptions options_;
  std::atomic<uint64_t> completed_{0};
  // The thread's.
  std::vector<std::string> keys_;  // of the nodes that channels_ go to
  std::vector<std::unique_ptr<transport::BlockingChannel>> channels_;
  std::map<uint8_t, Failed> failed_;  // by place
  StopFlag stopping_;
  WaitInterrupt interrupt_;
  std::thread thread_;
};

}  // namespace strata::memnode
