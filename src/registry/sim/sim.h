// A registry in memory, for tests and deterministic simulation: everything that happens follows
// from the calls made, the injected clock and a seed. It behaves as etcd.h does, faults included.
//
//   SY1  Handlers run only inside run_due(), one at a time, on the thread that calls it.
//   SY2  No call waits: a request that is lost ends at once as if its deadline had come.
//   SY3  Renewals and the ends of leases happen in run_due(); what the store itself does by time
//        (leases that run out, delayed requests that arrive) has happened before any call's answer.
// Thread-safe; one thread is enough. A simulation calls run_due() whenever its clock has reached
// the time that the last call returned, and after whatever changes keys.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "registry/registry.h"

namespace strata::registry {

// What may happen to one request.
enum class SimFault : uint8_t {
  kNone,
  kUnavailable,  // it is not sent
  kLostRequest,  // sent, never done
  kLostReply,    // done, but nobody says so
  kDelayed,      // sent, and done (or refused) later
};

// Of one client; chances in a thousand.
struct SimFaults {
  uint32_t unavailable = 0;
  uint32_t lost_request = 0;
  uint32_t lost_reply = 0;
  uint32_t delayed = 0;
  uint32_t lost_renewal = 0;
  uint64_t delay_us_max = 0;        // of delayed requests
  uint64_t watch_delay_us_max = 0;  // of the batches of a watch
};

// One client: a process and its connection.
class SimRegistry : public Registry {
 public:
  virtual void set_faults(const SimFaults& faults) = 0;
  // The next request but `skip`, whatever the chances say.
  virtual void fail_next(SimFault fault, uint32_t skip = 0) = 0;
  // Cut off: requests are kUnavailable, renewals and watches get nothing.
  virtual void set_connected(bool connected) = 0;
  // Paused like a stopped process: no renewals and no handlers; its lease runs out meanwhile.
  virtual void set_paused(bool paused) = 0;
};

class SimStore {
 public:
  using Clock = std::function<uint64_t()>;  // microseconds, never backwards
  using Contents = std::map<std::string, KeyValue>;

  SimStore(Clock now_us, uint64_t seed);
  ~SimStore();  // after its clients
  SimStore(const SimStore&) = delete;
  SimStore& operator=(const SimStore&) = delete;

  std::unique_ptr<SimRegistry> connect();

  // Does what is due by now. Returns when it has to be called next; UINT64_MAX: after a change.
  uint64_t run_due();

  // Down: nobody reaches it, requests that arrive are lost. Up again it has all keys, and every
  // lease its full time, as with a restarted etcd.
  void set_up(bool up);
  // Forgets how the keys came to be as they are: watches that are behind start over.
  void compact();

  // For oracles.
  [[nodiscard]] Contents contents();
  [[nodiscard]] Version version();
  [[nodiscard]] bool has_lease(LeaseId lease);
  // Called after every change, with a latch held: it may not call anything here.
  void observe(std::function<void(Version, const Contents&)> observer);

  class Impl;

 private:
  const std::unique_ptr<Impl> impl_;
};

}  // namespace strata::registry
