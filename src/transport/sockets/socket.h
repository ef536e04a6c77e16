// Sockets as both the event loop's streams and the blocking channel use them.
#pragma once

#include <sys/socket.h>

#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/internal/file_descriptor.h"

namespace strata::transport {

constexpr int kUserTimeoutMs = 5000;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  [[nodiscard]] bool is_unix() const noexcept { return storage.ss_family == AF_UNIX; }
};

// kInvalidArgument names the address.
StatusOr<SocketAddress> parse_address(const std::string& address);
std::string to_text(const SocketAddress& address);
[[nodiscard]] bool may_bind(const SocketAddress& address) noexcept;  // SN1

// A non-blocking socket for the address, with all options set.
StatusOr<FileDescriptor> open_socket(const SocketAddress& address);
void set_stream_options(int fd, const SocketAddress& address) noexcept;
// Connects or begins to. True: done; false: writable means done, or take_socket_error() tells.
StatusOr<bool> start_connect(int fd, const SocketAddress& address);
Status take_socket_error(int fd);
// Whether nobody listens there. False also if that was not known by the deadline (of
// monotonic_ns()). Blocks.
[[nodiscard]] bool connections_are_refused(const SocketAddress& address, uint64_t deadline_ns);
// SN2: the process at the other end of a unix socket belongs to us or to root.
Status check_peer_user(int fd, const SocketAddress& address);

// What names this end, and the other one, of a connected socket to both: an address with its port,
// or, of a unix socket, a process. One end's own_end_of() is not the other's other_end_of() if
// somebody passes the bytes on, or stands in for an address. Empty: unknown.
std::string own_end_of(int fd);
std::string other_end_of(int fd);

// kUnavailable with the operation, the address and errno's meaning.
Status socket_error(const char* what, int error);

}  // namespace strata::transport
