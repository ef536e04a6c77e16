#include "transport/calls/internal/blocking_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>

#include "transport/clock.h"
#include "transport/sockets/socket.h"

namespace strata::transport {
namespace {

// How long a read waits before it looks at its deadline; with less than that left it polls.
constexpr uint64_t kReadWaitNs = 1'000'000'000;

void take_descriptor(msghdr* message, FileDescriptor* attached) noexcept {
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
    attached->reset(fd);
  }
}

}  // namespace

void BlockingSocket::let_reads_wait() noexcept {
  const timeval limit{kReadWaitNs / 1'000'000'000, 0};
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  reads_wait_ = flags >= 0 &&
                ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
                ::fcntl(fd_.get(), F_SETFL, flags & ~O_NONBLOCK) == 0;
}

Status BlockingSocket::wait(short events, uint64_t deadline_ns) const noexcept {
  for (;;) {
    const uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return error_timed_out();
    const uint64_t left_ns = deadline_ns - now_ns;
    const timespec timeout{static_cast<time_t>(left_ns / 1'000'000'000),
                           static_cast<long>(left_ns % 1'000'000'000)};
    pollfd one{fd_.get(), events, 0};
    if (::ppoll(&one, 1, &timeout, nullptr) > 0) return ok_status();
  }
}

Status BlockingSocket::wait_writable(uint64_t deadline_ns) noexcept {
  return wait(POLLOUT, deadline_ns);
}

Status BlockingSocket::write(std::array<iovec, 2> pieces, uint64_t deadline_ns) noexcept {
  size_t first = 0;
  for (;;) {
    msghdr message{};
    message.msg_iov = pieces.data() + first;
    message.msg_iovlen = pieces.size() - first;
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      STRATA_RETURN_IF_ERROR(wait(POLLOUT, deadline_ns));
      continue;
    }
    if (sent < 0) return socket_error("send", errno);
    size_t left = static_cast<size_t>(sent);
    while (first < pieces.size() && left >= pieces[first].iov_len) left -= pieces[first++].iov_len;
    if (first == pieces.size()) return ok_status();
    pieces[first].iov_base = static_cast<char*>(pieces[first].iov_base) + left;
    pieces[first].iov_len -= left;
  }
}

StatusOr<size_t> BlockingSocket::read_some(absl::Span<iovec> pieces, uint64_t deadline_ns,
                                           FileDescriptor* attached) noexcept {
  for (;;) {
    const uint64_t now_ns = monotonic_ns();
    const bool waits = reads_wait_ && deadline_ns > now_ns && deadline_ns - now_ns > kReadWaitNs;
    if (!waits) STRATA_RETURN_IF_ERROR(wait(POLLIN, deadline_ns));
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    if (carries_descriptors_ && attached != nullptr) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
    }
    const ssize_t got =
        ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | (waits ? 0 : MSG_DONTWAIT));
    if (got > 0) {
      if (message.msg_controllen > 0) take_descriptor(&message, attached);
      return static_cast<size_t>(got);
    }
    if (got == 0) return error_peer_down("closed by the peer");
    if (errno != EAGAIN && errno != EINTR) return socket_error("recv", errno);
  }
}

Status BlockingSocket::read_frame(uint32_t payload_bytes_max, uint64_t deadline_ns,
                                  FrameHeader* header, std::string* payload,
                                  FileDescriptor* attached) noexcept {
  std::array<char, kFrameHeaderBytes> head;
  size_t got = 0;  // of header and payload together
  bool header_known = false;
  do {
    std::array<iovec, 2> pieces;
    size_t count = 0;
    size_t in_payload = 0;
    if (got < kFrameHeaderBytes) {
      pieces[count++] = {head.data() + got, kFrameHeaderBytes - got};
    } else {
      in_payload = got - kFrameHeaderBytes;
    }
    pieces[count++] = {payload->data() + in_payload, payload->size() - in_payload};
    STRATA_ASSIGN_OR_RETURN(const size_t more,
                            read_some(absl::MakeSpan(pieces.data(), count), deadline_ns, attached));
    got += more;
    if (header_known || got < kFrameHeaderBytes) continue;
    STRATA_ASSIGN_OR_RETURN(*header, decode_header({head.data(), head.size()}, payload_bytes_max));
    header_known = true;
    if (got > kFrameHeaderBytes + size_t{header->payload_bytes})
      return error_corruption("bytes behind a reply");
    payload->resize(header->payload_bytes);
  } while (!header_known || got < kFrameHeaderBytes + size_t{header->payload_bytes});
  return verify_payload(*header, *payload);
}

bool BlockingSocket::is_over() const noexcept {
  pollfd one{fd_.get(), POLLRDHUP, 0};
  return ::poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void BlockingSocket::wait_over() const noexcept {
  for (;;) {
    pollfd one{fd_.get(), POLLRDHUP, 0};
    if (::poll(&one, 1, -1) > 0 && one.revents != 0) return;
  }
}

bool BlockingSocket::is_idle() const noexcept {
  char byte;
  return ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

}  // namespace strata::transport
