#include "transport/sockets/socket_network.h"

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "transport/internal/log_limiter.h"
#include "transport/sockets/socket.h"

namespace strata::transport {
namespace {

constexpr size_t kPiecesMax = 64;

// --- SocketStream -------------------------------------------------------------------------------

//     kConnecting --writable--> kOpen --write() failed--> kBroken --a task later--> kClosed
//          |                      +---- end or error while reading ------------------^
//          +---------------------- connecting failed --------------------------------^
// on_closed() is told on the way to kClosed.
class SocketStream final : public Stream, EventLoop::Watcher {
 public:
  SocketStream(EventLoop* loop, FileDescriptor fd, SocketAddress address, bool connected)
      : loop_(loop),
        fd_(std::move(fd)),
        address_(address),
        state_(connected ? State::kOpen : State::kConnecting) {}
  // One that could not even begin to connect.
  SocketStream(EventLoop* loop, const SocketAddress& address, Status failure)
      : loop_(loop), address_(address), state_(State::kBroken), failure_(std::move(failure)) {}
  ~SocketStream() override {
    unwatch();
    *alive_ = false;
  }
  SocketStream(const SocketStream&) = delete;
  SocketStream& operator=(const SocketStream&) = delete;

  void start(StreamEvents* events) override;
  size_t write(absl::Span<const Bytes> pieces, int attached) override;
  void set_reading(bool reading) override;
  [[nodiscard]] bool carries_descriptors() const override { return address_.is_unix(); }
  [[nodiscard]] std::string peer() const override { return to_text(address_); }
  [[nodiscard]] std::string other_end() const override { return other_end_of(fd_.get()); }
  [[nodiscard]] bool ended_by_peer() const override { return ended_by_peer_; }

 private:
  enum class State { kConnecting, kOpen, kBroken, kClosed };
  void on_events(uint32_t events) override;
  void connected();
  void read();
  void closed(const Status& why);
  void closed_soon(const Status& why);
  void unwatch();
  void update_watch();
  void later(absl::AnyInvocable<void()> what);

  EventLoop* const loop_;
  FileDescriptor fd_;
  const SocketAddress address_;
  State state_;
  Status failure_;
  StreamEvents* events_ = nullptr;
  EventLoop::WatchId watch_ = 0;
  uint32_t watched_ = 0;
  bool reading_ = true;
  bool write_blocked_ = false;
  bool ended_by_peer_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

void SocketStream::start(StreamEvents* events) {
  events_ = events;
  if (!fd_.valid()) return closed_soon(failure_);
  if (state_ == State::kConnecting) {
    watched_ = EPOLLOUT;
    watch_ = loop_->watch(fd_.get(), watched_, this);
    return;
  }
  later([this] { connected(); });
}

// Runs in a later task, unless the stream has been destroyed by then.
void SocketStream::later(absl::AnyInvocable<void()> what) {
  loop_->post([alive = alive_, what = std::move(what)]() mutable {
    if (*alive) what();
  });
}

void SocketStream::connected() {
  state_ = State::kOpen;
  if (const Status user = check_peer_user(fd_.get(), address_); !user.ok()) return closed(user);
  update_watch();
  events_->on_open();
}

void SocketStream::on_events(uint32_t events) {
  if (state_ == State::kConnecting) {
    const Status outcome = take_socket_error(fd_.get());
    return outcome.ok() ? connected() : closed(outcome);
  }
  if ((events & EPOLLOUT) != 0 && write_blocked_) {
    write_blocked_ = false;
    update_watch();
    events_->on_writable();
  }
  // A broken stream that we do not read from is told by EPOLLERR and EPOLLHUP alone.
  if (state_ == State::kOpen && (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) read();
}

void SocketStream::read() {
  const absl::Span<char> buffer = loop_->read_buffer();
  const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
  if (got > 0) return events_->on_bytes({buffer.data(), static_cast<size_t>(got)});
  ended_by_peer_ = got == 0;
  if (got == 0) return closed(error_peer_down("closed by the peer"));
  if (errno == EAGAIN || errno == EINTR) return;
  closed(socket_error("recv", errno));
}

size_t SocketStream::write(absl::Span<const Bytes> pieces, int attached) {
  if (state_ != State::kOpen || write_blocked_) return 0;
  std::array<iovec, kPiecesMax> parts;
  const size_t count = std::min(pieces.size(), parts.size());
  for (size_t i = 0; i < count; i++)
    parts[i] = {const_cast<char*>(pieces[i].data()), pieces[i].size()};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (attached >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &attached, sizeof attached);
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0 && errno != EAGAIN) {
    closed_soon(socket_error("send", errno));
    return 0;
  }
  const size_t taken = sent < 0 ? 0 : static_cast<size_t>(sent);
  size_t offered = 0;
  for (size_t i = 0; i < count; i++) offered += pieces[i].size();
  write_blocked_ = taken < offered;
  if (write_blocked_) update_watch();
  // Pieces beyond kPiecesMax were not even tried: the caller sees a short write, and an event.
  if (!write_blocked_ && count < pieces.size()) later([this] { events_->on_writable(); });
  return taken;
}

void SocketStream::set_reading(bool reading) {
  reading_ = reading;
  if (state_ == State::kOpen) update_watch();
}

void SocketStream::update_watch() {
  const uint32_t wanted = (reading_ ? EPOLLIN : 0u) | (write_blocked_ ? EPOLLOUT : 0u);
  if (watch_ == 0) {
    watch_ = loop_->watch(fd_.get(), wanted, this);
  } else if (wanted != watched_) {
    loop_->change(watch_, wanted);
  }
  watched_ = wanted;
}

void SocketStream::unwatch() {
  if (watch_ != 0) loop_->unwatch(std::exchange(watch_, 0));
}

void SocketStream::closed(const Status& why) {
  unwatch();
  if (std::exchange(state_, State::kClosed) != State::kClosed) events_->on_closed(why);
}

void SocketStream::closed_soon(const Status& why) {
  state_ = State::kBroken;
  unwatch();
  later([this, why] { closed(why); });
}

// --- SocketListener -----------------------------------------------------------------------------

class SocketListener final : public Listener, EventLoop::Watcher {
 public:
  SocketListener(EventLoop* loop, FileDescriptor fd, SocketAddress address,
                 Network::AcceptHandler on_accept, std::shared_ptr<Counters> counters)
      : loop_(loop),
        fd_(std::move(fd)),
        address_(address),
        on_accept_(std::move(on_accept)),
        counters_(std::move(counters)),
        watch_(loop->watch(fd_.get(), EPOLLIN, this)) {}
  ~SocketListener() override {
    loop_->cancel(pause_);
    loop_->unwatch(watch_);
    if (address_.is_unix())
      ::unlink(reinterpret_cast<const sockaddr_un*>(&address_.storage)->sun_path);
  }
  SocketListener(const SocketListener&) = delete;
  SocketListener& operator=(const SocketListener&) = delete;
  [[nodiscard]] std::string address() const override { return to_text(address_); }

 private:
  void on_events(uint32_t) override;
  void pause(int error);
  EventLoop* const loop_;
  const FileDescriptor fd_;
  const SocketAddress address_;
  Network::AcceptHandler on_accept_;
  const std::shared_ptr<Counters> counters_;
  const EventLoop::WatchId watch_;
  Executor::TimerId pause_ = 0;
  LogLimiter log_limiter_;
};

void SocketListener::on_events(uint32_t) {
  SocketAddress peer;
  peer.bytes = sizeof peer.storage;
  FileDescriptor fd(::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.bytes,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    const bool exhausted =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (exhausted) pause(errno);
    return;  // anything else concerns the one who wanted to connect
  }
  set_stream_options(fd.get(), peer);
  if (!check_peer_user(fd.get(), peer).ok()) {  // SN2
    if (counters_ != nullptr) count(counters_->refused(Refusal::kCredentials));
    return;
  }
  on_accept_(std::make_unique<SocketStream>(loop_, std::move(fd), peer, true));
}

// Without descriptors the listener stays readable: without a pause the loop would spin.
void SocketListener::pause(int error) {
  constexpr uint64_t kPauseNs = 100'000'000;
  uint64_t left_out = 0;
  if (log_limiter_.admit(loop_->now_ns(), &left_out))
    diag(Severity::kError, "transport: cannot accept connections on %s: %s", address().c_str(),
         std::strerror(error));
  loop_->change(watch_, 0);
  pause_ = loop_->run_at(loop_->now_ns() + kPauseNs, [this] { loop_->change(watch_, EPOLLIN); });
}

// A unix socket left behind by a process that is gone is in the way; one in use is not touched.
Status remove_stale_socket(const SocketAddress& address) {
  const char* const path = reinterpret_cast<const sockaddr_un*>(&address.storage)->sun_path;
  struct stat info {};
  if (::stat(path, &info) != 0) return ok_status();
  if (!S_ISSOCK(info.st_mode))
    return error_duplicate_key(to_text(address) + " exists and is no socket");
  STRATA_ASSIGN_OR_RETURN(const FileDescriptor probe, open_socket(address));
  if (::connect(probe.get(), address.get(), address.bytes) == 0 || errno != ECONNREFUSED)
    return error_duplicate_key(to_text(address) + " is in use");
  ::unlink(path);
  return ok_status();
}

}  // namespace

SocketNetwork::SocketNetwork(EventLoop* loop, std::shared_ptr<Counters> counters)
    : loop_(loop), counters_(std::move(counters)) {}

std::unique_ptr<Stream> SocketNetwork::connect(const std::string& address) {
  const auto parsed = parse_address(address);
  if (!parsed.ok()) return std::make_unique<SocketStream>(loop_, SocketAddress{}, parsed.status());
  auto fd = open_socket(*parsed);
  if (!fd.ok()) return std::make_unique<SocketStream>(loop_, *parsed, fd.status());
  const auto connected = start_connect(fd->get(), *parsed);
  if (!connected.ok()) return std::make_unique<SocketStream>(loop_, *parsed, connected.status());
  return std::make_unique<SocketStream>(loop_, *std::move(fd), *parsed, *connected);
}

StatusOr<std::unique_ptr<Listener>> SocketNetwork::listen(const std::string& address,
                                                          AcceptHandler on_accept) {
  STRATA_ASSIGN_OR_RETURN(SocketAddress parsed, parse_address(address));
  if (!may_bind(parsed))  // SN1
    return error_invalid_argument(address +
                                  ": only loopback or a private address may be listened on");
  if (parsed.is_unix()) STRATA_RETURN_IF_ERROR(remove_stale_socket(parsed));
  STRATA_ASSIGN_OR_RETURN(FileDescriptor fd, open_socket(parsed));
  const int yes = 1;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  // fchmod of an unbound unix socket decides the mode its name is made with (SN2).
  if (parsed.is_unix() && ::fchmod(fd.get(), 0600) != 0) return socket_error("fchmod", errno);
  if (::bind(fd.get(), parsed.get(), parsed.bytes) != 0) {
    const std::string text = "listen on " + address + ": " + std::strerror(errno);
    if (errno == EADDRINUSE) return error_duplicate_key(text);
    return errno == EADDRNOTAVAIL ? error_invalid_argument(text) : error_internal(text);
  }
  if (::listen(fd.get(), 512) != 0) return socket_error("listen", errno);
  if (!parsed.is_unix()) {
    parsed.bytes = sizeof parsed.storage;
    (void)::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&parsed.storage), &parsed.bytes);
  }
  return std::make_unique<SocketListener>(loop_, std::move(fd), parsed, std::move(on_accept),
                                          counters_);
}

}  // namespace strata::transport
