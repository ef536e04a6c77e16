// Streams over TCP and unix sockets. Addresses: "unix:/path", "tcp:127.0.0.1:7000",
// "tcp:[::1]:7000".
//
//   SN1  Nothing listens on anything but a unix socket, loopback, or an address of a private
//        network that is named: no wildcard, no public address.
//   SN2  A unix socket can be used by its owner only (mode 0600), and the peer's user is checked.
//   SN3  A peer that vanishes without a word is noticed: unacknowledged data after kUserTimeoutMs,
//        a silent connection by the kernel's keep-alive within a minute.
#pragma once

#include <memory>
#include <string>

#include "transport/counters.h"
#include "transport/sockets/event_loop.h"
#include "transport/world.h"

namespace strata::transport {

class SocketNetwork final : public Network {
 public:
  // `counters`, if given, counts peers refused by their user. The loop outlives the network.
  explicit SocketNetwork(EventLoop* loop, std::shared_ptr<Counters> counters = nullptr);
  std::unique_ptr<Stream> connect(const std::string& address) override;
  StatusOr<std::unique_ptr<Listener>> listen(const std::string& address,
                                             AcceptHandler on_accept) override;

 private:
  EventLoop* const loop_;
  const std::shared_ptr<Counters> counters_;
};

}  // namespace strata::transport
