// A peer made of a plain socket and a Connection whose bytes are under the test's control: it can
// say anything, and stop at any byte.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "transport/calls/testing/connections.h"
#include "transport/internal/file_descriptor.h"
#include "transport/sockets/socket.h"

namespace strata::transport::test {

class RawPeer {
 public:
  // Blocking. -1: could not.
  static FileDescriptor connect(const std::string& address) {
    const auto parsed = parse_address(address);
    FileDescriptor fd(::socket(parsed->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), parsed->get(), parsed->bytes) != 0) return {};
    return fd;
  }
  // `bytes_max`: of what it will ever write; what is beyond is swallowed.
  RawPeer(FileDescriptor fd, Connection connection, size_t bytes_max = SIZE_MAX)
      : fd_(std::move(fd)), connection_(std::move(connection)), left_(bytes_max) {}
  static RawPeer client(const std::string& address, char secret = 's',
                        size_t bytes_max = SIZE_MAX) {
    return {connect(address),
            Connection(secret_of(secret), Hello{.manner = Manner::kQuiet}, {}, system_entropy(), 0),
            bytes_max};
  }

  bool write(Bytes bytes) {
    sent += std::string(bytes);
    bytes = bytes.substr(0, left_);
    left_ -= bytes.size();
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Writes what the connection wants to.
  bool write_output() { return write(take_output(&connection_)); }
  // Reads once; gives it to the connection. False: closed, or refused by the connection.
  bool read() {
    char buffer[4096];
    const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
    if (n <= 0) return false;
    return connection_
        .receive({buffer, static_cast<size_t>(n)}, 0,
                 [this](const Frame& frame) {
                   frames.emplace_back(frame.header, std::string(frame.payload));
                   return true;
                 })
        .ok();
  }
  bool authenticate() {
    while (!connection_.ready()) {
      if (!write_output()) return false;
      if (left_ == 0 || !read()) return false;
    }
    return write_output();
  }
  // Blocks until the other side has closed (or reset) the connection.
  void wait_closed() {
    char buffer[4096];
    while (::recv(fd_.get(), buffer, sizeof buffer, 0) > 0) {
    }
  }
  [[nodiscard]] bool exhausted() const { return left_ == 0; }
  Connection& connection() { return connection_; }
  void close() { fd_.reset(); }

  std::string sent;  // or would have been, but for bytes_max
  std::vector<std::pair<FrameHeader, std::string>> frames;

 private:
  FileDescriptor fd_;
  Connection connection_;
  size_t left_;
};

}  // namespace strata::transport::test
