// What RpcServer and its Responders share. In the executor's thread, except answer().
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/calls/internal/link.h"
#include "transport/calls/rpc_server.h"
#include "transport/internal/log_limiter.h"

namespace strata::transport {

class ServerCore final : public Link::Owner, public std::enable_shared_from_this<ServerCore> {
 public:
  ServerCore(const World& world, const Secret& secret, ServerOptions options);
  void handle(uint16_t method, Handler handler, MethodLayout layout);
  StatusOr<std::string> listen(const std::string& address);
  void close();

  struct Answer {
    uint64_t connection_id, request_id, arrived_ns, epoch;
    uint16_t method;
    Status status;
    std::string payload;
    FileDescriptor attached;
  };
  void answer(Answer answer);  // thread-safe
  [[nodiscard]] std::string other_end_of(uint64_t session_id) const;
  void when_peer_ends(uint64_t session_id, Task then);

  [[nodiscard]] Executor* executor() const noexcept { return world_.executor; }
  [[nodiscard]] uint32_t payload_bytes_max() const noexcept {
    return options_.limits.payload_bytes_max;
  }
  [[nodiscard]] uint64_t in_progress() const noexcept;
  [[nodiscard]] size_t connections() const noexcept { return sessions_.size(); }

 private:
  struct Session {
    std::shared_ptr<Link> link;
    bool ready = false;
    uint32_t in_progress = 0;
    uint64_t last_request_id = 0;
    Task when_peer_ends;  // RS6
  };
  void accept(std::unique_ptr<Stream> stream);
  bool make_room();  // false: there is none for one more
  void on_ready(Link* link) override;
  bool on_frame(Link* link, const Frame& frame) override;
  void on_closed(Link* link, const Status& why) override;
  void end(uint64_t session_id);
  void send(Answer answer);
  void log_refused(const std::string& peer, const Status& why);
  [[nodiscard]] std::string own_name() const;
  Status refuse(const FrameHeader& request, const std::string& peer);

  const World world_;
  const Secret secret_;
  const ServerOptions options_;
  const uint64_t life_;
  std::array<Handler, kMethodsMax> handlers_;
  std::array<MethodLayout, kMethodsMax> layouts_{};  // RS7
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<uint64_t, Session> sessions_;   // by link's id
  std::unordered_map<uint64_t, uint64_t> channels_;  // channel id -> session id (RS2)
  std::set<uint64_t> unauthenticated_;               // session ids, so by age
  uint64_t next_session_id_ = 1;
  std::atomic<bool> closed_{false};  // an answer that comes after this touches nothing
  LogLimiter log_limiter_;
  LogLimiter refused_limiter_;
};

}  // namespace strata::transport
