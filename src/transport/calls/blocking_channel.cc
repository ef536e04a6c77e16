#include "transport/calls/blocking_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "base/wait_interrupt.h"
#include "transport/calls/internal/blocking_socket.h"
#include "transport/clock.h"
#include "transport/sockets/socket.h"

namespace strata::transport {

namespace {

// Wakes a thread that waits for a socket, for good: the socket is of no use afterwards (BC2).
class SocketSleep final : public WaitInterrupt::Sleep {
 public:
  explicit SocketSleep(int fd) noexcept : fd_(fd) {}
  void wake() noexcept override {
    (void)::shutdown(fd_, SHUT_RDWR);
  }  // fails if it is broken already

 private:
  const int fd_;
};

// Registered while a call waits for `fd`, which stays open meanwhile. What ends the call then is
// that the socket reads as closed.
class SocketWait {
 public:
  explicit SocketWait(int fd) noexcept : sleep_(fd), asleep_(WaitInterrupt::current(), &sleep_) {}
  // An interrupt that came before the wait was registered.
  [[nodiscard]] static bool interrupted() noexcept {
    return is_interrupted_now(WaitInterrupt::current());
  }

 private:
  SocketSleep sleep_;
  WaitInterrupt::Asleep asleep_;
};

}  // namespace

// One try of a call.
struct BlockingChannel::Attempt {
  std::unique_ptr<BlockingSocket> socket;
  bool sent = false;  // whole
  Status status;      // kDeadlineExceeded and kUnavailable as they happened, unless answered
};

BlockingChannel::BlockingChannel(const Secret& secret, Address address,
                                 BlockingChannelOptions options)
    : secret_(secret),
      address_(std::move(address)),
      options_(std::move(options)),
      counters_(options_.counters != nullptr ? options_.counters : std::make_shared<Counters>()) {}

BlockingChannel::~BlockingChannel() = default;

Status BlockingChannel::call(const CallOptions& options, Bytes request, BlockingReply* reply) {
  STRATA_ASSERT(options.method > 0 && options.method < kMethodsMax);
  STRATA_ASSERT(options.deadline_us > 0 && !options.wait_for_connection);
  const uint64_t begin_ns = monotonic_ns();
  MethodCounters& counters = counters_->of(options.method);
  Attempt first;
  attempt(options, request, reply, &first);
  Attempt* last = &first;
  Attempt second;
  const bool broke = first.socket != nullptr && !reply->answered && !is_timed_out(first.status) &&
                     !SocketWait::interrupted();
  if (broke && (options.idempotent || !first.sent)) {  // BC3
    count(counters.retries);
    drop_cached();  // the others are of the same age
    attempt(options, request, reply, &second);
    last = &second;
  }
  Status result = last->status;
  if (!reply->answered && options.idempotent && SocketWait::interrupted())
    result = error_interrupted();
  else if (!reply->answered && !is_invalid_argument(result))
    result = lost_call(last->sent, !is_timed_out(result), options.idempotent,
                       with_message(result, address_.now() + ": " + std::string(result.message())));
  count(counters.operations);
  count(counters.nanoseconds, monotonic_ns() - begin_ns);
  if (!result.ok()) count(counters.errors);
  return result;
}

void BlockingChannel::attempt(const CallOptions& options, Bytes request, BlockingReply* reply,
                              Attempt* attempt) {
  reply->answered = false;
  reply->attached.reset();
  if (request.size() > options_.limits.payload_bytes_max) {
    attempt->status = error_invalid_argument("a request too long");
    return;
  }
  attempt->socket = take_cached();
  if (attempt->socket == nullptr) {
    StatusOr<std::unique_ptr<BlockingSocket>> made = connect(options.deadline_us * 1000);
    attempt->status = made.status();
    if (!made.ok()) return;
    attempt->socket = *std::move(made);
  }
  const SocketWait wait(attempt->socket->fd());
  attempt->status = SocketWait::interrupted()
                        ? error_interrupted()
                        : exchange(options, request, reply, attempt->socket.get(), &attempt->sent);
  if (reply->answered) return put_back(std::move(attempt->socket));
  count(counters_->connections_closed);  // BC2
}

Status BlockingChannel::exchange(const CallOptions& options, Bytes request, BlockingReply* reply,
                                 BlockingSocket* socket, bool* sent) {
  MethodCounters& counters = counters_->of(options.method);
  const uint64_t deadline_ns = options.deadline_us * 1000;
  FrameHeader header;
  header.method = options.method;
  header.layout = options.layout;
  header.request_id = socket->next_request_id();
  header.epoch = options.epoch;
  char head[kFrameHeaderBytes];
  encode_header(header, request, head);
  const uint64_t bytes_out = kFrameHeaderBytes + request.size();
  LinkModel* const model = options_.link_model.get();
  const uint64_t arrival_ns = model != nullptr ? model->request(monotonic_ns(), bytes_out) : 0;
  iovec payload{const_cast<char*>(request.data()), request.size()};
  STRATA_RETURN_IF_ERROR(socket->write({iovec{head, sizeof head}, payload}, deadline_ns));
  *sent = true;
  count(counters.bytes_out, bytes_out);

  FrameHeader answer;
  STRATA_RETURN_IF_ERROR(socket->read_frame(options_.limits.payload_bytes_max, deadline_ns, &answer,
                                            &reply->payload, &reply->attached));
  if (answer.kind() != FrameKind::kReply || answer.request_id != header.request_id ||
      answer.method != header.method)
    return error_corruption("a reply to something else");
  const uint64_t bytes_in = kFrameHeaderBytes + uint64_t{answer.payload_bytes};
  count(counters.bytes_in, bytes_in);
  if (model != nullptr) {
    const uint64_t done_ns = model->reply(arrival_ns, answer.service_ns, bytes_in);
    sleep_until_ns(std::min(done_ns, deadline_ns));
    if (done_ns > deadline_ns) return error_timed_out();
  }
  const Reply decoded = reply_of(answer, reply->payload);
  reply->answered = true;
  reply->epoch = decoded.epoch;
  if (!decoded.status.ok()) reply->payload.clear();
  return decoded.status;
}

StatusOr<std::unique_ptr<KeptConnection>> BlockingChannel::keep_connection(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<BlockingSocket> socket, connect(deadline_us * 1000));
  return std::make_unique<KeptConnection>(std::move(socket));
}

Status BlockingChannel::call_on(KeptConnection* connection, const CallOptions& options,
                                Bytes request, BlockingReply* reply) {
  STRATA_ASSERT(options.method > 0 && options.method < kMethodsMax);
  STRATA_ASSERT(request.size() <= options_.limits.payload_bytes_max);
  reply->answered = false;
  reply->attached.reset();
  bool sent = false;
  return exchange(options, request, reply, connection->socket_.get(), &sent);
}

KeptConnection::KeptConnection(std::unique_ptr<BlockingSocket> socket)
    : socket_(std::move(socket)) {}
KeptConnection::~KeptConnection() = default;
std::string KeptConnection::own_end() const { return own_end_of(socket_->fd()); }
bool KeptConnection::stands() const noexcept { return !socket_->is_over(); }
void KeptConnection::wait_over() const noexcept { socket_->wait_over(); }
void KeptConnection::cut() noexcept { (void)::shutdown(socket_->fd(), SHUT_RDWR); }

bool BlockingChannel::is_refused(uint64_t deadline_us) {
  const StatusOr<SocketAddress> address = parse_address(address_.now());
  return address.ok() && connections_are_refused(*address, deadline_us * 1000);
}

StatusOr<std::unique_ptr<BlockingSocket>> BlockingChannel::connect(uint64_t deadline_ns) {
  const std::string where = address_.now();
  if (where.empty()) return error_peer_down("its address is not known yet");
  STRATA_ASSIGN_OR_RETURN(const SocketAddress address, parse_address(where));
  STRATA_ASSIGN_OR_RETURN(FileDescriptor fd, open_socket(address));
  auto socket = std::make_unique<BlockingSocket>(std::move(fd), address.is_unix());
  const SocketWait wait(socket->fd());
  if (SocketWait::interrupted()) return error_interrupted();
  STRATA_ASSIGN_OR_RETURN(const bool connected, start_connect(socket->fd(), address));
  if (!connected) {
    STRATA_RETURN_IF_ERROR(socket->wait_writable(deadline_ns));
    STRATA_RETURN_IF_ERROR(take_socket_error(socket->fd()));
  }
  STRATA_RETURN_IF_ERROR(check_peer_user(socket->fd(), address));
  const uint64_t limit_ns = monotonic_ns() + options_.limits.handshake_us_max * 1000;
  const Status done = authenticate(socket.get(), std::min(limit_ns, deadline_ns));
  if (is_timed_out(done) && limit_ns < deadline_ns)
    return error_peer_down("not authenticated in time");
  STRATA_RETURN_IF_ERROR(done);
  socket->let_reads_wait();
  count(counters_->connections_opened);
  return socket;
}

Status BlockingChannel::authenticate(BlockingSocket* socket, uint64_t deadline_ns) {
  Connection connection(secret_, Hello{.manner = Manner::kQuiet}, options_.limits, system_entropy(),
                        monotonic_ns());
  for (;;) {
    OutputQueue& output = connection.output();
    while (output.waiting() > 0) {
      Bytes piece;
      (void)output.front(absl::MakeSpan(&piece, 1));
      const iovec bytes{const_cast<char*>(piece.data()), piece.size()};
      STRATA_RETURN_IF_ERROR(socket->write({bytes, iovec{}}, deadline_ns));
      output.consume(piece.size());
    }
    if (connection.ready()) return ok_status();
    std::array<char, 512> buffer;
    iovec bytes{buffer.data(), buffer.size()};
    STRATA_ASSIGN_OR_RETURN(const size_t got,
                            socket->read_some(absl::MakeSpan(&bytes, 1), deadline_ns, nullptr));
    // No reply can come before there is a request: a frame other than the handshake's is refused.
    const Status taken = connection.receive({buffer.data(), got}, monotonic_ns(),
                                            [](const Frame&) { return false; });
    if (!taken.ok()) count(counters_->refused(connection.refusal()));
    STRATA_RETURN_IF_ERROR(taken);
  }
}

std::unique_ptr<BlockingSocket> BlockingChannel::take_cached() {
  for (;;) {
    std::unique_ptr<BlockingSocket> socket;
    {
      const MutexLock lock(mutex_);
      if (cached_.empty()) return nullptr;
      socket = std::move(cached_.back());
      cached_.pop_back();
    }
    if (socket->is_idle()) return socket;
    count(counters_->connections_closed);  // BC2: the peer has gone, or said something unasked
  }
}

void BlockingChannel::drop_cached() {
  std::vector<std::unique_ptr<BlockingSocket>> dropped;
  const MutexLock lock(mutex_);
  dropped.swap(cached_);
  count(counters_->connections_closed, dropped.size());
}

void BlockingChannel::put_back(std::unique_ptr<BlockingSocket> socket) {
  {
    const MutexLock lock(mutex_);
    if (cached_.size() < options_.cached_sockets_max) {
      cached_.push_back(std::move(socket));
      return;
    }
  }
  count(counters_->connections_closed);
}

}  // namespace strata::transport
