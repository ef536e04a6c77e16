// What the transport asks of the world around it: time, deferred work, byte streams, random bytes.
// Real: event_loop.h, socket_network.h, system_entropy(). Simulated: sim/sim_world.h. The code
// between the two is the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/status.h"
#include "transport/secret.h"

namespace strata::transport {

using Task = absl::AnyInvocable<void()>;

// Runs tasks one at a time, on one thread ("its thread").
//   EX1  Tasks posted by one thread run in the order they were posted; none runs inside post().
//   EX2  A timer never runs early. Tasks that never ran are destroyed with the executor.
//   EX3  A thread that has work for a sleeping executor may do it itself (run_or_post()) and is its
//        thread meanwhile: to wake the other one would take longer than most tasks.
class Executor {
 public:
  using TimerId = uint64_t;  // 0: none
  virtual ~Executor() = default;
  [[nodiscard]] virtual uint64_t now_ns() const = 0;  // monotonic; thread-safe
  [[nodiscard]] uint64_t now_us() const { return now_ns() / 1000; }
  virtual void post(Task task) = 0;  // thread-safe
  // Thread-safe; where no latch is held. The task may run inside the call (EX3), with whatever it
  // posts; otherwise it is posted.
  virtual void run_or_post(Task task) { post(std::move(task)); }
  // In its thread, or when nothing runs it (before the start, after the end).
  [[nodiscard]] virtual bool in_thread() const = 0;  // thread-safe
  // Only where in_thread():
  virtual TimerId run_at(uint64_t when_ns, Task task) = 0;
  virtual void cancel(TimerId id) = 0;  // 0 or one that has run: nothing
};

// What happens on a stream. Called in the executor's thread, never inside a call of the Stream.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  virtual void on_open() = 0;  // first, unless on_closed()
  virtual void on_bytes(Bytes bytes) = 0;
  virtual void on_writable() = 0;                 // after a write() that did not take everything
  virtual void on_closed(const Status& why) = 0;  // last, at most once
};

// One connection, reliable and ordered until it breaks. Used in the executor's thread only. The
// destructor closes it, without events; it may not be called inside an event of this stream.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void start(StreamEvents* events) = 0;  // once; no event before it
  // Takes bytes from the front of `pieces` as far as there is room. `attached` (or -1): a file
  // descriptor that goes with the first of these bytes, which must then be taken; only where
  // carries_descriptors().
  virtual size_t write(absl::Span<const Bytes> pieces, int attached) = 0;
  virtual void set_reading(bool reading) = 0;  // true at first
  [[nodiscard]] virtual bool carries_descriptors() const { return false; }
  [[nodiscard]] virtual std::string peer() const = 0;  // for messages
  // What names the other end to both: its own_end() is that if nobody stands between them. Empty:
  // unknown.
  [[nodiscard]] virtual std::string other_end() const { return {}; }
  // on_closed() tells of an end that the other side has made, in order: it closed the stream, or
  // its process is gone.
  [[nodiscard]] virtual bool ended_by_peer() const { return false; }
};

class Listener {  // listens until it is destroyed
 public:
  virtual ~Listener() = default;
  [[nodiscard]] virtual std::string address() const = 0;  // with the port that was chosen
};

// Streams by address. Used in the executor's thread only.
class Network {
 public:
  using AcceptHandler = absl::AnyInvocable<void(std::unique_ptr<Stream>)>;
  virtual ~Network() = default;
  // Failures are told by on_closed().
  virtual std::unique_ptr<Stream> connect(const std::string& address) = 0;
  virtual StatusOr<std::unique_ptr<Listener>> listen(const std::string& address,
                                                     AcceptHandler on_accept) = 0;
};

// All of them, as one node has them. They outlive whatever is given a World.
struct World {
  Executor* executor = nullptr;
  Network* network = nullptr;
  Entropy* entropy = nullptr;
};

// Runs `task` in the executor's thread and waits for it. Blocks unless in_thread(); the executor
// must be running then.
void run_and_wait(Executor* executor, Task task);

}  // namespace strata::transport
