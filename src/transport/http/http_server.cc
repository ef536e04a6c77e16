#include "transport/http/http_server.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/assert.h"

namespace strata::transport {
namespace {

constexpr uint64_t kLingerUs = 1'000'000;  // for the peer to close
constexpr Bytes kEndOfHead = "\r\n\r\n";

const char* reason_of(int status) noexcept {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

// "GET /status HTTP/1.1": the first line of a request, as far as it matters here.
struct RequestLine {
  Bytes method;
  Bytes path;  // without what follows a "?"
  bool well_formed = false;
};

RequestLine parse(Bytes head) {
  const Bytes line = head.substr(0, head.find("\r\n"));
  const size_t first = line.find(' ');
  const size_t second = first == Bytes::npos ? first : line.find(' ', first + 1);
  RequestLine out;
  if (second == Bytes::npos || !line.substr(second + 1).starts_with("HTTP/1.")) return out;
  out.method = line.substr(0, first);
  out.path = line.substr(first + 1, second - first - 1);
  out.path = out.path.substr(0, out.path.find('?'));
  out.well_formed = out.path.starts_with("/");
  return out;
}

std::string encoded(const HttpAnswer& answer, bool with_body) {
  std::string out = "HTTP/1.1 " + std::to_string(answer.status) + " " + reason_of(answer.status) +
                    "\r\nContent-Type: " + answer.type +
                    "\r\nContent-Length: " + std::to_string(answer.body.size()) +
                    "\r\nConnection: close\r\n\r\n";
  if (with_body) out += answer.body;
  return out;
}

}  // namespace

class HttpServer::Core {
 public:
  Core(const World& world, const HttpOptions& options) : world_(world), options_(options) {
    STRATA_ASSERT(options.connections_max > 0);
  }
  ~Core() { STRATA_ASSERT(sessions_.empty()); }
  void handle(const std::string& path, Handler handler);
  StatusOr<std::string> listen(const std::string& address);
  void close();
  [[nodiscard]] Executor* executor() const noexcept { return world_.executor; }
  [[nodiscard]] size_t connections() const noexcept { return sessions_.size(); }
  [[nodiscard]] uint64_t evicted() const noexcept { return evicted_; }

 private:
  // Reads until the head is whole, or cannot become one; writes the answer; then waits for the peer
  // to close, since closing first would reset the connection, and take the answer with it, if more
  // bytes had come than were read. At any time: closed by the peer, out of time, or evicted.
  class Session final : public StreamEvents {
   public:
    Session(Core* core, uint64_t id, std::unique_ptr<Stream> stream)
        : core_(core), id_(id), stream_(std::move(stream)) {}
    void start() { stream_->start(this); }
    void on_open() override {}
    void on_bytes(Bytes bytes) override;
    void on_writable() override { write(); }
    void on_closed(const Status&) override {
      if (core_ != nullptr) core_->end(id_);
    }
    void detach() noexcept { core_ = nullptr; }
    Executor::TimerId timer = 0;
    uint64_t ends_at_ns = 0;  // at the latest

   private:
    void write();
    Core* core_;  // null once it has ended; its stream may still have events
    const uint64_t id_;
    const std::unique_ptr<Stream> stream_;
    std::string head_;
    std::string answer_;  // empty: there is none yet
    size_t written_ = 0;
    bool answered_ = false;
  };

  void accept(std::unique_ptr<Stream> stream);
  void set_timer(uint64_t id, uint64_t us);
  void end(uint64_t id);
  std::string answer_to(Bytes head);

  const World world_;
  const HttpOptions options_;
  std::map<std::string, Handler, std::less<>> handlers_;
  std::unique_ptr<Listener> listener_;
  std::map<uint64_t, std::unique_ptr<Session>> sessions_;  // by age
  uint64_t next_id_ = 1;
  uint64_t evicted_ = 0;
};

void HttpServer::Core::handle(const std::string& path, Handler handler) {
  STRATA_ASSERT(listener_ == nullptr);
  STRATA_ASSERT(handlers_.emplace(path, std::move(handler)).second);
}

StatusOr<std::string> HttpServer::Core::listen(const std::string& address) {
  STRATA_ASSIGN_OR_RETURN(listener_,
                          world_.network->listen(address, [this](std::unique_ptr<Stream> stream) {
                            accept(std::move(stream));
                          }));
  return listener_->address();
}

void HttpServer::Core::close() {
  listener_.reset();
  while (!sessions_.empty()) end(sessions_.begin()->first);
  handlers_.clear();
}

void HttpServer::Core::accept(std::unique_ptr<Stream> stream) {
  if (sessions_.size() >= options_.connections_max) {  // HT2
    evicted_++;
    end(sessions_.begin()->first);
  }
  const uint64_t id = next_id_++;
  auto& session = sessions_[id] = std::make_unique<Session>(this, id, std::move(stream));
  session->ends_at_ns = world_.executor->now_ns() + options_.connection_us_max * 1000;
  set_timer(id, options_.connection_us_max);
  session->start();
}

// HT1
void HttpServer::Core::set_timer(uint64_t id, uint64_t us) {
  Session& session = *sessions_.at(id);
  world_.executor->cancel(std::exchange(session.timer, 0));
  const uint64_t when_ns = std::min(session.ends_at_ns, world_.executor->now_ns() + us * 1000);
  session.timer = world_.executor->run_at(when_ns, [this, id] {
    sessions_.at(id)->timer = 0;
    end(id);
  });
}

// A stream may not be destroyed inside its own events.
void HttpServer::Core::end(uint64_t id) {
  const auto place = sessions_.find(id);
  STRATA_ASSERT(place != sessions_.end());
  std::unique_ptr<Session> session = std::move(place->second);
  sessions_.erase(place);
  session->detach();
  world_.executor->cancel(std::exchange(session->timer, 0));
  world_.executor->post([session = std::move(session)]() mutable { session.reset(); });
}

std::string HttpServer::Core::answer_to(Bytes head) {
  const RequestLine line = parse(head);
  if (!line.well_formed) return encoded({.status = 400, .body = "not a request\n"}, true);
  const bool is_head = line.method == "HEAD";
  if (line.method != "GET" && !is_head)
    return encoded({.status = 405, .body = "only GET and HEAD\n"}, true);
  const auto handler = handlers_.find(line.path);
  if (handler == handlers_.end())
    return encoded({.status = 404, .body = "there is no such page\n"}, !is_head);
  return encoded(handler->second(), !is_head);
}

// Bytes behind the head, and after an answer was begun, are of no interest; nor may they make the
// server keep them.
void HttpServer::Core::Session::on_bytes(Bytes bytes) {
  if (!answer_.empty() || core_ == nullptr) return;
  const size_t known = head_.size();
  head_.append(bytes.substr(0, core_->options_.request_bytes_max - known));
  const size_t from = known < kEndOfHead.size() ? 0 : known - kEndOfHead.size();
  const size_t end = head_.find(kEndOfHead, from);
  if (end != std::string::npos) {
    answer_ = core_->answer_to(Bytes(head_).substr(0, end));
  } else if (head_.size() == core_->options_.request_bytes_max) {
    answer_ = encoded({.status = 431, .body = "the request is too long\n"}, true);
  } else {
    return;
  }
  write();
}

void HttpServer::Core::Session::write() {
  if (answer_.empty() || core_ == nullptr) return;
  while (written_ < answer_.size()) {
    const Bytes rest = Bytes(answer_).substr(written_);
    const size_t taken = stream_->write({&rest, 1}, -1);
    written_ += taken;
    if (taken < rest.size()) return;  // on_writable() or on_closed() follows
  }
  if (std::exchange(answered_, true)) return;
  core_->set_timer(id_, kLingerUs);
}

HttpServer::HttpServer(const World& world, const HttpOptions& options)
    : core_(std::make_unique<Core>(world, options)) {}

HttpServer::~HttpServer() {
  run_and_wait(core_->executor(), [this] { core_->close(); });
}

void HttpServer::handle(const std::string& path, Handler handler) {
  core_->handle(path, std::move(handler));
}

StatusOr<std::string> HttpServer::listen(const std::string& address) {
  StatusOr<std::string> result = error_internal("not run");
  run_and_wait(core_->executor(), [&] { result = core_->listen(address); });
  return result;
}

size_t HttpServer::connections() const noexcept { return core_->connections(); }
uint64_t HttpServer::evicted() const noexcept { return core_->evicted(); }

}  // namespace strata::transport
