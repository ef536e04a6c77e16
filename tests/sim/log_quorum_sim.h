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
//   QS5  No recovery chooses a log that begins behind the checkpoint up to which logs were cut off.
// The nodes change: one takes another's place, or one is added, at any moment, or a holder takes
// one out, while every holder and node goes by the placement it has heard of last
// (docs/adr/2026-11-23-changing-storage-nodes.md).
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

// A rule of changing nodes that is broken, to see that the checks notice.
enum class Mutation {
  kNone,
  kNewNodeVotes,     // a new node votes from the start, as if nothing could have been before it
  kNewNodePromises,  // it takes any epoch, not only those from the last one given on
  kPlacementBeforeEpoch,  // a holder goes by a placement it read before its epoch was given
  kRemovalWithOneQuorum,  // a node is taken out though some bytes are durable only with it
  kRemovalByOldHolder,    // and though a later epoch was given
  kOldHolderFollows       // a holder counts what it once heard by a smaller quorum made since
};

struct LogQuorumConfig {
  uint32_t replicas = 3;
  uint32_t write_quorum = 2;
  uint64_t drop_of_1000 = 20;
  uint64_t double_of_1000 = 20;
  uint64_t delay_us_max = 2000;
  uint64_t faults_until_us = 400'000;
  bool cuts = false;  // logs are cut off, whoever is behind
  uint32_t history_entries_max = 1000;
  uint64_t changes_of_1000 = 0;  // of the faults: the nodes change
  uint32_t nodes_max = 8;        // replicas, after additions
  uint32_t nodes_min = 8;        // after removals
  bool only_removals = false;
  bool sleepers = false;  // holders sleep while others take over and change the nodes
  Mutation mutation = Mutation::kNone;
};

using NodeNumber = size_t;  // never given twice

// A generation of the placement.
struct Members {
  std::vector<NodeNumber> nodes;  // by replica
  uint32_t write_quorum = 0;
  Epoch taken_out_by = {};  // the holder that took a node out last
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
  // `view`: the generation with which it comes.
  Node(LogQuorumSim* sim, NodeNumber number, size_t view);
  ~Node();
  void see(size_t view);  // hears of a generation; out of it, it answers nothing any more
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
  void schedule();  // what is queued in the store is done soon

 private:
  class Disk;
  template <typename R>
  std::function<void(R)> in_this_life(std::function<void(quorum::Reply)> reply);

  LogQuorumSim* const sim_;
  const NodeNumber number_;
  const size_t joined_;
  size_t view_;
  bool out_ = false;
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
  // Goes by generation `view`, or reads the newest one a little later.
  Client(LogQuorumSim* sim, quorum::Holder holder, std::optional<size_t> view);
  void see(size_t view);           // hears of a generation
  void take_out(NodeNumber node);  // is asked to; it may never come to it
  void pause(uint64_t us);         // keeps what arrives meanwhile for later
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
  void acknowledge();
  void recover(size_t view);
  void begin_writing();
  void follow();
  void go_on_with_removal();
  void ask_registry();
  void on_removal(bool done);

  LogQuorumSim* const sim_;
  const quorum::Holder holder_;
  size_t view_ = 0;    // that it goes by
  size_t newest_ = 0;  // that it has heard of
  std::optional<quorum::Recovery> recovery_;
  std::optional<quorum::Writer> writer_;
  struct Removal {
    NodeNumber node;
    size_t view;         // the generation to be replaced
    bool asked = false;  // the registry, which knows what became of it
    bool in_flight = false;
  };
  std::optional<Removal> removal_;
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
  Node& node(NodeNumber number) { return *nodes_[number]; }
  [[nodiscard]] const Members& members(size_t view) const { return placements_[view]; }
  [[nodiscard]] size_t newest_view() const noexcept { return placements_.size() - 1; }
  [[nodiscard]] uint64_t news_delay_us();  // until somebody hears of something
  // A message one way. `action` runs when it arrives: never, once or twice.
  void send(std::function<void()> action);
  [[nodiscard]] bool faults() const noexcept { return clock_.now() < config_.faults_until_us; }
  [[nodiscard]] std::optional<Lsn> new_stream_start() const;
  [[nodiscard]] quorum::StreamOrigin stream_origin(size_t joined) const;
  [[nodiscard]] quorum::QuorumOptions options(size_t view) const;
  std::string random_bytes();
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }
  // The registry is asked for a generation after `view` without that node: PR5. False: it will
  // never be.
  bool change_without(NodeNumber node, size_t view, Epoch holder);
  void note_recovered(Epoch epoch, const quorum::Tenure& tenure);
  // A recovery of a higher one has finished.
  [[nodiscard]] bool is_over(Epoch epoch) const { return epoch < last_recovered_; }
  void note_acknowledged(Epoch epoch, Lsn from, Bytes bytes);

  struct Counts {
    uint64_t acknowledged_bytes = 0, recoveries = 0, fenced = 0, crashes = 0, reads = 0;
    uint64_t changes = 0, removals = 0;
    uint64_t cuts = 0, late_begins = 0;  // logs that begin later than the stream at the end
  };
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  Counts& counts() noexcept { return counts_; }

 private:
  void start_client();
  void add_client(std::optional<size_t> view);
  void change_nodes();
  void take_one_out();
  void tell_placement();
  [[nodiscard]] bool all_vote_but(NodeNumber number);
  void next_fault();
  void next_read();
  void one_fault();
  void fall_asleep();
  void cut_off();
  void learn(Epoch epoch, Lsn end);
  void compare(Lsn from, Bytes bytes, const char* where);
  void heal_and_finish();
  bool run_until(const std::function<bool()>& done, uint64_t limit_us);
  bool everything_everywhere();

  Rng rng_;
  const LogQuorumConfig config_;
  Clock clock_;
  std::vector<Members> placements_;           // by generation
  std::vector<std::unique_ptr<Node>> nodes_;  // all there ever were
  std::vector<std::unique_ptr<Client>> clients_;
  uint64_t last_epoch_ = 0;
  Lsn first_lsn_;
  bool stream_exists_ = false;  // what the registry says
  // What was acknowledged, from first_lsn_ on.
  std::string committed_;
  Lsn checkpoint_;  // below it the log's user needs nothing
  Epoch last_recovered_;
  std::string failure_;
  Counts counts_;
};

}  // namespace strata::sim
