#include "status_server.h"

#include <httplib.h>

#include "status_text.h"

namespace strata::daemon {
namespace {

constexpr size_t kThreads = 2;
constexpr int kUnavailable = 503;
constexpr char kPlain[] = "text/plain; charset=utf-8";

}  // namespace

StatusServer::StatusServer() : server_(std::make_unique<httplib::Server>()) {}

StatusServer::~StatusServer() {
  server_->stop();
  if (thread_.joinable()) thread_.join();
}

StatusOr<std::unique_ptr<StatusServer>> StatusServer::start(const HttpAddress& at) {
  auto made = std::unique_ptr<StatusServer>(new StatusServer());
  httplib::Server& server = *made->server_;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  // The library would share a port that is in use.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_keep_alive_max_count(1);  // an idle connection would keep a thread busy looking at it
  server.set_read_timeout(2, 0);
  server.set_write_timeout(2, 0);
  server.set_payload_max_length(4096);
  made->add_handlers();
  int port = at.port;
  const bool bound = port != 0 ? server.bind_to_port(at.host, port)
                               : (port = server.bind_to_any_port(at.host)) > 0;
  const std::string host = at.host.find(':') == std::string::npos ? at.host : "[" + at.host + "]";
  if (!bound)
    return Status(StatusCode::kAlreadyExists, "cannot listen for HTTP on " + host + ":" +
                                                  std::to_string(at.port) +
                                                  "; perhaps another process does");
  made->address_ = host + ":" + std::to_string(port);
  made->thread_ = std::thread([&server] { server.listen_after_bind(); });
  // Once it has answered it can be stopped; before it runs, the library would forget being told so.
  httplib::Client self(at.host, port);
  self.set_keep_alive(false);
  if (!self.Get("/healthz")) return error_internal("no answer by HTTP on " + made->address_);
  return made;
}

void StatusServer::add_handlers() {
  server_->Get("/healthz", [this](const httplib::Request&, httplib::Response& response) {
    const storenode::StorageNode* const node = node_.load();
    const Status health = node != nullptr ? node->health() : error_peer_down("starting");
    if (!health.ok()) response.status = kUnavailable;
    response.set_content(health.ok() ? "ok\n" : std::string(health.message()) + "\n", kPlain);
  });
  const auto add = [this](const char* path, const char* type, auto text_of) {
    server_->Get(path, [=, this](const httplib::Request&, httplib::Response& response) {
      const storenode::StorageNode* const node = node_.load();
      if (node == nullptr) {
        response.status = kUnavailable;
        return response.set_content("starting\n", kPlain);
      }
      response.set_content(text_of(node->status(), node->health()), type);
    });
  };
  add("/metrics", "text/plain; version=0.0.4; charset=utf-8", metrics_text);
  add("/status", "application/json", status_json);
}

}  // namespace strata::daemon
