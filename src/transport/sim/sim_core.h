// What is inside a SimWorld: the queue of events, the lives of nodes, the connections.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/sim/sim_world.h"

namespace strata::transport {

using SimTime = uint64_t;  // us

class SimLife;
class SimListener;
class SimStream;

struct SimEvent {
  SimLife* life = nullptr;  // in whose turn it runs; null: the world's own
  Task task;
};

// Events in the order of their time, then in that in which they were added.
class SimQueue {
 public:
  uint64_t add(SimTime when, SimEvent event);
  void cancel(uint64_t id);
  [[nodiscard]] bool empty() const { return events_.empty(); }
  [[nodiscard]] SimTime next_time() const { return events_.begin()->first.first; }
  std::pair<uint64_t, SimEvent> take();  // moves time on to it
  [[nodiscard]] SimTime now() const { return now_; }
  void advance(SimTime to) { now_ = to > now_ ? to : now_; }
  void clear();

 private:
  std::map<std::pair<SimTime, uint64_t>, SimEvent> events_;
  std::map<uint64_t, SimTime> times_;
  uint64_t next_id_ = 1;
  SimTime now_ = 1'000'000;
};

// One life of a node: executor, network and entropy of its objects.
class SimLife final : public Executor, public Network, public Entropy {
 public:
  SimLife(SimCore* core, uint32_t node) : core_(core), node_(node) {}
  [[nodiscard]] uint64_t now_ns() const override;
  void post(Task task) override;
  [[nodiscard]] bool in_thread() const override { return true; }
  TimerId run_at(uint64_t when_ns, Task task) override;
  void cancel(TimerId id) override;
  std::unique_ptr<Stream> connect(const std::string& address) override;
  StatusOr<std::unique_ptr<Listener>> listen(const std::string& address,
                                             AcceptHandler on_accept) override;
  void fill(char* out, size_t bytes) override;

 private:
  friend class SimCore;
  friend class SimListener;
  friend class SimWorld;
  SimCore* const core_;
  const uint32_t node_;
  bool alive_ = true;
  SimTime paused_until_ = 0;
  std::deque<std::pair<uint64_t, SimEvent>> held_;  // came while it was paused
  std::set<uint64_t> held_cancelled_;
  std::map<std::string, SimListener*> listeners_;  // by address
};

// Bytes on the way to one end of a connection.
struct SimPiece {
  SimTime due = 0;
  SimTime sent = 0;
  std::string bytes;
  bool end = false;  // of the stream; without bytes
};

struct SimEnd {
  uint32_t node = 0;
  SimLife* life = nullptr;         // null: not there yet, or its life is over
  StreamEvents* events = nullptr;  // null: not started, or the stream was destroyed
  bool open = false;               // on_open() told
  bool closed = false;             // on_closed() told, or there is nobody to tell
  bool reading = true;
  bool blocked = false;  // a write() was short: on_writable() is owed
  bool pump_set = false;
  bool cut = false;  // what is on the way is all that will come
  std::deque<SimPiece> on_the_way;
  uint64_t on_the_way_bytes = 0;
};

struct SimWire {
  uint64_t id = 0;
  SimEnd ends[2];  // the client's, the server's
};
using SimWirePtr = std::shared_ptr<SimWire>;

class SimCore {
 public:
  SimCore(uint64_t seed, const SimFaults& faults) : rng_(seed), faults_(faults) {}
  ~SimCore();
  SimCore(const SimCore&) = delete;
  SimCore& operator=(const SimCore&) = delete;

 private:
  friend class SimWorld;
  friend class SimLife;
  friend class SimStream;
  struct Node {
    SimLife* life = nullptr;  // null: dead
    bool machine_up = true;
  };

  bool one_in(uint32_t n) { return n != 0 && rng_.one_in(n); }
  SimTime delay();
  uint64_t add(SimTime when, SimLife* life, Task task) {
    return queue_.add(when, {life, std::move(task)});
  }
  void run(uint64_t id, SimEvent event);
  void resume(SimLife* life);

  // --- connections; `to`, `from` and `side` are indexes of ends ---
  void client_arrives(const SimWirePtr& wire, const std::string& address);
  void accept(const SimWirePtr& wire, const std::string& address);
  void open(const SimWirePtr& wire, int side, SimTime when);
  size_t write(const SimWirePtr& wire, int from, absl::Span<const Bytes> pieces);
  void send(const SimWirePtr& wire, int to, std::string bytes, bool end);
  void pump_soon(const SimWirePtr& wire, int to, SimTime when);
  void pump(const SimWirePtr& wire, int to);
  void take_in(const SimWirePtr& wire, int to);
  void tell_writable(const SimWirePtr& wire, int side, SimTime when);
  void close(const SimWirePtr& wire, int side, SimTime when, const Status& why);
  void cut(const SimWirePtr& wire, int to);
  void finish(const SimWirePtr& wire, int from);
  void stream_destroyed(const SimWirePtr& wire, int side);
  void end_of_life(const SimWirePtr& wire, int side, SimWorld::Death death);
  void forget_if_over(const SimWirePtr& wire);

  Rng rng_;
  SimFaults faults_;
  SimQueue queue_;
  uint64_t events_run_ = 0;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<SimLife>> lives_;  // former ones, too: their objects refer to them
  std::set<std::pair<uint32_t, uint32_t>> blocked_;
  std::map<std::pair<uint32_t, uint32_t>, SimTime> extra_delay_;
  std::map<uint64_t, SimWirePtr> wires_;
  uint64_t next_wire_id_ = 1;
};

}  // namespace strata::transport
