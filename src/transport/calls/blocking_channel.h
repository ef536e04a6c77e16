// Calls that block the calling thread: many threads, one peer, a socket of its own for each call in
// progress, taken from a cache. For page reads and one-sided operations. Thread-safe.
//
//   BC1  A call ends at its deadline at the latest, and its end is told truly (CA1).
//   BC2  A socket goes back to the cache only after a whole, matching reply; after anything else it
//        is closed. A cached one that the peer has closed meanwhile is not used.
//   BC4  A call ends when the thread's InterruptScope is interrupted: kCancelled if the call is
//        idempotent, else as if the connection had broken.
//   BC3  A call whose connection broke is sent once more, on a new connection, if it is idempotent
//        or had not been sent whole.
//   BC5  A connection that is kept carries the calls made on it, one at a time, and is closed when
//        its KeptConnection is destroyed, by nothing else: no end of a call, no interrupt.
//   BC6  Who waits for the end of a kept connection hears of it at once, and of nothing else but
//        cut().
// Replies are read by the calling thread: no other thread has to wake up on this side.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/latch.h"
#include "transport/address.h"
#include "transport/calls/call.h"
#include "transport/calls/connection.h"
#include "transport/link_model.h"

namespace strata::transport {

class BlockingSocket;

// BC5. Used by one thread at a time, but for stands(), cut() and one thread in wait_over().
class KeptConnection {
 public:
  explicit KeptConnection(std::unique_ptr<BlockingSocket> socket);
  ~KeptConnection();
  KeptConnection(const KeptConnection&) = delete;
  KeptConnection& operator=(const KeptConnection&) = delete;
  // What the peer knows as the other end if nobody stands between (Responder::other_end()).
  [[nodiscard]] std::string own_end() const;
  // False: the peer has ended it, or it broke.
  [[nodiscard]] bool stands() const noexcept;
  // BC6. Blocks until it stands no more.
  void wait_over() const noexcept;
  // Ends it from here, for good. Does not block.
  void cut() noexcept;

 private:
  friend class BlockingChannel;
  const std::unique_ptr<BlockingSocket> socket_;
};

struct BlockingChannelOptions {
  ConnectionLimits limits = {};
  uint32_t cached_sockets_max = 64;
  std::shared_ptr<LinkModel> link_model = nullptr;  // null: none
  std::shared_ptr<Counters> counters = nullptr;     // its own if null
};

struct BlockingReply {
  // In: its size is a guess of the reply's, which saves a system call when it is not too small, and
  // its memory is used again. Out: the reply.
  std::string payload;
  uint64_t epoch = 0;       // the server's
  bool answered = false;    // by the handler
  FileDescriptor attached;  // what the handler sent along, if anything
};

class BlockingChannel {
 public:
  BlockingChannel(const Secret& secret, Address address, BlockingChannelOptions options);
  ~BlockingChannel();  // no call may be in progress
  BlockingChannel(const BlockingChannel&) = delete;
  BlockingChannel& operator=(const BlockingChannel&) = delete;

  // Blocks until the reply is there, at most until options.deadline_us of base/clock.h's clock. No
  // latch may be held. Errors: the handler's if reply->answered, else as CA1.
  // options.wait_for_connection must be false.
  Status call(const CallOptions& options, Bytes request, BlockingReply* reply);

  // BC5. A new connection. Blocks until that deadline at most. Errors: as a call's.
  StatusOr<std::unique_ptr<KeptConnection>> keep_connection(uint64_t deadline_us);
  // As call(), on it, once. An error that is not the handler's: the connection carries no further
  // calls.
  Status call_on(KeptConnection* connection, const CallOptions& options, Bytes request,
                 BlockingReply* reply);

  // Whether connections to its address are refused: nobody listens there. Blocks until that
  // deadline at most. False also if that is not known.
  [[nodiscard]] bool is_refused(uint64_t deadline_us);
  // The peer may be at another address by now, and not answer any more at the one before: sockets
  // that no call uses are closed. Does not block.
  void forget_connections() { drop_cached(); }

  [[nodiscard]] Counters& counters() noexcept { return *counters_; }
  [[nodiscard]] std::string address() const { return address_.now(); }
  [[nodiscard]] LinkModel* link_model() const noexcept { return options_.link_model.get(); }

 private:
  struct Attempt;
  void attempt(const CallOptions& options, Bytes request, BlockingReply* reply, Attempt* attempt);
  Status exchange(const CallOptions& options, Bytes request, BlockingReply* reply,
                  BlockingSocket* socket, bool* sent);
  StatusOr<std::unique_ptr<BlockingSocket>> connect(uint64_t deadline_ns);
  Status authenticate(BlockingSocket* socket, uint64_t deadline_ns);
  std::unique_ptr<BlockingSocket> take_cached();
  void drop_cached();
  void put_back(std::unique_ptr<BlockingSocket> socket);

  const Secret secret_;
  const Address address_;  // whose source is thread-safe
  const BlockingChannelOptions options_;
  std::shared_ptr<Counters> counters_;
  Mutex mutex_{LatchRank::kLeaf};
  std::vector<std::unique_ptr<BlockingSocket>> cached_
      STRATA_GUARDED_BY(mutex_);  // the last one was used last
};

}  // namespace strata::transport
