#include "transport/sockets/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "transport/clock.h"

namespace strata::transport {
namespace {

Status bad_address(const std::string& address) {
  return error_invalid_argument("address " + address +
                                ": must be unix:/path or tcp:address:port, in numbers");
}

StatusOr<SocketAddress> parse_unix(const std::string& address, Bytes path) {
  SocketAddress out;
  auto* const name = reinterpret_cast<sockaddr_un*>(&out.storage);
  if (path.empty() || path[0] != '/' || path.size() >= sizeof name->sun_path)
    return error_invalid_argument("address " + address +
                                  ": must be an absolute path below 108 bytes");
  name->sun_family = AF_UNIX;
  std::memcpy(name->sun_path, path.data(), path.size());
  out.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return out;
}

StatusOr<SocketAddress> parse_tcp(const std::string& address, Bytes rest) {
  const size_t colon = rest.rfind(':');
  if (colon == Bytes::npos) return bad_address(address);
  std::string host(rest.substr(0, colon));
  const Bytes digits = rest.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return bad_address(address);
  SocketAddress out;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    out.bytes = sizeof *v4;
    return out;
  }
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') return bad_address(address);
  host = host.substr(1, host.size() - 2);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) != 1) return bad_address(address);
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(port);
  out.bytes = sizeof *v6;
  return out;
}

std::string process_end(pid_t process) { return "process:" + std::to_string(process); }

void set_option(int fd, int level, int name, int value) noexcept {
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

Status socket_error(const char* what, int error) {
  return error_peer_down(std::string(what) + ": " + std::strerror(error));
}

StatusOr<SocketAddress> parse_address(const std::string& address) {
  const Bytes text = address;
  if (text.starts_with("unix:")) return parse_unix(address, text.substr(5));
  if (text.starts_with("tcp:")) return parse_tcp(address, text.substr(4));
  return bad_address(address);
}

std::string to_text(const SocketAddress& address) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address.storage.ss_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    ::inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
    return std::string("tcp:") + host + ":" + std::to_string(ntohs(v4->sin_port));
  }
  if (address.storage.ss_family == AF_INET6) {
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
    return std::string("tcp:[") + host + "]:" + std::to_string(ntohs(v6->sin6_port));
  }
  const auto* const name = reinterpret_cast<const sockaddr_un*>(&address.storage);
  return std::string("unix:") +
         (address.bytes > offsetof(sockaddr_un, sun_path) ? name->sun_path : "");
}

bool may_bind(const SocketAddress& address) noexcept {
  if (address.is_unix()) return true;
  if (address.storage.ss_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    const uint32_t host = ntohl(v4->sin_addr.s_addr);
    return host >> 24 == 127 || host >> 24 == 10 || host >> 20 == 0xac1 || host >> 16 == 0xc0a8;
  }
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) || (v6->sin6_addr.s6_addr[0] & 0xfe) == 0xfc;
}

StatusOr<FileDescriptor> open_socket(const SocketAddress& address) {
  FileDescriptor fd(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return socket_error("socket", errno);
  set_stream_options(fd.get(), address);
  return fd;
}

void set_stream_options(int fd, const SocketAddress& address) noexcept {
  if (address.is_unix()) return;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);  // SN3
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

StatusOr<bool> start_connect(int fd, const SocketAddress& address) {
  if (::connect(fd, address.get(), address.bytes) == 0) return true;
  // A unix socket whose backlog is full says EAGAIN and never becomes writable: it is refused.
  if (errno == EINPROGRESS || errno == EINTR) return false;
  return socket_error("connect", errno);
}

Status take_socket_error(int fd) {
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  return error == 0 ? ok_status() : socket_error("connect", error);
}

bool connections_are_refused(const SocketAddress& address, uint64_t deadline_ns) {
  const StatusOr<FileDescriptor> fd = open_socket(address);
  if (!fd.ok()) return false;
  int error = ::connect(fd->get(), address.get(), address.bytes) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) {
    const uint64_t now_ns = monotonic_ns();
    const uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    pollfd one{fd->get(), POLLOUT, 0};
    if (::poll(&one, 1, static_cast<int>(left_ns / 1'000'000)) <= 0) return false;
    socklen_t bytes = sizeof error;
    if (::getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return false;
  }
  // The file of a unix socket goes with an orderly end of who listened.
  return error == ECONNREFUSED || (address.is_unix() && error == ENOENT);
}

Status check_peer_user(int fd, const SocketAddress& address) {
  if (!address.is_unix()) return ok_status();
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    return socket_error("SO_PEERCRED", errno);
  if (peer.uid == ::geteuid() || peer.uid == 0) return ok_status();
  return error_peer_down("the process at the other end belongs to user " +
                         std::to_string(peer.uid));
}

std::string own_end_of(int fd) {
  SocketAddress own;
  own.bytes = sizeof own.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.bytes) != 0) return {};
  return own.is_unix() ? process_end(::getpid()) : to_text(own);
}

std::string other_end_of(int fd) {
  SocketAddress other;
  other.bytes = sizeof other.storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&other.storage), &other.bytes) != 0) return {};
  if (!other.is_unix()) return to_text(other);
  ucred who{};
  socklen_t bytes = sizeof who;
  // No process of this namespace: 0.
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0 || who.pid == 0) return {};
  return process_end(who.pid);
}

}  // namespace strata::transport
