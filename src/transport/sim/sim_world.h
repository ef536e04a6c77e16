// A world in one thread and virtual time: nodes, their executors, a network with faults. The same
// seed gives the same run. Production code (RpcServer, Channel, and what is built on them) runs in
// it unchanged.
//
//   SW1  Whatever happens follows from the seed and the calls made: no wall clock, no other thread.
//   SW2  Streams behave as TCP connections do: ordered, whole up to the point where they break,
//        each side learning of a break in its own time, or never.
//   SW3  Nothing of a killed node runs any more; what it had sent may still arrive, or part of it.
// Addresses are "sim:<node>:<port>". Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "base/rng.h"
#include "transport/world.h"

namespace strata::transport {

struct SimFaults {
  uint64_t delay_us_min = 20;  // of each piece, one way
  uint64_t delay_us_max = 300;
  // Chances are "one in so many"; 0 is never.
  uint32_t lose_one_in = 0;  // a piece is lost and sent again after retransmit_us
  uint64_t retransmit_us = 200'000;
  uint32_t cut_one_in = 0;  // a write() breaks its connection, at any of its bytes
  uint32_t short_write_one_in = 4;
  uint64_t window_bytes = 64u << 10;     // on the way, per direction
  uint64_t user_timeout_us = 5'000'000;  // undelivered for so long: the sender gives up
};

class SimCore;

class SimWorld {
 public:
  explicit SimWorld(uint64_t seed, const SimFaults& faults = {});
  ~SimWorld();  // after everything that was given one of its Worlds
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  uint32_t add_node();  // 0, 1, 2 ...
  // What the objects of the node are given: of this life of the node, until it is killed.
  [[nodiscard]] World world(uint32_t node);

  // --- what may go wrong ---
  // How a node ends: the process dies (its peers are told), or the machine does (nobody is; who
  // goes on sending is told once it is up again).
  enum class Death { kProcess, kMachine };
  // Not inside an event of that node. Its objects are to be destroyed afterwards.
  void kill(uint32_t node, Death death);
  void restart(uint32_t node);  // a new life, without objects
  [[nodiscard]] bool alive(uint32_t node) const;
  // Runs nothing of the node for so long; what arrives waits.
  void pause(uint32_t node, uint64_t us);
  // Nothing gets from `from` to `to`; connections stay, and go on when they can again.
  void set_blocked(uint32_t from, uint32_t to, bool blocked);
  void set_partitioned(uint32_t a, uint32_t b, bool partitioned) {
    set_blocked(a, b, partitioned);
    set_blocked(b, a, partitioned);
  }
  void set_extra_delay(uint32_t from, uint32_t to, uint64_t us);  // a slow link
  void cut_connections(uint32_t a, uint32_t b);  // all there are, at any byte under way
  void set_faults(const SimFaults& faults);

  // --- time ---
  [[nodiscard]] uint64_t now_us() const noexcept;
  bool step();  // runs the next event; false: there is none
  void run_for(uint64_t us);
  // Steps until `done` says so, at most for so long. False: it never did.
  bool run_until(absl::FunctionRef<bool()> done, uint64_t us_max);
  void at(uint64_t when_us, Task task);  // the test's own; runs whatever the nodes do
  [[nodiscard]] Rng& rng() noexcept;
  [[nodiscard]] uint64_t events() const noexcept;  // run so far
  [[nodiscard]] size_t connections() const noexcept;

 private:
  std::unique_ptr<SimCore> core_;
};

}  // namespace strata::transport
