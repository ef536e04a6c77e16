// A replicated log in one thread and virtual time: production log stores on simulated disks,
// production writers and recoveries, a network that drops, delays, doubles and reorders, processes
// that crash, pause and come back. What every byte acknowledged or served must be is checked as it
// happens. Everything follows from the seed.
//
//   QS1  A byte once acknowledged (or kept by a finished recovery) is that byte for ever: in every
//        later acknowledgement, recovery and read.
//   QS2  Nothing is acknowledged under an epoch after a recovery of a higher one has finished, but
//        what that recovery had found.
//   QS3  One epoch has one holder whose bytes are acknowledged.
//   QS4  Once faults end, a recovery finishes, the log takes bytes, every replica gets all of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "io/file_system.h"
#include "quorum/recovery.h"
#include "quorum/writer.h"
#include "storenode/logstore/log_store.h"
#include "storenode/logstore/self_catch_up.h"

namespace strata::sim {

constexpr StreamId kStream{1};

struct LogQuorumConfig {
  uint32_t replicas = 3;
  uint32_t write_quorum = 2;
  uint64_t drop_of_1000 = 20;
  uint64_t double_of_1000 = 20;
  uint64_t delay_us_max = 2000;
  uint64_t faults_until_us = 400'000;
};

// Runs things at their time.
class Clock {
 public:
  [[nodiscard]] uint64_t now() const noexcept { return now_; }
  void after(uint64_t us, std::function<void()> action) {
    queue_.push({now_ + us, ++last_, std::move(action)});
  }
  // False: nothing is left to do.
  bool step() {
    if (queue_.empty()) return false;
    Event next = queue_.top();
    queue_.pop();
    now_ = next.at;
    next.action();
    return true;
  }

 private:
  struct Event {
    uint64_t at;
    uint64_t order;
    std::function<void()> action;
    bool operator<(const Event& other) const noexcept {  // the queue's top is the earliest
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  std::priority_queue<Event> queue_;
  uint64_t now_ = 0;
  uint64_t last_ = 0;
};

class LogQuorumSim;

// A storage node: a log store on a disk of its own.
class Node {
 public:
  Node(LogQuorumSim* sim, quorum::ReplicaIndex index);
  ~Node();
  // A request has arrived. The reply goes out when the store gives it, unless the node dies first.
  void handle(const quorum::Outgoing& request, std::function<void(quorum::Reply)> reply);
  void crash(bool power_loss);
  void start();
  void lose_disk();  // comes back as a new, empty node
  void fail_syncs(int count) { failing_syncs_ = count; }
  [[nodiscard]] bool alive() const noexcept { return store_ != nullptr; }
  [[nodiscard]] bool votes() const;            // or did when it died
  [[nodiscard]] std::string describe() const;  // for messages
  [[nodiscard]] LogStore* store() const noexcept { return store_.get(); }
  // Changes when the process does: what was sent to an earlier one does not arrive.
  [[nodiscard]] uint64_t life() const noexcept { return life_; }

 private:
  class Disk;
  void schedule();
  template <typename R>
  std::function<void(R)> in_this_life(std::function<void(quorum::Reply)> reply);

  LogQuorumSim* const sim_;
  const quorum::ReplicaIndex index_;
  std::unique_ptr<SimFileSystem> files_;
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<LogStore> store_;
  std::unique_ptr<SelfCatchUp> catch_up_;
  uint64_t life_ = 0;
  int failing_syncs_ = 0;
  bool scheduled_ = false;
  bool voted_ = false;
};

// A compute node's log client: recovers the stream under an epoch of its own, then writes until it
// is fenced.
class Client {
 public:
  Client(LogQuorumSim* sim, quorum::Holder holder);
  void pause(uint64_t us);  // keeps what arrives meanwhile for later
  void crash() { dead_ = true; }
  [[nodiscard]] bool writing() const noexcept { return writer_.has_value(); }
  [[nodiscard]] bool over() const noexcept { return dead_ || fenced_; }
  [[nodiscard]] Epoch epoch() const noexcept { return holder_.epoch; }
  [[nodiscard]] const quorum::Writer& writer() const noexcept { return *writer_; }

 private:
  void send(std::vector<quorum::Outgoing> requests);
  void deliver(std::function<void()> event);
  void on_reply(uint64_t id, quorum::Reply reply);
  void on_lost(uint64_t id);
  void tick();
  void write();
  void progress();
  void begin_writing();

  LogQuorumSim* const sim_;
  const quorum::Holder holder_;
  std::optional<quorum::Recovery> recovery_;
  std::optional<quorum::Writer> writer_;
  std::string written_;  // what this client appended, from the tenure's start on
  Lsn acknowledged_;
  uint64_t paused_until_ = 0;
  bool dead_ = false;
  bool fenced_ = false;
};

class LogQuorumSim {
 public:
  LogQuorumSim(uint64_t seed, const LogQuorumConfig& config);
  // Empty, or what went wrong.
  std::string run();

  // --- for nodes and clients ---
  Rng& rng() noexcept { return rng_; }
  Clock& clock() noexcept { return clock_; }
  const LogQuorumConfig& config() const noexcept { return config_; }
  Node& node(quorum::ReplicaIndex index) { return *nodes_[index]; }
  // A message one way. `action` runs when it arrives: never, once or twice.
  void send(std::function<void()> action);
  [[nodiscard]] bool faults() const noexcept { return clock_.now() < config_.faults_until_us; }
  [[nodiscard]] std::optional<Lsn> new_stream_start() const;
  [[nodiscard]] quorum::StreamOrigin stream_origin() const;
  [[nodiscard]] quorum::QuorumOptions options() const;
  std::string random_bytes();
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }
  void note_recovered(Epoch epoch, const quorum::Tenure& tenure);
  void note_acknowledged(Epoch epoch, Lsn from, Bytes bytes);

  struct Counts {
    uint64_t acknowledged_bytes = 0, recoveries = 0, fenced = 0, crashes = 0, reads = 0;
  };
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  Counts& counts() noexcept { return counts_; }

 private:
  void start_client();
  void next_fault();
  void next_read();
  void one_fault();
  void learn(Epoch epoch, Lsn end);
  void compare(Lsn from, Bytes bytes, const char* where);
  void heal_and_finish();
  bool run_until(const std::function<bool()>& done, uint64_t limit_us);
  bool everything_everywhere();

  Rng rng_;
  const LogQuorumConfig config_;
  Clock clock_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Client>> clients_;
  uint64_t last_epoch_ = 0;
  Lsn first_lsn_;
  bool stream_exists_ = false;  // what the registry says
  // What was acknowledged, from first_lsn_ on.
  std::string committed_;
  Epoch last_recovered_;
  std::string failure_;
  Counts counts_;
};

}  // namespace strata::sim
