// Answers calls. One server has one executor; it listens on any number of addresses.
//
//   RS1  A handler runs once for each request that arrived whole on an authenticated connection, in
//        the executor's thread, in the order in which its channel's calls were made. Request ids of
//        a connection grow; one that does not ends it.
//   RS2  The newest connection of a channel replaces the one before: requests of the old one that
//        no handler has seen are dropped, so RS1's order holds over reconnections too.
//   RS3  A request is answered once, by its Responder; one that is thrown away answers kInternal.
//        An answer whose connection is gone goes nowhere.
//   RS4  What a peer can make the server hold is bounded: connections, unauthenticated ones,
//        requests in progress and bytes unsent per connection (beyond these two nothing more is
//        read from it).
//   RS5  Peers that do not authenticate cannot keep others out. When all places are taken the
//        oldest of those that are not authenticated gives its place to the one that comes. What an
//        authenticated peer has stays its own.
//   RS6  That a peer has ended a connection is told only if its side did that, in order (it closed
//        the connection, or its process is gone), and after all that came before: no break of the
//        network, and nothing that this side has closed, is told so.
//   RS7  A request whose caller lays out the method's messages differently from this server, or
//        does not say how, is refused before its payload is looked at: `unsupported`, naming the
//        method. So is one of a method that nothing here handles. Other calls go on.
// Handlers must not block: they hand slow work to threads of their own, with the Responder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "transport/calls/call.h"
#include "transport/calls/connection.h"
#include "transport/world.h"

namespace strata::transport {

struct ServerOptions {
  ConnectionLimits limits = {};
  uint32_t connections_max = 4096;
  uint32_t unauthenticated_max = 64;
  uint32_t requests_in_progress_max = 1024;      // per connection
  uint64_t output_bytes_max = 8u << 20;          // per connection
  std::shared_ptr<Counters> counters = nullptr;  // its own if null
};

struct Request {
  uint16_t method = 0;
  uint64_t epoch = 0;          // the caller's
  Bytes payload;               // valid inside the handler only
  uint64_t connection_id = 0;  // never used again by this server
  uint64_t channel_id = 0;     // 0 for blocking callers
};

class ServerCore;  // the server's state, shared with Responders

// Where the answer to one request goes. Movable; may be used in any thread, once, as long as the
// server's executor exists.
// reply() and fail() are for threads that hold no latch: they may send at once (EX3 of world.h).
class Responder {
 public:
  Responder() noexcept = default;
  Responder(Responder&&) noexcept = default;
  Responder& operator=(Responder&& other) noexcept;
  ~Responder();
  // `epoch`: the server's, of whatever the method is about.
  void reply(std::string payload, uint64_t epoch = 0);
  void fail(const Status& error, uint64_t epoch = 0);
  // With an open file for the caller; only over unix sockets (carries_descriptors()).
  void reply_with(FileDescriptor attached, std::string payload, uint64_t epoch = 0);
  [[nodiscard]] bool carries_descriptors() const noexcept { return carries_descriptors_; }
  // For handlers, in the executor's thread, before the answer. What the caller knows as its own end
  // of the connection if nobody stands between it and this server; empty: unknown.
  [[nodiscard]] std::string other_end() const;
  // The same. Runs `then` in the executor's thread once the peer has ended this connection (RS6);
  // else never. Of several the last.
  void when_peer_ends(Task then);

 private:
  friend class ServerCore;
  void answer(const Status& status, std::string payload, uint64_t epoch, FileDescriptor attached);
  std::shared_ptr<ServerCore> server_;  // null: answered
  uint64_t connection_id_ = 0;
  uint64_t request_id_ = 0;
  uint64_t arrived_ns_ = 0;
  uint16_t method_ = 0;
  bool carries_descriptors_ = false;
};

using Handler = absl::AnyInvocable<void(const Request&, Responder)>;

// RS7. What is said of a method beside its number: its name, for people, and the digest of how its
// messages are laid out, as in CallOptions::layout.
struct MethodLayout {
  const char* name = "";  // stays valid
  uint16_t digest = 0;
};

class RpcServer {
 public:
  RpcServer(const World& world, const Secret& secret, ServerOptions options);
  // Closes everything; handlers no longer run when it returns. Not inside a handler. Blocks for the
  // executor's thread, if it runs.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // Before the first listen(). Asserts 0 < method < kMethodsMax, and that it is new.
  void handle(uint16_t method, Handler handler, MethodLayout layout = {});
  // Returns the address with the port chosen. Blocks as the destructor does. Errors name the
  // address: kInvalidArgument (not one to bind to), kAlreadyExists (in use), kInternal.
  StatusOr<std::string> listen(const std::string& address);

  [[nodiscard]] Counters& counters() noexcept { return *counters_; }  // thread-safe
  [[nodiscard]] uint32_t payload_bytes_max() const noexcept;          // of requests and answers
  // Requests whose answer is still due, and connections. In the executor's thread.
  [[nodiscard]] uint64_t in_progress() const noexcept;
  [[nodiscard]] size_t connections() const noexcept;

 private:
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<ServerCore> core_;
};

}  // namespace strata::transport
