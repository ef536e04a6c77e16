#include "transport/calls/rpc_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/assert.h"
#include "base/diag.h"
#include "transport/calls/internal/server_core.h"

namespace strata::transport {
namespace {

uint64_t random_number(Entropy* entropy) {
  uint64_t number = 0;
  entropy->fill(reinterpret_cast<char*>(&number), sizeof number);
  return number;
}

uint32_t saturated(uint64_t ns) noexcept {
  return static_cast<uint32_t>(std::min<uint64_t>(ns, UINT32_MAX));
}

constexpr size_t kErrorTextBytesMax = 4096;  // what is longer is cut off

}  // namespace

// --- ServerCore ---------------------------------------------------------------------------------

ServerCore::ServerCore(const World& world, const Secret& secret, ServerOptions options)
    : world_(world),
      secret_(secret),
      options_(std::move(options)),
      life_(random_number(world.entropy)) {
  STRATA_ASSERT(options_.connections_max > 0);
  STRATA_ASSERT(options_.unauthenticated_max > 0);
}

void ServerCore::handle(uint16_t method, Handler handler, MethodLayout layout) {
  STRATA_ASSERT(method > 0 && method < kMethodsMax);
  STRATA_ASSERT(listeners_.empty());
  STRATA_ASSERT(!handlers_[method]);
  handlers_[method] = std::move(handler);
  layouts_[method] = layout;
}

StatusOr<std::string> ServerCore::listen(const std::string& address) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                          world_.network->listen(address, [this](std::unique_ptr<Stream> stream) {
                            accept(std::move(stream));
                          }));
  listeners_.push_back(std::move(listener));
  return listeners_.back()->address();
}

void ServerCore::close() {
  closed_ = true;
  listeners_.clear();
  for (auto& [id, session] : sessions_) Link::close(std::move(session.link));
  sessions_.clear();
  channels_.clear();
  unauthenticated_.clear();
  for (Handler& handler : handlers_) handler = nullptr;
}

// RS5. The oldest goes, whatever it has said: a crowd that says half a word each would otherwise
// hold all places but one.
bool ServerCore::make_room() {
  if (sessions_.size() < options_.connections_max &&
      unauthenticated_.size() < options_.unauthenticated_max)
    return true;
  if (unauthenticated_.empty()) return false;
  const uint64_t oldest = *unauthenticated_.begin();
  count(options_.counters->refused(Refusal::kTooMany));
  std::shared_ptr<Link> link = sessions_.at(oldest).link;
  log_refused(link->peer(), error_no_space("too many connections that are not authenticated yet"));
  end(oldest);
  Link::close(std::move(link));
  return true;
}

void ServerCore::accept(std::unique_ptr<Stream> stream) {
  if (!make_room()) {
    count(options_.counters->refused(Refusal::kTooMany));
    log_refused(stream->peer(), error_no_space("too many connections"));
    // Not at once: this may be called inside an event of the network's.
    world_.executor->post([closed = std::move(stream)]() mutable { closed.reset(); });
    return;
  }
  const uint64_t id = next_session_id_++;
  unauthenticated_.insert(id);
  auto connection = std::make_unique<Connection>(secret_, life_, options_.limits, world_.entropy,
                                                 world_.executor->now_ns());
  Session& session = sessions_[id];
  session.link = Link::start(world_, id, std::move(stream), std::move(connection), this,
                             options_.counters, options_.output_bytes_max);
}

void ServerCore::on_ready(Link* link) {
  sessions_.at(link->id()).ready = true;
  unauthenticated_.erase(link->id());
  const uint64_t channel_id = link->connection().hello().channel_id;
  if (channel_id != 0) {
    const auto [place, is_new] = channels_.try_emplace(channel_id, link->id());
    if (!is_new) {  // RS2
      count(options_.counters->connections_replaced);
      const uint64_t old_id = std::exchange(place->second, link->id());
      std::shared_ptr<Link> old = sessions_.at(old_id).link;
      end(old_id);
      Link::close(std::move(old));
    }
  }
}

bool ServerCore::on_frame(Link* link, const Frame& frame) {
  Session& session = sessions_.at(link->id());
  const FrameHeader& header = frame.header;
  if (header.request_id <= session.last_request_id) return false;  // RS1: no request twice
  session.last_request_id = header.request_id;
  const bool known = header.method < kMethodsMax && handlers_[header.method] &&
                     layouts_[header.method].digest == header.layout;  // RS7
  count(options_.counters->of(header.method).bytes_in, kFrameHeaderBytes + header.payload_bytes);
  if (++session.in_progress == options_.requests_in_progress_max) link->set_wanted(false);  // RS4

  Responder responder;
  responder.server_ = shared_from_this();
  responder.connection_id_ = link->id();
  responder.request_id_ = header.request_id;
  responder.arrived_ns_ = link->arrived_ns();
  responder.method_ = header.method;
  responder.carries_descriptors_ = link->carries_descriptors();
  if (!known) {
    responder.fail(refuse(header, link->peer()));
    return true;
  }
  const Request request{header.method, header.epoch, frame.payload, link->id(),
                        link->connection().hello().channel_id};
  handlers_[header.method](request, std::move(responder));
  return true;
}

std::string ServerCore::own_name() const {
  return listeners_.empty() ? std::string("this node")
                            : "the node at " + listeners_.front()->address();
}

// RS7. Its reason is for whoever reads it at the caller's; here, too, somebody should know.
Status ServerCore::refuse(const FrameHeader& request, const std::string& peer) {
  const bool handled = request.method < kMethodsMax && handlers_[request.method];
  const MethodLayout here = handled ? layouts_[request.method] : MethodLayout{};
  std::string call = "call " + std::to_string(request.method);
  if (*here.name != '\0') call += absl::StrCat(" (", here.name, ")");
  Status why;
  if (!handled) {
    why = error_unsupported(absl::StrCat(
        own_name(), " does not have ", call,
        ": it is of another kind, or of another build than the caller; to do: bring all nodes to "
        "the same version, and look whether the address is that of the node which is meant"));
  } else {
    count(options_.counters->other_layouts);
    const std::string theirs = request.layout == 0
                                   ? "none told"
                                   : absl::StrCat(absl::Hex(request.layout, absl::kZeroPad4));
    why = error_unsupported(
        absl::StrCat(own_name(), " is of another build than its caller: they lay out ", call,
                     " differently (layout ", absl::Hex(here.digest, absl::kZeroPad4), " there, ",
                     theirs, " at the caller); to do: bring all nodes to the same version"));
  }
  uint64_t left_out = 0;
  if (refused_limiter_.admit(world_.executor->now_ns(), &left_out))
    diag(Severity::kWarning, "transport: refused a call from %s: %s (%llu more like it before)",
         peer.c_str(), std::string(why.message()).c_str(),
         static_cast<unsigned long long>(left_out));
  return why;
}

void ServerCore::on_closed(Link* link, const Status& why) {
  if (!sessions_.at(link->id()).ready || is_corruption(why) || is_no_space(why))
    log_refused(link->peer(), why);
  Task then;
  if (link->ended_by_peer()) then = std::move(sessions_.at(link->id()).when_peer_ends);
  end(link->id());
  if (then) then();
}

std::string ServerCore::other_end_of(uint64_t session_id) const {
  const auto place = sessions_.find(session_id);
  return place == sessions_.end() ? std::string() : place->second.link->other_end();
}

void ServerCore::when_peer_ends(uint64_t session_id, Task then) {
  const auto place = sessions_.find(session_id);
  if (place != sessions_.end()) place->second.when_peer_ends = std::move(then);
}

void ServerCore::end(uint64_t session_id) {
  const auto place = sessions_.find(session_id);
  const Session session = std::move(place->second);
  sessions_.erase(place);
  if (!session.ready) {
    unauthenticated_.erase(session_id);
    return;
  }
  const uint64_t channel_id = session.link->connection().hello().channel_id;
  const auto channel = channels_.find(channel_id);
  if (channel != channels_.end() && channel->second == session_id) channels_.erase(channel);
}

void ServerCore::log_refused(const std::string& peer, const Status& why) {
  uint64_t left_out = 0;
  if (!log_limiter_.admit(world_.executor->now_ns(), &left_out)) return;
  diag(Severity::kWarning, "transport: closed a connection from %s: %s (%llu more like it before)",
       peer.c_str(), std::string(why.message()).c_str(), static_cast<unsigned long long>(left_out));
}

void ServerCore::answer(Answer answer) {
  if (closed_) return;
  if (world_.executor->in_thread()) return send(std::move(answer));
  world_.executor->run_or_post([self = shared_from_this(), answer = std::move(answer)]() mutable {
    self->send(std::move(answer));
  });
}

void ServerCore::send(Answer answer) {
  if (closed_) return;
  const uint64_t service_ns = world_.executor->now_ns() - answer.arrived_ns;
  if (answer.payload.size() > options_.limits.payload_bytes_max) {
    answer.status = error_no_space("the answer is longer than a frame may be");
    answer.payload.clear();
  }
  if (!answer.status.ok())
    answer.payload = std::string(answer.status.message()).substr(0, kErrorTextBytesMax);
  MethodCounters& counters = options_.counters->of(answer.method);
  count(counters.operations);
  count(counters.nanoseconds, service_ns);
  if (!answer.status.ok()) count(counters.errors);
  const auto place = sessions_.find(answer.connection_id);
  if (place == sessions_.end()) return;  // RS3
  FrameHeader header;
  header.flags = static_cast<uint16_t>(FrameKind::kReply);
  header.status = wire_number(answer.status);
  header.method = answer.method;
  header.request_id = answer.request_id;
  header.epoch = answer.epoch;
  header.service_ns = saturated(service_ns);
  count(counters.bytes_out, kFrameHeaderBytes + answer.payload.size());
  Session& session = place->second;
  session.link->send(header, std::move(answer.payload), std::move(answer.attached));
  if (session.in_progress-- == options_.requests_in_progress_max) session.link->set_wanted(true);
}

uint64_t ServerCore::in_progress() const noexcept {
  uint64_t sum = 0;
  for (const auto& [id, session] : sessions_) sum += session.in_progress;
  return sum;
}

// --- Responder ----------------------------------------------------------------------------------

Responder& Responder::operator=(Responder&& other) noexcept {
  if (this == &other) return *this;
  if (server_ != nullptr) fail(error_internal("the request was thrown away"));
  server_ = std::move(other.server_);
  connection_id_ = other.connection_id_;
  request_id_ = other.request_id_;
  arrived_ns_ = other.arrived_ns_;
  method_ = other.method_;
  carries_descriptors_ = other.carries_descriptors_;
  return *this;
}

Responder::~Responder() {
  if (server_ != nullptr) fail(error_internal("the request was thrown away"));
}

void Responder::reply(std::string payload, uint64_t epoch) {
  answer(ok_status(), std::move(payload), epoch, {});
}

void Responder::reply_with(FileDescriptor attached, std::string payload, uint64_t epoch) {
  STRATA_ASSERT(carries_descriptors_);
  answer(ok_status(), std::move(payload), epoch, std::move(attached));
}

void Responder::fail(const Status& error, uint64_t epoch) {
  STRATA_ASSERT(!error.ok());
  answer(error, std::string(), epoch, {});
}

std::string Responder::other_end() const {
  STRATA_ASSERT(server_ != nullptr && server_->executor()->in_thread());
  return server_->other_end_of(connection_id_);
}

void Responder::when_peer_ends(Task then) {
  STRATA_ASSERT(server_ != nullptr && server_->executor()->in_thread());
  server_->when_peer_ends(connection_id_, std::move(then));
}

void Responder::answer(const Status& status, std::string payload, uint64_t epoch,
                       FileDescriptor attached) {
  STRATA_ASSERT(server_ != nullptr);
  const std::shared_ptr<ServerCore> server = std::move(server_);
  server->answer({connection_id_, request_id_, arrived_ns_, epoch, method_, status,
                  std::move(payload), std::move(attached)});
}

// --- RpcServer ----------------------------------------------------------------------------------

RpcServer::RpcServer(const World& world, const Secret& secret, ServerOptions options) {
  if (options.counters == nullptr) options.counters = std::make_shared<Counters>();
  counters_ = options.counters;
  core_ = std::make_shared<ServerCore>(world, secret, std::move(options));
}

RpcServer::~RpcServer() {
  run_and_wait(core_->executor(), [this] { core_->close(); });
}

void RpcServer::handle(uint16_t method, Handler handler, MethodLayout layout) {
  core_->handle(method, std::move(handler), layout);
}

StatusOr<std::string> RpcServer::listen(const std::string& address) {
  StatusOr<std::string> result = error_internal("not run");
  run_and_wait(core_->executor(), [&] { result = core_->listen(address); });
  return result;
}

uint32_t RpcServer::payload_bytes_max() const noexcept { return core_->payload_bytes_max(); }
uint64_t RpcServer::in_progress() const noexcept { return core_->in_progress(); }
size_t RpcServer::connections() const noexcept { return core_->connections(); }

}  // namespace strata::transport
